//! The requester of a reliable connection (IBA 9.7.6, 9.9.2): sends requests, takes responses, and sends again
//! what was lost.

mod credits;
mod responses;
mod transmit;

use alloc::collections::VecDeque;

use ib_vtime::Instant;
use ib_wire::Psn;

use crate::effects::{Effects, Event};
use crate::psn::PsnOrder;
use crate::request::{Request, Status};
use crate::timing::{AckTimeout, PathMtu, RetryCount, RnrRetryCount};
use credits::Credits;
pub(crate) use credits::NO_CREDITS;

/// Attributes of a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequesterConfig {
    /// Path MTU.
    pub pmtu: PathMtu,
    /// PSN of the first request.
    pub first_psn: Psn,
    /// Time without progress after which the oldest packet is sent again.
    pub ack_timeout: AckTimeout,
    /// Transport retries.
    pub retries: RetryCount,
    /// RNR retries.
    pub rnr_retries: RnrRetryCount,
    /// Reads and atomic operations that may be outstanding (initiator depth). With 0 each such request fails.
    pub max_reads: u8,
    /// PSNs that may be unacknowledged when a packet starts; at least 1. A read counts the packets of its
    /// response, and starts even if they exceed the window.
    pub window: u32,
    /// Packets inside a message between two that ask for an acknowledgement; at least 1. The last packet of a
    /// message always asks.
    pub ack_interval: u32,
    /// Bytes of the longest message; see [`crate::MAX_MESSAGE`].
    pub max_message: u32,
}

/// State of a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequesterState {
    /// Requests are queued and not started: the queue pair is in RTR.
    Waiting,
    /// Requests start: RTS.
    Sending,
    /// No further request starts; those begun run to completion: SQD, draining.
    Draining,
    /// Nothing is outstanding: SQD, drained.
    Drained,
    /// Requests flush: ERR.
    Failed,
}

/// A request in the queue.
#[derive(Clone, Debug)]
struct Slot<B> {
    request: Request<B>,
    /// PSN of the first packet, once started.
    first: Psn,
    /// PSNs that the request takes.
    packets: u32,
    /// Response packets that arrived, of a read or atomic operation.
    received: u32,
    /// Number of the response packet from which a read was asked for last.
    asked: u32,
    /// A local error. Completes the request when everything before it is complete.
    failed: Option<Status>,
}

impl<B> Slot<B> {
    /// Returns the first PSN behind the request.
    fn end(&self) -> Psn {
        self.first.wrapping_add(self.packets)
    }
}

/// Sending one packet after a timeout, and the rest only once the peer has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    None,
    Due,
    Sent,
}

/// The requester of a reliable connection. `B` is [`Effects::Buffer`].
#[derive(Clone, Debug)]
pub struct Requester<B> {
    config: RequesterConfig,
    state: RequesterState,
    slots: VecDeque<Slot<B>>,
    /// Slots at the front that have PSNs.
    started: usize,
    /// Of those, reads and atomic operations.
    reads: usize,
    /// PSN of the next request to start.
    next: Psn,
    /// Oldest PSN that is not acknowledged.
    oldest: Psn,
    /// PSN of the next packet to send, from `oldest` to `next`.
    send: Psn,
    /// Slot that `send` lies in; `started` if it is that of a new request.
    cursor: usize,
    /// First PSN that was never sent.
    unsent: Psn,
    /// Packets sent since one asked for an acknowledgement.
    unasked: u32,
    credits: Credits,
    retries: RetryCount,
    rnr_retries: RnrRetryCount,
    /// When the oldest packet is sent again.
    deadline: Option<Instant>,
    /// End of the wait after an RNR NAK.
    rnr_until: Option<Instant>,
    /// After a lost read response, only the one that was asked for again is taken.
    seeking: bool,
    probe: Probe,
    retransmissions: u64,
    rnr_naks: u64,
}

