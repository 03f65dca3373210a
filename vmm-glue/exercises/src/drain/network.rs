//! Two hosts that share their adapters, and the guests that talk through them.

use std::collections::{BTreeMap, VecDeque};

use emulated_hca::{Adapters, Endpoint, FaultCounters, FaultPlan, LinkConfig, NodeId, Topology};
use hca_api::{
    Consumer, FunctionId, FunctionManager, GlobalRoute, Hca, HcaError, HcaEvent, HostMemory,
    ResourceCounts, SpecialQp,
};
use ib_endpoint::{MadAddress, MadTransport, Transmit};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::MgmtClass;
use ib_wire::{Gid, GidIndex, Guid, PortNum};
use pf_context::Sizes;
use pf_context::context::{PfConfig, PfPort, VfSpec};
use subnet_lite::SubnetConfig;
use vf_proxy::native::ProxyQp;
use vf_tunnel::{DropReason, VfId};

use super::DrainError;
use super::queries::PathQueries;
use crate::conversations::{Arrival, Channel, Kind, NodeAddress};
use vhca::Driven;
use vhca::world::{HostFunction, HostId, World};

const PORT: PortNum = PortNum(1);
/// MADs that fit into a guest's proxy QP1, each way.
const DEPTH: u32 = 512;
/// More than three links can take with every fault that holds a message.
const LONGEST_WAY: Duration = Duration::from_millis(20);
/// Time in which the subnet and all VFs should be up.
const START: Duration = Duration::from_secs(60);

/// A guest that talks by its proxy QP1.
#[derive(Debug)]
struct Guest {
    node: usize,
    proxy: ProxyQp,
    /// Whether the proxy may have something to take.
    is_ready: bool,
    /// What the QP had no room for.
    waiting: VecDeque<Transmit>,
    queries: PathQueries,
    arrived: VecDeque<Arrival>,
}

/// Two hosts with so many VFs each, behind two switches, and a third host that manages the subnet.
#[derive(Debug)]
pub(crate) struct Network {
    world: World,
    hosts: Vec<HostId>,
    /// The guests' functions and addresses: those of the first host, then those of the second.
    guests: Vec<(HostFunction, NodeAddress)>,
    /// The conversations' time 0 in the world's.
    origin: Instant,
    /// By then every message that was sent has arrived or is lost.
    quiet_from: Instant,
    arrived: VecDeque<Arrival>,
}

/// What is left over when all is quiet: nothing, unless something leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Leaks {
    /// Transactions.
    pub tids: usize,
    /// Communication ids.
    pub cm_ids: usize,
    /// Multicast groups, memberships and subscriptions.
    pub memberships: usize,
    /// Cached paths.
    pub paths: usize,
    /// Frames that wait.
    pub queued: usize,
    /// Queue pairs with a buffer that is not where it belongs.
    pub buffers: usize,
    /// Objects of adapters beyond those of the beginning.
    pub objects: usize,
}

impl Leaks {
    /// All together.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.tids
            + self.cm_ids
            + self.memberships
            + self.paths
            + self.queued
            + self.buffers
            + self.objects
    }

    const fn count(&mut self, sizes: &Sizes) {
        self.tids += sizes.tids;
        self.cm_ids += sizes.cm_ids;
        self.memberships += sizes.mcast_groups + sizes.mcast_members + sizes.subscriptions;
        self.paths += sizes.path_cache;
        self.queued += sizes.queued;
    }
}

impl Network {
    /// Brings the subnet and all VFs up.
    pub(crate) fn start(vfs: u16, config: &PfConfig) -> Result<Self, DrainError> {
        let mut plan = Topology::two_switches(2);
        plan.link = LinkConfig {
            latency: Duration::from_micros(5),
            timed: true,
            ..plan.link
        };
        let (fabric, built) = plan.build(config.secret);
        let mut world = World::new(fabric, config.secret);
        let manager = world.add_host(built.hcas[0])?;
        world.start_manager(manager.port(1), SubnetConfig::default())?;
        let mut this = Self {
            origin: world.now(),
            quiet_from: world.now(),
            world,
            hosts: Vec::new(),
            guests: Vec::new(),
            arrived: VecDeque::new(),
        };
        let mut secrets = config.secret.of(b"PF hosts").numbers();
        for node in &built.hcas[1..3] {
            let config = PfConfig {
                secret: secrets.secret(),
                ..config.clone()
            };
            this.add_host(*node, vfs, &config)?;
        }
        this.bring_up()?;
        for host in this.hosts.clone() {
            for vf in (1..=vfs).filter_map(VfId::new) {
                this.add_guest(host, vf)?;
            }
        }
        this.rebase();
        Ok(this)
    }

