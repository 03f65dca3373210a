//! Getting GUIDs from the SA.

use ib_vtime::Duration;
use ib_wire::Guid;
use ib_wire::mad::{MadStatus, Method};
use pf_context::guids::{GuidConfig, GuidState, GuidWish, WishRefusal};

use vf_tunnel::VfId;

use crate::bench::{Bench, LID, admin, block, class_port_info, refusal, timed_out, vf};

const SECOND: Duration = Duration::from_secs(1);
const SECOND_AND_JITTER: Duration = Duration::from_millis(1250);

#[test]
fn c153_an_admin_guid_is_asked_for_with_only_its_own_entry() {
    let mut bench = Bench::ready();
    bench.want(10, admin(0xa));
    let asked = bench.asked_one();
    assert_eq!(asked.mad.header.method, Method::SET);
    let (lid, block_number, guid2) = (1, 2, 1 << (4 + 2));
    assert_eq!(asked.mad.component_mask.get(), lid | block_number | guid2);
    assert_eq!((asked.record().lid, asked.record().block), (LID, 1));
    assert_eq!(asked.entries(), [(10, 0xa)]);
}

#[test]
fn c154_a_vf_has_its_guid_when_the_sa_granted_it_and_hardware_shows_it() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    let asked = bench.asked_one();
    assert_eq!(bench.state(3), GuidState::WaitingForSa);
    bench.grant(&asked);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.state(3), GuidState::WaitingForHardware);
    assert_eq!(bench.guids_told(), []);
    bench.hardware(3, 0xa);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), [(3, Some(0xa))]);
    assert_eq!(bench.state(3), GuidState::InHardware(Guid::new(0xa)));
}

#[test]
fn c154_hardware_that_is_ahead_of_the_sas_answer_is_not_enough() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    let asked = bench.asked_one();
    bench.hardware(3, 0xa);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), []);
    bench.grant(&asked);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), [(3, Some(0xa))]);
}

#[test]
fn c155_a_declined_guid_is_asked_for_again_after_1_2_4_up_to_60_seconds() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        let asked = bench.asked_one();
        assert_eq!(asked.entries(), [(3, 0xa)]);
        bench.answer(&asked, block(0, [0x99, 0, 0, 0, 0, 0, 0, 0]));
        assert!(bench.asked().is_empty());
        let retry_at = bench.now + Duration::from_secs(seconds);
        assert_eq!(bench.state(3), GuidState::Declined { retry_at });
        assert_eq!(bench.pass(), Duration::from_secs(seconds));
    }
}

#[test]
fn c155_other_entries_of_the_block_are_not_delayed_by_a_declined_one() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    bench.want(4, admin(0xb));
    let asked = bench.asked_one();
    assert_eq!(asked.entries(), [(3, 0xa), (4, 0xb)]);
    bench.answer(&asked, block(0, [0x99, 0, 0, 0, 0xb, 0, 0, 0]));
    assert!(bench.asked().is_empty());
    assert_eq!(bench.state(4), GuidState::WaitingForHardware);
    bench.want(5, admin(0xc));
    assert_eq!(bench.asked_one().entries(), [(5, 0xc)]);
}

#[test]
fn c155_an_answer_that_shows_another_guid_declines() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.want(3, admin(0xb));
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0x99, 0, 0, 0xa, 0, 0, 0, 0]));
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), [], "the VF keeps what it has");
    let view = bench.manager.view(vf(3));
    assert_eq!((view.granted, view.declines), (Some(Guid::new(0xa)), 1));
    assert_eq!(bench.pass(), SECOND);
    assert_eq!(bench.asked_one().entries(), [(3, 0xb)]);
}

#[test]
fn a_new_wish_ends_the_wait_of_a_declined_entry() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    for _ in 0..3 {
        let asked = bench.asked_one();
        bench.answer(&asked, block(0, [0; 8]));
        bench.pass();
    }
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0; 8]));
    bench.want(3, admin(0xb));
    let asked = bench.asked_one();
    assert_eq!(asked.entries(), [(3, 0xb)]);
    bench.answer(&asked, block(0, [0; 8]));
    assert_eq!(bench.pass(), SECOND);
}

#[test]
fn c156_a_query_that_fails_is_asked_again_after_a_second_and_some() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    bench.want(4, admin(0xb));
    let mut waits = Vec::new();
    for answer in [
        timed_out(),
        refusal(MadStatus::SA_NO_RESOURCES),
        timed_out(),
    ] {
        let asked = bench.asked_one();
        assert_eq!(asked.entries(), [(3, 0xa), (4, 0xb)]);
        bench.answer(&asked, answer);
        assert!(bench.asked().is_empty());
        assert_eq!(bench.state(3), GuidState::WaitingForSa);
        waits.push(bench.pass());
    }
    assert!(
        waits
            .iter()
            .all(|w| (SECOND..SECOND_AND_JITTER).contains(w))
    );
    assert!(waits[0] != waits[1] && waits[1] != waits[2], "{waits:?}");
}