impl<B> Requester<B> {
    /// Makes a requester that queues requests until [`Self::start`].
    #[must_use]
    pub fn new(config: RequesterConfig) -> Self {
        let first = config.first_psn;
        Self {
            config: RequesterConfig {
                window: config.window.max(1),
                ack_interval: config.ack_interval.max(1),
                ..config
            },
            state: RequesterState::Waiting,
            slots: VecDeque::new(),
            started: 0,
            reads: 0,
            next: first,
            oldest: first,
            send: first,
            cursor: 0,
            unsent: first,
            unasked: 0,
            credits: Credits::new(),
            retries: config.retries,
            rnr_retries: config.rnr_retries,
            deadline: None,
            rnr_until: None,
            seeking: false,
            probe: Probe::None,
            retransmissions: 0,
            rnr_naks: 0,
        }
    }

    /// Returns the state.
    #[must_use]
    pub const fn state(&self) -> RequesterState {
        self.state
    }

    /// Returns the PSN of the next new packet: what a query of the queue pair shows.
    #[must_use]
    pub const fn next_psn(&self) -> Psn {
        self.next
    }

    /// Returns the requests that are posted and not complete.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns `true` if every posted request is complete.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the posted requests that have not started. A caller that pulls requests from a ring asks for the next
    /// one while this is 0 and [`Self::poll_transmit`] returns `None`: one that may not start yet then waits here.
    #[must_use]
    pub fn unstarted(&self) -> usize {
        self.slots.len() - self.started
    }

    /// Returns the times that packets were sent again, by cause of a timeout, a NAK or a lost response.
    #[must_use]
    pub const fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// Returns the RNR NAKs that were received for outstanding requests.
    #[must_use]
    pub const fn rnr_naks(&self) -> u64 {
        self.rnr_naks
    }

    /// Starts or resumes sending: RTR or SQD to RTS. Does nothing in other states.
    ///
    /// Poll [`Self::poll_transmit`] afterwards.
    pub fn start(&mut self) {
        if self.state != RequesterState::Failed {
            self.state = RequesterState::Sending;
        }
    }

    /// Queues a request behind all others, or flushes it if the queue is in error.
    ///
    /// Poll [`Self::poll_transmit`] afterwards.
    pub fn post<E: Effects<Buffer = B>>(&mut self, request: Request<B>, fx: &mut E) {
        if self.state == RequesterState::Failed {
            fx.complete_send(request, Status::Flushed);
            return;
        }
        self.slots.push_back(Slot {
            request,
            first: self.next,
            packets: 0,
            received: 0,
            asked: 0,
            failed: None,
        });
    }

    /// Stops starting requests: RTS to SQD. Raises [`Event::SendQueueDrained`] once when those begun are
    /// complete, which may be at once. Does nothing unless requests start.
    ///
    /// Poll [`Self::poll_transmit`] until [`Self::state`] is [`RequesterState::Drained`], as without a drain.
    pub fn drain<E: Effects<Buffer = B>>(&mut self, fx: &mut E) {
        if self.state == RequesterState::Sending {
            self.state = RequesterState::Draining;
            self.end_drain(fx);
        }
    }

    /// Flushes every request, in order of posting: any state to ERR.
    pub fn abort<E: Effects<Buffer = B>>(&mut self, fx: &mut E) {
        self.state = RequesterState::Failed;
        self.deadline = None;
        self.rnr_until = None;
        self.started = 0;
        self.reads = 0;
        self.cursor = 0;
        for slot in self.slots.drain(..) {
            fx.complete_send(slot.request, Status::Flushed);
        }
    }

    /// Sets the attributes that the transition to RTS brings, the first PSN included. Does nothing once requests may
    /// start.
    pub fn configure(&mut self, config: RequesterConfig) {
        if self.state == RequesterState::Waiting {
            let slots = core::mem::take(&mut self.slots);
            *self = Self {
                slots,
                ..Self::new(config)
            };
        }
    }

    /// Changes what a transition from SQD to SQD may: timeout, retries and initiator depth (IBA 10.3.1).
    pub fn modify(&mut self, change: impl FnOnce(&mut RequesterConfig)) {
        let fixed = self.config;
        change(&mut self.config);
        // Both decide where packets of requests under way begin.
        self.config.pmtu = fixed.pmtu;
        self.config.first_psn = fixed.first_psn;
        self.config.window = self.config.window.max(1);
        self.config.ack_interval = self.config.ack_interval.max(1);
        self.retries = self.config.retries;
        self.rnr_retries = self.config.rnr_retries;
    }

