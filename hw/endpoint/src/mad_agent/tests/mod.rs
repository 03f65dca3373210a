//! Tests of single rules, with two agents that exchange MADs by hand.

use alloc::vec::Vec;

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::rmpp::{RmppMad, RmppStatus, RmppType};
use ib_wire::smp::DirectedRouteSmp;
use ib_wire::{Lid, Tid};

use super::*;

mod program;
mod raw;
mod rmpp;

const ATTRIBUTE: AttributeId = AttributeId::new(0x35);
const POLICY: RetryPolicy = RetryPolicy::new(Duration::from_millis(500), 2);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn mad(class: MgmtClass, method: Method) -> Mad {
    Mad::new(MadHeader::new(class, method, ATTRIBUTE))
}

/// An agent at a LID with one registration for SA traffic.
struct Host {
    agent: MadAgent,
    id: AgentId,
    address: MadAddress,
}

impl Host {
    fn new(lid: u16, methods: &[Method]) -> Self {
        Self::with_config(lid, methods, MadAgentConfig::gsi(u64::from(lid)))
    }

    fn with_config(lid: u16, methods: &[Method], config: MadAgentConfig) -> Self {
        let mut agent = MadAgent::new(config);
        let registration = Registration::new(MgmtClass::SUBN_ADM, MethodSet::of(methods));
        let id = agent.register(registration).unwrap();
        Self {
            agent,
            id,
            address: MadAddress::gsi(Lid::new(lid)),
        }
    }

    fn request(&mut self, to: &Host, method: Method) -> RequestId {
        let message = Message::single(mad(MgmtClass::SUBN_ADM, method));
        self.agent
            .send_request(at(0), self.id, to.address, message, POLICY)
            .unwrap()
    }

    fn transmit(&mut self, now: u64) -> Option<Mad> {
        self.agent.poll_transmit(at(now)).map(|t| t.mad)
    }

    fn event(&mut self) -> Option<AgentEvent> {
        self.agent.poll_event()
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.agent.counters().dropped(reason)
    }

    /// Answers every request that came in with this many bytes under RMPP.
    fn respond_rmpp(&mut self, now: u64, len: usize) -> Option<TransferId> {
        let Some(AgentEvent::Request { from, message, .. }) = self.event() else {
            panic!("no request came in");
        };
        let mut head = *message.mad();
        head.header.method = head.header.method.response();
        let answer = Message::rmpp(head, payload(len)).unwrap();
        self.agent.respond(at(now), self.id, from, answer).unwrap()
    }
}

fn payload(len: usize) -> Vec<u8> {
    (0_u8..251).cycle().take(len).collect()
}

fn client_and_server() -> (Host, Host) {
    let methods = [Method::GET, Method::GET_TABLE, Method::GET_MULTI];
    (Host::new(1, &[Method::REPORT]), Host::new(2, &methods))
}

/// Moves MADs between two hosts until neither has more to send.
fn exchange(now: u64, a: &mut Host, b: &mut Host) {
    loop {
        let mut moved = false;
        while let Some(mad) = a.transmit(now) {
            b.agent.handle_mad(at(now), &a.address, &mad);
            moved = true;
        }
        while let Some(mad) = b.transmit(now) {
            a.agent.handle_mad(at(now), &b.address, &mad);
            moved = true;
        }
        if !moved {
            return;
        }
    }
}

/// Runs both hosts' timers up to a point in time, exchanging MADs.
fn run_until(end: u64, a: &mut Host, b: &mut Host) {
    loop {
        let next = [a.agent.poll_timeout(), b.agent.poll_timeout()];
        let Some(next) = next.into_iter().flatten().min().filter(|t| *t <= at(end)) else {
            return;
        };
        a.agent.handle_timeout(next);
        b.agent.handle_timeout(next);
        exchange(next.as_millis(), a, b);
    }
}

fn response_to(request: &Mad) -> Mad {
    let mut response = *request;
    response.header.method = request.header.method.response();
    response
}

