//! Requests and responses under RMPP.

use ib_wire::rmpp::RmppHeader;

use super::*;

/// Sends a request of so many bytes under RMPP.
fn ask_multi(client: &mut Host, server: &Host, len: usize) {
    let head = mad(MgmtClass::SUBN_ADM, Method::GET_MULTI);
    let message = Message::rmpp(head, payload(len)).unwrap();
    client
        .agent
        .send_request(at(0), client.id, server.address, message, POLICY)
        .unwrap();
}

#[test]
fn a_table_of_many_segments_arrives_and_both_sides_forget_it() {
    let (mut client, mut server) = client_and_server();
    let request = client.request(&server, Method::GET_TABLE);
    exchange(0, &mut client, &mut server);
    let transfer = server.respond_rmpp(0, 30_000).unwrap();
    exchange(0, &mut client, &mut server);
    let Some(AgentEvent::Response {
        request: of,
        message,
        ..
    }) = client.event()
    else {
        panic!("no response");
    };
    assert_eq!(of, request);
    assert_eq!(message.data(), payload(30_000));
    assert_eq!(
        server.event(),
        Some(AgentEvent::TransferEnded {
            agent: server.id,
            transfer,
            result: Ok(())
        })
    );
    run_until(20_000, &mut client, &mut server);
    assert!(client.agent.sizes().is_empty());
    assert!(server.agent.sizes().is_empty());
}

#[test]
fn a_dual_sided_exchange_turns_around() {
    let (mut client, mut server) = client_and_server();
    ask_multi(&mut client, &server, 5_000);
    exchange(0, &mut client, &mut server);
    server.respond_rmpp(0, 7_000).unwrap();
    exchange(0, &mut client, &mut server);
    let Some(AgentEvent::Response { message, .. }) = client.event() else {
        panic!("no response");
    };
    assert_eq!(message.data(), payload(7_000));
    assert!(matches!(
        server.event(),
        Some(AgentEvent::TransferEnded { result: Ok(()), .. })
    ));
    run_until(30_000, &mut client, &mut server);
    assert!(client.agent.sizes().is_empty() && server.agent.sizes().is_empty());
}

#[test]
fn a_responder_repeats_its_last_ack_until_the_turn_around_and_sends_nothing_before() {
    let (mut client, mut server) = client_and_server();
    ask_multi(&mut client, &server, 100);
    let data = client.transmit(0).unwrap();
    server.agent.handle_mad(at(0), &client.address, &data);
    server.respond_rmpp(0, 300).unwrap();
    let lost = server.transmit(0).unwrap();
    assert_eq!(lost.view::<RmppMad>().rmpp.rmpp_type, RmppType::ACK);
    assert_eq!(lost.header.method, Method::GET_MULTI_RESP);
    assert_eq!(server.transmit(0), None);
    server.agent.handle_timeout(at(2_000));
    let ack = server.transmit(2_000).unwrap();
    assert_eq!(ack, lost);
    client.agent.handle_mad(at(2_000), &server.address, &ack);
    let turn = client.transmit(2_000).unwrap();
    let rmpp = turn.view::<RmppMad>().rmpp;
    assert_eq!(
        (rmpp.segment_number.get(), rmpp.data2.get()),
        (0, 1),
        "the turn-around acknowledges segment 0 with a window of 1"
    );
    assert_eq!(turn.header.method, Method::GET_MULTI);
    server.agent.handle_mad(at(2_000), &client.address, &turn);
    exchange(2_000, &mut client, &mut server);
    assert!(matches!(client.event(), Some(AgentEvent::Response { .. })));
}

#[test]
fn a_response_whose_turn_never_comes_ends() {
    let (mut client, mut server) = client_and_server();
    ask_multi(&mut client, &server, 100);
    let data = client.transmit(0).unwrap();
    server.agent.handle_mad(at(0), &client.address, &data);
    server.respond_rmpp(0, 300).unwrap();
    for now in (0..40_000).step_by(500) {
        server.agent.handle_timeout(at(now));
        while server.transmit(now).is_some() {}
    }
    assert!(matches!(
        server.event(),
        Some(AgentEvent::TransferEnded {
            result: Err(TransferError::EndedByUs(RmppStatus::TOO_MANY_RETRIES)),
            ..
        })
    ));
    assert!(server.agent.sizes().is_empty());
}

#[test]
fn a_lost_last_ack_is_repeated_within_the_retention_time() {
    let (mut client, mut server) = client_and_server();
    client.request(&server, Method::GET_TABLE);
    exchange(0, &mut client, &mut server);
    server.respond_rmpp(0, 50).unwrap();
    let data = server.transmit(0).unwrap();
    client.agent.handle_mad(at(0), &server.address, &data);
    let lost = client.transmit(0).unwrap();
    server.agent.handle_timeout(at(2_000));
    let again = server.transmit(2_000).unwrap();
    assert_eq!(again, data);
    client.agent.handle_mad(at(2_000), &server.address, &again);
    assert_eq!(client.transmit(2_000), Some(lost));
    client.agent.handle_timeout(at(10_000));
    client.agent.handle_mad(at(10_000), &server.address, &again);
    assert_eq!(client.transmit(10_000), None);
    assert!(matches!(client.event(), Some(AgentEvent::Response { .. })));
    assert_eq!(client.event(), None);
}

