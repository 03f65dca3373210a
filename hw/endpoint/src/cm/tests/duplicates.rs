//! Every message arrives twice: the second one changes nothing, and is answered as the first was.

use super::*;

#[test]
fn a_repeated_req_waits_for_the_user_then_gets_what_the_user_said() {
    let (mut pair, _) = Pair::listening();
    pair.send_req();
    let req = pair.sent_one(A, AttributeId::CM_REQ);
    pair.give(B, &req);
    let b = pair.event(B).conn;
    assert_eq!(pair.give(B, &req), CmVerdict::Duplicate);
    assert!(pair.sent(B).is_empty());

    pair.cms[B].send_mra(pair.now, b, 10, &[]).expect("REQ");
    let mra = pair.sent_one(B, AttributeId::CM_MRA);
    assert_eq!(pair.give(B, &req), CmVerdict::Duplicate);
    assert_eq!(pair.sent_one(B, AttributeId::CM_MRA), mra);

    pair.send_rep(B, b);
    let rep = pair.sent_one(B, AttributeId::CM_REP);
    assert_eq!(pair.give(B, &req), CmVerdict::Duplicate);
    assert_eq!(pair.sent_one(B, AttributeId::CM_REP), rep);
    assert!(pair.events(B).is_empty(), "one request event");
    assert_eq!(pair.cms[B].counters().duplicates, 3);
}

#[test]
fn a_repeated_req_gets_the_same_rej_for_as_long_as_the_peer_may_repeat_it() {
    let (mut pair, _) = Pair::listening();
    let a = pair.send_req();
    let req = pair.sent_one(A, AttributeId::CM_REQ);
    pair.give(B, &req);
    let b = pair.event(B).conn;
    let reason = ib_wire::cm::RejReason::CONSUMER;
    pair.cms[B]
        .send_rej(pair.now, b, reason, &[], b"no")
        .expect("REQ");
    let rej = pair.sent_one(B, AttributeId::CM_REJ);
    for _ in 0..RETRIES {
        pair.pass(active_wait());
        let again = pair.sent_one(A, AttributeId::CM_REQ);
        assert_eq!(again, req);
        assert_eq!(pair.give(B, &again), CmVerdict::Duplicate);
        assert_eq!(pair.sent_one(B, AttributeId::CM_REJ), rej);
    }
    assert!(pair.events(B).is_empty(), "no second request event");
    pair.give(A, &rej);
    assert_eq!(pair.state(A, a), None);
    pair.assert_drained();
}

#[test]
fn a_repeated_rep_gets_the_mra_or_the_rtu_again() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.requested();
    pair.send_rep(B, b);
    let rep = pair.sent_one(B, AttributeId::CM_REP);
    pair.give(A, &rep);
    assert_eq!(pair.give(A, &rep), CmVerdict::Duplicate);
    assert!(pair.sent(A).is_empty());
    pair.cms[A].send_mra(pair.now, a, 10, &[]).expect("REP");
    let mra = pair.sent_one(A, AttributeId::CM_MRA);
    assert_eq!(pair.give(A, &rep), CmVerdict::Duplicate);
    assert_eq!(pair.sent_one(A, AttributeId::CM_MRA), mra);
    pair.cms[A].send_rtu(pair.now, a, b"go").expect("ready");
    let rtu = pair.sent_one(A, AttributeId::CM_RTU);
    assert_eq!(pair.give(A, &rep), CmVerdict::Duplicate);
    assert_eq!(pair.sent_one(A, AttributeId::CM_RTU), rtu);
    assert_eq!(pair.events(A).len(), 1, "one REP event");
}

#[test]
fn a_late_copy_of_any_message_leaves_an_established_connection_alone() {
    let (mut pair, _) = Pair::listening();
    let a = pair.send_req();
    let req = pair.sent_one(A, AttributeId::CM_REQ);
    pair.give(B, &req);
    let b = pair.event(B).conn;
    pair.cms[B].send_mra(pair.now, b, 10, &[]).expect("REQ");
    let mra = pair.sent_one(B, AttributeId::CM_MRA);
    pair.give(A, &mra);
    pair.send_rep(B, b);
    let rep = pair.sent_one(B, AttributeId::CM_REP);
    pair.give(A, &rep);
    pair.cms[A].send_rtu(pair.now, a, &[]).expect("ready");
    let rtu = pair.sent_one(A, AttributeId::CM_RTU);
    pair.give(B, &rtu);
    pair.events(A);
    pair.events(B);

    assert_eq!(pair.give(B, &req), CmVerdict::Duplicate);
    assert_eq!(pair.give(B, &rtu), CmVerdict::Duplicate);
    assert_eq!(pair.give(A, &rep), CmVerdict::Duplicate);
    pair.give(A, &mra);
    pair.assert_state(A, a, State::Established);
    pair.assert_state(B, b, State::Established);
    assert!(pair.events(A).is_empty() && pair.events(B).is_empty());
}
