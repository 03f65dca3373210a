//! Statements about who may say what, and where it goes.

use cm_paravirt::{Config, IdentityCheck, State};
use ib_wire::cm::{CmLap, CmMessage, CmRej, CmReq, RejReason};
use ib_wire::mad::{AttributeId, Mad};
use ib_wire::{Gid, Guid, Lid, PortNum, Qpn, SubnetPrefix};
use vf_tunnel::DropReason;

use crate::harness::*;

#[test]
fn c081_a_req_goes_unmodified_to_the_vf_of_its_primary_remote_gid() {
    let mut pf = Pf::default();
    let req = peer_req(PEER_LID, 77, 3);
    assert_eq!(pf.rx(req, at(PEER_LID)), Rx::Vf(3, req));
    assert_eq!(pf.rx_to(req, at(PEER_LID), Some(vf_gid(3))), Rx::Vf(3, req));
}

#[test]
fn c081_a_req_for_the_pfs_own_gid_goes_to_the_pf() {
    let mut pf = Pf::default();
    let mut req = peer_req(PEER_LID, 77, 3);
    req.view_mut::<CmReq>().primary.remote_gid = pf_gid();
    assert_eq!(pf.rx(req, at(PEER_LID)), Rx::ToPf);
    assert!(pf.machine.is_empty());
}

#[test]
fn c082_a_grh_that_contradicts_the_primary_remote_gid_ends_a_req() {
    let mut pf = Pf::default();
    let req = peer_req(PEER_LID, 77, 3);
    for dgid in [vf_gid(4), pf_gid(), peer_gid(PEER_LID)] {
        assert_eq!(
            pf.rx_to(req, at(PEER_LID), Some(dgid)),
            Rx::Drop(DropReason::TargetMismatch)
        );
    }
    assert!(pf.machine.is_empty());
}

#[test]
fn c069_what_the_partition_keeps_from_a_vf_changes_nothing() {
    let mut pf = Pf::default();
    // VF 1 is connected, VF 2 was asked for a connection, VF 3 asks for one, VF 4 for a service.
    let up = pf.connect(1, 5, PEER_LID, 90);
    let asked = peer_req(PEER_LID, 91, 2);
    pf.rx(asked, at(PEER_LID)).into_vf(2);
    let asking = pf.sends(3, vf_req(3, 6, PEER_LID), at(PEER_LID));
    let sidr = pf.sends(4, sidr_req(7, 1), at(PEER_LID));

    let before: Vec<_> = pf.machine.connections(pf.now).collect();
    pf.outside = vec![1, 2, 3, 4];
    let other = CmMessage::OTHER;
    for mad in [
        message(AttributeId::CM_DREQ, 90, up),
        message(AttributeId::CM_RTU, 90, up),
        rej(90, up, other, RejReason::CONSUMER),
        asked,
        peer_req(PEER_LID, 92, 2),
        rej_timeout(91, 0, peer_ca(PEER_LID)),
        message(AttributeId::CM_MRA, 93, asking),
        rep(93, asking, peer_ca(PEER_LID)),
        sidr_rep(sidr),
    ] {
        let refused = Rx::Drop(DropReason::PKeyMismatch);
        assert_eq!(pf.rx(mad, at(PEER_LID)), refused, "{:?}", mad.header);
    }
    assert!(pf.machine.connections(pf.now).eq(before));

    pf.outside.clear();
    pf.rx(rep(94, asking, peer_ca(PEER_LID)), at(PEER_LID))
        .into_vf(3);
}

fn unknown_gid_req(id: u32) -> Mad {
    let mut req = peer_req(PEER_LID, id, 1);
    req.view_mut::<CmReq>().primary.remote_gid =
        Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(0xdead));
    req
}

#[test]
fn c083_a_req_for_an_unknown_gid_is_answered_by_a_rej_with_reason_12() {
    let mut pf = Pf::default();
    let req = unknown_gid_req(77);
    let answer = pf.rx(req, at(PEER_LID)).into_answer();
    assert_eq!(answer.header.attribute_id, AttributeId::CM_REJ);
    assert_eq!(answer.header.tid, req.header.tid);
    let rej: &CmRej = answer.view();
    assert_eq!((local_id(&answer), remote_id(&answer)), (0, 77));
    assert_eq!(rej.reason.get(), 12);
    assert_eq!(rej.message_rejected(), CmMessage::REQ);
    assert!(pf.machine.is_empty());
}

