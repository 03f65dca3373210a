//! Processing of responses.

use ib_vtime::Instant;
use ib_wire::Psn;
use ib_wire::packet::{AethSyndrome, NakCode};

use super::{Requester, RequesterState};
use crate::effects::Effects;
use crate::psn::PsnOrder;
use crate::request::{Operation, Status};
use crate::run::{Answer, Response};
use crate::timing::RnrTimer;

/// The response of a read or atomic operation is missing, though a later request was answered.
struct Lost;

impl<B> Requester<B> {
    /// Takes a response. Whatever does not answer an outstanding request is dropped silently (IBA 9.7.5.1).
    ///
    /// Poll [`Self::poll_transmit`] and [`Self::poll_timeout`] afterwards, and [`Self::state`], since a response
    /// can end the connection.
    pub fn handle<E>(&mut self, now: Instant, response: &Response, fx: &mut E)
    where
        E: Effects<Buffer = B>,
    {
        if !matches!(
            self.state,
            RequesterState::Sending | RequesterState::Draining
        ) {
            return;
        }
        let mut response = *response;
        let mut trimmed = 0;
        let old = self.oldest.since(response.psn);
        if old > 0 {
            // Of a run that began before, only the packets that are still missing count.
            let at = old.unsigned_abs();
            if let Some((front, back)) = response.split(at, self.config.pmtu) {
                trimmed = front.payload_len();
                response = back;
            } else {
                if old == 1
                    && let Answer::Acknowledge(AethSyndrome::Ack { credits }) = response.answer
                {
                    self.credits.take(credits, response.msn);
                }
                return;
            }
        }
        if !response.psn.is_before(self.unsent) {
            return;
        }
        if self.seeking {
            if response.psn != self.oldest {
                return;
            }
            self.seeking = false;
        }
        let result = match response.answer {
            Answer::Acknowledge(syndrome) => self.acknowledgement(now, &response, syndrome, fx),
            Answer::Read { syndrome, .. } => self
                .acknowledge(now, response.psn, false, fx)
                .map(|()| self.read_data(now, &response, syndrome, trimmed, fx)),
            Answer::Atomic { syndrome, original } => self
                .acknowledge(now, response.psn, false, fx)
                .map(|()| self.atomic_data(now, &response, syndrome, original, fx)),
            Answer::Reserved => Ok(()),
        };
        if result.is_err() && self.retry(fx) {
            self.seeking = true;
        }
        self.settle(fx);
    }

