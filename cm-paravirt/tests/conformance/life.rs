//! Statements about how long ids live, and about limits.

use cm_paravirt::{Config, ResetPolicy, State};
use ib_vtime::{Duration, Instant};
use ib_wire::PortNum;
use ib_wire::cm::{CmDreq, CmMessage, CmRej, RejReason};
use ib_wire::mad::AttributeId;
use vf_tunnel::DropReason;

use crate::harness::*;

/// Resolution of the timers, in ns.
const TICK: u64 = 1 << 26;
/// One tick as the IBA code `4.096 µs × 2^n`.
const CODE_OF_A_TICK: u8 = 14;

const fn ticks(count: u64) -> Duration {
    Duration::from_nanos(count * TICK)
}

#[test]
fn c096_an_id_lives_on_for_the_quarantine_after_the_last_dreq_or_drep() {
    let mut pf = Pf::default();
    let wire = pf.connect(1, 5, PEER_LID, 77);
    pf.sends(1, message(AttributeId::CM_DREQ, 5, 77), at(PEER_LID));
    pf.wait(29);
    pf.rx(message(AttributeId::CM_DREP, 77, wire), at(PEER_LID))
        .into_vf(1);
    pf.wait(29);
    let late = message(AttributeId::CM_DREQ, 77, wire);
    assert_eq!(remote_id(&pf.rx(late, at(PEER_LID)).into_vf(1)), 5);
    let drep = message(AttributeId::CM_DREP, 5, 77);
    assert_eq!(pf.sends(1, drep, at(PEER_LID)), wire);
    pf.wait(31);
    pf.machine.handle_timeout(pf.now);
    assert!(pf.machine.is_empty());
}

#[test]
fn c097_repeated_dreqs_extend_the_life_up_to_a_cap() {
    let mut pf = Pf::default();
    let wire = pf.connect(1, 5, PEER_LID, 77);
    let dreq = message(AttributeId::CM_DREQ, 77, wire);
    for _ in 0..24 {
        pf.rx(dreq, at(PEER_LID)).into_vf(1);
        pf.wait(10);
    }
    pf.wait(1);
    pf.machine.handle_timeout(pf.now);
    assert!(pf.machine.is_empty(), "240 s are over");
    pf.rx(dreq, at(PEER_LID)).into_answer();
}

#[test]
fn c098_a_handshake_without_end_is_forgotten_after_a_minute() {
    let mut pf = Pf::default();
    pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
    pf.sends(1, rep(6, 77, vf_ca(1)), at(PEER_LID));
    pf.wait(60);
    pf.machine.handle_timeout(pf.now);
    assert_eq!(pf.machine.len(), 2);
    pf.wait(1);
    pf.machine.handle_timeout(pf.now);
    assert!(pf.machine.is_empty());
    let abandoned = pf.machine.vf_statistics(vf(1)).expect("known").abandoned;
    assert_eq!(abandoned, 2);
}

#[test]
fn c098_the_reqs_own_timeouts_give_it_longer() {
    let mut pf = Pf::default();
    let mut req = vf_req(1, 5, PEER_LID);
    // 4.29 s, 16 times.
    set_timeouts(&mut req, 20, 15);
    let wire = pf.sends(1, req, at(PEER_LID));
    pf.wait(68);
    for _ in 0..16 {
        pf.rx(rep(77, wire, peer_ca(PEER_LID)), at(PEER_LID))
            .into_vf(1);
    }
    pf.wait(70);
    pf.machine.handle_timeout(pf.now);
    assert!(pf.machine.is_empty());
}

#[test]
fn c098_an_mra_adds_its_service_timeout() {
    let mut pf = Pf::default();
    let wire = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    let mut mra = message(AttributeId::CM_MRA, 77, wire);
    // 68.7 s.
    mra.data[9] = 24 << 3;
    pf.rx(mra, at(PEER_LID)).into_vf(1);
    pf.wait(128);
    pf.rx(rep(77, wire, peer_ca(PEER_LID)), at(PEER_LID))
        .into_vf(1);
}

/// Creates a context whose clock stands just before the end of a tick.
fn at_the_end_of_a_tick(handshake_min: u64) -> Pf {
    let mut pf = Pf::with(Config {
        handshake_min: ticks(handshake_min),
        ..Config::default()
    });
    pf.now = Instant::from_nanos(100 * TICK - 1);
    pf
}

/// Returns `true` where state is left: `after` ticks from now, and one tick later.
fn is_left_after(mut pf: Pf, after: u64) -> [bool; 2] {
    let start = pf.now;
    [after, after + 1].map(|after| {
        pf.now = start + ticks(after);
        pf.machine.handle_timeout(pf.now);
        !pf.machine.is_empty()
    })
}