#[test]
fn c156_managers_with_other_seeds_wait_for_another_time() {
    let wait = |seed| {
        let mut bench = Bench::ready_with(GuidConfig {
            seed,
            ..GuidConfig::default()
        });
        bench.want(3, admin(0xa));
        let asked = bench.asked_one();
        bench.answer(&asked, timed_out());
        bench.pass()
    };
    assert_ne!(wait(1), wait(2));
    assert_eq!(wait(2), wait(2));
}

#[test]
fn c158_the_sas_choice_is_kept_and_asked_for_again() {
    let mut bench = Bench::ready();
    bench.want(3, GuidWish::from_admin_value(Guid::NONE));
    let asked = bench.asked_one();
    assert_eq!(asked.entries(), [(3, 0)]);
    bench.answer(&asked, block(0, [0x99, 0, 0, 0x77, 0, 0, 0, 0]));
    bench.hardware(3, 0x77);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.guids_told(), [(3, Some(0x77))]);
    bench.manager.client_reregister(bench.now);
    assert_eq!(bench.asked_one().entries(), [(3, 0x77)]);
}

#[test]
fn c158_a_vf_that_stops_and_starts_is_given_the_same_guid() {
    let mut bench = Bench::ready();
    bench.want(3, GuidWish::SmAssigned);
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0x99, 0, 0, 0x77, 0, 0, 0, 0]));
    bench.withdraw(3);
    let asked = bench.asked_one();
    bench.delete(&asked);
    bench.want(3, GuidWish::SmAssigned);
    assert_eq!(bench.asked_one().entries(), [(3, 0x77)]);
}

#[test]
fn a_choice_that_the_sa_does_not_repeat_is_forgotten() {
    let mut bench = Bench::ready();
    bench.want(3, GuidWish::SmAssigned);
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0x99, 0, 0, 0x77, 0, 0, 0, 0]));
    bench.manager.sm_changed(bench.now);
    let asked = bench.asked_one();
    assert!(asked.is_about_support());
    bench.answer(&asked, class_port_info(true));
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0; 8]));
    assert_eq!(bench.pass(), SECOND);
    assert_eq!(bench.asked_one().entries(), [(3, 0)]);
}

#[test]
fn c162_entry_0_of_block_0_is_never_asked_for() {
    let mut bench = Bench::ready();
    bench.hardware(0, 0x99);
    for number in 1..=7 {
        bench.want(number, GuidWish::SmAssigned);
    }
    let asked = bench.asked_one();
    assert_eq!(asked.entries().first(), Some(&(1, 0)));
    assert_eq!(asked.entries().len(), 7);
    bench.answer(&asked, block(0, [0, 1, 2, 3, 4, 5, 6, 7]));
    bench.hardware(0, 0x98);
    assert!(bench.asked().is_empty());
    bench.manager.withdraw_all(bench.now);
    let asked = bench.asked_one();
    assert_eq!(asked.entries().first().unwrap().0, 1);
    assert_eq!(bench.refused(1, admin(0x98)), WishRefusal::PortGuid);
    let own = bench.manager.want(bench.now, VfId::PF, admin(0x97));
    assert_eq!(own, Err(WishRefusal::PortGuid));
    bench.manager.withdraw(bench.now, VfId::PF);
    assert!(bench.asked().is_empty());
}

#[test]
fn c164_an_answer_about_another_block_is_ignored_and_the_question_repeated() {
    let mut bench = Bench::ready();
    bench.want(10, admin(0xa));
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0, 0, 0xa, 0, 0, 0, 0, 0]));
    assert!(bench.asked().is_empty());
    assert_eq!(bench.state(10), GuidState::WaitingForSa);
    assert!((SECOND..SECOND_AND_JITTER).contains(&bench.pass()));
    assert_eq!(bench.asked_one().entries(), [(10, 0xa)]);
}

#[test]
fn c165_a_guid_that_another_vf_wants_or_has_is_refused_at_once() {
    let mut bench = Bench::ready();
    bench.bring_up(3, 0xa);
    bench.want(4, GuidWish::SmAssigned);
    let asked = bench.asked_one();
    bench.answer(&asked, block(0, [0x99, 0, 0, 0xa, 0x77, 0, 0, 0]));
    assert_eq!(bench.refused(20, admin(0xa)), WishRefusal::Taken(vf(3)));
    assert_eq!(bench.refused(20, admin(0x77)), WishRefusal::Taken(vf(4)));
    assert!(bench.asked().is_empty());
    assert_eq!(bench.state(20), GuidState::NotRequested);
    bench.want(3, admin(0xa));
}

