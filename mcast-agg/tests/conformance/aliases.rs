//! Members that the SA knows under their own aliases.

use std::time::Duration;

use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{ComponentMask, SaMad};
use ib_wire::{Gid, Guid};
use mcast_agg::{Config, JoinAs, MemberId, Outcome, Output};

use crate::port::{
    FULL, NON, PORT_GUID, Port, R, granted, guid_of, join, leave, mgid, refused, state_of, vf, with,
};

fn with_aliases() -> Port {
    Port::with(Config {
        join_as: JoinAs::Alias,
        ..Config::default()
    })
}

fn named_port(request: &SaMad) -> Guid {
    request.record::<R>().port_gid.interface_id()
}

fn is_left(outputs: &[Output], who: MemberId) -> bool {
    matches!(outputs, [Output::Left { member }] if *member == who)
}

fn leave_with_alias(port: &mut Port, member: MemberId) {
    port.agg.leave_alias(port.now, member, guid_of(member));
}

#[test]
fn c151_each_vf_joins_and_leaves_under_its_own_alias() {
    let mut port = with_aliases();
    for n in [1, 2] {
        let outcome = port.ask(vf(n), &mut join(vf(n), mgid(1), FULL));
        assert_eq!(outcome, Outcome::Absorbed);
        let (token, request) = port.sa_request();
        assert_eq!(named_port(&request), guid_of(vf(n)));
        port.sa_answers(token, &granted(&request, FULL));
        assert_eq!(port.answer_status(), MadStatus::OK);
    }
    assert_eq!(port.agg.sizes().groups, 2);
    let aliases: Vec<Guid> = port.agg.groups().map(|group| group.port_guid()).collect();
    assert_eq!(aliases, [guid_of(vf(1)), guid_of(vf(2))]);

    let again = port.answered(vf(2), join(vf(2), mgid(1), FULL));
    assert_eq!(again.header.status, MadStatus::OK);
    port.nothing_more();

    port.waits(vf(1), leave(vf(1), mgid(1), FULL));
    let (token, request) = port.sa_request();
    assert_eq!(request.header.method, Method::DELETE);
    assert_eq!(named_port(&request), guid_of(vf(1)));
    let (_, answer) = port.sa_lets_go(token, &request);
    assert_eq!(answer.header.status, MadStatus::OK);
    assert_eq!(port.agg.sizes().groups, 1);
}

#[test]
fn c151_the_pf_joins_under_the_ports_own_guid() {
    let mut port = with_aliases();
    let pf = MemberId::PF;
    assert_eq!(
        port.ask(pf, &mut join(pf, mgid(1), FULL)),
        Outcome::Absorbed
    );
    assert_eq!(named_port(&port.sa_request().1), PORT_GUID);
}

#[test]
fn c151_a_group_made_by_the_sa_is_the_makers_alone() {
    let mut port = with_aliases();
    let mut create = join(vf(1), Gid::NONE, FULL);
    assert_eq!(port.ask(vf(1), &mut create), Outcome::Absorbed);
    let (token, request) = port.sa_request();
    assert_eq!(named_port(&request), guid_of(vf(1)));
    let mut record = request.record::<R>();
    record.mgid = mgid(9);
    let mut made = request;
    made.set_record(&record);
    port.sa_answers(token, &granted(&made, FULL));
    assert_eq!(port.answer_status(), MadStatus::OK);
    let mut second = join(vf(2), mgid(9), FULL);
    assert_eq!(port.ask(vf(2), &mut second), Outcome::Absorbed);
}

