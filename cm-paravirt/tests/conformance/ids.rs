//! Statements about ids: which, how many, and that nothing else is touched.

use std::collections::BTreeSet;

use cm_paravirt::{CmParavirt, Config, State};
use ib_wire::CommId;
use ib_wire::cm::{CmMessage, CmReq, RejReason};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use vf_tunnel::DropReason;

use crate::harness::*;

#[test]
fn c078_equal_ids_of_two_vfs_differ_on_the_wire_and_are_neither_zero_nor_all_ones() {
    let mut pf = Pf::default();
    let one = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    let two = pf.sends(2, vf_req(2, 5, PEER_LID), at(PEER_LID));
    assert_ne!(one, two);
    for wire in [one, two] {
        assert!(wire != 0 && wire != u32::MAX);
        assert_ne!(wire, 5);
    }
}

#[test]
fn c079_another_start_uses_other_wire_ids() {
    let ids = |seed| {
        let mut pf = Pf {
            machine: CmParavirt::new(Config::default(), seed),
            ..Pf::default()
        };
        (0..1000)
            .map(|id| pf.sends(1, vf_req(1, id, PEER_LID), at(PEER_LID)))
            .collect::<BTreeSet<u32>>()
    };
    assert_eq!(ids(1), ids(1));
    assert!(ids(1).is_disjoint(&ids(2)));
}

#[test]
fn c080_a_repeated_req_has_the_same_wire_id() {
    let mut pf = Pf::default();
    let first = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    pf.wait(4);
    assert_eq!(pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID)), first);
    assert_eq!(pf.machine.len(), 1);
}

#[test]
fn c080_a_req_under_the_same_id_to_another_peer_is_another_exchange() {
    let mut pf = Pf::default();
    let first = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    let second = pf.sends(1, vf_req(1, 5, STRANGER_LID), at(STRANGER_LID));
    assert_ne!(first, second);
}

#[test]
fn c085_an_mra_and_the_rep_after_it_have_the_same_wire_id() {
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    let mra = pf.sends(1, message(AttributeId::CM_MRA, 5, 77), at(PEER_LID));
    pf.wait(60);
    let rep = pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
    assert_eq!(mra, rep);
}

/// Everything but bytes 28 to 31.
fn without_remote_id(mad: &Mad) -> Mad {
    let mut mad = *mad;
    mad.data[4..8].fill(0);
    mad
}

#[test]
fn c086_the_remote_id_and_nothing_else_is_rewritten_on_the_way_in() {
    for attribute in [
        AttributeId::CM_RTU,
        AttributeId::CM_MRA,
        AttributeId::CM_APR,
        AttributeId::CM_DREQ,
        AttributeId::CM_DREP,
        AttributeId::CM_REJ,
    ] {
        let mut pf = Pf::default();
        let wire = pf.accept(1, 0xffff_ffff, PEER_LID, 77);
        let mut mad = message(attribute, 77, wire);
        for (place, byte) in (0_u8..).zip(&mut mad.data[8..]) {
            *byte = place ^ 0xa5;
        }
        let delivered = pf.rx(mad, at(PEER_LID)).into_vf(1);
        assert_eq!(remote_id(&delivered), 0xffff_ffff, "{attribute}");
        assert_eq!(without_remote_id(&delivered), without_remote_id(&mad));
    }
}

#[test]
fn c086_a_rep_is_rewritten_likewise() {
    let mut pf = Pf::default();
    let wire = pf.sends(1, vf_req(1, 0, PEER_LID), at(PEER_LID));
    let mut mad = rep(77, wire, peer_ca(PEER_LID));
    mad.data[36..].fill(0x5a);
    let delivered = pf.rx(mad, at(PEER_LID)).into_vf(1);
    assert_eq!(remote_id(&delivered), 0);
    assert_eq!(without_remote_id(&delivered), without_remote_id(&mad));
}

#[test]
fn c086_the_local_id_and_nothing_else_is_rewritten_on_the_way_out() {
    let mut pf = Pf::default();
    let mut mad = vf_req(1, 5, PEER_LID);
    mad.data[140..].fill(0x5a);
    let mut sent = pf.tx(1, mad, at(PEER_LID)).expect("forwarded");
    sent.view_mut::<CmReq>().local_comm_id = CommId::new(5);
    assert_eq!(sent, mad);
}

#[test]
fn c100_an_id_used_again_in_quarantine_gets_a_new_wire_id_that_outlives_the_old_timer() {
    let mut pf = Pf::default();
    let old = pf.connect(1, 5, PEER_LID, 77);
    pf.sends(1, message(AttributeId::CM_DREQ, 5, 77), at(PEER_LID));
    pf.rx(message(AttributeId::CM_DREP, 77, old), at(PEER_LID))
        .into_vf(1);
    pf.wait(20);
    let new = pf.connect(1, 5, PEER_LID, 78);
    assert_ne!(old, new);
    pf.wait(600);
    let dreq = message(AttributeId::CM_DREQ, 78, new);
    assert_eq!(remote_id(&pf.rx(dreq, at(PEER_LID)).into_vf(1)), 5);
}

