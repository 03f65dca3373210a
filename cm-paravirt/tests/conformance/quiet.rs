//! Statements about connections of whose beginning or end no message tells.

use cm_paravirt::{Config, ResetPolicy, State};
use ib_vtime::{Duration, Instant};
use ib_wire::PortNum;
use ib_wire::cm::{CmReq, CmTransport};
use ib_wire::mad::{AttributeId, Mad};
use proptest::prelude::*;
use vf_tunnel::DropReason;

use crate::harness::*;

/// The CM response timeout code of 4.29 s.
const RESPONSE_TIMEOUT: u8 = 20;

/// A peer's REQ whose REP is sent `retries` times more.
fn patient_req(peer: u32, retries: u8) -> Mad {
    let mut req = peer_req(PEER_LID, peer, 1);
    set_timeouts(&mut req, RESPONSE_TIMEOUT, retries);
    req
}

/// A VF answers a peer's REQ, `sent` times. Gives the wire id.
#[track_caller]
fn answer(pf: &mut Pf, id: u32, peer: u32, retries: u8, sent: u8) -> u32 {
    pf.rx(patient_req(peer, retries), at(PEER_LID)).into_vf(1);
    let mut wire = 0;
    for _ in 0..sent {
        wire = pf.sends(1, rep(id, peer, vf_ca(1)), at(PEER_LID));
        pf.now += Duration::from_millis(4_300);
    }
    wire
}

#[test]
fn c099_a_connection_that_data_made_lives_on_without_an_rtu() {
    let mut pf = Pf::default();
    let by_vf = answer(&mut pf, 5, 77, 15, 1);
    let by_peer = answer(&mut pf, 6, 78, 15, 3);
    pf.wait(24 * 3600);
    pf.machine.handle_timeout(pf.now);
    assert_eq!(pf.states(), [State::Quiet, State::Quiet]);
    let dreq = message(AttributeId::CM_DREQ, 5, 77);
    assert_eq!(pf.sends(1, dreq, at(PEER_LID)), by_vf);
    pf.rx(message(AttributeId::CM_DREP, 77, by_vf), at(PEER_LID))
        .into_vf(1);
    let dreq = message(AttributeId::CM_DREQ, 78, by_peer);
    assert_eq!(remote_id(&pf.rx(dreq, at(PEER_LID)).into_vf(1)), 6);
    pf.drain();
    assert!(pf.machine.is_empty());
    let abandoned = pf.machine.vf_statistics(vf(1)).map(|s| s.abandoned);
    assert_eq!(abandoned, Some(0));
}

#[test]
fn c098_a_rep_repeated_to_its_end_without_an_rtu_leaves_nothing() {
    let mut pf = Pf::default();
    answer(&mut pf, 5, 77, 15, 16);
    assert_eq!(pf.states(), [State::RepSent]);
    pf.wait(69);
    pf.machine.handle_timeout(pf.now);
    assert!(pf.machine.is_empty());
    let abandoned = pf.machine.vf_statistics(vf(1)).map(|s| s.abandoned);
    assert_eq!(abandoned, Some(1));
}

#[test]
fn c099_a_vf_that_goes_on_repeating_its_rep_has_not_heard_of_its_peer() {
    let mut pf = Pf::default();
    answer(&mut pf, 5, 77, 2, 2);
    pf.wait(100);
    pf.machine.handle_timeout(pf.now);
    assert_eq!(pf.states(), [State::Quiet]);
    pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
    assert_eq!(pf.states(), [State::RepSent]);
    pf.wait(100);
    pf.machine.handle_timeout(pf.now);
    assert!(pf.machine.is_empty());
}

