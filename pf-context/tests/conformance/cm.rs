//! CM messages through the whole, and siblings: statements 81 to 84, 86, 95, 101, 108, 109, 111,
//! 112 and 195.

use cm_paravirt::SidrEntry;
use ib_vtime::Duration;
use ib_wire::cm::{self, CmRej, CmRep, CmReq, CmRtu, CmSidrReq, RejReason};
use ib_wire::mad::{AttributeId, Mad, Method, MgmtClass};
use ib_wire::{CommId, Gid, Guid, Lid, Lmc, PKey, ServiceId, Tid};
use pf_context::{Output, Policy, PortConfig, Sizes, VfConfig, WireSource};
use vf_tunnel::DropReason;

use crate::harness::*;

fn message(attribute: AttributeId, local: u32, remote: u32) -> Mad {
    let mut header = cm::header(attribute);
    header.tid = Tid::new(0x0123_4567_89ab_cdef);
    let mut mad = Mad::new(header);
    let rtu: &mut CmRtu = mad.view_mut();
    rtu.local_comm_id = CommId::new(local);
    rtu.remote_comm_id = CommId::new(remote);
    mad
}

fn req(id: u32, from: (u16, Gid), to: (u16, Gid)) -> Mad {
    let mut mad = message(AttributeId::CM_REQ, id, 0);
    let req: &mut CmReq = mad.view_mut();
    req.local_ca_guid = Guid::new(id.into());
    req.pkey = PKey::DEFAULT_FULL;
    req.primary.local_lid = Lid::new(from.0);
    req.primary.local_gid = from.1;
    req.primary.remote_lid = Lid::new(to.0);
    req.primary.remote_gid = to.1;
    mad
}

fn peer_req(id: u32, to: Gid) -> Mad {
    req(id, (PEER, peer_gid()), (OWN, to))
}

fn sibling_req(number: u16, id: u32, to: u16) -> Mad {
    req(id, (OWN, vf_gid(number)), (OWN, vf_gid(to)))
}

fn ids(mad: &Mad) -> (u32, u32) {
    let rtu: &CmRtu = mad.view();
    (rtu.local_comm_id.get(), rtu.remote_comm_id.get())
}

/// VF 1 connects to the peer, whose id is 90; gives the wire id.
fn connect(port: &mut Port) -> u32 {
    let request = req(5, (OWN, vf_gid(1)), (PEER, peer_gid()));
    let (wire, _) = ids(&sent(port.vf_sends(1, &frame(PEER, request))).mad);
    let rep = message(AttributeId::CM_REP, 90, wire);
    assert_eq!(ids(&got(port.wire_sends(&from(PEER), &rep)).mad), (90, 5));
    let rtu = message(AttributeId::CM_RTU, 5, 90);
    let out = sent(port.vf_sends(1, &frame(PEER, rtu)));
    assert_eq!(ids(&out.mad), (wire, 90));
    wire
}

#[test]
fn c081_a_req_goes_unchanged_to_the_owner_of_its_primary_gid() {
    let mut port = Port::new();
    let request = peer_req(7, vf_gid(2));
    let delivered = got(port.wire_sends(&from(PEER), &request));
    assert_eq!((delivered.vf, delivered.mad), (2, request));
}

#[test]
fn c069_a_req_in_a_foreign_partition_leaves_nothing() {
    let mut port = Port::new();
    let source = WireSource {
        pkey: OTHER,
        ..from(PEER)
    };
    assert_eq!(
        dropped(port.wire_sends(&source, &peer_req(7, vf_gid(2)))),
        DropReason::PKeyMismatch
    );
    assert_eq!(port.mux.sizes(), Sizes::default());
}

#[test]
fn c069_a_dreq_in_a_foreign_partition_leaves_the_connection_up() {
    let mut port = Port::new();
    let wire = connect(&mut port);
    let source = WireSource {
        pkey: OTHER,
        ..from(PEER)
    };
    let dreq = message(AttributeId::CM_DREQ, 90, wire);
    let outputs = port.wire_sends(&source, &dreq);
    let drop = Output::Dropped {
        vf: Some(vf(1)),
        reason: DropReason::PKeyMismatch,
    };
    assert_eq!(outputs, [drop]);
    // What closes has its time; what is up has none.
    assert!(port.wait(Duration::from_secs(3_600)).is_empty());
    assert_eq!(port.mux.sizes().cm_ids, 1);
    assert_eq!(got(port.wire_sends(&from(PEER), &dreq)).vf, 1);
}

