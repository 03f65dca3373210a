//! Retries, and what happens when they are used up.

use ib_wire::cm::{CmMessage, CmRej, RejReason};

use super::*;

/// Lets a node's timers run out and gives when it sent the expected message again.
fn retries(pair: &mut Pair, node: usize, attribute: AttributeId, wait: Duration) {
    let first = pair.sent_one(node, attribute);
    for _ in 0..RETRIES {
        pair.pass(wait - Duration::from_nanos(1));
        assert!(pair.sent(node).is_empty(), "too early");
        pair.pass(Duration::from_nanos(1));
        assert_eq!(pair.sent_one(node, attribute), first, "the same bytes");
        assert!(pair.events(node).is_empty());
    }
    pair.pass(wait);
}

#[test]
fn a_req_is_repeated_then_given_up_and_the_peer_told() {
    let (mut pair, _) = Pair::listening();
    let a = pair.send_req();
    retries(&mut pair, A, AttributeId::CM_REQ, active_wait());
    assert_eq!(pair.event(A).kind, CmEventKind::ReqError);
    let rej = pair.sent_one(A, AttributeId::CM_REJ);
    let rej: &CmRej = view(&rej);
    assert_eq!(rej.reason, RejReason::TIMEOUT);
    assert_eq!(rej.message_rejected(), CmMessage::OTHER);
    assert_eq!(rej.timeout_ca_guid(), Some(guid(A)));
    pair.assert_state(A, a, State::TimeWait);
    pair.pass(time(PATH));
    assert_eq!(pair.event(A).kind, CmEventKind::TimeWaitExit);
    assert_eq!(pair.cms[A].counters().timeouts, 1);
    assert_eq!(pair.cms[A].counters().retries, u64::from(RETRIES));
    pair.assert_drained();
}

#[test]
fn a_rep_is_repeated_then_given_up_and_the_peer_told() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.requested();
    pair.send_rep(B, b);
    retries(&mut pair, B, AttributeId::CM_REP, passive_wait());
    assert_eq!(pair.event(B).kind, CmEventKind::RepError);
    let rej = pair.sent_one(B, AttributeId::CM_REJ);
    // The active side never learnt this side's id.
    assert_eq!(pair.give(A, &rej), CmVerdict::Accepted);
    assert!(matches!(pair.event(A).kind, CmEventKind::RejReceived(_)));
    pair.assert_drained();
}

#[test]
fn a_dreq_is_repeated_then_given_up_without_a_rej() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.cms[B].send_dreq(pair.now, b, &[]).expect("up");
    retries(&mut pair, B, AttributeId::CM_DREQ, passive_wait());
    assert_eq!(pair.event(B).kind, CmEventKind::DreqError);
    assert!(pair.sent(B).is_empty());
    pair.assert_state(B, b, State::TimeWait);
    pair.cms[A].send_dreq(pair.now, a, &[]).expect("up");
    retries(&mut pair, A, AttributeId::CM_DREQ, active_wait());
    assert_eq!(pair.event(A).kind, CmEventKind::DreqError);
    pair.assert_drained();
}

#[test]
fn after_the_time_of_an_mra_the_req_is_repeated_with_the_tries_that_are_left() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.requested();
    pair.cms[B].send_mra(pair.now, b, 16, &[]).expect("REQ");
    pair.carry();
    pair.events(A);
    let granted = time(16) + time(PATH);
    for _ in 0..RETRIES {
        // Each repeated REQ gets the MRA again, and with it the same time.
        pair.assert_state(A, a, State::MraReqRcvd);
        pair.pass(granted);
        pair.assert_state(A, a, State::ReqSent);
        pair.carry();
        assert!(matches!(pair.event(A).kind, CmEventKind::MraReceived(_)));
    }
    pair.pass(granted);
    assert_eq!(pair.event(A).kind, CmEventKind::ReqError);
    pair.carry();
    pair.assert_state(B, b, State::TimeWait);
    pair.assert_drained();
}

#[test]
fn no_timer_runs_longer_than_the_configuration_allows() {
    let cap = Duration::from_secs(2);
    let mut pair = Pair::with(|config| CmConfig {
        max_wait: cap,
        ..config
    });
    let mut req = req_from(A);
    req.set_remote_cm_response_timeout(31);
    req.primary.set_local_ack_timeout(0);
    let to = MadAddress::gsi(lid(B));
    let now = pair.now;
    pair.cms[A]
        .send_req(now, &to, &req, Rendezvous::ClientServer)
        .expect("room");
    assert_eq!(pair.cms[A].poll_timeout(), Some(now + cap + time(0)));
}

#[test]
fn a_timeout_that_comes_early_does_nothing() {
    let (mut pair, _) = Pair::listening();
    pair.send_req();
    pair.sent(A);
    let before = pair.cms[A].poll_timeout();
    let now = pair.now;
    pair.cms[A].handle_timeout(now);
    assert_eq!(pair.cms[A].poll_timeout(), before);
    assert!(pair.sent(A).is_empty());
}
