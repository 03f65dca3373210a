//! The verbs.

use ib_vtime::Secret;
use ib_wire::mad::Mad;
use ib_wire::{Gid, GidIndex, Lid, PKey, PKeyIndex, PortNum, Qpn};

use crate::{
    AddressVector, ArmKind, AvHandle, Completion, CqHandle, DeviceAttributes, DeviceModify,
    DmaBuffer, DmaFault, FunctionAttributes, HcaError, HcaEvent, MrHandle, MrKeys, MrSpec,
    MwHandle, MwKeys, MwType, PdHandle, PortAttributes, PortModify, QpAttributes, QpHandle,
    QpModify, QpNumbers, QpSpec, RecvRequest, SendRequest, SourceAddress, SrqAttributes, SrqHandle,
    SrqSpec,
};

/// On whose behalf a MAD is handed to the device's own agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadView {
    /// The host asks about its own port; a VF gets its virtual view.
    Host,
    /// The MAD came from the subnet, with the address it came from.
    Network(SourceAddress),
}

/// What the device's agents made of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "returned once per MAD and taken apart at once"
)]
pub enum LocalMad {
    /// Answered: the response to send back.
    Reply(Mad),
    /// Taken, and there is nothing to send.
    Consumed,
    /// Not for the device's agents; it belongs to software.
    NotHandled,
}

/// One function of an adapter.
///
/// Every call returns at once. A handle that the function does not own gives
/// [`HcaError::InvalidHandle`]; the lists of errors below name the others. Verbs that an adapter may lack have a body,
/// which answers [`HcaError::Unsupported`].
pub trait Hca {
    // The device and its ports.

    /// The device (IBA 11.2.1.2, Query HCA).
    fn attributes(&self) -> DeviceAttributes;

    /// This function.
    fn function(&self) -> FunctionAttributes;

    /// Changes the device (IBA 11.2.1.3, Modify HCA).
    ///
    /// # Errors
    /// [`HcaError::PermissionDenied`] for a VF, [`HcaError::InvalidParameter`].
    fn modify_device(&mut self, _change: &DeviceModify) -> Result<(), HcaError> {
        Err(HcaError::Unsupported)
    }

    /// A port (IBA 11.2.1.2).
    ///
    /// # Errors
    /// [`HcaError::InvalidPort`].
    fn query_port(&self, port: PortNum) -> Result<PortAttributes, HcaError>;

    /// Changes a port (IBA 11.2.1.3).
    ///
    /// # Errors
    /// [`HcaError::InvalidPort`], [`HcaError::PermissionDenied`].
    fn modify_port(&mut self, port: PortNum, change: &PortModify) -> Result<(), HcaError>;

    /// An entry of the port's GID table; a VF sees its own GID at index 0.
    ///
    /// # Errors
    /// [`HcaError::InvalidPort`], [`HcaError::InvalidIndex`].
    fn query_gid(&self, port: PortNum, index: GidIndex) -> Result<Gid, HcaError>;

    /// An entry of the port's P_Key table; a VF sees its virtual table.
    ///
    /// # Errors
    /// [`HcaError::InvalidPort`], [`HcaError::InvalidIndex`].
    fn query_pkey(&self, port: PortNum, index: PKeyIndex) -> Result<PKey, HcaError>;

    // Memory.

    /// Sets memory aside in the function's address space.
    ///
    /// # Errors
    /// Those of [`crate::AddressSpace::allocate`].
    fn allocate_dma(&mut self, len: usize) -> Result<DmaBuffer, HcaError>;

    /// Gives memory back. The consumer must not have it posted any more.
    fn free_dma(&mut self, buffer: DmaBuffer);

    /// Reads the function's memory, as its consumer.
    ///
    /// # Errors
    /// [`DmaFault`].
    fn dma_read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault>;

    /// Writes the function's memory, as its consumer.
    ///
    /// # Errors
    /// [`DmaFault`].
    fn dma_write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault>;

