//! Every kind of fault, on the first link of a chain, in the direction from host A.

use core::time::Duration;

use ib_wire::mad::MgmtClass;
use ib_wire::smp::{NodeDescription, NodeInfo};

use super::bring_up::{Chain, LID_A, LID_B, PATHS};
use super::*;
use crate::{Fault, FaultCounters, FaultPlan, LinkState, PacketFilter, When};

const MS: Duration = Duration::from_millis(1);

/// Sends datagrams with one byte each, and gives what arrives at B.
fn exchange(chain: &mut Chain, bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
    for byte in bytes {
        chain.bench.send(chain.a, datagram(LID_A, LID_B, &[byte]));
    }
    chain.bench.run();
    arrived(chain)
}

fn arrived(chain: &mut Chain) -> Vec<u8> {
    let frames = chain.bench.received(chain.b.node);
    frames.iter().map(|frame| payload(frame)[0]).collect()
}

fn chain_with(rules: &[(PacketFilter, When, Fault)]) -> Chain {
    let mut chain = Chain::up(LinkConfig::default());
    let plan = rules
        .iter()
        .fold(FaultPlan::new(1), |plan, (filter, when, fault)| {
            plan.rule(*filter, *when, *fault)
        });
    chain.bench.fabric.set_faults(chain.a, Some(&plan));
    chain
}

fn any(when: When, fault: Fault) -> Chain {
    chain_with(&[(PacketFilter::default(), when, fault)])
}

fn counters(chain: &Chain) -> FaultCounters {
    chain.bench.fabric.fault_counters(chain.a)
}

#[test]
fn drop_loses_the_packets_it_names() {
    let mut chain = any(When::Nth(2), Fault::Drop);
    assert_eq!(exchange(&mut chain, 1..=4), [1, 3, 4]);
    assert_eq!(counters(&chain).dropped, 1);
}

#[test]
fn every_and_first_count_the_packets_that_match() {
    let mut chain = any(When::Every(3), Fault::Drop);
    assert_eq!(exchange(&mut chain, 1..=7), [1, 2, 4, 5, 7]);
    let mut chain = any(When::First(2), Fault::Drop);
    assert_eq!(exchange(&mut chain, 1..=3), [3]);
}

#[test]
fn a_delayed_packet_is_overtaken_and_comes_later() {
    let mut chain = any(When::Nth(1), Fault::Delay(MS));
    assert_eq!(exchange(&mut chain, 1..=2), [2]);
    let at = chain.bench.fabric.poll_timeout().unwrap();
    assert_eq!(at - chain.bench.fabric.now(), MS);
    chain.bench.run_until(at);
    assert_eq!(arrived(&mut chain), [1]);
    assert_eq!(counters(&chain).delayed, 1);
}

#[test]
fn a_duplicated_packet_comes_twice() {
    let mut chain = any(When::Nth(1), Fault::Duplicate);
    assert_eq!(exchange(&mut chain, 1..=2), [1, 1, 2]);
    assert_eq!(counters(&chain).duplicated, 1);
}

#[test]
fn a_reordered_packet_comes_behind_those_that_overtake_it() {
    let mut chain = any(
        When::Nth(1),
        Fault::Reorder {
            behind: 2,
            at_latest: MS,
        },
    );
    assert_eq!(exchange(&mut chain, 1..=4), [2, 3, 1, 4]);
    assert_eq!(counters(&chain).reordered, 1);
}

#[test]
fn a_reordered_packet_that_nothing_overtakes_goes_on_after_its_time() {
    let mut chain = any(
        When::Nth(1),
        Fault::Reorder {
            behind: 2,
            at_latest: MS,
        },
    );
    assert_eq!(exchange(&mut chain, [1]), []);
    chain.bench.run_until(chain.bench.fabric.now() + MS);
    assert_eq!(arrived(&mut chain), [1]);
}

#[test]
fn a_packet_corrupted_on_the_wire_is_refused_and_counted_by_the_next_port() {
    for bits in [1, 7] {
        let mut chain = any(When::Nth(2), Fault::CorruptOnWire { bits });
        let next = chain.bench.fabric.peer(chain.a).unwrap();
        assert_eq!(exchange(&mut chain, 1..=3), [1, 3]);
        assert_eq!(chain.bench.port(next).counters.rcv_errors, 1);
        assert_eq!(chain.bench.dropped(next, DropReason::BadVcrc), 1);
        assert_eq!(counters(&chain).corrupted, 1);
    }
}

