//! Statistics, and the memory of the state.

use ib_wire::cm::{CmMessage, RejReason};
use ib_wire::mad::AttributeId;
use vf_tunnel::DropReason;

use crate::harness::*;

#[test]
fn messages_are_counted_for_the_vf_whose_they_are() {
    let mut pf = Pf::default();
    for (id, peer) in [(5, 77), (6, 78)] {
        pf.connect(1, id, PEER_LID, peer);
    }
    for id in [1, 2, 3] {
        assert_eq!(pf.rx(sidr_req(id, 0x1000), at(PEER_LID)), Rx::ToPf);
    }
    let counted = pf.machine.vf_statistics(vf(1)).expect("known");
    assert_eq!((counted.sent, counted.delivered), (4, 2));
    assert_eq!(pf.machine.statistics().to_pf, 3);
}

#[test]
fn answers_to_requests_that_nobody_got_are_counted() {
    let mut pf = Pf::default();
    let untracked = |pf: &Pf| pf.machine.vf_statistics(vf(1)).expect("known").untracked;
    for id in [5, 6] {
        pf.sends(1, rep(id, 70 + id, vf_ca(1)), at(PEER_LID));
    }
    assert_eq!(untracked(&pf), 2);
    let mad = rej(0, 90, CmMessage::REQ, RejReason::CONSUMER);
    for _ in 0..2 {
        assert_eq!(pf.tx(1, mad, at(PEER_LID)), Ok(mad));
    }
    assert_eq!(untracked(&pf), 4);
    for _ in 0..2 {
        pf.tx(1, sidr_rep(91), at(PEER_LID)).expect("forwarded");
    }
    assert_eq!(untracked(&pf), 6);
}

#[test]
fn the_machines_own_answers_are_counted_by_kind() {
    let mut pf = Pf::default();
    pf.down.push(1);
    for id in [70, 71, 72] {
        pf.rx(peer_req(PEER_LID, id, 1), at(PEER_LID)).into_answer();
    }
    for id in [80, 81] {
        pf.rx(message(AttributeId::CM_DREQ, id, 1), at(PEER_LID))
            .into_answer();
    }
    let counted = pf.machine.statistics();
    assert_eq!((counted.answered_rej, counted.answered_drep), (3, 2));
}

#[test]
fn state_is_the_wheel_and_the_indexes_and_grows_by_pages_of_slots() {
    const WHEEL: usize = (1 << 14) * 8 + (1 << 14) / 8;
    const INDEX: usize = 128 * 8;
    const PAGE: usize = 1024 * (32 + 44);

    let mut pf = Pf::default();
    assert_eq!(pf.machine.state_bytes(), WHEEL + 2 * INDEX);
    for id in 0..50 {
        pf.connect(1, id, PEER_LID, 1_000 + id);
    }
    assert_eq!(pf.machine.state_bytes(), WHEEL + 2 * INDEX + PAGE);
    for id in 50..60 {
        pf.accept(1, id, PEER_LID, 1_000 + id);
    }
    let by_guest = pf.machine.state_bytes() - WHEEL - PAGE - INDEX;
    assert!((INDEX + 1..2 * INDEX).contains(&by_guest), "{by_guest}");
    for id in 60..1_025 {
        pf.connect(1, id, PEER_LID, 1_000 + id);
    }
    let bytes = pf.machine.state_bytes();
    assert!(bytes > WHEEL + 2 * PAGE + INDEX + 1_025 * 8, "{bytes}");
}

#[test]
fn a_req_for_a_vf_outside_of_its_partition_is_dropped_on_that_vfs_account() {
    let mut pf = Pf::default();
    pf.outside.push(1);
    for count in [1, 2] {
        let verdict = pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID));
        assert_eq!(verdict, Rx::Drop(DropReason::PKeyMismatch));
        assert_eq!(pf.drops(1, DropReason::PKeyMismatch), count);
    }
}
