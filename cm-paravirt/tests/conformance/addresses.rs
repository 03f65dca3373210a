//! From where the messages of a peer are taken: after a change of LIDs, with path bits, and by another port.

use cm_paravirt::{Config, PeerAddress, State};
use ib_wire::cm::{CmLap, CmMessage, RejReason};
use ib_wire::mad::{AttributeId, Mad};
use ib_wire::{Lid, Lmc, PortNum};
use vf_tunnel::DropReason;

use crate::harness::*;

const WRONG_PEER: Rx = Rx::Drop(DropReason::WrongPeer);

fn dreq(local: u32, remote: u32) -> Mad {
    message(AttributeId::CM_DREQ, local, remote)
}

fn by_port(port: u8, lid: u16) -> PeerAddress {
    PeerAddress {
        port: PortNum(port),
        ..at(lid)
    }
}

#[test]
fn c087_after_a_change_of_lids_a_stranger_answers_no_request_that_is_half_open() {
    let mut pf = Pf::default();
    let wire = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    pf.machine.forget_addresses(PortNum(1));
    let answer = rep(77, wire, peer_ca(STRANGER_LID));
    assert_eq!(pf.rx(answer, at(STRANGER_LID)), WRONG_PEER);
    pf.rx(rep(77, wire, peer_ca(PEER_LID)), at(PEER_LID))
        .into_vf(1);
}

#[test]
fn c087_after_a_change_of_lids_a_stranger_takes_no_peers_request_back() {
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    pf.machine.forget_addresses(PortNum(1));
    let wire = pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
    let gone = rej(77, wire, CmMessage::REP, RejReason::CONSUMER);
    assert_eq!(pf.rx(gone, at(STRANGER_LID)), WRONG_PEER);
    pf.rx(gone, at(PEER_LID)).into_vf(1);
}

#[test]
fn c087_a_change_of_lids_behind_one_port_is_none_behind_the_other() {
    let mut pf = Pf::default();
    let wire = pf.connect(1, 5, PEER_LID, 77);
    pf.machine.forget_addresses(PortNum(2));
    assert_eq!(pf.rx(dreq(77, wire), at(STRANGER_LID)), WRONG_PEER);
    pf.rx(dreq(77, wire), at(PEER_LID)).into_vf(1);
}

#[test]
fn c087_a_peer_is_where_it_is_behind_one_port_and_not_behind_the_other() {
    let mut pf = Pf::default();
    let wire = pf.connect(1, 5, PEER_LID, 77);
    assert_eq!(pf.rx(dreq(77, wire), by_port(2, PEER_LID)), WRONG_PEER);
    pf.rx(dreq(77, wire), at(PEER_LID)).into_vf(1);
}

#[test]
fn c087_a_peer_may_send_from_any_lid_of_its_port() {
    const LID: u16 = 0x10;
    let mut pf = Pf::default();
    // Port 2 is first, as an adapter may tell of its ports in any order.
    pf.machine
        .lmcs_mut(PortNum(2))
        .set_own(Lmc::from_low_bits(1));
    pf.machine
        .lmcs_mut(PortNum(1))
        .set_own(Lmc::from_low_bits(2));
    let wire = pf.connect(1, 5, LID, 77);
    pf.rx(dreq(77, wire), at(LID + 3)).into_vf(1);
    assert_eq!(pf.rx(dreq(77, wire), at(LID + 4)), WRONG_PEER);
}

