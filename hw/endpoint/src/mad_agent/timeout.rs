//! What happens when nothing happens.

use ib_vtime::Instant;
use ib_wire::rmpp::{RmppHeader, RmppStatus, RmppType};

use super::transfer::{Phase, Timer, TransferKey, Turn, rearm, without_data};
use super::transmit::{Queued, SenderRef};
use super::{AgentEvent, MadAgent, RequestId, TransferError};

impl MadAgent {
    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, timer)) = self.timers.pop_due(now) {
            match timer {
                Timer::Request(id) => self.request_timed_out(now, id),
                Timer::Outgoing(key) => self.outgoing_timed_out(now, &key),
                Timer::Incoming(key) => {
                    let status = RmppStatus::TOTAL_TIME_TOO_LONG;
                    self.fail_incoming(&key, RmppType::ABORT, status);
                }
                Timer::Turn(key) => self.turn_timed_out(now, &key),
                Timer::Retention(key) => {
                    self.forget_completed(&key);
                }
            }
        }
    }

    fn request_timed_out(&mut self, now: Instant, id: RequestId) {
        let Some(transaction) = self.transactions.get_mut(&id) else {
            return;
        };
        transaction.timer = None;
        let may_retry = transaction.retries_left > 0;
        match &mut transaction.phase {
            Phase::Sending(sending) => {
                if sending.sender.go_back() {
                    self.counters.retransmissions += 1;
                    self.enter_round(SenderRef::Request(id));
                    self.restart_ack_timer(now, SenderRef::Request(id));
                } else {
                    self.give_up_sending(id, RmppStatus::TOO_MANY_RETRIES);
                }
                return;
            }
            Phase::Single { .. } | Phase::TurnedAround if !may_retry => {
                let transmissions = transaction.transmissions;
                self.fail_request(id, TransferError::TimedOut { transmissions });
                return;
            }
            Phase::Single { queued } => {
                // A request that could not leave the queue in time used up a try all the same.
                if !core::mem::replace(queued, true) {
                    self.counters.retransmissions += 1;
                    self.queue.push_back(Queued::Request(id));
                }
            }
            Phase::TurnedAround => {
                self.counters.retransmissions += 1;
                self.turn_around(id);
            }
            Phase::Receiving(_) => return,
        }
        let Some(transaction) = self.transactions.get_mut(&id) else {
            return;
        };
        transaction.retries_left -= 1;
        let deadline = now + transaction.policy.timeout;
        rearm(
            &mut self.timers,
            &mut transaction.timer,
            deadline,
            Timer::Request(id),
        );
    }

    /// Ends a request that RMPP carries; tells its receiver and its sender.
    pub(super) fn give_up_sending(&mut self, id: RequestId, status: RmppStatus) {
        if let Some(transaction) = self.take_transaction(id) {
            self.end_sent_request(&transaction, status);
            self.counters.failures += 1;
            self.tell(AgentEvent::RequestFailed {
                agent: transaction.agent,
                request: id,
                reason: TransferError::EndedByUs(status),
            });
        }
    }

    fn outgoing_timed_out(&mut self, now: Instant, key: &TransferKey) {
        let Some(outgoing) = self.outgoing.get_mut(key) else {
            return;
        };
        outgoing.timer = None;
        if outgoing.sending.sender.go_back() {
            self.counters.retransmissions += 1;
            self.enter_round(SenderRef::Response(*key));
            self.restart_ack_timer(now, SenderRef::Response(*key));
        } else {
            self.fail_outgoing(key, RmppStatus::TOO_MANY_RETRIES);
        }
    }

    /// Ends a response's transfer and tells its receiver and its sender.
    pub(super) fn fail_outgoing(&mut self, key: &TransferKey, status: RmppStatus) {
        if let Some(outgoing) = self.end_outgoing(key, RmppType::ABORT, status) {
            self.finish_outgoing(&outgoing, Err(TransferError::EndedByUs(status)));
        }
    }

    /// The requester did not take the turn-around step: the last ACK may be lost, so repeat it.
    fn turn_timed_out(&mut self, now: Instant, key: &TransferKey) {
        let Some(completed) = self.completed.get_mut(key) else {
            return;
        };
        completed.turn_timer = None;
        let Turn::Awaited { repeats_left } = &mut completed.turn else {
            return;
        };
        if *repeats_left == 0 {
            completed.turn = Turn::None;
            let response = self.response_to(key);
            if let Some(response) = response {
                self.fail_outgoing(&response, RmppStatus::TOO_MANY_RETRIES);
            }
            return;
        }
        *repeats_left -= 1;
        let (to, headers, ack) = (completed.from, completed.headers, completed.ack);
        let deadline = now + self.config.rmpp.ack_timeout;
        rearm(
            &mut self.timers,
            &mut completed.turn_timer,
            deadline,
            Timer::Turn(*key),
        );
        self.counters.retransmissions += 1;
        self.send_ack(to, &headers, ack);
    }

    /// Gives the turn to the responder: an ACK of segment 0 in the direction of the request, with
    /// a window of one segment (IBA 13.6.5.2).
    pub(super) fn turn_around(&mut self, id: RequestId) {
        if let Some(transaction) = self.transactions.get_mut(&id) {
            transaction.transmissions += 1;
            let to = transaction.to;
            let headers = without_data(*transaction.message.mad());
            self.send_rmpp(to, headers, RmppHeader::ack(0, 1));
        }
    }
}
