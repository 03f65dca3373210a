//! REJ in every state, and destroyed connections.

use ib_wire::CommId;
use ib_wire::cm::{CmMessage, CmRej, CmReq, RejReason};

use super::*;
use crate::cm::CmDrop;

fn rej_of(event: CmEvent) -> CmRej {
    match event.kind {
        CmEventKind::RejReceived(rej) => *rej,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_reason_reaches_the_other_side_with_ari_and_private_data() {
    for reason in (1..=35).filter(|&r| r != RejReason::TIMEOUT.get()) {
        let (mut pair, _) = Pair::listening();
        let (a, b) = pair.requested();
        let reason = RejReason::new(reason);
        pair.cms[B]
            .send_rej(pair.now, b, reason, &[7; 72], &[8; 148])
            .expect("REQ");
        pair.carry();
        let rej = rej_of(pair.event(A));
        assert_eq!(rej.reason, reason);
        assert_eq!(rej.message_rejected(), CmMessage::REQ);
        assert_eq!(rej.ari_bytes(), [7; 72]);
        assert_eq!(rej.private_data, [8; 148]);
        let stale = reason == RejReason::STALE_CONNECTION;
        let expected = stale.then_some(State::TimeWait);
        assert_eq!(pair.state(A, a), expected, "{reason}");
        pair.assert_state(B, b, State::TimeWait);
        pair.assert_drained();
    }
}

#[test]
fn a_rejected_rep_ends_both_sides_in_time_wait() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.replied();
    pair.cms[A]
        .send_rej(pair.now, a, RejReason::CONSUMER, &[], &[])
        .expect("REP");
    pair.carry();
    let rej = rej_of(pair.event(B));
    assert_eq!(rej.message_rejected(), CmMessage::REP);
    pair.assert_state(A, a, State::TimeWait);
    pair.assert_state(B, b, State::TimeWait);
    pair.pass(active_time_wait());
    assert_eq!(pair.event(A).kind, CmEventKind::TimeWaitExit);
    assert_eq!(pair.event(B).kind, CmEventKind::TimeWaitExit);
    assert_eq!(pair.state(A, a), None);
    pair.assert_drained();
}

#[test]
fn a_req_to_an_unserved_service_is_refused_without_a_connection() {
    let (mut pair, listener) = Pair::listening();
    let now = pair.now;
    pair.cms[B].destroy(now, listener).expect("listens");
    let a = pair.send_req();
    let req = pair.sent_one(A, AttributeId::CM_REQ);
    assert_eq!(pair.give(B, &req), CmVerdict::Refused);
    let mad = pair.sent_one(B, AttributeId::CM_REJ);
    let rej: &CmRej = view(&mad);
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
    assert_eq!(rej.local_comm_id, CommId::NONE);
    assert_eq!(rej.remote_comm_id, view::<CmReq>(&req).local_comm_id);
    pair.give(A, &mad);
    assert_eq!(rej_of(pair.event(A)).reason, RejReason::INVALID_SERVICE_ID);
    assert_eq!(pair.state(A, a), None);
    pair.assert_drained();
}

#[test]
fn a_destroyed_req_tells_the_peer_by_timeout_with_the_ca_guid() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.requested();
    let now = pair.now;
    pair.cms[A].destroy(now, a).expect("live");
    assert_eq!(pair.state(A, a), None, "gone for the user");
    let mad = pair.sent_one(A, AttributeId::CM_REJ);
    let rej: &CmRej = view(&mad);
    assert_eq!(rej.reason, RejReason::TIMEOUT);
    assert_eq!(rej.timeout_ca_guid(), Some(guid(A)));
    assert_eq!(rej.remote_comm_id, CommId::NONE, "never learnt");
    assert_eq!(pair.give(B, &mad), CmVerdict::Accepted);
    assert_eq!(pair.event(B).conn, b);
    pair.assert_state(B, b, State::TimeWait);
    pair.assert_drained();
    assert!(pair.events(A).is_empty());
}