#[test]
fn c087_a_peer_has_as_many_lids_as_the_sa_says_whatever_our_port_has() {
    const LID: u16 = 0x10;
    let mut pf = Pf::default();
    let wires = [(5, 77), (6, 78)].map(|(id, peer)| (peer, pf.connect(1, id, LID, peer)));
    let [(first, wire), (second, other_wire)] = wires;
    assert_eq!(pf.rx(dreq(first, wire), at(LID + 3)), WRONG_PEER);
    let lmcs = pf.machine.lmcs_mut(PortNum(1));
    lmcs.learn(Lid::new(LID), Lmc::from_low_bits(2));
    assert_eq!(pf.rx(dreq(first, wire), at(LID + 4)), WRONG_PEER);
    pf.rx(dreq(first, wire), at(LID + 3)).into_vf(1);

    let lmcs = pf.machine.lmcs_mut(PortNum(1));
    lmcs.set_own(Lmc::from_low_bits(3));
    lmcs.learn(Lid::new(LID), Lmc::from_low_bits(0));
    let neighbour = pf.rx(dreq(second, other_wire), at(LID + 1));
    assert_eq!(neighbour, WRONG_PEER);
    pf.rx(dreq(second, other_wire), at(LID)).into_vf(1);
}

#[test]
fn c087_a_peer_behind_routers_is_not_any_other_behind_routers() {
    let routed = |lid, gid| PeerAddress {
        gid: Some(peer_gid(gid)),
        ..at(lid)
    };
    let mut pf = Pf::default();
    let wire = pf.sends(1, vf_req(1, 5, PEER_LID), routed(PEER_LID, PEER_LID));
    let answer = rep(77, wire, peer_ca(PEER_LID));
    assert_eq!(
        pf.rx(answer, routed(STRANGER_LID, STRANGER_LID)),
        WRONG_PEER
    );
    pf.rx(answer, routed(STRANGER_LID, PEER_LID)).into_vf(1);
}

#[test]
fn c106_a_vfs_lap_to_a_stranger_lets_nobody_else_in() {
    let mut pf = Pf::default();
    let wire = pf.connect(1, 5, PEER_LID, 77);
    let mut lap = message(AttributeId::CM_LAP, 5, 77);
    let fields: &mut CmLap = lap.view_mut();
    fields.alternate_local_gid = vf_gid(1);
    fields.alternate_remote_lid = Lid::new(30);
    pf.sends(1, lap, at(STRANGER_LID));
    assert_eq!(pf.rx(dreq(77, wire), at(STRANGER_LID)), WRONG_PEER);
    let shown = pf.machine.connections(pf.now).next().expect("one");
    assert_eq!(
        (shown.lid.get(), shown.alternate_lid),
        (PEER_LID, Some(Lid::new(30)))
    );
    pf.rx(dreq(77, wire), at(30)).into_vf(1);
}

#[test]
fn what_the_machine_has_can_be_asked() {
    let config = Config {
        ids_per_vf: 7,
        ..Config::default()
    };
    let mut pf = Pf::with(config);
    assert!(pf.machine.is_empty());
    assert_eq!(pf.machine.config().ids_per_vf, 7);
    assert_eq!(pf.machine.quota(vf(1)), 7);
    pf.machine.set_quota(vf(1), 9);
    assert_eq!((pf.machine.quota(vf(1)), pf.machine.quota(vf(2))), (9, 7));
    pf.connect(1, 5, PEER_LID, 77);
    pf.connect(2, 5, PEER_LID, 78);
    assert!(!pf.machine.is_empty());
    let of_ports = [1, 2].map(|port| pf.machine.len_of_port(PortNum(port)));
    assert_eq!(of_ports, [2, 0]);
}

#[test]
fn a_rej_without_the_peers_id_passes_again_and_ends_no_connection() {
    let give_up = rej(5, 0, CmMessage::REQ, RejReason::TIMEOUT);
    let mut pf = Pf::default();
    let wire = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    for _ in 0..2 {
        assert_eq!(pf.sends(1, give_up, at(PEER_LID)), wire);
    }

    let mut pf = Pf::default();
    pf.connect(1, 5, PEER_LID, 77);
    let refused = pf.tx(1, give_up, at(PEER_LID));
    assert_eq!(refused, Err(DropReason::UnknownCommId));
    assert_eq!(pf.states(), [State::Established]);
}