#[test]
fn c151_c160_an_alias_has_left_when_the_sa_has_answered_all_its_leaves() {
    let mut port = with_aliases();
    port.first_join(vf(1), mgid(1), FULL);
    port.first_join(vf(1), mgid(2), NON);
    port.first_join(vf(2), mgid(1), FULL);
    leave_with_alias(&mut port, vf(1));
    let mut leaves = Vec::new();
    let mut lost = Vec::new();
    for output in port.outputs() {
        match output {
            Output::SaRequest { token, request } => leaves.push((token, request)),
            Output::Lost { mgid, members } => lost.push((mgid, members)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lost, [(mgid(1), vec![vf(1)]), (mgid(2), vec![vf(1)])]);
    assert_eq!(leaves.len(), 2);
    let (token, request) = leaves[0];
    assert_eq!(named_port(&request), guid_of(vf(1)));
    port.sa_answers(token, &granted(&request, FULL));
    port.nothing_more();
    let (token, request) = leaves[1];
    port.sa_answers(token, &granted(&request, NON));
    assert!(is_left(&port.outputs(), vf(1)));
    assert_eq!((port.agg.sizes().groups, port.agg.sizes().members), (1, 1));
}

#[test]
fn c151_an_alias_that_the_sa_does_not_let_go_has_left_after_the_last_try() {
    let mut port = with_aliases();
    port.first_join(vf(1), mgid(1), FULL);
    leave_with_alias(&mut port, vf(1));
    port.outputs();
    port.wait(Duration::from_secs(60));
    assert!(
        !port
            .outputs()
            .iter()
            .any(|o| matches!(o, Output::Left { .. }))
    );
    port.wait(Duration::from_secs(300));
    assert!(
        port.outputs()
            .iter()
            .any(|o| matches!(o, Output::Left { .. }))
    );
}

#[test]
fn c151_a_join_that_waits_is_refused_when_its_alias_goes_and_a_late_grant_is_given_back() {
    let mut port = with_aliases();
    let mut asked = join(vf(1), mgid(1), FULL);
    assert_eq!(port.ask(vf(1), &mut asked), Outcome::Absorbed);
    let (token, request) = port.sa_request();
    leave_with_alias(&mut port, vf(1));
    assert_eq!(port.answer_status(), MadStatus::SA_REQ_INVALID);
    port.sa_answers(token, &granted(&request, FULL));
    let (token, request) = port.sa_request();
    assert_eq!(request.header.method, Method::DELETE);
    assert_eq!(state_of(&request), FULL);
    port.sa_answers(token, &granted(&request, FULL));
    assert!(is_left(&port.outputs(), vf(1)));
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn an_alias_that_is_in_no_group_or_is_not_known_to_the_sa_leaves_at_once() {
    let mut port = with_aliases();
    leave_with_alias(&mut port, vf(1));
    assert!(is_left(&port.outputs(), vf(1)));

    let mut aggregated = Port::new();
    aggregated.first_join(vf(1), mgid(1), FULL);
    leave_with_alias(&mut aggregated, vf(1));
    assert!(is_left(&aggregated.outputs(), vf(1)));
    assert_eq!(aggregated.agg.sizes().members, 1);
}

#[test]
fn after_a_failover_an_alias_that_the_sa_does_not_know_yet_is_asked_for_again() {
    let mut port = with_aliases();
    port.first_join(vf(1), mgid(1), FULL);
    port.agg.client_reregister(port.now);
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    port.nothing_more();
    port.wait(Duration::from_secs(3));
    let (token, request) = port.sa_request();
    assert_eq!(named_port(&request), guid_of(vf(1)));
    port.sa_answers(token, &granted(&request, FULL));
    assert_eq!(port.agg.sizes().members, 1);
    assert_eq!(port.agg.poll_timeout(), None);
}

#[test]
fn an_alias_that_the_sa_never_knows_again_loses_its_groups() {
    let mut port = with_aliases();
    port.first_join(vf(1), mgid(1), FULL);
    port.agg.client_reregister(port.now);
    let mut asked = 0;
    for _ in 0..20 {
        for output in port.outputs() {
            match output {
                Output::SaRequest { token, request } => {
                    asked += 1;
                    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
                }
                Output::Lost { members, .. } => {
                    assert_eq!(members, [vf(1)]);
                    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
                    assert_eq!(
                        asked, 7,
                        "in full, and six times without what makes a group"
                    );
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
        port.wait(Duration::from_secs(60));
    }
    panic!("nobody was told");
}

#[test]
fn an_alias_has_not_left_while_a_group_may_be_made_for_it() {
    let mut port = with_aliases();
    port.ask(vf(1), &mut join(vf(1), Gid::NONE, FULL));
    let (token, request) = port.sa_request();
    leave_with_alias(&mut port, vf(1));
    assert!(!is_left(&port.outputs(), vf(1)));
    let made = with(granted(&request, FULL), ComponentMask::NONE, |record| {
        record.mgid = mgid(9);
    });
    port.sa_answers(token, &made);
    let (token, delete) = port.sa_request();
    assert_eq!(delete.header.method, Method::DELETE);
    port.sa_answers(token, &granted(&delete, FULL));
    assert!(is_left(&port.outputs(), vf(1)));
}

#[test]
fn an_alias_leaves_whatever_is_under_way_for_others() {
    let mut port = with_aliases();
    port.ask(vf(2), &mut join(vf(2), mgid(1), FULL));
    port.sa_request();
    leave_with_alias(&mut port, vf(1));
    assert!(is_left(&port.outputs(), vf(1)));
}