    /// Lets the function reach its memory, or keeps it from that (Bus Master Enable of its PCI command
    /// register). As long as it is kept from it every access faults, those of packets and of
    /// [`Hca::dma_read`] and [`Hca::dma_write`] alike. At first the function may, and a reset of the function
    /// changes nothing: who shows it as a PCI function says how it stands.
    fn set_bus_master(&mut self, enabled: bool);

    /// Makes a protection domain (IBA 11.2.1.5).
    ///
    /// # Errors
    /// [`HcaError::InsufficientResources`].
    fn alloc_pd(&mut self) -> Result<PdHandle, HcaError>;

    /// Destroys a protection domain.
    ///
    /// # Errors
    /// [`HcaError::InUse`].
    fn dealloc_pd(&mut self, pd: PdHandle) -> Result<(), HcaError>;

    /// Registers memory (IBA 11.2.8.1 to 11.2.8.3, 11.2.8.7).
    ///
    /// # Errors
    /// [`HcaError::InsufficientResources`], [`HcaError::InvalidParameter`] (bad length, page size or
    /// key), [`HcaError::Dma`], [`HcaError::PermissionDenied`] (whole space),
    /// [`HcaError::Unsupported`], or [`HcaError::Pending`]: an adapter of the host registers large regions in a thread of its own.
    /// The memory stays as it is until the same call has returned keys or another error. An outcome that is not asked for goes with its
    /// protection domain.
    fn register_mr(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError>;

    /// Registers an existing region anew, keeping its handle (IBA 11.2.8.5, 11.2.8.6).
    ///
    /// # Errors
    /// As [`Hca::register_mr`], and [`HcaError::InUse`] while windows are bound to it.
    fn reregister_mr(&mut self, _mr: MrHandle, _spec: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        Err(HcaError::Unsupported)
    }

    /// Deregisters memory (IBA 11.2.8.4).
    ///
    /// # Errors
    /// [`HcaError::InUse`] while windows are bound to it, or [`HcaError::Pending`]: an adapter of the host deregisters large regions that
    /// peers can reach in a thread of its own. The local key is refused from then on. Peers may reach the memory, and the region is in its
    /// protection domain, until the same call has returned `Ok`.
    fn deregister_mr(&mut self, mr: MrHandle) -> Result<(), HcaError>;

    /// Makes a memory window (IBA 11.2.8.9), which opens nothing until [`SendOp::BindWindow`](crate::SendOp::BindWindow) binds it.
    ///
    /// # Errors
    /// [`HcaError::InsufficientResources`], [`HcaError::Unsupported`].
    fn alloc_mw(&mut self, _pd: PdHandle, _kind: MwType) -> Result<MwKeys, HcaError> {
        Err(HcaError::Unsupported)
    }

    /// Destroys a window (IBA 11.2.8.12), bound or not.
    ///
    /// # Errors
    /// Only [`HcaError::InvalidHandle`].
    fn dealloc_mw(&mut self, _mw: MwHandle) -> Result<(), HcaError> {
        Err(HcaError::Unsupported)
    }

    // Address handles.

    /// Makes an address handle (IBA 11.2.2.1).
    ///
    /// # Errors
    /// [`HcaError::InvalidPort`], [`HcaError::InvalidIndex`], [`HcaError::InsufficientResources`].
    fn create_av(&mut self, pd: PdHandle, vector: &AddressVector) -> Result<AvHandle, HcaError>;

    /// Replaces an address handle's vector (IBA 11.2.2.2).
    ///
    /// # Errors
    /// As [`Hca::create_av`].
    fn modify_av(&mut self, _av: AvHandle, _vector: &AddressVector) -> Result<(), HcaError> {
        Err(HcaError::Unsupported)
    }

    /// An address handle's vector (IBA 11.2.2.3).
    ///
    /// # Errors
    /// Only [`HcaError::InvalidHandle`].
    fn query_av(&self, _av: AvHandle) -> Result<AddressVector, HcaError> {
        Err(HcaError::Unsupported)
    }

    /// Destroys an address handle; requests already posted keep the address.
    ///
    /// # Errors
    /// Only [`HcaError::InvalidHandle`].
    fn destroy_av(&mut self, av: AvHandle) -> Result<(), HcaError>;

    // Completion queues.

    /// Makes a completion queue for at least `entries` completions (IBA 11.2.6.1).
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`], [`HcaError::InsufficientResources`].
    fn create_cq(&mut self, entries: u32) -> Result<CqHandle, HcaError>;

    /// Resizes a completion queue without losing completions (IBA 11.2.6.3).
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] also when more completions wait than would fit.
    fn resize_cq(&mut self, cq: CqHandle, entries: u32) -> Result<(), HcaError>;

    /// Destroys a completion queue and the completions in it.
    ///
    /// # Errors
    /// [`HcaError::InUse`].
    fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), HcaError>;

    /// Moves completions into `out`, oldest first, and gives their number (IBA 11.4.2.1).
    ///
    /// # Errors
    /// Only [`HcaError::InvalidHandle`].
    fn poll_cq(&mut self, cq: CqHandle, out: &mut [Completion]) -> Result<usize, HcaError>;

    /// How many completions wait, counted up to `at_most` (the kernel's `peek_cq`).
    ///
    /// # Errors
    /// Only [`HcaError::InvalidHandle`].
    fn peek_cq(&self, cq: CqHandle, at_most: usize) -> Result<usize, HcaError>;

    /// Asks for one [`HcaEvent::Completion`] (IBA 11.4.2.2). As in the standard only completions that
    /// are added later count; the result tells whether some wait already (the kernel's
    /// `IB_CQ_REPORT_MISSED_EVENTS`), so that the caller polls once more instead of sleeping.
    ///
    /// # Errors
    /// Only [`HcaError::InvalidHandle`].
    fn arm_cq(&mut self, cq: CqHandle, kind: ArmKind) -> Result<bool, HcaError>;

    // Shared receive queues.

    /// Makes a shared receive queue (IBA 11.2.3.1).
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`], [`HcaError::InsufficientResources`],
    /// [`HcaError::Unsupported`].
    fn create_srq(&mut self, spec: SrqSpec) -> Result<SrqHandle, HcaError>;

