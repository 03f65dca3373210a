//! Packets that wait in switches.

use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{Fault, FaultPlan, LinkState, NodeKind, PacketFilter, When};

const US: Duration = Duration::from_micros(1);
/// 4.2 ms.
const HOQ_LIFE: u8 = 10;

const FAST: LinkConfig = places(4, Duration::ZERO);
/// A link on which a packet keeps its place for longer than any test lasts.
const STUCK: LinkConfig = places(4, Duration::from_secs(3600));

const fn places(capacity: u32, latency: Duration) -> LinkConfig {
    LinkConfig {
        widths: ib_wire::smp::LinkWidth::X1,
        speeds: ib_wire::smp::LinkSpeed::SDR,
        extended_speeds: ib_wire::smp::LinkSpeedExt::NONE,
        latency,
        training: Duration::ZERO,
        timed: false,
        capacity,
    }
}

/// Switches with hosts; host `n` has LID `n` + 1.
struct Net {
    bench: Bench,
    hosts: Vec<Endpoint>,
    /// The switch and the port at which each host is.
    edges: Vec<Endpoint>,
}

impl Net {
    /// Connects the first `hosts` ports of each switch with hosts, by their own kinds of link, and others by `cables`.
    fn new(
        switches: usize,
        hosts: u8,
        host_link: impl Fn(usize) -> LinkConfig,
        cables: &[([(usize, u8); 2], LinkConfig)],
        route: impl Fn(usize, usize) -> u8,
    ) -> Self {
        let mut bench = Bench::new();
        let switches: Vec<NodeId> = (0..switches).map(|_| bench.switch(16)).collect();
        let (mut ends, mut edges) = (Vec::new(), Vec::new());
        for switch in &switches {
            for port in 1..=hosts {
                let (host, edge) = (bench.host().port(1), switch.port(port));
                bench.connect_by(host, edge, host_link(ends.len()));
                ends.push(host);
                edges.push(edge);
            }
        }
        for (ends, config) in cables {
            let [a, b] = ends.map(|(switch, port)| switches[switch].port(port));
            bench.connect_by(a, b, *config);
        }
        bench.run();
        for (at, switch) in switches.iter().enumerate() {
            let tables = bench.fabric.slots[switch.index()]
                .node_mut()
                .tables_mut()
                .unwrap();
            tables.info.linear_fdb_top = Lid::new(64);
            for (host, edge) in edges.iter().enumerate() {
                let here = edge.node == *switch;
                let port = if here {
                    edge.port
                } else {
                    PortNum(route(at, host))
                };
                tables.set_unicast(host + 1, port);
            }
        }
        let mut net = Self {
            bench,
            hosts: ends,
            edges,
        };
        net.do_step(&Step::HoqLife(HOQ_LIFE));
        net.activate_ports();
        net
    }

    fn activate_ports(&mut self) {
        for slot in &mut self.bench.fabric.slots {
            for port in slot.node_mut().ports_mut() {
                port.state = hca_api::PortState::Active;
            }
        }
    }

    /// One switch with hosts.
    fn star(hosts: u8, link: impl Fn(usize) -> LinkConfig) -> Self {
        Self::new(1, hosts, link, &[], |_, _| 0)
    }

    /// Sends numbered packets from a host to another.
    fn send(&mut self, from: usize, to: u16, count: u16, lane: u8) {
        for number in 0..count {
            let payload = [u8::try_from(from).unwrap(), u8::try_from(number).unwrap()];
            let mut frame = datagram(u16::try_from(from).unwrap() + 1, to, &payload);
            frame.rewrite_variant(|lrh| {
                lrh.set_vl(Vl::from_low_bits(lane));
                lrh.set_sl(Sl::from_low_bits(lane));
            });
            self.bench.send(self.hosts[from], frame);
        }
    }

    fn run_for(&mut self, time: Duration) {
        let mut now = self.bench.fabric.now();
        let end = now + time;
        while now < end {
            let next = self.bench.fabric.poll_timeout().unwrap_or(end);
            now = next.clamp(now, end);
            self.bench.run_until(now);
        }
    }