#[test]
fn c083_answers_to_one_lid_are_limited_and_do_not_use_up_those_to_another() {
    let mut pf = Pf::default();
    let answers = (0..10_000)
        .filter(|&id| matches!(pf.rx(unknown_gid_req(id), at(PEER_LID)), Rx::Answer(_)))
        .count();
    assert_eq!(answers, 100);
    let withheld = pf.machine.statistics().answers_withheld;
    assert_eq!(withheld, 9_900);
    assert_eq!(
        pf.machine.statistics().drops(DropReason::UnknownGid),
        withheld
    );
    pf.rx(unknown_gid_req(1), at(STRANGER_LID)).into_answer();
    pf.wait(1);
    pf.rx(unknown_gid_req(1), at(PEER_LID)).into_answer();
}

#[test]
fn c084_a_req_for_a_vf_that_is_down_is_rejected_for_lack_of_resources() {
    let mut pf = Pf::default();
    pf.down.push(1);
    let answer = pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_answer();
    assert_eq!(answer.view::<CmRej>().reason, RejReason::NO_RESOURCES);
}

#[test]
fn c084_or_dropped_and_counted_if_the_policy_is_silence() {
    let mut pf = Pf::with(Config {
        reject_for_down_vf: false,
        ..Config::default()
    });
    pf.down.push(1);
    assert_eq!(
        pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)),
        Rx::Drop(DropReason::VfDown)
    );
    assert_eq!(pf.drops(1, DropReason::VfDown), 1);
}

/// Messages that a stranger could use against a connection between wire id and peer id.
fn attacks(local: u32, wire: u32) -> [Mad; 6] {
    [
        message(AttributeId::CM_DREQ, local, wire),
        message(AttributeId::CM_DREP, local, wire),
        message(AttributeId::CM_RTU, local, wire),
        message(AttributeId::CM_APR, local, wire),
        rej(local, wire, CmMessage::OTHER, RejReason::CONSUMER),
        rep(local, wire, peer_ca(PEER_LID)),
    ]
}

#[test]
fn c087_a_wrong_peer_id_or_address_ends_a_message_and_starts_no_timer() {
    let mut pf = Pf::default();
    let wire = pf.connect(1, 5, PEER_LID, 77);
    for mad in attacks(78, wire) {
        assert_eq!(pf.rx(mad, at(PEER_LID)), Rx::Drop(DropReason::WrongPeer));
    }
    for mad in attacks(77, wire) {
        assert_eq!(
            pf.rx(mad, at(STRANGER_LID)),
            Rx::Drop(DropReason::WrongPeer)
        );
    }
    assert_eq!(pf.states(), [State::Established]);
    assert_eq!(pf.drops(1, DropReason::WrongPeer), 12);
    pf.wait(3600);
    pf.rx(message(AttributeId::CM_DREQ, 77, wire), at(PEER_LID))
        .into_vf(1);
}

#[test]
fn c087_before_the_peer_has_shown_its_id_only_an_answer_to_the_req_passes() {
    let mut pf = Pf::default();
    let wire = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    for attribute in [
        AttributeId::CM_DREQ,
        AttributeId::CM_DREP,
        AttributeId::CM_RTU,
        AttributeId::CM_APR,
    ] {
        assert_eq!(
            pf.rx(message(attribute, 77, wire), at(PEER_LID)),
            Rx::Drop(DropReason::WrongPeer)
        );
    }
    assert_eq!(
        pf.rx(rep(77, wire, peer_ca(PEER_LID)), at(STRANGER_LID)),
        Rx::Drop(DropReason::WrongPeer)
    );
    pf.rx(rep(77, wire, peer_ca(PEER_LID)), at(PEER_LID))
        .into_vf(1);
}

