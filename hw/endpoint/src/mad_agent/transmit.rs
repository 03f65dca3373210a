//! What goes out, and in which order: acknowledgements and refusals, then single MADs, then the
//! segments of all transfers in turn.

use alloc::boxed::Box;

use ib_vtime::{Duration, Instant};
use ib_wire::mad::Mad;
use ib_wire::rmpp::{RmppHeader, RmppMad, RmppStatus, RmppType};

use super::transfer::{
    Outgoing, Phase, Timer, Transaction, TransferKey, against, rearm, without_data,
};
use super::{AgentId, Disposition, DropReason, MadAgent, RequestId, SendError, Transmit};
use crate::MadAddress;
use crate::rmpp::Ack;

/// A single MAD that waits to be sent.
#[derive(Debug)]
pub(super) enum Queued {
    /// A request.
    Request(RequestId),
    /// Something that expects no answer.
    Mad {
        agent: AgentId,
        transmit: Box<Transmit>,
    },
}

/// A sender that has segments to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SenderRef {
    /// Of a request.
    Request(RequestId),
    /// Of a response.
    Response(TransferKey),
}

impl MadAgent {
    /// The next MAD to send; the time limits of what it belongs to run from here.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let transmit = self
            .control
            .pop_front()
            .or_else(|| self.next_single(now))
            .or_else(|| self.next_segment(now))?;
        self.counters.sent += 1;
        Some(transmit)
    }

    fn next_single(&mut self, now: Instant) -> Option<Transmit> {
        let id = match self.queue.pop_front()? {
            Queued::Mad { transmit, .. } => return Some(*transmit),
            Queued::Request(id) => id,
        };
        let transaction = self.transactions.get_mut(&id)?;
        transaction.phase = Phase::Single { queued: false };
        transaction.transmissions += 1;
        let transmit = Transmit {
            to: transaction.to,
            mad: *transaction.message.mad(),
        };
        let deadline = now + transaction.policy.timeout;
        rearm(
            &mut self.timers,
            &mut transaction.timer,
            deadline,
            Timer::Request(id),
        );
        Some(transmit)
    }

    fn next_segment(&mut self, now: Instant) -> Option<Transmit> {
        let resp_time = self.config.rmpp.resp_time;
        while let Some(sender) = self.round.pop_front() {
            let (to, message, sending) = match sender {
                SenderRef::Request(id) => match self.transactions.get_mut(&id) {
                    Some(Transaction {
                        to,
                        message,
                        phase: Phase::Sending(sending),
                        ..
                    }) => (*to, message, sending),
                    _ => continue,
                },
                SenderRef::Response(key) => match self.outgoing.get_mut(&key) {
                    Some(Outgoing {
                        to,
                        message,
                        sending,
                        ..
                    }) => (*to, message, sending),
                    None => continue,
                },
            };
            sending.in_round = false;
            let Some(number) = sending.sender.next_segment() else {
                continue;
            };
            let mad = message.segment(number, resp_time);
            self.enter_round(sender);
            self.restart_ack_timer(now, sender);
            return Some(Transmit { to, mad });
        }
        None
    }

    /// Lets a sender take its turns, if it has something to send.
    pub(super) fn enter_round(&mut self, sender: SenderRef) {
        let sending = match sender {
            SenderRef::Request(id) => match self.transactions.get_mut(&id).map(|t| &mut t.phase) {
                Some(Phase::Sending(sending)) => Some(sending),
                _ => None,
            },
            SenderRef::Response(key) => self.outgoing.get_mut(&key).map(|t| &mut t.sending),
        };
        if let Some(sending) = sending
            && !sending.in_round
            && sending.sender.can_send()
        {
            sending.in_round = true;
            self.round.push_back(sender);
        }
    }

    /// Takes a sender that ends out of the round.
    pub(super) fn leave_round(&mut self, sender: &SenderRef) {
        self.round.retain(|waiting| waiting != sender);
    }

    /// Starts the time that a sender's receiver has for its next ACK.
    pub(super) fn restart_ack_timer(&mut self, now: Instant, sender: SenderRef) {
        match sender {
            SenderRef::Request(id) => {
                let Some(transaction) = self.transactions.get(&id) else {
                    return;
                };
                let deadline = now + self.request_timeout(transaction);
                if let Some(transaction) = self.transactions.get_mut(&id) {
                    rearm(
                        &mut self.timers,
                        &mut transaction.timer,
                        deadline,
                        Timer::Request(id),
                    );
                }
            }
            SenderRef::Response(key) => {
                if let Some(outgoing) = self.outgoing.get_mut(&key) {
                    let deadline = now + outgoing.sending.ack_timeout(&self.config.rmpp);
                    rearm(
                        &mut self.timers,
                        &mut outgoing.timer,
                        deadline,
                        Timer::Outgoing(key),
                    );
                }
            }
        }
    }

    /// How long a request waits in its present phase. While RMPP carries it, no longer for an ACK
    /// than a response's sender would.
    pub(super) fn request_timeout(&self, transaction: &Transaction) -> Duration {
        match &transaction.phase {
            Phase::Sending(sending) => {
                let ack_timeout = sending.ack_timeout(&self.config.rmpp);
                transaction.policy.timeout.min(ack_timeout)
            }
            _ => transaction.policy.timeout,
        }
    }

    pub(super) fn enqueue(
        &mut self,
        agent: AgentId,
        to: MadAddress,
        mad: Mad,
    ) -> Result<(), SendError> {
        if self.queue.len() >= self.config.max_outstanding {
            return Err(SendError::TooMany);
        }
        self.queue.push_back(Queued::Mad {
            agent,
            transmit: Box::new(Transmit { to, mad }),
        });
        Ok(())
    }

    /// Queues an acknowledgement, refusal or the end of a transfer, which no retry covers: if there
    /// is no room the peer will repeat what caused it.
    pub(super) fn send_control(&mut self, to: MadAddress, mad: Mad) -> Option<Disposition> {
        if self.control.len() >= self.config.max_pending_control {
            return Some(self.counters.drop_mad(DropReason::ControlQueueFull));
        }
        self.control.push_back(Transmit { to, mad });
        None
    }

    /// Sends an RMPP header under these headers.
    pub(super) fn send_rmpp(
        &mut self,
        to: MadAddress,
        mut headers: Mad,
        mut rmpp: RmppHeader,
    ) -> Option<Disposition> {
        rmpp.set_resp_time(self.config.rmpp.resp_time);
        headers.view_mut::<RmppMad>().rmpp = rmpp;
        self.send_control(to, headers)
    }

    /// Acknowledges DATA that had these headers.
    pub(super) fn send_ack(&mut self, to: MadAddress, data: &Mad, ack: Ack) -> Option<Disposition> {
        let rmpp = RmppHeader::ack(ack.segment, ack.window_last);
        self.send_rmpp(to, against(data), rmpp)
    }

    /// Tells the receiver of a request under RMPP that it ends.
    pub(super) fn end_sent_request(&mut self, transaction: &Transaction, status: RmppStatus) {
        self.counters.transfers_ended += 1;
        let headers = without_data(*transaction.message.mad());
        let rmpp = RmppHeader::end(RmppType::ABORT, status);
        self.send_rmpp(transaction.to, headers, rmpp);
    }

    /// Ends a response's transfer and tells its receiver.
    pub(super) fn end_outgoing(
        &mut self,
        key: &TransferKey,
        kind: RmppType,
        status: RmppStatus,
    ) -> Option<Outgoing> {
        let outgoing = self.take_outgoing(key)?;
        self.counters.transfers_ended += 1;
        let headers = without_data(*outgoing.message.mad());
        self.send_rmpp(outgoing.to, headers, RmppHeader::end(kind, status));
        Some(outgoing)
    }
}
