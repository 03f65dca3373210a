//! REQ, REP, RTU and MRA.

use ib_wire::cm::{CmMessage, CmMra, CmRep, CmReq, CmRtu, FailoverAccepted};

use super::*;
use crate::cm::CmError;

#[test]
fn a_req_carries_what_the_manager_fills_in_and_all_that_the_user_did() {
    let (mut pair, listener) = Pair::listening();
    let a = pair.send_req();
    let mad = pair.sent_one(A, AttributeId::CM_REQ);
    let req: &CmReq = view(&mad);
    let info = pair.cms[A].info(a).expect("live");
    assert_eq!(req.local_comm_id, info.local_id);
    assert_eq!(req.local_ca_guid, guid(A));
    assert_eq!(req.service_id, SERVICE);
    assert_eq!(req.local_qpn, qpn(A));
    assert_eq!(req.primary.remote_gid, gid(B));
    assert_eq!((info.state, info.role), (State::ReqSent, Role::Active));

    assert_eq!(pair.give(B, &mad), CmVerdict::Accepted);
    let event = pair.event(B);
    let CmEventKind::ReqReceived {
        listener: heard_by,
        from,
        req: received,
    } = event.kind
    else {
        panic!("{event:?}");
    };
    assert_eq!((heard_by, from.lid), (listener, lid(A)));
    assert_eq!(*received, *req);
    let info = pair.cms[B].info(event.conn).expect("live");
    assert_eq!((info.state, info.role), (State::ReqRcvd, Role::Passive));
    assert_eq!(info.remote_qpn, qpn(A));
    assert_ne!(info.local_id, req.local_comm_id);
}

#[test]
fn a_rep_names_both_ids_in_the_transaction_of_the_req() {
    let (mut pair, _) = Pair::listening();
    let a = pair.send_req();
    let req = pair.sent_one(A, AttributeId::CM_REQ);
    pair.give(B, &req);
    let b = pair.event(B).conn;
    let mut rep = CmRep {
        local_qpn: qpn(B),
        ..CmRep::default()
    };
    rep.set_failover_accepted(FailoverAccepted::UNSUPPORTED);
    pair.cms[B].send_rep(pair.now, b, &rep).expect("answers");
    let mad = pair.sent_one(B, AttributeId::CM_REP);
    let rep: &CmRep = view(&mad);
    assert_eq!(rep.header.tid, req.header.tid);
    assert_eq!(rep.remote_comm_id, view::<CmReq>(&req).local_comm_id);
    assert_eq!(rep.local_ca_guid, guid(B));
    assert_eq!(rep.failover_accepted(), FailoverAccepted::UNSUPPORTED);

    assert_eq!(pair.give(A, &mad), CmVerdict::Accepted);
    let info = pair.cms[A].info(a).expect("live");
    assert_eq!(info.state, State::RepRcvd);
    assert_eq!(info.remote_id, Some(rep.local_comm_id));
    assert_eq!(info.remote_qpn, qpn(B));
    assert_eq!(info.remote_ca_guid, Some(guid(B)));
}

#[test]
fn an_rtu_establishes_and_carries_padded_private_data() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.replied();
    pair.cms[A].send_rtu(pair.now, a, b"go").expect("ready");
    let mad = pair.sent_one(A, AttributeId::CM_RTU);
    let rtu: &CmRtu = view(&mad);
    assert_eq!(rtu.private_data[..3], *b"go\0");
    assert_eq!(pair.give(B, &mad), CmVerdict::Accepted);
    pair.assert_state(A, a, State::Established);
    pair.assert_state(B, b, State::Established);
    // Nothing waits any more.
    assert_eq!(pair.cms[A].poll_timeout(), None);
    assert_eq!(pair.cms[B].poll_timeout(), None);
}

#[test]
fn an_early_packet_establishes_the_passive_side_and_the_rtu_comes_late() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.replied();
    pair.cms[A].send_rtu(pair.now, a, &[]).expect("ready");
    let rtu = pair.sent_one(A, AttributeId::CM_RTU);
    pair.cms[B].establish(pair.now, b).expect("REP sent");
    pair.assert_state(B, b, State::Established);
    assert_eq!(pair.cms[B].poll_timeout(), None);
    assert_eq!(pair.give(B, &rtu), CmVerdict::Duplicate);
    assert_eq!(
        pair.cms[B].establish(pair.now, b),
        Err(CmError::WrongState(State::Established))
    );
}

#[test]
fn an_mra_for_a_req_extends_the_wait_by_its_own_time() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.requested();
    pair.cms[B].send_mra(pair.now, b, 18, b"soon").expect("REQ");
    let mad = pair.sent_one(B, AttributeId::CM_MRA);
    let mra: &CmMra = view(&mad);
    assert_eq!(mra.message_mraed(), CmMessage::REQ);
    assert_eq!(mra.service_timeout(), 18);
    assert_eq!(pair.give(A, &mad), CmVerdict::Accepted);
    assert!(matches!(pair.event(A).kind, CmEventKind::MraReceived(_)));
    pair.assert_state(A, a, State::MraReqRcvd);
    pair.assert_state(B, b, State::MraReqSent);
    let deadline = pair.now + time(18) + time(PATH);
    assert_eq!(pair.cms[A].poll_timeout(), Some(deadline));
    // A second one to the same try buys nothing.
    assert_eq!(pair.give(A, &mad), CmVerdict::Duplicate);
    assert_eq!(pair.cms[A].poll_timeout(), Some(deadline));

    pair.send_rep(B, b);
    pair.carry();
    pair.assert_state(A, a, State::RepRcvd);
}

