//! What a VF tells its program.

use hca_api::{HcaError, PortChange};
use ib_endpoint::cm::CmEvent;
use ib_endpoint::sa_client::QueryId;
use ib_endpoint::{AgentEvent, PathError, PortPath, SaError, SaEvent};
use ib_vtime::Instant;
use ib_wire::sa::McMemberRecord;
use ib_wire::{PKey, PortNum};

use super::{ConnectedQpId, GroupId, SharedCompletionsId, UdQpId};

/// What happened on a VF.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "pulled one by one and taken apart at once"
)]
pub enum VirtualHcaEvent {
    /// Something on a port.
    Port {
        /// Which port.
        port: PortNum,
        /// What.
        event: VfPortEvent,
    },
    /// The function was reset, or the device failed: all that was open is gone.
    /// [`VirtualHca::reopen`](super::VirtualHca::reopen) begins anew.
    Dead,
}

/// What happened on a port of a VF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VfPortEvent {
    /// The port changed; [`VfPort::view`](super::VfPort::view) shows it as it is now.
    Changed(PortChange),
    /// Something happened to a multicast group that the program joined.
    Group {
        /// Which.
        group: GroupId,
        /// What.
        event: GroupEvent,
    },
    /// The path that was asked for.
    Resolved {
        /// The query.
        query: QueryId,
        /// The path, or why there is none.
        result: Result<PortPath, ResolveError>,
    },
    /// A datagram may have arrived at a queue pair. It is told again only after
    /// [`VfPort::receive`](super::VfPort::receive) gave nothing more.
    Readable(UdQpId),
    /// The P_Key table has another key now where a queue pair's was: it is in another partition, or
    /// in none.
    PartitionChanged(UdQpId),
    /// A queue pair or its completion queue failed; nothing works any more but to close it.
    QpFailed(UdQpId),
    /// A connected queue pair has completions. It is told again only after
    /// [`ConnectedQp::poll_cq`](super::ConnectedQp::poll_cq) returned `None`.
    CompletionsReady(ConnectedQpId),
    /// A completion queue that queue pairs share has completions. The event comes again only after
    /// [`VfPort::poll_shared_completions`](super::VfPort::poll_shared_completions) returned fewer than the budget.
    SharedCompletionsReady(SharedCompletionsId),
    /// A connected queue pair refused a peer's request, or its completion queue failed: it is in ERR. A request of
    /// its own that fails is told by the status of its completion instead.
    ConnectionFailed(ConnectedQpId),
    /// For the SA client's user.
    Sa(SaEvent),
    /// For the CM's user.
    Cm(CmEvent),
    /// For a registration that the program made with the agent on QP1.
    Gsi(AgentEvent),
    /// For a registration that the program made with the agent on QP0.
    Smi(AgentEvent),
}

/// What happened to a multicast group that the program joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupEvent {
    /// The membership was granted, for the first time or once more, perhaps with another MLID. The
    /// queue pairs of the group are attached. This is the SA's record of it.
    Joined(Box<McMemberRecord>),
    /// The membership was not granted, or is lost; the queue pairs are detached.
    Refused {
        /// Why.
        error: SaError,
        /// When it is asked for again; `None` if it was given up and the group forgotten.
        retry_at: Option<Instant>,
    },
    /// A queue pair could not be attached when the membership was granted. It is tried again when the
    /// membership is granted anew.
    NotAttached {
        /// Which.
        qp: UdQpId,
        /// Why.
        error: HcaError,
    },
    /// The group was left, as far as the SA said, and is forgotten.
    Left(Result<(), SaError>),
}

/// Why there is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The SA gave none.
    #[error(transparent)]
    Sa(#[from] SaError),
    /// The SA's answer holds no path.
    #[error("the SA's answer holds no path")]
    NoRecord,
    /// The SA gave one that the port cannot use.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Why a call on a port was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VfPortError {
    /// The HCA refused.
    #[error(transparent)]
    Hca(#[from] HcaError),
    /// There is no such queue pair.
    #[error("no such queue pair")]
    NoQp,
    /// There is no such shared completion queue.
    #[error("no such shared completion queue")]
    NoSharedCompletions,
    /// The memory region is deregistered.
    #[error("no such memory region")]
    NoRegion,
    /// The memory window is destroyed.
    #[error("no such memory window")]
    NoWindow,
    /// There is no such group, or it was left.
    #[error("no such group")]
    NoGroup,
    /// The port has this membership already, or has not finished leaving the group.
    #[error("the port is a member of the group already")]
    AlreadyJoined,
    /// The membership is not granted yet.
    #[error("the group's membership is not granted")]
    NotJoined,
    /// The port is not in the partition.
    #[error("the port is not in partition {0}")]
    NoPKey(PKey),
    /// The port has no GID yet.
    #[error("the port has no GID")]
    NoGid,
}
