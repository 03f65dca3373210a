//! An emulated fabric as the channel: real QP1s, switches, and links with a fault plan each.

use std::collections::VecDeque;
use std::time::Duration;

use emulated_hca::{
    Adapters, Endpoint, Fault, FaultCounters, FaultPlan, LinkConfig, NodeId, PacketFilter,
    Topology, When,
};
use hca_api::{FunctionId, Hca, ResourceCounts, SpecialQp};
use ib_endpoint::{MadQp, Transmit};
use ib_vtime::Instant;
use ib_wire::mad::MgmtClass;
use ib_wire::{Gid, GidIndex, PortNum};
use subnet_lite::SubnetConfig;
use vhca::world::{Outcome, World};

use vhca_exercises::conversations::{Arrival, Channel, NodeAddress};

const PORT: PortNum = PortNum(1);
/// MADs that fit into a node's QP1, each way.
const DEPTH: u32 = 256;
/// More than three links can take, with every fault that holds a message.
const LONGEST_WAY: Duration = Duration::from_millis(20);

/// A host whose QP1 belongs to the channel.
#[derive(Debug)]
struct Station {
    node: NodeId,
    qp: MadQp,
    address: NodeAddress,
    /// What the QP had no room for.
    waiting: VecDeque<Transmit>,
}

/// Six hosts behind two switches with two links between them; the first host brought the subnet up,
/// the others talk.
#[derive(Debug)]
pub struct FabricChannel {
    world: World,
    stations: Vec<Station>,
    /// The channel's time 0 in the world's.
    origin: Instant,
    /// By then every message that was sent has arrived or is lost. Afterwards the fabric only has
    /// its own affairs, such as traps to the subnet manager that is gone.
    quiet_from: Instant,
    arrived: VecDeque<Arrival>,
}

impl FabricChannel {
    /// Brings a subnet up, and then makes every link lose, repeat, delay and reorder CM messages. A
    /// way has up to three links: about one message in nine is lost.
    ///
    /// # Panics
    ///
    /// If the subnet does not come up.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut plan = Topology::two_switches(3);
        plan.link = LinkConfig {
            latency: Duration::from_micros(5),
            timed: true,
            ..plan.link
        };
        let (fabric, built) = plan.build(seed);
        let mut world = World::new(fabric, seed);
        let manager = world
            .add_host(built.hcas[0])
            .expect("the management host starts");
        world
            .start_manager(manager.port(1), SubnetConfig::default())
            .expect("the subnet manager starts");
        let all_active = |world: &mut World| {
            let active = |node: &NodeId| {
                let port = world.fabric().port(node.port(1));
                port.is_some_and(|port| port.state == hca_api::PortState::Active)
            };
            built.hcas.iter().all(active)
        };
        let outcome = world.run_until(Duration::from_secs(10), all_active);
        assert_eq!(outcome, Outcome::Reached, "the subnet comes up");
        world
            .stop_manager(manager)
            .expect("the subnet manager stops");

        let stations = built.hcas[1..]
            .iter()
            .map(|&node| Station::open(&mut world, node))
            .collect();
        let links: Vec<_> = world.fabric().links().collect();
        for (n, link) in (1..).zip(links) {
            for (m, end) in (0..).zip(world.fabric().link_ends(link).into_iter().flatten()) {
                let seed = seed.wrapping_mul(1000) + 2 * n + m;
                world.fabric_mut().set_faults(end, Some(&bad_weather(seed)));
            }
        }
        let origin = world.now();
        Self {
            world,
            stations,
            origin,
            quiet_from: origin,
            arrived: VecDeque::new(),
        }
    }

    /// The places of the hosts that talk.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeAddress> {
        self.stations
            .iter()
            .map(|station| station.address)
            .collect()
    }

    /// What the faults of all links struck together.
    #[must_use]
    pub fn faults(&self) -> FaultCounters {
        let mut sum = FaultCounters::default();
        let fabric = self.world.fabric();
        let ends = fabric
            .links()
            .filter_map(|link| fabric.link_ends(link))
            .flatten();
        for counters in ends.map(|end: Endpoint| fabric.fault_counters(end)) {
            sum.dropped += counters.dropped;
            sum.delayed += counters.delayed;
            sum.duplicated += counters.duplicated;
            sum.reordered += counters.reordered;
            sum.corrupted += counters.corrupted;
        }
        sum
    }

    /// Closes all QPs. Gives what is left of each host's resources: nothing, unless something leaks.
    #[must_use]
    pub fn close(mut self) -> Vec<ResourceCounts> {
        let mut left = Vec::new();
        for station in std::mem::take(&mut self.stations) {
            let mut hca = self
                .world
                .fabric_mut()
                .hca(station.node, FunctionId::PF)
                .expect("a host has its adapter");
            station.qp.close(&mut hca);
            left.push(
                hca_api::FunctionManager::resources(&hca, FunctionId::PF)
                    .expect("the physical function counts its own"),
            );
        }
        left
    }

    fn in_world(&self, now: Instant) -> Instant {
        self.origin + now.saturating_duration_since(Instant::ZERO)
    }
}