    fn add_host(&mut self, node: NodeId, vfs: u16, config: &PfConfig) -> Result<(), DrainError> {
        const MANY: u32 = 64;
        let host = self.world.add_pf_host(node, config)?;
        let number = self.hosts.len() as u64 + 1;
        for vf in (1..=vfs).filter_map(VfId::new) {
            let spec = VfSpec {
                node_guid: Guid::new(number << 16 | u64::from(vf.get())),
                memory: Box::new(HostMemory::new()),
                quota: ResourceCounts {
                    pds: MANY,
                    cqs: MANY,
                    qps: MANY,
                    mrs: MANY,
                    ..ResourceCounts::default()
                },
                ports: Vec::new(),
            };
            self.world.add_idle_vf(host, vf, spec)?;
        }
        self.hosts.push(host);
        Ok(())
    }

    /// Lets time pass until every VF's port is up.
    fn bring_up(&mut self) -> Result<(), DrainError> {
        let down = |world: &World| {
            self.hosts.iter().find_map(|host| {
                let context = world.context(*host);
                let port = context.ports().first()?;
                let mut reasons = context.vfs().filter_map(|vf| Some((vf, port.reason(vf)?)));
                reasons.find(|(_, reason)| !reason.is_up())
            })
        };
        self.world.run_until(START, |world| down(world).is_none());
        match down(&self.world) {
            Some((vf, reason)) => Err(DrainError::Down { vf, reason }),
            None => Ok(()),
        }
    }

    fn add_guest(&mut self, host: HostId, vf: VfId) -> Result<(), DrainError> {
        let port = &self.world.context(host).ports()[0];
        let view = port.own().view();
        let guid = port.mux().vf_guid(vf).unwrap_or(Guid::NONE);
        let (lid, prefix) = (view.lid, view.prefix);
        let node = self.guests.len();
        let (guest, ca_guid) = self.world.with_hca(host.vf(vf), |hca| {
            let guest = Guest {
                node,
                proxy: open_proxy(hca)?,
                is_ready: false,
                waiting: VecDeque::new(),
                queries: PathQueries::default(),
                arrived: VecDeque::new(),
            };
            Ok((guest, hca.attributes().node_guid))
        })?;
        let at = self.world.add_consumer(host, vf, Box::new(guest))?;
        let address = NodeAddress {
            ca_guid,
            lid,
            gid: Gid::from_parts(prefix, guid),
        };
        self.guests.push((at, address));
        Ok(())
    }

    /// Lets the conversations' time begin now.
    pub(super) fn rebase(&mut self) {
        self.origin = self.world.now();
        self.quiet_from = self.origin;
    }

    /// Where the guests are: those of the first host, then those of the second.
    pub(crate) fn places(&self) -> Vec<NodeAddress> {
        self.guests.iter().map(|(_, address)| *address).collect()
    }

    /// Has every direction of every link do to packets what a plan says.
    pub(super) fn set_faults(&mut self, plan: impl Fn(u64) -> FaultPlan) {
        let links: Vec<_> = self.world.fabric().links().collect();
        for (n, link) in (0..).zip(links) {
            for (m, end) in (0..).zip(self.world.fabric().link_ends(link).into_iter().flatten()) {
                let faults = plan(2 * n + m);
                self.world.fabric_mut().set_faults(end, Some(&faults));
            }
        }
    }

