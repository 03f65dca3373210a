//! Leaves, and the SA that has to take the membership back first.

use std::time::Duration;

use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::JoinState;
use mcast_agg::{Config, MemberId, Outcome, Output, Sizes};

use crate::port::*;

/// A port with a member, whose leave is under way.
fn leaving() -> Port {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.waits(vf(1), leave(vf(1), mgid(1), FULL));
    port
}

/// Methods of requests and answers, in the order in which they left the machine.
fn methods(port: &mut Port) -> Vec<(Option<MemberId>, Method)> {
    let outputs = port.outputs().into_iter();
    outputs
        .map(|output| match output {
            Output::SaRequest { request, .. } => (None, request.header.method),
            Output::Answer { member, answer, .. } => (Some(member), answer.header.method),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn c127_the_last_leave_is_answered_when_the_sa_has_answered() {
    for member in [vf(1), MemberId::PF] {
        let mut port = Port::new();
        port.first_join(member, mgid(1), FULL);
        port.waits(member, leave(member, mgid(1), FULL));
        let (token, request) = port.sa_request();
        assert_eq!(request.header.method, Method::DELETE);
        let (told, answer) = port.sa_lets_go(token, &request);
        assert_eq!((told, answer.header.method), (member, Method::DELETE_RESP));
        assert_eq!(answer.header.status, MadStatus::OK);
        assert_eq!(state_of(&answer), JoinState::NONE);
        assert_eq!(port.agg.sizes(), Sizes::default());
    }
}

#[test]
fn c127_a_leave_is_granted_though_the_sa_does_not_know_the_membership() {
    let mut port = leaving();
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    assert_eq!(port.answer_status(), MadStatus::OK);
}

#[test]
fn c127_a_leave_waits_three_seconds_at_most_and_the_delete_goes_on() {
    let mut port = leaving();
    port.wait(Duration::from_millis(2_999));
    assert!(
        methods(&mut port)
            .iter()
            .all(|(member, _)| member.is_none())
    );
    port.wait(Duration::from_millis(1));
    assert!(methods(&mut port).contains(&(Some(vf(1)), Method::DELETE_RESP)));
    let sizes = port.agg.sizes();
    assert_eq!((sizes.leaving, sizes.transactions, sizes.timers), (0, 1, 1));
}

#[test]
fn c127_a_leave_that_is_sent_again_while_it_waits_has_one_answer() {
    let mut port = leaving();
    let (token, request) = port.sa_request();
    port.waits(vf(1), leave(vf(1), mgid(1), FULL));
    port.nothing_more();
    port.sa_lets_go(token, &request);
}

#[test]
fn c127_a_join_that_comes_meanwhile_is_asked_of_the_sa_after_the_leave() {
    for member in [vf(1), vf(2)] {
        let mut port = leaving();
        let (token, request) = port.sa_request();
        let asked = port.ask(member, &mut join(member, mgid(1), FULL));
        assert_eq!(asked, Outcome::Absorbed);
        port.nothing_more();
        port.sa_answers(token, &granted(&request, JoinState::NONE));
        let order = [(Some(vf(1)), Method::DELETE_RESP), (None, Method::SET)];
        assert_eq!(methods(&mut port), order);
    }
}

/// The Delete cannot begin, because another join is under way. Without the leave the membership that is
/// still there would cover the second join.
#[test]
fn c127_a_join_waits_behind_a_leave_whose_delete_has_not_begun() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.ask(vf(2), &mut join(vf(2), mgid(1), NON));
    let (token, other) = port.sa_request();
    port.waits(vf(1), leave(vf(1), mgid(1), FULL));
    let asked = port.ask(vf(3), &mut join(vf(3), mgid(1), FULL));
    assert_eq!(asked, Outcome::Absorbed);
    port.sa_answers(token, &granted(&other, FULL | NON));
    let outputs = port.outputs();
    let [
        Output::Answer { member, .. },
        Output::SaRequest { token, request },
    ] = &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!((*member, request.header.method), (vf(2), Method::DELETE));
    assert_eq!(state_of(request), FULL);
    port.sa_answers(*token, &granted(request, NON));
    let order = [(Some(vf(1)), Method::DELETE_RESP), (None, Method::SET)];
    assert_eq!(methods(&mut port), order);
}

#[test]
fn c127_a_leave_of_one_kind_shows_the_kinds_that_the_member_keeps() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL | NON);
    port.waits(vf(1), leave(vf(1), mgid(1), FULL));
    let (token, request) = port.sa_request();
    assert_eq!(state_of(&request), FULL);
    let (_, answer) = port.sa_lets_go(token, &request);
    assert_eq!(state_of(&answer), NON);
}

#[test]
fn c142_a_join_that_waits_too_long_for_a_delete_ends_the_wait_of_the_leave() {
    let mut port = leaving();
    port.ask(vf(2), &mut join(vf(2), mgid(1), FULL));
    port.outputs();
    port.wait(Duration::from_secs(1));
    let order = [(Some(vf(1)), Method::DELETE_RESP), (None, Method::SET)];
    assert_eq!(methods(&mut port), order);
}

#[test]
fn c143_a_member_that_is_reset_has_no_answer_to_its_leave() {
    let mut port = leaving();
    let (token, request) = port.sa_request();
    port.agg.reset(port.now, vf(1));
    port.nothing_more();
    assert_eq!(port.agg.sizes().leaving, 0);
    port.sa_answers(token, &granted(&request, JoinState::NONE));
    port.nothing_more();
    assert_eq!(port.agg.poll_timeout(), None);
}

#[test]
fn c144_a_leave_whose_membership_the_sm_forgot_is_answered_after_the_delete() {
    let mut port = leaving();
    let (token, request) = port.sa_request();
    port.agg.client_reregister(port.now);
    assert_eq!(port.sa_request().1.header.method, Method::DELETE);
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    assert_eq!(port.answer_status(), MadStatus::OK);
    assert_eq!(port.agg.sizes(), Sizes::default());
}

#[test]
fn c147_beyond_its_quota_of_waiting_requests_a_vfs_leaves_are_answered_at_once() {
    let mut port = Port::with(Config {
        waiting_per_member: 1,
        ..Config::default()
    });
    for group in [1, 2] {
        port.first_join(vf(1), mgid(group), FULL);
    }
    port.waits(vf(1), leave(vf(1), mgid(1), FULL));
    let answer = port.answered(vf(1), leave(vf(1), mgid(2), FULL));
    assert_eq!(answer.header.status, MadStatus::OK);
    assert_eq!(methods(&mut port), [(None, Method::DELETE); 2]);
}