#[test]
fn an_answer_with_the_whole_transaction_id_ends_the_request() {
    let (mut client, server) = client_and_server();
    let request = client.request(&server, Method::GET);
    let sent = client.transmit(0).unwrap();
    assert_eq!(sent.header.tid, request.tid());
    let mut almost = response_to(&sent);
    almost.header.tid = Tid::new(request.tid().get() ^ 1 << 63);
    let from = server.address;
    assert_eq!(
        client.agent.handle_mad(at(1), &from, &almost),
        Disposition::Dropped(DropReason::UnmatchedResponse)
    );
    let answer = response_to(&sent);
    assert_eq!(
        client.agent.handle_mad(at(1), &from, &answer),
        Disposition::Delivered
    );
    assert!(
        matches!(client.event(), Some(AgentEvent::Response { request: of, .. }) if of == request)
    );
    assert!(client.agent.sizes().is_empty());
    assert_eq!(
        client.agent.handle_mad(at(1), &from, &answer),
        Disposition::Dropped(DropReason::UnmatchedResponse)
    );
}

#[test]
fn answers_of_another_kind_or_from_elsewhere_are_dropped() {
    let (mut client, server) = client_and_server();
    client.request(&server, Method::GET);
    let sent = client.transmit(0).unwrap();
    let answer = response_to(&sent);
    let mut drop_of = |from: MadAddress, mad: Mad| client.agent.handle_mad(at(1), &from, &mad);

    let foreign = Disposition::Dropped(DropReason::ForeignResponse);
    assert_eq!(drop_of(MadAddress::gsi(Lid::new(3)), answer), foreign);
    let other_qp = MadAddress {
        qpn: ib_wire::Qpn::from_low_bits(7),
        ..server.address
    };
    assert_eq!(drop_of(other_qp, answer), foreign);

    let mismatched = Disposition::Dropped(DropReason::MismatchedResponse);
    let mut changed = answer;
    changed.header.method = Method::GET_TABLE_RESP;
    assert_eq!(drop_of(server.address, changed), mismatched);
    changed = answer;
    changed.header.attribute_id = AttributeId::new(0x38);
    assert_eq!(drop_of(server.address, changed), mismatched);
    changed = answer;
    changed.header.mgmt_class = MgmtClass::PERF;
    assert_eq!(drop_of(server.address, changed), mismatched);
    changed = answer;
    changed.header.mgmt_class = MgmtClass::SUBN_LID_ROUTED;
    assert_eq!(
        drop_of(server.address, changed),
        Disposition::Dropped(DropReason::WrongQueuePair)
    );
    assert_eq!(client.agent.sizes().requests, 1);
}

#[test]
fn an_answer_before_the_request_left_is_dropped() {
    let (mut client, server) = client_and_server();
    let request = client.request(&server, Method::GET);
    let mut forged = mad(MgmtClass::SUBN_ADM, Method::GET_RESP);
    forged.header.tid = request.tid();
    assert_eq!(
        client.agent.handle_mad(at(0), &server.address, &forged),
        Disposition::Dropped(DropReason::UnmatchedResponse)
    );
}

#[test]
fn an_unanswered_request_is_sent_again_with_the_same_id_and_then_times_out() {
    let (mut client, server) = client_and_server();
    let request = client.request(&server, Method::GET);
    let mut sent_at = Vec::new();
    for now in (0..=2000).step_by(100) {
        client.agent.handle_timeout(at(now));
        while let Some(mad) = client.transmit(now) {
            assert_eq!(mad.header.tid, request.tid());
            sent_at.push(now);
        }
    }
    assert_eq!(sent_at, [0, 500, 1000]);
    assert!(matches!(
        client.event(),
        Some(AgentEvent::RequestFailed {
            reason: TransferError::TimedOut { transmissions: 3 },
            ..
        })
    ));
    assert!(client.agent.sizes().is_empty());
}

