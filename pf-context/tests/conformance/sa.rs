//! SA requests of VFs and of the port itself: statements 37 to 40, 53, 139 to 141, 143, 144, 149, 201,
//! 219 and 220.

use ib_vtime::Duration;
use ib_wire::mad::{AttributeId, Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::InformInfo;
use ib_wire::rmpp::{RmppHeader, RmppMad};
use ib_wire::sa::{
    ComponentMask, GuidInfoRecord, JoinState, McMemberRecord, MultiPathRecord, PathRecord, SaMad,
    ServiceRecord,
};
use ib_wire::{Gid, Guid, Lid, PKey, QKey, Sl, SmKey, Tid};
use pf_context::{
    Cause, CountedClass, Output, Policy, PortConfig, PortEvent, Sizes, VfConfig, VfEvent,
};
use vf_tunnel::DropReason;

use crate::harness::*;

const MGID: Gid = Gid([
    0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
]);

fn port_gid() -> Gid {
    Gid::from_parts(PREFIX, config().guid)
}

fn member(number: u16, method: Method, tid: u64) -> Mad {
    let mut record = McMemberRecord {
        mgid: MGID,
        port_gid: vf_gid(number),
        ..McMemberRecord::default()
    };
    record.set_join_state(JoinState::FULL_MEMBER);
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    let mut sa = SaMad::new(method, mask, &record);
    sa.header.tid = Tid::new(tid);
    Mad::from_layout(&sa)
}

/// The SA's consent to a join.
fn granted(request: &Mad) -> Mad {
    let mut sa: SaMad = *answer(request).view();
    let mut record: McMemberRecord = sa.record();
    record.mlid = Lid::new(0xc003);
    record.qkey = QKey::new(0xb1b);
    record.pkey = PKey::DEFAULT_FULL;
    sa.set_record(&record);
    Mad::from_layout(&sa)
}

/// A port on which VF 1 is in the group.
fn joined() -> Port {
    let mut port = Port::new();
    let out = sent(port.vf_sends(1, &frame(SM, member(1, Method::SET, 5))));
    got(port.wire_sends(&from(SM), &granted(&out.mad)));
    port
}

fn sa_request<R: ib_wire::sa::SaRecord>(method: Method, mask: ComponentMask, record: &R) -> Mad {
    Mad::from_layout(&SaMad::new(method, mask, record))
}

#[test]
fn c053_of_5000_path_queries_that_are_answered_within_a_second_none_is_dropped() {
    let mut port = Port::new();
    for tid in 0..5_000 {
        let query = path_query(tid);
        let out = sent(port.vf_sends(1, &frame(SM, query)));
        let back = got(port.wire_sends(&from(SM), &answer(&out.mad)));
        assert_eq!(back.mad, answer(&query));
        port.wait(Duration::from_micros(200));
    }
    let usage = port.mux.vf_usage(vf(1));
    assert_eq!((usage.tids.live, usage.sa_requests.live), (4_096, 0));
}

#[test]
fn c037_guid_info_is_read_but_not_changed_by_vfs() {
    let mut port = Port::new();
    let request = |method| {
        let mad = mad(
            MgmtClass::SUBN_ADM,
            method,
            AttributeId::GUID_INFO_RECORD,
            1,
        );
        frame(SM, mad)
    };
    for method in [Method::SET, Method::DELETE] {
        let outputs = port.vf_sends(1, &request(method));
        assert_eq!(dropped(outputs), DropReason::GuidInfoNotPermitted);
    }
    for method in [Method::GET, Method::GET_TABLE] {
        sent(port.vf_sends(1, &request(method)));
    }
}

#[test]
fn c037_an_rmpp_header_hides_no_guid_info_set() {
    let mut port = Port::new();
    sent(port.vf_sends(1, &frame(SM, path_query(1))));
    let mut hidden = mad(
        MgmtClass::SUBN_ADM,
        Method::SET,
        AttributeId::GUID_INFO_RECORD,
        1,
    );
    hidden.view_mut::<RmppMad>().rmpp = RmppHeader::ack(1, 64);
    assert_eq!(
        dropped(port.vf_sends(1, &frame(SM, hidden))),
        DropReason::GuidInfoNotPermitted
    );
}

#[test]
fn c038_an_sm_key_is_cleared_or_refused_by_policy() {
    let mut request = path_query(1);
    request.view_mut::<SaMad>().sm_key = SmKey::new(0x1234);
    let out = sent(Port::new().vf_sends(1, &frame(SM, request)));
    assert_eq!(out.mad.view::<SaMad>().sm_key, SmKey::new(0));

    // The one response that VFs may send.
    let mut response = mad(
        MgmtClass::SUBN_ADM,
        Method::REPORT_RESP,
        AttributeId::NOTICE,
        1,
    );
    response.view_mut::<SaMad>().sm_key = SmKey::new(0x1234);
    let out = sent(Port::new().vf_sends(1, &frame(SM, response)));
    assert_eq!(out.mad.view::<SaMad>().sm_key, SmKey::new(0));

    let policy = Policy {
        refuse_sm_key: true,
        ..Policy::default()
    };
    let mut port = Port::with(PortConfig { policy, ..config() }, [vf_config(1)]);
    assert_eq!(
        dropped(port.vf_sends(1, &frame(SM, request))),
        DropReason::SmKeyNotPermitted
    );
}

#[test]
fn c039_a_service_is_registered_under_the_vfs_own_gid_only() {
    let mut port = Port::new();
    for method in [Method::SET, Method::DELETE] {
        for (gid, allowed) in [
            (vf_gid(1), true),
            (vf_gid(2), false),
            (peer_gid(), false),
            (Gid::NONE, false),
        ] {
            let record = ServiceRecord {
                service_gid: gid,
                ..ServiceRecord::default()
            };
            let request = sa_request(method, ServiceRecord::SERVICE_GID, &record);
            let outputs = port.vf_sends(1, &frame(SM, request));
            if allowed {
                sent(outputs);
            } else {
                assert_eq!(dropped(outputs), DropReason::ForeignIdentity);
            }
        }
    }
}

#[test]
fn c040_paths_from_a_siblings_gid_are_asked_for_by_policy_only() {
    let record = PathRecord {
        sgid: vf_gid(2),
        ..PathRecord::default()
    };
    let sibling = sa_request(Method::GET, PathRecord::SGID, &record);
    let mut multi = MultiPathRecord {
        sgid_count: 2,
        dgid_count: 1,
        ..MultiPathRecord::default()
    };
    multi.gids[1] = vf_gid(2);
    let multi = sa_request(Method::GET_MULTI, ComponentMask::NONE, &multi);
    let unnamed = sa_request(Method::GET, PathRecord::DGID, &record);
    let record = PathRecord {
        sgid: vf_gid(1),
        ..record
    };
    let own = sa_request(Method::GET, PathRecord::SGID, &record);

    let mut port = Port::new();
    for request in [sibling, multi] {
        assert_eq!(
            dropped(port.vf_sends(1, &frame(SM, request))),
            DropReason::ForeignIdentity
        );
    }
    for request in [own, unnamed] {
        sent(port.vf_sends(1, &frame(SM, request)));
    }
    let policy = Policy {
        third_party_paths: true,
        ..Policy::default()
    };
    let mut port = Port::with(
        PortConfig { policy, ..config() },
        [vf_config(1), vf_config(2)],
    );
    sent(port.vf_sends(1, &frame(SM, sibling)));
}

#[test]
fn sa_requests_to_another_lid_are_ordinary_transactions() {
    let mut port = Port::new();
    let query = path_query(0x0102_0304_0506_0708);
    let out = sent(port.vf_sends(1, &frame(PEER, query)));
    assert_eq!(out.dlid, PEER);
    let delivered = got(port.wire_sends(&from(PEER), &answer(&out.mad)));
    assert_eq!(delivered.mad, answer(&query));
}

#[test]
fn c037_c038_c039_a_vf_gets_nowhere_by_another_lid_what_it_may_not_ask_the_sa() {
    let mut port = Port::new();
    let claims = GuidInfoRecord::default();
    let claim = sa_request(Method::SET, ComponentMask::NONE, &claims);
    let reason = dropped(port.vf_sends(1, &frame(PEER, claim)));
    assert_eq!(reason, DropReason::GuidInfoNotPermitted);
    let siblings = ServiceRecord {
        service_gid: vf_gid(2),
        ..ServiceRecord::default()
    };
    let register = sa_request(Method::SET, ComponentMask::NONE, &siblings);
    let reason = dropped(port.vf_sends(1, &frame(PEER, register)));
    assert_eq!(reason, DropReason::ForeignIdentity);
    let mut request = path_query(1);
    request.view_mut::<SaMad>().sm_key = SmKey::new(0x1234);
    let out = sent(port.vf_sends(1, &frame(PEER, request)));
    assert_eq!(out.mad.view::<SaMad>().sm_key, SmKey::new(0));
}

/// What goes out, because of a VF's request to a LID, is the port's own request to the SA; the answer
/// comes from the LID that was asked.
fn goes_in_the_ports_name(port: &mut Port, lid: u16, request: Mad) {
    let out = sent(port.vf_sends(1, &frame(lid, request)));
    assert_eq!(out.dlid, SM);
    assert_ne!(out.mad.header.tid, request.header.tid);
    let back = got(port.wire_sends(&from(SM), &granted(&out.mad)));
    assert_eq!((back.vf, back.slid), (1, lid));
    assert_eq!(back.mad.header.tid, request.header.tid);
}

#[test]
fn c116_a_join_at_any_lid_is_the_ports() {
    // Another of the SM's port, the one that it had before, and a stranger's.
    for lid in [SM, SM + 1, PEER, 0xbfff] {
        let mut port = Port::new();
        goes_in_the_ports_name(&mut port, lid, member(1, Method::SET, 1));
        assert_eq!(port.mux.sizes().mcast_groups, 1);
        let second = got(port.vf_sends(2, &frame(lid, member(2, Method::SET, 2))));
        assert_eq!((second.vf, second.slid), (2, lid));
        let left = got(port.vf_sends(2, &frame(lid, member(2, Method::DELETE, 3))));
        assert_eq!((left.vf, left.slid), (2, lid));
    }
}

#[test]
fn c127_the_last_leave_at_any_lid_is_answered_from_there_after_the_sa() {
    for lid in [SM, SM + 1] {
        let mut port = Port::new();
        goes_in_the_ports_name(&mut port, lid, member(1, Method::SET, 1));
        goes_in_the_ports_name(&mut port, lid, member(1, Method::DELETE, 2));
        assert_eq!(port.mux.sizes().mcast_groups, 0);
    }
}

#[test]
fn c116_a_join_at_the_sms_former_lid_is_the_ports() {
    let mut port = joined();
    port.event(PortEvent::SmChange {
        lid: Lid::new(PEER),
        sl: Sl::default(),
    });
    let second = got(port.vf_sends(2, &frame(SM, member(2, Method::SET, 6))));
    assert_eq!((second.vf, second.slid), (2, SM));
    let sizes = port.mux.sizes();
    assert_eq!((sizes.mcast_groups, sizes.mcast_members), (1, 2));
}

#[test]
fn c205_a_subscription_at_any_lid_is_the_ports() {
    let mut info = InformInfo::default();
    (info.is_generic, info.subscribe) = (1, 1);
    let mut subscribe = SaMad::new(Method::SET, ComponentMask::NONE, &info);
    subscribe.header.tid = Tid::new(9);
    for lid in [SM + 1, PEER] {
        let mut port = Port::new();
        let out = sent(port.vf_sends(1, &frame(lid, Mad::from_layout(&subscribe))));
        assert_eq!(out.dlid, SM);
        let back = got(port.wire_sends(&from(SM), &answer(&out.mad)));
        assert_eq!((back.vf, back.slid), (1, lid));
        assert_eq!(port.mux.sizes().subscriptions, 1);
    }
}

#[test]
fn c042_a_report_of_a_vf_to_the_ports_own_lid_is_dropped_even_with_the_sm_there() {
    for sm_lid in [SM, OWN] {
        let config = PortConfig {
            sm_lid: Lid::new(sm_lid),
            ..config()
        };
        let mut port = Port::with(config, [vf_config(1)]);
        port.mux
            .attach_pf_software(Guid::new(0x0002_c903_0000_0001));
        let report = mad(MgmtClass::SUBN_ADM, Method::REPORT, AttributeId::NOTICE, 1);
        let reason = dropped(port.vf_sends(1, &frame(OWN, report)));
        assert_eq!(reason, DropReason::ResponseNotPermitted);
    }
}

#[test]
fn c116_c117_a_first_join_goes_out_in_the_ports_name_and_a_second_is_answered_here() {
    let mut port = Port::new();
    let out = sent(port.vf_sends(1, &frame(SM, member(1, Method::SET, 5))));
    assert_eq!((out.dlid, out.pkey), (SM, PKey::DEFAULT_FULL));
    let asked: McMemberRecord = out.mad.view::<SaMad>().record();
    assert_eq!(asked.port_gid, port_gid());
    let first = got(port.wire_sends(&from(SM), &granted(&out.mad)));
    assert_eq!((first.vf, first.mad.header.tid.get()), (1, 5));

    let second = got(port.vf_sends(2, &frame(SM, member(2, Method::SET, 6))));
    assert_eq!(
        (second.vf, second.slid, second.mad.header.tid.get()),
        (2, SM, 6)
    );
    let record: McMemberRecord = second.mad.view::<SaMad>().record();
    assert_eq!(
        (record.port_gid, record.mlid),
        (vf_gid(2), Lid::new(0xc003))
    );
    let sizes = port.mux.sizes();
    assert_eq!((sizes.mcast_groups, sizes.mcast_members), (1, 2));
}

#[test]
fn c139_c140_a_member_answer_from_elsewhere_or_with_a_wrong_tid_changes_nothing() {
    let mut port = Port::new();
    let out = sent(port.vf_sends(1, &frame(SM, member(1, Method::SET, 5))));
    let consent = granted(&out.mad);
    assert_eq!(
        dropped(port.wire_sends(&from(PEER), &consent)),
        DropReason::WrongPeer
    );
    let mut other_qp = from(SM);
    other_qp.sqpn = ib_wire::Qpn::from_low_bits(7);
    assert_eq!(
        dropped(port.wire_sends(&other_qp, &consent)),
        DropReason::WrongPeer
    );
    let mut wrong = consent;
    wrong.header.tid = Tid::new(consent.header.tid.get() ^ 1);
    assert_eq!(
        dropped(port.wire_sends(&from(SM), &wrong)),
        DropReason::UnknownTid
    );
    assert_eq!(port.mux.sizes().mcast_members, 0);
    assert_eq!(got(port.wire_sends(&from(SM), &consent)).vf, 1);
}

#[test]
fn c141_a_second_member_answer_is_dropped() {
    let mut port = Port::new();
    let out = sent(port.vf_sends(1, &frame(SM, member(1, Method::SET, 5))));
    let consent = granted(&out.mad);
    got(port.wire_sends(&from(SM), &consent));
    let mut refusal = consent;
    refusal.header.status = MadStatus::SA_REQ_INVALID;
    for late in [consent, refusal] {
        assert_eq!(
            dropped(port.wire_sends(&from(SM), &late)),
            DropReason::NoTransaction
        );
    }
    assert_eq!(port.mux.sizes().mcast_members, 1);
}

#[test]
fn c143_a_reset_vf_leaves_and_the_last_leave_goes_to_the_sa() {
    let mut port = joined();
    got(port.vf_sends(2, &frame(SM, member(2, Method::SET, 6))));
    assert!(port.reset(1).is_empty());
    let out = sent(port.reset(2));
    assert_eq!(out.mad.header.method, Method::DELETE);
    assert!(port.wire_sends(&from(SM), &answer(&out.mad)).is_empty());
    assert!(port.wait(Duration::from_secs(120)).is_empty());
    assert_eq!(port.mux.sizes(), Sizes::default());
}

#[test]
fn c144_a_reregistration_joins_again_and_vfs_are_told() {
    let mut port = joined();
    let outputs = port.event(PortEvent::ClientReregister);
    let (events, requests): (Vec<_>, Vec<_>) = outputs
        .into_iter()
        .partition(|output| matches!(output, Output::VfEvent { .. }));
    let event = VfEvent::ClientReregister;
    assert_eq!(told(events), [(1, event), (2, event)]);
    let out = sent(requests);
    assert_eq!(out.mad.header.method, Method::SET);
    assert!(port.wire_sends(&from(SM), &granted(&out.mad)).is_empty());
    assert_eq!(port.mux.sizes().mcast_members, 1);
}

#[test]
fn c145_a_group_that_changed_on_the_way_makes_its_members_join_again() {
    let mut port = joined();
    let outputs = port.event(PortEvent::ClientReregister);
    let request = outputs
        .into_iter()
        .find(|output| matches!(output, Output::ToWire(..)));
    let out = sent(vec![request.unwrap()]);
    let mut changed = granted(&out.mad);
    let sa: &mut SaMad = changed.view_mut();
    let mut record: McMemberRecord = sa.record();
    record.mlid = Lid::new(0xc044);
    sa.set_record(&record);
    let outputs = port.wire_sends(&from(SM), &changed);
    assert_eq!(told(outputs), [(1, VfEvent::ClientReregister)]);
}

#[test]
fn c149_an_answer_comes_in_the_partition_of_the_request() {
    let vf = VfConfig {
        pkeys: vec![None, physical(1)],
        ..vf_config(1)
    };
    let mut port = Port::with(config(), [vf]);
    let mut join = frame(SM, member(1, Method::SET, 5));
    join.header.pkey_index.set(1);
    let out = sent(port.vf_sends(1, &join));
    let sa: SaMad = {
        let mut sa: SaMad = *granted(&out.mad).view();
        let mut record: McMemberRecord = sa.record();
        record.pkey = OTHER;
        sa.set_record(&record);
        sa
    };
    let delivered = got(port.wire_sends(&from(SM), &Mad::from_layout(&sa)));
    assert_eq!(delivered.pkey_index, 1);
    assert_eq!(delivered.mad.header.status, MadStatus::OK);
}

#[test]
fn c201_joins_of_100_000_groups_make_the_quotas_memberships_and_requests_and_no_more() {
    let quota = u64::from(config().limits.mcast.groups_per_member);
    let mut port = Port::new();
    let (mut granted_joins, mut refused) = (0, 0);
    for n in 0..100_000 {
        let mut join = member(1, Method::SET, n);
        let sa: &mut SaMad = join.view_mut();
        let mut record: McMemberRecord = sa.record();
        record.mgid.0[8..].copy_from_slice(&(n + 1).to_be_bytes());
        sa.set_record(&record);
        let outputs = port.vf_sends(1, &frame(SM, join));
        if let [Output::ToWire(_, mad)] = &outputs[..] {
            got(port.wire_sends(&from(SM), &granted(mad)));
            granted_joins += 1;
        } else {
            let answer = got(outputs).mad;
            assert_eq!(answer.header.status, MadStatus::SA_NO_RESOURCES);
            refused += 1;
        }
        // As fast as the VF's default rate lets it.
        port.wait(Duration::from_micros(50));
    }
    assert_eq!((granted_joins, refused), (quota, 100_000 - quota));
    let sizes = port.mux.sizes();
    assert_eq!(sizes.mcast_members as u64, quota);
}

#[test]
fn c219_the_sa_is_asked_again_by_the_timer_with_another_tid() {
    let mut port = Port::new();
    let first = sent(port.vf_sends(1, &frame(SM, member(1, Method::SET, 5))));
    let outputs = port.wait(Duration::from_millis(600));
    let [(Cause::TIMER, Output::ToWire(_, mad))] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    assert_ne!(mad.header.tid, first.mad.header.tid);
    // The answer to the first transmission is as good as one to the second.
    assert_eq!(got(port.wire_sends(&from(SM), &granted(&first.mad))).vf, 1);
}

#[test]
fn c220_another_sm_is_asked_with_another_tid_and_the_old_one_is_ignored() {
    let mut port = Port::new();
    let first = sent(port.vf_sends(1, &frame(SM, member(1, Method::SET, 5))));
    let change = PortEvent::SmChange {
        lid: Lid::new(2),
        sl: Sl::default(),
    };
    let outputs = port.event(change);
    let request = outputs
        .into_iter()
        .find(|output| matches!(output, Output::ToWire(..)));
    let second = sent(vec![request.unwrap()]);
    assert_eq!(second.dlid, 2);
    assert_ne!(second.mad.header.tid, first.mad.header.tid);
    assert_eq!(
        dropped(port.wire_sends(&from(SM), &granted(&first.mad))),
        DropReason::WrongPeer
    );
    assert_eq!(got(port.wire_sends(&from(2), &granted(&second.mad))).vf, 1);
}

#[test]
fn a_join_with_a_grh_is_answered_with_one() {
    let mut port = Port::new();
    let sm = Gid::from_parts(PREFIX, Guid::new(0x99));
    let join = |number| global_frame(SM, sm, member(number, Method::SET, 6));
    let out = sent(port.vf_sends(1, &join(1)));
    for (number, outputs) in [
        (1, port.wire_sends(&from(SM), &granted(&out.mad))),
        (2, port.vf_sends(2, &join(2))),
    ] {
        let delivered = got(outputs);
        let grh = delivered.grh.unwrap();
        assert_eq!((grh.sgid, grh.dgid), (sm, vf_gid(number)));
        assert_eq!(delivered.vf, number);
    }
}

#[test]
fn a_group_in_a_partition_that_the_vf_is_not_in_stays_closed() {
    let vf = VfConfig {
        pkeys: vec![physical(1)],
        ..vf_config(2)
    };
    let mut port = Port::with(config(), [vf_config(1), vf]);
    let out = sent(port.vf_sends(1, &frame(SM, member(1, Method::SET, 5))));
    got(port.wire_sends(&from(SM), &granted(&out.mad)));
    let refused = got(port.vf_sends(2, &frame(SM, member(2, Method::SET, 6))));
    assert_eq!(refused.mad.header.status, MadStatus::SA_REQ_INVALID);
    assert_eq!(refused.pkey_index, 0);
}

#[test]
fn c229_requests_that_the_port_takes_over_and_their_answers_count_as_absorbed() {
    let mut port = Port::new();
    for number in [1, 2] {
        let mut request = member(1, Method::SET, number);
        let sa: &mut SaMad = request.view_mut();
        let mut record: McMemberRecord = sa.record();
        record.mgid.0[15] = 0x40 + u8::try_from(number).unwrap();
        sa.set_record(&record);
        let out = sent(port.vf_sends(1, &frame(SM, request)));
        got(port.wire_sends(&from(SM), &granted(&out.mad)));
    }
    let of_vf = port.mux.vf_statistics(vf(1)).unwrap();
    assert_eq!(of_vf.class(CountedClass::SubnAdm).absorbed, 2);
    let of_port = port.mux.port_statistics();
    assert_eq!(of_port.class(CountedClass::SubnAdm).absorbed, 2);
}
