//! Subscriptions and reports through the whole: statements 55, 205 to 209 and 212.

use ib_vtime::Duration;
use ib_wire::mad::{AttributeId, Mad, Method, MgmtClass};
use ib_wire::notice::GidDetails;
use ib_wire::notice::{InformInfo, Notice, NoticeReport, NoticeType, ProducerType, TrapNumber};
use ib_wire::sa::{ComponentMask, SaMad};
use ib_wire::{Gid, Lid, Qpn, Tid};
use pf_context::{Output, Sizes, WireSource};
use vf_tunnel::DropReason;
use zerocopy::IntoBytes;

use crate::harness::*;

fn inform(subscribe: u8, tid: u64) -> Mad {
    let info = InformInfo {
        lid_range_begin: Lid::PERMISSIVE,
        is_generic: 1,
        subscribe,
        notice_type: InformInfo::ALL_TYPES.into(),
        trap_number: TrapNumber::GID_IN_SERVICE,
        qpn: Qpn::GSI,
        producer: ProducerType::ALL.0,
        ..InformInfo::default()
    };
    let mut sa = SaMad::new(Method::SET, ComponentMask::NONE, &info);
    sa.header.tid = Tid::new(tid);
    Mad::from_layout(&sa)
}

fn report(tid: u64) -> Mad {
    let issuer = Lid::new(SM);
    let notice = Notice::generic(
        NoticeType::SUBNET_MANAGEMENT,
        ProducerType::CLASS_MANAGER,
        TrapNumber::GID_IN_SERVICE,
        issuer,
        &GidDetails {
            gid: Gid([9; 16]),
            ..GidDetails::default()
        },
    );
    let report = NoticeReport {
        notice,
        issuer_gid: Gid([8; 16]),
    };
    let mut sa: SaMad = *mad(
        MgmtClass::SUBN_ADM,
        Method::REPORT,
        AttributeId::NOTICE,
        tid,
    )
    .view();
    sa.data[..size_of::<NoticeReport>()].copy_from_slice(report.as_bytes());
    Mad::from_layout(&sa)
}

/// Both VFs subscribe.
fn subscribed() -> Port {
    let mut port = Port::new();
    let out = sent(port.vf_sends(1, &frame(SM, inform(1, 5))));
    assert_eq!(got(port.wire_sends(&from(SM), &answer(&out.mad))).vf, 1);
    let second = got(port.vf_sends(2, &frame(SM, inform(1, 5))));
    assert_eq!((second.vf, second.mad.header.tid.get()), (2, 5));
    assert_eq!(port.mux.sizes().subscriptions, 2);
    port
}

/// The copies and the one answer that a report makes.
fn reported(port: &mut Port, tid: u64) -> (Vec<(u16, Mad)>, Sent) {
    let outputs = port.wire_sends(&from(SM), &report(tid));
    let (copies, answers): (Vec<_>, Vec<_>) = outputs
        .into_iter()
        .partition(|output| matches!(output, Output::ToVf(..)));
    let copies = copies.into_iter().map(|copy| got(vec![copy]));
    (
        copies.map(|copy| (copy.vf, copy.mad)).collect(),
        sent(answers),
    )
}

#[test]
fn c205_c207_c208_a_report_is_answered_once_and_copied_to_its_subscribers() {
    let mut port = subscribed();
    let (copies, answered) = reported(&mut port, 0x77);
    assert_eq!(answered.dlid, SM);
    assert_eq!(answered.mad.header.method, Method::REPORT_RESP);
    assert_eq!(answered.mad.header.tid.get(), 0x77);
    assert_eq!(copies.iter().map(|copy| copy.0).collect::<Vec<_>>(), [1, 2]);
    for (number, copy) in copies {
        let response = answer(&copy);
        assert!(port.vf_sends(number, &frame(SM, response)).is_empty());
    }
}

#[test]
fn c206_c212_the_last_to_go_ends_the_ports_subscription() {
    let mut port = subscribed();
    let left = got(port.vf_sends(1, &frame(SM, inform(0, 6))));
    assert_eq!(left.mad.header.tid.get(), 6);
    let (copies, _) = reported(&mut port, 0x78);
    assert_eq!(copies.iter().map(|copy| copy.0).collect::<Vec<_>>(), [2]);
    let out = sent(port.reset(2));
    assert_eq!(out.mad.view::<SaMad>().record::<InformInfo>().subscribe, 0);
    port.wire_sends(&from(SM), &answer(&out.mad));
    port.wait(Duration::from_secs(600));
    assert_eq!(port.mux.sizes(), Sizes::default());
}

#[test]
fn c209_a_report_that_nobody_subscribed_to_reaches_no_vf() {
    let mut port = Port::new();
    let (copies, _) = reported(&mut port, 1);
    assert!(copies.is_empty());
    assert_eq!(
        dropped(port.wire_sends(&from(PEER), &report(2))),
        DropReason::NoTarget
    );
}

#[test]
fn c055_a_report_to_the_vf_itself_is_answered_under_its_own_tid() {
    let mut port = Port::new();
    let source = WireSource {
        grh: Some(route(peer_gid(), vf_gid(1))),
        ..from(SM)
    };
    let tid = 0xfeed_0000_0000_0001;
    let delivered = got(port.wire_sends(&source, &report(tid)));
    let out = sent(port.vf_sends(1, &frame(SM, answer(&delivered.mad))));
    assert_eq!(out.mad.header.tid.get(), tid);
}