    /// Sets the limit, and the size if given (IBA 11.2.3.3). A limit above the requests that are left raises
    /// [`crate::AsyncEvent::SrqLimitReached`] at once, and is disarmed.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`].
    fn modify_srq(
        &mut self,
        srq: SrqHandle,
        limit: u32,
        max_wr: Option<u32>,
    ) -> Result<(), HcaError>;

    /// A shared receive queue (IBA 11.2.3.2).
    ///
    /// # Errors
    /// Only [`HcaError::InvalidHandle`].
    fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttributes, HcaError>;

    /// Destroys a shared receive queue; what is posted is not flushed (IBA 11.2.3.4).
    ///
    /// # Errors
    /// [`HcaError::InUse`].
    fn destroy_srq(&mut self, srq: SrqHandle) -> Result<(), HcaError>;

    /// Posts to a shared receive queue (IBA 11.4.1.2).
    ///
    /// # Errors
    /// [`HcaError::QueueFull`], [`HcaError::TooManySges`], [`HcaError::InvalidParameter`] (the queue
    /// is pulled).
    fn post_srq_recv(
        &mut self,
        _srq: SrqHandle,
        _request: &RecvRequest<'_>,
    ) -> Result<(), HcaError> {
        Err(HcaError::Unsupported)
    }

    // Queue pairs.

