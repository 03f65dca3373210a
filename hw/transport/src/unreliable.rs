//! Unreliable connections (IBA 9.8.2): messages leave once, and arrive whole or not at all.

use alloc::collections::VecDeque;

use ib_wire::Psn;

use crate::effects::{Effects, Event, LocalRight};
use crate::inbound::ResponderState;
use crate::inbound::{Inbound, Refusal};
use crate::request::{MAX_MESSAGE, Operation, Request, Status};
use crate::run::{Run, RunOperation};
use crate::timing::PathMtu;

/// Attributes of a UC sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UcSenderConfig {
    /// Path MTU.
    pub pmtu: PathMtu,
    /// PSN of the first packet.
    pub first_psn: Psn,
    /// Bytes of the longest message; see [`MAX_MESSAGE`].
    pub max_message: u32,
}

/// State of a UC sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UcSenderState {
    /// Requests are queued and not started: the queue pair is in RTR.
    Waiting,
    /// Requests start: RTS.
    Sending,
    /// The message under way is sent to its end, no other starts: SQD, draining.
    Draining,
    /// Nothing is under way: SQD, drained.
    Drained,
    /// Requests flush until [`UcSender::start`]: SQE.
    SendError,
    /// Requests flush: ERR.
    Failed,
}

/// The send queue of an unreliable connection. `B` is [`Effects::Buffer`].
#[derive(Clone, Debug)]
pub struct UcSender<B> {
    config: UcSenderConfig,
    state: UcSenderState,
    requests: VecDeque<Request<B>>,
    next: Psn,
    /// Packets of the first request that have left; `None` if it has not started.
    sent: Option<u32>,
}

impl<B> UcSender<B> {
    /// Makes a sender that queues requests until [`Self::start`].
    #[must_use]
    pub const fn new(config: UcSenderConfig) -> Self {
        Self {
            config,
            state: UcSenderState::Waiting,
            requests: VecDeque::new(),
            next: config.first_psn,
            sent: None,
        }
    }

    /// Returns the state.
    #[must_use]
    pub const fn state(&self) -> UcSenderState {
        self.state
    }

    /// Returns the PSN of the next packet.
    #[must_use]
    pub const fn next_psn(&self) -> Psn {
        self.next
    }

    /// Returns the requests that are posted and not complete.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns `true` if every posted request is complete.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Sets the attributes that the transition to RTS brings, the first PSN included. Does nothing once messages may
    /// start.
    pub const fn configure(&mut self, config: UcSenderConfig) {
        if matches!(self.state, UcSenderState::Waiting) {
            self.config = config;
            self.next = config.first_psn;
        }
    }

    /// Starts or resumes sending: RTR, SQD or SQE to RTS. Does nothing in ERR.
    ///
    /// Poll [`Self::poll_transmit`] afterwards.
    pub fn start(&mut self) {
        if self.state != UcSenderState::Failed {
            self.state = UcSenderState::Sending;
        }
    }

    /// Queues a request behind all others, or flushes it if the queue is in error.
    ///
    /// Poll [`Self::poll_transmit`] afterwards.
    pub fn post<E: Effects<Buffer = B>>(&mut self, request: Request<B>, fx: &mut E) {
        if matches!(self.state, UcSenderState::SendError | UcSenderState::Failed) {
            fx.complete_send(request, Status::Flushed);
        } else {
            self.requests.push_back(request);
        }
    }

    /// Stops starting messages: RTS to SQD. Raises [`Event::SendQueueDrained`] once when the one under way has
    /// left, which may be at once. Does nothing unless messages start.
    ///
    /// Poll [`Self::poll_transmit`] until [`Self::state`] is [`UcSenderState::Drained`], as without a drain.
    pub fn drain<E: Effects<Buffer = B>>(&mut self, fx: &mut E) {
        if self.state == UcSenderState::Sending {
            self.state = UcSenderState::Draining;
            self.end_drain(fx);
        }
    }

    /// Flushes every request, in order of posting: any state to ERR.
    pub fn abort<E: Effects<Buffer = B>>(&mut self, fx: &mut E) {
        self.flush(UcSenderState::Failed, fx);
    }

