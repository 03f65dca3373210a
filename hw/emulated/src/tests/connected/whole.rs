//! Runs that go whole, against the same requests in packets.

use hca_api::FunctionId;
use proptest::prelude::*;

use super::*;
use crate::hca::Way;
use crate::{DropReason, LinkState, PortCounters, TapPoint};

/// Bytes of a third of a region: what an end sends, what it writes into its peer's, what it reads.
const THIRD: usize = 1 << 16;
const LONGEST: u32 = 40_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize, usize, u32),
    WriteImmediate(usize, usize, u32),
    Read(usize, usize, u32),
    Send(usize, usize, u32),
    /// A send that may find no receive for a while.
    Unmet(usize, u32),
    Add(usize, usize, u64),
    /// A write with a key that the peer does not have.
    Stray(u32),
    /// A send that is longer than its receive.
    TooLong(usize, u32),
    /// Runs the fabric until nothing is left to do now, or for as many milliseconds.
    Pass,
    Wait(u64),
}

/// A change of what lies between the ends.
#[derive(Clone, Copy, Debug)]
enum Change {
    Tap,
    NoTap,
    /// Faults that lose nothing.
    Plan,
    NoPlan,
    /// The link between the switches goes down for some milliseconds.
    Flap(u64),
}

fn step(kind: QpKind) -> impl Strategy<Value = (bool, Step)> {
    let place = || {
        let at = 0..THIRD - LONGEST as usize;
        (at.clone(), at, prop_oneof![0..100_u32, 0..LONGEST])
    };
    let reliable = u32::from(kind == QpKind::Rc);
    let step = prop_oneof![
        3 => place().prop_map(|(from, to, len)| Step::Write(from, to, len)),
        2 => place().prop_map(|(from, to, len)| Step::WriteImmediate(from, to, len)),
        3 => place().prop_map(|(from, to, len)| Step::Send(from, to, len)),
        4 => Just(Step::Pass),
        1 => (1..4_u64).prop_map(Step::Wait),
        3 * reliable => place().prop_map(|(from, to, len)| Step::Read(from, to, len)),
        reliable => place().prop_map(|(from, _, len)| Step::Unmet(from, len)),
        2 * reliable => (0..100_usize, 0..THIRD / 8, any::<u64>())
            .prop_map(|(at, to, add)| Step::Add(at * 8, to * 8, add)),
    ];
    (any::<bool>(), step)
}

/// A step after which the connection is in ERR, or none.
fn end() -> impl Strategy<Value = Option<(bool, Step)>> {
    let step = prop_oneof![
        (1..LONGEST).prop_map(Step::Stray),
        (0..THIRD - LONGEST as usize, 2000..LONGEST)
            .prop_map(|(from, len)| Step::TooLong(from, len)),
    ];
    prop::option::weighted(0.3, (any::<bool>(), step))
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![Just(Place::TwoAdapters), Just(Place::OneAdapter)]
}

fn change() -> impl Strategy<Value = Option<Change>> {
    let change = prop_oneof![
        Just(Change::Tap),
        Just(Change::NoTap),
        Just(Change::Plan),
        Just(Change::NoPlan),
        (0..3_u64).prop_map(Change::Flap),
    ];
    prop::option::weighted(0.3, change)
}

/// Everything that the programs at both ends see, but for the order of sends among receives.
#[derive(Debug, PartialEq)]
struct Seen {
    sent: [Vec<Completion>; 2],
    received: [Vec<Completion>; 2],
    memory: [Vec<u8>; 2],
    events: [Vec<HcaEvent>; 2],
    states: [QpState; 2],
}

/// Counters that an operator sees.
#[derive(Debug, PartialEq)]
struct Counted {
    /// Of every port, less the acknowledgements, whose number is free.
    ports: Vec<PortCounters>,
    drops: Vec<(NodeId, Option<FunctionId>, DropReason, u64)>,
    psns: [(Psn, Psn); 2],
    bytes: [(u64, u64); 2],
}

/// Adapters of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    TwoAdapters,
    OneAdapter,
}

struct Play {
    rig: Rig,
    ends: [End; 2],
    posted: [u64; 2],
    taps: Vec<crate::TapId>,
    /// Runs that went whole, as far as the ways tell.
    went_whole: bool,
}

impl Play {
    fn new(kind: QpKind, place: Place, whole: bool) -> Self {
        let mut rig = Rig::new();
        rig.fabric.set_whole_runs(whole);
        let peer = match place {
            Place::TwoAdapters => 1,
            Place::OneAdapter => 0,
        };
        let ends = [rig.end(0, kind), rig.end(peer, kind)];
        let reliable = kind == QpKind::Rc;
        rig.open(&ends[0], &ends[1], reliable);
        rig.open(&ends[1], &ends[0], reliable);
        for (seed, end) in (0..).zip(&ends) {
            rig.write(end, 0, &pattern(THIRD, seed));
        }
        Self {
            rig,
            ends,
            posted: [0; 2],
            taps: Vec::new(),
            went_whole: false,
        }
    }

