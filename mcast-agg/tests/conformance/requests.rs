//! What a request gets, and what the SA hears of it: statements 116 to 136.

use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{ComponentMask, JoinState};
use ib_wire::{Gid, Lid, PKey, QKey};
use mcast_agg::{Outcome, Output};
use std::time::Duration;

use crate::port::*;

#[test]
fn c116_first_join_sends_one_set() {
    let mut port = Port::new();
    assert_eq!(
        port.ask(vf(1), &mut join(vf(1), mgid(1), FULL)),
        Outcome::Absorbed
    );
    let (_, request) = port.sa_request();
    assert_eq!(request.header.method, Method::SET);
    assert_eq!(
        request.record::<R>().port_gid,
        Gid::from_parts(PREFIX, PORT_GUID)
    );
    assert_eq!(state_of(&request), FULL);
}

#[test]
fn c117_second_join_is_answered_here_with_the_groups_values() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    let answer = port.answered(vf(2), join(vf(2), mgid(1), FULL));
    port.nothing_more();
    assert_eq!(answer.header.status, MadStatus::OK);
    assert_eq!(answer.header.method, Method::GET_RESP);
    assert_eq!(answer.header.tid, join(vf(2), mgid(1), FULL).header.tid);
    let record = answer.record::<R>();
    assert_eq!(record.port_gid, Gid::from_parts(PREFIX, guid_of(vf(2))));
    assert_eq!(record.join_state(), FULL);
    assert_eq!(
        (record.mlid, record.qkey),
        (Lid::new(0xc001), QKey::new(0xb1b))
    );
    assert_eq!(
        (record.mtu, record.rate, record.packet_life_time),
        (0x84, 0x83, 0x80)
    );
}

#[test]
fn c118_second_join_that_does_not_fit_gets_req_invalid() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    let wrong = with(join(vf(2), mgid(1), FULL), R::QKEY, |r| {
        r.qkey = QKey::new(1)
    });
    assert_eq!(
        port.answered(vf(2), wrong).header.status,
        MadStatus::SA_REQ_INVALID
    );
}

#[test]
fn c121_a_group_of_a_foreign_partition_is_refused_and_not_disclosed() {
    let mut port = Port::new();
    port.keys = vec![PKey::new(0x8123)];
    let own = with(join(vf(1), mgid(1), FULL), R::PKEY, |r| {
        r.pkey = PKey::new(0x8123)
    });
    assert_eq!(port.ask(vf(1), &mut own.clone()), Outcome::Absorbed);
    let (token, request) = port.sa_request();
    port.sa_answers(token, &granted(&request, FULL));
    assert_eq!(port.answer_status(), MadStatus::OK);

    port.keys = vec![PKey::DEFAULT_FULL];
    let asked = join(vf(2), mgid(1), FULL);
    let answer = port.answered(vf(2), asked);
    assert_eq!(answer.header.status, MadStatus::SA_REQ_INVALID);
    assert_eq!(answer.record::<R>(), asked.record::<R>());
}

#[test]
fn c121_a_first_joiner_outside_the_groups_partition_is_refused_and_the_port_leaves() {
    let mut port = Port::new();
    assert_eq!(
        port.ask(vf(1), &mut join(vf(1), mgid(1), FULL)),
        Outcome::Absorbed
    );
    let (token, request) = port.sa_request();
    let mut answer = granted(&request, FULL);
    let record = R {
        pkey: PKey::new(0x8123),
        ..answer.record()
    };
    answer.set_record(&record);
    port.sa_answers(token, &answer);
    let outputs = port.outputs();
    assert!(matches!(&outputs[0], Output::Answer { answer, .. }
        if answer.header.status == MadStatus::SA_REQ_INVALID
            && answer.record::<R>().qkey == QKey::new(0)));
    assert!(matches!(&outputs[1], Output::SaRequest { request, .. }
        if request.header.method == Method::DELETE));
}

