//! The MAD agent of one port and queue pair (IBA 13.5).
//!
//! Clients register for a class, a version and a set of methods, send requests and take what comes
//! in. The agent gives each request a transaction id, repeats it until an answer comes or its
//! [`RetryPolicy`] is used up, and carries messages longer than a MAD by RMPP
//! (IBA 13.6). It owns no socket and no clock.
//!
//! **A request** ends in exactly one event, unless it is cancelled:
//!
//! | state | input | does |
//! | --- | --- | --- |
//! | sent | matching answer | `Response` |
//! | sent | answer with status busy | waits on |
//! | sent | first segment of the answer | receiving; the timer stops |
//! | sent | timer, retries left | sends again |
//! | sent | timer, none left | `RequestFailed(TimedOut)` |
//! | sending under RMPP | ACK of the last segment | turn-around; waits for the answer |
//! | sending under RMPP | too many resends | ABORT; `RequestFailed(EndedByUs)` |
//! | any | STOP or ABORT from the peer | `RequestFailed(EndedByPeer)` |
//! | turned around | ACK of the last segment again | repeats the turn-around |
//! | receiving | the message is complete | `Response` |
//! | receiving | nothing for the receive timeout, violation, too long | ABORT or STOP; `RequestFailed(EndedByUs)` |
//!
//! **An answer matches** if all 64 bits of its transaction id are those of an outstanding request,
//! its class is the request's, its method answers the request's, its attribute is the request's
//! (GetMulti answers with another), and it comes from the QP, and the LID or GID, that was asked.
//!
//! **A request that nobody takes** is refused with a status if its sender expects an answer
//! (IBA 13.4.5, 13.4.7): bad version for a class spoken in another version, unsupported method for
//! a method that nobody takes, and unsupported method and attribute for a Get or Set of a class
//! that nobody speaks, as Linux peers do. Everything else is dropped and counted.

mod config;
mod event;
mod raw;
mod receive;
mod registration;
mod rmpp_receive;
mod timeout;
mod transfer;
mod transmit;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use ib_vtime::{Instant, SplitMix64, TimerQueue};
use ib_wire::mad::Mad;
use ib_wire::rmpp::{RmppStatus, RmppType};

pub use config::{MadAgentConfig, RetryPolicy, RmppConfig};
pub use event::{
    AgentEvent, Disposition, DropReason, MadCounters, MadSizes, RequestId, TransferError,
    TransferId, Transmit,
};
pub use raw::RAW_TID;
pub use registration::{AgentId, MethodSet, Oui, RegisterError, Registration};

use crate::rmpp::Sender;
use crate::{MadAddress, Message};
use registration::Registry;
use transfer::{
    BusyAnswer, Completed, Incoming, Outgoing, Phase, Sending, Timer, Transaction, TransferKey,
    Turn, disarm, rearm,
};
use transmit::Queued;

/// Why a message was not taken for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No such registration.
    #[error("the agent is not registered")]
    UnknownAgent,
    /// The message's class, version or OUI is not the registration's, or its class belongs on the
    /// other queue pair.
    #[error("the message is not of the registration's class")]
    WrongClass,
    /// A response was to be sent as a request, or the other way round.
    #[error("the method does not fit")]
    WrongMethod,
    /// A request with that transaction id is under way.
    #[error("the transaction id is in use")]
    Duplicate,
    /// Too many messages are under way.
    #[error("too many messages under way")]
    TooMany,
    /// The message is longer than [`RmppConfig::max_message`].
    #[error("the message is too long")]
    TooLong,
}

