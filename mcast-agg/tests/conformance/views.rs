//! The views of groups, and their consistency with the SA.

use std::time::Duration;

use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{ComponentMask, JoinState};
use ib_wire::{Gid, SubnetPrefix};
use mcast_agg::{Config, GroupView, Outcome, Output, UnderWay};

use crate::port::*;

fn only_group(port: &Port) -> GroupView<'_> {
    let mut groups = port.agg.groups();
    let group = groups.next().expect("a group");
    assert!(groups.next().is_none());
    group
}

fn under_way(what: &'static str, attempts: u32) -> Option<UnderWay> {
    Some(UnderWay { what, attempts })
}

/// Returns the request that the SA has to answer.
fn asked(port: &mut Port) -> Vec<(Method, JoinState)> {
    let outputs = port.outputs().into_iter();
    let requests = outputs.filter_map(|output| match output {
        Output::SaRequest { request, .. } => Some((request.header.method, state_of(&request))),
        _ => None,
    });
    requests.collect()
}

#[test]
fn what_is_under_way_for_a_group_is_shown() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    port.ask(vf(2), &mut join(vf(2), mgid(1), FULL));
    let (token, request) = port.sa_request();
    let group = only_group(&port);
    assert_eq!(
        (group.under_way(), group.waiting()),
        (under_way("join", 1), 2)
    );
    let sizes = port.agg.sizes();
    assert_eq!((sizes.transactions, sizes.timers, sizes.waiting), (1, 1, 2));
    port.wait(Duration::from_millis(600));
    assert_eq!(only_group(&port).under_way(), under_way("join", 2));
    port.outputs();

    port.sa_answers(token, &granted(&request, FULL));
    port.outputs();
    let group = only_group(&port);
    assert_eq!((group.under_way(), group.waiting()), (None, 0));
    assert_eq!(group.record().mgid, mgid(1));
    assert_eq!(group.record().mlid.get(), 0xc001);

    port.agg.client_reregister(port.now);
    let (token, request) = port.sa_request();
    assert_eq!(only_group(&port).under_way(), under_way("rejoin", 1));
    port.sa_answers(token, &granted(&request, FULL));

    port.answered(vf(1), leave(vf(1), mgid(1), FULL));
    port.waits(vf(2), leave(vf(2), mgid(1), FULL));
    assert_eq!(port.agg.sizes().leaving, 1);
    let (token, request) = port.sa_request();
    let group = only_group(&port);
    assert_eq!(group.under_way(), under_way("leave", 1));
    assert_eq!(group.sa_joins(), 2, "a leave is no join");
    port.sa_answers(token, &granted(&request, FULL));
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn what_was_given_up_is_remembered_for_a_while() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), Gid::NONE, FULL));
    port.wait(Duration::from_secs(3));
    port.outputs();
    let sizes = port.agg.sizes();
    assert_eq!((sizes.transactions, sizes.groups), (1, 0));
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    assert_eq!(port.agg.sizes().transactions, 2);
    assert_eq!(port.agg.sizes().timers, 2);
}

#[test]
fn the_limits_are_those_that_were_given() {
    let port = Port::with(Config {
        groups_per_member: 7,
        ..Config::default()
    });
    assert_eq!(port.agg.config().groups_per_member, 7);
}

#[test]
fn what_the_sa_has_forgotten_is_joined_again_when_its_answer_shows_it() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.ask(vf(2), &mut join(vf(2), mgid(1), SEND_ONLY));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &granted(&request, SEND_ONLY));
    assert_eq!(asked(&mut port), [(Method::SET, FULL | SEND_ONLY)]);
}

/// Has the only member of a group leave while another VF waits for a membership of another kind. Returns the requests
/// that follow the SA's answers to the leave and to the next join.
fn asked_when_a_leave_met_a_join(status: MadStatus) -> Vec<(Method, JoinState)> {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.waits(vf(1), leave(vf(1), mgid(1), FULL));
    let (token, request) = port.sa_request();
    port.ask(vf(2), &mut join(vf(2), mgid(1), SEND_ONLY));
    let mut answer = granted(&request, FULL);
    answer.header.status = status;
    port.sa_answers(token, &answer);
    let outputs = port.outputs();
    let [Output::Answer { .. }, Output::SaRequest { token, request }] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!(request.header.method, Method::SET);
    port.sa_answers(*token, &granted(request, SEND_ONLY));
    asked(&mut port)
}

#[test]
fn a_leave_that_the_sa_put_off_is_made_once_nobody_waits() {
    let put_off = asked_when_a_leave_met_a_join(MadStatus::BUSY);
    assert_eq!(put_off, [(Method::DELETE, FULL)]);
    assert_eq!(asked_when_a_leave_met_a_join(MadStatus::OK), []);
}

#[test]
fn a_leave_of_two_kinds_that_is_refused_for_one_of_them_is_made_for_each() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.ask(vf(1), &mut join(vf(1), mgid(1), NON));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &granted(&request, FULL | NON));
    port.outputs();
    port.agg.reset(port.now, vf(1));
    for states in [FULL | NON, FULL, NON] {
        let (token, request) = port.sa_request();
        let what = (request.header.method, state_of(&request));
        assert_eq!(what, (Method::DELETE, states));
        port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    }
    port.nothing_more();
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

