//! The responder of a reliable connection (IBA 9.7.4, 9.7.5, 9.9.3): executes requests and answers them.

mod duplicate;
mod execute;
mod history;

use ib_wire::packet::{AethSyndrome, FlushPlacement, NakCode};
use ib_wire::{Psn, RKey};

use crate::effects::{Effects, Event};
use crate::inbound::{Inbound, Refusal, ResponderState};
use crate::psn::PsnOrder;
use crate::request::{RemoteRange, Status};
use crate::requester::NO_CREDITS;
use crate::run::{Answer, Response, Run};
use crate::timing::{PathMtu, RnrTimer};
use history::{History, Record, Stream};

/// A range of no bytes.
const NOTHING: RemoteRange = RemoteRange {
    addr: 0,
    rkey: RKey::new(0),
    len: 0,
};

/// Accesses that a queue pair allows its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteRights {
    /// RDMA reads.
    pub read: bool,
    /// RDMA writes.
    pub write: bool,
    /// Atomic operations.
    pub atomic: bool,
    /// Placements that flushes may ask for.
    pub flush: FlushPlacement,
}

/// Attributes of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderConfig {
    /// Path MTU.
    pub pmtu: PathMtu,
    /// PSN of the first request.
    pub first_psn: Psn,
    /// Accesses that the queue pair allows.
    pub rights: RemoteRights,
    /// Reads and atomic operations that are remembered (responder depth). With 0 each such request is refused.
    pub max_reads: u8,
    /// Time that RNR NAKs ask for.
    pub min_rnr_timer: RnrTimer,
    /// The receives come from a shared queue.
    pub shared_receives: bool,
}

/// The responder of a reliable connection. `R` is [`Effects::Region`], `V` is [`Effects::Receive`].
#[derive(Clone, Debug)]
pub struct Responder<R, V> {
    config: ResponderConfig,
    state: ResponderState,
    /// PSN of the next new request.
    expected: Psn,
    /// Requests completed, modulo 2^24.
    msn: Psn,
    inbound: Inbound<R, V>,
    history: History<R>,
    /// The first request in RTR was announced.
    announced: bool,
    /// A NAK was sent and neither the expected packet nor a duplicate came since: no other NAK leaves.
    nak_sent: bool,
    nak: Option<(Psn, AethSyndrome)>,
    ack: Option<Psn>,
    /// Acknowledgement of duplicates, which names an older PSN than `ack`.
    duplicate_ack: Option<Psn>,
    duplicates: u64,
}

impl<R: Copy, V> Responder<R, V> {
    /// Makes a responder in RTR.
    #[must_use]
    pub fn new(config: ResponderConfig) -> Self {
        Self {
            config,
            state: ResponderState::Listening,
            expected: config.first_psn,
            msn: Psn::default(),
            inbound: Inbound::new(),
            history: History::new(config.max_reads),
            announced: false,
            nak_sent: false,
            nak: None,
            ack: None,
            duplicate_ack: None,
            duplicates: 0,
        }
    }

    /// Returns the state.
    #[must_use]
    pub const fn state(&self) -> ResponderState {
        self.state
    }

    /// Returns the PSN of the next new request: what a query of the queue pair shows.
    #[must_use]
    pub const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Returns the requests that were completed, modulo 2^24.
    #[must_use]
    pub const fn msn(&self) -> Psn {
        self.msn
    }

    /// Returns the duplicate request packets that arrived.
    #[must_use]
    pub const fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Leaves RTR for RTS: no further request raises [`Event::CommunicationEstablished`].
    pub fn establish(&mut self) {
        if self.state == ResponderState::Listening {
            self.state = ResponderState::Serving;
        }
    }

    /// Changes the rights of the peer, the responder depth and the RNR timer (IBA 10.3.1, optional attributes of RTS and SQD).
    /// Requests that are remembered beyond a smaller depth are answered, and forgotten when the next one comes.
    pub const fn modify(&mut self, rights: RemoteRights, max_reads: u8, min_rnr_timer: RnrTimer) {
        self.config.rights = rights;
        self.config.max_reads = max_reads;
        self.config.min_rnr_timer = min_rnr_timer;
        self.history.set_depth(max_reads);
    }

    /// Takes a run of request packets.
    ///
    /// Poll [`Self::poll_transmit`] afterwards, and [`Self::state`], since a request can end the connection.
    pub fn handle<E>(&mut self, run: &Run, fx: &mut E)
    where
        E: Effects<Region = R, Receive = V>,
    {
        if self.state == ResponderState::Failed {
            return;
        }
        let ahead = run.psn.since(self.expected);
        if ahead > 0 {
            if !self.nak_sent {
                self.nak_sent = true;
                let syndrome = AethSyndrome::Nak(NakCode::PSN_SEQUENCE_ERROR);
                self.nak = Some((self.expected, syndrome));
            }
            return;
        }
        let old = ahead.unsigned_abs();
        if old == 0 {
            self.accept(run, 0, fx);
        } else if let Some((front, back)) = run.split(old, self.config.pmtu) {
            self.duplicate(&front, fx);
            self.accept(&back, front.len, fx);
        } else {
            self.duplicate(run, fx);
        }
    }