#[test]
fn a_packet_corrupted_inside_travels_on_with_a_bad_icrc() {
    let mut chain = any(When::Nth(1), Fault::CorruptInside { bits: 3 });
    chain.bench.send(chain.a, datagram(LID_A, LID_B, b"bytes"));
    chain.bench.run();
    let mut frames = chain.bench.received(chain.b.node);
    assert_eq!(frames.len(), 1);
    assert!(frames[0].vcrc_matches());
    assert!(!frames[0].icrc_matches());
    assert_eq!(chain.bench.port(chain.b).counters.rcv_errors, 0);
}

#[test]
fn a_partition_cuts_off_one_direction_and_ends_with_its_plan() {
    let mut chain = Chain::up(LinkConfig::default());
    let a = chain.a;
    chain
        .bench
        .fabric
        .set_faults(a, Some(&FaultPlan::partition()));
    assert_eq!(exchange(&mut chain, 1..=2), []);
    assert_eq!(counters(&chain).partitioned, 2);
    chain.bench.send(chain.b, datagram(LID_B, LID_A, b"back"));
    chain.bench.run();
    assert_eq!(chain.bench.received(a.node).len(), 1);
    chain.bench.fabric.set_faults(a, None);
    assert_eq!(exchange(&mut chain, 3..=4), [3, 4]);
}

#[test]
fn a_filter_leaves_other_packets_alone() {
    let attribute = PacketFilter {
        class: Some(MgmtClass::SUBN_DIRECTED_ROUTE),
        attribute: Some(NodeInfo::ID),
        ..PacketFilter::default()
    };
    let lane = PacketFilter {
        vl: Some(Vl::MANAGEMENT),
        dlid: Some(Lid::new(LID_B)),
        ..PacketFilter::default()
    };
    let qp = PacketFilter {
        dest_qpn: Some(Qpn::GSI),
        ..PacketFilter::default()
    };
    let mut chain = chain_with(&[
        (attribute, When::Always, Fault::Drop),
        (lane, When::Always, Fault::Drop),
        (qp, When::Always, Fault::Drop),
    ]);
    let a = chain.a;
    let mad = request::<NodeInfo>(Method::GET, 0);
    assert!(chain.bench.ask(a, PATHS[0], mad).is_none());
    let description: NodeDescription = chain.bench.get(a, PATHS[0], 0);
    assert_eq!(description.as_str(), Some("switch"));
    assert_eq!(exchange(&mut chain, [1]), [1]);
    assert_eq!(counters(&chain).dropped, 1);
}

#[test]
fn chance_depends_on_the_seed_alone() {
    let run = |seed| {
        let mut chain = Chain::up(LinkConfig::default());
        let plan = FaultPlan::new(seed).rule(
            PacketFilter::default(),
            When::PerMillion(300_000),
            Fault::Drop,
        );
        chain.bench.fabric.set_faults(chain.a, Some(&plan));
        exchange(&mut chain, 0..100)
    };
    let once = run(7);
    assert_eq!(once, run(7));
    assert_ne!(once, run(8));
    assert!((50..90).contains(&once.len()), "{}", once.len());
}

#[test]
fn packets_in_flight_are_lost_with_the_link() {
    let config = LinkConfig {
        latency: MS,
        ..LinkConfig::default()
    };
    let mut bench = Bench::new();
    let (a, b) = (bench.host().port(1), bench.host().port(1));
    let link = bench.connect_by(a, b, config);
    bench.run();
    bench.send_smp(a, &[1], request::<NodeInfo>(Method::GET, 0));
    bench.run();
    bench.fabric.set_link(link, LinkState::Down);
    bench.fabric.set_link(link, LinkState::Up);
    bench.run_until(bench.fabric.now() + MS * 4);
    assert!(bench.received(a.node).is_empty());
    assert_eq!(bench.port(b).counters.rcv_packets, 0);
}