#[test]
fn c122_join_state_zero_is_refused() {
    let answer = Port::new().answered(vf(1), join(vf(1), mgid(1), JoinState::NONE));
    assert_eq!(answer.header.status, MadStatus::SA_REQ_INVALID);
}

#[test]
fn c123_missing_components_are_refused() {
    for missing in [R::MGID, R::PORT_GID, R::JOIN_STATE] {
        let mut mad = join(vf(1), mgid(1), FULL);
        mad.component_mask = ComponentMask::new(mad.component_mask.get() & !missing.get());
        let answer = Port::new().answered(vf(1), mad);
        assert_eq!(answer.header.status, MadStatus::SA_INSUFFICIENT_COMPONENTS);
    }
}

#[test]
fn c124_the_sas_refusal_is_relayed() {
    let mut port = Port::new();
    assert_eq!(
        port.ask(vf(1), &mut join(vf(1), mgid(1), NON)),
        Outcome::Absorbed
    );
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    assert_eq!(port.answer_status(), MadStatus::SA_REQ_INVALID);
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c125_a_new_kind_of_membership_is_asked_for() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    assert_eq!(
        port.ask(vf(2), &mut join(vf(2), mgid(1), SEND_ONLY)),
        Outcome::Absorbed
    );
    let (token, request) = port.sa_request();
    assert_eq!(state_of(&request), SEND_ONLY);
    port.sa_answers(token, &granted(&request, FULL | SEND_ONLY));
    let (member, answer) = port.only_answer();
    assert_eq!((member, state_of(&answer)), (vf(2), SEND_ONLY));
    let group = port.agg.groups().next().unwrap();
    assert_eq!((group.at_sa(), group.sa_joins()), (FULL | SEND_ONLY, 2));
}

#[test]
fn c126_send_only_full_member_is_counted_and_deleted_with_its_last_holder() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), SEND_ONLY_FULL);
    port.answered(vf(2), join(vf(2), mgid(1), SEND_ONLY_FULL));
    port.answered(vf(1), leave(vf(1), mgid(1), SEND_ONLY_FULL));
    port.nothing_more();
    port.waits(vf(2), leave(vf(2), mgid(1), SEND_ONLY_FULL));
    let (_, request) = port.sa_request();
    assert_eq!(
        (request.header.method, state_of(&request)),
        (Method::DELETE, SEND_ONLY_FULL)
    );
}

#[test]
fn c127_the_last_holder_of_a_bit_causes_one_delete_of_exactly_that_bit() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL | NON);
    port.answered(vf(2), join(vf(2), mgid(1), FULL));
    port.waits(vf(1), leave(vf(1), mgid(1), FULL | NON));
    let (token, request) = port.sa_request();
    assert_eq!(
        (request.header.method, state_of(&request)),
        (Method::DELETE, NON)
    );
    port.sa_answers(token, &granted(&request, FULL));
    assert_eq!(port.only_answer().0, vf(1));
    port.waits(vf(2), leave(vf(2), mgid(1), FULL));
    let (token, request) = port.sa_request();
    assert_eq!(state_of(&request), FULL);
    port.sa_answers(token, &granted(&request, JoinState::NONE));
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c128_leaving_what_one_does_not_hold_is_refused() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    for (member, state) in [(vf(1), NON), (vf(1), FULL | NON), (vf(2), FULL)] {
        let answer = port.answered(member, leave(member, mgid(1), state));
        assert_eq!(answer.header.status, MadStatus::SA_REQ_INVALID);
    }
    let none = port.answered(vf(1), leave(vf(1), mgid(1), JoinState::NONE));
    assert_eq!(none.header.status, MadStatus::SA_REQ_INVALID);
    port.nothing_more();
}

#[test]
fn c129_leaving_an_unknown_group_is_refused_at_once() {
    let answer = Port::new().answered(vf(1), leave(vf(1), mgid(1), FULL));
    assert_eq!(answer.header.status, MadStatus::SA_REQ_INVALID);
    assert_eq!(answer.header.method, Method::DELETE_RESP);
}