    /// Returns the next run of at most `budget` packets, or `None` if nothing may be sent. Its payload is what the
    /// effects gathered during the call. A request completes when its last packet is returned.
    ///
    /// Poll until `None` after [`Self::start`] and [`Self::post`].
    #[must_use]
    pub fn poll_transmit<E>(&mut self, budget: u32, fx: &mut E) -> Option<Run>
    where
        E: Effects<Buffer = B>,
    {
        let starts = self.state == UcSenderState::Sending;
        let sends = starts || self.state == UcSenderState::Draining;
        let request = self.requests.front().filter(|_| sends && budget > 0)?;
        let at = match self.sent {
            Some(at) => at,
            None if starts => 0,
            None => return None,
        };
        let Some(operation) = request.operation.as_run(request.len) else {
            return self.fail(Status::LocalQpOperation, fx);
        };
        let max = self.config.max_message.min(MAX_MESSAGE);
        if request.len > max {
            return self.fail(Status::LocalLength, fx);
        }
        if at == 0 {
            let checked = fx.check_local(&request.buffer, request.len, LocalRight::Gather);
            if checked.is_err() {
                return self.fail(Status::LocalProtection, fx);
            }
        }
        let pmtu = self.config.pmtu;
        let left = pmtu.packets(request.len) - at;
        let packets = left.min(budget);
        let last = packets == left;
        let start = at * pmtu.bytes();
        let end = if last {
            request.len
        } else {
            start + packets * pmtu.bytes()
        };
        if fx.gather(&request.buffer, start..end).is_err() {
            return self.fail(Status::LocalProtection, fx);
        }
        let run = Run {
            psn: self.next,
            packets,
            operation: operation.within(at == 0, last),
            first: at == 0,
            last,
            len: end - start,
            ack_request: false,
            solicited: last && request.solicited && request.operation.takes_receive(),
        };
        self.next = self.next.wrapping_add(packets);
        self.sent = (!last).then_some(at + packets);
        if let Some(request) = last.then(|| self.requests.pop_front()).flatten() {
            fx.complete_send(request, Status::Success);
        }
        self.end_drain(fx);
        Some(run)
    }

    /// Completes the first request with an error and flushes the others: the send queue stops, the receive queue
    /// works on. Returns `None`.
    fn fail<E: Effects<Buffer = B>>(&mut self, status: Status, fx: &mut E) -> Option<Run> {
        if let Some(request) = self.requests.pop_front() {
            fx.complete_send(request, status);
        }
        self.flush(UcSenderState::SendError, fx);
        None
    }

    fn flush<E: Effects<Buffer = B>>(&mut self, state: UcSenderState, fx: &mut E) {
        self.state = state;
        self.sent = None;
        for request in self.requests.drain(..) {
            fx.complete_send(request, Status::Flushed);
        }
    }

    fn end_drain<E: Effects<Buffer = B>>(&mut self, fx: &mut E) {
        if self.state == UcSenderState::Draining && self.sent.is_none() {
            self.state = UcSenderState::Drained;
            fx.raise(Event::SendQueueDrained);
        }
    }
}

impl Operation {
    /// Returns the operation of a whole message's packets, or `None` for one that UC does not have.
    fn as_run(self, len: u32) -> Option<RunOperation> {
        match self {
            Self::SendInvalidate(_) => None,
            _ => self.as_message(len),
        }
    }
}

/// Attributes of a UC receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UcReceiverConfig {
    /// Path MTU.
    pub pmtu: PathMtu,
    /// PSN of the first packet.
    pub first_psn: Psn,
    /// The queue pair allows RDMA writes.
    pub write: bool,
    /// The receives come from a shared queue.
    pub shared_receives: bool,
}

/// The receiving side of an unreliable connection. `R` is [`Effects::Region`], `V` is [`Effects::Receive`].
///
/// The expected PSN follows the stream, dropped packets included.
#[derive(Clone, Debug)]
pub struct UcReceiver<R, V> {
    config: UcReceiverConfig,
    state: ResponderState,
    expected: Psn,
    inbound: Inbound<R, V>,
    announced: bool,
    dropped: u64,
}