#[test]
fn a_busy_answer_leaves_the_request_to_its_retries() {
    let (mut client, server) = client_and_server();
    client.request(&server, Method::GET);
    let mut busy = response_to(&client.transmit(0).unwrap());
    busy.header.status = MadStatus::BUSY;
    client.agent.handle_mad(at(1), &server.address, &busy);
    assert_eq!(client.dropped(DropReason::Busy), 1);
    client.agent.handle_timeout(at(500));
    assert!(client.transmit(500).is_some());
}

#[test]
fn a_cancelled_request_leaves_nothing_and_its_late_answer_is_dropped() {
    let (mut client, server) = client_and_server();
    let request = client.request(&server, Method::GET);
    let sent = client.transmit(0).unwrap();
    assert!(client.agent.cancel(request));
    assert!(!client.agent.cancel(request));
    assert!(client.agent.sizes().is_empty());
    client
        .agent
        .handle_mad(at(1), &server.address, &response_to(&sent));
    assert_eq!(client.dropped(DropReason::UnmatchedResponse), 1);
}

#[test]
fn requests_that_nobody_takes_are_refused_with_a_status() {
    let mut server = Host::new(2, &[Method::GET]);
    let from = MadAddress::gsi(Lid::new(1));
    let mut refusal = |class, method, version: Option<u8>| {
        let mut request = mad(class, method);
        request.header.tid = Tid::new(7);
        request.header.class_version = version.unwrap_or(request.header.class_version);
        server.agent.handle_mad(at(0), &from, &request);
        server.transmit(0).map(|mad| {
            assert_eq!(mad.header.tid, Tid::new(7));
            (mad.header.method, mad.header.status)
        })
    };
    let sa = MgmtClass::SUBN_ADM;
    assert_eq!(
        refusal(sa, Method::GET, Some(9)),
        Some((Method::GET_RESP, MadStatus::BAD_VERSION))
    );
    assert_eq!(
        refusal(sa, Method::SET, None),
        Some((Method::GET_RESP, MadStatus::UNSUPPORTED_METHOD))
    );
    assert_eq!(
        refusal(sa, Method::DELETE, None),
        Some((Method::DELETE_RESP, MadStatus::UNSUPPORTED_METHOD))
    );
    assert_eq!(
        refusal(MgmtClass::PERF, Method::GET, None),
        Some((Method::GET_RESP, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE))
    );
    assert_eq!(refusal(sa, Method::SEND, None), None);
    assert_eq!(refusal(sa, Method::TRAP, None), None);
    assert_eq!(refusal(MgmtClass::PERF, Method::GET_TABLE, None), None);
}

#[test]
fn an_agent_on_qp0_never_refuses() {
    let mut agent = MadAgent::new(MadAgentConfig::smi(1));
    let from = MadAddress::smi(Lid::new(1));
    let request = mad(MgmtClass::SUBN_LID_ROUTED, Method::GET);
    assert_eq!(
        agent.handle_mad(at(0), &from, &request),
        Disposition::Dropped(DropReason::UnknownClass)
    );
    assert_eq!(
        agent.register(Registration::new(MgmtClass::PERF, MethodSet::NONE)),
        Err(RegisterError::WrongQueuePair(MgmtClass::PERF))
    );
}

#[test]
fn requests_beyond_the_queue_are_dropped_and_counted() {
    let config = MadAgentConfig {
        max_pending_requests: 2,
        max_pending_control: 1,
        ..MadAgentConfig::gsi(1)
    };
    let mut server = Host::with_config(2, &[Method::GET], config);
    let from = MadAddress::gsi(Lid::new(1));
    for _ in 0..3 {
        let request = mad(MgmtClass::SUBN_ADM, Method::GET);
        server.agent.handle_mad(at(0), &from, &request);
        let unknown = mad(MgmtClass::SUBN_ADM, Method::SET);
        server.agent.handle_mad(at(0), &from, &unknown);
    }
    assert_eq!(server.dropped(DropReason::EventQueueFull), 1);
    assert_eq!(server.dropped(DropReason::ControlQueueFull), 2);
    server.event().unwrap();
    let request = mad(MgmtClass::SUBN_ADM, Method::GET);
    assert_eq!(
        server.agent.handle_mad(at(0), &from, &request),
        Disposition::Delivered
    );
}