#[test]
fn c099_lap_and_apr_in_either_direction_tell_of_a_connection_that_is_up() {
    for (attribute, by_vf) in [
        (AttributeId::CM_LAP, true),
        (AttributeId::CM_LAP, false),
        (AttributeId::CM_APR, true),
        (AttributeId::CM_APR, false),
    ] {
        for quiet in [false, true] {
            let mut pf = Pf::default();
            let wire = answer(&mut pf, 5, 77, 15, 1);
            pf.wait(if quiet { 1_000 } else { 1 });
            let (local, remote) = if by_vf { (5, 77) } else { (77, wire) };
            let mut mad = message(attribute, local, remote);
            if attribute == AttributeId::CM_LAP {
                let lap: &mut ib_wire::cm::CmLap = mad.view_mut();
                lap.alternate_local_gid = vf_gid(1);
                lap.alternate_remote_gid = vf_gid(1);
            }
            if by_vf {
                pf.sends(1, mad, at(PEER_LID));
            } else {
                pf.rx(mad, at(PEER_LID)).into_vf(1);
            }
            assert_eq!(pf.states(), [State::Established], "{attribute:?} {by_vf}");
        }
    }
}

#[test]
fn c099_an_active_vf_whose_rtu_never_reached_the_wire_keeps_its_connection() {
    let mut pf = Pf::default();
    let mut req = vf_req(1, 5, PEER_LID);
    set_timeouts(&mut req, RESPONSE_TIMEOUT, 15);
    let wire = pf.sends(1, req, at(PEER_LID));
    pf.rx(rep(77, wire, peer_ca(PEER_LID)), at(PEER_LID))
        .into_vf(1);
    pf.wait(3600);
    let dreq = message(AttributeId::CM_DREQ, 77, wire);
    assert_eq!(remote_id(&pf.rx(dreq, at(PEER_LID)).into_vf(1)), 5);
}

#[test]
fn c099_a_week_of_silence_ends_what_may_have_ended() {
    let week = 7 * 24 * 3600;
    let mut pf = Pf::default();
    let wire = answer(&mut pf, 5, 77, 15, 1);
    pf.wait(70);
    pf.machine.handle_timeout(pf.now);
    pf.wait(week - 60);
    let mra = message(AttributeId::CM_MRA, 77, wire);
    pf.rx(mra, at(PEER_LID)).into_vf(1);
    pf.wait(week - 60);
    pf.machine.handle_timeout(pf.now);
    assert_eq!(pf.states(), [State::Quiet], "a message counts anew");
    pf.wait(120);
    pf.machine.handle_timeout(pf.now);
    assert!(pf.machine.is_empty());
}

#[test]
fn c114_at_the_quota_the_connection_that_was_silent_longest_makes_place() {
    let mut pf = Pf::with(Config {
        ids_per_vf: 4,
        ..Config::default()
    });
    let up = pf.connect(1, 1, PEER_LID, 71);
    let wires = [(2, 72), (3, 73), (4, 74)].map(|(id, peer)| answer(&mut pf, id, peer, 15, 1));
    pf.wait(200);
    pf.machine.handle_timeout(pf.now);
    // The oldest speaks once more.
    let mra = message(AttributeId::CM_MRA, 72, wires[0]);
    pf.rx(mra, at(PEER_LID)).into_vf(1);
    pf.sends(1, vf_req(1, 9, PEER_LID), at(PEER_LID));
    let gone = message(AttributeId::CM_DREQ, 73, wires[1]);
    pf.rx(gone, at(PEER_LID)).into_answer();
    // An id that is used again does not make place for itself: it has an end of its own.
    pf.sends(1, vf_req(1, 4, PEER_LID), at(PEER_LID));
    let gone = message(AttributeId::CM_DREQ, 72, wires[0]);
    pf.rx(gone, at(PEER_LID)).into_answer();
    let late = message(AttributeId::CM_DREQ, 74, wires[2]);
    pf.rx(late, at(PEER_LID)).into_answer();
    let superseded = pf.machine.connections(pf.now).filter(|c| c.superseded);
    assert_eq!(superseded.count(), 1);
    // Nothing is left that may have ended.
    assert_eq!(
        pf.tx(1, vf_req(1, 10, PEER_LID), at(PEER_LID)),
        Err(DropReason::CmQuota)
    );
    let dreq = message(AttributeId::CM_DREQ, 71, up);
    pf.rx(dreq, at(PEER_LID)).into_vf(1);
}