#[test]
fn c100_a_late_dreq_for_the_former_use_of_an_id_is_answered_and_does_not_reach_the_new_one() {
    let mut pf = Pf::default();
    let old = pf.connect(1, 5, PEER_LID, 77);
    pf.sends(1, message(AttributeId::CM_DREQ, 5, 77), at(PEER_LID));
    pf.connect(1, 5, PEER_LID, 78);
    let drep = pf
        .rx(message(AttributeId::CM_DREQ, 77, old), at(PEER_LID))
        .into_answer();
    assert_eq!(drep.header.attribute_id, AttributeId::CM_DREP);
    assert_eq!((local_id(&drep), remote_id(&drep)), (old, 77));
}

#[test]
fn c100_an_acceptor_that_uses_its_id_again_gets_a_new_wire_id() {
    let mut pf = Pf::default();
    let old = pf.accept(1, 5, PEER_LID, 77);
    pf.rx(message(AttributeId::CM_DREQ, 77, old), at(PEER_LID))
        .into_vf(1);
    pf.sends(1, message(AttributeId::CM_DREP, 5, 77), at(PEER_LID));
    assert_ne!(pf.accept(1, 5, PEER_LID, 78), old);
}

#[test]
fn c100_equal_ids_of_both_ends_are_a_new_exchange_before_the_old_dreq_was_answered() {
    // The VF's DREQ, or the peer's, got no DREP before both used their ids again.
    let (vf_dreq, peer_dreq) = (message(AttributeId::CM_DREQ, 5, 77), |wire| {
        message(AttributeId::CM_DREQ, 77, wire)
    });
    let mut pf = Pf::default();
    let first = pf.accept(1, 5, PEER_LID, 77);
    pf.sends(1, vf_dreq, at(PEER_LID));
    let second = pf.accept(1, 5, PEER_LID, 77);
    pf.rx(peer_dreq(second), at(PEER_LID)).into_vf(1);
    let third = pf.accept(1, 5, PEER_LID, 77);
    assert!(first != second && second != third && first != third);
    pf.wait(300);
    pf.rx(peer_dreq(third), at(PEER_LID)).into_vf(1);
    pf.drain();
    assert!(pf.machine.is_empty());
}

#[test]
fn c109_two_vfs_of_one_pf_connect_through_two_mappings() {
    let mut pf = Pf::default();
    let own = at(OWN_LID);
    let req = pf.tx(1, sibling_req(1, 5, 2), own).expect("forwarded");
    let req = pf.rx(req, own).into_vf(2);
    let one = local_id(&req);
    let rep = pf.tx(2, rep(5, one, vf_ca(2)), own).expect("forwarded");
    let rep = pf.rx(rep, own).into_vf(1);
    let two = local_id(&rep);
    assert_eq!(remote_id(&rep), 5);
    assert_ne!(one, two);
    let rtu = message(AttributeId::CM_RTU, 5, two);
    let rtu = pf.tx(1, rtu, own).expect("forwarded");
    let rtu = pf.rx(rtu, own).into_vf(2);
    assert_eq!((local_id(&rtu), remote_id(&rtu)), (one, 5));
    assert_eq!(pf.states(), [State::Established, State::Established]);

    let dreq = message(AttributeId::CM_DREQ, 5, one);
    let dreq = pf.tx(2, dreq, own).expect("forwarded");
    let dreq = pf.rx(dreq, own).into_vf(1);
    let drep = message(AttributeId::CM_DREP, 5, local_id(&dreq));
    let drep = pf.tx(1, drep, own).expect("forwarded");
    assert_eq!(remote_id(&pf.rx(drep, own).into_vf(2)), 5);
    pf.drain();
    assert!(pf.machine.is_empty());
}

#[test]
fn c110_crossing_requests_of_two_vfs_become_one_connection() {
    let mut pf = Pf::default();
    let own = at(OWN_LID);
    let from_1 = pf.tx(1, sibling_req(1, 5, 2), own).expect("forwarded");
    let from_2 = pf.tx(2, sibling_req(2, 6, 1), own).expect("forwarded");
    let (one, two) = (local_id(&from_1), local_id(&from_2));
    pf.rx(from_1, own).into_vf(2);
    pf.rx(from_2, own).into_vf(1);
    // VF 2 yields and answers under the id of its own REQ.
    let rep = pf.tx(2, rep(6, one, vf_ca(2)), own).expect("forwarded");
    assert_eq!(local_id(&rep), two);
    let rep = pf.rx(rep, own).into_vf(1);
    assert_eq!((local_id(&rep), remote_id(&rep)), (two, 5));
    let rtu = message(AttributeId::CM_RTU, 5, two);
    let rtu = pf.tx(1, rtu, own).expect("forwarded");
    assert_eq!(remote_id(&pf.rx(rtu, own).into_vf(2)), 6);
    assert_eq!(pf.states(), [State::Established, State::Established]);
}

