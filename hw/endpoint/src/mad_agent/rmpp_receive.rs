//! What a received RMPP packet does.

use ib_vtime::Instant;
use ib_wire::mad::{Mad, Method};
use ib_wire::rmpp::{RMPP_VERSION, RmppHeader, RmppMad, RmppStatus, RmppType};

use super::registration::Route;
use super::transfer::{
    Completed, Incoming, Outgoing, Phase, Timer, TransferKey, Turn, against, disarm, rearm,
    without_data,
};
use super::transmit::SenderRef;
use super::{AgentEvent, Disposition, DropReason, MadAgent, RequestId, TransferError};
use crate::MadAddress;
use crate::message::{expects_answer, segment_layout};
use crate::rmpp::{AckOutcome, Received, Receiver};

impl MadAgent {
    pub(super) fn handle_rmpp(
        &mut self,
        now: Instant,
        from: &MadAddress,
        mad: &Mad,
    ) -> Disposition {
        let rmpp = mad.view::<RmppMad>().rmpp;
        if rmpp.version != RMPP_VERSION {
            return self.violation(from, mad, RmppStatus::UNSUPPORTED_VERSION);
        }
        match rmpp.rmpp_type {
            RmppType::DATA | RmppType::ACK if rmpp.status != RmppStatus::NORMAL => {
                self.violation(from, mad, RmppStatus::ILLEGAL_STATUS)
            }
            RmppType::DATA => self.handle_data(now, from, mad),
            RmppType::ACK => self.handle_ack(now, from, mad, &rmpp),
            RmppType::STOP | RmppType::ABORT => self.handle_end(from, mad, rmpp.status),
            _ => self.violation(from, mad, RmppStatus::BAD_TYPE),
        }
    }

    /// Ends whatever transfer a malformed packet belongs to, in either direction; one that belongs
    /// to none is dropped without an answer.
    fn violation(&mut self, from: &MadAddress, mad: &Mad, status: RmppStatus) -> Disposition {
        let data = TransferKey::of_data(from, mad);
        if self.incoming.contains_key(&data) {
            return self.reject_incoming(&data, RmppType::ABORT, status);
        }
        if let Some(sender) = self.sender_of(from, mad) {
            return self.reject_sender(sender, status);
        }
        self.counters.drop_mad(DropReason::UnknownTransfer)
    }

