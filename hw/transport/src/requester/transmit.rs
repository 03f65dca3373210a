//! Transmission of requests.

use ib_vtime::Instant;

use super::{Probe, Requester, RequesterState};
use crate::effects::{Effects, LocalRight};
use crate::psn::{MAX_UNACKNOWLEDGED, PsnOrder, count};
use crate::request::{MAX_MESSAGE, Operation, RemoteRange, Status};
use crate::run::{Run, RunOperation};

/// Bytes that an atomic operation returns and an atomic write stores.
const ATOMIC_LEN: u32 = 8;

/// Local requests that a poll carries out, at most.
const LOCAL_REQUESTS: usize = 16;

impl<B> Requester<B> {
    /// Returns the next run of at most `budget` packets, or `None` if nothing may be sent now. Its payload is
    /// what the effects gathered during the call.
    ///
    /// Poll until `None` after [`Self::start`], [`Self::post`], [`Self::handle`] and
    /// [`Self::handle_timeout`], and again after a poll that carried out local requests: their number in a poll is bounded.
    #[must_use]
    pub fn poll_transmit<E>(&mut self, now: Instant, budget: u32, fx: &mut E) -> Option<Run>
    where
        E: Effects<Buffer = B>,
    {
        let sends = matches!(
            self.state,
            RequesterState::Sending | RequesterState::Draining
        );
        if !sends || self.rnr_until.is_some() || self.probe == Probe::Sent || budget == 0 {
            return None;
        }
        let mut local = 0;
        while self.cursor == self.started {
            if local == LOCAL_REQUESTS || !self.start_next(fx) {
                return None;
            }
            local += 1;
        }
        let slot = self.slots.get_mut(self.cursor)?;
        if slot.failed.is_some() {
            return None;
        }
        let len = slot.request.len;
        let psn = self.send;
        let run = match slot.request.operation {
            Operation::Read(from) => {
                // Asked again, a read continues at the first byte that is missing.
                slot.asked = slot.received;
                let received = slot.received.saturating_mul(self.config.pmtu.bytes());
                let range = RemoteRange {
                    addr: from.addr.wrapping_add(u64::from(received)),
                    rkey: from.rkey,
                    len: len.saturating_sub(received),
                };
                let run = single(psn, RunOperation::Read(range));
                self.send = slot.end();
                run
            }
            Operation::Atomic(at, op) => {
                let run = single(psn, RunOperation::Atomic(at, op));
                self.send = slot.end();
                run
            }
            Operation::AtomicWrite(to) => {
                if fx.gather(&slot.request.buffer, 0..len).is_err() {
                    slot.failed = Some(Status::LocalProtection);
                    self.settle(fx);
                    return None;
                }
                let range = RemoteRange {
                    addr: to.addr,
                    rkey: to.rkey,
                    len,
                };
                self.send = slot.end();
                Run {
                    len,
                    ..single(psn, RunOperation::AtomicWrite(range))
                }
            }
            Operation::Flush(to, flush) => {
                let range = RemoteRange {
                    addr: to.addr,
                    rkey: to.rkey,
                    len,
                };
                self.send = slot.end();
                single(psn, RunOperation::Flush(range, flush))
            }
            operation => self.part(operation.as_message(len)?, budget, fx)?,
        };
        if self.slots.get(self.cursor).map(super::Slot::end) == Some(self.send) {
            self.cursor += 1;
            // Sent again, a queue passes over what it has carried out.
            while self.is_local(self.cursor) {
                self.cursor += 1;
            }
        }
        if self.unsent.is_before(self.send) {
            self.unsent = self.send;
        }
        if self.probe == Probe::Due {
            self.probe = Probe::Sent;
        }
        self.unasked = if run.ack_request {
            0
        } else {
            self.unasked + run.packets
        };
        self.await_answer(now);
        Some(run)
    }