#[test]
fn c082_a_grh_that_contradicts_the_req_ends_it() {
    let mut port = Port::new();
    let source = WireSource {
        grh: Some(route(peer_gid(), vf_gid(1))),
        ..from(PEER)
    };
    assert_eq!(
        dropped(port.wire_sends(&source, &peer_req(7, vf_gid(2)))),
        DropReason::TargetMismatch
    );
}

#[test]
fn c083_a_req_for_nobody_is_rejected_where_it_came_from() {
    let mut port = Port::new();
    let source = WireSource {
        grh: Some(route(peer_gid(), vf_gid(9))),
        ..from(PEER)
    };
    let out = sent(port.wire_sends(&source, &peer_req(7, vf_gid(9))));
    assert_eq!(
        (out.dlid, out.mad.header.attribute_id),
        (PEER, AttributeId::CM_REJ)
    );
    assert_eq!(out.mad.view::<CmRej>().reason, RejReason::PRIMARY_GID);
    let grh = out.grh.unwrap();
    assert_eq!((grh.sgid, grh.dgid), (vf_gid(9), peer_gid()));
}

#[test]
fn c083_a_req_is_rejected_from_the_lid_that_it_came_to() {
    let lmc = Lmc::from_low_bits(2);
    let mut port = Port::with(PortConfig { lmc, ..config() }, [vf_config(1)]);
    let source = WireSource {
        grh: Some(route(peer_gid(), vf_gid(9))),
        path_bits: 2,
        ..from(PEER)
    };
    let out = sent(port.wire_sends(&source, &peer_req(7, vf_gid(9))));
    assert_eq!((out.dlid, out.path_bits), (PEER, 2));
}

#[test]
fn c087_a_peers_message_from_its_base_lid_is_the_exchanges() {
    let lmc = Lmc::from_low_bits(2);
    let mut port = Port::with(PortConfig { lmc, ..config() }, [vf_config(1)]);
    let wire = connect(&mut port);
    let dreq = message(AttributeId::CM_DREQ, 90, wire);
    let stranger = dropped(port.wire_sends(&from(PEER + 4), &dreq));
    assert_eq!(stranger, DropReason::WrongPeer);
    assert_eq!(got(port.wire_sends(&from(PEER + 1), &dreq)).vf, 1);
}

#[test]
fn c084_a_req_for_a_stopped_vf_is_rejected() {
    let mut port = Port::new();
    port.mux.set_active(vf(2), false);
    let out = sent(port.wire_sends(&from(PEER), &peer_req(7, vf_gid(2))));
    assert_eq!(out.mad.view::<CmRej>().reason, RejReason::NO_RESOURCES);
}

#[test]
fn c086_a_connection_runs_both_ways_and_drains() {
    let mut port = Port::new();
    let wire = connect(&mut port);
    assert_eq!(port.mux.sizes().cm_ids, 1);
    let dreq = message(AttributeId::CM_DREQ, 90, wire);
    assert_eq!(ids(&got(port.wire_sends(&from(PEER), &dreq)).mad), (90, 5));
    let drep = message(AttributeId::CM_DREP, 5, 90);
    assert_eq!(
        ids(&sent(port.vf_sends(1, &frame(PEER, drep))).mad),
        (wire, 90)
    );
    assert!(port.wait(Duration::from_secs(300)).is_empty());
    assert_eq!(port.mux.sizes(), Sizes::default());
}

#[test]
fn c095_a_dreq_for_nobody_is_answered() {
    let mut port = Port::new();
    let out = sent(port.wire_sends(&from(PEER), &message(AttributeId::CM_DREQ, 7, 8)));
    assert_eq!(out.mad.header.attribute_id, AttributeId::CM_DREP);
    assert_eq!(ids(&out.mad), (8, 7));
}

#[test]
fn c101_a_sidr_request_goes_by_its_destination_gid() {
    let mut port = Port::new();
    let mut request = message(AttributeId::CM_SIDR_REQ, 7, 0);
    request.view_mut::<CmSidrReq>().pkey = PKey::DEFAULT_FULL;
    let source = WireSource {
        grh: Some(route(peer_gid(), vf_gid(2))),
        ..from(PEER)
    };
    let delivered = got(port.wire_sends(&source, &request));
    assert_eq!((delivered.vf, delivered.mad), (2, request));
    assert_eq!(
        dropped(port.wire_sends(&from(PEER), &request)),
        DropReason::NoTarget
    );
}