#[test]
fn c087_a_peer_behind_routers_is_known_by_its_gid_and_one_in_the_subnet_is_not() {
    for (first, expected) in [(Some(peer_gid(PEER_LID)), true), (None, false)] {
        let mut pf = Pf::default();
        let mut to = at(PEER_LID);
        to.gid = first;
        let wire = pf.sends(1, vf_req(1, 5, PEER_LID), to);
        let mut from = at(STRANGER_LID);
        from.gid = Some(peer_gid(PEER_LID));
        let verdict = pf.rx(rep(77, wire, peer_ca(PEER_LID)), from);
        assert_eq!(matches!(verdict, Rx::Vf(1, _)), expected);
    }
}

#[test]
fn c087_after_a_change_of_lids_the_first_message_with_the_right_ids_tells_the_new_one() {
    let mut pf = Pf::default();
    let wire = pf.connect(1, 5, PEER_LID, 77);
    pf.machine.forget_addresses(PortNum(1));
    let lap_less = |local| message(AttributeId::CM_DREQ, local, wire);
    assert_eq!(pf.rx(lap_less(78), at(20)), Rx::Drop(DropReason::WrongPeer));
    pf.rx(lap_less(77), at(20)).into_vf(1);
    assert_eq!(pf.rx(lap_less(77), at(21)), Rx::Drop(DropReason::WrongPeer));
}

#[test]
fn c088_a_rej_of_a_rep_carries_the_wire_id() {
    let mut pf = Pf::default();
    let wire = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    pf.rx(rep(77, wire, peer_ca(PEER_LID)), at(PEER_LID))
        .into_vf(1);
    let rej = pf
        .tx(
            1,
            rej(5, 77, CmMessage::REP, RejReason::CONSUMER),
            at(PEER_LID),
        )
        .expect("forwarded");
    assert_eq!((local_id(&rej), remote_id(&rej)), (wire, 77));
}

#[test]
fn c089_a_rej_of_a_req_with_local_id_0_keeps_it_and_maps_nothing() {
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    let mad = rej(0, 77, CmMessage::REQ, RejReason::CONSUMER);
    assert_eq!(pf.tx(1, mad, at(PEER_LID)), Ok(mad));
    assert_eq!(pf.machine.vf_statistics(vf(1)).expect("known").ids, 0);
}

#[test]
fn c089_a_rej_of_a_req_with_an_id_never_seen_passes_under_a_wire_id_and_maps_nothing() {
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    let mad = rej(5, 77, CmMessage::REQ, RejReason::CONSUMER);
    let first = pf.sends(1, mad, at(PEER_LID));
    assert!(first != 0 && first != 5);
    assert_eq!(pf.sends(1, mad, at(PEER_LID)), first);
    assert_eq!(pf.machine.vf_statistics(vf(1)).expect("known").ids, 0);
}

#[test]
fn c089_a_rej_of_a_req_that_nobody_got_passes_but_not_one_that_a_sibling_got() {
    let mut pf = Pf::default();
    let mad = rej(0, 77, CmMessage::REQ, RejReason::CONSUMER);
    assert_eq!(pf.tx(1, mad, at(PEER_LID)), Ok(mad));
    pf.rx(peer_req(PEER_LID, 77, 2), at(PEER_LID)).into_vf(2);
    assert_eq!(pf.tx(1, mad, at(PEER_LID)), Err(DropReason::WrongPeer));
    assert_eq!(
        pf.tx(1, rep(5, 77, vf_ca(1)), at(PEER_LID)),
        Err(DropReason::WrongPeer)
    );
}

#[test]
fn c090_a_rej_of_a_mapped_id_removes_the_mapping() {
    let mut pf = Pf::default();
    pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    pf.sends(1, rej_timeout(5, 0, vf_ca(1)), at(PEER_LID));
    assert_eq!(pf.states(), [State::Rejected]);
    pf.wait(31);
    pf.machine.handle_timeout(pf.now);
    assert!(pf.machine.is_empty());
}

#[test]
fn c091_a_rej_for_timeout_under_an_unmapped_id_maps_nothing() {
    let mut pf = Pf::default();
    assert_eq!(
        pf.tx(1, rej_timeout(5, 0, vf_ca(1)), at(PEER_LID)),
        Err(DropReason::UnknownCommId)
    );
    assert!(pf.machine.is_empty());
}