#[test]
fn an_abort_or_stop_from_the_peer_ends_the_request() {
    let (mut client, server) = client_and_server();
    client.request(&server, Method::GET_TABLE);
    let mut stop = response_to(&client.transmit(0).unwrap());
    stop.view_mut::<RmppMad>().rmpp =
        RmppHeader::end(RmppType::STOP, RmppStatus::RESOURCES_EXHAUSTED);
    client.agent.handle_mad(at(1), &server.address, &stop);
    assert!(matches!(
        client.event(),
        Some(AgentEvent::RequestFailed {
            reason: TransferError::EndedByPeer(RmppStatus::RESOURCES_EXHAUSTED),
            ..
        })
    ));
    assert!(client.agent.sizes().is_empty());
}

#[test]
fn a_silent_sender_is_aborted_after_the_receive_timeout() {
    let (mut client, mut server) = client_and_server();
    client.request(&server, Method::GET_TABLE);
    exchange(0, &mut client, &mut server);
    server.respond_rmpp(0, 900).unwrap();
    let first = server.transmit(0).unwrap();
    client.agent.handle_mad(at(0), &server.address, &first);
    client.transmit(0).unwrap();
    assert_eq!(client.agent.poll_timeout(), Some(at(40_000)));
    client.agent.handle_timeout(at(40_000));
    let abort = client.transmit(40_000).unwrap();
    let rmpp = abort.view::<RmppMad>().rmpp;
    assert_eq!(rmpp.rmpp_type, RmppType::ABORT);
    assert_eq!(rmpp.status, RmppStatus::TOTAL_TIME_TOO_LONG);
    assert_eq!(abort.header.method, Method::GET_TABLE);
    assert!(matches!(
        client.event(),
        Some(AgentEvent::RequestFailed {
            reason: TransferError::EndedByUs(RmppStatus::TOTAL_TIME_TOO_LONG),
            ..
        })
    ));
    server.agent.handle_mad(at(40_000), &client.address, &abort);
    assert!(matches!(
        server.event(),
        Some(AgentEvent::TransferEnded {
            result: Err(TransferError::EndedByPeer(RmppStatus::TOTAL_TIME_TOO_LONG)),
            ..
        })
    ));
}

#[test]
fn unregistering_in_the_middle_of_everything_leaves_nothing() {
    let (mut client, mut server) = client_and_server();
    for _ in 0..3 {
        client.request(&server, Method::GET_TABLE);
    }
    exchange(0, &mut client, &mut server);
    server.respond_rmpp(0, 900).unwrap();
    server.respond_rmpp(0, 100).unwrap();
    while let Some(mad) = server.transmit(0) {
        client.agent.handle_mad(at(0), &server.address, &mad);
    }
    client.request(&server, Method::GET);
    let server_id = server.id;
    assert!(client.agent.unregister(client.id));
    assert!(server.agent.unregister(server_id));
    let control_only = |host: &mut Host| {
        while host.transmit(0).is_some() {}
        host.agent.sizes().is_empty()
    };
    assert!(control_only(&mut client) && control_only(&mut server));
}

#[test]
fn unsolicited_transfers_are_bounded() {
    let mut config = MadAgentConfig::gsi(1);
    config.rmpp.max_unsolicited = 2;
    config.rmpp.max_message = 1000;
    let mut server = Host::with_config(2, &[Method::GET_MULTI], config);
    let from = MadAddress::gsi(Lid::new(1));
    let begin = |tid: u64, len: usize| {
        let mut head = mad(MgmtClass::SUBN_ADM, Method::GET_MULTI);
        head.header.tid = Tid::new(tid);
        Message::rmpp(head, payload(len)).unwrap().segment(1, 31)
    };
    for tid in 0..5 {
        server.agent.handle_mad(at(0), &from, &begin(tid, 900));
    }
    assert_eq!(server.agent.sizes().transfers_in, 2);
    assert_eq!(server.dropped(DropReason::NoResources), 3);
    let stops = core::iter::from_fn(|| server.transmit(0))
        .filter(|mad| mad.view::<RmppMad>().rmpp.rmpp_type == RmppType::STOP)
        .count();
    assert_eq!(stops, 3);
    server.agent.handle_timeout(at(40_000));
    server.agent.handle_mad(at(40_000), &from, &begin(9, 1001));
    assert_eq!(server.agent.sizes().transfers_in, 0);
    assert_eq!(server.agent.sizes().buffered, 0);
}
