//! Silence, failures, resets, reregistration, limits: statements 137 to 152.

use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{ComponentMask, JoinState};
use ib_wire::{Gid, Lid, PKeyIndex, SmKey, SubnetPrefix};
use mcast_agg::{Config, MemberId, Outcome, Output, Token};
use std::time::Duration;
use vf_tunnel::{DropReason, VirtualPKeyIndex};

use crate::port::*;

#[test]
fn c137_a_silent_sa_is_asked_three_times_and_the_vf_told_within_three_seconds() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    port.wait(Duration::from_millis(2_900));
    assert_eq!(port.outputs().len(), 3);
    port.wait(Duration::from_millis(100));
    let outputs = port.outputs();
    assert!(matches!(&outputs[0], Output::Answer { answer, .. }
        if answer.header.status == MadStatus::BUSY));
    // The SA may have heard the join after all, so it is told to forget it.
    assert!(matches!(&outputs[1], Output::SaRequest { request, .. }
        if request.header.method == Method::DELETE));
}

#[test]
fn c137_a_group_whose_join_was_given_up_can_be_joined_within_a_second() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    port.wait(Duration::from_secs(3));
    port.outputs();
    assert_eq!(
        port.ask(vf(2), &mut join(vf(2), mgid(1), FULL)),
        Outcome::Absorbed
    );
    port.wait(Duration::from_secs(1));
    let (token, request) = port.sa_request();
    assert_eq!(request.header.method, Method::SET);
    port.sa_answers(token, &granted(&request, FULL));
    assert_eq!(port.answer_status(), MadStatus::OK);
}

#[test]
fn c137_a_late_success_is_counted_on_by_nobody_while_the_leave_for_it_is_under_way() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    let (given_up, request) = port.sa_request();
    port.wait(Duration::from_secs(3));
    let outputs = port.outputs();
    let leave = outputs.iter().find_map(|output| match output {
        Output::SaRequest { token, request } if request.header.method == Method::DELETE => {
            Some((*token, *request))
        }
        _ => None,
    });
    let (leave, delete) = leave.unwrap();
    port.sa_answers(given_up, &granted(&request, FULL));
    assert_eq!(
        port.ask(vf(2), &mut join(vf(2), mgid(1), FULL)),
        Outcome::Absorbed
    );
    port.sa_answers(leave, &granted(&delete, JoinState::NONE));
    let (token, request) = port.sa_request();
    assert_eq!(request.header.method, Method::SET);
    port.sa_answers(token, &granted(&request, FULL));
    assert_eq!(port.answer_status(), MadStatus::OK);
    assert_eq!(port.agg.groups().next().unwrap().at_sa(), FULL);
}

#[test]
fn c137_a_join_refused_after_a_repetition_is_taken_back_all_the_same() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    port.sa_request();
    port.wait(Duration::from_millis(600));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::SA_NO_RESOURCES));
    let outputs = port.outputs();
    assert!(matches!(&outputs[0], Output::Answer { answer, .. }
        if answer.header.status == MadStatus::SA_NO_RESOURCES));
    assert!(matches!(&outputs[1], Output::SaRequest { request, .. }
        if request.header.method == Method::DELETE && state_of(request) == FULL));
}

#[test]
fn c138_a_retransmitted_join_is_absorbed_and_answered_once() {
    let mut port = Port::new();
    for _ in 0..5 {
        assert_eq!(
            port.ask(vf(1), &mut join(vf(1), mgid(1), FULL)),
            Outcome::Absorbed
        );
    }
    let (token, request) = port.sa_request();
    port.sa_answers(token, &granted(&request, FULL));
    port.only_answer();
}

#[test]
fn c140_an_answer_to_nothing_leaves_the_timer_running() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    let (Token(token), request) = port.sa_request();
    let deadline = port.agg.poll_timeout();
    port.sa_answers(Token(token + 1), &granted(&request, FULL));
    port.sa_answers(
        Token(token),
        &with(granted(&request, FULL), ComponentMask::NONE, |r| {
            r.mgid = mgid(2)
        }),
    );
    port.nothing_more();
    assert_eq!(port.agg.poll_timeout(), deadline);
}

#[test]
fn c141_the_second_of_two_answers_is_ignored() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &granted(&request, FULL));
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    assert_eq!(port.answer_status(), MadStatus::OK);
}