#[test]
fn c092_an_abandoned_req_is_told_to_its_vf_as_long_as_req_and_mra_last() {
    let mut pf = Pf::default();
    let mut req = peer_req(PEER_LID, 77, 1);
    set_timeouts(&mut req, 20, 15);
    pf.rx(req, at(PEER_LID)).into_vf(1);
    let mut mra = message(AttributeId::CM_MRA, 5, 77);
    mra.data[9] = 24 << 3;
    pf.sends(1, mra, at(PEER_LID));
    pf.wait(137);
    let rej = rej_timeout(77, 0, peer_ca(PEER_LID));
    assert_eq!(pf.rx(rej, at(PEER_LID)), Rx::Vf(1, rej));
}

#[test]
fn c093_equal_ids_of_two_peers_are_told_apart() {
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    pf.rx(peer_req(STRANGER_LID, 77, 2), at(STRANGER_LID))
        .into_vf(2);
    let one = rej_timeout(77, 0, peer_ca(PEER_LID));
    let two = rej_timeout(77, 0, peer_ca(STRANGER_LID));
    assert_eq!(pf.rx(two, at(STRANGER_LID)), Rx::Vf(2, two));
    assert_eq!(pf.rx(one, at(PEER_LID)), Rx::Vf(1, one));
}

#[test]
fn c093_equal_ids_of_two_cas_behind_one_lid_are_told_apart() {
    let mut pf = Pf::default();
    let mut other = peer_req(PEER_LID, 77, 2);
    other.view_mut::<CmReq>().local_ca_guid = Guid::new(0xabc);
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    pf.rx(other, at(PEER_LID)).into_vf(2);
    let rej = rej_timeout(77, 0, Guid::new(0xabc));
    assert_eq!(pf.rx(rej, at(PEER_LID)), Rx::Vf(2, rej));
    assert_eq!(pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID)), {
        let connection = pf
            .machine
            .connections_of(pf.now, vf(1))
            .next()
            .expect("one");
        connection.wire_id.0.get()
    });
}

#[test]
fn c094_a_rej_for_timeout_without_remote_id_touches_no_other_connection() {
    let mut pf = Pf::default();
    for id in 0..100 {
        pf.connect(1, id, PEER_LID, 100 + id);
        pf.accept(2, id, PEER_LID, 300 + id);
    }
    for id in 0..500 {
        let rej = rej_timeout(id, 0, peer_ca(PEER_LID));
        assert_eq!(
            pf.rx(rej, at(PEER_LID)),
            Rx::Drop(DropReason::UnknownCommId)
        );
    }
    assert!(pf.states().iter().all(|s| *s == State::Established));
}

#[test]
fn c095_an_unknown_dreq_is_answered_by_a_drep_with_its_ids_and_tid() {
    let mut pf = Pf::default();
    let dreq = message(AttributeId::CM_DREQ, 77, 0x1234_5678);
    let drep = pf.rx(dreq, at(PEER_LID)).into_answer();
    assert_eq!(drep.header.attribute_id, AttributeId::CM_DREP);
    assert_eq!(drep.header.tid, dreq.header.tid);
    assert_eq!((local_id(&drep), remote_id(&drep)), (0x1234_5678, 77));
    let answers = (0..1000)
        .filter(|_| matches!(pf.rx(dreq, at(PEER_LID)), Rx::Answer(_)))
        .count();
    assert_eq!(answers, 99);
}

#[test]
fn c095_a_pf_with_a_cm_of_its_own_gets_what_names_no_wire_id() {
    let mut pf = Pf::with(Config {
        pf_has_cm: true,
        ..Config::default()
    });
    let dreq = message(AttributeId::CM_DREQ, 77, 0x1234_5678);
    assert_eq!(pf.rx(dreq, at(PEER_LID)), Rx::ToPf);
}