#[test]
fn c098_no_time_is_shorter_than_told_or_more_than_a_tick_longer() {
    let mut pf = at_the_end_of_a_tick(10);
    pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    assert_eq!(is_left_after(pf, 10), [true, false], "the least time");

    let mut pf = at_the_end_of_a_tick(0);
    let mut req = vf_req(1, 5, PEER_LID);
    set_timeouts(&mut req, CODE_OF_A_TICK, 11);
    pf.sends(1, req, at(PEER_LID));
    assert_eq!(is_left_after(pf, 12), [true, false], "the REQ's timeouts");

    let mut pf = at_the_end_of_a_tick(10);
    let wire = pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    let mut mra = message(AttributeId::CM_MRA, 77, wire);
    mra.data[9] = (CODE_OF_A_TICK + 2) << 3;
    pf.rx(mra, at(PEER_LID)).into_vf(1);
    assert_eq!(is_left_after(pf, 14), [true, false], "an MRA's timeout");
}

#[test]
fn c098_no_message_can_ask_for_more_than_the_cap() {
    let mut pf = Pf::default();
    let mut req = vf_req(1, 5, PEER_LID);
    set_timeouts(&mut req, 31, 15);
    let wire = pf.sends(1, req, at(PEER_LID));
    let mut mra = message(AttributeId::CM_MRA, 77, wire);
    mra.data[9] = 0xff;
    pf.rx(mra, at(PEER_LID)).into_vf(1);
    pf.wait(301);
    pf.machine.handle_timeout(pf.now);
    assert!(pf.machine.is_empty());
}

#[test]
fn c099_an_rtu_at_expiry_finds_all_or_nothing() {
    let mut delivered = 0;
    for millis in 59_900..60_300 {
        let mut pf = Pf::default();
        pf.rx(peer_req(PEER_LID, 77, 1), at(PEER_LID)).into_vf(1);
        let wire = pf.sends(1, rep(5, 77, vf_ca(1)), at(PEER_LID));
        pf.now += Duration::from_millis(millis);
        match pf.rx(message(AttributeId::CM_RTU, 77, wire), at(PEER_LID)) {
            Rx::Vf(1, _) => {
                delivered += 1;
                pf.wait(10_000);
                pf.machine.handle_timeout(pf.now);
                assert_eq!(pf.states(), [State::Established]);
            }
            other => {
                assert_eq!(other, Rx::Drop(DropReason::UnknownCommId));
                assert!(pf.machine.is_empty());
            }
        }
    }
    assert!((100..400).contains(&delivered), "{delivered}");
}

#[test]
fn c111_a_reset_vf_leaves_nothing_for_its_successor() {
    let mut pf = Pf::default();
    let wire = pf.connect(1, 5, PEER_LID, 77);
    pf.rx(peer_req(PEER_LID, 78, 1), at(PEER_LID)).into_vf(1);
    pf.sends(1, sidr_req(5, 1), at(PEER_LID));
    let other = pf.connect(2, 5, PEER_LID, 79);
    pf.machine.vf_reset(pf.now, vf(1), ResetPolicy::Silent);
    assert_eq!(pf.machine.connections_of(pf.now, vf(1)).count(), 0);
    assert_eq!(pf.machine.len(), 1);
    assert_eq!(pf.machine.poll_transmit(PortNum(1)), None);
    // The successor uses the same id for the same peer.
    let new = pf.connect(1, 5, PEER_LID, 80);
    assert_ne!(new, wire);
    pf.rx(message(AttributeId::CM_DREQ, 77, wire), at(PEER_LID))
        .into_answer();
    assert_eq!(
        pf.rx(rej_timeout(78, 0, peer_ca(PEER_LID)), at(PEER_LID)),
        Rx::Drop(DropReason::UnknownCommId)
    );
    pf.rx(message(AttributeId::CM_DREQ, 79, other), at(PEER_LID))
        .into_vf(2);
}