/// The MAD agent of one port and queue pair. See the [module](self).
#[derive(Debug)]
pub struct MadAgent {
    config: MadAgentConfig,
    registry: Registry,
    transactions: BTreeMap<RequestId, Transaction>,
    outgoing: BTreeMap<TransferKey, Outgoing>,
    incoming: BTreeMap<TransferKey, Incoming>,
    completed: BTreeMap<TransferKey, Completed>,
    buffered: usize,
    timers: TimerQueue<Timer>,
    control: VecDeque<Transmit>,
    queue: VecDeque<Queued>,
    round: VecDeque<transmit::SenderRef>,
    events: VecDeque<AgentEvent>,
    /// Events of those that have a queue of their own.
    apart: BTreeMap<AgentId, VecDeque<AgentEvent>>,
    /// Requests among the events of the others.
    pending_requests: usize,
    counters: MadCounters,
    next_transfer: u64,
}

impl MadAgent {
    /// An agent without registrations.
    #[must_use]
    pub fn new(config: MadAgentConfig) -> Self {
        Self {
            config,
            registry: Registry::default(),
            transactions: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            completed: BTreeMap::new(),
            buffered: 0,
            timers: TimerQueue::new(),
            control: VecDeque::new(),
            queue: VecDeque::new(),
            round: VecDeque::new(),
            events: VecDeque::new(),
            apart: BTreeMap::new(),
            pending_requests: 0,
            counters: MadCounters::default(),
            next_transfer: 0,
        }
    }

