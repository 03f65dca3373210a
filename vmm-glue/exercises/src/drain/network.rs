//! Two hosts that share their adapters, and the guests that talk through them.

use std::collections::{BTreeMap, VecDeque};

use emulated_hca::hca::Function;
use emulated_hca::{Endpoint, FaultCounters, FaultPlan, LinkConfig, NodeId, Topology};
use hca_api::{
    FunctionId, GlobalRoute, Hca, HcaError, HcaEvent, HostMemory, ResourceCounts, SpecialQp,
};
use ib_endpoint::{MadAddress, MadTransport, Transmit};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::MgmtClass;
use ib_wire::{Gid, GidIndex, Guid, PortNum};
use pf_context::context::{PfConfig, PfEvent, VfSpec};
use pf_context::{PfContext, Sizes};
use subnet_lite::SubnetConfig;
use vf_proxy::native::ProxyQp;
use vf_tunnel::VfId;

use super::DrainError;
use super::queries::PathQueries;
use crate::conversations::{Arrival, Channel, Kind, NodeAddress};
use vhca::Driven;
use vhca::world::World;

const PORT: PortNum = PortNum(1);
/// MADs that fit into a guest's proxy QP1, each way.
const DEPTH: u32 = 512;
/// More than three links can take with every fault that holds a message.
const LONGEST_WAY: Duration = Duration::from_millis(20);
/// Time in which the subnet and all VFs should be up.
const START: Duration = Duration::from_secs(60);

/// A host whose adapter is shared.
#[derive(Debug)]
struct Host {
    node: NodeId,
    pf: PfContext,
}

/// A guest that talks by its proxy QP1.
#[derive(Debug)]
struct Guest {
    host: usize,
    vf: VfId,
    proxy: ProxyQp,
    address: NodeAddress,
    /// What the QP had no room for.
    waiting: VecDeque<Transmit>,
    queries: PathQueries,
}