    /// What the faults of all links struck together.
    pub(super) fn faults(&self) -> FaultCounters {
        let fabric = self.world.fabric();
        let ends = fabric.links().filter_map(|link| fabric.link_ends(link));
        let mut sum = FaultCounters::default();
        for counters in ends
            .flatten()
            .map(|end: Endpoint| fabric.fault_counters(end))
        {
            sum.dropped += counters.dropped;
            sum.delayed += counters.delayed;
            sum.duplicated += counters.duplicated;
            sum.reordered += counters.reordered;
            sum.corrupted += counters.corrupted;
        }
        sum
    }

    /// Resets a guest's VF; the guest begins anew.
    pub(super) fn reset(&mut self, node: usize) -> Result<(), DrainError> {
        let (at, _) = self.guests[node];
        if let Some(vf) = VfId::new(at.function.0) {
            self.world.reset_vf(at.host, vf)?;
        }
        let begun = self.with_guest(node, |guest, hca| {
            while hca.poll_event().is_some() {}
            guest.proxy = open_proxy(hca)?;
            guest.is_ready = false;
            guest.waiting.clear();
            guest.arrived.clear();
            guest.queries.forget();
            Ok(())
        });
        self.arrived.retain(|arrival| arrival.node != node);
        begun.unwrap_or(Ok(()))
    }

    fn guest(&self, node: usize) -> Option<&Guest> {
        self.world.consumer(self.guests[node].0)
    }

    fn with_guest<T>(
        &mut self,
        node: usize,
        call: impl FnOnce(&mut Guest, &mut dyn Hca) -> T,
    ) -> Option<T> {
        let (at, _) = self.guests[node];
        self.world
            .with_consumer(at, |guest: &mut Guest, hca, _| call(guest, hca))
    }

    /// Has a guest ask the SA for the path to another.
    pub(super) fn ask_path(&mut self, now: Instant, node: usize, to: usize) {
        let at = self.in_world(now);
        let ((from, own), (_, other)) = (self.guests[node], self.guests[to]);
        let port = &self.world.context(from.host).ports()[0];
        let sm = port.own().view().sm_lid;
        if let Some(guest) = self.world.consumer_mut::<Guest>(from) {
            let mad = guest.queries.ask(at, own.gid, other.gid);
            let to = MadAddress::gsi(sm);
            self.send(now, node, &Transmit { to, mad });
        }
    }

    /// Path queries that were asked, and answered rightly and wrongly.
    pub(super) fn queries(&self) -> (u64, u64, u64) {
        let guests = (0..self.guests.len()).filter_map(|node| self.guest(node));
        guests.fold((0, 0, 0), |sum, guest| {
            let of = guest.queries.counts();
            (sum.0 + of.0, sum.1 + of.1, sum.2 + of.2)
        })
    }

    /// Frames that the PFs dropped, by reason.
    pub(crate) fn drops(&self) -> BTreeMap<&'static str, u64> {
        let mut drops = BTreeMap::new();
        for host in &self.hosts {
            let context = self.world.context(*host);
            for port in context.ports() {
                let tenants = context.vfs().chain([VfId::PF]);
                let tenants = tenants.filter_map(|vf| port.mux().vf_statistics(vf));
                for counted in tenants.chain([port.mux().port_statistics()]) {
                    for reason in DropReason::ALL {
                        let count = counted.drops(*reason);
                        if count > 0 {
                            *drops.entry(reason.as_str()).or_default() += count;
                        }
                    }
                }
            }
        }
        drops
    }

    /// Live objects in the tables of both hosts.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = Sizes> {
        self.ports().map(|port| port.mux().sizes())
    }

    fn ports(&self) -> impl Iterator<Item = &PfPort> {
        let hosts = self.hosts.iter();
        hosts.flat_map(|host| self.world.context(*host).ports())
    }

    /// Lets time pass, and gives what is left over then.
    pub(super) fn settle(&mut self, time: Duration) -> Result<Leaks, DrainError> {
        self.world.run_for(time);
        let mut leaks = Leaks::default();
        for sizes in self.sizes() {
            leaks.count(&sizes);
        }
        leaks.buffers += self.ports().filter(|port| !port.is_at_rest()).count();
        for node in 0..self.guests.len() {
            let at_rest = |guest: &Guest| guest.proxy.is_at_rest();
            leaks.buffers += usize::from(!self.guest(node).is_some_and(at_rest));
            leaks.objects += self.objects(node)?;
        }
        Ok(leaks)
    }

    /// Objects that a guest has beyond a proxy QP with what belongs to it.
    fn objects(&mut self, node: usize) -> Result<usize, DrainError> {
        let (at, _) = self.guests[node];
        let of_host = self.world.host(at.host).node();
        let pf = self.world.fabric_mut().hca(of_host, FunctionId::PF);
        let pf = pf.ok_or(HcaError::InvalidHandle)?;
        let owned = pf.resources(at.function)?;
        let beyond = |count: u32| usize::try_from(count.saturating_sub(1)).unwrap_or(usize::MAX);
        let counts = [owned.pds, owned.cqs, owned.qps, owned.mrs];
        Ok(counts.into_iter().map(beyond).sum())
    }

    fn in_world(&self, now: Instant) -> Instant {
        self.origin + now.saturating_duration_since(Instant::ZERO)
    }

    /// Lets everything happen that is due at a time of the world's.
    fn run(&mut self, at: Instant) {
        self.world.poll(at);
        for node in 0..self.guests.len() {
            // To use a guest has it polled.
            if self
                .guest(node)
                .is_none_or(|guest| guest.arrived.is_empty())
            {
                continue;
            }
            let guest = self.world.consumer_mut::<Guest>(self.guests[node].0);
            self.arrived
                .extend(guest.into_iter().flat_map(|guest| guest.arrived.drain(..)));
        }
    }
}