    /// Assigns PSNs to the next request. Returns `false` if it may not start now, or failed.
    fn start_next<E: Effects<Buffer = B>>(&mut self, fx: &mut E) -> bool {
        if self.state != RequesterState::Sending {
            return false;
        }
        let Some(slot) = self.slots.get_mut(self.started) else {
            return false;
        };
        let request = &slot.request;
        let operation = request.operation;
        if let Operation::Local { after_all } = operation {
            return self.execute_next(after_all, fx);
        }
        let reads = operation.is_read_or_atomic();
        let packets = match operation {
            Operation::Atomic(..) | Operation::Flush(..) => 1,
            _ => self.config.pmtu.packets(request.len),
        };
        let unacknowledged = count(self.oldest, self.next);
        let waits = slot.failed.is_some()
            || request.fence && self.reads > 0
            || reads && self.reads > 0 && self.reads >= usize::from(self.config.max_reads)
            || unacknowledged >= self.config.window
            || unacknowledged > 0 && unacknowledged.saturating_add(packets) > MAX_UNACKNOWLEDGED
            || !self.credits.allow(operation.takes_receive());
        if waits {
            return false;
        }
        let max = self.config.max_message.min(MAX_MESSAGE);
        let (used, right) = match operation {
            Operation::Atomic(..) => (ATOMIC_LEN, LocalRight::Scatter),
            Operation::Read(_) => (request.len, LocalRight::Scatter),
            Operation::AtomicWrite(_) => (ATOMIC_LEN.max(request.len), LocalRight::Gather),
            Operation::Flush(..) => (0, LocalRight::Gather),
            _ => (request.len, LocalRight::Gather),
        };
        let is_long = match operation {
            Operation::AtomicWrite(_) => used > ATOMIC_LEN,
            // No message carries these bytes, but a RETH announces them.
            Operation::Flush(..) => request.len > MAX_MESSAGE,
            _ => used > max,
        };
        let fault = if used > request.len || is_long || packets > MAX_UNACKNOWLEDGED {
            Some(Status::LocalLength)
        } else if reads && self.config.max_reads == 0 {
            Some(Status::NoReads)
        } else {
            let checked = fx.check_local(&request.buffer, used, right);
            checked.err().map(|_| Status::LocalProtection)
        };
        if fault.is_some() {
            slot.failed = fault;
            self.settle(fx);
            return false;
        }
        slot.first = self.next;
        slot.packets = packets;
        self.next = slot.end();
        self.started += 1;
        self.reads += usize::from(reads);
        self.credits.start(operation.takes_receive());
        true
    }

    /// Carries out the next request, which is local. Returns `false` if it may not start now, or failed.
    fn execute_next<E: Effects<Buffer = B>>(&mut self, after_all: bool, fx: &mut E) -> bool {
        let Some(slot) = self.slots.get_mut(self.started) else {
            return false;
        };
        let waits = slot.failed.is_some()
            || after_all && self.started > 0
            || slot.request.fence && self.reads > 0;
        if waits {
            return false;
        }
        if fx.execute(&slot.request.buffer).is_err() {
            slot.failed = Some(Status::MemoryManagement);
            self.settle(fx);
            return false;
        }
        slot.first = self.next;
        self.started += 1;
        if self.started == 1 {
            self.complete_oldest(fx);
        } else {
            self.cursor += 1;
        }
        true
    }

    /// Returns the next packets of the send or write at the cursor, and gathers their payload.
    fn part<E>(&mut self, operation: RunOperation, budget: u32, fx: &mut E) -> Option<Run>
    where
        E: Effects<Buffer = B>,
    {
        let config = &self.config;
        let slot = self.slots.get_mut(self.cursor)?;
        let at = count(slot.first, self.send);
        let left = slot.packets - at;
        let room = config.window.saturating_sub(count(self.oldest, self.send));
        let probe = self.probe == Probe::Due;
        let until_asked = config.ack_interval.saturating_sub(self.unasked).max(1);
        let packets =
            left.min(budget)
                .min(room)
                .min(until_asked)
                .min(if probe { 1 } else { u32::MAX });
        if packets == 0 {
            return None;
        }
        let last = packets == left;
        let start = at * config.pmtu.bytes();
        let end = if last {
            slot.request.len
        } else {
            start + packets * config.pmtu.bytes()
        };
        if fx.gather(&slot.request.buffer, start..end).is_err() {
            slot.failed = Some(Status::LocalProtection);
            self.settle(fx);
            return None;
        }
        // The window closes behind this run: without an acknowledgement it would stay closed.
        let closes = packets == room;
        let run = Run {
            psn: self.send,
            packets,
            operation: operation.within(at == 0, last),
            first: at == 0,
            last,
            len: end - start,
            ack_request: last || probe || closes || packets == until_asked,
            solicited: last && slot.request.solicited && slot.request.operation.takes_receive(),
        };
        self.send = self.send.wrapping_add(packets);
        Some(run)
    }
}

/// Returns a request of one packet without payload.
fn single(psn: ib_wire::Psn, operation: RunOperation) -> Run {
    Run {
        psn,
        packets: 1,
        operation,
        first: true,
        last: true,
        len: 0,
        ack_request: true,
        solicited: false,
    }
}