/// Two hosts with so many VFs each, behind two switches, and a third host that manages the subnet.
#[derive(Debug)]
pub(crate) struct Network {
    world: World,
    hosts: Vec<Host>,
    guests: Vec<Guest>,
    /// The conversations' time 0 in the world's.
    origin: Instant,
    /// By then every message that was sent has arrived or is lost.
    quiet_from: Instant,
    arrived: VecDeque<Arrival>,
    /// Frames that the PFs dropped, by reason.
    drops: BTreeMap<&'static str, u64>,
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
        let (fabric, built) = plan.build(config.seed);
        let mut world = World::new(fabric, config.seed);
        let manager = world.add_host(built.hcas[0])?;
        world.start_manager(manager.port(1), SubnetConfig::default())?;
        let mut this = Self {
            origin: world.now(),
            quiet_from: world.now(),
            world,
            hosts: Vec::new(),
            guests: Vec::new(),
            arrived: VecDeque::new(),
            drops: BTreeMap::new(),
        };
        for (at, node) in (1..).zip(&built.hcas[1..3]) {
            let seed = config.seed.wrapping_add(at);
            this.add_host(
                *node,
                vfs,
                &PfConfig {
                    seed,
                    ..config.clone()
                },
            )?;
        }
        this.bring_up()?;
        for host in 0..this.hosts.len() {
            for vf in (1..=vfs).filter_map(VfId::new) {
                this.add_guest(host, vf)?;
            }
        }
        this.rebase();
        Ok(this)
    }

    fn add_host(&mut self, node: NodeId, vfs: u16, config: &PfConfig) -> Result<(), DrainError> {
        const MANY: u32 = 64;
        let now = self.world.now();
        let mut hca = adapter(&mut self.world, node, FunctionId::PF)?;
        let mut pf = PfContext::open(now, &mut hca, config)?;
        for vf in (1..=vfs).filter_map(VfId::new) {
            let spec = VfSpec {
                node_guid: Guid::new(config.seed << 16 | u64::from(vf.get())),
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
            pf.add_vf(now, &mut hca, vf, spec)?;
        }
        self.hosts.push(Host { node, pf });
        Ok(())
    }

    /// Lets time pass until every VF's port is up.
    fn bring_up(&mut self) -> Result<(), DrainError> {
        let end = self.world.now() + START;
        loop {
            let now = self.world.now();
            self.run(now);
            let down = self.hosts.iter().find_map(|host| {
                let port = host.pf.ports().first()?;
                let mut reasons = host.pf.vfs().filter_map(|vf| Some((vf, port.reason(vf)?)));
                reasons.find(|(_, reason)| !reason.is_up())
            });
            let Some((vf, reason)) = down else {
                return Ok(());
            };
            let next = self.next_due().filter(|next| *next <= end);
            let Some(next) = next else {
                return Err(DrainError::Down { vf, reason });
            };
            self.run(next.max(now));
        }
    }

    fn add_guest(&mut self, host: usize, vf: VfId) -> Result<(), DrainError> {
        let Host { node, pf } = &self.hosts[host];
        let port = &pf.ports()[0];
        let view = port.own().view();
        let guid = port.mux().vf_guid(vf).unwrap_or(Guid::NONE);
        let (lid, prefix) = (view.lid, view.prefix);
        let mut hca = adapter(&mut self.world, *node, vf.into())?;
        let address = NodeAddress {
            ca_guid: hca.attributes().node_guid,
            lid,
            gid: Gid::from_parts(prefix, guid),
        };
        self.guests.push(Guest {
            host,
            vf,
            proxy: open_proxy(&mut hca)?,
            address,
            waiting: VecDeque::new(),
            queries: PathQueries::default(),
        });
        Ok(())
    }

    /// Lets the conversations' time begin now.
    pub(super) fn rebase(&mut self) {
        self.origin = self.world.now();
        self.quiet_from = self.origin;
    }

    /// Where the guests are: those of the first host, then those of the second.
    pub(crate) fn places(&self) -> Vec<NodeAddress> {
        self.guests.iter().map(|guest| guest.address).collect()
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
        let now = self.world.now();
        let guest = &mut self.guests[node];
        let host = &mut self.hosts[guest.host];
        let mut hca = adapter(&mut self.world, host.node, FunctionId::PF)?;
        host.pf.reset_vf(now, &mut hca, guest.vf)?;
        let mut hca = adapter(&mut self.world, host.node, guest.vf.into())?;
        while hca.poll_event().is_some() {}
        guest.proxy = open_proxy(&mut hca)?;
        guest.waiting.clear();
        guest.queries.forget();
        self.arrived.retain(|arrival| arrival.node != node);
        Ok(())
    }

    /// Has a guest ask the SA for the path to another.
    pub(super) fn ask_path(&mut self, now: Instant, node: usize, to: usize) {
        let at = self.in_world(now);
        let (own, other) = (self.guests[node].address, self.guests[to].address);
        let port = &self.hosts[self.guests[node].host].pf.ports()[0];
        let sm = port.own().view().sm_lid;
        let mad = self.guests[node].queries.ask(at, own.gid, other.gid);
        let to = MadAddress::gsi(sm);
        self.send(now, node, &Transmit { to, mad });
    }

    /// Path queries that were asked, and answered rightly and wrongly.
    pub(super) fn queries(&self) -> (u64, u64, u64) {
        let each = self.guests.iter().map(|guest| guest.queries.counts());
        each.fold((0, 0, 0), |sum, of| {
            (sum.0 + of.0, sum.1 + of.1, sum.2 + of.2)
        })
    }

    /// Frames that the PFs dropped, by reason.
    pub(crate) const fn drops(&self) -> &BTreeMap<&'static str, u64> {
        &self.drops
    }

    /// Live objects in the tables of both hosts.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = Sizes> {
        let ports = self.hosts.iter().flat_map(|host| host.pf.ports());
        ports.map(|port| port.mux().sizes())
    }

    /// Lets time pass, and gives what is left over then.
    pub(super) fn settle(&mut self, time: Duration) -> Result<Leaks, DrainError> {
        let end = self.world.now() + time;
        while self.world.now() < end {
            let next = self.world.now() + Duration::from_secs(1);
            self.run(next.min(end));
        }
        let mut leaks = Leaks::default();
        for sizes in self.sizes() {
            leaks.count(&sizes);
        }
        let ports = self.hosts.iter().flat_map(|host| host.pf.ports());
        leaks.buffers += ports.filter(|port| !port.is_at_rest()).count();
        let proxies = self.guests.iter().map(|guest| &guest.proxy);
        leaks.buffers += proxies.filter(|proxy| !proxy.is_at_rest()).count();
        for guest in &self.guests {
            let host = &self.hosts[guest.host];
            let hca = adapter(&mut self.world, host.node, FunctionId::PF)?;
            let owned = host.pf.resources(&hca, guest.vf)?.0;
            // A proxy QP with what belongs to it.
            let beyond =
                |count: u32| usize::try_from(count.saturating_sub(1)).unwrap_or(usize::MAX);
            leaks.objects += beyond(owned.pds) + beyond(owned.cqs);
            leaks.objects += beyond(owned.qps) + beyond(owned.mrs);
        }
        Ok(leaks)
    }

    fn in_world(&self, now: Instant) -> Instant {
        self.origin + now.saturating_duration_since(Instant::ZERO)
    }

    fn next_due(&self) -> Option<Instant> {
        let hosts = self.hosts.iter().filter_map(|host| host.pf.poll_timeout());
        hosts.chain(self.world.poll_timeout()).min()
    }

    /// Lets everything happen that is due at a time of the world's.
    fn run(&mut self, at: Instant) {
        loop {
            self.world.poll(at);
            let mut busy = false;
            for host in 0..self.hosts.len() {
                busy |= self.run_host(at, host);
            }
            for node in 0..self.guests.len() {
                busy |= self.run_guest(node);
            }
            if !busy {
                // The fabric takes adapters that were lent out for busy until it has looked at them.
                self.world.poll(at);
                return;
            }
        }
    }

    fn run_host(&mut self, at: Instant, host: usize) -> bool {
        let Host { node, pf } = &mut self.hosts[host];
        let Ok(mut hca) = adapter(&mut self.world, *node, FunctionId::PF) else {
            return false;
        };
        let mut busy = pf.poll_timeout().is_some_and(|due| due <= at);
        while let Some(event) = hca.poll_event() {
            pf.handle_hca_event(at, &mut hca, &event);
            busy = true;
        }
        if busy {
            while pf.poll(at, &mut hca) {}
            while let Some(event) = pf.poll_event() {
                if let PfEvent::Dropped { reason, .. } = event {
                    *self.drops.entry(reason.as_str()).or_default() += 1;
                }
            }
        }
        busy
    }

    /// Lets a guest whose proxy has something take it.
    fn run_guest(&mut self, node: usize) -> bool {
        let guest = &mut self.guests[node];
        let host = self.hosts[guest.host].node;
        let Ok(mut hca) = adapter(&mut self.world, host, guest.vf.into()) else {
            return false;
        };
        let mut busy = false;
        while let Some(event) = hca.poll_event() {
            busy |= matches!(event, HcaEvent::Completion(_));
        }
        if !busy {
            return false;
        }
        loop {
            while let Some((from, mad)) = guest.proxy.poll(&mut hca) {
                if mad.header.mgmt_class == MgmtClass::SUBN_ADM {
                    guest.queries.hear(&mad);
                } else {
                    self.arrived.push_back(Arrival { node, from, mad });
                }
            }
            guest.send(&mut hca);
            if !guest.proxy.arm(&mut hca) {
                return true;
            }
        }
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
        let guest = &mut self.guests[node];
        guest.waiting.push_back(*transmit);
        let host = self.hosts[guest.host].node;
        if let Ok(mut hca) = adapter(&mut self.world, host, guest.vf.into()) {
            guest.send(&mut hca);
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let at = self.next_due()?.max(self.world.now());
        (at < self.quiet_from).then(|| Instant::ZERO + at.saturating_duration_since(self.origin))
    }

    fn receive(&mut self, now: Instant) -> Option<Arrival> {
        if self.arrived.is_empty() {
            self.run(self.in_world(now));
        }
        self.arrived.pop_front()
    }
}

fn open_proxy(hca: &mut dyn Hca) -> Result<ProxyQp, DrainError> {
    let proxy = ProxyQp::open(hca, SpecialQp::Gsi, PORT, DEPTH)?;
    proxy.arm(hca);
    Ok(proxy)
}

fn adapter(
    world: &mut World,
    node: NodeId,
    function: FunctionId,
) -> Result<Function<'_>, HcaError> {
    let function = world.fabric_mut().hca(node, function);
    function.ok_or(HcaError::InvalidHandle)
}