/// What goes wrong in one direction of one link. No message is held for more than a millisecond.
fn bad_weather(seed: u64) -> FaultPlan {
    let cm = PacketFilter {
        class: Some(MgmtClass::COM_MGT),
        ..PacketFilter::default()
    };
    let (short, long) = (Duration::from_micros(300), Duration::from_millis(1));
    FaultPlan::new(seed)
        .rule(cm, When::PerMillion(30_000), Fault::Drop)
        .rule(
            cm,
            When::PerMillion(4_000),
            Fault::CorruptOnWire { bits: 3 },
        )
        .rule(
            cm,
            When::PerMillion(4_000),
            Fault::CorruptInside { bits: 3 },
        )
        .rule(cm, When::PerMillion(50_000), Fault::Duplicate)
        .rule(
            cm,
            When::PerMillion(50_000),
            Fault::Reorder {
                behind: 2,
                at_latest: long,
            },
        )
        .rule(cm, When::PerMillion(100_000), Fault::Delay(short))
}

impl Station {
    fn open(world: &mut World, node: NodeId) -> Self {
        let lid = world
            .fabric()
            .port(node.port(1))
            .expect("a host has a port")
            .lid;
        let mut hca = world
            .fabric_mut()
            .hca(node, FunctionId::PF)
            .expect("a host has its adapter");
        let gid: Gid = hca.query_gid(PORT, GidIndex(0)).expect("a port has a GID");
        let qp = MadQp::open(&mut hca, SpecialQp::Gsi, PORT, DEPTH).expect("QP1 is free");
        let ca_guid = hca.attributes().node_guid;
        let address = NodeAddress { ca_guid, lid, gid };
        Self {
            node,
            qp,
            address,
            waiting: VecDeque::new(),
        }
    }

    /// Sends what waits, as far as there is room.
    fn send(&mut self, hca: &mut dyn Hca) {
        while self.qp.can_send()
            && let Some(transmit) = self.waiting.pop_front()
        {
            self.qp
                .send(hca, &transmit.to, &transmit.mad)
                .expect("a MAD can be sent");
        }
    }
}

impl Channel for FabricChannel {
    fn send(&mut self, now: Instant, node: usize, transmit: &Transmit) {
        self.quiet_from = self.in_world(now) + LONGEST_WAY;
        let station = &mut self.stations[node];
        station.waiting.push_back(*transmit);
        if let Some(mut hca) = self.world.fabric_mut().hca(station.node, FunctionId::PF) {
            station.send(&mut hca);
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let at = self.world.fabric().poll_timeout()?;
        (at < self.quiet_from).then(|| Instant::ZERO + at.saturating_duration_since(self.origin))
    }

    fn receive(&mut self, now: Instant) -> Option<Arrival> {
        let at = self.in_world(now);
        if self.arrived.is_empty() {
            let fabric = self.world.fabric_mut();
            while fabric.poll(at) {}
            for (node, station) in self.stations.iter_mut().enumerate() {
                if let Some(mut hca) = fabric.hca(station.node, FunctionId::PF) {
                    while let Some((from, mad)) = station.qp.poll(&mut hca) {
                        self.arrived.push_back(Arrival { node, from, mad });
                    }
                    station.send(&mut hca);
                }
            }
            // The fabric takes adapters that were lent out for busy until it has looked at them.
            while fabric.poll(at) {}
        }
        self.arrived.pop_front()
    }
}
