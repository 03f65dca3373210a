//! Reports: statements 207 to 209 and 213.

use ib_wire::mad::{MadStatus, Method};
use ib_wire::notice::{InformInfo, NoticeType, TrapNumber};
use ib_wire::{Gid, Guid, Lid, SubnetPrefix, Tid};
use mcast_agg::{MemberId, Outcome};
use std::time::Duration;
use vf_tunnel::DropReason;

use crate::port::*;

#[test]
fn c207_each_subscriber_gets_a_copy_with_its_own_tid_and_the_sa_one_answer() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.status(vf(2), &in_service());
    let report = in_service_report(0x2_02da_b001);
    let answer = port.agg.report(port.now, &report, |_| true).unwrap();
    assert_eq!(answer.header.method, Method::REPORT_RESP);
    assert_eq!(answer.header.tid, report.header.tid);
    assert_eq!(answer.data, report.data);
    let copies = port.copies();
    assert_eq!(copies.len(), 2);
    assert_ne!(copies[0].1.header.tid, copies[1].1.header.tid);
    for (_, copy) in copies {
        assert_eq!(copy.header.method, Method::REPORT);
        assert_eq!(copy.data, report.data);
    }
}

#[test]
fn c207_only_who_subscribed_to_what_happened_hears_of_it() {
    let mut port = Port::new();
    let all = to_trap(TrapNumber::ALL);
    let lids = |begin, end| InformInfo {
        lid_range_begin: Lid::new(begin),
        lid_range_end: Lid::new(end),
        ..all
    };
    let gid = |gid| InformInfo { gid, ..all };
    let of_type = |notice_type: NoticeType| InformInfo {
        notice_type: u16::from(notice_type.get()).into(),
        ..all
    };
    let by = |producer| InformInfo { producer, ..all };
    let heard = [
        all,
        in_service(),
        lids(ISSUER.get(), 0),
        lids(1, 9),
        gid(ISSUER_GID),
        of_type(NoticeType::SUBNET_MANAGEMENT),
        by([0, 0, 4]),
    ];
    let not_heard = [
        to_trap(TrapNumber::GID_OUT_OF_SERVICE),
        lids(6, 9),
        gid(Gid([8; 16])),
        of_type(NoticeType::URGENT),
        by([0, 0, 1]),
        InformInfo {
            is_generic: 0,
            ..all
        },
    ];
    for (n, info) in (1..).zip(heard.iter().chain(&not_heard)) {
        port.first(vf(n), info);
    }
    let expected: Vec<MemberId> = (1..).take(heard.len()).map(vf).collect();
    assert_eq!(port.heard_by(&in_service_report(1)), expected);
}

#[test]
fn c207_a_subscriber_without_the_partition_gets_no_copy() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.status(vf(2), &in_service());
    let may_hear = |member| member == vf(2);
    let answer = port.agg.report(port.now, &in_service_report(1), may_hear);
    assert!(answer.is_some());
    assert_eq!(port.copies().len(), 1);
    port.agg.report(port.now, &in_service_report(2), |_| false);
    port.nothing_more();
}

#[test]
fn c207_a_repeated_report_is_answered_again_but_is_no_news() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    assert_eq!(port.heard_by(&in_service_report(1)), [vf(1)]);
    assert_eq!(port.heard_by(&in_service_report(1)), []);
    assert_eq!(port.heard_by(&in_service_report(2)), [vf(1)]);
}

#[test]
fn c207_another_sa_may_use_the_same_tid() {
    let mut port = Port::new();
    assert_eq!(port.heard_by(&in_service_report(1)), [MemberId::PF]);
    port.agg.client_reregister(port.now);
    assert_eq!(port.heard_by(&in_service_report(1)), [MemberId::PF]);
    port.agg.sm_changed(port.now);
    assert_eq!(port.heard_by(&in_service_report(1)), [MemberId::PF]);
}

#[test]
fn c207_the_sas_reports_for_two_subscriptions_of_the_port_are_one_event() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.first(vf(2), &to_trap(TrapNumber::ALL));
    assert_eq!(port.heard_by(&in_service_report(1)), [vf(1), vf(2)]);
    assert_eq!(port.heard_by(&in_service_report(2)), []);
    assert_eq!(port.heard_by(&in_service_report(3)), [vf(1), vf(2)]);
}

#[test]
fn c207_what_is_no_report_is_not_taken() {
    let mut port = Port::new();
    let mut other = in_service_report(1);
    other.header.method = Method::TRAP;
    assert!(port.agg.report(port.now, &other, |_| true).is_none());
    port.nothing_more();
}

#[test]
fn c208_a_members_answer_to_its_copy_is_consumed_once() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.agg.report(port.now, &in_service_report(1), |_| true);
    let (_, copy) = port.copies()[0];
    let mut answer = response(&copy, MadStatus::OK);
    let stranger = Outcome::Dropped(DropReason::UnknownTid);
    assert_eq!(answer.header.method, Method::REPORT_RESP);
    assert_eq!(port.agg.report_response(vf(2), &answer), stranger);
    assert_eq!(port.agg.report_response(vf(1), &answer), Outcome::Absorbed);
    assert_eq!(port.agg.report_response(vf(1), &answer), stranger);
    answer.header.tid = Tid::new(0xdead);
    assert_eq!(port.agg.report_response(vf(1), &answer), stranger);
    answer.header.method = Method::GET_RESP;
    assert_eq!(port.agg.report_response(vf(1), &answer), Outcome::Pass);
    port.nothing_more();
}

#[test]
fn c208_an_answer_that_never_comes_is_not_awaited_for_ever() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.agg.report(port.now, &in_service_report(1), |_| true);
    assert_eq!(port.agg.sizes().deliveries, 1);
    port.wait(Duration::from_secs(10));
    let sizes = port.agg.sizes();
    assert_eq!((sizes.deliveries, sizes.reports), (0, 0));
    assert_eq!(port.agg.poll_timeout(), None);
}

#[test]
fn c209_a_report_that_nobody_subscribed_to_goes_to_the_pf() {
    let mut port = Port::new();
    port.first(vf(1), &to_trap(TrapNumber::GID_OUT_OF_SERVICE));
    assert_eq!(port.heard_by(&in_service_report(1)), [MemberId::PF]);
}

#[test]
fn c213_subscribers_hear_of_a_sibling_vfs_alias_guid() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.first(vf(1), &to_trap(TrapNumber::GID_OUT_OF_SERVICE));
    let alias = Guid::new(0x0014_0500_0000_0002);
    let sibling = Gid::from_parts(SubnetPrefix::DEFAULT, alias);
    for trap in [TrapNumber::GID_IN_SERVICE, TrapNumber::GID_OUT_OF_SERVICE] {
        assert_eq!(port.heard_by(&report(1, trap, sibling)), [vf(1)]);
    }
}
