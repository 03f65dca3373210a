//! Time, room and taps on the links of a chain.

use core::time::Duration;

use ib_wire::smp::{NodeInfo, SwitchInfo};

use super::bring_up::{Chain, LID_A, LID_B, PATHS};
use super::*;
use crate::{LinkState, TapPoint};

const MS: Duration = Duration::from_millis(1);

/// Brings a chain up and then gives its links another character.
fn chain(config: LinkConfig) -> Chain {
    let mut chain = Chain::up(LinkConfig::default());
    for link in &mut chain.bench.fabric.links {
        link.config = config;
    }
    chain
}

fn arrival_times(chain: &mut Chain) -> Vec<Duration> {
    let probe = chain.bench.fabric.device_mut(chain.b.node).unwrap();
    let times = probe.inbox.drain(..).map(|(at, _, _)| at - Instant::ZERO);
    times.collect()
}

#[test]
fn latency_adds_up_over_the_hops() {
    let mut chain = chain(LinkConfig {
        latency: MS,
        ..LinkConfig::default()
    });
    chain.bench.send(chain.a, datagram(LID_A, LID_B, &[0; 256]));
    chain.bench.run();
    chain.bench.run_until(Instant::from_millis(100));
    assert_eq!(arrival_times(&mut chain), [MS * 4]);
}

#[test]
fn packets_on_a_timed_link_come_one_after_the_other() {
    let mut chain = chain(LinkConfig {
        timed: true,
        ..LinkConfig::default()
    });
    let bits = u64::try_from(datagram(LID_A, LID_B, &[0; 256]).len()).unwrap() * 8;
    for _ in 0..2 {
        chain.bench.send(chain.a, datagram(LID_A, LID_B, &[0; 256]));
    }
    chain.bench.run();
    chain.bench.run_until(Instant::from_millis(100));
    let times = arrival_times(&mut chain);
    // 4x FDR is 54.5 Gb/s, so a packet of 290 bytes takes 42 ns.
    let packet = Duration::from_nanos(bits * 1000 / 54_544);
    assert_eq!(packet, Duration::from_nanos(42));
    assert_eq!(times, [packet * 4, packet * 5]);
}

#[test]
fn a_channel_adapter_waits_for_room_on_its_link() {
    let mut chain = chain(LinkConfig {
        latency: MS,
        capacity: 4,
        ..LinkConfig::default()
    });
    for byte in 0..20 {
        chain.bench.send(chain.a, datagram(LID_A, LID_B, &[byte]));
    }
    chain.bench.run();
    let waiting = &chain.bench.fabric.device(chain.a.node).unwrap().outbox;
    assert_eq!(waiting.len(), 16);
    chain.bench.run_until(Instant::from_millis(100));
    assert_eq!(chain.bench.received(chain.b.node).len(), 20);
    assert_eq!(chain.bench.port(chain.a).counters.xmit_discards, 0);
}

#[test]
fn packets_pass_a_full_lane_on_another() {
    let mut chain = chain(LinkConfig {
        latency: MS,
        capacity: 4,
        ..LinkConfig::default()
    });
    for lane in [0, 0, 0, 0, 0, 1].map(Vl::from_low_bits) {
        let mut frame = datagram(LID_A, LID_B, &[lane.get()]);
        frame.rewrite_variant(|lrh| {
            lrh.set_vl(lane);
            lrh.set_sl(Sl::from_low_bits(lane.get()));
        });
        chain.bench.send(chain.a, frame);
    }
    chain.bench.run();
    chain.bench.run_until(Instant::from_millis(100));
    let arrived = chain.bench.received(chain.b.node);
    let lanes: Vec<u8> = arrived.iter().map(|frame| frame.lane().get()).collect();
    assert_eq!(lanes, [0, 0, 0, 0, 1, 0]);
}

#[test]
fn smps_for_which_a_link_has_no_place_are_lost_at_its_far_end_and_data_waits() {
    let mut chain = Chain::up(LinkConfig::default());
    let slow = chain.links[1].index();
    chain.bench.fabric.links[slow].config = LinkConfig {
        latency: MS,
        capacity: 4,
        ..LinkConfig::default()
    };
    for byte in 0..10 {
        chain.bench.send(chain.a, datagram(LID_A, LID_B, &[byte]));
    }
    for _ in 0..71 {
        let mad = request::<NodeInfo>(Method::GET, 0);
        chain.bench.send_smp(chain.a, PATHS[1], mad);
    }
    chain.bench.run();
    chain.bench.run_until(Instant::from_millis(100));
    assert_eq!(chain.bench.received(chain.b.node).len(), 10);
    let counters = chain.bench.port(chain.switches[0].port(2)).counters;
    assert_eq!((counters.xmit_discards, counters.vl15_dropped), (0, 0));
    // SMPs wait for no credits: it is the far port that has no room for them (IBA 16.1.3.5, VL15Dropped).
    let far = chain.bench.port(chain.switches[1].port(1)).counters;
    assert_eq!((far.xmit_discards, far.vl15_dropped), (0, 7));
}

