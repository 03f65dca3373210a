//! Events that a function raises.

use bitflags::bitflags;
use ib_wire::PortNum;

use crate::{CqHandle, PdHandle, QpHandle, SrqHandle};

/// One entry of a function's event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HcaEvent {
    /// An armed completion queue has something to poll. The queue must be armed again for another.
    Completion(CqHandle),
    /// Something else happened.
    Async(AsyncEvent),
}

bitflags! {
    /// What changed on a port. Level-triggered: changes that wait for the consumer are merged, and
    /// the consumer re-reads the port, so none is lost however many happen.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PortChange: u16 {
        /// The port became active.
        const ACTIVE = 1 << 0;
        /// The port left the active state.
        const DOWN = 1 << 1;
        /// The base LID or the LMC changed.
        const LID = 1 << 2;
        /// The P_Key table changed.
        const PKEY_TABLE = 1 << 3;
        /// The subnet manager's LID or service level changed.
        const SM = 1 << 4;
        /// The subnet manager asks for re-registration: multicast memberships, notice
        /// subscriptions and service records are to be made again (IBA 14.4.11).
        const CLIENT_REREGISTER = 1 << 5;
        /// A GID table entry or the subnet prefix changed.
        const GID_TABLE = 1 << 6;
        /// SLtoVL or arbitration tables changed.
        const QOS = 1 << 7;
    }
}

/// Asynchronous events (IBA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A port changed; see [`PortChange`].
    Port {
        /// Which port.
        port: PortNum,
        /// What about it.
        change: PortChange,
    },
    /// The first packet arrived on a QP in ready-to-receive: the peer considers the connection
    /// established though its RTU may be lost.
    CommunicationEstablished(QpHandle),
    /// A QP that was told to drain its send queue has done so.
    SendQueueDrained(QpHandle),
    /// A QP failed and is in the error state.
    QpFatal(QpHandle),
    /// A QP refused a request.
    QpRequestError(QpHandle),
    /// A QP refused an access.
    QpAccessError(QpHandle),
    /// A QP attached to an SRQ went to the error state and took its last receive.
    LastWqeReached(QpHandle),
    /// A QP moved to its alternate path.
    PathMigrated(QpHandle),
    /// A QP could not move to its alternate path.
    PathMigrationFailed(QpHandle),
    /// A completion queue overflowed or failed; its completions are lost.
    CqError(CqHandle),
    /// A shared receive queue failed.
    SrqError(SrqHandle),
    /// A shared receive queue fell below its limit.
    SrqLimitReached(SrqHandle),
    /// A registration or deregistration in a protection domain that was [`HcaError::Pending`](crate::HcaError::Pending) has an outcome.
    RegistrationDone(PdHandle),
    /// The function was reset by its physical function: every handle is gone.
    FunctionReset,
    /// The device failed.
    DeviceFatal,
}