#[test]
fn a_second_answer_of_one_mad_does_not_strand_a_response_that_waits_for_its_turn() {
    let (mut client, mut server) = client_and_server();
    let head = mad(MgmtClass::SUBN_ADM, Method::GET_MULTI);
    let message = Message::rmpp(head, payload(100)).unwrap();
    client
        .agent
        .send_request(at(0), client.id, server.address, message, POLICY)
        .unwrap();
    let data = client.transmit(0).unwrap();
    server.agent.handle_mad(at(0), &client.address, &data);
    let transfer = server.respond_rmpp(0, 300).unwrap();
    let single = Message::single(response_to(&data));
    let again = server
        .agent
        .respond(at(0), server.id, client.address, single);
    assert_eq!(again, Ok(Some(transfer)));
    run_until(40_000, &mut client, &mut server);
    assert!(matches!(client.event(), Some(AgentEvent::Response { .. })));
    while server.event().is_some() {}
    assert!(server.agent.sizes().is_empty());
}

#[test]
fn class_port_info_is_answered_for_a_registered_class_in_its_own_place() {
    let mut agent = MadAgent::new(MadAgentConfig::gsi(1));
    let from = MadAddress::gsi(Lid::new(1));
    for (class, offset) in [
        (MgmtClass::SUBN_ADM, 56),
        (MgmtClass::COM_MGT, 24),
        (MgmtClass::PERF, 64),
    ] {
        let id = agent
            .register(Registration::new(class, MethodSet::NONE))
            .unwrap();
        let mut get = mad(class, Method::GET);
        get.header.attribute_id = AttributeId::CLASS_PORT_INFO;
        assert_eq!(agent.handle_mad(at(0), &from, &get), Disposition::Answered);
        let answer = agent.poll_transmit(at(0)).unwrap();
        assert_eq!(answer.to, from);
        assert_eq!(answer.mad.header.method, Method::GET_RESP);
        assert_eq!(
            answer.mad.data[offset - 24..][..2],
            [1, class.supported_version()]
        );
        agent.unregister(id);
    }
}

#[test]
fn a_registration_may_answer_class_port_info_itself() {
    let mut agent = MadAgent::new(MadAgentConfig::gsi(1));
    let registration = Registration::new(MgmtClass::PERF, MethodSet::of(&[Method::GET]));
    agent
        .register(registration.with_class_port_info(None))
        .unwrap();
    let mut get = mad(MgmtClass::PERF, Method::GET);
    get.header.attribute_id = AttributeId::CLASS_PORT_INFO;
    let from = MadAddress::gsi(Lid::new(1));
    assert_eq!(agent.handle_mad(at(0), &from, &get), Disposition::Delivered);
}

#[test]
fn an_smp_answer_must_bring_back_the_route_of_its_request() {
    let mut agent = MadAgent::new(MadAgentConfig::smi(1));
    let id = agent
        .register(Registration::new(
            MgmtClass::SUBN_DIRECTED_ROUTE,
            MethodSet::NONE,
        ))
        .unwrap();
    let mut smp = mad(MgmtClass::SUBN_DIRECTED_ROUTE, Method::GET);
    assert!(smp.view_mut::<DirectedRouteSmp>().set_path(&[1, 4]));
    let to = MadAddress::directed();
    agent
        .send_request(at(0), id, to, Message::single(smp), POLICY)
        .unwrap();
    let sent = agent.poll_transmit(at(0)).unwrap().mad;
    let right = crate::smi::answer(&sent);
    let mut wrong = right;
    wrong.view_mut::<DirectedRouteSmp>().initial_path[2] = 5;
    let from = MadAddress::smi(Lid::PERMISSIVE);
    assert_eq!(
        agent.handle_mad(at(1), &from, &wrong),
        Disposition::Dropped(DropReason::MismatchedResponse)
    );
    assert_eq!(
        agent.handle_mad(at(1), &from, &right),
        Disposition::Delivered
    );
}