impl Consumer for Guest {
    fn handle_hca_event(&mut self, _: Instant, _: &mut dyn Hca, event: &HcaEvent) {
        self.is_ready |= matches!(event, HcaEvent::Completion(_));
    }

    fn poll(&mut self, _: Instant, hca: &mut dyn Hca) -> bool {
        if !self.is_ready {
            return false;
        }
        while let Some((from, mad)) = self.proxy.poll(hca) {
            if mad.header.mgmt_class == MgmtClass::SUBN_ADM {
                self.queries.hear(&mad);
            } else {
                let node = self.node;
                self.arrived.push_back(Arrival { node, from, mad });
            }
        }
        self.send(hca);
        self.is_ready = self.proxy.arm(hca);
        self.is_ready
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

impl Guest {
    /// Sends what waits, as far as there is room.
    fn send(&mut self, hca: &mut dyn Hca) {
        while self.proxy.can_send()
            && let Some(transmit) = self.waiting.pop_front()
        {
            // A refused send is lost like any packet.
            let _ = self.proxy.send(hca, &transmit.to, &transmit.mad);
        }
    }
}

impl Channel for Network {
    /// With a global route where the PF cannot tell otherwise whose a request is, and for every other
    /// connection.
    fn address(&self, number: usize, kind: Kind, to: &NodeAddress) -> MadAddress {
        let route = GlobalRoute {
            remote_gid: to.gid,
            sgid_index: GidIndex(0),
            flow_label: 0,
            hop_limit: 1,
            traffic_class: 0,
        };
        let grh = (kind == Kind::Sidr || number.is_multiple_of(2)).then_some(route);
        MadAddress {
            grh,
            ..MadAddress::gsi(to.lid)
        }
    }

    fn send(&mut self, now: Instant, node: usize, transmit: &Transmit) {
        self.quiet_from = self.in_world(now) + LONGEST_WAY;
        self.with_guest(node, |guest, hca| {
            guest.waiting.push_back(*transmit);
            guest.send(hca);
        });
    }

    fn next_time(&self) -> Option<Instant> {
        let at = self.world.poll_timeout()?.max(self.world.now());
        (at < self.quiet_from).then(|| Instant::ZERO + at.saturating_duration_since(self.origin))
    }

    fn receive(&mut self, now: Instant) -> Option<Arrival> {
        if self.arrived.is_empty() {
            self.run(self.in_world(now));
        }
        self.arrived.pop_front()
    }
}

fn open_proxy(hca: &mut dyn Hca) -> Result<ProxyQp, HcaError> {
    let proxy = ProxyQp::open(hca, SpecialQp::Gsi, PORT, DEPTH)?;
    proxy.arm(hca);
    Ok(proxy)
}