/// Answers the creation of a group. Returns the answer to the VF and the view of the groups.
fn told_of_a_made_group(group: Gid, status: MadStatus) -> (MadStatus, Vec<u64>) {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), Gid::NONE, FULL));
    let (token, request) = port.sa_request();
    let mut answer = with(granted(&request, FULL), ComponentMask::NONE, |record| {
        record.mgid = group;
    });
    answer.header.status = status;
    port.sa_answers(token, &answer);
    let told = port.answer_status();
    (told, port.agg.groups().map(|g| g.sa_joins()).collect())
}

#[test]
fn a_group_was_made_only_if_the_sa_says_so_and_names_it() {
    let made = told_of_a_made_group(mgid(9), MadStatus::OK);
    assert_eq!(made, (MadStatus::OK, vec![1]));
    let refused = told_of_a_made_group(mgid(9), MadStatus::SA_REQ_INVALID);
    assert_eq!(refused, (MadStatus::SA_REQ_INVALID, vec![]));
    let (told, groups) = told_of_a_made_group(Gid::NONE, MadStatus::OK);
    assert!(told != MadStatus::OK && groups.is_empty(), "{told:?}");
}

#[test]
fn a_late_refusal_of_a_group_that_was_to_be_made_leaves_nothing_to_give_back() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), Gid::NONE, FULL));
    let (token, request) = port.sa_request();
    port.wait(Duration::from_secs(3));
    port.outputs();
    let late = with(
        refused(&request, MadStatus::SA_REQ_INVALID),
        ComponentMask::NONE,
        |record| record.mgid = mgid(9),
    );
    port.sa_answers(token, &late);
    port.nothing_more();
}

#[test]
fn a_rejoin_that_nobody_wants_any_more_makes_way_for_those_behind_it() {
    let mut port = Port::with(Config {
        max_in_flight: 1,
        ..Config::default()
    });
    for n in 1..=3 {
        port.first_join(vf(n), mgid(u8::try_from(n).unwrap()), FULL);
    }
    port.agg.client_reregister(port.now);
    let (token, first) = port.sa_request();
    let waiting = (1..=3).filter(|&n| mgid(n) != first.record::<R>().mgid);
    let [gone, stays]: [u8; 2] = waiting.collect::<Vec<_>>().try_into().unwrap();
    port.agg.reset(port.now, vf(u16::from(gone)));
    port.sa_answers(token, &granted(&first, FULL));
    let mut rejoined = Vec::new();
    while let Some(Output::SaRequest { token, request }) = port.agg.poll_output() {
        rejoined.push((request.header.method, request.record::<R>().mgid));
        port.sa_answers(token, &granted(&request, FULL));
    }
    assert!(
        rejoined.contains(&(Method::SET, mgid(stays))),
        "{rejoined:?}"
    );
}

#[test]
fn who_waits_behind_a_rejoin_that_is_given_up_is_joined_at_the_sa() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.ask(vf(1), &mut join(vf(1), mgid(1), NON));
    let (token, request) = port.sa_request();
    port.ask(vf(2), &mut join(vf(2), mgid(1), NON));
    // The SA has forgotten the port by the time at which it hears of it again.
    port.agg.client_reregister(port.now);
    port.outputs();
    port.sa_answers(token, &granted(&request, FULL | NON));
    assert_eq!(asked(&mut port), [(Method::SET, FULL | NON)]);
    port.agg.reset(port.now, vf(1));
    let (token, request) = port.sa_request();
    assert_eq!(
        (request.header.method, state_of(&request)),
        (Method::SET, NON)
    );
    port.sa_answers(token, &granted(&request, NON));
    assert_eq!(only_group(&port).at_sa(), NON);
}

#[test]
fn what_is_under_way_goes_to_the_new_sm() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    let (token, _) = port.sa_request();
    port.agg.sm_changed(port.now);
    assert_eq!(port.sa_request().0, token);
}

#[test]
fn a_group_that_the_port_is_not_in_yet_is_asked_of_the_sa() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    let mut get = request(Method::GET, vf(1), mgid(1), FULL);
    assert_eq!(port.ask(vf(1), &mut get), Outcome::Pass);
}

#[test]
fn a_question_that_names_no_group_is_the_sas_to_answer() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    let mut get = request(Method::GET, vf(1), mgid(1), FULL);
    get.component_mask = R::PORT_GID | R::JOIN_STATE;
    assert_eq!(port.ask(vf(1), &mut get), Outcome::Pass);
}

#[test]
fn who_may_be_in_no_more_groups_may_be_in_his_own_in_another_way() {
    let mut port = Port::with(Config {
        groups_per_member: 1,
        ..Config::default()
    });
    port.first_join(vf(1), mgid(1), FULL);
    port.first_join(vf(2), mgid(2), FULL);
    let again = port.ask(vf(1), &mut join(vf(1), mgid(1), NON));
    assert_eq!(again, Outcome::Absorbed);
    let other = port.answered(vf(1), join(vf(1), mgid(2), NON));
    assert_eq!(other.header.status, MadStatus::SA_NO_RESOURCES);
}

#[test]
fn the_ports_requests_have_the_prefix_that_the_port_has_now() {
    let mut port = Port::new();
    let prefix = SubnetPrefix::new(0xfec0_0000_0000_0002);
    port.agg.set_prefix(prefix);
    let join = with(join(vf(1), mgid(1), FULL), ComponentMask::NONE, |record| {
        record.port_gid = Gid::from_parts(prefix, guid_of(vf(1)));
    });
    port.ask(vf(1), &mut { join });
    let (_, request) = port.sa_request();
    assert_eq!(request.record::<R>().port_gid.prefix(), prefix);
}