#[test]
fn c107_c108_what_a_vf_claims_to_be_in_a_req_must_be_true() {
    let mut port = Port::new();
    let foreign = req(5, (OWN, vf_gid(2)), (PEER, peer_gid()));
    assert_eq!(
        dropped(port.vf_sends(1, &frame(PEER, foreign))),
        DropReason::ForeignIdentity
    );
    let mut partition = req(5, (OWN, vf_gid(1)), (PEER, peer_gid()));
    partition.view_mut::<CmReq>().pkey = OTHER;
    assert_eq!(
        dropped(port.vf_sends(1, &frame(PEER, partition))),
        DropReason::ForeignPKey
    );
}

#[test]
fn c109_siblings_connect_without_the_wire() {
    let mut port = Port::new();
    let request = sibling_req(1, 5, 2);
    let asked = got(port.vf_sends(1, &global_frame(OWN, vf_gid(2), request)));
    assert_eq!((asked.vf, asked.slid), (2, OWN));
    let grh = asked.grh.unwrap();
    assert_eq!((grh.sgid, grh.dgid), (vf_gid(1), vf_gid(2)));
    let (first, _) = ids(&asked.mad);
    assert_ne!(first, 5);

    let mut rep = message(AttributeId::CM_REP, 5, first);
    rep.view_mut::<CmRep>().local_ca_guid = Guid::new(2);
    let answered = got(port.vf_sends(2, &frame(OWN, rep)));
    assert_eq!(answered.vf, 1);
    let (second, guest) = ids(&answered.mad);
    assert_eq!(guest, 5);
    assert_ne!(second, first);

    let rtu = message(AttributeId::CM_RTU, 5, second);
    let ready = got(port.vf_sends(1, &frame(OWN, rtu)));
    assert_eq!((ready.vf, ids(&ready.mad)), (2, (first, 5)));
    assert_eq!(port.mux.sizes().cm_ids, 2);

    let dreq = message(AttributeId::CM_DREQ, 5, first);
    let over = got(port.vf_sends(2, &frame(OWN, dreq)));
    assert_eq!((over.vf, ids(&over.mad)), (1, (second, 5)));
    let drep = message(AttributeId::CM_DREP, 5, second);
    assert_eq!(got(port.vf_sends(1, &frame(OWN, drep))).vf, 2);
    assert!(port.wait(Duration::from_secs(300)).is_empty());
    assert_eq!(port.mux.sizes(), Sizes::default());
}

#[test]
fn c109_a_req_to_no_sibling_comes_back_rejected() {
    let mut port = Port::new();
    let request = sibling_req(1, 5, 9);
    let back = got(port.vf_sends(1, &frame(OWN, request)));
    assert_eq!(
        (back.vf, back.mad.header.attribute_id),
        (1, AttributeId::CM_REJ)
    );
    assert_eq!(ids(&back.mad), (0, 5));
}

#[test]
fn c036_siblings_ask_each_other_for_their_class_port_info() {
    let mut port = Port::new();
    let request = mad(
        MgmtClass::COM_MGT,
        Method::GET,
        AttributeId::CLASS_PORT_INFO,
        5,
    );
    let asked = got(port.vf_sends(1, &global_frame(OWN, vf_gid(2), request)));
    assert_eq!(asked.vf, 2);
    let back = answer(&asked.mad);
    let answered = got(port.vf_sends(2, &global_frame(OWN, vf_gid(1), back)));
    assert_eq!((answered.vf, answered.mad), (1, answer(&request)));
}

#[test]
fn c111_c112_a_reset_ends_the_vfs_connections_and_tells_their_peers() {
    let mut port = Port::new();
    let wire = connect(&mut port);
    let out = sent(port.reset(1));
    assert_eq!(
        (out.dlid, out.mad.header.attribute_id),
        (PEER, AttributeId::CM_DREQ)
    );
    assert_eq!(ids(&out.mad), (wire, 90));
    assert_eq!(port.mux.sizes(), Sizes::default());
    let late = message(AttributeId::CM_DREP, 90, wire);
    assert_eq!(
        dropped(port.wire_sends(&from(PEER), &late)),
        DropReason::UnknownCommId
    );

    let policy = Policy {
        signal_reset: false,
        ..Policy::default()
    };
    let mut port = Port::with(PortConfig { policy, ..config() }, [vf_config(1)]);
    connect(&mut port);
    assert!(port.reset(1).is_empty());
}