impl<R: Copy, V> UcReceiver<R, V> {
    /// Makes a receiver in RTR.
    #[must_use]
    pub const fn new(config: UcReceiverConfig) -> Self {
        Self {
            config,
            state: ResponderState::Listening,
            expected: config.first_psn,
            inbound: Inbound::new(),
            announced: false,
            dropped: 0,
        }
    }

    /// Returns the state.
    #[must_use]
    pub const fn state(&self) -> ResponderState {
        self.state
    }

    /// Returns the PSN behind the newest packet.
    #[must_use]
    pub const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Returns the packets that were dropped: of messages that lost one, were refused, or found no receive.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Leaves RTR for RTS: no further message raises [`Event::CommunicationEstablished`].
    pub fn establish(&mut self) {
        if self.state == ResponderState::Listening {
            self.state = ResponderState::Serving;
        }
    }

    /// Changes whether the peer may write (IBA 10.3.1, optional attribute of RTS).
    pub const fn permit_writes(&mut self, write: bool) {
        self.config.write = write;
    }

    /// Takes a run of packets. Nothing is ever answered.
    ///
    /// Ask for [`Self::state`] afterwards: a receive without memory ends the connection.
    pub fn handle<E>(&mut self, run: &Run, fx: &mut E)
    where
        E: Effects<Region = R, Receive = V>,
    {
        if self.state == ResponderState::Failed {
            self.dropped += u64::from(run.packets);
            return;
        }
        let in_order = run.psn == self.expected;
        self.expected = run.psn.wrapping_add(run.packets);
        if run.first && self.inbound.is_under_way() {
            self.inbound.give_up();
        }
        if (!in_order && !run.first) || !self.inbound.is_continued_by(run) {
            self.give_up(run);
            return;
        }
        let served = matches!(
            run.operation,
            RunOperation::Send(_) | RunOperation::Write(..)
        );
        if served && self.state == ResponderState::Listening && !self.announced {
            self.announced = true;
            fx.raise(Event::CommunicationEstablished);
        }
        self.accept(run, 0, fx);
    }

    /// Moves to the error state: completes the receive in use as flushed.
    pub fn abort<E>(&mut self, fx: &mut E)
    where
        E: Effects<Region = R, Receive = V>,
    {
        self.end(Status::Flushed, None, fx);
    }

    /// Takes a run in order. One that cannot be taken whole is taken in halves, down to the packet that is refused.
    /// Returns `false` if one was.
    fn accept<E>(&mut self, run: &Run, start: u32, fx: &mut E) -> bool
    where
        E: Effects<Region = R, Receive = V>,
    {
        let (pmtu, write) = (self.config.pmtu, self.config.write);
        let Err(refusal) = self.inbound.take(run, start, pmtu, write, fx) else {
            return true;
        };
        if let Some((front, back)) = run.split(run.packets / 2, pmtu) {
            if self.accept(&front, start, fx) {
                return self.accept(&back, start.saturating_add(front.len), fx);
            }
            self.dropped += u64::from(back.packets);
            return false;
        }
        self.give_up(run);
        match refusal {
            Refusal::ReceiveMemory => self.end(Status::LocalProtection, None, fx),
            Refusal::ReceiveMalformed => self.end(Status::LocalQpOperation, None, fx),
            Refusal::ReceiveQueue => self.end(Status::Flushed, Some(Event::Fatal), fx),
            Refusal::NotReady | Refusal::Invalid | Refusal::TooLong | Refusal::Access => {}
        }
        false
    }

    fn give_up(&mut self, run: &Run) {
        self.inbound.give_up();
        self.dropped += u64::from(run.packets);
    }

    /// Enters the error state, unless the receiver is in it.
    fn end<E>(&mut self, status: Status, event: Option<Event>, fx: &mut E)
    where
        E: Effects<Region = R, Receive = V>,
    {
        let shared = self.config.shared_receives;
        self.inbound
            .fail(&mut self.state, shared, status, event, fx);
    }
}
