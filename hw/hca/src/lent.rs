//! An adapter's function, lent by reference or by any other pointer.

use core::num::NonZeroU16;
use core::ops::DerefMut;

use alloc::boxed::Box;

use ib_vtime::Secret;
use ib_wire::mad::Mad;
use ib_wire::{Gid, GidIndex, Lid, PKey, PKeyIndex, PortNum, Qpn};

use crate::{
    AddressSpace, AddressVector, ArmKind, AsyncEvent, AvHandle, Completion, CqHandle,
    DeviceAttributes, DeviceModify, DmaBuffer, DmaFault, FunctionAttributes, FunctionId,
    FunctionManager, FunctionSpec, Hca, HcaError, HcaEvent, LocalMad, MadView, MrHandle, MrKeys,
    MrSpec, MwHandle, MwKeys, MwType, PdHandle, PortAttributes, PortModify, QpAttributes, QpHandle,
    QpModify, QpNumbers, QpSpec, RecvRequest, ResourceCounts, SendRequest, SpecialQp,
    SrqAttributes, SrqHandle, SrqSpec, VirtualPort,
};

macro_rules! forward {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) $(-> $ret)? {
            (**self).$name($($arg),*)
        })*
    };
}

macro_rules! forward_mut {
    ($(fn $name:ident(&mut self $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?;)*) => {
        $(fn $name(&mut self $(, $arg: $ty)*) $(-> $ret)? {
            (**self).$name($($arg),*)
        })*
    };
}

impl<P: DerefMut<Target: Hca>> Hca for P {
    forward! {
        fn attributes(&self) -> DeviceAttributes;
        fn function(&self) -> FunctionAttributes;
        fn query_port(&self, port: PortNum) -> Result<PortAttributes, HcaError>;
        fn query_gid(&self, port: PortNum, index: GidIndex) -> Result<Gid, HcaError>;
        fn query_pkey(&self, port: PortNum, index: PKeyIndex) -> Result<PKey, HcaError>;
        fn dma_read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault>;
        fn query_av(&self, av: AvHandle) -> Result<AddressVector, HcaError>;
        fn peek_cq(&self, cq: CqHandle, at_most: usize) -> Result<usize, HcaError>;
        fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttributes, HcaError>;
        fn query_qp(&self, qp: QpHandle) -> Result<QpAttributes, HcaError>;
    }

    forward_mut! {
        fn modify_device(&mut self, change: &DeviceModify) -> Result<(), HcaError>;
        fn modify_port(&mut self, port: PortNum, change: &PortModify) -> Result<(), HcaError>;
        fn allocate_dma(&mut self, len: usize) -> Result<DmaBuffer, HcaError>;
        fn free_dma(&mut self, buffer: DmaBuffer);
        fn dma_write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault>;
        fn set_bus_master(&mut self, enabled: bool);
        fn alloc_pd(&mut self) -> Result<PdHandle, HcaError>;
        fn dealloc_pd(&mut self, pd: PdHandle) -> Result<(), HcaError>;
        fn register_mr(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError>;
        fn reregister_mr(&mut self, mr: MrHandle, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError>;
        fn deregister_mr(&mut self, mr: MrHandle) -> Result<(), HcaError>;
        fn alloc_mw(&mut self, pd: PdHandle, kind: MwType) -> Result<MwKeys, HcaError>;
        fn dealloc_mw(&mut self, mw: MwHandle) -> Result<(), HcaError>;
        fn create_av(&mut self, pd: PdHandle, vector: &AddressVector) -> Result<AvHandle, HcaError>;
        fn modify_av(&mut self, av: AvHandle, vector: &AddressVector) -> Result<(), HcaError>;
        fn destroy_av(&mut self, av: AvHandle) -> Result<(), HcaError>;
        fn create_cq(&mut self, entries: u32) -> Result<CqHandle, HcaError>;
        fn resize_cq(&mut self, cq: CqHandle, entries: u32) -> Result<(), HcaError>;
        fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), HcaError>;
        fn poll_cq(&mut self, cq: CqHandle, out: &mut [Completion]) -> Result<usize, HcaError>;
        fn arm_cq(&mut self, cq: CqHandle, kind: ArmKind) -> Result<bool, HcaError>;
        fn create_srq(&mut self, spec: SrqSpec) -> Result<SrqHandle, HcaError>;
        fn modify_srq(&mut self, srq: SrqHandle, limit: u32, max_wr: Option<u32>) -> Result<(), HcaError>;
        fn destroy_srq(&mut self, srq: SrqHandle) -> Result<(), HcaError>;
        fn post_srq_recv(&mut self, srq: SrqHandle, request: &RecvRequest<'_>) -> Result<(), HcaError>;
        fn reserve_qpns(&mut self, count: u32, align: u32) -> Result<Qpn, HcaError>;
        fn release_qpns(&mut self, first: Qpn, count: u32) -> Result<(), HcaError>;
        fn create_qp(&mut self, spec: QpSpec) -> Result<(QpHandle, QpNumbers), HcaError>;
        fn modify_qp(&mut self, qp: QpHandle, change: &QpModify) -> Result<(), HcaError>;
        fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), HcaError>;
        fn post_send(&mut self, qp: QpHandle, request: &SendRequest<'_>) -> Result<(), HcaError>;
        fn post_recv(&mut self, qp: QpHandle, request: &RecvRequest<'_>) -> Result<(), HcaError>;
        fn attach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError>;
        fn detach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError>;
        fn process_local_mad(&mut self, port: PortNum, view: MadView, mad: &Mad) -> Result<LocalMad, HcaError>;
        fn draw_secret(&mut self) -> Result<Secret, HcaError>;
        fn poll_event(&mut self) -> Option<HcaEvent>;
    }
}

impl<P: DerefMut<Target: FunctionManager>> FunctionManager for P {
    forward! {
        fn resources(&self, id: FunctionId) -> Result<ResourceCounts, HcaError>;
        fn proxy_qp(&self, id: FunctionId, special: SpecialQp, port: PortNum) -> Result<Option<QpNumbers>, HcaError>;
    }

    forward_mut! {
        fn create_function(&mut self, spec: FunctionSpec) -> Result<(), HcaError>;
        fn reset_function(&mut self, id: FunctionId) -> Result<(), HcaError>;
        fn destroy_function(&mut self, id: FunctionId) -> Result<Box<dyn AddressSpace>, HcaError>;
        fn set_virtual_port(&mut self, id: FunctionId, port: PortNum, view: VirtualPort) -> Result<(), HcaError>;
        fn set_egress_weight(&mut self, id: FunctionId, port: PortNum, weight: NonZeroU16) -> Result<(), HcaError>;
        fn notify(&mut self, id: FunctionId, event: AsyncEvent) -> Result<(), HcaError>;
    }
}