#[test]
fn a_link_that_trains_comes_up_after_its_time() {
    let mut bench = Bench::new();
    let (a, b) = (bench.host().port(1), bench.host().port(1));
    let config = LinkConfig {
        training: MS,
        ..LinkConfig::default()
    };
    bench.connect_by(a, b, config);
    bench.run();
    let physical = |bench: &Bench| bench.port(a).physical_state;
    assert_eq!(physical(&bench), hca_api::PhysicalState::Training);
    bench.run_until(Instant::ZERO + MS);
    assert_eq!(physical(&bench), hca_api::PhysicalState::LinkUp);
    assert_eq!(bench.port(b).state, hca_api::PortState::Init);
}

#[test]
fn taps_see_both_directions_of_their_link_and_only_their_qp() {
    let mut chain = Chain::up(LinkConfig::default());
    let link = chain.links[0];
    let fabric = &mut chain.bench.fabric;
    let on_link = fabric.add_tap(TapPoint::Link(link));
    let on_qp = fabric.add_tap(TapPoint::QueuePair(chain.b, Qpn::from_low_bits(0x48)));
    chain.bench.send(chain.a, datagram(LID_A, LID_B, b"there"));
    let _: NodeInfo = chain.bench.get(chain.a, PATHS[3], 0);
    chain.bench.run();
    let mut seen = Vec::new();
    while let Some(tapped) = chain.bench.fabric.poll_tap() {
        seen.push((tapped.tap, tapped.from.node, tapped.to.node));
    }
    let (a, b) = (chain.a.node, chain.b.node);
    let [first, _, last] = chain.switches;
    assert_eq!(
        seen,
        [
            (on_link, a, first),
            (on_link, a, first),
            (on_qp, last, b),
            (on_link, first, a)
        ]
    );
    chain.bench.fabric.remove_tap(on_link);
    chain.bench.send(chain.a, datagram(LID_A, LID_B, b"there"));
    chain.bench.run();
    assert_eq!(chain.bench.fabric.poll_tap().map(|t| t.tap), Some(on_qp));
    assert!(chain.bench.fabric.poll_tap().is_none());
}

#[test]
fn ports_count_packets_and_words_both_ways() {
    let mut chain = Chain::up(LinkConfig::default());
    let (before_a, before_b) = (
        chain.bench.port(chain.a).counters,
        chain.bench.port(chain.b).counters,
    );
    chain.bench.send(chain.a, datagram(LID_A, LID_B, &[0; 256]));
    chain.bench.run();
    let sent = chain.bench.port(chain.a).counters;
    assert_eq!(sent.xmit_packets - before_a.xmit_packets, 1);
    assert_eq!(sent.xmit_data - before_a.xmit_data, 72);
    assert_eq!(sent.unicast_xmit_packets - before_a.unicast_xmit_packets, 1);
    let got = chain.bench.port(chain.b).counters;
    assert_eq!(got.rcv_packets - before_b.rcv_packets, 1);
    assert_eq!(got.rcv_data - before_b.rcv_data, 72);
}

#[test]
fn a_packet_beyond_the_mtu_of_the_link_is_discarded() {
    let mut chain = Chain::up(LinkConfig::default());
    let a = chain.a;
    chain.bench.change_port(a, PATHS[0], 2, |info| {
        info.set_neighbor_mtu(ib_wire::Mtu::MTU_256);
    });
    for len in [256, 260, 4096] {
        chain.bench.send(a, datagram(LID_A, LID_B, &vec![0; len]));
    }
    chain.bench.run();
    // 124 bytes of headers are allowed for besides the payload.
    assert_eq!(chain.bench.received(chain.b.node).len(), 2);
    let counters = chain.bench.port(chain.switches[0].port(2)).counters;
    assert_eq!(counters.xmit_discards, 1);
}

