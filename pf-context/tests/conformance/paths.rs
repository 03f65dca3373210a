//! Cached paths through the whole: statements 214 to 218.

use ib_vtime::Duration;
use ib_wire::mad::{AttributeId, Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::{
    GidDetails, InformInfo, Notice, NoticeReport, NoticeType, ProducerType, TrapNumber,
};
use ib_wire::sa::{ComponentMask, PathRecord, SaMad};
use ib_wire::{Gid, Lid, PKey, Qpn, Sl, SubnetPrefix, Tid};
use mad_mux::path_cache::PathCacheConfig;
use pf_context::{
    AdaptAnswer, Cause, Limits, Output, PortConfig, PortEvent, Sizes, VfConfig, VfEvent, WireSource,
};
use vf_proxy::mlx4::PERSONALITY;
use vf_tunnel::DropReason;
use zerocopy::IntoBytes;

use crate::harness::*;

/// The GID of a port of another host: no VF's, so that each VF may ask for its paths.
fn server() -> Gid {
    Gid::from_parts(PREFIX, ib_wire::Guid::new(0x0011_7500_0000_0009))
}

fn asks(sgid: Gid, dgid: Gid, tid: u64) -> Mad {
    let mut record = PathRecord {
        sgid,
        dgid,
        ..PathRecord::default()
    };
    record.set_numb_path(1);
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    let mut sa = SaMad::new(Method::GET, mask, &record);
    sa.attribute_offset = 0.into();
    sa.header.tid = Tid::new(tid);
    Mad::from_layout(&sa)
}

/// A request that both VFs may make, in the same bytes.
fn shared(tid: u64) -> Mad {
    asks(server(), peer_gid(), tid)
}

/// The SA's answer: the path in a partition.
fn path(request: &Mad, pkey: PKey) -> Mad {
    let mut answer = answer(request);
    let sa: &mut SaMad = answer.view_mut();
    let mut record: PathRecord = sa.record();
    record.dlid = Lid::new(PEER);
    record.slid = Lid::new(OWN);
    record.pkey = pkey;
    record.set_reversible(true);
    sa.set_record(&record);
    answer
}

fn error(request: &Mad, status: MadStatus) -> Mad {
    let mut answer = answer(request);
    answer.header.status = status;
    answer
}

fn with_tid(mad: &Mad, tid: u64) -> Mad {
    let mut mad = *mad;
    mad.header.tid = Tid::new(tid);
    mad
}

/// A VF asks, and the SA tells it the path in the default partition.
fn learn(port: &mut Port, number: u16, request: Mad) -> Mad {
    let out = sent(port.vf_sends(number, &frame(SM, request)));
    let answer = path(&out.mad, PKey::DEFAULT_FULL);
    got(port.wire_sends(&from(SM), &answer)).mad
}

/// Whether a VF is answered without the SA.
fn is_known(port: &mut Port, number: u16, request: Mad) -> bool {
    match &port.vf_sends(number, &frame(SM, request))[..] {
        [Output::ToVf(..)] => true,
        [Output::ToWire(..)] => false,
        other => panic!("neither sent nor answered: {other:?}"),
    }
}

/// A port whose VF 1 knows a path from and to each of two other ports.
fn learned() -> Port {
    let mut port = Port::new();
    learn(&mut port, 1, asks(vf_gid(1), peer_gid(), 100));
    learn(&mut port, 1, asks(vf_gid(1), server(), 101));
    port
}

#[test]
fn c214_a_repeated_request_is_answered_in_the_sas_bytes_under_the_vfs_tid() {
    let mut port = Port::new();
    let first = learn(&mut port, 1, shared(0xfeed_0000_0000_0001));
    for (number, tid) in [(1, 0xfeed_0000_0000_0001), (2, u64::MAX), (2, 7)] {
        let again = got(port.vf_sends(number, &frame(SM, shared(tid))));
        assert_eq!((again.vf, again.slid, again.sqpn), (number, SM, Qpn::GSI));
        assert_eq!(again.mad.as_bytes(), with_tid(&first, tid).as_bytes());
    }
    assert_eq!(port.mux.sizes().path_cache, 1);
}

#[test]
fn c214_an_answer_to_a_request_with_a_grh_has_one() {
    let mut port = Port::new();
    learn(&mut port, 1, shared(1));
    let sm_gid = Gid([9; 16]);
    let again = got(port.vf_sends(2, &global_frame(SM, sm_gid, shared(2))));
    let grh = again.grh.unwrap();
    assert_eq!((grh.sgid, grh.dgid), (sm_gid, vf_gid(2)));
}

#[test]
fn c214_a_path_is_kept_for_the_configured_time() {
    let limits = |lifetime_ms| Limits {
        paths: PathCacheConfig {
            lifetime_ms,
            ..PathCacheConfig::default()
        },
        ..Limits::default()
    };
    let with = |lifetime_ms| {
        let config = PortConfig {
            limits: limits(lifetime_ms),
            ..config()
        };
        Port::with(config, [vf_config(1)])
    };
    let mut port = with(2_000);
    learn(&mut port, 1, shared(1));
    port.wait(Duration::from_millis(1_999));
    assert!(is_known(&mut port, 1, shared(2)));
    port.wait(Duration::from_millis(1));
    assert_eq!(port.mux.sizes().path_cache, 0);
    assert!(!is_known(&mut port, 1, shared(3)));

    let mut off = with(0);
    learn(&mut off, 1, shared(1));
    assert!(!is_known(&mut off, 1, shared(2)));
    assert_eq!(off.mux.sizes().path_cache, 0);
}

#[test]
fn c214_what_is_asked_otherwise_goes_to_the_sa() {
    let mut port = Port::new();
    let known = learn(&mut port, 1, shared(1));
    let changed = |change: &dyn Fn(&mut SaMad)| {
        let mut mad = shared(2);
        change(mad.view_mut());
        mad
    };
    let record = |change: &dyn Fn(&mut PathRecord)| {
        changed(&|sa| {
            let mut record: PathRecord = sa.record();
            change(&mut record);
            sa.data[..64].copy_from_slice(record.as_bytes());
        })
    };
    let others = [
        changed(&|sa| sa.component_mask = sa.component_mask | PathRecord::PKEY),
        changed(&|sa| sa.component_mask = PathRecord::DGID | PathRecord::NUMB_PATH),
        changed(&|sa| sa.header.method = Method::GET_TABLE),
        changed(&|sa| sa.header.attribute_modifier = 1.into()),
        changed(&|sa| sa.data[199] = 1),
        record(&|r| r.dgid = vf_gid(2)),
        record(&|r| r.sgid = vf_gid(1)),
        record(&|r| r.pkey = OTHER),
        record(&|r| r.set_sl(Sl::from_low_bits(3))),
        record(&|r| r.set_qos_class(3)),
        record(&|r| r.traffic_class = 3),
        record(&|r| r.service_id = 3.into()),
    ];
    for (tid, other) in (10..).zip(&others) {
        let out = sent(port.vf_sends(1, &frame(SM, with_tid(other, tid))));
        assert_eq!(out.mad.data, other.data);
    }
    let mut to_group = record(&|r| r.dgid = Gid([0xff; 16]));
    learn(&mut port, 1, to_group);
    to_group.header.tid = Tid::new(3);
    assert!(
        !is_known(&mut port, 1, to_group),
        "a group's path is not kept"
    );
    let elsewhere = sent(port.vf_sends(1, &frame(PEER, shared(4))));
    assert_eq!(elsewhere.dlid, PEER);
    let again = got(port.vf_sends(1, &frame(SM, shared(5))));
    assert_eq!(again.mad.data, known.data);
}

#[test]
fn c214_only_the_sas_answer_to_this_very_request_is_kept() {
    let mut port = Port::new();
    let out = sent(port.vf_sends(1, &frame(SM, shared(1))));
    let genuine = path(&out.mad, PKey::DEFAULT_FULL);
    let other_attribute = {
        let mut mad = genuine;
        mad.header.attribute_id = AttributeId::NODE_RECORD;
        mad
    };
    for (source, mad, reason) in [
        (from(PEER), genuine, DropReason::WrongPeer),
        (from(SM), other_attribute, DropReason::AnswerMismatch),
        (
            from(SM),
            with_tid(&genuine, genuine.header.tid.get() ^ 1),
            DropReason::UnknownTid,
        ),
    ] {
        assert_eq!(dropped(port.wire_sends(&source, &mad)), reason);
        assert!(!is_known(&mut port, 1, shared(1)));
    }
    // A path to somebody else reaches the VF, as any answer of the SA's, and nobody after it.
    let foreign = path(
        &sent(port.vf_sends(1, &frame(SM, shared(1)))).mad,
        PKey::DEFAULT_FULL,
    );
    let mut foreign = foreign;
    foreign.view_mut::<SaMad>().data[23] ^= 1;
    got(port.wire_sends(&from(SM), &foreign));
    assert!(!is_known(&mut port, 1, shared(2)));
}

#[test]
fn c214_a_tid_that_was_used_for_two_requests_teaches_nothing() {
    let mut port = Port::new();
    let first = sent(port.vf_sends(1, &frame(SM, shared(1))));
    let second = sent(port.vf_sends(1, &frame(SM, asks(server(), vf_gid(2), 1))));
    assert_eq!(first.mad.header.tid, second.mad.header.tid);
    // The refusal of the second must not be taken for one of the first, or the other way round.
    let refusal = error(&second.mad, MadStatus::SA_NO_RECORDS);
    got(port.wire_sends(&from(SM), &refusal));
    assert!(!is_known(&mut port, 2, shared(2)));
    assert!(!is_known(&mut port, 2, asks(server(), vf_gid(2), 3)));

    let mut port = Port::new();
    let first = sent(port.vf_sends(1, &frame(SM, shared(1))));
    let mut other = shared(1);
    other.header.attribute_id = AttributeId::NODE_RECORD;
    let second = sent(port.vf_sends(1, &frame(SM, other)));
    assert_eq!(first.mad.header.tid, second.mad.header.tid);
    got(port.wire_sends(&from(SM), &answer(&second.mad)));
    port.wait(Duration::from_millis(500));
    assert!(!is_known(&mut port, 2, shared(2)));
}

#[test]
fn c214_a_vf_that_asks_for_much_replaces_its_own_paths() {
    let limits = Limits {
        paths: PathCacheConfig {
            per_vf: 4,
            entries: 6,
            ..PathCacheConfig::default()
        },
        ..Limits::default()
    };
    let mut port = Port::with(
        PortConfig { limits, ..config() },
        [vf_config(1), vf_config(2)],
    );
    let nth = |n: u64| Gid::from_parts(PREFIX, ib_wire::Guid::new(0x1000 + n));
    learn(&mut port, 2, shared(1));
    learn(&mut port, 2, asks(vf_gid(2), peer_gid(), 2));
    for n in 0..100 {
        port.wait(Duration::from_millis(1));
        learn(&mut port, 1, asks(vf_gid(1), nth(n), n));
        assert!(port.mux.sizes().path_cache <= 6);
    }
    assert!(is_known(&mut port, 2, shared(3)));
    assert!(is_known(&mut port, 2, asks(vf_gid(2), peer_gid(), 4)));
    for n in 96..100 {
        assert!(is_known(&mut port, 1, asks(vf_gid(1), nth(n), 1_000 + n)));
    }
    assert!(!is_known(&mut port, 1, asks(vf_gid(1), nth(95), 2_000)));
}

fn gid_report(trap: TrapNumber, gid: Gid) -> Mad {
    let details = GidDetails {
        gid,
        ..GidDetails::default()
    };
    let notice = Notice::generic(
        NoticeType::SUBNET_MANAGEMENT,
        ProducerType::CLASS_MANAGER,
        trap,
        Lid::new(SM),
        &details,
    );
    let report = NoticeReport {
        notice,
        ..NoticeReport::default()
    };
    let mut sa: SaMad = *mad(MgmtClass::SUBN_ADM, Method::REPORT, AttributeId::NOTICE, 1).view();
    sa.data[..size_of::<NoticeReport>()].copy_from_slice(report.as_bytes());
    Mad::from_layout(&sa)
}

#[test]
fn c215_a_report_that_a_port_came_or_went_ends_its_paths_and_no_others() {
    for trap in [TrapNumber::GID_IN_SERVICE, TrapNumber::GID_OUT_OF_SERVICE] {
        let mut port = learned();
        assert!(is_known(&mut port, 1, asks(vf_gid(1), peer_gid(), 1)));
        sent(port.wire_sends(&from(SM), &gid_report(trap, peer_gid())));
        assert!(!is_known(&mut port, 1, asks(vf_gid(1), peer_gid(), 2)));
        assert!(is_known(&mut port, 1, asks(vf_gid(1), server(), 3)));
    }
    let mut port = learned();
    let stranger = gid_report(TrapNumber::GID_OUT_OF_SERVICE, peer_gid());
    dropped(port.wire_sends(&from(PEER), &stranger));
    assert!(is_known(&mut port, 1, asks(vf_gid(1), peer_gid(), 1)));
    // To a VF itself, which nobody asked the SA for.
    let source = WireSource {
        grh: Some(route(Gid([9; 16]), vf_gid(2))),
        ..from(SM)
    };
    got(port.wire_sends(&source, &stranger));
    assert!(!is_known(&mut port, 1, asks(vf_gid(1), peer_gid(), 2)));
}

#[test]
fn c215_a_subscriber_that_hears_of_a_port_finds_its_paths_gone() {
    let mut port = learned();
    let info = InformInfo {
        lid_range_begin: Lid::PERMISSIVE,
        is_generic: 1,
        subscribe: 1,
        notice_type: InformInfo::ALL_TYPES.into(),
        trap_number: TrapNumber::GID_OUT_OF_SERVICE,
        qpn: Qpn::GSI,
        producer: ProducerType::ALL.0,
        ..InformInfo::default()
    };
    let subscribe = Mad::from_layout(&SaMad::new(Method::SET, ComponentMask::NONE, &info));
    let out = sent(port.vf_sends(1, &frame(SM, subscribe)));
    got(port.wire_sends(&from(SM), &answer(&out.mad)));
    let report = gid_report(TrapNumber::GID_OUT_OF_SERVICE, peer_gid());
    let outputs = port.wire_sends(&from(SM), &report);
    assert!(outputs.iter().any(|o| matches!(o, Output::ToVf(..))));
    assert!(!is_known(&mut port, 1, asks(vf_gid(1), peer_gid(), 2)));
}

#[test]
fn c215_what_changes_the_subnet_or_the_port_ends_all_paths_before_vfs_know() {
    let events = [
        (PortEvent::ClientReregister, VfEvent::ClientReregister),
        (PortEvent::LidChange(Lid::new(9)), VfEvent::LidChange),
        (
            PortEvent::SmChange {
                lid: Lid::new(SM),
                sl: Sl::from_low_bits(1),
            },
            VfEvent::SmChange,
        ),
        (
            PortEvent::PKeyTable(vec![PKey::DEFAULT_LIMITED]),
            VfEvent::PKeyChange,
        ),
        (
            PortEvent::GidPrefix(SubnetPrefix::new(0xfec0_0000_0000_0000)),
            VfEvent::GidChange,
        ),
        (PortEvent::PortDown, VfEvent::PortDown),
    ];
    for (event, told_of) in events {
        let mut port = learned();
        let told = told(port.event(event));
        assert!(told.contains(&(1, told_of)));
        assert_eq!(port.mux.sizes().path_cache, 0, "{told_of:?}");
        assert!(!is_known(&mut port, 1, asks(vf_gid(1), peer_gid(), 1)));
    }
}

#[test]
fn c215_another_guid_of_a_vf_ends_the_paths_from_and_to_the_old_one() {
    let mut port = learned();
    learn(&mut port, 2, asks(vf_gid(2), vf_gid(1), 1));
    learn(&mut port, 2, shared(2));
    port.mux
        .set_guid(Cause(0), vf(1), Some(vf_guid(5)))
        .unwrap();
    assert_eq!(port.mux.sizes().path_cache, 1);
}

#[test]
fn c215_an_answer_to_what_was_asked_before_a_change_is_not_kept() {
    let mut port = Port::new();
    let out = sent(port.vf_sends(1, &frame(SM, shared(1))));
    port.event(PortEvent::ClientReregister);
    let late = path(&out.mad, PKey::DEFAULT_FULL);
    assert_eq!(got(port.wire_sends(&from(SM), &late)).vf, 1);
    assert!(!is_known(&mut port, 2, shared(2)));
}

#[test]
fn c216_a_path_in_a_partition_is_for_its_members_only() {
    let both = VfConfig {
        pkeys: vec![physical(0), physical(1)],
        ..vf_config(1)
    };
    for (pkey, for_first, for_second) in [
        (PKey::DEFAULT_FULL, true, true),
        (PKey::DEFAULT_LIMITED, true, true),
        (OTHER, true, false),
        (LIMITED, false, false),
        (PKey::INVALID, false, false),
    ] {
        let mut port = Port::with(config(), [both.clone(), vf_config(2)]);
        let out = sent(port.vf_sends(1, &frame(SM, shared(1))));
        got(port.wire_sends(&from(SM), &path(&out.mad, pkey)));
        assert_eq!(is_known(&mut port, 1, shared(2)), for_first, "{pkey}");
        assert_eq!(is_known(&mut port, 2, shared(3)), for_second, "{pkey}");
    }
}

#[test]
fn c216_a_vf_that_loses_a_partition_loses_its_paths() {
    let both = VfConfig {
        pkeys: vec![physical(0), physical(1)],
        ..vf_config(1)
    };
    let mut port = Port::with(config(), [both, vf_config(2)]);
    let out = sent(port.vf_sends(1, &frame(SM, shared(1))));
    got(port.wire_sends(&from(SM), &path(&out.mad, OTHER)));
    assert!(is_known(&mut port, 1, shared(2)));
    port.mux.map_pkey(Cause(0), vf(1), virtual_index(1), None);
    while port.mux.poll_output().is_some() {}
    assert!(!is_known(&mut port, 1, shared(3)));
}

#[test]
fn c216_who_waited_for_a_path_of_a_foreign_partition_asks_itself() {
    let both = VfConfig {
        pkeys: vec![physical(0), physical(1)],
        ..vf_config(1)
    };
    let mut port = Port::with(config(), [both, vf_config(2)]);
    let out = sent(port.vf_sends(1, &frame(SM, shared(1))));
    assert!(port.vf_sends(2, &frame(SM, shared(1))).is_empty());
    let asked_as = port.last_cause();
    let outputs = port.wire_sends_any(&from(SM), &path(&out.mad, OTHER));
    let [(_, Output::ToVf(first, _)), (cause, Output::ToWire(_, mad))] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    assert_eq!((first.vf.get(), *cause), (1, asked_as));
    let own = path(mad, PKey::DEFAULT_FULL);
    let second = got(port.wire_sends(&from(SM), &own));
    assert_eq!((second.vf, second.mad.header.tid.get()), (2, 1));
}

#[test]
fn c217_two_vfs_that_ask_the_same_at_once_cause_one_request() {
    let mut port = Port::new();
    let out = sent(port.vf_sends(1, &frame(SM, shared(5))));
    assert!(port.vf_sends(2, &frame(SM, shared(5))).is_empty());
    assert!(port.vf_sends(2, &frame(SM, shared(6))).is_empty());
    let answer = path(&out.mad, PKey::DEFAULT_FULL);
    let outputs = port.wire_sends(&from(SM), &answer);
    let answered: Vec<_> = outputs
        .into_iter()
        .map(|output| got(vec![output]))
        .map(|got| (got.vf, got.mad))
        .collect();
    let expected = [(1, 5), (2, 5), (2, 6)].map(|(vf, tid)| (vf, with_tid(&answer, tid)));
    assert_eq!(answered, expected);
}

#[test]
fn c217_a_vf_that_asks_again_is_sent_on_whether_it_waits_or_not() {
    let mut port = Port::new();
    let first = sent(port.vf_sends(1, &frame(SM, shared(5))));
    assert!(port.vf_sends(2, &frame(SM, shared(5))).is_empty());
    let again = sent(port.vf_sends(1, &frame(SM, shared(5))));
    assert_eq!(first.mad, again.mad);
    let own = sent(port.vf_sends(2, &frame(SM, shared(5))));
    assert_ne!(own.mad.header.tid, first.mad.header.tid);
    for (number, out) in [(1, first), (2, own)] {
        let answer = path(&out.mad, PKey::DEFAULT_FULL);
        assert_eq!(got(port.wire_sends(&from(SM), &answer)).vf, number);
    }
}

#[test]
fn c217_who_waits_in_vain_asks_itself_after_half_a_second() {
    let mut port = Port::new();
    sent(port.vf_sends(1, &frame(SM, shared(5))));
    assert!(port.vf_sends(2, &frame(SM, shared(6))).is_empty());
    let asked_as = port.last_cause();
    assert_eq!(port.wait(Duration::from_millis(499)), []);
    let outputs = port.wait(Duration::from_millis(1));
    let [(cause, output)] = <[_; 1]>::try_from(outputs).unwrap();
    assert_eq!(cause, asked_as);
    let own = sent(vec![output]);
    let answer = path(&own.mad, PKey::DEFAULT_FULL);
    let got = got(port.wire_sends(&from(SM), &answer));
    assert_eq!((got.vf, got.mad.header.tid.get()), (2, 6));
    // The one that was not answered stands in nobody's way.
    assert!(is_known(&mut port, 2, shared(7)));
}

#[test]
fn c217_a_reset_ends_what_a_vf_waits_for_and_frees_who_waits_for_it() {
    let mut port = Port::new();
    let out = sent(port.vf_sends(1, &frame(SM, shared(5))));
    assert!(port.vf_sends(2, &frame(SM, shared(6))).is_empty());
    let [(_, output)] = <[_; 1]>::try_from(port.reset_any(2)).unwrap();
    assert_eq!(dropped(vec![output]), DropReason::VfInReset);
    let answer = path(&out.mad, PKey::DEFAULT_FULL);
    assert_eq!(got(port.wire_sends(&from(SM), &answer)).vf, 1);

    let mut port = Port::new();
    sent(port.vf_sends(1, &frame(SM, shared(5))));
    assert!(port.vf_sends(2, &frame(SM, shared(6))).is_empty());
    let [(_, output)] = <[_; 1]>::try_from(port.reset_any(1)).unwrap();
    let own = sent(vec![output]);
    let answer = path(&own.mad, PKey::DEFAULT_FULL);
    assert_eq!(got(port.wire_sends(&from(SM), &answer)).vf, 2);
}

#[test]
fn c217_a_flood_of_equal_requests_waits_within_bounds_and_ends() {
    let mut port = Port::new();
    let mut sent_on = 0;
    for tid in 0..100 {
        sent_on += port.vf_sends(1, &frame(SM, shared(tid))).len();
    }
    assert_eq!(sent_on, 100 - 16);
    let outputs = port.wait(Duration::from_secs(600));
    assert_eq!(outputs.len(), 16);
    assert_eq!(port.mux.sizes(), Sizes::default());
}

#[test]
fn c218_an_error_is_kept_for_a_second_at_most() {
    let mut port = Port::new();
    let out = sent(port.vf_sends(1, &frame(SM, shared(1))));
    let refusal = error(&out.mad, MadStatus::SA_NO_RECORDS);
    got(port.wire_sends(&from(SM), &refusal));
    port.wait(Duration::from_millis(999));
    let again = got(port.vf_sends(2, &frame(SM, shared(2))));
    assert_eq!(again.mad, with_tid(&refusal, 2));
    port.wait(Duration::from_millis(1));
    assert!(!is_known(&mut port, 2, shared(3)));
}

#[test]
fn c218_a_busy_sa_and_a_redirection_are_not_remembered() {
    for status in [MadStatus::BUSY, MadStatus::REDIRECT] {
        let mut port = Port::new();
        let out = sent(port.vf_sends(1, &frame(SM, shared(1))));
        got(port.wire_sends(&from(SM), &error(&out.mad, status)));
        assert!(!is_known(&mut port, 1, shared(2)), "{status:?}");
    }
}

#[test]
fn linux_on_an_mlx4_vf_is_told_paths_that_have_a_grh_by_the_sa_and_from_the_cache() {
    let of = |number, adapt_answer| VfConfig {
        adapt_answer,
        ..vf_config(number)
    };
    let mlx4 = AdaptAnswer(PERSONALITY.adapt_answer);
    let vfs = [of(1, None), of(2, Some(mlx4))];
    let hop_limit = |mad: &Mad| mad.view::<SaMad>().record::<PathRecord>().hop_limit();

    let mut port = Port::with(config(), vfs.clone());
    assert_eq!(hop_limit(&learn(&mut port, 1, shared(1))), 0);
    let cached = got(port.vf_sends(2, &frame(SM, shared(2))));
    assert_eq!(hop_limit(&cached.mad), 1);

    // What the cache holds is the SA's.
    let mut port = Port::with(config(), vfs);
    assert_eq!(hop_limit(&learn(&mut port, 2, shared(1))), 1);
    let cached = got(port.vf_sends(1, &frame(SM, shared(2))));
    assert_eq!(hop_limit(&cached.mad), 0);

    // A path to another subnet has a hop limit of its own.
    let out = sent(port.vf_sends(2, &frame(SM, asks(server(), vf_gid(2), 3))));
    let mut far = path(&out.mad, PKey::DEFAULT_FULL);
    let mut record: PathRecord = far.view::<SaMad>().record();
    record.set_hop_limit(64);
    far.view_mut::<SaMad>().set_record(&record);
    assert_eq!(hop_limit(&got(port.wire_sends(&from(SM), &far)).mad), 64);
}
