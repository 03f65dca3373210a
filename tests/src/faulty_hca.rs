//! An adapter that lies about who sent, takes no sends, fails once, or can do only what all can.

use std::cell::Cell;
use std::num::NonZeroU16;

use hca_api::{
    AddressSpace, AddressVector, ArmKind, AsyncEvent, AvHandle, Completion, CompletionOp, CqHandle,
    DeviceAttributes, DmaBuffer, DmaFault, FunctionAttributes, FunctionId, FunctionManager,
    FunctionSpec, Hca, HcaError, HcaEvent, LocalMad, MadView, MrHandle, MrKeys, MrSpec, PdHandle,
    PortAttributes, PortModify, QpAttributes, QpHandle, QpModify, QpNumbers, QpSpec, ReceiveMode,
    RecvRequest, ResourceCounts, SendRequest, SpecialQp, SrqAttributes, SrqHandle, SrqSpec,
    VirtualPort,
};
use ib_vtime::Secret;
use ib_wire::mad::Mad;
use ib_wire::{Gid, GidIndex, Lid, PKey, PKeyIndex, PortNum, Qpn};

/// A physical function with faults. Whatever is not said here is the real one's.
pub struct FaultyHca<'h> {
    hca: &'h mut dyn FunctionManager,
    /// Whom the completions of receives name as the sender.
    pub source: Option<Qpn>,
    /// Whether sends are refused.
    pub refuses_sends: bool,
    /// Sends refused so far.
    pub refused: u64,
    /// Whether receives must be posted and messages be in memory.
    pub is_plain: bool,
    /// How many calls that make something, or read what it is made by, succeed before one fails. All
    /// later ones succeed.
    pub calls_before_fault: Option<u64>,
    /// Such calls so far.
    calls: Cell<u64>,
    /// Buffers that were allocated and not freed.
    pub buffers: usize,
}

impl<'h> FaultyHca<'h> {
    /// Without faults yet.
    pub fn new(hca: &'h mut dyn FunctionManager) -> Self {
        Self {
            hca,
            source: None,
            refuses_sends: false,
            refused: 0,
            is_plain: false,
            calls_before_fault: None,
            calls: Cell::new(0),
            buffers: 0,
        }
    }

    /// Returns `true` if the fault after so many calls has happened.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.calls_before_fault
            .is_some_and(|before| self.calls.get() > before)
    }

    /// Counts a call, and fails if its turn has come.
    fn count(&self) -> Result<(), HcaError> {
        let call = self.calls.get();
        self.calls.set(call + 1);
        if self.calls_before_fault == Some(call) {
            return Err(HcaError::InsufficientResources);
        }
        Ok(())
    }
}

impl core::fmt::Debug for FaultyHca<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FaultyHca")
            .field("source", &self.source)
            .field("refuses_sends", &self.refuses_sends)
            .field("refused", &self.refused)
            .field("is_plain", &self.is_plain)
            .finish_non_exhaustive()
    }
}

macro_rules! counted {
    ($(fn $name:ident(&mut self $(, $arg:ident: $ty:ty)*) -> $ret:ty;)*) => {
        $(fn $name(&mut self $(, $arg: $ty)*) -> $ret {
            self.count()?;
            self.hca.$name($($arg),*)
        })*
    };
}

macro_rules! counted_queries {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) -> $ret:ty;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) -> $ret {
            self.count()?;
            self.hca.$name($($arg),*)
        })*
    };
}

macro_rules! as_it_is {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) -> $ret:ty;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) -> $ret {
            self.hca.$name($($arg),*)
        })*
    };
}