#[test]
fn c112_a_request_that_a_reset_abandons_is_named_by_the_ca_that_it_named() {
    const CA: u64 = 0xabcd_0000_0000_0005;
    let own = Some(Guid::new(CA));
    for ca_guid in [None, own] {
        let requester = VfConfig {
            ca_guid,
            ..vf_config(1)
        };
        let mut port = Port::with(config(), [requester]);
        let mut request = req(5, (OWN, vf_gid(1)), (PEER, peer_gid()));
        request.view_mut::<CmReq>().local_ca_guid = Guid::new(CA);
        let (wire, _) = ids(&sent(port.vf_sends(1, &frame(PEER, request))).mad);
        let out = sent(port.reset(1));
        assert_eq!(ids(&out.mad), (wire, 0));
        assert_eq!(out.mad.view::<CmRej>().timeout_ca_guid(), own);
    }
}

#[test]
fn c107_a_req_that_names_another_ca_than_the_pf_gave_is_dropped() {
    let given = VfConfig {
        ca_guid: Some(Guid::new(6)),
        ..vf_config(1)
    };
    let mut port = Port::with(config(), [given]);
    let request = req(5, (OWN, vf_gid(1)), (PEER, peer_gid()));
    let reason = dropped(port.vf_sends(1, &frame(PEER, request)));
    assert_eq!(reason, DropReason::ForeignIdentity);
    assert_eq!(port.mux.sizes(), Sizes::default());
}

#[test]
fn c112_a_reset_tells_a_sibling_without_the_wire() {
    let mut port = Port::new();
    let asked = got(port.vf_sends(1, &frame(OWN, sibling_req(1, 5, 2))));
    let (first, _) = ids(&asked.mad);
    let answered = got(port.vf_sends(2, &frame(OWN, message(AttributeId::CM_REP, 6, first))));
    let (second, _) = ids(&answered.mad);
    got(port.vf_sends(1, &frame(OWN, message(AttributeId::CM_RTU, 5, second))));
    let told = got(port.reset(1));
    assert_eq!(
        (told.vf, told.mad.header.attribute_id),
        (2, AttributeId::CM_DREQ)
    );
    assert_eq!(ids(&told.mad), (first, 6));
}

#[test]
fn c195_a_vf_cannot_end_what_a_sibling_has_with_a_peer() {
    let mut port = Port::new();
    let wire = connect(&mut port);
    for attribute in [AttributeId::CM_DREQ, AttributeId::CM_REJ] {
        let forged = message(attribute, 90, wire);
        let outputs = port.vf_sends(2, &frame(OWN, forged));
        let reason = dropped(outputs);
        assert!(
            matches!(reason, DropReason::UnknownCommId | DropReason::WrongPeer),
            "{reason}"
        );
    }
    let dreq = message(AttributeId::CM_DREQ, 90, wire);
    assert_eq!(got(port.wire_sends(&from(PEER), &dreq)).vf, 1);
}

#[test]
fn a_cm_message_without_guid_of_the_vf_claims_nothing() {
    let vf = VfConfig {
        guid: None,
        ..vf_config(1)
    };
    let mut port = Port::with(config(), [vf]);
    let request = req(5, (OWN, vf_gid(1)), (PEER, peer_gid()));
    assert_eq!(
        dropped(port.vf_sends(1, &frame(PEER, request))),
        DropReason::ForeignIdentity
    );
}

#[test]
fn c102_a_vf_gets_the_sidr_requests_for_what_it_was_given() {
    let mut port = Port::new();
    let mut request = Mad::new(cm::header(AttributeId::CM_SIDR_REQ));
    let fields: &mut CmSidrReq = request.view_mut();
    fields.service_id = ServiceId::new(0x1234);
    fields.pkey = PKey::DEFAULT_FULL;
    dropped(port.wire_sends(&from(PEER), &request));
    let entry: SidrEntry = "0x1234".parse().unwrap();
    port.mux.set_sidr(vf(2), &[entry]).unwrap();
    assert_eq!(got(port.wire_sends(&from(PEER), &request)).vf, 2);
    assert!(port.mux.set_sidr(vf(1), &[entry]).is_err());
}