    fn step(&mut self, side: bool, step: Step) {
        let own = usize::from(side);
        let (end, peer) = (self.ends[own], self.ends[1 - own]);
        let wr_id = self.posted[own];
        self.posted[own] += 1;
        let rig = &mut self.rig;
        let (op, sge) = match step {
            Step::Write(from, to, len) => (
                SendOp::RdmaWrite(peer.remote(THIRD + to)),
                end.sge(from, len),
            ),
            Step::WriteImmediate(from, to, len) => {
                rig.receive(&peer, 1000 + wr_id, peer.sge(0, 0));
                let op = SendOp::RdmaWriteImmediate(peer.remote(THIRD + to), 7);
                (op, end.sge(from, len))
            }
            Step::Read(from, to, len) => (
                SendOp::RdmaRead(peer.remote(from)),
                end.sge(2 * THIRD + to, len),
            ),
            Step::Send(from, to, len) => {
                rig.receive(&peer, 1000 + wr_id, peer.sge(THIRD + to, LONGEST));
                (SendOp::Send, end.sge(from, len))
            }
            Step::Unmet(from, len) => {
                rig.post(&end, wr_id, SendOp::Send, end.sge(from, len))
                    .unwrap();
                rig.run(1);
                rig.receive(&peer, 1000 + wr_id, peer.sge(THIRD, LONGEST));
                return;
            }
            Step::Add(at, to, add) => {
                let remote = peer.remote(THIRD + to);
                (SendOp::FetchAdd { remote, add }, end.sge(2 * THIRD + at, 8))
            }
            Step::Stray(len) => {
                let mut remote = peer.remote(THIRD);
                remote.rkey = RKey(!remote.rkey.0);
                (SendOp::RdmaWrite(remote), end.sge(0, len))
            }
            Step::TooLong(from, len) => {
                rig.receive(&peer, 1000 + wr_id, peer.sge(THIRD, 1999));
                (SendOp::Send, end.sge(from, len))
            }
            Step::Pass => return rig.run(0),
            Step::Wait(millis) => return rig.run(millis),
        };
        rig.post(&end, wr_id, op, sge).unwrap();
    }

    fn change(&mut self, change: Change) {
        let fabric = &mut self.rig.fabric;
        match change {
            Change::Tap => self.taps.push(fabric.add_tap(TapPoint::Everything)),
            Change::NoTap => {
                if let Some(tap) = self.taps.pop() {
                    fabric.remove_tap(tap);
                }
            }
            Change::Plan => {
                fabric.set_faults(self.rig.hosts[0].port(1), Some(&FaultPlan::new(1)));
            }
            Change::NoPlan => fabric.set_faults(self.rig.hosts[0].port(1), None),
            Change::Flap(millis) => {
                let near = fabric.peer(self.rig.hosts[0].port(1)).unwrap();
                let between = near.node.port(7);
                let link = fabric.link_at(between).unwrap();
                fabric.set_link(link, LinkState::Down);
                self.rig.run(millis);
                let fabric = &mut self.rig.fabric;
                fabric.set_link(link, LinkState::Up);
                for end in fabric.link_ends(link).unwrap() {
                    activate(fabric, end);
                }
                // Retries are finite.
                self.rig.run(20);
            }
        }
    }

    fn note_ways(&mut self) {
        for host in self.rig.hosts {
            let device = self.rig.fabric.device(host).unwrap();
            self.went_whole |= device.queue_pairs().any(|qp| qp.way == Some(Way::Whole));
        }
    }

    fn end(mut self) -> (Seen, Counted, bool) {
        self.rig.run(5000);
        self.note_ways();
        let rig = &mut self.rig;
        let ends = self.ends;
        let done = ends.each_ref().map(|end| {
            let done = rig.done(end);
            let is_receive = |done: &Completion| {
                matches!(done.op, CompletionOp::Recv | CompletionOp::RecvRdmaImm)
            };
            done.into_iter()
                .partition::<Vec<_>, _>(|done| !is_receive(done))
        });
        let [(sent0, received0), (sent1, received1)] = done;
        let fabric = &rig.fabric;
        let nodes: Vec<_> = fabric.nodes().map(|(id, _)| id).collect();
        let ports = nodes
            .iter()
            .flat_map(|id| fabric.node(*id).unwrap().ports());
        let ports = ports
            .map(|port| less_acknowledgements(port.counters))
            .collect();
        for link in fabric.links() {
            let ends = fabric.link_ends(link).unwrap();
            let [near, far] = ends.map(|end| fabric.port(end).unwrap().counters);
            assert_eq!(
                (near.xmit_data, near.xmit_packets, near.unicast_xmit_packets),
                (far.rcv_data, far.rcv_packets, far.unicast_rcv_packets)
            );
        }
        let drops = nodes.iter().flat_map(|id| {
            let drops = fabric.node(*id).unwrap().drops().iter();
            drops
                .map(move |(_, function, reason, dropped)| (*id, function, reason, dropped.packets))
        });
        let drops = drops.collect();
        let attributes = ends
            .each_ref()
            .map(|end| rig.hca(end.host).query_qp(end.qp).unwrap());
        let bytes = rig.hosts.map(|host| {
            let device = rig.fabric.device(host).unwrap();
            let (_, counted) = device.connection_counters().next().unwrap();
            (counted.sent_bytes, counted.received_bytes)
        });
        let counted = Counted {
            ports,
            drops,
            psns: attributes.map(|qp| (qp.sq_psn, qp.rq_psn)),
            bytes,
        };
        let seen = Seen {
            sent: [sent0, sent1],
            received: [received0, received1],
            memory: ends.each_ref().map(|end| rig.read(end, 0, 3 * THIRD)),
            events: ends.each_ref().map(|end| rig.events(end)),
            states: attributes.map(|qp| qp.state),
        };
        (seen, counted, self.went_whole)
    }
}