fn lap(local: u32, remote: u32, from: (u16, Gid), to: (u16, Gid)) -> Mad {
    let mut mad = message(AttributeId::CM_LAP, local, remote);
    let lap: &mut CmLap = mad.view_mut();
    lap.remote_qpn = Qpn::from_low_bits(9);
    lap.alternate_local_lid = Lid::new(from.0);
    lap.alternate_local_gid = from.1;
    lap.alternate_remote_lid = Lid::new(to.0);
    lap.alternate_remote_gid = to.1;
    mad
}

#[test]
fn c106_lap_and_apr_pass_with_only_their_ids_rewritten() {
    let mut pf = Pf::default();
    let wire = pf.connect(1, 5, PEER_LID, 77);
    let other_port = (30, peer_gid(30));
    let mad = lap(5, 77, (OWN_LID, vf_gid(1)), other_port);
    let mut sent = pf.tx(1, mad, at(PEER_LID)).expect("forwarded");
    assert_eq!(local_id(&sent), wire);
    sent.view_mut::<CmLap>().local_comm_id = 5.into();
    assert_eq!(sent, mad);
    pf.rx(message(AttributeId::CM_APR, 77, wire), at(PEER_LID))
        .into_vf(1);
    // After the migration the peer speaks from there.
    pf.rx(message(AttributeId::CM_DREQ, 77, wire), at(30))
        .into_vf(1);
}

#[test]
fn c106_a_lap_with_an_alternate_local_gid_of_a_sibling_is_dropped() {
    for check in [IdentityCheck::Strict, IdentityCheck::Compat] {
        let mut pf = Pf {
            check,
            ..Pf::default()
        };
        pf.connect(1, 5, PEER_LID, 77);
        let mad = lap(5, 77, (OWN_LID, vf_gid(2)), (30, peer_gid(30)));
        assert_eq!(
            pf.tx(1, mad, at(PEER_LID)),
            Err(DropReason::ForeignIdentity)
        );
    }
}

#[test]
fn c106_a_peers_lap_may_not_lead_to_a_sibling() {
    let mut pf = Pf::default();
    let wire = pf.connect(1, 5, PEER_LID, 77);
    let from = (30, peer_gid(30));
    assert_eq!(
        pf.rx(lap(77, wire, from, (OWN_LID, vf_gid(2))), at(PEER_LID)),
        Rx::Drop(DropReason::TargetMismatch)
    );
    pf.rx(lap(77, wire, from, (OWN_LID, vf_gid(1))), at(PEER_LID))
        .into_vf(1);
    // A migrated connection may be given another alternate path.
    let next = (31, peer_gid(31));
    pf.rx(lap(77, wire, next, (OWN_LID, vf_gid(1))), at(30))
        .into_vf(1);
    pf.rx(message(AttributeId::CM_DREQ, 77, wire), at(31))
        .into_vf(1);
    assert_eq!(
        pf.rx(message(AttributeId::CM_DREQ, 77, wire), at(PEER_LID)),
        Rx::Drop(DropReason::WrongPeer)
    );
}

/// REQs that claim something of VF 2.
fn impostures() -> [Mad; 3] {
    let mut reqs = [vf_req(1, 5, PEER_LID); 3];
    reqs[0].view_mut::<CmReq>().primary.local_gid = vf_gid(2);
    reqs[1].view_mut::<CmReq>().alternate.local_gid = vf_gid(2);
    reqs[2].view_mut::<CmReq>().local_ca_guid = vf_ca(2);
    reqs
}

#[test]
fn c107_a_req_with_a_foreign_gid_or_ca_guid_is_dropped() {
    let mut pf = Pf::default();
    for req in impostures() {
        assert_eq!(
            pf.tx(1, req, at(PEER_LID)),
            Err(DropReason::ForeignIdentity)
        );
    }
    assert!(pf.machine.is_empty());
    assert_eq!(pf.drops(1, DropReason::ForeignIdentity), 3);
}

#[test]
fn c107_or_counted_where_the_policy_is_compat() {
    let mut pf = Pf {
        check: IdentityCheck::Compat,
        ..Pf::default()
    };
    for req in impostures() {
        pf.sends(1, req, at(PEER_LID));
    }
    let statistics = pf.machine.vf_statistics(vf(1)).expect("known");
    assert_eq!(statistics.false_claims, 3);
}