    /// Returns the next response of at most `budget` packets, or `None` if nothing is owed. The payload of a
    /// read response is what the effects fetched during the call.
    ///
    /// Poll until `None` after [`Self::handle`]; in any state, since answers to requests before a refused one
    /// still leave, and the refusal behind them.
    #[must_use]
    pub fn poll_transmit<E>(&mut self, budget: u32, fx: &mut E) -> Option<Response>
    where
        E: Effects<Region = R, Receive = V>,
    {
        if budget == 0 {
            return None;
        }
        loop {
            // Responses leave in the order of their requests.
            let pending = self.history.first_pending().map(|entry| entry.psn);
            let may_leave = |psn: Psn| pending.is_none_or(|first| psn.is_before(first));
            let credits = NO_CREDITS;
            if let Some(psn) = self.duplicate_ack.take_if(|psn| may_leave(*psn)) {
                return Some(self.acknowledge(psn, AethSyndrome::Ack { credits }));
            }
            if let Some(psn) = self.ack.take_if(|psn| may_leave(*psn)) {
                return Some(self.acknowledge(psn, AethSyndrome::Ack { credits }));
            }
            if pending.is_none() {
                let (psn, syndrome) = self.nak.take()?;
                return Some(self.acknowledge(psn, syndrome));
            }
            if let Some(response) = self.answer(budget, fx) {
                return Some(response);
            }
        }
    }

    /// Moves to the error state: completes the receive in use as flushed, and drops the answers that are owed.
    /// Does nothing to a responder that failed before, except for those answers.
    pub fn abort<E>(&mut self, fx: &mut E)
    where
        E: Effects<Region = R, Receive = V>,
    {
        self.drop_answers();
        self.end(Status::Flushed, None, fx);
    }

    fn acknowledge(&self, psn: Psn, syndrome: AethSyndrome) -> Response {
        Response {
            psn,
            packets: 1,
            answer: Answer::Acknowledge(syndrome),
            msn: self.msn,
        }
    }

    /// Returns the next part of the oldest pending answer, or `None` if there is nothing to say after all.
    fn answer<E>(&mut self, budget: u32, fx: &mut E) -> Option<Response>
    where
        E: Effects<Region = R, Receive = V>,
    {
        let pmtu = self.config.pmtu;
        let msn = self.msn;
        let entry = self.history.first_pending()?;
        let stream = entry.pending?;
        let syndrome = AethSyndrome::Ack {
            credits: NO_CREDITS,
        };
        let psn = entry.psn.wrapping_add(stream.next);
        let (region, range) = match entry.record {
            Record::Atomic { original, .. } => {
                entry.pending = None;
                entry.answered = true;
                return Some(Response {
                    psn,
                    packets: 1,
                    answer: Answer::Atomic { syndrome, original },
                    msn,
                });
            }
            // Answered as a read of 0 bytes is.
            Record::AtomicWrite | Record::Flush => (None, NOTHING),
            Record::Read { region, range, .. } => (region, range),
        };
        let packets = budget.min(entry.packets - stream.next);
        let end = stream.next + packets;
        let last = end == entry.packets;
        let offset = stream.next * pmtu.bytes();
        let len = if last {
            range.len - offset
        } else {
            packets * pmtu.bytes()
        };
        let addr = range.addr.wrapping_add(u64::from(offset));
        let fetched = region.map_or(Ok(()), |region| fx.fetch(region, addr, len));
        if fetched.is_err() {
            entry.pending = None;
            // Asked again for memory that is gone, the responder is silent; a first answer ends in a NAK.
            if !entry.answered {
                self.drop_answers();
                self.refuse(psn, Refusal::Access, fx);
            }
            return None;
        }
        entry.pending = (!last).then_some(Stream {
            next: end,
            ..stream
        });
        entry.answered |= last;
        Some(Response {
            psn,
            packets,
            answer: Answer::Read {
                first: stream.next == stream.start,
                last,
                len,
                syndrome,
            },
            msn,
        })
    }

    /// Refuses the request at `psn`. Everything but a missing receive ends the connection.
    fn refuse<E>(&mut self, psn: Psn, refusal: Refusal, fx: &mut E)
    where
        E: Effects<Region = R, Receive = V>,
    {
        let nak = AethSyndrome::Nak;
        let (syndrome, status, event) = match refusal {
            Refusal::NotReady => {
                let timer = self.config.min_rnr_timer.code();
                self.nak = Some((psn, AethSyndrome::RnrNak { timer }));
                self.nak_sent = true;
                return;
            }
            Refusal::Invalid => (
                nak(NakCode::INVALID_REQUEST),
                Status::RemoteInvalidRequest,
                Event::RequestError,
            ),
            Refusal::TooLong => (
                nak(NakCode::INVALID_REQUEST),
                Status::LocalLength,
                Event::RequestError,
            ),
            Refusal::Access => (
                nak(NakCode::REMOTE_ACCESS_ERROR),
                Status::LocalAccess,
                Event::AccessError,
            ),
            Refusal::ReceiveMemory => (
                nak(NakCode::REMOTE_OPERATIONAL_ERROR),
                Status::LocalProtection,
                Event::Fatal,
            ),
            Refusal::ReceiveMalformed => (
                nak(NakCode::REMOTE_OPERATIONAL_ERROR),
                Status::LocalQpOperation,
                Event::Fatal,
            ),
            Refusal::ReceiveQueue => {
                // The peer is told nothing: it retries, and fails by itself.
                self.drop_answers();
                self.end(Status::Flushed, Some(Event::Fatal), fx);
                return;
            }
        };
        self.nak = Some((psn, syndrome));
        self.end(status, Some(event), fx);
    }

    fn drop_answers(&mut self) {
        self.history.stop();
        self.nak = None;
        self.ack = None;
        self.duplicate_ack = None;
    }

    /// Enters the error state, unless the responder is in it. The receive in use says why, or `event` does if there is none.
    fn end<E>(&mut self, status: Status, event: Option<Event>, fx: &mut E)
    where
        E: Effects<Region = R, Receive = V>,
    {
        let shared = self.config.shared_receives;
        self.inbound
            .fail(&mut self.state, shared, status, event, fx);
    }
}