macro_rules! as_it_is_mut {
    ($(fn $name:ident(&mut self $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?;)*) => {
        $(fn $name(&mut self $(, $arg: $ty)*) $(-> $ret)? {
            self.hca.$name($($arg),*)
        })*
    };
}

impl Hca for FaultyHca<'_> {
    fn post_send(&mut self, qp: QpHandle, request: &SendRequest<'_>) -> Result<(), HcaError> {
        if self.refuses_sends {
            self.refused += 1;
            return Err(HcaError::InsufficientResources);
        }
        self.hca.post_send(qp, request)
    }

    fn poll_cq(&mut self, cq: CqHandle, out: &mut [Completion]) -> Result<usize, HcaError> {
        let polled = self.hca.poll_cq(cq, out)?;
        for completion in &mut out[..polled] {
            let received = completion.op == CompletionOp::Recv;
            if let (true, Some(told), Some(source)) =
                (received, &mut completion.source, self.source)
            {
                told.src_qpn = source;
            }
        }
        Ok(polled)
    }

    fn attributes(&self) -> DeviceAttributes {
        let mut attributes = self.hca.attributes();
        if self.is_plain {
            attributes.limits.max_inline = 0;
        }
        attributes
    }

    fn create_qp(&mut self, spec: QpSpec) -> Result<(QpHandle, QpNumbers), HcaError> {
        if self.is_plain && matches!(spec.receives, ReceiveMode::Pulled(_)) {
            return Err(HcaError::Unsupported);
        }
        self.count()?;
        self.hca.create_qp(spec)
    }

    fn allocate_dma(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        self.count()?;
        let buffer = self.hca.allocate_dma(len)?;
        self.buffers += 1;
        Ok(buffer)
    }

    fn free_dma(&mut self, buffer: DmaBuffer) {
        self.buffers -= 1;
        self.hca.free_dma(buffer);
    }

    counted_queries! {
        fn query_port(&self, port: PortNum) -> Result<PortAttributes, HcaError>;
        fn query_gid(&self, port: PortNum, index: GidIndex) -> Result<Gid, HcaError>;
        fn query_pkey(&self, port: PortNum, index: PKeyIndex) -> Result<PKey, HcaError>;
    }

    counted! {
        fn alloc_pd(&mut self) -> Result<PdHandle, HcaError>;
        fn register_mr(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError>;
        fn create_cq(&mut self, entries: u32) -> Result<CqHandle, HcaError>;
        fn modify_qp(&mut self, qp: QpHandle, change: &QpModify) -> Result<(), HcaError>;
        fn post_recv(&mut self, qp: QpHandle, request: &RecvRequest<'_>) -> Result<(), HcaError>;
        fn process_local_mad(&mut self, port: PortNum, view: MadView, mad: &Mad) -> Result<LocalMad, HcaError>;
    }

    as_it_is! {
        fn function(&self) -> FunctionAttributes;
        fn dma_read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault>;
        fn peek_cq(&self, cq: CqHandle, at_most: usize) -> Result<usize, HcaError>;
        fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttributes, HcaError>;
        fn query_qp(&self, qp: QpHandle) -> Result<QpAttributes, HcaError>;
    }

    as_it_is_mut! {
        fn modify_port(&mut self, port: PortNum, change: &PortModify) -> Result<(), HcaError>;
        fn dma_write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault>;
        fn set_bus_master(&mut self, enabled: bool);
        fn dealloc_pd(&mut self, pd: PdHandle) -> Result<(), HcaError>;
        fn deregister_mr(&mut self, mr: MrHandle) -> Result<(), HcaError>;
        fn create_av(&mut self, pd: PdHandle, vector: &AddressVector) -> Result<AvHandle, HcaError>;
        fn destroy_av(&mut self, av: AvHandle) -> Result<(), HcaError>;
        fn resize_cq(&mut self, cq: CqHandle, entries: u32) -> Result<(), HcaError>;
        fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), HcaError>;
        fn arm_cq(&mut self, cq: CqHandle, kind: ArmKind) -> Result<bool, HcaError>;
        fn create_srq(&mut self, spec: SrqSpec) -> Result<SrqHandle, HcaError>;
        fn modify_srq(&mut self, srq: SrqHandle, limit: u32, max_wr: Option<u32>) -> Result<(), HcaError>;
        fn destroy_srq(&mut self, srq: SrqHandle) -> Result<(), HcaError>;
        fn reserve_qpns(&mut self, count: u32, align: u32) -> Result<Qpn, HcaError>;
        fn release_qpns(&mut self, first: Qpn, count: u32) -> Result<(), HcaError>;
        fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), HcaError>;
        fn attach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError>;
        fn detach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError>;
        fn draw_secret(&mut self) -> Result<Secret, HcaError>;
        fn poll_event(&mut self) -> Option<HcaEvent>;
    }
}

impl FunctionManager for FaultyHca<'_> {
    as_it_is! {
        fn resources(&self, id: FunctionId) -> Result<ResourceCounts, HcaError>;
        fn proxy_qp(&self, id: FunctionId, special: SpecialQp, port: PortNum) -> Result<Option<QpNumbers>, HcaError>;
    }

    counted! {
        fn create_function(&mut self, spec: FunctionSpec) -> Result<(), HcaError>;
        fn set_virtual_port(&mut self, id: FunctionId, port: PortNum, view: VirtualPort) -> Result<(), HcaError>;
    }

    as_it_is_mut! {
        fn reset_function(&mut self, id: FunctionId) -> Result<(), HcaError>;
        fn destroy_function(&mut self, id: FunctionId) -> Result<Box<dyn AddressSpace>, HcaError>;
        fn set_egress_weight(&mut self, id: FunctionId, port: PortNum, weight: NonZeroU16) -> Result<(), HcaError>;
        fn notify(&mut self, id: FunctionId, event: AsyncEvent) -> Result<(), HcaError>;
    }
}
