//! What a MAD agent tells its owner.

use alloc::collections::BTreeMap;

use ib_wire::Tid;
use ib_wire::mad::Mad;
use ib_wire::rmpp::RmppStatus;

use super::AgentId;
use crate::{MadAddress, Message};

/// Names a request under way: its transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(Tid);

impl RequestId {
    pub(crate) const fn new(tid: Tid) -> Self {
        Self(tid)
    }

    /// The transaction id on the wire.
    #[must_use]
    pub const fn tid(self) -> Tid {
        self.0
    }
}

/// Names a response that RMPP carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub(crate) u64);

/// A MAD to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub to: MadAddress,
    /// What.
    pub mad: Mad,
}

/// What happened to an agent's registrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    /// A request was answered; its status may still be an error.
    Response {
        /// Who asked.
        agent: AgentId,
        /// The request.
        request: RequestId,
        /// Who answered.
        from: MadAddress,
        /// The answer.
        message: Message,
    },
    /// A request ended without an answer.
    RequestFailed {
        /// Who asked.
        agent: AgentId,
        /// The request.
        request: RequestId,
        /// Why.
        reason: TransferError,
    },
    /// A request, report, trap or one-way message came in.
    Request {
        /// Who takes it.
        agent: AgentId,
        /// Where it came from, and where an answer goes.
        from: MadAddress,
        /// The request.
        message: Message,
    },
    /// A response under RMPP was wholly acknowledged, or failed.
    TransferEnded {
        /// Who responded.
        agent: AgentId,
        /// The response.
        transfer: TransferId,
        /// How it ended.
        result: Result<(), TransferError>,
    },
}

impl AgentEvent {
    /// Whose event it is.
    #[must_use]
    pub const fn agent(&self) -> AgentId {
        match self {
            Self::Response { agent, .. }
            | Self::RequestFailed { agent, .. }
            | Self::Request { agent, .. }
            | Self::TransferEnded { agent, .. } => *agent,
        }
    }
}

/// Why a request or a transfer ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// No answer to any transmission.
    #[error("no answer after {transmissions} transmissions")]
    TimedOut {
        /// How often the request (under RMPP: its last packet) was sent.
        transmissions: u32,
    },
    /// The peer ended the transfer with an RMPP STOP or ABORT.
    #[error("the peer ended the transfer: {0}")]
    EndedByPeer(RmppStatus),
    /// We ended the transfer with an RMPP STOP or ABORT.
    #[error("the transfer was ended: {0}")]
    EndedByUs(RmppStatus),
}

/// What became of a received MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// An event tells of it.
    Delivered,
    /// Part of an RMPP transfer.
    Absorbed,
    /// Answered on the spot, with an error status or with ClassPortInfo.
    Answered,
    /// Dropped and counted.
    Dropped(DropReason),
}

/// Why a received MAD was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// An SMP on QP1, or another class on QP0.
    WrongQueuePair,
    /// A base version or class version that nobody speaks, in a message that is not answered.
    BadVersion,
    /// Nobody takes the class, in a message that is not answered.
    UnknownClass,
    /// Nobody takes the method, in a message that is not answered.
    UnknownMethod,
    /// An answer to no outstanding request.
    UnmatchedResponse,
    /// An answer with the transaction id of a request, but of another class, method or attribute.
    MismatchedResponse,
    /// An answer from somebody who was not asked.
    ForeignResponse,
    /// An answer with status busy: the request will be repeated.
    Busy,
    /// An RMPP packet of no known transfer.
    UnknownTransfer,
    /// An RMPP segment beyond the window.
    OutsideWindow,
    /// An RMPP packet seen before that calls for nothing.
    Repeated,
    /// An RMPP packet that breaks the protocol.
    ProtocolViolation,
    /// No room for another unfinished message.
    NoResources,
    /// Too many requests wait to be pulled.
    EventQueueFull,
    /// Too many acknowledgements or refusals wait to be sent.
    ControlQueueFull,
}

/// What an agent counted since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MadCounters {
    /// MADs received.
    pub received: u64,
    /// MADs handed out for sending.
    pub sent: u64,
    /// Requests answered.
    pub responses: u64,
    /// Requests and responses that ended without success.
    pub failures: u64,
    /// Requests and windows sent again.
    pub retransmissions: u64,
    /// Requests refused with an error status.
    pub refused: u64,
    /// STOPs and ABORTs sent.
    pub transfers_ended: u64,
    drops: BTreeMap<DropReason, u64>,
}

impl MadCounters {
    /// Received MADs dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.get(&reason).copied().unwrap_or(0)
    }

    /// All reasons for which MADs were dropped, with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        self.drops.iter().map(|(reason, count)| (*reason, *count))
    }

    pub(crate) fn drop_mad(&mut self, reason: DropReason) -> Disposition {
        *self.drops.entry(reason).or_default() += 1;
        Disposition::Dropped(reason)
    }
}

/// Live objects of an agent. All are 0 once nothing is under way and the retention time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadSizes {
    /// Requests without an answer.
    pub requests: usize,
    /// Responses that RMPP carries.
    pub transfers_out: usize,
    /// Unfinished incoming messages.
    pub transfers_in: usize,
    /// Finished incoming messages, remembered to repeat a lost ACK.
    pub retained: usize,
    /// Bytes of unfinished incoming messages.
    pub buffered: usize,
    /// Timers.
    pub timers: usize,
    /// MADs that wait to be sent.
    pub queued: usize,
    /// Events that wait to be pulled.
    pub events: usize,
}

impl MadSizes {
    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