    /// Registers a client.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(&mut self, registration: Registration) -> Result<AgentId, RegisterError> {
        if !registration.sends_any_class && !self.carries(registration.class) {
            return Err(RegisterError::WrongQueuePair(registration.class));
        }
        let first_tid = first_tid(self.config.seed, self.registry.last());
        let agent = self.registry.insert(registration, first_tid)?;
        if registration.is_apart {
            self.keep_apart(agent);
        }
        Ok(agent)
    }

    /// Removes a registration: its requests and transfers end without an event, and peers in the
    /// middle of a transfer get an ABORT. `false` if there was none.
    pub fn unregister(&mut self, agent: AgentId) -> bool {
        if !self.registry.remove(agent) {
            return false;
        }
        let requests: Vec<RequestId> = keys_of(&self.transactions, |t| t.agent == agent);
        for request in requests {
            self.cancel(request);
        }
        for key in keys_of(&self.outgoing, |t| t.agent == agent) {
            self.end_outgoing(&key, RmppType::ABORT, RmppStatus::UNSPECIFIED);
        }
        for key in keys_of(&self.incoming, |t| t.agent == agent) {
            self.end_incoming(&key, RmppType::ABORT, RmppStatus::UNSPECIFIED);
        }
        for key in keys_of(&self.completed, |t| t.agent == agent) {
            self.forget_completed(&key);
        }
        self.queue
            .retain(|queued| !matches!(queued, Queued::Mad { agent: of, .. } if *of == agent));
        self.apart.remove(&agent);
        self.events.retain(|event| event.agent() != agent);
        self.pending_requests = self
            .events
            .iter()
            .filter(|event| matches!(event, AgentEvent::Request { .. }))
            .count();
        true
    }

    /// Sends a request and waits for its answer as `policy` says. The agent writes the
    /// transaction id.
    ///
    /// A request under RMPP makes the exchange dual-sided; its sender goes back
    /// `policy.retries` times without progress.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send_request(
        &mut self,
        now: Instant,
        agent: AgentId,
        to: MadAddress,
        message: Message,
        policy: RetryPolicy,
    ) -> Result<RequestId, SendError> {
        self.check_request(agent, &message)?;
        let id = self.free_request_id(agent)?;
        self.begin_request(now, id, agent, to, message, policy, BusyAnswer::Repeats);
        Ok(id)
    }

    /// Sends a request as Linux' umad does for a program: the low half of the transaction id is the
    /// one in the message, the agent writes the upper half, and an answer with status busy is an
    /// answer like any other.
    ///
    /// # Errors
    /// See [`SendError`]; [`SendError::Duplicate`] if the registration has such a request under way.
    pub fn send_numbered_request(
        &mut self,
        now: Instant,
        agent: AgentId,
        to: MadAddress,
        message: Message,
        policy: RetryPolicy,
    ) -> Result<RequestId, SendError> {
        self.check_request(agent, &message)?;
        let id = RequestId::new(agent.tid_with_low_half_of(message.header().tid));
        if self.transactions.contains_key(&id) {
            return Err(SendError::Duplicate);
        }
        self.begin_request(now, id, agent, to, message, policy, BusyAnswer::IsGiven);
        Ok(id)
    }

    fn check_request(&self, agent: AgentId, message: &Message) -> Result<(), SendError> {
        self.check_sendable(agent, message)?;
        if message.header().method.is_answer() {
            return Err(SendError::WrongMethod);
        }
        if self.transactions.len() >= self.config.max_outstanding {
            return Err(SendError::TooMany);
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "all that makes a request")]
    fn begin_request(
        &mut self,
        now: Instant,
        id: RequestId,
        agent: AgentId,
        to: MadAddress,
        mut message: Message,
        policy: RetryPolicy,
        busy: BusyAnswer,
    ) {
        message.header_mut().tid = id.tid();
        let phase = match message.segments() {
            Some(segments) => {
                Phase::Sending(Sending::new(Sender::new(segments, 1, policy.retries)))
            }
            None => Phase::Single { queued: true },
        };
        let mut transaction = Transaction {
            agent,
            to,
            message,
            policy,
            retries_left: policy.retries,
            transmissions: 0,
            busy,
            phase,
            timer: None,
        };
        let timeout = self.request_timeout(&transaction);
        rearm(
            &mut self.timers,
            &mut transaction.timer,
            now + timeout,
            Timer::Request(id),
        );
        let single = matches!(transaction.phase, Phase::Single { .. });
        self.transactions.insert(id, transaction);
        if single {
            self.queue.push_back(Queued::Request(id));
        } else {
            self.enter_round(transmit::SenderRef::Request(id));
        }
    }

    /// Answers a request: `message` has a response method and the request's transaction id.
    ///
    /// A message under RMPP gives a [`TransferId`], and its end an
    /// [`AgentEvent::TransferEnded`]. Answering again while that transfer runs (the request was
    /// repeated) gives the same id and sends nothing more.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn respond(
        &mut self,
        now: Instant,
        agent: AgentId,
        to: MadAddress,
        message: Message,
    ) -> Result<Option<TransferId>, SendError> {
        self.check_sendable(agent, &message)?;
        if !message.header().method.is_answer() {
            return Err(SendError::WrongMethod);
        }
        let key = TransferKey::of_data(&to, message.mad());
        if let Some(running) = self.outgoing.get(&key) {
            return Ok(Some(running.id));
        }
        let Some(segments) = message.segments() else {
            self.forget_turn(&key);
            return self.enqueue(agent, to, *message.mad()).map(|()| None);
        };
        if self.outgoing.len() >= self.config.max_outstanding {
            return Err(SendError::TooMany);
        }
        let id = TransferId(self.next_transfer);
        self.next_transfer += 1;
        let window = match self.turn_of(&key) {
            Turn::None => 1,
            Turn::Awaited { .. } => 0,
            Turn::Seen { window } => window,
        };
        let sender = Sender::new(segments, window, self.config.rmpp.resends);
        let mut outgoing = Outgoing {
            id,
            agent,
            to,
            message,
            sending: Sending::new(sender),
            timer: None,
        };
        if window > 0 {
            rearm(
                &mut self.timers,
                &mut outgoing.timer,
                now + self.config.rmpp.ack_timeout,
                Timer::Outgoing(key),
            );
        }
        self.outgoing.insert(key, outgoing);
        self.enter_round(transmit::SenderRef::Response(key));
        Ok(Some(id))
    }

    /// Sends one MAD and expects nothing: CM messages, traps, or answers made elsewhere. The
    /// transaction id is the caller's.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&mut self, agent: AgentId, to: MadAddress, mad: Mad) -> Result<(), SendError> {
        self.check_sendable(agent, &Message::single(mad))?;
        self.enqueue(agent, to, mad)
    }

    /// Gives a request up, without an event. `false` if it ended already.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let Some(transaction) = self.take_transaction(request) else {
            return false;
        };
        match transaction.phase {
            Phase::Single { .. } | Phase::TurnedAround => {}
            Phase::Sending(_) => {
                self.end_sent_request(&transaction, RmppStatus::UNSPECIFIED);
            }
            Phase::Receiving(key) => {
                self.end_incoming(&key, RmppType::ABORT, RmppStatus::UNSPECIFIED);
            }
        }
        true
    }

    /// The next event of those that have no queue of their own; see [`Self::poll_event_of`].
    pub fn poll_event(&mut self) -> Option<AgentEvent> {
        let event = self.events.pop_front()?;
        if matches!(event, AgentEvent::Request { .. }) {
            self.pending_requests -= 1;
        }
        Some(event)
    }

    /// When to call [`Self::handle_timeout`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Whether [`Self::poll_transmit`] has something to give.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        !(self.control.is_empty() && self.queue.is_empty() && self.round.is_empty())
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &MadCounters {
        &self.counters
    }

    /// What is live.
    #[must_use]
    pub fn sizes(&self) -> MadSizes {
        MadSizes {
            requests: self.transactions.len(),
            transfers_out: self.outgoing.len(),
            transfers_in: self.incoming.len(),
            retained: self.completed.len(),
            buffered: self.buffered,
            timers: self.timers.len(),
            queued: self.control.len() + self.queue.len() + self.round.len(),
            events: self.events.len() + self.apart.values().map(VecDeque::len).sum::<usize>(),
        }
    }

    /// The limits and times.
    #[must_use]
    pub const fn config(&self) -> &MadAgentConfig {
        &self.config
    }

    fn check_sendable(&self, agent: AgentId, message: &Message) -> Result<(), SendError> {
        let registration = self.registry.get(agent).ok_or(SendError::UnknownAgent)?;
        let fits = self.carries(message.header().mgmt_class);
        if !fits || !registration.may_send(message.mad()) {
            return Err(SendError::WrongClass);
        }
        if message.is_rmpp() && message.data().len() > self.config.rmpp.max_message {
            return Err(SendError::TooLong);
        }
        Ok(())
    }

    fn free_request_id(&mut self, agent: AgentId) -> Result<RequestId, SendError> {
        // At most `max_outstanding` ids are taken, so one of that many successors is free.
        loop {
            let tid = self
                .registry
                .next_tid(agent)
                .ok_or(SendError::UnknownAgent)?;
            let id = RequestId::new(tid);
            if !self.transactions.contains_key(&id) {
                return Ok(id);
            }
        }
    }

    fn take_transaction(&mut self, request: RequestId) -> Option<Transaction> {
        let mut transaction = self.transactions.remove(&request)?;
        disarm(&mut self.timers, &mut transaction.timer);
        match transaction.phase {
            Phase::Single { queued: true } => self
                .queue
                .retain(|queued| !matches!(queued, Queued::Request(id) if *id == request)),
            Phase::Sending(_) => self.leave_round(&transmit::SenderRef::Request(request)),
            _ => {}
        }
        Some(transaction)
    }

    fn fail_request(&mut self, request: RequestId, reason: TransferError) {
        if let Some(transaction) = self.take_transaction(request) {
            self.counters.failures += 1;
            self.tell(AgentEvent::RequestFailed {
                agent: transaction.agent,
                request,
                reason,
            });
        }
    }
}

/// A starting point for the low half of transaction ids, so that restarted agents do not repeat
/// those of their former lives.
const fn first_tid(seed: u64, agent: u32) -> u32 {
    SplitMix64::new(seed ^ (agent as u64) << 32).next_u32()
}

fn keys_of<K: Copy + Ord, V>(map: &BTreeMap<K, V>, pick: impl Fn(&V) -> bool) -> Vec<K> {
    map.iter()
        .filter(|(_, value)| pick(value))
        .map(|(key, _)| *key)
        .collect()
}

#[cfg(test)]
mod tests;
