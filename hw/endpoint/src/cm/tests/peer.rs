//! Peer-to-peer connections: REQs that cross (IBA 12.10.4).

use super::*;

/// Both nodes send a REQ to the other at once.
fn crossing() -> (Pair, ConnId, ConnId) {
    let mut pair = Pair::new();
    let a = pair.send_req_from(A, Rendezvous::PeerToPeer);
    let b = pair.send_req_from(B, Rendezvous::PeerToPeer);
    (pair, a, b)
}

#[test]
fn the_greater_ca_guid_becomes_the_active_side() {
    let (mut pair, a, b) = crossing();
    let from_a = pair.sent_one(A, AttributeId::CM_REQ);
    let from_b = pair.sent_one(B, AttributeId::CM_REQ);
    // B has the greater GUID: it ignores the other REQ and goes on waiting.
    assert_eq!(pair.give(B, &from_a), CmVerdict::Duplicate);
    pair.assert_state(B, b, State::ReqSent);
    assert!(pair.events(B).is_empty());
    // A gives its own REQ up and answers.
    assert_eq!(pair.give(A, &from_b), CmVerdict::Accepted);
    let event = pair.event(A);
    assert_eq!(event.conn, a);
    assert!(matches!(event.kind, CmEventKind::PeerReqReceived { .. }));
    let info = pair.cms[A].info(a).expect("live");
    assert_eq!((info.state, info.role), (State::ReqRcvd, Role::Passive));
    assert_eq!(pair.cms[A].poll_timeout(), None, "its REQ waits no more");

    pair.send_rep(A, a);
    pair.carry();
    assert!(matches!(pair.event(B).kind, CmEventKind::RepReceived(_)));
    pair.cms[B].send_rtu(pair.now, b, &[]).expect("ready");
    pair.carry();
    pair.assert_state(A, a, State::Established);
    pair.assert_state(B, b, State::Established);
    // Late copies of either REQ change nothing.
    assert_eq!(pair.give(B, &from_a), CmVerdict::Duplicate);
    assert_eq!(pair.give(A, &from_b), CmVerdict::Duplicate);
    pair.assert_state(A, a, State::Established);
    pair.assert_state(B, b, State::Established);

    pair.cms[A].send_dreq(pair.now, a, &[]).expect("up");
    pair.carry();
    pair.cms[B].send_drep(pair.now, b, &[]).expect("DREQ");
    pair.carry();
    pair.assert_drained();
}

#[test]
fn between_equal_ca_guids_the_greater_qpn_becomes_the_active_side() {
    let mut pair = Pair::with(|config| CmConfig {
        ca_guid: guid(A),
        ..config
    });
    let a = pair.send_req_from(A, Rendezvous::PeerToPeer);
    let b = pair.send_req_from(B, Rendezvous::PeerToPeer);
    pair.carry();
    assert!(qpn(B) > qpn(A));
    pair.assert_state(A, a, State::ReqRcvd);
    pair.assert_state(B, b, State::ReqSent);
}

#[test]
fn the_other_side_comes_round_when_the_first_req_is_lost() {
    let (mut pair, a, b) = crossing();
    pair.sent(A);
    pair.sent(B); // both lost
    pair.pass(active_wait());
    pair.carry();
    pair.assert_state(A, a, State::ReqRcvd);
    pair.assert_state(B, b, State::ReqSent);
}

#[test]
fn a_req_for_another_service_or_from_elsewhere_does_not_cross() {
    let (mut pair, a, _) = crossing();
    let from_b = pair.sent_one(B, AttributeId::CM_REQ);
    for change in [
        |req: &mut CmReq| req.service_id = ServiceId::new(9),
        |req: &mut CmReq| req.primary.local_gid = Gid::NONE,
        |req: &mut CmReq| req.primary.local_lid = Lid::new(0x99),
        |req: &mut CmReq| req.primary.remote_gid = Gid::NONE,
    ] {
        let mut other = from_b;
        change(other.view_mut());
        assert_eq!(pair.give(A, &other), CmVerdict::Refused);
    }
    pair.assert_state(A, a, State::ReqSent);
}

#[test]
fn a_client_server_req_does_not_cross() {
    let mut pair = Pair::new();
    let a = pair.send_req_from(A, Rendezvous::ClientServer);
    pair.send_req_from(B, Rendezvous::PeerToPeer);
    let from_b = pair.sent_one(B, AttributeId::CM_REQ);
    assert_eq!(pair.give(A, &from_b), CmVerdict::Refused, "nobody listens");
    pair.assert_state(A, a, State::ReqSent);
}

#[test]
fn a_late_refusal_of_the_own_req_does_not_end_what_the_peers_req_began() {
    let mut pair = Pair::new();
    let a = pair.send_req_from(A, Rendezvous::PeerToPeer);
    // It arrives before B asks: nobody listens.
    let from_a = pair.sent_one(A, AttributeId::CM_REQ);
    pair.give(B, &from_a);
    let late = pair.sent_one(B, AttributeId::CM_REJ);
    pair.send_req_from(B, Rendezvous::PeerToPeer);
    pair.carry();
    pair.assert_state(A, a, State::ReqRcvd);
    assert_eq!(
        pair.give(A, &late),
        CmVerdict::Dropped(crate::cm::CmDrop::OldAnswer)
    );
    pair.assert_state(A, a, State::ReqRcvd);
}
