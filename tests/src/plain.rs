//! A function that offers the least that adapters of other makers do.

use hca_api::{
    AddressVector, ArmKind, AvHandle, Completion, CqHandle, DeviceAttributes, DeviceCaps,
    DeviceModify, DmaBuffer, DmaFault, FunctionAttributes, Hca, HcaError, HcaEvent, LocalMad,
    MadView, MrHandle, MrKeys, MrSpec, MwHandle, MwKeys, MwType, PdHandle, PortAttributes,
    PortModify, QpAttributes, QpHandle, QpModify, QpNumbers, QpSpec, ReceiveMode, RecvRequest,
    SendRequest, SrqAttributes, SrqHandle, SrqSpec,
};
use ib_vtime::Secret;
use ib_wire::mad::Mad;
use ib_wire::{Gid, GidIndex, Lid, PKey, PKeyIndex, PortNum, Qpn};

/// A function without the parts of [`Hca`] that verbs of Linux lack: keys and numbers that the consumer chooses, numbers set aside,
/// receives that are read from the consumer's memory, and completion queues that are resized or counted.
///
/// It refuses them with [`HcaError::Unsupported`]. Everything else is the inner function's.
#[derive(Debug)]
pub struct Plain<H>(pub H);

const UNSUPPORTED: HcaError = HcaError::Unsupported;

/// Refuses receives that the consumer keeps.
const fn check(receives: &ReceiveMode) -> Result<(), HcaError> {
    match receives {
        ReceiveMode::Posted => Ok(()),
        ReceiveMode::Pulled(_) => Err(UNSUPPORTED),
    }
}

macro_rules! inner {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) $(-> $ret)? {
            self.0.$name($($arg),*)
        })*
    };
}

macro_rules! inner_mut {
    ($(fn $name:ident(&mut self $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?;)*) => {
        $(fn $name(&mut self $(, $arg: $ty)*) $(-> $ret)? {
            self.0.$name($($arg),*)
        })*
    };
}

impl<H: Hca> Hca for Plain<H> {
    fn attributes(&self) -> DeviceAttributes {
        let mut attributes = self.0.attributes();
        attributes.caps.remove(DeviceCaps::CHOSEN_NAMES);
        attributes
    }

    fn register_mr(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        if spec.key.is_some() {
            return Err(UNSUPPORTED);
        }
        self.0.register_mr(spec)
    }

    fn reregister_mr(&mut self, _: MrHandle, _: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        Err(UNSUPPORTED)
    }

    fn resize_cq(&mut self, _: CqHandle, _: u32) -> Result<(), HcaError> {
        Err(UNSUPPORTED)
    }

    fn peek_cq(&self, _: CqHandle, _: usize) -> Result<usize, HcaError> {
        Err(UNSUPPORTED)
    }

    fn create_srq(&mut self, spec: SrqSpec) -> Result<SrqHandle, HcaError> {
        check(&spec.receives)?;
        self.0.create_srq(spec)
    }

    fn reserve_qpns(&mut self, _: u32, _: u32) -> Result<Qpn, HcaError> {
        Err(UNSUPPORTED)
    }

    fn release_qpns(&mut self, _: Qpn, _: u32) -> Result<(), HcaError> {
        Err(UNSUPPORTED)
    }

    fn create_qp(&mut self, spec: QpSpec) -> Result<(QpHandle, QpNumbers), HcaError> {
        if spec.qpn.is_some() {
            return Err(UNSUPPORTED);
        }
        check(&spec.receives)?;
        self.0.create_qp(spec)
    }

    inner! {
        fn function(&self) -> FunctionAttributes;
        fn query_port(&self, port: PortNum) -> Result<PortAttributes, HcaError>;
        fn query_gid(&self, port: PortNum, index: GidIndex) -> Result<Gid, HcaError>;
        fn query_pkey(&self, port: PortNum, index: PKeyIndex) -> Result<PKey, HcaError>;
        fn dma_read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault>;
        fn query_av(&self, av: AvHandle) -> Result<AddressVector, HcaError>;
        fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttributes, HcaError>;
        fn query_qp(&self, qp: QpHandle) -> Result<QpAttributes, HcaError>;
    }

    inner_mut! {
        fn modify_device(&mut self, change: &DeviceModify) -> Result<(), HcaError>;
        fn modify_port(&mut self, port: PortNum, change: &PortModify) -> Result<(), HcaError>;
        fn allocate_dma(&mut self, len: usize) -> Result<DmaBuffer, HcaError>;
        fn free_dma(&mut self, buffer: DmaBuffer);
        fn dma_write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault>;
        fn set_bus_master(&mut self, enabled: bool);
        fn alloc_pd(&mut self) -> Result<PdHandle, HcaError>;
        fn dealloc_pd(&mut self, pd: PdHandle) -> Result<(), HcaError>;
        fn deregister_mr(&mut self, mr: MrHandle) -> Result<(), HcaError>;
        fn alloc_mw(&mut self, pd: PdHandle, kind: MwType) -> Result<MwKeys, HcaError>;
        fn dealloc_mw(&mut self, mw: MwHandle) -> Result<(), HcaError>;
        fn create_av(&mut self, pd: PdHandle, vector: &AddressVector) -> Result<AvHandle, HcaError>;
        fn modify_av(&mut self, av: AvHandle, vector: &AddressVector) -> Result<(), HcaError>;
        fn destroy_av(&mut self, av: AvHandle) -> Result<(), HcaError>;
        fn create_cq(&mut self, entries: u32) -> Result<CqHandle, HcaError>;
        fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), HcaError>;
        fn poll_cq(&mut self, cq: CqHandle, out: &mut [Completion]) -> Result<usize, HcaError>;
        fn arm_cq(&mut self, cq: CqHandle, kind: ArmKind) -> Result<bool, HcaError>;
        fn modify_srq(&mut self, srq: SrqHandle, limit: u32, max_wr: Option<u32>) -> Result<(), HcaError>;
        fn destroy_srq(&mut self, srq: SrqHandle) -> Result<(), HcaError>;
        fn post_srq_recv(&mut self, srq: SrqHandle, request: &RecvRequest<'_>) -> Result<(), HcaError>;
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