#[test]
fn reserved_guids_are_refused_at_once() {
    let mut bench = Bench::ready();
    for guid in [0, u64::MAX, 0x0200_0000_0000_0002] {
        assert_eq!(bench.refused(3, admin(guid)), WishRefusal::Reserved);
    }
}

#[test]
fn c166_an_sa_without_additional_guids_is_not_asked_until_the_sm_changes() {
    let mut bench = Bench::active(GuidConfig::default());
    bench.want(3, admin(0xa));
    let asked = bench.asked_one();
    assert!(asked.is_about_support());
    bench.answer(&asked, class_port_info(false));
    bench.want(4, admin(0xb));
    assert!(bench.asked().is_empty());
    assert_eq!(bench.state(3), GuidState::NotSupported);
    assert_eq!(bench.state(4), GuidState::NotSupported);
    assert_eq!(bench.manager.poll_timeout(), None);
    bench.manager.sm_changed(bench.now);
    let asked = bench.asked_one();
    assert!(asked.is_about_support());
    assert_eq!(bench.state(3), GuidState::WaitingForSa);
    bench.answer(&asked, class_port_info(true));
    assert_eq!(bench.asked_one().entries(), [(3, 0xa), (4, 0xb)]);
}

#[test]
fn c166_an_sa_that_does_not_know_the_record_is_not_asked_again() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    let asked = bench.asked_one();
    bench.answer(&asked, refusal(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE));
    assert!(bench.asked().is_empty());
    assert_eq!(bench.state(3), GuidState::NotSupported);
    assert_eq!(bench.manager.poll_timeout(), None);
}

#[test]
fn an_sa_that_does_not_answer_what_it_supports_is_asked_again() {
    let mut bench = Bench::active(GuidConfig::default());
    bench.want(3, admin(0xa));
    let asked = bench.asked_one();
    bench.answer(&asked, timed_out());
    assert!(bench.asked().is_empty());
    assert!((SECOND..SECOND_AND_JITTER).contains(&bench.pass()));
    let asked = bench.asked_one();
    assert!(asked.is_about_support());
    bench.answer(&asked, refusal(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE));
    assert_eq!(bench.asked_one().entries(), [(3, 0xa)]);
}

#[test]
fn a_vf_beyond_the_table_is_never_asked_for_and_says_why() {
    let mut bench = Bench::ready_with(GuidConfig {
        table_len: 12,
        ..GuidConfig::default()
    });
    bench.want(12, admin(0xc));
    bench.want(1000, GuidWish::SmAssigned);
    assert!(bench.asked().is_empty());
    assert_eq!(bench.state(12), GuidState::TableTooSmall);
    assert_eq!(bench.state(1000), GuidState::TableTooSmall);
    bench.want(11, admin(0xb));
    assert_eq!(bench.asked_one().entries(), [(11, 0xb)]);
    assert_eq!(bench.manager.poll_timeout(), None);
}

#[test]
fn what_is_wanted_at_once_goes_in_one_request_per_block_and_few_at_a_time() {
    let mut bench = Bench::ready();
    for number in 1..=254 {
        bench.want(number, GuidWish::SmAssigned);
    }
    let mut waiting = bench.asked();
    assert_eq!(waiting.len(), 4);
    let mut blocks = Vec::new();
    while !waiting.is_empty() {
        let asked = waiting.remove(0);
        blocks.push(asked.record().block);
        let guids: [u64; 8] =
            core::array::from_fn(|at| 0x1000 * u64::from(asked.record().block) + at as u64);
        bench.answer(&asked, block(asked.record().block, guids.map(|g| g + 1)));
        waiting.extend(bench.asked());
        assert!(waiting.len() <= 4);
    }
    assert_eq!(blocks, (0..32).collect::<Vec<u8>>());
}

#[test]
fn a_guid_that_the_sa_chose_and_another_vf_wants_is_given_back() {
    let mut bench = Bench::ready();
    bench.want(3, admin(0xa));
    let lost = bench.asked_one();
    bench.answer(&lost, timed_out());
    bench.want(3, GuidWish::SmAssigned);
    bench.want(20, admin(0xa));
    let asked = bench.asked();
    assert_eq!(asked[0].entries(), [(3, 0)]);
    bench.answer(&asked[0], block(0, [0, 0, 0, 0xa, 0, 0, 0, 0]));
    bench.hardware(3, 0xa);
    let given_back = bench.asked_one();
    assert!(!given_back.is_set());
    assert_eq!(bench.guids_told(), []);
    bench.delete(&given_back);
    assert_eq!(bench.asked_one().entries(), [(3, 0)]);
}
