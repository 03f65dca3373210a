//! The objects of an agent: requests, and transfers in both directions.

use ib_vtime::{Duration, Instant, TimerKey, TimerQueue};
use ib_wire::Tid;
use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::rmpp::{RmppHeader, RmppMad};

use super::{AgentId, RequestId, RetryPolicy, RmppConfig, TransferId};
use crate::message::segment_layout;
use crate::rmpp::{Ack, Receiver, Sender};
use crate::{MadAddress, Message, Peer};

/// Names a transfer as its DATA packets do: by transaction id and peer, then class, version and
/// method (as the kernel's `find_rmpp_recv`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TransferKey {
    pub(super) tid: Tid,
    pub(super) peer: Peer,
    pub(super) class: MgmtClass,
    pub(super) version: u8,
    pub(super) method: Method,
}

impl TransferKey {
    /// The transfer whose DATA packets look like `mad`, to or from `remote`.
    pub(super) fn of_data(remote: &MadAddress, mad: &Mad) -> Self {
        Self {
            tid: mad.header.tid,
            peer: remote.peer(),
            class: mad.header.mgmt_class,
            version: mad.header.class_version,
            method: mad.header.method,
        }
    }

    /// The transfer that an ACK, STOP or ABORT from its receiver means.
    pub(super) fn of_answer(remote: &MadAddress, mad: &Mad) -> Self {
        Self {
            method: toggled(mad.header.method),
            ..Self::of_data(remote, mad)
        }
    }
}

/// The method with the response bit flipped, as RMPP packets against the data's direction carry it
/// (IBA 13.6.2.1).
pub(super) const fn toggled(method: Method) -> Method {
    Method::new(method.get() ^ Method::RESPONSE_BIT)
}

/// A packet against the direction of a transfer: the headers of its DATA with the response bit
/// flipped, and no data.
pub(super) fn against(data: &Mad) -> Mad {
    let mut mad = *data;
    mad.header.method = toggled(data.header.method);
    without_data(mad)
}

/// The headers of a MAD whose class has RMPP, without the data.
pub(super) fn without_data(mut mad: Mad) -> Mad {
    if let Some(layout) = segment_layout(mad.header.mgmt_class) {
        mad.view_mut::<RmppMad>().payload[layout.class_header..].fill(0);
    }
    mad
}

/// A request without an answer.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) agent: AgentId,
    pub(super) to: MadAddress,
    pub(super) message: Message,
    pub(super) policy: RetryPolicy,
    pub(super) retries_left: u8,
    pub(super) transmissions: u32,
    pub(super) busy: BusyAnswer,
    pub(super) phase: Phase,
    pub(super) timer: Option<TimerKey>,
}

impl Transaction {
    /// Whether anything of the request has left, so that a peer can know of it.
    pub(super) const fn has_left(&self) -> bool {
        !matches!(self.phase, Phase::Single { .. }) || self.transmissions > 0
    }
}

/// What an answer with status busy does (IBA 13.4.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BusyAnswer {
    /// Nothing: the request is repeated when its time is over.
    Repeats,
    /// The asker gets it.
    IsGiven,
}

/// Where a request is.
#[derive(Debug)]
pub(super) enum Phase {
    /// One MAD: in the queue, or sent.
    Single { queued: bool },
    /// RMPP carries the request.
    Sending(Sending),
    /// RMPP carried the request; the responder has the turn.
    TurnedAround,
    /// The answer is coming in under RMPP.
    Receiving(TransferKey),
}

/// A sender and whether it waits in the round of senders with something to send.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) sender: Sender,
    pub(super) in_round: bool,
    /// The response time that the receiver stated in its last ACK.
    pub(super) peer_time: Duration,
}

impl Sending {
    pub(super) const fn new(sender: Sender) -> Self {
        Self {
            sender,
            in_round: false,
            peer_time: Duration::ZERO,
        }
    }

    /// Takes note of the response time in an ACK (IBA 13.6.2.1, RRespTime: 4.096 us x 2^value).
    pub(super) fn note_peer_time(&mut self, rmpp: &RmppHeader) {
        let code = rmpp.resp_time();
        if code != RmppHeader::NO_RESP_TIME {
            self.peer_time = Duration::from_nanos(4096 << code);
        }
    }

    /// How long to wait for an ACK.
    pub(super) fn ack_timeout(&self, config: &RmppConfig) -> Duration {
        config
            .ack_timeout
            .max(self.peer_time)
            .min(config.receive_timeout)
    }
}

/// A response that RMPP carries.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) id: TransferId,
    pub(super) agent: AgentId,
    pub(super) to: MadAddress,
    pub(super) message: Message,
    pub(super) sending: Sending,
    pub(super) timer: Option<TimerKey>,
}

/// An unfinished incoming message.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) agent: AgentId,
    pub(super) from: MadAddress,
    /// The request that it answers.
    pub(super) request: Option<RequestId>,
    pub(super) receiver: Receiver,
    pub(super) timer: Option<TimerKey>,
}

/// A finished incoming message, remembered so that its last ACK can be repeated.
#[derive(Debug)]
pub(super) struct Completed {
    pub(super) agent: AgentId,
    pub(super) from: MadAddress,
    /// The headers that an ACK repeats.
    pub(super) headers: Mad,
    pub(super) ack: Ack,
    pub(super) turn: Turn,
    pub(super) retention: Option<TimerKey>,
    pub(super) turn_timer: Option<TimerKey>,
}

/// Where the turn-around of a dual-sided transfer is, at the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The transfer has one side, or its response needs no turn-around.
    None,
    /// Not seen yet; the last ACK may be repeated so many more times.
    Awaited { repeats_left: u8 },
    /// Seen, with the window that it opened.
    Seen { window: u32 },
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    Request(RequestId),
    Outgoing(TransferKey),
    Incoming(TransferKey),
    Turn(TransferKey),
    Retention(TransferKey),
}

/// Sets a timer in place of the one in the slot.
pub(super) fn rearm(
    timers: &mut TimerQueue<Timer>,
    slot: &mut Option<TimerKey>,
    deadline: Instant,
    timer: Timer,
) {
    disarm(timers, slot);
    *slot = Some(timers.set(deadline, timer));
}

/// Cancels the timer in the slot.
pub(super) fn disarm(timers: &mut TimerQueue<Timer>, slot: &mut Option<TimerKey>) {
    if let Some(key) = slot.take() {
        timers.cancel(key);
    }
}
