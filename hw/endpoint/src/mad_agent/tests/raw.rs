//! The raw client, and registrations whose events are kept apart.

use alloc::vec::Vec;

use ib_wire::rmpp::{RmppFlags, RmppHeader};
use ib_wire::sa::SaMad;

use super::*;

const RAW: Tid = Tid::new(RAW_TID | 0x0001_0000_0007);

fn raw(host: &mut Host) -> AgentId {
    host.agent.register_raw().unwrap()
}

fn taken(host: &mut Host, agent: AgentId) -> Option<Message> {
    match host.agent.poll_event_of(agent)? {
        AgentEvent::Request { message, .. } => Some(message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn there_is_one_raw_client_until_it_is_unregistered() {
    let mut host = Host::new(1, &[]);
    let first = raw(&mut host);
    assert_ne!(first, host.id);
    assert_eq!(
        host.agent.register_raw(),
        Err(RegisterError::Conflict(first))
    );
    assert!(host.agent.unregister(first));
    assert!(!host.agent.unregister(first));
    assert_ne!(raw(&mut host), first);
}

#[test]
fn raw_mads_leave_as_they_are_and_answers_with_the_mark_come_back_unjudged() {
    let mut host = Host::new(1, &[]);
    let client = raw(&mut host);
    let mut request = mad(MgmtClass::PERF, Method::GET);
    request.header.tid = RAW;
    let to = MadAddress::gsi(Lid::new(2));
    host.agent.send_raw(client, to, request).unwrap();
    assert_eq!(host.transmit(0), Some(request));
    let mut answer = request;
    answer.header.method = Method::GET_RESP;
    // Even if it comes from elsewhere.
    let from = MadAddress::gsi(Lid::new(3));
    host.agent.handle_mad(at(0), &from, &answer);
    assert_eq!(taken(&mut host, client), Some(Message::single(answer)));

    let own = host.id;
    assert_eq!(
        host.agent.send_raw(own, to, request),
        Err(SendError::UnknownAgent)
    );
    let smp = mad(MgmtClass::SUBN_LID_ROUTED, Method::GET);
    assert_eq!(
        host.agent.send_raw(client, to, smp),
        Err(SendError::WrongClass)
    );
}

#[test]
fn an_answer_with_the_mark_is_unmatched_without_a_raw_client() {
    let mut host = Host::new(1, &[]);
    let mut answer = mad(MgmtClass::PERF, Method::GET_RESP);
    answer.header.tid = RAW;
    let from = MadAddress::gsi(Lid::new(3));
    assert_eq!(
        host.agent.handle_mad(at(0), &from, &answer),
        Disposition::Dropped(DropReason::UnmatchedResponse)
    );
}

#[test]
fn the_raw_client_gets_requests_that_nobody_takes_and_can_decline_them() {
    let mut host = Host::new(1, &[Method::REPORT]);
    let client = raw(&mut host);
    let from = MadAddress::gsi(Lid::new(3));
    let report = mad(MgmtClass::SUBN_ADM, Method::REPORT);
    host.agent.handle_mad(at(0), &from, &report);
    assert_eq!(taken(&mut host, client), None);
    assert!(host.event().is_some());

    let get = mad(MgmtClass::SUBN_ADM, Method::GET);
    host.agent.handle_mad(at(0), &from, &get);
    assert_eq!(taken(&mut host, client), Some(Message::single(get)));
    assert_eq!(host.transmit(0), None);
    assert_eq!(host.agent.decline_raw(&from, &get), Disposition::Answered);
    let refusal = host.transmit(0).unwrap();
    assert_eq!(refusal.header.status, MadStatus::UNSUPPORTED_METHOD);
}

#[test]
fn an_answer_under_rmpp_is_acknowledged_and_given_to_the_raw_client_as_a_whole() {
    let mut host = Host::new(1, &[]);
    let client = raw(&mut host);
    let from = MadAddress::gsi(Lid::new(2));
    let mut head = mad(MgmtClass::SUBN_ADM, Method::GET_TABLE_RESP);
    head.header.tid = RAW;
    let data: Vec<u8> = (0..=255).cycle().take(500).collect();
    let table = Message::rmpp(head, data.clone()).unwrap();
    let mut acks = 0;
    for number in 1..=table.segments().unwrap() {
        let segment = table.segment(number, RmppHeader::NO_RESP_TIME);
        host.agent.handle_mad(at(0), &from, &segment);
        acks += usize::from(host.transmit(0).is_some());
    }
    assert!(acks > 1);
    let message = taken(&mut host, client).unwrap();
    assert_eq!(message.data(), data);
}

#[test]
fn a_table_that_nobody_segmented_answers_as_the_one_mad_it_is() {
    let [mut asker, server] = [1, 2].map(|lid| Host::new(lid, &[]));
    let request = asker.request(&server, Method::GET_TABLE);
    let mut answer = asker.transmit(0).unwrap();
    answer.header.method = Method::GET_TABLE_RESP;
    let sa = answer.view_mut::<SaMad>();
    sa.rmpp.set_flags(RmppFlags::ACTIVE);
    asker.agent.handle_mad(at(0), &server.address, &answer);
    let Some(AgentEvent::Response {
        request: answered,
        message,
        ..
    }) = asker.event()
    else {
        panic!("not answered");
    };
    assert_eq!(answered, request);
    assert!(!message.is_rmpp());
    assert_eq!(asker.transmit(0), None, "nothing to acknowledge");
}

#[test]
fn events_kept_apart_neither_show_nor_crowd_out_those_of_others() {
    let mut config = MadAgentConfig::gsi(1);
    config.max_pending_requests = 1;
    let mut host = Host::with_config(1, &[Method::GET], config);
    let perf = Registration::new(MgmtClass::PERF, MethodSet::of(&[Method::SET]));
    let apart = host.agent.register(perf.apart()).unwrap();
    let from = MadAddress::gsi(Lid::new(3));
    let set = mad(MgmtClass::PERF, Method::SET);
    for expected in [
        Disposition::Delivered,
        Disposition::Dropped(DropReason::EventQueueFull),
    ] {
        assert_eq!(host.agent.handle_mad(at(0), &from, &set), expected);
    }
    let get = mad(MgmtClass::SUBN_ADM, Method::GET);
    assert_eq!(
        host.agent.handle_mad(at(0), &from, &get),
        Disposition::Delivered
    );
    assert_eq!(host.agent.sizes().events, 2);
    assert!(matches!(host.event(), Some(AgentEvent::Request { agent, .. }) if agent == host.id));
    assert_eq!(host.event(), None);
    assert!(taken(&mut host, apart).is_some());
    assert!(host.agent.unregister(apart));
    assert_eq!(host.agent.poll_event_of(apart), None);
}
