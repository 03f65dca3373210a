//! What a received MAD does.

use ib_vtime::Instant;
use ib_wire::Qpn;
use ib_wire::mad::{AttributeId, BASE_VERSION, Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::ClassPortInfo;
use ib_wire::rmpp::{RmppHeader, RmppMad};
use ib_wire::smp::DirectedRouteSmp;
use zerocopy::IntoBytes;

use super::registration::Route;
use super::transfer::{BusyAnswer, Phase, Transaction};
use super::{AgentEvent, AgentId, Disposition, DropReason, MadAgent, RequestId};
use crate::message::{class_data, expects_answer, segment_layout};
use crate::{MadAddress, Message};

impl MadAgent {
    /// Takes a received MAD.
    pub fn handle_mad(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> Disposition {
        self.counters.received += 1;
        let header = &mad.header;
        if !self.carries(header.mgmt_class) {
            return self.counters.drop_mad(DropReason::WrongQueuePair);
        }
        let has_rmpp = segment_layout(header.mgmt_class).is_some();
        if header.base_version != BASE_VERSION {
            self.refuse(from, mad, MadStatus::BAD_VERSION, DropReason::BadVersion)
        } else if has_rmpp && takes_part_in_rmpp(&mad.view::<RmppMad>().rmpp) {
            match self.taker_of_packets(mad) {
                Some(agent) => self.handle_packet(agent, from, mad),
                None => self.handle_rmpp(now, from, mad),
            }
        } else if header.method.is_answer() {
            self.handle_answer(from, mad)
        } else {
            self.handle_request(from, mad)
        }
    }

    /// Whether MADs of the class travel on this queue pair (IBA 13.5.1).
    pub(super) fn carries(&self, class: MgmtClass) -> bool {
        class.is_smp() == (self.config.qpn == Qpn::SMI)
    }

    /// The registration that an RMPP packet is for, if it takes packets one by one.
    fn taker_of_packets(&self, mad: &Mad) -> Option<AgentId> {
        let (agent, registration) = if mad.header.method.is_response() {
            self.registry.asker(mad.header.tid)?
        } else {
            match self.registry.route(mad) {
                Route::Agent(agent) => (agent, self.registry.get(agent)?),
                _ => return None,
            }
        };
        registration.takes_packets.then_some(agent)
    }

    /// Hands a packet to who does RMPP itself. The first one that answers a request ends it; the
    /// others are given all the same, since only the taker knows what they belong to.
    fn handle_packet(&mut self, agent: AgentId, from: &MadAddress, mad: &Mad) -> Disposition {
        let message = Message::single(*mad);
        if mad.header.method.is_response()
            && let Ok(request) = self.match_answer(from, mad)
        {
            return self.complete_request(request, from, message);
        }
        self.deliver_request(agent, from, message)
    }

    fn handle_answer(&mut self, from: &MadAddress, mad: &Mad) -> Disposition {
        if let Some(raw) = self.raw_of(mad.header.tid) {
            return self.deliver_request(raw, from, Message::single(*mad));
        }
        let request = match self.match_answer(from, mad) {
            Ok(request) => request,
            Err(reason) => return self.counters.drop_mad(reason),
        };
        let repeats = self.transactions[&request].busy == BusyAnswer::Repeats;
        if repeats && mad.header.status.without_direction() == MadStatus::BUSY {
            return self.counters.drop_mad(DropReason::Busy);
        }
        self.complete_request(request, from, Message::single(*mad))
    }

    /// Ends a request with its answer.
    pub(super) fn complete_request(
        &mut self,
        request: RequestId,
        from: &MadAddress,
        message: Message,
    ) -> Disposition {
        let Some(transaction) = self.take_transaction(request) else {
            return self.counters.drop_mad(DropReason::UnmatchedResponse);
        };
        self.counters.responses += 1;
        self.tell(AgentEvent::Response {
            agent: transaction.agent,
            request,
            from: *from,
            message,
        });
        Disposition::Delivered
    }

    /// The request that a MAD answers, if it fits and the request is still waiting for its answer
    /// to begin.
    pub(super) fn match_answer(
        &self,
        from: &MadAddress,
        mad: &Mad,
    ) -> Result<RequestId, DropReason> {
        let request = RequestId::new(mad.header.tid);
        let transaction = self
            .transactions
            .get(&request)
            .ok_or(DropReason::UnmatchedResponse)?;
        if !transaction.to.is_answered_by(from) {
            return Err(DropReason::ForeignResponse);
        }
        if !answers(transaction, mad) {
            return Err(DropReason::MismatchedResponse);
        }
        // Before its first transmission nothing can answer a request, and once the answer comes
        // in by segments another one is a repetition.
        match transaction.phase {
            _ if !transaction.has_left() => Err(DropReason::UnmatchedResponse),
            Phase::Receiving(_) => Err(DropReason::Repeated),
            _ => Ok(request),
        }
    }

    fn handle_request(&mut self, from: &MadAddress, mad: &Mad) -> Disposition {
        if mad.header.method == Method::GET
            && mad.header.attribute_id == AttributeId::CLASS_PORT_INFO
            && let Some(info) = self.registry.class_port_info(mad)
        {
            return self.answer_class_port_info(from, mad, &info);
        }
        match self.registry.route(mad) {
            Route::Agent(agent) => self.deliver_request(agent, from, Message::single(*mad)),
            unclaimed => match self.registry.raw() {
                Some(raw) => self.deliver_request(raw, from, Message::single(*mad)),
                None => self.refuse_unclaimed(from, mad, unclaimed),
            },
        }
    }

    fn answer_class_port_info(
        &mut self,
        from: &MadAddress,
        mad: &Mad,
        info: &ClassPortInfo,
    ) -> Disposition {
        let mut answer = *mad;
        answer.header.method = Method::GET_RESP;
        answer.header.status = MadStatus::OK;
        let data = &mut answer.data[class_data(mad.header.mgmt_class)..];
        let (front, back) = data.split_at_mut(size_of::<ClassPortInfo>());
        front.copy_from_slice(info.as_bytes());
        back.fill(0);
        self.send_control(*from, answer)
            .unwrap_or(Disposition::Answered)
    }

    /// Refuses a request that nobody takes.
    pub(super) fn refuse_unclaimed(
        &mut self,
        from: &MadAddress,
        mad: &Mad,
        route: Route,
    ) -> Disposition {
        match route {
            Route::NoVersion => {
                self.refuse(from, mad, MadStatus::BAD_VERSION, DropReason::BadVersion)
            }
            Route::NoMethod => self.refuse(
                from,
                mad,
                MadStatus::UNSUPPORTED_METHOD,
                DropReason::UnknownMethod,
            ),
            Route::NoClass if matches!(mad.header.method, Method::GET | Method::SET) => self
                .refuse(
                    from,
                    mad,
                    MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE,
                    DropReason::UnknownClass,
                ),
            Route::NoClass | Route::Agent(_) => self.counters.drop_mad(DropReason::UnknownClass),
        }
    }

    /// Answers a request with an error status, or drops it if its sender expects no answer. SMPs
    /// are never refused here: the port's SMA answers for the port.
    fn refuse(
        &mut self,
        from: &MadAddress,
        mad: &Mad,
        status: MadStatus,
        reason: DropReason,
    ) -> Disposition {
        let header = &mad.header;
        if header.mgmt_class.is_smp() || !expects_answer(header.method) {
            return self.counters.drop_mad(reason);
        }
        let mut answer = *mad;
        answer.header.base_version = BASE_VERSION;
        answer.header.method = header.method.response();
        answer.header.status = status;
        if segment_layout(header.mgmt_class).is_some() {
            answer.view_mut::<RmppMad>().rmpp = RmppHeader::default();
        }
        self.send_control(*from, answer).unwrap_or_else(|| {
            self.counters.refused += 1;
            Disposition::Answered
        })
    }
}

/// Whether a MAD with this RMPP header is part of a transfer.
fn takes_part_in_rmpp(rmpp: &RmppHeader) -> bool {
    rmpp.is_active() && !rmpp.is_unsegmented()
}

/// Whether a MAD with the transaction id of a request is of the kind that answers it.
fn answers(transaction: &Transaction, mad: &Mad) -> bool {
    let request = transaction.message.header();
    let same_attribute = request.attribute_id == mad.header.attribute_id;
    let directed = request.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE;
    request.mgmt_class == mad.header.mgmt_class
        && (!directed || same_route(transaction.message.mad(), mad))
        && mad.header.method == request.method.response()
        && (same_attribute || request.method == Method::GET_MULTI)
}

/// Whether two directed-route SMPs have the same initial path: the answer brings back the route of
/// the request (IBA 14.2.2.4), which tells who answered.
fn same_route(a: &Mad, b: &Mad) -> bool {
    let path = |mad: &Mad| {
        let smp = mad.view::<DirectedRouteSmp>();
        let hops = smp.path()?;
        Some((hops.len(), smp.initial_path))
    };
    match (path(a), path(b)) {
        (Some((hops, of_a)), Some((same, of_b))) => {
            hops == same && of_a[1..=hops] == of_b[1..=hops]
        }
        _ => false,
    }
}