#[test]
fn c112_peers_of_a_reset_vf_are_told_and_no_others() {
    let mut pf = Pf::default();
    let policy = ResetPolicy::Signal { ca_guid: vf_ca(1) };
    pf.connect(2, 5, PEER_LID, 70);
    let up = pf.connect(1, 5, PEER_LID, 77);
    let asked = pf.sends(1, vf_req(1, 6, STRANGER_LID), at(STRANGER_LID));
    pf.rx(peer_req(PEER_LID, 78, 1), at(PEER_LID)).into_vf(1);
    pf.rx(peer_req(PEER_LID, 79, 1), at(PEER_LID)).into_vf(1);
    let answered = pf.sends(1, rep(7, 79, vf_ca(1)), at(PEER_LID));
    pf.machine.vf_reset(pf.now, vf(1), policy);
    let mut told = Vec::new();
    while let Some(transmit) = pf.machine.poll_transmit(PortNum(1)) {
        assert_eq!(transmit.vf, vf(1));
        assert_eq!(transmit.pkey, PKEY);
        told.push((transmit.to.lid.get(), transmit.mad));
    }
    told.reverse();
    let [
        (lid_0, dreq),
        (lid_1, abandon),
        (lid_2, refuse),
        (lid_3, refuse_rep),
    ] = told[..]
    else {
        panic!("{} messages", told.len())
    };
    assert_eq!(
        [lid_0, lid_1, lid_2, lid_3],
        [PEER_LID, STRANGER_LID, PEER_LID, PEER_LID]
    );
    assert_eq!(dreq.header.attribute_id, AttributeId::CM_DREQ);
    assert_eq!((local_id(&dreq), remote_id(&dreq)), (up, 77));
    assert_eq!(dreq.view::<CmDreq>().remote_qpn.get(), 77);
    assert_eq!((local_id(&abandon), remote_id(&abandon)), (asked, 0));
    let abandon: &CmRej = abandon.view();
    assert_eq!(abandon.timeout_ca_guid(), Some(vf_ca(1)));
    assert_eq!((local_id(&refuse), remote_id(&refuse)), (0, 78));
    assert_eq!(refuse.view::<CmRej>().message_rejected(), CmMessage::REQ);
    assert_eq!(
        (local_id(&refuse_rep), remote_id(&refuse_rep)),
        (answered, 79)
    );
    assert_eq!(pf.machine.statistics().signals, 4);
}

#[test]
fn c112_farewells_are_limited() {
    let mut pf = Pf::with(Config {
        signals: 10,
        ..Config::default()
    });
    for id in 0..15 {
        pf.connect(1, id, PEER_LID, 77 + id);
    }
    let policy = ResetPolicy::Signal { ca_guid: vf_ca(1) };
    pf.machine.vf_reset(pf.now, vf(1), policy);
    let told = core::iter::from_fn(|| pf.machine.poll_transmit(PortNum(1))).count();
    assert_eq!(told, 10);
    assert_eq!(pf.machine.statistics().signals_lost, 5);
}

#[test]
fn c114_a_flood_of_fresh_ids_is_capped_and_does_not_hurt_others() {
    let mut pf = Pf::default();
    let passed = (0..100_000)
        .filter(|&id| pf.tx(1, vf_req(1, id, PEER_LID), at(PEER_LID)).is_ok())
        .count();
    assert_eq!(passed, 16_384);
    assert_eq!(pf.drops(1, DropReason::CmQuota), 100_000 - 16_384);
    pf.connect(2, 5, PEER_LID, 77);
    // A VF at its limit still talks under the ids that it has.
    pf.sends(1, vf_req(1, 0, PEER_LID), at(PEER_LID));
    pf.drain();
    assert_eq!(pf.states(), [State::Established]);
}

#[test]
fn c114_a_flood_of_peers_requests_is_capped_and_leaves_a_vfs_own_connections_alone() {
    let mut pf = Pf::default();
    let passed = (0..10_000)
        .filter(|&id| matches!(pf.rx(peer_req(PEER_LID, id, 1), at(PEER_LID)), Rx::Vf(1, _)))
        .count();
    assert_eq!(passed, 4_096);
    assert_eq!(pf.drops(1, DropReason::CmQuota), 10_000 - 4_096);
    pf.connect(1, 5, STRANGER_LID, 77);
    pf.accept(2, 5, PEER_LID, 77);
}

#[test]
fn c114_a_lower_limit_for_one_vf_holds_for_it_alone() {
    let mut pf = Pf::default();
    pf.machine.set_quota(vf(1), 1);
    pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    assert_eq!(
        pf.tx(1, vf_req(1, 6, PEER_LID), at(PEER_LID)),
        Err(DropReason::CmQuota)
    );
    for id in 0..10 {
        pf.sends(2, vf_req(2, id, PEER_LID), at(PEER_LID));
    }
}

#[test]
fn c114_namesakes_made_up_behind_one_lid_are_limited() {
    let mut pf = Pf::default();
    let delivered = (0..1_000)
        .filter(|&ca| {
            let mut req = peer_req(PEER_LID, 77, 1);
            req.view_mut::<ib_wire::cm::CmReq>().local_ca_guid = ib_wire::Guid::new(ca);
            matches!(pf.rx(req, at(PEER_LID)), Rx::Vf(1, _))
        })
        .count();
    assert_eq!(delivered, 64);
}

#[test]
fn c193_state_stays_within_the_quota_whatever_a_vf_sends() {
    let mut pf = Pf::default();
    let mut most = 0;
    for round in 0..20_u32 {
        for id in 0..20_000_u32 {
            let id = id.wrapping_mul(0x9e37_79b1).wrapping_add(round);
            let _ = pf.tx(1, vf_req(1, id, PEER_LID), at(PEER_LID));
            let _ = pf.tx(1, sidr_req(id, 1), at(PEER_LID));
        }
        pf.wait(20);
        most = most.max(pf.machine.state_bytes());
    }
    assert!(most <= 16_384 * 96 + 300_000, "{most}");
}

