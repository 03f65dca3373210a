//! Connections that the peer has forgotten (IBA 12.9.8.3.1).

use alloc::vec::Vec;

use ib_wire::cm::{CmRej, CmReq, RejReason};
use ib_wire::{CommId, Psn};

use super::*;

fn refused_as_stale(pair: &mut Pair, req: &Mad) {
    assert_eq!(pair.give(B, req), CmVerdict::Refused);
    let sent = pair.sent(B);
    let attributes: Vec<AttributeId> = sent.iter().map(|m| m.header.attribute_id).collect();
    assert_eq!(attributes, [AttributeId::CM_REJ, AttributeId::CM_DREQ]);
    let rej: &CmRej = view(&sent[0]);
    assert_eq!(rej.reason, RejReason::STALE_CONNECTION);
    assert_eq!(rej.remote_comm_id, view::<CmReq>(req).local_comm_id);
}

/// A connection that the passive side alone knows to be established, and its REQ.
fn up_on_one_side(pair: &mut Pair) -> (ConnId, Mad) {
    pair.send_req();
    let req = pair.sent_one(A, AttributeId::CM_REQ);
    pair.give(B, &req);
    let b = pair.event(B).conn;
    pair.send_rep(B, b);
    pair.sent(B);
    pair.cms[B].establish(pair.now, b).expect("REP sent");
    (b, req)
}

#[test]
fn another_req_with_an_id_in_use_is_stale_and_disconnects_the_old_connection() {
    let (mut pair, _) = Pair::listening();
    let (b, req) = up_on_one_side(&mut pair);

    let mut reborn = req;
    reborn.view_mut::<CmReq>().starting_psn = Psn::from_low_bits(77);
    refused_as_stale(&mut pair, &reborn);
    pair.assert_state(B, b, State::DreqSent);
}

#[test]
fn a_req_with_a_qp_in_use_is_stale_and_disconnects_the_old_connection() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    let mut other = pair_req();
    other.local_comm_id = CommId::new(0x1234_5678);
    let mut mad = Mad::from_layout(&other);
    mad.header = ib_wire::cm::header(AttributeId::CM_REQ);
    refused_as_stale(&mut pair, &mad);
    pair.assert_state(B, b, State::DreqSent);
}

fn pair_req() -> CmReq {
    CmReq {
        local_ca_guid: guid(A),
        ..req_from(A)
    }
}

#[test]
fn a_qp_is_free_again_once_its_connection_is_in_time_wait() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.cms[A].send_dreq(pair.now, a, &[]).expect("up");
    pair.carry();
    pair.cms[B].send_drep(pair.now, b, &[]).expect("DREQ");
    pair.carry();
    pair.events(B);
    pair.send_req();
    pair.carry();
    assert!(matches!(
        pair.event(B).kind,
        CmEventKind::ReqReceived { .. }
    ));
}

#[test]
fn another_req_after_a_refusal_may_use_the_same_id() {
    let (mut pair, _) = Pair::listening();
    pair.send_req();
    let req = pair.sent_one(A, AttributeId::CM_REQ);
    pair.give(B, &req);
    let b = pair.event(B).conn;
    pair.cms[B]
        .send_rej(pair.now, b, RejReason::INVALID_MTU, &[4], &[])
        .expect("REQ");
    pair.sent(B);
    let mut second = req;
    second.view_mut::<CmReq>().starting_psn = Psn::from_low_bits(78);
    assert_eq!(pair.give(B, &second), CmVerdict::Accepted);
    let event = pair.event(B);
    assert_ne!(event.conn, b);
    // The old one leaves without taking the new one's entries along.
    pair.pass(Duration::from_secs(60));
    assert_eq!(pair.give(B, &second), CmVerdict::Duplicate);
}

#[test]
fn a_late_req_of_a_closed_connection_is_stale_and_starts_nothing() {
    let (mut pair, _) = Pair::listening();
    let (b, req) = up_on_one_side(&mut pair);
    let now = pair.now;
    pair.cms[B].send_dreq(now, b, &[]).expect("up");
    let dreq = pair.sent_one(B, AttributeId::CM_DREQ);
    let drep = crate::cm::message::drep(view(&dreq), &[0; 224]);
    pair.give(B, &drep);
    pair.assert_state(B, b, State::TimeWait);
    pair.events(B);

    assert_eq!(pair.give(B, &req), CmVerdict::Duplicate);
    let rej = pair.sent_one(B, AttributeId::CM_REJ);
    assert_eq!(view::<CmRej>(&rej).reason, RejReason::STALE_CONNECTION);
    assert!(pair.events(B).is_empty());
}

#[test]
fn a_rep_from_a_qp_in_use_is_refused_as_stale() {
    let (mut pair, _) = Pair::listening();
    let (first, _) = pair.established();
    // Another connection, whose acceptor offers the QP of the first.
    let mut req = req_from(A);
    req.local_qpn = Qpn::from_low_bits(0x999);
    let to = MadAddress::gsi(lid(B));
    let now = pair.now;
    let second = pair.cms[A]
        .send_req(now, &to, &req, Rendezvous::ClientServer)
        .expect("room");
    pair.carry();
    let b = pair.event(B).conn;
    pair.send_rep(B, b);
    let rep = pair.sent_one(B, AttributeId::CM_REP);
    assert_eq!(pair.give(A, &rep), CmVerdict::Refused);
    let sent = pair.sent(A);
    assert_eq!(view::<CmRej>(&sent[0]).reason, RejReason::STALE_CONNECTION);
    pair.assert_state(A, first, State::DreqSent);
    pair.assert_state(A, second, State::ReqSent);
    pair.give(B, &sent[0]);
    pair.assert_state(B, b, State::TimeWait);
}