    /// Packets that a host has received so far: senders and numbers.
    fn arrived(&self, host: usize) -> Vec<(u8, u8)> {
        let inbox = &self
            .bench
            .fabric
            .device(self.hosts[host].node)
            .unwrap()
            .inbox;
        let payloads = inbox.iter().map(|(.., frame)| payload(frame));
        payloads.map(|bytes| (bytes[0], bytes[1])).collect()
    }

    fn all_arrived(&self) -> usize {
        (0..self.hosts.len())
            .map(|host| self.arrived(host).len())
            .sum()
    }

    /// Packets that all nodes dropped.
    fn dropped(&self, reason: DropReason) -> u64 {
        let nodes = self.bench.fabric.nodes();
        nodes
            .map(|(id, _)| self.bench.fabric.node(id).unwrap().drops().get(reason))
            .sum()
    }

    /// Packets that all switches dropped, for any reason.
    fn lost(&self) -> u64 {
        let switches = self
            .bench
            .fabric
            .nodes()
            .filter(|(_, kind)| *kind == NodeKind::Switch);
        switches
            .map(|(id, _)| self.bench.fabric.node(id).unwrap().drops().total())
            .sum()
    }
}

/// Eight writers at one switch and a ninth host on a timed link at another.
fn incast() -> Net {
    let timed = LinkConfig {
        timed: true,
        ..FAST
    };
    let cables = [([(0, 10), (1, 10)], FAST)];
    Net::new(
        2,
        9,
        |host| if host == 17 { timed } else { FAST },
        &cables,
        |_, _| 10,
    )
}

#[test]
fn eight_writers_share_a_slow_link_and_lose_nothing() {
    let mut net = incast();
    for writer in 0..8 {
        net.send(writer, 18, 50, 0);
    }
    net.run_for(US * 1000);
    let arrived = net.arrived(17);
    assert_eq!((arrived.len(), net.lost()), (400, 0));
    for writer in 0..8 {
        let of_writer = arrived.iter().filter(|(from, _)| *from == writer);
        let numbers: Vec<u8> = of_writer.map(|(_, number)| *number).collect();
        assert_eq!(numbers, (0..50).collect::<Vec<_>>(), "in order");
        let early = arrived[..80].iter().filter(|(from, _)| *from == writer);
        assert!((7..=13).contains(&early.count()), "in turn: {arrived:?}");
    }
    // The first switch waits for the second. That waits for its wire, which is never idle.
    let waits = |at| net.bench.port(at).counters.xmit_wait;
    let first = net.edges[0].node.port(10);
    assert!(waits(first) > 0);
    assert_eq!(waits(net.edges[17]), 0);
}

#[test]
fn a_host_whose_packets_cross_no_full_link_is_not_slowed_down() {
    let end = |jam: u16| {
        let mut net = incast();
        for writer in 0..7 {
            net.send(writer, 18, jam, 0);
        }
        net.send(7, 9, 200, 0);
        net.run_for(US * 1000);
        let inbox = &net.bench.fabric.device(net.hosts[8].node).unwrap().inbox;
        assert_eq!(inbox.len(), 200);
        inbox.back().unwrap().0
    };
    assert_eq!(end(0), end(50));
}

/// Four switches in a ring with a host each; port 2 leads to the next switch. Each host sends packets to each other one, by the
/// shortest way: `lane` says on which lane those go whose way crosses the link behind the last switch.
fn ring(lane: u8) -> Net {
    let link = places(2, US);
    let cables = [0, 1, 2, 3].map(|at| ([(at, 2), ((at + 1) % 4, 3)], link));
    let route = |at: usize, to: usize| if (to + 4 - at) % 4 == 3 { 3 } else { 2 };
    let mut net = Net::new(4, 1, |_| link, &cables, route);
    for hops in [2, 1, 3] {
        for from in 0..4 {
            let crosses = hops < 3 && from + hops > 3;
            let to = u16::try_from((from + hops) % 4 + 1).unwrap();
            net.send(from, to, 20, if crosses { lane } else { 0 });
        }
    }
    net
}