#[test]
fn c130_delete_is_answered_by_delete_resp_with_what_is_left() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL | NON);
    port.waits(vf(1), leave(vf(1), mgid(1), NON));
    let (token, request) = port.sa_request();
    let (_, answer) = port.sa_lets_go(token, &request);
    assert_eq!(answer.header.method, Method::DELETE_RESP);
    assert_eq!(
        (answer.header.status, state_of(&answer)),
        (MadStatus::OK, FULL)
    );
}

#[test]
fn c131_get_is_answered_from_what_is_known_or_passed_on() {
    let mut port = Port::new();
    let get = || request(Method::GET, vf(2), mgid(1), FULL);
    assert_eq!(port.ask(vf(2), &mut get()), Outcome::Pass);
    port.first_join(vf(1), mgid(1), FULL);
    let answer = port.answered(vf(2), get());
    assert_eq!(answer.record::<R>().mlid, Lid::new(0xc001));
    assert_eq!(state_of(&answer), JoinState::NONE);
    port.keys = vec![PKey::new(0x8123)];
    assert_eq!(port.ask(vf(2), &mut get()), Outcome::Pass);
}

#[test]
fn c132_get_table_passes() {
    let mut port = Port::new();
    let mut mad = request(Method::GET_TABLE, vf(1), mgid(1), FULL);
    assert_eq!(port.ask(vf(1), &mut mad), Outcome::Pass);
}

#[test]
fn c133_a_created_group_is_found_by_the_mgid_that_the_sa_chose() {
    let mut port = Port::new();
    assert_eq!(
        port.ask(vf(1), &mut join(vf(1), Gid::NONE, FULL)),
        Outcome::Absorbed
    );
    let (token, request) = port.sa_request();
    assert_eq!(request.record::<R>().mgid, Gid::NONE);
    let chosen = with(granted(&request, FULL), ComponentMask::NONE, |r| {
        r.mgid = mgid(9)
    });
    port.sa_answers(token, &chosen);
    let (_, answer) = port.only_answer();
    assert_eq!(answer.record::<R>().mgid, mgid(9));
    port.answered(vf(2), join(vf(2), mgid(9), FULL));
    port.nothing_more();
}

#[test]
fn c134_a_failed_creation_is_relayed() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), Gid::NONE, FULL));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::SA_NO_RESOURCES));
    assert_eq!(port.answer_status(), MadStatus::SA_NO_RESOURCES);
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c135_a_creation_that_succeeds_too_late_is_taken_back() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), Gid::NONE, FULL));
    let (token, request) = port.sa_request();
    port.wait(Duration::from_secs(5));
    port.outputs();
    let late = with(granted(&request, FULL), ComponentMask::NONE, |r| {
        r.mgid = mgid(9)
    });
    port.sa_answers(token, &late);
    let (token, delete) = port.sa_request();
    assert_eq!(delete.header.method, Method::DELETE);
    assert_eq!(
        (delete.record::<R>().mgid, state_of(&delete)),
        (mgid(9), FULL)
    );
    port.sa_answers(token, &granted(&delete, JoinState::NONE));
    port.wait(Duration::from_secs(60));
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c136_two_creations_are_two_transactions_and_two_groups() {
    let mut port = Port::new();
    for n in [1, 2] {
        port.ask(vf(n), &mut join(vf(n), Gid::NONE, FULL));
    }
    let outputs = port.outputs();
    assert_eq!(outputs.len(), 2);
    for (n, output) in (7..).zip(outputs) {
        let Output::SaRequest { token, request } = output else {
            panic!("{output:?}")
        };
        let answer = with(granted(&request, FULL), ComponentMask::NONE, |r| {
            r.mgid = mgid(n)
        });
        port.sa_answers(token, &answer);
    }
    assert_eq!(port.agg.groups().count(), 2);
}