    fn acknowledgement<E: Effects<Buffer = B>>(
        &mut self,
        now: Instant,
        response: &Response,
        syndrome: AethSyndrome,
        fx: &mut E,
    ) -> Result<(), Lost> {
        let psn = response.psn;
        match syndrome {
            AethSyndrome::Ack { credits } => {
                self.acknowledge(now, psn.wrapping_add(1), true, fx)?;
                self.credits.take(credits, response.msn);
            }
            AethSyndrome::RnrNak { timer } => {
                self.acknowledge(now, psn, false, fx)?;
                // A second one during the wait is for a packet that was on its way.
                if self.rnr_until.is_none() && self.started > 0 {
                    self.rnr_naks += 1;
                    if self.rnr_retries.take() {
                        self.go_back();
                        let wait = RnrTimer::from_low_bits(timer).duration();
                        self.rnr_until = Some(now + wait);
                    } else {
                        self.fail(Status::RnrRetryExceeded, fx);
                    }
                }
            }
            AethSyndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                self.acknowledge(now, psn, false, fx)?;
                // During an RNR wait everything is sent again anyway.
                if self.rnr_until.is_none() && self.started > 0 {
                    self.retry(fx);
                }
            }
            AethSyndrome::Nak(code) => {
                let status = match code {
                    NakCode::INVALID_REQUEST => Status::RemoteInvalidRequest,
                    NakCode::REMOTE_ACCESS_ERROR => Status::RemoteAccess,
                    NakCode::REMOTE_OPERATIONAL_ERROR => Status::RemoteOperation,
                    // Codes of other services and reserved ones say nothing about a request.
                    _ => return Ok(()),
                };
                self.acknowledge(now, psn, false, fx)?;
                self.fail(status, fx);
            }
            AethSyndrome::Reserved(_) => {}
        }
        Ok(())
    }

    /// Acknowledges all PSNs before `until`. `within` allows `until` to lie inside a read whose data are missing,
    /// which then says nothing about it.
    fn acknowledge<E: Effects<Buffer = B>>(
        &mut self,
        now: Instant,
        until: Psn,
        within: bool,
        fx: &mut E,
    ) -> Result<(), Lost> {
        let before = self.oldest;
        let mut lost = false;
        while self.oldest.is_before(until) && self.started > 0 {
            let Some(slot) = self.slots.front() else {
                break;
            };
            if slot.request.operation.is_read_or_atomic() {
                lost = !within || !until.is_before(slot.end());
                break;
            }
            if until.is_before(slot.end()) {
                self.oldest = until;
                break;
            }
            self.complete_oldest(fx);
        }
        if self.oldest != before {
            self.progress(now);
        }
        // A request that failed before it was sent whole ends the queue now.
        self.settle(fx);
        if lost && self.state != RequesterState::Failed {
            return Err(Lost);
        }
        Ok(())
    }

    fn read_data<E: Effects<Buffer = B>>(
        &mut self,
        now: Instant,
        response: &Response,
        syndrome: AethSyndrome,
        payload_start: u32,
        fx: &mut E,
    ) {
        let pmtu = self.config.pmtu;
        let Some(slot) = self.slots.front_mut().filter(|_| self.started > 0) else {
            return;
        };
        let Answer::Read {
            first, last, len, ..
        } = response.answer
        else {
            return;
        };
        let at = slot.received;
        // A stream that was asked for earlier may still arrive: where the newest begins, its packets count, too.
        let in_sequence = if first { at == slot.asked } else { at > 0 };
        let has_aeth = first || last;
        let is_ack = matches!(syndrome, AethSyndrome::Ack { .. });
        let has_such = matches!(
            slot.request.operation,
            Operation::Read(_) | Operation::AtomicWrite(_) | Operation::Flush(..)
        );
        if !has_such || !in_sequence || has_aeth && !is_ack {
            self.fail(Status::BadResponse, fx);
            return;
        }
        let end = at.saturating_add(response.packets);
        let offset = at * pmtu.bytes();
        let expected = if end >= slot.packets {
            slot.request.operation.answer_len(slot.request.len) - offset
        } else {
            response.packets.saturating_mul(pmtu.bytes())
        };
        if end > slot.packets || last != (end == slot.packets) || len != expected {
            self.fail(Status::AnswerLength, fx);
            return;
        }
        let payload = payload_start..payload_start + len;
        if len > 0 && fx.scatter(&slot.request.buffer, offset, payload).is_err() {
            self.fail(Status::LocalProtection, fx);
            return;
        }
        slot.received = end;
        self.oldest = slot.first.wrapping_add(end);
        if last {
            self.complete_oldest(fx);
        }
        if let (AethSyndrome::Ack { credits }, true) = (syndrome, has_aeth) {
            self.credits.take(credits, response.msn);
        }
        self.progress(now);
    }

    fn atomic_data<E: Effects<Buffer = B>>(
        &mut self,
        now: Instant,
        response: &Response,
        syndrome: AethSyndrome,
        original: u64,
        fx: &mut E,
    ) {
        let Some(slot) = self.slots.front().filter(|_| self.started > 0) else {
            return;
        };
        let AethSyndrome::Ack { credits } = syndrome else {
            self.fail(Status::BadResponse, fx);
            return;
        };
        if !matches!(slot.request.operation, Operation::Atomic(..)) {
            self.fail(Status::BadResponse, fx);
            return;
        }
        if fx.store_original(&slot.request.buffer, original).is_err() {
            self.fail(Status::LocalProtection, fx);
            return;
        }
        self.complete_oldest(fx);
        self.credits.take(credits, response.msn);
        self.progress(now);
    }
}