#[test]
fn a_ring_that_waits_for_itself_goes_on_after_the_life_time_at_the_head_and_counts_what_that_cost()
{
    let mut net = ring(0);
    net.run_for(US * 1000);
    let stuck = net.all_arrived();
    net.run_for(US * 3000);
    assert!(stuck < 240);
    assert_eq!(
        (net.all_arrived(), net.lost()),
        (stuck, 0),
        "before HOQLife"
    );
    net.run_for(Duration::from_secs(1));
    let lost = net.dropped(DropReason::HeadOfQueue);
    assert!(lost > 0);
    assert_eq!(net.all_arrived() as u64 + lost, 240);
    let ring = (0..4).map(|at| net.bench.port(net.edges[at].node.port(2)).counters);
    let (discards, waits) = ring.fold((0, 0), |(discards, waits), counters| {
        (
            discards + counters.xmit_discards,
            waits + counters.xmit_wait,
        )
    });
    assert_eq!(discards, lost);
    // Ticks of 4 ns.
    assert!(waits > 1_000_000, "{waits}");
}

#[test]
fn a_ring_with_two_lanes_loses_nothing() {
    let mut net = ring(1);
    net.run_for(US * 4000);
    assert_eq!((net.all_arrived(), net.lost()), (240, 0));
}

#[test]
fn a_multicast_packet_keeps_its_place_until_its_last_copy_has_left() {
    let slow = places(1, US * 10);
    let mut net = Net::star(3, |host| if host == 2 { slow } else { FAST });
    let tables = net.bench.fabric.slots[0].node_mut().tables_mut().unwrap();
    tables.info.multicast_fdb_top = Lid::new(0xc001);
    tables.set_multicast(1, 0, 0b1110);
    net.send(0, 0xc001, 20, 0);
    net.bench.run();
    // One copy is on the slow link, and four packets wait with theirs.
    assert_eq!((net.arrived(1).len(), net.arrived(2).len()), (5, 0));
    net.run_for(US * 201);
    assert_eq!((net.arrived(1).len(), net.arrived(2).len()), (20, 20));
    assert_eq!(net.lost(), 0);
}

#[test]
fn after_some_packets_that_lived_too_long_a_lane_discards_for_eight_times_as_long() {
    let mut net = Net::star(2, |host| if host == 1 { STUCK } else { FAST });
    let edge = net.edges[1];
    let port = net.bench.fabric.slots[0]
        .node_mut()
        .port_mut(edge.port)
        .unwrap();
    port.vl_stall_count = 2;
    let life = port.head_of_queue_life().unwrap();
    let dropped = |net: &Net| net.dropped(DropReason::HeadOfQueue);
    // Four are on the wire and four wait, two in the adapter.
    net.send(0, 2, 10, 0);
    net.run_for(life - US);
    assert_eq!(dropped(&net), 0);
    net.run_for(US);
    assert_eq!(dropped(&net), 1);
    net.run_for(life);
    assert_eq!(dropped(&net), 6, "the lane is stalled");
    net.run_for(life * 8 - US);
    net.send(0, 2, 3, 0);
    net.bench.run();
    assert_eq!(dropped(&net), 9);
    net.run_for(US);
    net.send(0, 2, 3, 0);
    net.bench.run();
    assert_eq!(dropped(&net), 9, "it is not any more");
    assert_eq!(net.bench.port(edge).counters.xmit_discards, 9);
}

#[test]
fn packets_wait_for_ever_where_life_at_the_head_has_no_end() {
    let mut net = Net::star(2, |host| if host == 1 { STUCK } else { FAST });
    let edge = net.edges[1];
    net.bench.fabric.slots[0]
        .node_mut()
        .port_mut(edge.port)
        .unwrap()
        .hoq_life = 20;
    net.send(0, 2, 10, 0);
    net.run_for(Duration::from_secs(3599));
    assert_eq!(net.lost(), 0);
    net.run_for(Duration::from_secs(7202));
    assert_eq!(net.arrived(1).len(), 10);
}