#[test]
fn c110_crossing_requests_with_a_peer_that_answers_leave_no_half() {
    let mut pf = Pf::default();
    let wire = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    assert_eq!(pf.machine.len(), 2);
    let rep = rep(77, wire, peer_ca(PEER_LID));
    assert_eq!(remote_id(&pf.rx(rep, at(PEER_LID)).into_vf(1)), 5);
    pf.sends(1, message(AttributeId::CM_RTU, 5, 77), at(PEER_LID));
    assert_eq!(pf.states(), [State::Established]);
}

#[test]
fn c110_a_request_of_a_peer_that_answered_already_is_another_exchange() {
    let mut pf = Pf::default();
    let asked = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    pf.rx(message(AttributeId::CM_MRA, 77, asked), at(PEER_LID))
        .into_vf(1);
    pf.rx(peer_req(PEER_LID, 78, 1), at(PEER_LID)).into_vf(1);
    let answer = pf.sends(1, message(AttributeId::CM_MRA, 5, 78), at(PEER_LID));
    assert_ne!(answer, asked);
}

#[test]
fn c113_ten_thousand_connections_opened_and_closed_leave_nothing() {
    let mut pf = Pf::default();
    for id in 0..10_000 {
        let peer = 0x0100_0000 + id;
        let wire = pf.connect(1, id, PEER_LID, peer);
        let dreq = message(AttributeId::CM_DREQ, id, peer);
        assert_eq!(pf.sends(1, dreq, at(PEER_LID)), wire);
        pf.rx(message(AttributeId::CM_DREP, peer, wire), at(PEER_LID))
            .into_vf(1);
    }
    assert_eq!(pf.machine.len(), 10_000);
    pf.drain();
    assert!(pf.machine.is_empty());
    let ids = pf.machine.vf_statistics(vf(1)).expect("known").ids;
    assert_eq!(ids, 0);
}

#[test]
fn c115_an_unknown_attribute_is_dropped_both_ways_without_a_mapping() {
    let mut pf = Pf::default();
    for attribute in [0x0000, 0x000f, 0x001b, 0xffff] {
        let mad = message(AttributeId::new(attribute), 5, 0);
        assert_eq!(pf.tx(1, mad, at(PEER_LID)), Err(DropReason::MalformedCm));
        assert_eq!(pf.rx(mad, at(PEER_LID)), Rx::Drop(DropReason::MalformedCm));
    }
    assert!(pf.machine.is_empty());
}

#[test]
fn c034_methods_other_than_send_are_dropped() {
    let mut pf = Pf::default();
    let mut mad = vf_req(1, 5, PEER_LID);
    mad.header.method = Method::GET;
    assert_eq!(
        pf.tx(1, mad, at(PEER_LID)),
        Err(DropReason::MethodNotPermitted)
    );
}

fn class_port_info(method: Method) -> Mad {
    Mad::new(MadHeader::new(
        MgmtClass::COM_MGT,
        method,
        AttributeId::CLASS_PORT_INFO,
    ))
}

#[test]
fn c035_class_port_info_passes_outwards_untouched() {
    let mut pf = Pf::default();
    for method in [Method::GET, Method::GET_RESP] {
        let mad = class_port_info(method);
        assert_eq!(pf.tx(1, mad, at(PEER_LID)), Ok(mad));
    }
    assert!(pf.machine.is_empty());
}

#[test]
fn c036_a_get_of_class_port_info_goes_to_the_vf_with_the_destination_gid() {
    let mut pf = Pf::default();
    let mad = class_port_info(Method::GET);
    assert_eq!(pf.rx_to(mad, at(PEER_LID), Some(vf_gid(3))), Rx::Vf(3, mad));
    assert_eq!(pf.rx(mad, at(PEER_LID)), Rx::ToPf);
}

#[test]
fn c200_guessed_wire_ids_hit_nothing() {
    let mut pf = Pf::default();
    for id in 0..1000 {
        pf.connect(1, id, PEER_LID, 77 + id);
    }
    for guess in 0..100_000 {
        let rej = rej(77, guess, CmMessage::OTHER, RejReason::CONSUMER);
        assert_eq!(
            pf.rx(rej, at(STRANGER_LID)),
            Rx::Drop(DropReason::UnknownCommId)
        );
    }
    assert!(pf.states().iter().all(|s| *s == State::Established));
}