/// Counts words by which packets are longer than acknowledgements, and no packets.
fn less_acknowledgements(counters: PortCounters) -> PortCounters {
    // LRH, BTH, AETH and ICRC.
    const ACKNOWLEDGEMENT: u64 = 7;

    PortCounters {
        xmit_data: (counters.xmit_data).wrapping_sub(ACKNOWLEDGEMENT * counters.xmit_packets),
        rcv_data: (counters.rcv_data).wrapping_sub(ACKNOWLEDGEMENT * counters.rcv_packets),
        xmit_packets: 0,
        rcv_packets: 0,
        unicast_xmit_packets: 0,
        unicast_rcv_packets: 0,
        ..counters
    }
}

fn play(
    kind: QpKind,
    place: Place,
    whole: bool,
    steps: &[(bool, Step)],
    changes: &[Option<Change>],
) -> (Seen, Counted, bool) {
    let mut play = Play::new(kind, place, whole);
    for (at, (side, step)) in steps.iter().enumerate() {
        if let Some(change) = changes.get(at).copied().flatten() {
            play.change(change);
        }
        play.step(*side, *step);
        play.note_ways();
    }
    play.end()
}

fn sequence(kind: QpKind) -> impl Strategy<Value = Vec<(bool, Step)>> {
    let steps = prop::collection::vec(step(kind), 1..40);
    (steps, end()).prop_map(|(mut steps, end)| {
        if let Some(end) = end {
            // What is under way when a connection fails is lost or not, as time will have it.
            steps.extend([(false, Step::Wait(100)), end]);
        }
        steps
    })
}

#[test]
fn adapters_behind_two_switches_reach_each_other_whole_until_a_tap_is_in_the_way() {
    let steps = [(false, Step::Write(0, 0, 40_000)), (false, Step::Pass)];
    let (.., went_whole) = play(QpKind::Rc, Place::TwoAdapters, true, &steps, &[]);
    assert!(went_whole);
    let (.., went_whole) = play(
        QpKind::Rc,
        Place::TwoAdapters,
        true,
        &steps,
        &[Some(Change::Tap)],
    );
    assert!(!went_whole);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The same requests have the same completions, memory, events, PSNs and counters.
    #[test]
    fn packets_and_whole_runs_of_rc_have_the_same_outcome(
        steps in sequence(QpKind::Rc),
        place in place(),
    ) {
        let (seen, counted, _) = play(QpKind::Rc, place, true, &steps, &[]);
        let (in_packets, counted_in_packets, whole) = play(QpKind::Rc, place, false, &steps, &[]);
        prop_assert!(!whole);
        prop_assert_eq!(seen, in_packets);
        prop_assert_eq!(counted.psns, counted_in_packets.psns);
        // How many packets leave before a NAK comes is free.
        let is_refused = |step: &Step| match step {
            Step::Unmet(..) => true,
            Step::Stray(_) | Step::TooLong(..) => place == Place::OneAdapter,
            _ => false,
        };
        if !steps.iter().any(|(_, step)| is_refused(step)) {
            prop_assert_eq!(counted, counted_in_packets);
        }
    }

    #[test]
    fn packets_and_whole_runs_of_uc_have_the_same_outcome(
        steps in sequence(QpKind::Uc),
        place in place(),
    ) {
        let (seen, counted, _) = play(QpKind::Uc, place, true, &steps, &[]);
        let (in_packets, counted_in_packets, whole) = play(QpKind::Uc, place, false, &steps, &[]);
        prop_assert!(!whole);
        prop_assert_eq!(seen, in_packets);
        prop_assert_eq!(counted, counted_in_packets);
    }

    /// A tap, a fault plan or a link that goes down and comes back changes nothing that a program sees.
    #[test]
    fn a_change_in_mid_stream_is_not_seen_by_programs(
        steps in prop::collection::vec(step(QpKind::Rc), 1..40),
        changes in prop::collection::vec(change(), 40),
    ) {
        let (seen, _, _) = play(QpKind::Rc, Place::TwoAdapters, true, &steps, &changes);
        let (in_packets, _, _) = play(QpKind::Rc, Place::TwoAdapters, false, &steps, &[]);
        prop_assert_eq!(seen, in_packets);
    }
}