#[test]
fn an_mra_for_a_rep_extends_the_wait_and_the_late_rtu_still_counts() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.replied();
    pair.cms[A].send_mra(pair.now, a, 18, &[]).expect("REP");
    pair.assert_state(A, a, State::MraRepSent);
    pair.carry();
    assert!(matches!(pair.event(B).kind, CmEventKind::MraReceived(_)));
    pair.assert_state(B, b, State::MraRepRcvd);
    pair.pass(passive_wait() * 2);
    assert!(pair.sent(B).is_empty(), "the REP is not repeated");
    pair.cms[A].send_rtu(pair.now, a, &[]).expect("ready");
    pair.carry();
    pair.assert_state(B, b, State::Established);
}

#[test]
fn a_rep_may_come_from_another_id_than_an_earlier_mra() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.requested();
    pair.cms[B].send_mra(pair.now, b, 18, &[]).expect("REQ");
    let mut mra = pair.sent_one(B, AttributeId::CM_MRA);
    mra.view_mut::<CmMra>().local_comm_id = ib_wire::CommId::new(77);
    assert_eq!(pair.give(A, &mra), CmVerdict::Accepted);
    pair.send_rep(B, b);
    pair.carry();
    pair.assert_state(A, a, State::RepRcvd);
}

#[test]
fn a_rep_with_the_id_of_another_connection_is_dropped() {
    let (mut pair, _) = Pair::listening();
    let (first, _) = pair.established();
    let taken = pair.cms[A].info(first).and_then(|info| info.remote_id);
    let mut req = req_from(A);
    req.local_qpn = Qpn::from_low_bits(0x999);
    let to = MadAddress::gsi(lid(B));
    let now = pair.now;
    pair.cms[A]
        .send_req(now, &to, &req, Rendezvous::ClientServer)
        .expect("room");
    pair.carry();
    let b = pair.event(B).conn;
    let rep = CmRep {
        local_qpn: Qpn::from_low_bits(0x998),
        ..CmRep::default()
    };
    pair.cms[B].send_rep(now, b, &rep).expect("REQ");
    let mut rep = pair.sent_one(B, AttributeId::CM_REP);
    rep.view_mut::<CmRep>().local_comm_id = taken.expect("known");
    assert_eq!(
        pair.give(A, &rep),
        CmVerdict::Dropped(crate::cm::CmDrop::InvalidId)
    );
}

#[test]
fn private_data_is_refused_beyond_its_field_and_nothing_happens() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.replied();
    let long = [0; 225];
    assert_eq!(
        pair.cms[A].send_rtu(pair.now, a, &long),
        Err(CmError::TooLong { max: 224 })
    );
    assert_eq!(
        pair.cms[A].send_mra(pair.now, a, 1, &long[..223]),
        Err(CmError::TooLong { max: 222 })
    );
    let reason = ib_wire::cm::RejReason::CONSUMER;
    assert_eq!(
        pair.cms[A].send_rej(pair.now, a, reason, &[], &long[..149]),
        Err(CmError::TooLong { max: 148 })
    );
    assert_eq!(
        pair.cms[A].send_rej(pair.now, a, reason, &long[..73], &[]),
        Err(CmError::TooLong { max: 72 })
    );
    pair.assert_state(A, a, State::RepRcvd);
    assert!(pair.sent(A).is_empty());
    pair.cms[A]
        .send_rtu(pair.now, a, &long[..224])
        .expect("fits exactly");
    pair.carry();
    assert_eq!(
        pair.cms[B].send_dreq(pair.now, b, &long[..221]),
        Err(CmError::TooLong { max: 220 })
    );
    pair.cms[B]
        .send_dreq(pair.now, b, &long[..220])
        .expect("fits exactly");
}

#[test]
fn calls_out_of_turn_are_refused_with_the_state() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.requested();
    let wrong = |state| Err(CmError::WrongState(state));
    let now = pair.now;
    assert_eq!(pair.cms[A].send_rtu(now, a, &[]), wrong(State::ReqSent));
    assert_eq!(pair.cms[A].send_dreq(now, a, &[]), wrong(State::ReqSent));
    assert_eq!(pair.cms[A].send_mra(now, a, 1, &[]), wrong(State::ReqSent));
    assert_eq!(pair.cms[B].send_drep(now, b, &[]), wrong(State::ReqRcvd));
    assert_eq!(pair.cms[B].establish(now, b), wrong(State::ReqRcvd));
    assert_eq!(
        pair.cms[B].send_rtu(now, ConnId(99), &[]),
        Err(CmError::UnknownConnection)
    );
}

#[test]
fn a_connection_to_the_own_port_works() {
    let mut pair = Pair::new();
    pair.cms[A].listen(SERVICE, u64::MAX).expect("free");
    let to = MadAddress::gsi(lid(A));
    let now = pair.now;
    let a = pair.cms[A]
        .send_req(now, &to, &req_from(A), Rendezvous::ClientServer)
        .expect("room");
    let loopback = |pair: &mut Pair| {
        while let Some(transmit) = pair.cms[A].poll_transmit() {
            pair.cms[A].handle_mad(now, &to, &transmit.mad);
        }
    };
    loopback(&mut pair);
    let b = pair.event(A).conn;
    let rep = CmRep {
        local_qpn: qpn(B),
        ..CmRep::default()
    };
    pair.cms[A].send_rep(now, b, &rep).expect("REQ");
    loopback(&mut pair);
    pair.cms[A].send_rtu(now, a, &[]).expect("ready");
    loopback(&mut pair);
    pair.assert_state(A, a, State::Established);
    pair.assert_state(A, b, State::Established);
    pair.events(A);
    pair.cms[A].send_dreq(now, a, &[]).expect("established");
    loopback(&mut pair);
    pair.cms[A].send_drep(now, b, &[]).expect("DREQ");
    loopback(&mut pair);
    pair.assert_drained();
}
