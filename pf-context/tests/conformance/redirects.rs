//! Destinations other than a peer's QP1: redirections, the VF's own adapter, the port itself.

use ib_wire::cm;
use ib_wire::mad::{AttributeId, Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::ClassPortInfo;
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppMad};
use ib_wire::sa::SaMad;
use ib_wire::{Lid, PKey, QKey, Qpn};
use mad_mux::policy::Rights;
use pf_context::{CountedClass, Output, PortEvent, VfConfig};
use vf_tunnel::{DropReason, VfId};
use zerocopy::IntoBytes;

use crate::harness::*;

const QPN: Qpn = Qpn::from_low_bits(0x48);

/// Returns a Get(ClassPortInfo) of each class, and where its attribute begins behind the MAD header.
fn requests() -> [(Mad, usize); 4] {
    let of = |class, attribute| mad(class, Method::GET, attribute, 1);
    let info = AttributeId::CLASS_PORT_INFO;
    [
        (of(MgmtClass::SUBN_ADM, info), 56 - 24),
        (of(MgmtClass::PERF, info), 64 - 24),
        (of(MgmtClass::DEV_MGT, info), 64 - 24),
        (of(MgmtClass::COM_MGT, info), 0),
    ]
}

/// Starts a VF with the rights for SMPs and performance management.
fn port() -> Port {
    let rights = Rights {
        smi: true,
        perf_mgt: true,
        ..Rights::default()
    };
    let vf = VfConfig {
        rights,
        ..vf_config(1)
    };
    Port::with(config(), [vf])
}

/// Returns `true` if the VF may send to the QP that the answer names.
fn opens(request: &Mad, offset: usize, status: MadStatus, lid: u16, qpn: Qpn) -> bool {
    let mut port = port();
    let out = sent(port.vf_sends(1, &frame(PEER, *request)));
    let mut back = answer(&out.mad);
    back.header.status = status;
    let info = ClassPortInfo {
        redirect_lid: Lid::new(lid),
        redirect_qp: qpn,
        redirect_qkey: QKey::GSI,
        ..ClassPortInfo::default()
    };
    back.data[offset..offset + 72].copy_from_slice(info.as_bytes());
    got(port.wire_sends(&from(PEER), &back));
    let mut next = frame(lid, *request);
    next.header.remote_qpn = qpn;
    let outputs = port.vf_sends(1, &next);
    let is_dropped = matches!(outputs[0], Output::Dropped { .. });
    !is_dropped
}

#[test]
fn c020_a_class_port_info_tells_of_a_place_where_its_class_has_it() {
    for (request, offset) in requests() {
        for status in [MadStatus::OK, MadStatus::REDIRECT] {
            assert!(opens(&request, offset, status, PEER + 1, QPN));
        }
    }
}

#[test]
fn c020_what_redirects_nobody_opens_nothing() {
    let (mut request, offset) = requests()[2];
    assert!(!opens(&request, offset, MadStatus::OK, 0xc001, QPN));
    request.header.attribute_id = AttributeId::new(0x10);
    assert!(opens(&request, offset, MadStatus::REDIRECT, PEER + 1, QPN));
    for status in [MadStatus::OK, MadStatus::BUSY] {
        assert!(!opens(&request, offset, status, PEER + 1, QPN));
    }
}

#[test]
fn c020_of_many_places_the_latest_are_remembered() {
    let mut port = port();
    let (request, offset) = requests()[2];
    let qpn = |n: u32| Qpn::from_low_bits(0x100 + n);
    for n in 0..40 {
        let out = sent(port.vf_sends(1, &frame(PEER, request)));
        let info = ClassPortInfo {
            redirect_lid: Lid::new(PEER),
            redirect_qp: qpn(n),
            redirect_qkey: QKey::GSI,
            ..ClassPortInfo::default()
        };
        // Told twice, it is one place.
        for _ in 0..2 {
            let mut back = answer(&out.mad);
            back.data[offset..offset + 72].copy_from_slice(info.as_bytes());
            got(port.wire_sends(&from(PEER), &back));
        }
    }
    for n in 0..40 {
        let mut next = frame(PEER, request);
        next.header.remote_qpn = qpn(n);
        let outputs = port.vf_sends(1, &next);
        let is_sent = matches!(outputs[0], Output::ToWire(..));
        assert_eq!(is_sent, n >= 8, "{n}");
    }
}