#[test]
fn c098_an_xrc_target_ends_by_silence_since_no_dreq_ends_it() {
    let mut pf = Pf::default();
    let mut req = patient_req(77, 15);
    let xrc: &mut CmReq = req.view_mut();
    xrc.set_transport(CmTransport::EXTENDED);
    xrc.set_extended_transport(CmTransport::EXTENDED_XRC);
    pf.rx(req, at(PEER_LID)).into_vf(1);
    let wire = pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
    pf.rx(message(AttributeId::CM_RTU, 77, wire), at(PEER_LID))
        .into_vf(1);
    assert_eq!(pf.states(), [State::Quiet]);
    pf.wait(24 * 3600);
    pf.machine.handle_timeout(pf.now);
    assert_eq!(pf.states(), [State::Quiet]);
    pf.drain();
    assert!(pf.machine.is_empty());

    // The initiator's side sends a DREQ.
    let mut req = vf_req(1, 6, PEER_LID);
    req.view_mut::<CmReq>().set_transport(CmTransport::EXTENDED);
    req.view_mut::<CmReq>()
        .set_extended_transport(CmTransport::EXTENDED_XRC);
    let wire = pf.sends(1, req, at(PEER_LID));
    pf.rx(rep(78, wire, peer_ca(PEER_LID)), at(PEER_LID))
        .into_vf(1);
    pf.sends(1, message(AttributeId::CM_RTU, 6, 78), at(PEER_LID));
    assert_eq!(pf.states(), [State::Established]);
}

/// Establishes a connection to a VF by a REQ with this transport.
fn accept_as(pf: &mut Pf, transport: CmTransport, extended: u8) {
    let mut req = patient_req(77, 15);
    req.view_mut::<CmReq>().set_transport(transport);
    req.view_mut::<CmReq>().set_extended_transport(extended);
    pf.rx(req, at(PEER_LID)).into_vf(1);
    // Twice, as where the first was lost.
    pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
    let wire = pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
    pf.rx(message(AttributeId::CM_RTU, 77, wire), at(PEER_LID))
        .into_vf(1);
}

#[test]
fn c098_only_the_extended_transport_that_is_xrc_is_xrc() {
    let (extended, xrc) = (CmTransport::EXTENDED, CmTransport::EXTENDED_XRC);
    let others = [(extended, 0), (CmTransport::RC, xrc), (CmTransport::RC, 0)];
    for (transport, extended) in others {
        let mut pf = Pf::default();
        accept_as(&mut pf, transport, extended);
        assert_eq!(pf.states(), [State::Established]);
    }
    let mut pf = Pf::default();
    accept_as(&mut pf, extended, xrc);
    assert_eq!(pf.states(), [State::Quiet]);
}

#[test]
fn c099_silence_is_never_shorter_than_told() {
    const TICK: u64 = 1 << 26;
    let mut pf = Pf::with(Config {
        silence: Duration::from_nanos(20_000 * TICK),
        ..Config::default()
    });
    // Just before a tick ends.
    let start = Instant::from_nanos(100 * TICK - 1);
    pf.now = start;
    accept_as(&mut pf, CmTransport::EXTENDED, CmTransport::EXTENDED_XRC);
    for (ticks, states) in [(20_000, vec![State::Quiet]), (20_001, vec![])] {
        pf.now = start + Duration::from_nanos(ticks * TICK);
        pf.machine.handle_timeout(pf.now);
        assert_eq!(pf.states(), states);
    }
}

#[test]
fn c112_the_peer_of_a_quiet_connection_is_told_of_a_reset() {
    let mut pf = Pf::default();
    let wire = answer(&mut pf, 5, 77, 15, 1);
    pf.wait(100);
    let policy = ResetPolicy::Signal { ca_guid: vf_ca(1) };
    pf.machine.vf_reset(pf.now, vf(1), policy);
    let told = pf
        .machine
        .poll_transmit(PortNum(1))
        .expect("a farewell")
        .mad;
    assert_eq!(told.header.attribute_id, AttributeId::CM_DREQ);
    assert_eq!((local_id(&told), remote_id(&told)), (wire, 77));
    assert!(pf.machine.is_empty());
}