#[test]
fn c142_a_failed_delete_is_retried_and_joins_do_not_wait_for_it() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.waits(vf(1), leave(vf(1), mgid(1), FULL));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::BUSY));
    port.wait(Duration::from_secs(2));
    let (_, again) = port.sa_request();
    assert_eq!(again.header.method, Method::DELETE);
    assert_eq!(
        port.ask(vf(2), &mut join(vf(2), mgid(1), FULL)),
        Outcome::Absorbed
    );
    let outputs = port.outputs();
    let [
        Output::Answer { member, answer, .. },
        Output::SaRequest { request, .. },
    ] = &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!(
        (*member, answer.header.method),
        (vf(1), Method::DELETE_RESP)
    );
    assert_eq!(request.header.method, Method::SET);
}

#[test]
fn c142_a_delete_that_is_never_granted_ends_after_eight_tries() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.waits(vf(1), leave(vf(1), mgid(1), FULL));
    port.wait(Duration::from_secs(600));
    let requests = |output: &Output| matches!(output, Output::SaRequest { .. });
    let outputs = port.outputs();
    assert_eq!(outputs.iter().filter(|output| requests(output)).count(), 8);
    assert_eq!(outputs.len(), 9, "and the answer to the leave");
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c143_a_reset_gives_up_only_what_nobody_else_holds() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL | NON);
    port.answered(vf(2), join(vf(2), mgid(1), FULL));
    port.ask(vf(1), &mut join(vf(1), mgid(2), FULL));
    let (pending, request) = port.sa_request();
    port.agg.reset(port.now, vf(1));
    let (_, delete) = port.sa_request();
    assert_eq!(
        (delete.record::<R>().mgid, state_of(&delete)),
        (mgid(1), NON)
    );
    port.sa_answers(pending, &granted(&request, FULL));
    let (_, delete) = port.sa_request();
    assert_eq!(
        (delete.record::<R>().mgid, state_of(&delete)),
        (mgid(2), FULL)
    );
}

#[test]
fn c143_a_rejoin_that_nobody_needs_any_more_ends_in_a_leave() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.agg.client_reregister(port.now);
    let (late, rejoin) = port.sa_request();
    port.agg.reset(port.now, vf(1));
    let (_, leave) = port.sa_request();
    assert_eq!(leave.header.method, Method::DELETE);
    port.sa_answers(late, &granted(&rejoin, FULL));
    port.wait(Duration::from_secs(300));
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c144_after_reregister_the_port_rejoins_and_vfs_are_answered_meanwhile() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.answered(vf(2), join(vf(2), mgid(1), FULL));
    port.agg.client_reregister(port.now);
    let (token, request) = port.sa_request();
    assert_eq!(
        (request.header.method, state_of(&request)),
        (Method::SET, FULL)
    );
    assert!(
        request
            .component_mask
            .contains(R::QKEY | R::PKEY | R::SL | R::FLOW_LABEL)
    );
    for n in [1, 2] {
        let answer = port.answered(vf(n), join(vf(n), mgid(1), FULL));
        assert_eq!(answer.header.status, MadStatus::OK);
    }
    port.sa_answers(token, &granted(&request, FULL));
    port.nothing_more();
    assert_eq!(port.agg.sizes().members, 2);
}

#[test]
fn c145_a_group_that_comes_back_with_another_mlid_is_announced() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.agg.client_reregister(port.now);
    let (token, request) = port.sa_request();
    let moved = with(granted(&request, FULL), ComponentMask::NONE, |r| {
        r.mlid = Lid::new(0xc0ff)
    });
    port.sa_answers(token, &moved);
    let outputs = port.outputs();
    assert!(matches!(&outputs[..], [Output::Changed { members, .. }] if members == &[vf(1)]));
}

#[test]
fn c145_a_group_that_the_sa_refuses_twice_is_lost_and_announced() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.agg.client_reregister(port.now);
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    let (token, request) = port.sa_request();
    assert!(!request.component_mask.intersects(R::QKEY));
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    let outputs = port.outputs();
    assert!(matches!(&outputs[..], [Output::Lost { members, .. }] if members == &[vf(1)]));
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c146_1024_vfs_can_be_members_of_one_group() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    for n in 2..=1024 {
        let answer = port.answered(vf(n), join(vf(n), mgid(1), FULL));
        assert_eq!(answer.header.status, MadStatus::OK);
    }
    assert_eq!(port.agg.sizes().members, 1024);
    port.nothing_more();
}