#[test]
fn data_turns_an_armed_port_active() {
    let mut bench = Bench::new();
    let (left, right) = (bench.host().port(1), bench.host().port(1));
    bench.connect_by(left, right, LinkConfig::default());
    bench.run();
    for (path, lid) in [(&[][..], LID_A), (&[1][..], LID_B)] {
        bench.change_port(left, path, 0, |info| {
            info.lid = Lid::new(lid);
            info.master_sm_lid = Lid::new(LID_A);
            info.set_port_state(PortState::ARMED);
        });
    }
    bench.change_port(left, &[], 0, |info| info.set_port_state(PortState::ACTIVE));
    bench.send(left, datagram(LID_A, LID_B, b"wake up"));
    bench.run();
    assert_eq!(bench.port(right).state, hca_api::PortState::Active);
    assert_eq!(bench.received(right.node).len(), 1);
    let changes = &bench.fabric.device(right.node).unwrap().changes;
    let last = changes.last().unwrap();
    assert_eq!(*last, (right.port, hca_api::PortChange::ACTIVE));
}

fn port_state_change(chain: &mut Chain, path: &[u8]) -> bool {
    let a = chain.a;
    let info: SwitchInfo = chain.bench.get(a, path, 0);
    info.port_state_change()
}

#[test]
fn a_port_that_the_sm_disables_stays_down_until_it_polls_again() {
    let mut chain = Chain::up(LinkConfig::default());
    let a = chain.a;
    let [first, second, _] = chain.switches;
    let mut disable = |state| {
        chain
            .bench
            .change_port(a, PATHS[0], 2, |info| info.set_phys_state(state))
    };
    let told = disable(ib_wire::smp::PortPhysState::DISABLED);
    assert_eq!(told.port_state(), PortState::DOWN);
    assert_eq!(told.phys_state(), ib_wire::smp::PortPhysState::DISABLED);
    let physical = |chain: &Chain, end| chain.bench.port(end).physical_state;
    disable(ib_wire::smp::PortPhysState::NO_CHANGE);
    let (near, far) = (first.port(2), second.port(1));
    assert_eq!(physical(&chain, near), hca_api::PhysicalState::Disabled);
    assert_eq!(physical(&chain, far), hca_api::PhysicalState::Polling);
    // What its manager ordered is no change to tell of; the partner's is, but its switch is cut off now.
    assert!(!port_state_change(&mut chain, PATHS[0]));
    let cable = chain.links[1];
    chain.bench.fabric.set_link(cable, LinkState::Up);
    chain.bench.run();
    assert_eq!(physical(&chain, near), hca_api::PhysicalState::Disabled);
    chain.bench.change_port(a, PATHS[0], 2, |info| {
        info.set_phys_state(ib_wire::smp::PortPhysState::POLLING);
    });
    assert_eq!(physical(&chain, near), hca_api::PhysicalState::LinkUp);
    assert_eq!(chain.bench.port(far).state, hca_api::PortState::Init);
}

#[test]
fn a_port_set_to_down_goes_to_initialize_at_both_ends_with_the_link_up() {
    let mut chain = Chain::up(LinkConfig::default());
    let a = chain.a;
    chain
        .bench
        .change_port(a, PATHS[0], 2, |info| info.set_port_state(PortState::DOWN));
    assert!(!port_state_change(&mut chain, PATHS[0]), "as ordered");
    assert!(port_state_change(&mut chain, PATHS[1]), "by itself");
    let [first, second, _] = chain.switches;
    for end in [first.port(2), second.port(1)] {
        let port = chain.bench.port(end);
        assert_eq!(port.state, hca_api::PortState::Init);
        assert_eq!(port.physical_state, hca_api::PhysicalState::LinkUp);
    }
}

#[test]
fn a_port_that_falls_asleep_wakes_when_its_partner_polls() {
    let mut chain = Chain::up(LinkConfig::default());
    let (a, cable) = (chain.a, chain.links[1]);
    chain.bench.change_port(a, PATHS[0], 2, |info| {
        info.set_link_down_default(ib_wire::smp::LinkDownDefaultState::SLEEP);
    });
    let near = chain.switches[0].port(2);
    let physical = |chain: &Chain| chain.bench.port(near).physical_state;
    chain.bench.fabric.set_link(cable, LinkState::Down);
    assert_eq!(physical(&chain), hca_api::PhysicalState::Sleep);
    chain.bench.fabric.set_link(cable, LinkState::Up);
    assert_eq!(physical(&chain), hca_api::PhysicalState::LinkUp);
}