#[test]
fn a_rejected_req_that_comes_again_is_delivered_again() {
    let mut pf = Pf::default();
    let req = peer_req(PEER_LID, 77, 1);
    pf.rx(req, at(PEER_LID)).into_vf(1);
    pf.tx(
        1,
        rej(0, 77, CmMessage::REQ, RejReason::CONSUMER),
        at(PEER_LID),
    )
    .expect("forwarded");
    assert_eq!(pf.states(), [State::Rejected]);
    pf.rx(req, at(PEER_LID)).into_vf(1);
    assert_eq!(pf.states(), [State::ReqRcvd]);
}

#[test]
fn a_timeout_that_comes_early_changes_nothing() {
    let mut pf = Pf::default();
    pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    let before = pf.machine.connections(pf.now).collect::<Vec<_>>();
    pf.machine.handle_timeout(pf.now);
    assert_eq!(pf.machine.connections(pf.now).collect::<Vec<_>>(), before);
}

#[test]
fn a_live_id_costs_at_most_96_bytes_with_everything() {
    let mut pf = Pf::default();
    for id in 0..100_000_u32 {
        let number = u16::try_from(id % 64).expect("few") + 1;
        let peer = 0x0100_0000 + id;
        if id % 2 == 0 {
            pf.connect(number, id, PEER_LID, peer);
        } else {
            pf.accept(number, id, PEER_LID, peer);
        }
        // The index grows by a fifth each time; look often enough to see it at its emptiest. With
        // fewer ids the wheel's fixed size tells.
        let live = id as usize + 1;
        if live >= 30_000 && live.is_multiple_of(500) {
            let bytes = pf.machine.state_bytes();
            assert!(bytes <= 96 * live, "{bytes} bytes for {live} ids");
        }
    }
}

#[test]
fn the_view_of_a_connection_tells_what_is_known_of_it() {
    let mut pf = Pf::default();
    let wire = pf.accept(1, 5, PEER_LID, 77);
    let shown = pf
        .machine
        .connections_of(pf.now, vf(1))
        .next()
        .expect("one");
    assert_eq!(shown.vf_id.map(|id| id.0.get()), Some(5));
    assert_eq!(shown.wire_id.0.get(), wire);
    assert_eq!(shown.remote_id.map(|id| id.0.get()), Some(77));
    assert_eq!(shown.state, State::Established);
    assert_eq!(shown.lid.get(), PEER_LID);
    assert_eq!(shown.gid, peer_gid(PEER_LID));
    assert_eq!(shown.ca_guid, peer_ca(PEER_LID));
    assert_eq!((shown.qpn.get(), shown.pkey), (77, PKEY));
    assert_eq!(shown.remaining, None);
    assert!(!shown.sidr && !shown.superseded);
    pf.sends(1, message(AttributeId::CM_DREQ, 5, 77), at(PEER_LID));
    let shown = pf.machine.connections(pf.now).next().expect("one");
    let remaining = shown.remaining.expect("a clock runs").as_secs_f64();
    assert!((30.0..30.2).contains(&remaining), "{remaining}");
}

#[test]
fn the_view_tells_how_long_an_exchange_has_not_moved() {
    let mut pf = Pf::default();
    let idle = |pf: &Pf| {
        let shown = pf.machine.connections(pf.now).next().expect("one");
        shown.idle.map(|idle| idle.as_secs_f64().round())
    };
    pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    pf.now += Duration::from_secs(20);
    assert_eq!(idle(&pf), Some(20.0));
    pf.sends(1, vf_req(1, 5, PEER_LID), at(PEER_LID));
    assert_eq!(idle(&pf), Some(0.0), "sent again");
    pf.machine.vf_reset(pf.now, vf(1), ResetPolicy::Silent);

    pf.sends(1, sidr_req(5, 1), at(PEER_LID));
    pf.now += Duration::from_secs(7);
    assert_eq!(idle(&pf), Some(7.0));
    pf.machine.vf_reset(pf.now, vf(1), ResetPolicy::Silent);

    pf.connect(1, 5, PEER_LID, 77);
    pf.now += Duration::from_secs(1_000);
    assert_eq!(idle(&pf), None, "up");
    for seconds in [0.0, 20.0, 40.0] {
        pf.sends(1, message(AttributeId::CM_DREQ, 5, 77), at(PEER_LID));
        assert_eq!(idle(&pf), Some(seconds), "a DREQ again ends nothing anew");
        pf.now += Duration::from_secs(20);
    }
}
