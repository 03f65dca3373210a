//! What a call can fail with.

use thiserror::Error;

/// Why a verb was refused. The verbs chapter's immediate errors (IBA 11.2, "Verb Results"), one
/// variant per cause that a caller can act on differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HcaError {
    /// The provider has no room for another object of this kind.
    #[error("insufficient resources")]
    InsufficientResources,
    /// A handle names nothing that this function owns.
    #[error("invalid handle")]
    InvalidHandle,
    /// The port number is not one of the function's ports.
    #[error("invalid port")]
    InvalidPort,
    /// A GID or P_Key index is beyond the function's table.
    #[error("table index out of range")]
    InvalidIndex,
    /// The object is still in use by another one (a PD with QPs, a CQ with QPs, ...).
    #[error("object is in use")]
    InUse,
    /// The QP's state, or the requested transition, does not allow this.
    #[error("invalid queue pair state")]
    InvalidQpState,
    /// The kind of QP does not take this operation or attribute.
    #[error("not for this kind of queue pair")]
    InvalidQpKind,
    /// An attribute that the transition requires is missing, or one is given that it does not take
    /// (IBA 11.2.4.2, table of QP state transition properties).
    #[error("attribute missing from, or not allowed in, this transition")]
    InvalidAttribute,
    /// A parameter is outside what the device supports.
    #[error("parameter out of range")]
    InvalidParameter,
    /// The function lacks the privilege.
    #[error("privilege required")]
    PermissionDenied,
    /// The work queue is full.
    #[error("work queue full")]
    QueueFull,
    /// More gather or scatter entries, or more inline bytes, than the queue was made for.
    #[error("too many scatter/gather entries or inline bytes")]
    TooManySges,
    /// A special QP exists already on this port.
    #[error("special queue pair taken")]
    SpecialQpTaken,
    /// The memory range is not part of the function's address space.
    #[error("address outside the function's memory")]
    Dma(#[from] DmaFault),
    /// The provider does not offer this verb.
    #[error("not supported by this provider")]
    Unsupported,
    /// The call takes long, and is under way: the same call again returns its outcome, after
    /// [`AsyncEvent::RegistrationDone`](crate::AsyncEvent::RegistrationDone).
    #[error("under way")]
    Pending,
    /// The device failed; only a reset helps.
    #[error("device failed")]
    DeviceFailed,
}

/// An access outside the memory of an [`crate::AddressSpace`], or one that it does not permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no access to {len} bytes at 0x{addr:x}")]
pub struct DmaFault {
    /// First byte of the refused access.
    pub addr: u64,
    /// Its length in bytes.
    pub len: usize,
}
