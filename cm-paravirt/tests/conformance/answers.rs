//! Answers whose ids are reused or invented.

use cm_paravirt::State;
use ib_wire::Guid;
use ib_wire::cm::{CmMessage, CmReq, RejReason};
use ib_wire::mad::{AttributeId, Mad};
use vf_tunnel::DropReason;

use crate::harness::*;

const UNKNOWN: Result<Mad, DropReason> = Err(DropReason::UnknownCommId);
const WRONG_PEER: Result<Mad, DropReason> = Err(DropReason::WrongPeer);

fn ids(pf: &Pf) -> u32 {
    pf.machine.vf_statistics(vf(1)).expect("known").ids
}

fn untracked(pf: &Pf) -> u64 {
    pf.machine.vf_statistics(vf(1)).expect("known").untracked
}

#[test]
fn c085_an_answer_that_is_repeated_after_the_end_keeps_its_wire_id() {
    for end in [AttributeId::CM_DREQ, AttributeId::CM_DREP] {
        let mut pf = Pf::default();
        let wire = pf.accept(1, 5, PEER_LID, 77);
        pf.sends(1, message(AttributeId::CM_DREQ, 5, 77), at(PEER_LID));
        pf.rx(message(end, 77, wire), at(PEER_LID)).into_vf(1);
        assert_eq!(pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID)), wire);
        assert_eq!((ids(&pf), untracked(&pf)), (1, 0));
    }
}

#[test]
fn c087_an_id_in_use_answers_no_request_that_nobody_got() {
    let mut pf = Pf::default();
    pf.connect(1, 5, PEER_LID, 77);
    assert_eq!(pf.tx(1, rep(5, 99, vf_ca(1)), at(PEER_LID)), WRONG_PEER);
    assert_eq!(pf.states(), [State::Established]);
}

#[test]
fn c100_an_id_whose_exchange_is_over_answers_a_request_that_is_not_remembered() {
    let mut pf = Pf::default();
    let wire = pf.connect(1, 5, PEER_LID, 77);
    pf.rx(message(AttributeId::CM_DREQ, 77, wire), at(PEER_LID))
        .into_vf(1);
    pf.sends(1, message(AttributeId::CM_DREP, 5, 77), at(PEER_LID));
    assert_ne!(pf.sends(1, rep(5, 99, vf_ca(1)), at(PEER_LID)), wire);
    assert_eq!(untracked(&pf), 1);
}

#[test]
fn c085_a_request_without_an_answer_is_meant_before_one_that_has_its_answer() {
    let other_ca = |mut req: Mad| {
        req.view_mut::<CmReq>().local_ca_guid = Guid::new(0xbeef);
        req
    };
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    let first = pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
    pf.rx(other_ca(peer_req(PEER_LID, 77, 1)), at(PEER_LID))
        .into_vf(1);
    let second = pf.sends(1, rep(6, 77, vf_ca(1)), at(PEER_LID));
    assert_ne!(first, second);
    assert_eq!((ids(&pf), untracked(&pf)), (2, 0));
}

#[test]
fn c090_a_vf_takes_an_answer_back_without_naming_the_id_it_answered_under() {
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
    let mad = rej(0, 77, CmMessage::OTHER, RejReason::CONSUMER);
    assert_eq!(pf.tx(1, mad, at(PEER_LID)), Ok(mad));
    assert_eq!(pf.states(), [State::Rejected]);
    // A sibling that was asked under the same id changes nothing.
    let mut pf = Pf::default();
    for number in [2, 1] {
        pf.rx(peer_req(PEER_LID, 77, number), at(PEER_LID))
            .into_vf(number);
    }
    pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
    assert_eq!(pf.tx(1, mad, at(PEER_LID)), Ok(mad));
}

#[test]
fn c091_a_vf_that_gives_up_an_answer_names_the_request() {
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    let wire = pf.sends(1, rej_timeout(5, 77, vf_ca(1)), at(PEER_LID));
    assert_ne!(wire, 5);
    assert_eq!(pf.states(), [State::Rejected]);
}

#[test]
fn c091_zero_is_a_peers_id_unless_a_vf_gives_up() {
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 0, 1), at(PEER_LID)).into_vf(1);
    let mad = rej(5, 0, CmMessage::REQ, RejReason::CONSUMER);
    assert_ne!(pf.sends(1, mad, at(PEER_LID)), 5);
    assert_eq!(pf.states(), [State::Rejected]);
    assert_eq!(untracked(&pf), 0);
}

#[test]
fn c094_a_rej_with_a_made_up_remote_id_ends_no_handshake() {
    let mut pf = Pf::default();
    pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    let mad = rej(5, 99, CmMessage::REP, RejReason::CONSUMER);
    assert_eq!(pf.tx(1, mad, at(PEER_LID)), UNKNOWN);
    assert_eq!(pf.states(), [State::ReqSent]);
}

#[test]
fn c092_only_a_rej_for_timeout_without_a_remote_id_gives_a_request_up() {
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    let not_for_timeout = rej(77, 0, CmMessage::OTHER, RejReason::CONSUMER);
    let of_something_else = rej_timeout(77, 0x1234, peer_ca(PEER_LID));
    for mad in [not_for_timeout, of_something_else] {
        let verdict = pf.rx(mad, at(PEER_LID));
        assert_eq!(verdict, Rx::Drop(DropReason::UnknownCommId));
    }
    assert_eq!(pf.states(), [State::ReqRcvd]);
}

#[test]
fn c098_a_rejected_req_that_comes_again_has_the_time_that_it_asks_for() {
    let mut pf = Pf::default();
    let mut req = peer_req(PEER_LID, 77, 1);
    pf.rx(req, at(PEER_LID)).into_vf(1);
    let no = rej(0, 77, CmMessage::REQ, RejReason::CONSUMER);
    pf.tx(1, no, at(PEER_LID)).expect("forwarded");
    // 4.29 s, 16 times.
    set_timeouts(&mut req, 20, 15);
    pf.rx(req, at(PEER_LID)).into_vf(1);
    pf.wait(68);
    pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
    assert_eq!(untracked(&pf), 0);
}

#[test]
fn c098_a_req_that_is_repeated_asks_for_nothing_more() {
    let mut pf = Pf::default();
    let mut req = peer_req(PEER_LID, 77, 1);
    pf.rx(req, at(PEER_LID)).into_vf(1);
    set_timeouts(&mut req, 20, 15);
    pf.rx(req, at(PEER_LID)).into_vf(1);
    pf.wait(61);
    pf.machine.handle_timeout(pf.now);
    assert!(pf.machine.is_empty());
}

#[test]
fn c085_a_req_that_comes_again_after_its_answer_is_the_same_exchange() {
    let mut pf = Pf::default();
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    let wire = pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    assert_eq!(pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID)), wire);
    assert_eq!(pf.machine.len(), 1);
}

#[test]
fn c087_a_peer_refuses_a_req_under_whatever_id() {
    for id in [0, 99] {
        let mut pf = Pf::default();
        let wire = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
        let no = rej(id, wire, CmMessage::REQ, RejReason::CONSUMER);
        pf.rx(no, at(PEER_LID)).into_vf(1);
        assert_eq!(pf.states(), [State::Rejected]);
    }
}
