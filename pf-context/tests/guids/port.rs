//! What the port and its hardware do.

use ib_vtime::Duration;
use ib_wire::smp::PortState;
use ib_wire::{Guid, Lid};
use pf_context::PortReason;
use pf_context::guids::{GuidConfig, GuidOutput, GuidState, GuidWish};

use crate::bench::{Bench, LID, admin, block, class_port_info};

#[test]
fn c157_nothing_is_asked_while_the_port_is_not_active_and_a_look_is_due_each_5_seconds() {
    let mut bench = Bench::down(GuidConfig::default());
    bench.manager.set_lid(bench.now, LID);
    bench.want(3, admin(0xa));
    for _ in 0..3 {
        assert!(bench.asked().is_empty());
        bench.told.clear();
        assert_eq!(bench.pass(), Duration::from_secs(5));
        assert!(bench.asked().is_empty());
        assert_eq!(bench.told, [GuidOutput::CheckPort]);
        bench.manager.port_active(bench.now, false);
    }
    bench.manager.port_active(bench.now, true);
    assert!(bench.asked_one().is_about_support());
    assert_eq!(bench.manager.poll_timeout(), None);
}

#[test]
fn c157_nothing_is_asked_without_a_lid() {
    let mut bench = Bench::down(GuidConfig::default());
    bench.manager.port_active(bench.now, true);
    bench.want(3, admin(0xa));
    assert!(bench.asked().is_empty());
    bench.manager.set_lid(bench.now, LID);
    assert!(bench.asked_one().is_about_support());
}

#[test]
fn c157_a_retry_that_falls_due_while_the_port_is_down_waits_for_it() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0; 8]));
    bench.manager.port_active(bench.now, false);
    bench.pass();
    assert!(bench.asked().is_empty());
    bench.manager.port_active(bench.now, true);
    assert_eq!(bench.asked_one().entries(), [(3, 0xa)]);
}

#[test]
fn a_port_that_is_down_without_anything_to_ask_needs_no_timer() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.manager.port_active(bench.now, false);
    assert_eq!(bench.manager.poll_timeout(), None);
}

#[test]
fn c163_reregistration_and_port_up_ask_for_everything_in_one_request_per_block() {
    let mut bench = Bench::ready();
    for (number, guid) in [(3, 0xa), (4, 0xb), (9, 0xc), (12, 0xd)] {
        bench.bring_up(number, guid);
    }
    bench.withdraw(12);
    let asked = bench.asked_one();
    bench.delete(&asked);
    let expected = [vec![(3, 0xa), (4, 0xb)], vec![(9, 0xc)]];
    let entries = |bench: &mut Bench| -> Vec<Vec<(u16, u64)>> {
        let asked = bench.asked();
        asked.iter().for_each(|request| bench.grant(request));
        asked.iter().map(|request| request.entries()).collect()
    };
    bench.manager.client_reregister(bench.now);
    assert_eq!(entries(&mut bench), expected);
    bench.manager.port_active(bench.now, false);
    bench.manager.port_active(bench.now, true);
    assert_eq!(entries(&mut bench), expected);
    assert!(bench.asked().is_empty());
    let told = [(12, None)];
    assert_eq!(bench.guids_told(), told, "the others kept their GUIDs");
}

#[test]
fn c163_an_answer_to_a_question_from_before_does_not_count() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    let before = bench.asked_one();
    bench.manager.client_reregister(bench.now);
    assert!(bench.asked().is_empty(), "one request per block");
    bench.grant(&before);
    assert_eq!(bench.asked_one().entries(), [(3, 0xa)]);
}

#[test]
fn an_sm_that_gives_another_guid_after_a_failover_takes_the_old_one_away() {
    let mut bench = Bench::ready();
    bench.want(3, GuidWish::SmAssigned);
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0, 0, 0, 0x77, 0, 0, 0, 0]));
    bench.hardware(3, 0x77);
    bench.manager.sm_changed(bench.now);
    let asked = bench.asked_one();
    bench.answer(&asked, class_port_info(true));
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0, 0, 0, 0x78, 0, 0, 0, 0]));
    bench.hardware(3, 0x78);
    assert!(bench.asked().is_empty());
    let told = [(3, Some(0x77)), (3, None), (3, Some(0x78))];
    assert_eq!(bench.guids_told(), told);
}

#[test]
fn hardware_that_loses_a_granted_guid_takes_it_away_and_the_sa_is_asked_again() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.hardware(3, 0);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), [(3, None)]);
    assert_eq!(bench.state(3), GuidState::WaitingForHardware);
    bench.pass();
    let asked = bench.asked_one();
    assert_eq!(asked.entries(), [(3, 0xa)]);
    bench.grant(&asked);
    bench.hardware(3, 0xa);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), [(3, Some(0xa))]);
}

#[test]
fn hardware_that_finds_a_guid_again_asks_nothing() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.hardware(3, 0);
    bench.hardware(3, 0xa);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), [(3, None), (3, Some(0xa))]);
    assert_eq!(bench.manager.poll_timeout(), None);
}

#[test]
fn requests_name_the_lid_that_the_port_has_when_they_are_made() {
    let mut bench = Bench::ready();
    bench.manager.set_lid(bench.now, Lid::new(77));
    bench.want(3, admin(0xa));
    assert_eq!(bench.asked_one().record().lid, Lid::new(77));
}

#[test]
fn an_index_beyond_all_vfs_and_an_unknown_answer_change_nothing() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    let asked = bench.asked_one();
    bench.hardware(u16::MAX, 0xa);
    bench.grant(&asked);
    bench.answer(&asked, block(0, [0; 8]));
    assert!(bench.asked().is_empty());
    assert_eq!(bench.state(3), GuidState::WaitingForHardware);
}

#[test]
fn c230_the_reason_of_a_vfs_port_follows_its_guid_and_each_change_is_told() {
    let mut bench = Bench::ready();
    let reason =
        |bench: &Bench| PortReason::of(PortState::ACTIVE, true, bench.state(3), None).as_str();
    assert_eq!(reason(&bench), "no_guid_requested");
    bench.want(3, admin(0xa));
    assert_eq!(reason(&bench), "waiting_for_sa");
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0; 8]));
    assert_eq!(reason(&bench), "declined");
    let retry_at = bench.now + bench.pass();
    let asked = bench.asked_one();
    bench.grant(&asked);
    assert_eq!(reason(&bench), "waiting_for_hardware");
    bench.hardware(3, 0xa);
    assert_eq!(reason(&bench), "up");
    assert!(bench.asked().is_empty());
    let states: Vec<GuidState> = bench
        .told
        .iter()
        .filter_map(|output| match output {
            GuidOutput::State { state, .. } => Some(*state),
            _ => None,
        })
        .collect();
    let expected = [
        GuidState::WaitingForSa,
        GuidState::Declined { retry_at },
        GuidState::WaitingForSa,
        GuidState::WaitingForHardware,
        GuidState::InHardware(Guid::new(0xa)),
    ];
    assert_eq!(states, expected);
    let down = PortReason::of(PortState::DOWN, true, bench.state(3), None);
    assert_eq!(down.as_str(), "physical_down");
    let kept_down = PortReason::of(PortState::ACTIVE, false, bench.state(3), None);
    assert_eq!(kept_down.as_str(), "admin_down");
}