    fn handle_data(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> Disposition {
        let key = TransferKey::of_data(from, mad);
        if let Some(completed) = self.completed.get(&key) {
            let (headers, ack) = (completed.headers, completed.ack);
            return self
                .send_ack(*from, &headers, ack)
                .unwrap_or(Disposition::Absorbed);
        }
        if !self.incoming.contains_key(&key)
            && let Err(disposition) = self.begin_incoming(&key, from, mad)
        {
            return disposition;
        }
        self.feed_incoming(now, &key, mad)
    }

    /// Starts to receive a message, if somebody wants it.
    fn begin_incoming(
        &mut self,
        key: &TransferKey,
        from: &MadAddress,
        mad: &Mad,
    ) -> Result<(), Disposition> {
        let Some(layout) = segment_layout(key.class) else {
            return Err(self.counters.drop_mad(DropReason::UnknownTransfer));
        };
        let is_first = mad.view::<RmppMad>().rmpp.segment_number.get() == 1;
        let (agent, request) = if let Some(raw) = self.raw_of(key.tid)
            && key.method.is_response()
        {
            (raw, None)
        } else if key.method.is_response() {
            let request = match self.match_answer(from, mad) {
                Ok(request) => request,
                Err(reason) => return Err(self.counters.drop_mad(reason)),
            };
            (self.transactions[&request].agent, Some(request))
        } else {
            match self.registry.route(mad) {
                Route::Agent(agent) => (agent, None),
                _ if !is_first => {
                    return Err(self.counters.drop_mad(DropReason::UnknownTransfer));
                }
                unclaimed => return Err(self.refuse_unclaimed(from, mad, unclaimed)),
            }
        };
        if !is_first {
            return Err(self.counters.drop_mad(DropReason::UnknownTransfer));
        }
        let unsolicited = || {
            self.incoming
                .values()
                .filter(|t| t.request.is_none())
                .count()
        };
        if request.is_none() && unsolicited() >= self.config.rmpp.max_unsolicited {
            let stop = RmppHeader::end(RmppType::STOP, RmppStatus::RESOURCES_EXHAUSTED);
            self.counters.transfers_ended += 1;
            self.send_rmpp(*from, against(mad), stop);
            return Err(self.counters.drop_mad(DropReason::NoResources));
        }
        if let Some(request) = request {
            self.begin_receiving(request, key);
        }
        let rmpp = &self.config.rmpp;
        let receiver = Receiver::new(*mad, layout, rmpp.window, rmpp.max_message);
        let incoming = Incoming {
            agent,
            from: *from,
            request,
            receiver,
            timer: None,
        };
        self.incoming.insert(*key, incoming);
        Ok(())
    }

    /// The answer to a request begins: from now on the transfer's own timer counts.
    fn begin_receiving(&mut self, request: RequestId, key: &TransferKey) {
        self.leave_round(&SenderRef::Request(request));
        if let Some(transaction) = self.transactions.get_mut(&request) {
            disarm(&mut self.timers, &mut transaction.timer);
            if matches!(transaction.phase, Phase::Single { queued: true }) {
                self.queue
                    .retain(|q| !matches!(q, super::Queued::Request(id) if *id == request));
            }
            transaction.phase = Phase::Receiving(*key);
        }
    }

    fn feed_incoming(&mut self, now: Instant, key: &TransferKey, mad: &Mad) -> Disposition {
        let Some(incoming) = self.incoming.get_mut(key) else {
            return self.counters.drop_mad(DropReason::UnknownTransfer);
        };
        let (held, in_order) = (incoming.receiver.buffered(), incoming.receiver.in_order());
        let received = incoming.receiver.receive(mad);
        self.buffered = self.buffered - held + incoming.receiver.buffered();
        if incoming.receiver.in_order() > in_order {
            let deadline = now + self.config.rmpp.receive_timeout;
            rearm(
                &mut self.timers,
                &mut incoming.timer,
                deadline,
                Timer::Incoming(*key),
            );
        }
        let (to, headers) = (incoming.from, *incoming.receiver.first());
        match received {
            Received::Violation(status) => self.reject_incoming(key, RmppType::ABORT, status),
            Received::TooLong => {
                self.reject_incoming(key, RmppType::STOP, RmppStatus::RESOURCES_EXHAUSTED)
            }
            _ if self.buffered > self.config.rmpp.max_buffered => {
                self.reject_incoming(key, RmppType::STOP, RmppStatus::RESOURCES_EXHAUSTED)
            }
            Received::Kept => Disposition::Absorbed,
            Received::Repeated => self.counters.drop_mad(DropReason::Repeated),
            Received::OutsideWindow => self.counters.drop_mad(DropReason::OutsideWindow),
            Received::Acknowledge(ack) => self
                .send_ack(to, &headers, ack)
                .unwrap_or(Disposition::Absorbed),
            Received::Complete(ack) => {
                self.send_ack(to, &headers, ack);
                self.complete_incoming(now, key, ack)
            }
        }
    }

    fn complete_incoming(
        &mut self,
        now: Instant,
        key: &TransferKey,
        ack: crate::rmpp::Ack,
    ) -> Disposition {
        let Some(incoming) = self.take_incoming(key) else {
            return self.counters.drop_mad(DropReason::UnknownTransfer);
        };
        let dual_sided = incoming.request.is_none() && expects_answer(key.method);
        let mut completed = Completed {
            agent: incoming.agent,
            from: incoming.from,
            headers: without_data(*incoming.receiver.first()),
            ack,
            turn: Turn::None,
            retention: None,
            turn_timer: None,
        };
        let rmpp = &self.config.rmpp;
        // While the turn-around is awaited the ACK must stay repeatable.
        let awaited = rmpp.ack_timeout * (u32::from(rmpp.resends) + 2);
        let retention = if dual_sided {
            rmpp.retention.max(awaited)
        } else {
            rmpp.retention
        };
        rearm(
            &mut self.timers,
            &mut completed.retention,
            now + retention,
            Timer::Retention(*key),
        );
        if dual_sided {
            completed.turn = Turn::Awaited {
                repeats_left: rmpp.resends,
            };
            rearm(
                &mut self.timers,
                &mut completed.turn_timer,
                now + rmpp.ack_timeout,
                Timer::Turn(*key),
            );
        }
        let max_retained = rmpp.max_retained;
        self.completed.insert(*key, completed);
        if self.completed.len() > max_retained {
            self.forget_oldest_completed();
        }
        let (agent, from, request) = (incoming.agent, incoming.from, incoming.request);
        match (incoming.receiver.into_message(), request) {
            (Some(message), Some(request)) => self.complete_request(request, &from, message),
            (Some(message), None) => self.deliver_request(agent, &from, message),
            (None, _) => self.counters.drop_mad(DropReason::UnknownTransfer),
        }
    }

    fn handle_ack(
        &mut self,
        now: Instant,
        from: &MadAddress,
        mad: &Mad,
        rmpp: &RmppHeader,
    ) -> Disposition {
        let (segment, window) = (rmpp.segment_number.get(), rmpp.data2.get());
        if segment == 0
            && let Some(disposition) = self.take_turn(now, from, mad, window)
        {
            return disposition;
        }
        let Some(sender) = self.sender_of(from, mad) else {
            return self.counters.drop_mad(DropReason::UnknownTransfer);
        };
        let sending = match sender {
            SenderRef::Request(id) => match self.transactions.get_mut(&id).map(|t| &mut t.phase) {
                Some(Phase::Sending(sending)) => sending,
                Some(Phase::TurnedAround) => {
                    // Our turn-around was lost.
                    self.turn_around(id);
                    return Disposition::Absorbed;
                }
                _ => return self.counters.drop_mad(DropReason::Repeated),
            },
            SenderRef::Response(key) => match self.outgoing.get_mut(&key) {
                Some(outgoing) => &mut outgoing.sending,
                None => return self.counters.drop_mad(DropReason::UnknownTransfer),
            },
        };
        sending.note_peer_time(rmpp);
        match sending.sender.acknowledge(segment, window) {
            AckOutcome::Stale => self.counters.drop_mad(DropReason::Repeated),
            AckOutcome::Violation(status) => self.reject_sender(sender, status),
            AckOutcome::Progress => {
                self.restart_ack_timer(now, sender);
                self.enter_round(sender);
                Disposition::Absorbed
            }
            AckOutcome::Complete => {
                self.sender_complete(now, sender);
                Disposition::Absorbed
            }
        }
    }

    fn sender_complete(&mut self, now: Instant, sender: SenderRef) {
        self.leave_round(&sender);
        match sender {
            SenderRef::Request(id) => {
                if let Some(transaction) = self.transactions.get_mut(&id) {
                    transaction.phase = Phase::TurnedAround;
                    transaction.retries_left = transaction.policy.retries;
                    transaction.transmissions = 0;
                    let deadline = now + transaction.policy.timeout;
                    rearm(
                        &mut self.timers,
                        &mut transaction.timer,
                        deadline,
                        Timer::Request(id),
                    );
                }
                self.turn_around(id);
            }
            SenderRef::Response(key) => {
                if let Some(outgoing) = self.take_outgoing(&key) {
                    self.finish_outgoing(&outgoing, Ok(()));
                }
            }
        }
    }

    /// The requester of a dual-sided exchange gives us the turn. `None` if the ACK of segment 0 is
    /// not a turn-around.
    fn take_turn(
        &mut self,
        now: Instant,
        from: &MadAddress,
        mad: &Mad,
        window: u32,
    ) -> Option<Disposition> {
        let key = TransferKey::of_data(from, mad);
        let completed = self.completed.get_mut(&key)?;
        if !matches!(completed.turn, Turn::Awaited { .. }) {
            return Some(self.counters.drop_mad(DropReason::Repeated));
        }
        disarm(&mut self.timers, &mut completed.turn_timer);
        let window = window.max(1);
        completed.turn = Turn::Seen { window };
        if let Some(response) = self.response_to(&key) {
            if let Some(outgoing) = self.outgoing.get_mut(&response) {
                outgoing.sending.sender.open(window);
            }
            self.restart_ack_timer(now, SenderRef::Response(response));
            self.enter_round(SenderRef::Response(response));
        }
        Some(Disposition::Absorbed)
    }

    fn handle_end(&mut self, from: &MadAddress, mad: &Mad, status: RmppStatus) -> Disposition {
        let error = TransferError::EndedByPeer(status);
        let data = TransferKey::of_data(from, mad);
        if let Some(incoming) = self.take_incoming(&data) {
            if let Some(request) = incoming.request {
                self.fail_request(request, error);
            }
            return Disposition::Absorbed;
        }
        match self.sender_of(from, mad) {
            Some(SenderRef::Request(id)) => self.fail_request(id, error),
            Some(SenderRef::Response(key)) => {
                if let Some(outgoing) = self.take_outgoing(&key) {
                    self.finish_outgoing(&outgoing, Err(error));
                }
            }
            None => return self.counters.drop_mad(DropReason::UnknownTransfer),
        }
        Disposition::Absorbed
    }

    /// The request or response that a packet from its receiver is about.
    fn sender_of(&self, from: &MadAddress, mad: &Mad) -> Option<SenderRef> {
        if !mad.header.method.is_response() {
            let key = TransferKey::of_answer(from, mad);
            return self
                .outgoing
                .contains_key(&key)
                .then_some(SenderRef::Response(key));
        }
        let id = RequestId::new(mad.header.tid);
        let transaction = self.transactions.get(&id)?;
        let header = transaction.message.header();
        let fits = header.mgmt_class == mad.header.mgmt_class
            && (header.method.get() | Method::RESPONSE_BIT) == mad.header.method.get()
            && transaction.has_left()
            && transaction.to.is_answered_by(from);
        fits.then_some(SenderRef::Request(id))
    }

    fn reject_sender(&mut self, sender: SenderRef, status: RmppStatus) -> Disposition {
        match sender {
            SenderRef::Request(id) => {
                if let Some(transaction) = self.transactions.get(&id)
                    && matches!(transaction.phase, Phase::Sending(_))
                {
                    self.give_up_sending(id, status);
                }
            }
            SenderRef::Response(key) => self.fail_outgoing(&key, status),
        }
        self.counters.drop_mad(DropReason::ProtocolViolation)
    }

    fn reject_incoming(
        &mut self,
        key: &TransferKey,
        kind: RmppType,
        status: RmppStatus,
    ) -> Disposition {
        self.fail_incoming(key, kind, status);
        let reason = if kind == RmppType::STOP {
            DropReason::NoResources
        } else {
            DropReason::ProtocolViolation
        };
        self.counters.drop_mad(reason)
    }

    /// Ends an unfinished message; tells its sender, and whose request it answered.
    pub(super) fn fail_incoming(&mut self, key: &TransferKey, kind: RmppType, status: RmppStatus) {
        if let Some(request) = self.end_incoming(key, kind, status) {
            self.fail_request(request, TransferError::EndedByUs(status));
        }
    }

    /// Ends an unfinished message and tells its sender. Gives the request that it answered.
    pub(super) fn end_incoming(
        &mut self,
        key: &TransferKey,
        kind: RmppType,
        status: RmppStatus,
    ) -> Option<RequestId> {
        let incoming = self.take_incoming(key)?;
        self.counters.transfers_ended += 1;
        let headers = against(incoming.receiver.first());
        self.send_rmpp(incoming.from, headers, RmppHeader::end(kind, status));
        incoming.request
    }

    fn take_incoming(&mut self, key: &TransferKey) -> Option<Incoming> {
        let mut incoming = self.incoming.remove(key)?;
        self.buffered -= incoming.receiver.buffered();
        disarm(&mut self.timers, &mut incoming.timer);
        Some(incoming)
    }

    pub(super) fn take_outgoing(&mut self, key: &TransferKey) -> Option<Outgoing> {
        let mut outgoing = self.outgoing.remove(key)?;
        disarm(&mut self.timers, &mut outgoing.timer);
        self.leave_round(&SenderRef::Response(*key));
        Some(outgoing)
    }

    pub(super) fn finish_outgoing(
        &mut self,
        outgoing: &Outgoing,
        result: Result<(), TransferError>,
    ) {
        self.counters.failures += u64::from(result.is_err());
        self.tell(AgentEvent::TransferEnded {
            agent: outgoing.agent,
            transfer: outgoing.id,
            result,
        });
    }

    pub(super) fn forget_completed(&mut self, key: &TransferKey) {
        let Some(mut completed) = self.completed.remove(key) else {
            return;
        };
        disarm(&mut self.timers, &mut completed.retention);
        disarm(&mut self.timers, &mut completed.turn_timer);
        // A response must not wait for a turn that nobody watches any more.
        if matches!(completed.turn, Turn::Awaited { .. })
            && let Some(response) = self.response_to(key)
        {
            self.fail_outgoing(&response, RmppStatus::TOO_MANY_RETRIES);
        }
    }

    fn forget_oldest_completed(&mut self) {
        let oldest = self
            .completed
            .iter()
            .min_by_key(|(_, completed)| completed.retention)
            .map(|(key, _)| *key);
        if let Some(key) = oldest {
            self.forget_completed(&key);
        }
    }

    /// The received request, kept among the finished messages, that a response answers.
    fn request_of(&self, response: &TransferKey) -> Option<TransferKey> {
        let first = TransferKey {
            method: Method::new(0),
            ..*response
        };
        let last = TransferKey {
            method: Method::new(Method::RESPONSE_BIT - 1),
            ..*response
        };
        self.completed
            .range(first..=last)
            .map(|(key, _)| *key)
            .find(|key| key.method.response() == response.method)
    }

    /// The response under RMPP to a received request.
    pub(super) fn response_to(&self, request: &TransferKey) -> Option<TransferKey> {
        let response = TransferKey {
            method: request.method.response(),
            ..*request
        };
        self.outgoing.contains_key(&response).then_some(response)
    }

    pub(super) fn turn_of(&self, response: &TransferKey) -> Turn {
        self.request_of(response)
            .and_then(|key| self.completed.get(&key))
            .map_or(Turn::None, |completed| completed.turn)
    }

    /// A response that fits into one MAD needs no turn-around.
    pub(super) fn forget_turn(&mut self, response: &TransferKey) {
        if let Some(completed) = self
            .request_of(response)
            .and_then(|key| self.completed.get_mut(&key))
        {
            completed.turn = Turn::None;
            disarm(&mut self.timers, &mut completed.turn_timer);
        }
    }
}