#[test]
fn c147_beyond_its_group_quota_a_vf_gets_no_resources() {
    let mut port = Port::with(Config {
        groups_per_member: 2,
        ..Config::default()
    });
    port.first_join(vf(1), mgid(1), FULL);
    port.first_join(vf(1), mgid(2), FULL);
    let answer = port.answered(vf(1), join(vf(1), mgid(3), FULL));
    assert_eq!(answer.header.status, MadStatus::SA_NO_RESOURCES);
    port.first_join(vf(2), mgid(3), FULL);
    let answer = port.answered(vf(1), join(vf(1), mgid(3), FULL));
    assert_eq!(answer.header.status, MadStatus::SA_NO_RESOURCES);
    port.waits(vf(1), leave(vf(1), mgid(1), FULL));
    assert_eq!(
        port.answered(vf(1), join(vf(1), mgid(3), FULL))
            .header
            .status,
        MadStatus::OK
    );
}

#[test]
fn c148_sm_key_and_proxy_join_do_not_reach_the_sa() {
    let mut port = Port::new();
    let mut mad = with(join(vf(1), mgid(1), FULL), R::PROXY_JOIN, |r| {
        r.set_proxy_join(true)
    });
    mad.sm_key = SmKey::new(0x1234);
    port.ask(vf(1), &mut mad);
    let (token, request) = port.sa_request();
    assert_eq!(request.sm_key, SmKey::new(0));
    assert!(!request.record::<R>().proxy_join());
    assert!(!request.component_mask.intersects(R::PROXY_JOIN));
    port.sa_answers(token, &granted(&request, FULL));
    assert_eq!(port.only_answer().1.sm_key, SmKey::new(0));
}

#[test]
fn c149_the_answer_goes_back_in_the_partition_of_the_request() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &granted(&request, FULL));
    let outputs = port.outputs();
    assert!(matches!(outputs[0], Output::Answer { pkey_index, .. }
        if pkey_index == VirtualPKeyIndex(PKeyIndex(3))));
}

#[test]
fn c150_the_requesters_prefix_is_echoed_and_a_foreign_one_refused() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    let under = |prefix| {
        with(join(vf(2), mgid(1), FULL), ComponentMask::NONE, |r| {
            r.port_gid = Gid::from_parts(prefix, guid_of(vf(2)));
        })
    };
    let answer = port.answered(vf(2), under(SubnetPrefix::DEFAULT));
    assert_eq!(
        answer.record::<R>().port_gid.prefix(),
        SubnetPrefix::DEFAULT
    );
    let answer = port.answered(vf(2), under(SubnetPrefix::new(1)));
    assert_eq!(answer.header.status, MadStatus::SA_INVALID_GID);
}

#[test]
fn c152_the_pf_and_its_vfs_do_not_disturb_each_other() {
    let mut port = Port::new();
    port.first_join(MemberId::PF, mgid(1), FULL);
    port.answered(vf(1), join(vf(1), mgid(1), FULL));
    port.answered(MemberId::PF, leave(MemberId::PF, mgid(1), FULL));
    port.nothing_more();
    port.answered(MemberId::PF, join(MemberId::PF, mgid(1), FULL));
    port.answered(vf(1), leave(vf(1), mgid(1), FULL));
    port.nothing_more();
    let group = port.agg.groups().next().unwrap();
    assert_eq!((group.at_sa(), group.sa_joins()), (FULL, 1));
}

#[test]
fn c201_a_vf_cannot_queue_joins_without_end() {
    let mut port = Port::new();
    let mut dropped = 0;
    for n in 0..200 {
        match port.ask(vf(1), &mut join(vf(1), mgid(n), FULL)) {
            Outcome::Dropped(reason) => {
                assert_eq!(reason, DropReason::GroupBusy);
                dropped += 1;
            }
            outcome => assert_eq!(outcome, Outcome::Absorbed),
        }
    }
    assert_eq!(dropped, 200 - 32);
    assert_eq!(port.agg.sizes().groups, 32);
}

#[test]
fn a_foreign_port_gid_is_refused() {
    let mut port = Port::new();
    let answer = port.answered(vf(1), join(vf(2), mgid(1), FULL));
    assert_eq!(answer.header.status, MadStatus::SA_REQ_INVALID);
}