#[test]
fn a_late_rep_for_a_destroyed_req_meets_the_same_refusal() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.requested();
    let now = pair.now;
    pair.cms[A].destroy(now, a).expect("live");
    pair.sent_one(A, AttributeId::CM_REJ); // lost
    pair.send_rep(B, b);
    let rep = pair.sent_one(B, AttributeId::CM_REP);
    assert_eq!(pair.give(A, &rep), CmVerdict::Duplicate);
    let rej = pair.sent_one(A, AttributeId::CM_REJ);
    assert_eq!(pair.give(B, &rej), CmVerdict::Accepted);
    pair.assert_state(B, b, State::TimeWait);
    pair.assert_drained();
}

#[test]
fn a_rep_for_an_unknown_id_is_refused_and_ends_its_sender() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.requested();
    let now = pair.now;
    pair.cms[A].destroy(now, a).expect("live");
    pair.sent(A);
    pair.pass(time(PATH) * 2); // TimeWait is over
    pair.send_rep(B, b);
    let rep = pair.sent_one(B, AttributeId::CM_REP);
    assert_eq!(pair.give(A, &rep), CmVerdict::Refused);
    let rej = pair.sent_one(A, AttributeId::CM_REJ);
    assert_eq!(pair.give(B, &rej), CmVerdict::Accepted);
    let rej = rej_of(pair.event(B));
    assert_eq!(rej.reason, RejReason::INVALID_COMM_ID);
    assert_eq!(rej.message_rejected(), CmMessage::REP);
    pair.assert_state(B, b, State::TimeWait);
    pair.assert_drained();
}

#[test]
fn a_rej_breaks_an_established_connection() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.replied();
    pair.cms[A].send_rtu(pair.now, a, &[]).expect("ready");
    pair.sent(A); // the RTU is lost
    pair.cms[B]
        .send_rej(pair.now, b, RejReason::TIMEOUT, &[], &[])
        .expect("REP sent");
    pair.carry();
    assert_eq!(rej_of(pair.event(A)).reason, RejReason::TIMEOUT);
    pair.assert_state(A, a, State::TimeWait);
    pair.assert_drained();
}

#[test]
fn a_rej_with_foreign_ids_is_dropped() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let [ours, theirs] =
        [(A, a), (B, b)].map(|(node, conn)| pair.cms[node].info(conn).expect("live").local_id);
    let forge = |local: CommId, remote: CommId, message| {
        crate::cm::message::stray_rej(
            ib_wire::Tid::new(0),
            message,
            RejReason::CONSUMER,
            local,
            remote,
            &[],
        )
    };
    let stranger = CommId::new(theirs.get() ^ 1);
    let unknown = CmVerdict::Dropped(CmDrop::UnknownConnection);
    for (mad, verdict) in [
        (forge(stranger, ours, CmMessage::OTHER), unknown),
        (forge(stranger, ours, CmMessage::REP), unknown),
        (
            forge(stranger, ours, CmMessage::REQ),
            CmVerdict::Dropped(CmDrop::OldAnswer),
        ),
        (forge(theirs, stranger, CmMessage::OTHER), unknown),
        (forge(CommId::NONE, CommId::NONE, CmMessage::OTHER), unknown),
        // Of a REQ that has been accepted since.
        (
            forge(theirs, ours, CmMessage::REQ),
            CmVerdict::Dropped(CmDrop::OldAnswer),
        ),
    ] {
        assert_eq!(pair.give(A, &mad), verdict);
    }
    pair.assert_state(A, a, State::Established);
}

#[test]
fn a_destroyed_connection_leaves_as_its_state_demands() {
    let last = |pair: &mut Pair, node: usize, conn| {
        let now = pair.now;
        pair.cms[node].destroy(now, conn).expect("live");
        let sent = pair.sent(node);
        assert_eq!(sent.len(), 1);
        pair.give(1 - node, &sent[0]);
        pair.carry();
        pair.assert_drained();
        sent[0].header.attribute_id
    };
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.requested();
    assert_eq!(last(&mut pair, B, b), AttributeId::CM_REJ);
    let (a, _) = pair.replied();
    assert_eq!(last(&mut pair, A, a), AttributeId::CM_REJ);
    let (_, b) = pair.replied();
    assert_eq!(last(&mut pair, B, b), AttributeId::CM_REJ);
    let (a, b) = pair.established();
    pair.cms[A].send_dreq(pair.now, a, &[]).expect("up");
    pair.carry();
    pair.events(B);
    assert_eq!(last(&mut pair, B, b), AttributeId::CM_DREP);
}
