//! Giving GUIDs back to the SA.

use ib_vtime::Duration;
use ib_wire::Guid;
use ib_wire::mad::MadStatus;
use pf_context::guids::{GuidConfig, GuidManager, GuidOutput, GuidState, GuidWish};

use crate::bench::{Bench, admin, block, refusal, timed_out, vf};

fn leave_groups(number: u16, alias: u64) -> GuidOutput {
    GuidOutput::LeaveGroups {
        vf: vf(number),
        alias: Guid::new(alias),
    }
}

#[test]
fn c159_all_ones_deletes_and_the_guid_is_gone_when_the_sa_says_so() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.want(3, GuidWish::from_admin_value(Guid::new(u64::MAX)));
    let asked = bench.asked_one();
    assert!(!asked.is_set());
    assert_eq!(asked.mad.component_mask.get(), 1 | 2 | 1 << 7);
    assert_eq!(bench.guids_told(), []);
    bench.delete(&asked);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), [(3, None)]);
    assert_eq!(bench.state(3), GuidState::NotRequested);
}

#[test]
fn c160_an_alias_in_a_group_leaves_it_before_the_delete_is_repeated() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.withdraw(3);
    let asked = bench.asked_one();
    bench.answer(&asked, refusal(MadStatus::SA_DENIED));
    assert!(bench.asked().is_empty());
    assert!(bench.told.contains(&leave_groups(3, 0xa)));
    bench.manager.groups_left(bench.now, vf(3));
    let asked = bench.asked_one();
    assert!(!asked.is_set());
    bench.delete(&asked);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.manager.poll_timeout(), None);
}

#[test]
fn c160_an_sa_that_refuses_although_all_groups_are_left_is_asked_ever_more_seldom() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.withdraw(3);
    let asked = bench.asked_one();
    bench.answer(&asked, refusal(MadStatus::SA_DENIED));
    bench.manager.groups_left(bench.now, vf(3));
    for seconds in [2, 4, 8] {
        let asked = bench.asked_one();
        bench.answer(&asked, refusal(MadStatus::SA_DENIED));
        bench.manager.groups_left(bench.now, vf(3));
        assert!(bench.asked().is_empty());
        assert_eq!(bench.pass(), Duration::from_secs(seconds));
    }
}

#[test]
fn c160_one_alias_in_a_group_does_not_keep_the_others_of_the_block() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.bring_up(4, 0xb);
    bench.withdraw(3);
    bench.withdraw(4);
    let asked = bench.asked_one();
    assert_eq!(asked.entries(), [(3, 0xa), (4, 0xb)]);
    bench.answer(&asked, refusal(MadStatus::SA_DENIED));
    assert_eq!(bench.pass(), Duration::from_secs(1));
    let asked = bench.asked_one();
    assert_eq!(asked.entries(), [(3, 0xa)]);
    bench.answer(&asked, refusal(MadStatus::SA_DENIED));
    let asked = bench.asked_one();
    assert_eq!(asked.entries(), [(4, 0xb)]);
    bench.delete(&asked);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.pass(), Duration::from_secs(2));
    assert_eq!(bench.asked_one().entries(), [(3, 0xa)]);
}

/// A port of which the SA knows each member of a group by its own alias, and a VF that has one.
#[test]
fn c151_with_alias_members_an_alias_leaves_its_groups_first() {
    let mut bench = Bench::with_alias_members();
    bench.withdraw(3);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.told, [leave_groups(3, 0xa)]);
    bench.manager.groups_left(bench.now, vf(3));
    let asked = bench.asked_one();
    assert!(!asked.is_set());
    bench.delete(&asked);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.manager.poll_timeout(), None);
}

#[test]
fn with_alias_members_an_alias_leaves_its_groups_before_another_replaces_it() {
    let mut bench = Bench::with_alias_members();
    bench.want(3, admin(0xb));
    assert!(bench.asked().is_empty());
    assert_eq!(bench.told, [leave_groups(3, 0xa)]);
    bench.manager.groups_left(bench.now, vf(3));
    assert_eq!(bench.asked_one().entries(), [(3, 0xb)]);
}

#[test]
fn an_alias_of_which_nobody_says_that_it_left_is_deleted_all_the_same() {
    let mut bench = Bench::with_alias_members();
    bench.withdraw(3);
    assert!(bench.asked().is_empty());
    bench.pass();
    assert!(!bench.asked_one().is_set());
}

#[test]
fn c161_a_vf_that_stops_gives_its_guid_back() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.withdraw(3);
    let asked = bench.asked_one();
    assert!(!asked.is_set());
    assert_eq!(asked.entries(), [(3, 0xa)]);
    bench.delete(&asked);
    bench.want(3, admin(0xa));
    assert!(bench.asked_one().is_set());
}

