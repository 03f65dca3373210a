//! Changes of wish, answer and hardware while a request is in flight.

use ib_vtime::Duration;
use ib_wire::Guid;
use ib_wire::mad::MadStatus;
use pf_context::guids::{GuidConfig, GuidOutput, GuidState, GuidWish, WishRefusal};

use crate::bench::{Bench, admin, block, class_port_info, refusal, vf};

const SECOND: Duration = Duration::from_secs(1);
const SECOND_AND_JITTER: Duration = Duration::from_millis(1250);

/// Counts the `LeaveGroups` events since the last call.
fn leaves(bench: &mut Bench) -> usize {
    let told = bench.told.drain(..);
    told.filter(|output| matches!(output, GuidOutput::LeaveGroups { .. }))
        .count()
}

/// Has VF 3 request a GUID of the SA's choice again, after it gave one back.
fn again_with_a_choice(bench: &mut Bench) {
    bench.want(3, GuidWish::SmAssigned);
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0, 0, 0, 0x77, 0, 0, 0, 0]));
    bench.withdraw(3);
    let delete = bench.asked_one();
    bench.delete(&delete);
    assert!(bench.asked().is_empty());
}

#[test]
fn c166_what_a_former_sa_supports_does_not_count() {
    let mut bench = Bench::active(GuidConfig::default());
    bench.want(3, admin(0xa));
    let of_former = bench.asked_one();
    bench.manager.sm_changed(bench.now);
    bench.answer(&of_former, class_port_info(false));
    assert_eq!(bench.state(3), GuidState::WaitingForSa);
    assert!(bench.asked_one().is_about_support());
}

#[test]
fn c166_a_new_sa_is_asked_what_it_supports_though_the_former_has_not_answered() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    assert!(!bench.asked_one().is_about_support());
    bench.manager.sm_changed(bench.now);
    assert!(bench.asked_one().is_about_support());
}

#[test]
fn an_entry_that_was_refused_by_itself_is_asked_for_with_others_again() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    let asked = bench.asked_one();
    bench.answer(&asked, refusal(MadStatus::SA_REQ_INVALID));
    bench.want(4, admin(0xb));
    let asked = bench.asked_one();
    bench.grant(&asked);
    bench.manager.client_reregister(bench.now);
    assert_eq!(bench.asked_one().entries(), [(3, 0xa), (4, 0xb)]);
}

#[test]
fn c156_what_is_refused_for_no_entrys_sake_is_asked_again_after_a_second_each_time() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    for _ in 0..3 {
        let asked = bench.asked_one();
        bench.answer(&asked, refusal(MadStatus::SA_DENIED));
        assert!((SECOND..SECOND_AND_JITTER).contains(&bench.pass()));
    }
    let asked = bench.asked_one();
    bench.grant(&asked);
    bench.withdraw(3);
    for _ in 0..3 {
        let asked = bench.asked_one();
        assert!(!asked.is_set());
        bench.answer(&asked, refusal(MadStatus::SA_REQ_INVALID));
        assert!((SECOND..SECOND_AND_JITTER).contains(&bench.pass()));
    }
}

#[test]
fn an_alias_that_is_asked_for_again_leaves_no_groups() {
    let mut bench = Bench::with_alias_members();
    bench.manager.client_reregister(bench.now);
    let asked = bench.asked_one();
    assert!(asked.is_set());
    assert_eq!(leaves(&mut bench), 0);
    assert!(bench.manager.is_being_confirmed(vf(3)));
    bench.grant(&asked);
    assert!(bench.asked().is_empty());
    assert!(!bench.manager.is_being_confirmed(vf(3)));
}

#[test]
fn an_alias_that_left_its_groups_once_leaves_those_that_it_has_joined_since() {
    let mut bench = Bench::with_alias_members();
    bench.withdraw(3);
    assert!(bench.asked().is_empty());
    bench.manager.groups_left(bench.now, vf(3));
    let delete = bench.asked_one();
    bench.answer(&delete, refusal(MadStatus::SA_REQ_INVALID));
    assert_eq!(leaves(&mut bench), 1);
    bench.want(3, admin(0xb));
    assert!(bench.asked().is_empty());
    assert_eq!(leaves(&mut bench), 1);
}