#[test]
fn only_smps_go_to_the_permissive_lid() {
    let mut port = port();
    let smp = mad(
        MgmtClass::SUBN_LID_ROUTED,
        Method::GET,
        AttributeId::new(0x11),
        1,
    );
    let mut to_qp0 = frame(Lid::PERMISSIVE.get(), smp);
    to_qp0.header.remote_qpn = Qpn::SMI;
    let out = sent(port.vf_sends_on(1, Smi, &to_qp0));
    assert_eq!(out.dlid, Lid::PERMISSIVE.get());
    let to_qp1 = frame(Lid::PERMISSIVE.get(), path_query(1));
    assert_eq!(dropped(port.vf_sends(1, &to_qp1)), DropReason::NoTarget);
    let mut to_group = to_qp0;
    to_group.header.av.dlid = Lid::new(0xc001);
    assert_eq!(
        dropped(port.vf_sends_on(1, Smi, &to_group)),
        DropReason::NoTarget
    );
}

#[test]
fn the_right_to_send_smps_is_given_and_taken() {
    let mut port = Port::new();
    let smp = mad(
        MgmtClass::SUBN_LID_ROUTED,
        Method::GET,
        AttributeId::new(0x11),
        1,
    );
    let mut smp = frame(PEER, smp);
    smp.header.remote_qpn = Qpn::SMI;
    dropped(port.vf_sends_on(1, Smi, &smp));
    port.mux.set_smi(vf(1), true);
    sent(port.vf_sends_on(1, Smi, &smp));
    port.mux.set_smi(vf(1), false);
    dropped(port.vf_sends_on(1, Smi, &smp));
}

#[test]
fn c047_one_tid_to_two_gids_behind_one_lid_is_two_transactions() {
    let mut port = Port::new();
    let tids = [vf_gid(40), vf_gid(41)].map(|gid| {
        let frame = global_frame(PEER, gid, path_query(5));
        sent(port.vf_sends(1, &frame)).mad.header.tid
    });
    assert_ne!(tids[0], tids[1]);
}

#[test]
fn what_the_port_answers_and_takes_itself_is_counted() {
    let mut port = Port::new();
    for id in [1, 2] {
        let mut req = Mad::new(cm::header(AttributeId::CM_REQ));
        let fields: &mut cm::CmReq = req.view_mut();
        fields.local_comm_id = id.into();
        fields.primary.remote_gid = vf_gid(40);
        fields.pkey = PKey::DEFAULT_FULL;
        sent(port.wire_sends(&from(PEER), &req));
    }
    let counted = port.mux.port_statistics();
    assert_eq!(counted.class(CountedClass::ComMgt).answered, 2);
}

#[test]
fn only_a_report_of_the_sas_class_is_taken_for_one() {
    let mut port = Port::new();
    for (class, method) in [
        (MgmtClass::SUBN_ADM, Method::GET),
        (MgmtClass::DEV_MGT, Method::REPORT),
    ] {
        let mad = mad(class, method, AttributeId::NOTICE, 1);
        assert_eq!(
            dropped(port.wire_sends(&from(SM), &mad)),
            DropReason::NoTarget
        );
    }
}

#[test]
fn the_pfs_own_keys_are_the_ports_as_they_are_now() {
    let mut port = Port::new();
    port.mux.attach_pf_software(config().guid);
    let mut query = frame(SM, path_query(1));
    query.header.pkey_index.set(3);
    port.tenant_sends(VfId::PF, &query);
    let keys = [PKey::DEFAULT_FULL, PKey::INVALID, PKey::INVALID, OTHER];
    port.event(PortEvent::PKeyTable(keys.to_vec()));
    let mut query = frame(SM, path_query(2));
    query.header.pkey_index.set(3);
    assert_eq!(sent(port.tenant_sends(VfId::PF, &query)).pkey, OTHER);
}

#[test]
fn c190_the_abort_of_a_transfer_goes_the_way_of_its_request() {
    for is_global in [false, true] {
        let mut port = Port::new();
        let mut request = path_query(5);
        request.header.method = Method::GET_TABLE;
        let asked = if is_global {
            global_frame(PEER, peer_gid(), request)
        } else {
            frame(PEER, request)
        };
        let out = sent(port.vf_sends(1, &asked));
        let mut segment = answer(&out.mad);
        segment.view_mut::<RmppMad>().rmpp = RmppHeader::data(1, 0, RmppFlags::FIRST);
        let mut source = from(PEER);
        source.grh = is_global.then(|| route(peer_gid(), vf_gid(1)));
        got(port.wire_sends(&source, &segment));
        let abort = sent(port.reset(1));
        let to = abort.grh.map(|route| route.dgid);
        assert_eq!(to, is_global.then(peer_gid));
        assert_eq!(abort.mad.view::<SaMad>().header.tid, out.mad.header.tid);
    }
}