#[test]
fn what_waits_for_a_link_is_lost_with_it_and_its_places_are_free_again() {
    let mut net = Net::star(3, |host| if host == 1 { STUCK } else { FAST });
    net.send(0, 2, 8, 0);
    net.send(0, 3, 1, 0);
    net.bench.run();
    assert_eq!(net.arrived(2).len(), 0, "behind others in the adapter");
    let link = net.bench.fabric.link_at(net.edges[1]).unwrap();
    net.bench.fabric.set_link(link, LinkState::Down);
    net.bench.run();
    assert_eq!(
        (net.dropped(DropReason::LinkDown), net.arrived(2).len()),
        (4, 1)
    );
    assert_eq!(net.bench.port(net.edges[1]).counters.xmit_discards, 4);
}

#[derive(Clone, Debug)]
enum Step {
    Send {
        from: usize,
        to: u16,
        lane: u8,
    },
    Run(u64),
    /// Takes a cable out and plugs it in again.
    Flap(usize),
    Fault {
        at: usize,
        fault: Fault,
    },
    HoqLife(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let faults = vec![
        Fault::Drop,
        Fault::Duplicate,
        Fault::Delay(US * 3),
        Fault::CorruptOnWire { bits: 1 },
        Fault::Reorder {
            behind: 2,
            at_latest: US * 5,
        },
    ];
    let to = prop_oneof![4 => 1_u16..5, 1 => Just(0xc001)];
    prop_oneof![
        8 => (0_usize..4, to, 0_u8..2).prop_map(|(from, to, lane)| Step::Send { from, to, lane }),
        4 => (0_u64..20).prop_map(Step::Run),
        1 => (0_usize..8).prop_map(Step::Flap),
        2 => (0_usize..8, prop::sample::select(faults)).prop_map(|(at, fault)| Step::Fault { at, fault }),
        1 => (0_u8..6).prop_map(Step::HoqLife),
    ]
}

impl Net {
    fn do_step(&mut self, step: &Step) {
        match *step {
            Step::Send { from, to, lane } => self.send(from, to, 5, lane),
            Step::Run(us) => self.run_for(US * u32::try_from(us).unwrap()),
            Step::Flap(at) => {
                let link = self.bench.fabric.links().nth(at).unwrap();
                for state in [LinkState::Down, LinkState::Up] {
                    self.bench.fabric.set_link(link, state);
                }
                self.activate_ports();
            }
            Step::Fault { at, fault } => {
                let link = self.bench.fabric.links().nth(at).unwrap();
                let [from, _] = self.bench.fabric.link_ends(link).unwrap();
                let plan = FaultPlan::new(1).rule(PacketFilter::default(), When::Every(3), fault);
                self.bench.fabric.set_faults(from, Some(&plan));
            }
            Step::HoqLife(life) => {
                for slot in &mut self.bench.fabric.slots {
                    for port in slot.node_mut().ports_mut() {
                        port.hoq_life = life;
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_all_places_are_free_again_in_the_end(
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut net = ring(1);
        for at in 0..4 {
            let tables = net.bench.fabric.slots[at].node_mut().tables_mut().unwrap();
            tables.info.multicast_fdb_top = Lid::new(0xc001);
            tables.set_multicast(1, 0, if at == 3 { 0b1010 } else { 0b1110 });
        }
        for step in &steps {
            net.do_step(step);
        }
        net.run_for(Duration::from_secs(100));
        for link in &net.bench.fabric.links {
            prop_assert!(link.directions.iter().all(crate::link::Direction::is_empty));
        }
        for switch in 0..4 {
            let switch = net.bench.fabric.switch_mut(NodeId(switch)).unwrap();
            prop_assert_eq!(switch.holding.next_output(None), None);
        }
    }
}