    /// Sets `count` consecutive QP numbers aside, the first a multiple of `align` (a power of two).
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`], [`HcaError::InsufficientResources`].
    fn reserve_qpns(&mut self, count: u32, align: u32) -> Result<Qpn, HcaError>;

    /// Gives numbers back.
    ///
    /// # Errors
    /// [`HcaError::InUse`] while a QP has one of them; [`HcaError::InvalidParameter`] if they are not
    /// set aside.
    fn release_qpns(&mut self, first: Qpn, count: u32) -> Result<(), HcaError>;

    /// Makes a queue pair in the reset state (IBA 11.2.4.1), special ones included (Get Special QP).
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] (sizes, number), [`HcaError::PermissionDenied`],
    /// [`HcaError::SpecialQpTaken`], [`HcaError::InvalidPort`],
    /// [`HcaError::InsufficientResources`], [`HcaError::Unsupported`].
    fn create_qp(&mut self, spec: QpSpec) -> Result<(QpHandle, QpNumbers), HcaError>;

    /// Changes a queue pair (IBA 11.2.4.2). Moving to the error state completes everything posted as
    /// [`crate::CompletionStatus::Flushed`]; moving to reset drops it silently.
    ///
    /// # Errors
    /// [`HcaError::InvalidQpState`], [`HcaError::InvalidAttribute`], [`HcaError::InvalidPort`],
    /// [`HcaError::InvalidIndex`], [`HcaError::PermissionDenied`].
    fn modify_qp(&mut self, qp: QpHandle, change: &QpModify) -> Result<(), HcaError>;

    /// A queue pair as it stands (IBA 11.2.4.3).
    ///
    /// # Errors
    /// Only [`HcaError::InvalidHandle`].
    fn query_qp(&self, qp: QpHandle) -> Result<QpAttributes, HcaError>;

    /// Destroys a queue pair (IBA 11.2.4.4). What was posted completes as flushed first, and those
    /// completions stay in the queues to be polled: no buffer is lost.
    ///
    /// # Errors
    /// [`HcaError::InUse`] while attached to a multicast group.
    fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), HcaError>;

    /// Queues a send (IBA 11.4.1.1).
    ///
    /// # Errors
    /// [`HcaError::InvalidQpState`], [`HcaError::QueueFull`], [`HcaError::TooManySges`],
    /// [`HcaError::InvalidQpKind`], [`HcaError::InvalidParameter`] (no destination, or one too many),
    /// [`HcaError::InvalidPort`]. Memory that cannot be read is a completion status instead.
    fn post_send(&mut self, qp: QpHandle, request: &SendRequest<'_>) -> Result<(), HcaError>;

    /// Queues a receive (IBA 11.4.1.2).
    ///
    /// # Errors
    /// [`HcaError::InvalidQpState`] (reset), [`HcaError::QueueFull`], [`HcaError::TooManySges`],
    /// [`HcaError::InvalidParameter`] (the QP pulls, or has an SRQ).
    fn post_recv(&mut self, qp: QpHandle, request: &RecvRequest<'_>) -> Result<(), HcaError>;

    // Multicast.

    /// Delivers the group's packets to a UD QP, too (IBA 11.3.1.1). Attaching twice is attaching once.
    /// [`Lid::NONE`] stands for whatever MLID the packets have, for consumers that are not told it; it is
    /// an attachment of its own.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] (not a multicast address), [`HcaError::InvalidQpKind`],
    /// [`HcaError::InsufficientResources`].
    fn attach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError>;

    /// Ends an attachment (IBA 11.3.1.2).
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if the QP is not attached.
    fn detach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError>;

    // Management and events.

    /// Hands a MAD to the device's own agents: the SMA and the PMA of the port (the kernel's
    /// `process_mad`).
    ///
    /// # Errors
    /// [`HcaError::InvalidPort`]. Everything that is wrong with the MAD itself is an answer.
    fn process_local_mad(
        &mut self,
        port: PortNum,
        view: MadView,
        mad: &Mad,
    ) -> Result<LocalMad, HcaError>;

    /// Draws a secret for numbers that software chooses on the function, such as indices of memory regions. No two calls
    /// return the same one.
    ///
    /// # Errors
    /// Those of a function that is gone.
    fn draw_secret(&mut self) -> Result<Secret, HcaError>;

    /// Takes the oldest event.
    fn poll_event(&mut self) -> Option<HcaEvent>;
}