    /// Returns the time at which [`Self::handle_timeout`] is due, or `None` if no timer runs.
    ///
    /// Changes with every call that takes effects.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.rnr_until.or(self.deadline)
    }

    /// Ends a wait after an RNR NAK, or sends the oldest packet again if nothing was acknowledged in time. Does
    /// nothing before [`Self::poll_timeout`].
    ///
    /// Poll [`Self::poll_transmit`] afterwards.
    pub fn handle_timeout<E: Effects<Buffer = B>>(&mut self, now: Instant, fx: &mut E) {
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
        } else if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            if self.retry(fx) {
                self.probe = Probe::Due;
            }
        }
    }

    /// Takes a transport retry and goes back to the oldest packet. Returns `false` if the queue failed instead.
    fn retry<E: Effects<Buffer = B>>(&mut self, fx: &mut E) -> bool {
        let left = self.retries.take();
        if left {
            self.go_back();
        } else {
            self.fail(Status::RetryExceeded, fx);
        }
        left
    }

    /// Makes the oldest unacknowledged packet the next to send.
    fn go_back(&mut self) {
        self.send = self.oldest;
        self.cursor = 0;
        self.deadline = None;
        self.probe = Probe::None;
        self.unasked = 0;
        self.retransmissions += 1;
    }

    /// Completes the oldest request with an error and flushes the others.
    fn fail<E: Effects<Buffer = B>>(&mut self, status: Status, fx: &mut E) {
        if let Some(slot) = self.slots.pop_front() {
            fx.complete_send(slot.request, status);
        }
        self.abort(fx);
    }

    /// Completes the oldest request, all of whose PSNs are acknowledged, and the local ones behind it, which were only waiting for
    /// their turn to complete: the oldest request that has started has PSNs.
    fn complete_oldest<E: Effects<Buffer = B>>(&mut self, fx: &mut E) {
        self.complete_front(fx);
        while self.is_local(0) {
            self.complete_front(fx);
        }
    }

    /// Returns `true` if the slot is that of a local request which has started.
    fn is_local(&self, at: usize) -> bool {
        let slot = self.slots.get(at).filter(|_| at < self.started);
        slot.is_some_and(|slot| slot.request.operation.is_local())
    }

    fn complete_front<E: Effects<Buffer = B>>(&mut self, fx: &mut E) {
        if let Some(slot) = self.slots.pop_front() {
            self.oldest = slot.end();
            self.started -= 1;
            self.cursor = self.cursor.saturating_sub(1);
            if slot.request.operation.is_read_or_atomic() {
                self.reads -= 1;
            }
            fx.complete_send(slot.request, Status::Success);
        }
    }

    /// Reloads counters and timer after the oldest unacknowledged PSN moved.
    fn progress(&mut self, now: Instant) {
        self.retries = self.config.retries;
        self.rnr_retries = self.config.rnr_retries;
        self.rnr_until = None;
        self.probe = Probe::None;
        if self.send.is_before(self.oldest) {
            // The slot of `send` is complete or the first, so the cursor stands there already.
            self.send = self.oldest;
        }
        self.deadline = None;
        self.await_answer(now);
    }

    /// Starts the timer if something is unacknowledged and it does not run.
    fn await_answer(&mut self, now: Instant) {
        if self.deadline.is_none() && self.oldest != self.unsent {
            self.deadline = self.config.ack_timeout.duration().map(|time| now + time);
        }
    }

    /// Fails the queue if everything before a request with a local error is complete, and ends a drain.
    fn settle<E: Effects<Buffer = B>>(&mut self, fx: &mut E) {
        if let Some(status) = self.slots.front().and_then(|slot| slot.failed) {
            self.fail(status, fx);
        }
        self.end_drain(fx);
    }

    fn end_drain<E: Effects<Buffer = B>>(&mut self, fx: &mut E) {
        if self.state == RequesterState::Draining && self.started == 0 {
            self.state = RequesterState::Drained;
            fx.raise(Event::SendQueueDrained);
        }
    }
}