#[test]
fn c161_a_vf_that_never_had_a_guid_gives_nothing_back() {
    let mut bench = Bench::ready();
    bench.withdraw(3);
    bench.want(4, admin(0xa));
    bench.withdraw(4);
    assert!(bench.asked().is_empty());
    bench.want(5, admin(0xb));
    let asked = bench.asked_one();
    bench.withdraw(5);
    bench.answer(&asked, block(0, [0; 8]));
    assert!(
        bench.asked().is_empty(),
        "the SA has declined: there is nothing"
    );
    assert_eq!(bench.manager.poll_timeout(), None);
}

#[test]
fn c161_what_a_lost_answer_may_have_left_is_given_back() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    let asked = bench.asked_one();
    bench.withdraw(3);
    assert!(bench.asked().is_empty(), "one request per block");
    bench.answer(&asked, timed_out());
    bench.pass();
    let asked = bench.asked_one();
    assert!(!asked.is_set());
    assert_eq!(asked.entries(), [(3, 0)]);
}

#[test]
fn c161_a_guid_that_the_hardware_has_from_before_is_given_back() {
    let mut bench = Bench::ready();
    bench.hardware(3, 0xa);
    assert!(bench.asked().is_empty(), "nobody has said what is wanted");
    bench.withdraw(3);
    assert!(!bench.asked_one().is_set());
}

#[test]
fn a_vf_that_comes_back_before_its_delete_is_answered_asks_again() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.withdraw(3);
    let asked = bench.asked_one();
    bench.want(3, admin(0xa));
    assert!(bench.asked().is_empty());
    bench.delete(&asked);
    let asked = bench.asked_one();
    assert!(asked.is_set());
    bench.grant(&asked);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), [(3, None), (3, Some(0xa))]);
}

#[test]
fn a_guid_that_moves_within_a_block_is_deleted_before_it_is_set() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.withdraw(3);
    bench.want(4, admin(0xa));
    let asked = bench.asked_one();
    assert!(!asked.is_set());
    bench.delete(&asked);
    assert_eq!(bench.asked_one().entries(), [(4, 0xa)]);
}

#[test]
fn c231_when_everything_is_withdrawn_and_answered_no_timer_is_left() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.bring_up(9, 0xb);
    bench.want(4, admin(0xc));
    let declined = bench.asked_one();
    bench.answer(&declined, block(0, [0x99, 0, 0, 0xa, 0, 0, 0, 0]));
    bench.manager.withdraw_all(bench.now);
    let asked = bench.asked();
    assert_eq!(asked.len(), 2);
    for request in &asked {
        bench.delete(request);
    }
    assert!(bench.asked().is_empty());
    assert_eq!(bench.manager.sizes(), Default::default());
}

#[test]
fn c231_what_the_sa_does_not_take_back_is_left_to_it() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.manager.withdraw_all(bench.now);
    for _ in 1..GuidManager::RELEASE_TRIES {
        let asked = bench.asked_one();
        bench.answer(&asked, timed_out());
        bench.pass();
    }
    let asked = bench.asked_one();
    bench.answer(&asked, timed_out());
    assert!(bench.asked().is_empty());
    assert_eq!(bench.manager.sizes(), Default::default());
}

#[test]
fn c231_a_port_that_goes_down_ends_the_giving_back() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.manager.withdraw_all(bench.now);
    let asked = bench.asked_one();
    bench.answer(&asked, refusal(MadStatus::SA_DENIED));
    bench.manager.port_active(bench.now, false);
    assert_eq!(bench.manager.sizes(), Default::default());
    bench.manager.port_active(bench.now, true);
    assert!(bench.asked().is_empty());
}

#[test]
fn an_alias_that_was_deleted_says_nothing_about_the_groups_of_the_next_one() {
    let mut bench = Bench::ready_with(GuidConfig {
        alias_members: true,
        ..GuidConfig::default()
    });
    bench.want(3, GuidWish::SmAssigned);
    bench.want(20, admin(0xa));
    let asked = bench.asked();
    assert_eq!(asked[0].entries(), [(3, 0)]);
    // The SA chooses what another VF wants.
    bench.answer(&asked[0], block(0, [0, 0, 0, 0xa, 0, 0, 0, 0]));
    assert!(bench.asked().is_empty());
    assert!(bench.told.contains(&leave_groups(3, 0xa)));
    bench.manager.groups_left(bench.now, vf(3));
    let given_back = bench.asked_one();
    assert!(!given_back.is_set());
    bench.delete(&given_back);
    let again = bench.asked_one();
    assert_eq!(again.entries(), [(3, 0)]);
    bench.answer(&again, block(0, [0, 0, 0, 0xb, 0, 0, 0, 0]));
    bench.hardware(3, 0xb);
    assert!(bench.asked().is_empty());
    bench.withdraw(3);
    assert!(bench.asked().is_empty(), "its groups come first");
    assert!(bench.told.contains(&leave_groups(3, 0xb)));
}