#[test]
fn a_vf_that_is_stopped_twice_goes_on_leaving_its_groups() {
    let mut bench = Bench::with_alias_members();
    for _ in 0..2 {
        bench.withdraw(3);
        assert!(bench.asked().is_empty());
    }
    bench.manager.client_reregister(bench.now);
    assert!(bench.asked().is_empty());
    assert_eq!(leaves(&mut bench), 1);
}

#[test]
fn a_vf_that_comes_back_while_it_leaves_its_groups_waits_for_nothing() {
    let mut bench = Bench::with_alias_members();
    bench.withdraw(3);
    assert!(bench.asked().is_empty());
    bench.want(3, admin(0xa));
    assert!(bench.asked().is_empty());
    assert_eq!(bench.state(3), GuidState::InHardware(Guid::new(0xa)));
    assert_eq!(bench.manager.poll_timeout(), None);
}

#[test]
fn c163_a_declined_guid_is_asked_for_at_once_when_the_sa_forgot() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0; 8]));
    assert!(matches!(bench.state(3), GuidState::Declined { .. }));
    assert!(bench.asked().is_empty());
    bench.manager.client_reregister(bench.now);
    assert_eq!(bench.asked_one().entries(), [(3, 0xa)]);
}

#[test]
fn c165_a_choice_that_is_being_asked_for_again_is_nobody_elses() {
    let mut bench = Bench::ready();
    again_with_a_choice(&mut bench);
    bench.want(3, GuidWish::SmAssigned);
    assert_eq!(bench.asked_one().entries(), [(3, 0x77)]);
    let refused = bench.refused(20, admin(0x77));
    assert_eq!(refused, WishRefusal::Taken(vf(3)));
}

#[test]
fn c158_a_choice_that_another_vf_has_by_now_is_not_asked_for() {
    let mut bench = Bench::ready();
    again_with_a_choice(&mut bench);
    bench.want(20, admin(0x77));
    let asked = bench.asked_one();
    bench.grant(&asked);
    bench.want(3, GuidWish::SmAssigned);
    assert_eq!(bench.asked_one().entries(), [(3, 0)]);
}

#[test]
fn c165_a_guid_that_comes_to_a_vf_goes_from_the_one_that_had_it_first() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.withdraw(3);
    let delete = bench.asked_one();
    bench.want(20, admin(0xa));
    let set = bench.asked_one();
    bench.grant(&set);
    bench.hardware(20, 0xa);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), [(3, None), (20, Some(0xa))]);
    bench.delete(&delete);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), []);
}

#[test]
fn c165_vfs_that_want_each_others_guids_get_them() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.bring_up(20, 0xb);
    bench.withdraw(20);
    let under_way = bench.asked_one();
    bench.want(3, admin(0xb));
    let declined = bench.asked_one();
    bench.answer(&declined, block(0, [0, 0, 0, 0xa, 0, 0, 0, 0]));
    bench.want(20, admin(0xa));
    bench.answer(&under_way, refusal(MadStatus::SA_REQ_INVALID));
    // Whichever goes first, one of them has to give its GUID back before it can have the other's.
    bench.pass();
    bench.pass();
    let given_back = bench.asked().into_iter().find(|asked| !asked.is_set());
    assert_eq!(given_back.unwrap().entries().len(), 1);
}

#[test]
fn the_last_vf_has_an_entry_as_well() {
    let mut bench = Bench::ready_with(GuidConfig {
        table_len: 1_025,
        ..GuidConfig::default()
    });
    bench.bring_up(1_024, 0xa);
}

#[test]
fn hardware_that_shows_what_nobody_wants_starts_no_timer() {
    let mut bench = Bench::ready();
    bench.hardware(5, 0x99);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.manager.poll_timeout(), None);
}

#[test]
fn c231_a_new_wish_ends_the_giving_back_of_everything() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.manager.withdraw_all(bench.now);
    let delete = bench.asked_one();
    bench.delete(&delete);
    bench.hardware(3, 0);
    bench.bring_up(3, 0xa);
    bench.withdraw(3);
    for _ in 0..20 {
        let delete = bench.asked_one();
        bench.answer(&delete, refusal(MadStatus::SA_REQ_INVALID));
        bench.pass();
    }
}
