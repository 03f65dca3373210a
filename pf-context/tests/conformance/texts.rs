//! Stable texts, and sums of counters.

use ib_vtime::Instant;
use ib_wire::Guid;
use ib_wire::mad::MgmtClass;
use pf_context::guids::{GuidState, WishRefusal};
use pf_context::{CountedClass, MadStatistics, VfEvent, VfUsage};
use vf_tunnel::DropReason;

use crate::harness::*;

#[test]
fn classes_are_counted_under_stable_names() {
    let classes = [
        (MgmtClass::SUBN_ADM, "sa"),
        (MgmtClass::COM_MGT, "cm"),
        (MgmtClass::PERF, "perf"),
        (MgmtClass::DEV_MGT, "dm"),
        (MgmtClass::SUBN_LID_ROUTED, "smp"),
        (MgmtClass::SUBN_DIRECTED_ROUTE, "smp"),
        (MgmtClass::new(0x81 + 5), "other"),
    ];
    for (class, name) in classes {
        assert_eq!(CountedClass::of(class).as_str(), name);
    }
}

#[test]
fn events_and_states_have_stable_texts() {
    let events = [
        (VfEvent::PortUp, "port_up"),
        (VfEvent::PortDown, "port_down"),
        (VfEvent::LidChange, "lid_change"),
        (VfEvent::SmChange, "sm_change"),
        (VfEvent::ClientReregister, "client_reregister"),
        (VfEvent::PKeyChange, "pkey_change"),
        (VfEvent::GidChange, "gid_change"),
    ];
    for (event, text) in events {
        assert_eq!(event.as_str(), text);
    }
    let retry_at = Instant::ZERO;
    let states = [
        (GuidState::NotRequested, "not_requested"),
        (GuidState::WaitingForSa, "waiting_for_sa"),
        (GuidState::Declined { retry_at }, "declined"),
        (GuidState::WaitingForHardware, "waiting_for_hardware"),
        (GuidState::InHardware(Guid::new(1)), "in_hardware"),
        (GuidState::NotSupported, "not_supported"),
        (GuidState::TableTooSmall, "table_too_small"),
    ];
    for (state, text) in states {
        assert_eq!(state.as_str(), text);
    }
    let refusals = [
        (WishRefusal::Taken(vf(3)), "the GUID is vf:3's"),
        (WishRefusal::PortGuid, "the GUID is the port's own"),
        (WishRefusal::Reserved, "the GUID is reserved"),
    ];
    for (refusal, text) in refusals {
        assert_eq!(refusal.to_string(), text);
    }
}

#[test]
fn what_a_vf_uses_has_stable_names() {
    let names = VfUsage::default().named().map(|(name, _)| name);
    let expected = [
        "tids",
        "sa_requests",
        "cm_ids",
        "cm_pending",
        "groups",
        "joins",
        "subscriptions",
        "subscribing",
        "queued",
    ];
    assert_eq!(names, expected);
}

#[test]
fn counters_of_several_add_up_class_by_class_and_reason_by_reason() {
    let mut port = Port::new();
    for number in [1, 2] {
        let out = sent(port.vf_sends(number, &frame(SM, path_query(1))));
        got(port.wire_sends(&from(SM), &answer(&out.mad)));
        dropped(port.vf_sends_bytes(number, &[0; 5]));
    }
    let mut sum = MadStatistics::default();
    for number in [1, 2, 2] {
        sum.add(port.mux.vf_statistics(vf(number)).unwrap());
    }
    let of_sa = sum.class(CountedClass::SubnAdm);
    assert_eq!((of_sa.to_wire, of_sa.delivered), (3, 3));
    assert_eq!(sum.drops(DropReason::BadLength), 3);
    assert_eq!(sum.total(), *of_sa);
}