#[test]
fn c107_a_rep_with_a_foreign_ca_guid_is_dropped() {
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    assert_eq!(
        pf.tx(1, rep(5, 77, vf_ca(2)), at(PEER_LID)),
        Err(DropReason::ForeignIdentity)
    );
}

#[test]
fn c108_a_req_or_sidr_req_with_a_foreign_pkey_is_dropped() {
    let mut pf = Pf::default();
    let mut req = vf_req(1, 5, PEER_LID);
    req.view_mut::<CmReq>().pkey = FOREIGN_PKEY;
    let mut sidr = sidr_req(5, 1);
    sidr.view_mut::<ib_wire::cm::CmSidrReq>().pkey = FOREIGN_PKEY;
    for mad in [req, sidr] {
        assert_eq!(pf.tx(1, mad, at(PEER_LID)), Err(DropReason::ForeignPKey));
    }
    req.view_mut::<CmReq>().pkey = ib_wire::PKey::INVALID;
    assert_eq!(pf.tx(1, req, at(PEER_LID)), Err(DropReason::ForeignPKey));
    assert!(pf.machine.is_empty());
}

#[test]
fn c108_the_membership_bit_does_not_matter() {
    let mut pf = Pf::default();
    let mut req = vf_req(1, 5, PEER_LID);
    req.view_mut::<CmReq>().pkey = ib_wire::PKey::DEFAULT_LIMITED;
    pf.sends(1, req, at(PEER_LID));
}

#[test]
fn c195_a_vf_cannot_end_a_siblings_connection_through_the_pfs_own_lid() {
    let mut pf = Pf::default();
    let own = at(OWN_LID);
    let victim = pf.connect(1, 5, PEER_LID, 77);
    let attacker = pf.connect(2, 6, PEER_LID, 78);
    // Under its own id the attacker speaks to its own peer only.
    for mad in attacks(6, victim) {
        assert!(pf.tx(2, mad, own).is_err());
    }
    // Even the frames as they would look on the wire lead nowhere.
    for mad in attacks(attacker, victim)
        .into_iter()
        .chain(attacks(77, victim))
    {
        assert_eq!(pf.rx(mad, own), Rx::Drop(DropReason::WrongPeer));
    }
    assert_eq!(pf.states(), [State::Established, State::Established]);
}

#[test]
fn c092_a_repeated_give_up_goes_to_the_vf_that_was_asked_last() {
    let mut pf = Pf::default();
    for number in [1, 2, 1] {
        pf.rx(peer_req(PEER_LID, 8, number), at(PEER_LID))
            .into_vf(number);
        for _ in 0..3 {
            pf.rx(rej_timeout(8, 0, peer_ca(PEER_LID)), at(PEER_LID))
                .into_vf(number);
        }
    }
}

#[test]
fn c092_a_give_up_without_a_ca_reaches_the_only_vf_that_it_can_mean() {
    let mut pf = Pf::default();
    let give_up = || rej(8, 0, CmMessage::OTHER, RejReason::TIMEOUT);
    pf.rx(peer_req(PEER_LID, 8, 1), at(PEER_LID)).into_vf(1);
    pf.rx(give_up(), at(PEER_LID)).into_vf(1);
    pf.rx(peer_req(PEER_LID, 8, 2), at(PEER_LID)).into_vf(2);
    let doubtful = pf.rx(give_up(), at(PEER_LID));
    assert_eq!(doubtful, Rx::Drop(DropReason::UnknownCommId));
}

#[test]
fn c083_c095_nobody_is_answered_who_has_no_lid_of_its_own() {
    let mut pf = Pf::default();
    for lid in [0, 0xc000, 0xffff] {
        let mut req = peer_req(lid, 8, 1);
        req.view_mut::<CmReq>().primary.remote_gid = peer_gid(STRANGER_LID);
        assert_eq!(pf.rx(req, at(lid)), Rx::Drop(DropReason::UnknownGid));
        let dreq = message(AttributeId::CM_DREQ, 8, 99);
        assert_eq!(pf.rx(dreq, at(lid)), Rx::Drop(DropReason::UnknownCommId));
    }
}