#[test]
fn c086_zero_is_a_communication_id_like_any_other() {
    let mut pf = Pf::default();
    // The first id of an mlx4 PF, as the peer's and as the VF's.
    let wire = pf.accept(1, 5, PEER_LID, 0);
    let dreq = message(AttributeId::CM_DREQ, 0, wire);
    assert_eq!(remote_id(&pf.rx(dreq, at(PEER_LID)).into_vf(1)), 5);
    pf.sends(1, message(AttributeId::CM_DREP, 5, 0), at(PEER_LID));
    let wire = pf.connect(1, 0, PEER_LID, 0);
    let dreq = message(AttributeId::CM_DREQ, 0, 0);
    assert_eq!(pf.sends(1, dreq, at(PEER_LID)), wire);
    pf.drain();

    // A VF that gives up a request that is forgotten does not refuse the peer's request 0.
    pf.rx(peer_req(PEER_LID, 0, 1), at(PEER_LID)).into_vf(1);
    assert_eq!(
        pf.tx(1, rej_timeout(9, 0, vf_ca(1)), at(PEER_LID)),
        Err(DropReason::UnknownCommId)
    );
    assert_eq!(pf.states(), [State::ReqRcvd]);
    pf.sends(1, rep(6, 0, vf_ca(1)), at(PEER_LID));
}

#[test]
fn c107_a_req_without_lids_and_gids_of_an_alternate_path_has_none() {
    let mut pf = Pf::default();
    let mut req = vf_req(1, 5, PEER_LID);
    // These bits alone name no path.
    let alternate = &mut req.view_mut::<CmReq>().alternate;
    alternate.set_subnet_local(true);
    alternate.set_sap_supported(true);
    pf.sends(1, req, at(PEER_LID));
    let mut req = vf_req(1, 6, PEER_LID);
    req.view_mut::<CmReq>().alternate.remote_gid = peer_gid(PEER_LID);
    assert_eq!(
        pf.tx(1, req, at(PEER_LID)),
        Err(DropReason::ForeignIdentity)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Passive sides whose RTU is lost, beside a model of what each of them knows: a connection is up
    /// unless its REP was repeated to the end.
    #[test]
    fn no_connection_that_is_up_is_forgotten_and_none_that_failed_is_kept(
        talks in prop::collection::vec((0_u8..16, 1_u8..=16, any::<bool>(), any::<bool>()), 1..12),
        hours in 1_u64..100,
    ) {
        let mut pf = Pf::default();
        let mut up = Vec::new();
        for (number, (retries, sent, rtu, ends_by_vf)) in (0_u32..).zip(talks) {
            let sent = sent.min(retries + 1);
            let (id, peer) = (number, 100 + number);
            let wire = answer(&mut pf, id, peer, retries, sent);
            if rtu {
                pf.rx(message(AttributeId::CM_RTU, peer, wire), at(PEER_LID)).into_vf(1);
            }
            up.push((id, peer, wire, ends_by_vf, rtu || sent <= retries));
        }
        pf.wait(hours * 3600);
        pf.machine.handle_timeout(pf.now);
        for (id, peer, wire, ends_by_vf, is_up) in up {
            if ends_by_vf {
                let sent = pf.tx(1, message(AttributeId::CM_DREQ, id, peer), at(PEER_LID));
                prop_assert_eq!(sent.ok().map(|mad| local_id(&mad)), is_up.then_some(wire));
            } else {
                let got = pf.rx(message(AttributeId::CM_DREQ, peer, wire), at(PEER_LID));
                prop_assert_eq!(matches!(got, Rx::Vf(1, _)), is_up);
            }
        }
        pf.drain();
        prop_assert!(pf.machine.is_empty());
    }
}
