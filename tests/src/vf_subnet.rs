//! A subnet whose hosts' VFs are held by programs: a manager's host, and hosts with a PF context.

use std::collections::VecDeque;

use emulated_hca::hca::Device;
use emulated_hca::{ChannelAdapter, Fabric, NodeId, Topology};
use hca_api::{
    Adapter, FunctionId, FunctionManager, Hca, HostMemory, LocalMad, MadView, ResourceCounts,
};
use ib_endpoint::{EndPort, EndPortConfig, EndPortEvent};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeModifier, Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::{GuidInfo, LidRoutedSmp, PortState, SmpAttribute};
use ib_wire::{Guid, PKey, PKeyIndex, PortNum};
use pf_context::context::{PfConfig, VfPortSpec, VfSpec};
use pf_context::{PfContext, VfPKeyEntry};
use subnet_lite::{Partition, Partitions, SubnetConfig, SubnetManager};
use vf_proxy::native::{VfPort, VfPortEvent, VirtualHca, VirtualHcaConfig, VirtualHcaEvent};
use vf_tunnel::{PhysicalPKeyIndex, VfId};

/// The port of everything.
pub const PORT: PortNum = PortNum(1);

/// A partition of which every port is a full member, besides the default one.
pub const SECOND_PKEY: PKey = PKey::new(0x8001);

/// Time within which anything in this subnet should happen.
pub const SOON: Duration = Duration::from_secs(120);

/// Rounds at one time after which something keeps itself busy for ever.
const MAX_ROUNDS: usize = 10_000;

/// What each VF may own.
pub const QUOTA: ResourceCounts = ResourceCounts {
    pds: 16,
    avs: 16,
    cqs: 16,
    srqs: 0,
    qps: 16,
    mrs: 16,
    mws: 0,
    attachments: 8,
};

/// Names a VF of a subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VfAt {
    /// Its host, counted from 0.
    pub host: usize,
    /// Its number, counted from 1.
    pub vf: u16,
}

/// A VF with its program's side.
#[derive(Debug)]
struct Guest {
    hca: Option<VirtualHca>,
    events: VecDeque<VirtualHcaEvent>,
}

/// A host with a PF context.
#[derive(Debug)]
struct Host {
    node: NodeId,
    pf: PfContext,
    guests: Vec<Guest>,
}

/// The host from which the subnet is managed.
#[derive(Debug)]
struct Manager {
    node: NodeId,
    port: EndPort,
    sm: Option<SubnetManager>,
}

/// A subnet of a switch, its manager's host, and hosts with VFs. Its clock is virtual.
#[derive(Debug)]
pub struct VfSubnet<D: ChannelAdapter = Device> {
    fabric: Fabric<D>,
    manager: Manager,
    hosts: Vec<Host>,
    now: Instant,
}

/// What a VF gets of its port: both partitions.
#[must_use]
pub fn port_spec() -> VfPortSpec {
    let at = |index| Some(VfPKeyEntry::Index(PhysicalPKeyIndex(PKeyIndex(index))));
    VfPortSpec {
        pkeys: vec![at(0), at(1)],
        ..VfPortSpec::default()
    }
}

/// The GUID of a VF's adapter.
#[must_use]
pub fn node_guid(at: VfAt) -> Guid {
    Guid::new(0x0002_c903_0000_0000 + (at.host as u64) * 0x1_0000 + u64::from(at.vf))
}

impl VfSubnet {
    /// Builds a subnet of so many hosts with so many VFs each, and runs it until every VF's port is
    /// active.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn new(seed: u64, hosts: usize, vfs: u16) -> Self {
        Self::with(seed, hosts, vfs, &PfConfig::new(seed), &port_spec())
    }

    /// As [`Self::new`], with the context's configuration, and each VF's of its port.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn with(seed: u64, hosts: usize, vfs: u16, config: &PfConfig, spec: &VfPortSpec) -> Self {
        Self::on_adapters(seed, hosts, vfs, config, spec)
    }
}

impl<D: ChannelAdapter + Adapter> VfSubnet<D> {
    /// As [`VfSubnet::with`], on adapters of another kind.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn on_adapters(
        seed: u64,
        hosts: usize,
        vfs: u16,
        config: &PfConfig,
        spec: &VfPortSpec,
    ) -> Self {
        let mut plan = Topology::default();
        let switch = plan.add_switch("switch", 36);
        for host in 0..=hosts {
            let hca = plan.add_hca(&format!("host-{host}"), 1);
            plan.hcas[hca].max_functions = 64;
            let port = u8::try_from(host + 1).expect("a port of the switch");
            plan.connect(
                emulated_hca::PlannedPort::Hca(hca, 1),
                emulated_hca::PlannedPort::Switch(switch, port),
            );
        }
        let (mut fabric, built) = plan.build(seed);
        let manager = Manager::start(&mut fabric, built.hcas[0], seed);
        let hosts = (0..).zip(&built.hcas[1..]);
        let hosts = hosts
            .map(|(host, &node)| Host::start(&mut fabric, node, host, vfs, config, spec))
            .collect();
        let mut this = Self {
            fabric,
            manager,
            hosts,
            now: Instant::ZERO,
        };
        let up = this.run_until(SOON, |subnet| {
            subnet.vfs().into_iter().all(|at| {
                let view = subnet.port(at).view();
                view.state == PortState::ACTIVE && view.sm_lid.is_unicast()
            })
        });
        assert!(up, "the subnet comes up");
        for at in this.vfs() {
            this.hosts[at.host].guests[usize::from(at.vf) - 1]
                .events
                .clear();
        }
        this
    }

    /// All VFs.
    #[must_use]
    pub fn vfs(&self) -> Vec<VfAt> {
        let of_host = |(host, entry): (usize, &Host)| {
            let vfs = (1..).zip(&entry.guests);
            vfs.map(|(vf, _)| VfAt { host, vf }).collect::<Vec<_>>()
        };
        self.hosts.iter().enumerate().flat_map(of_host).collect()
    }

    /// The time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The fabric.
    pub const fn fabric_mut(&mut self) -> &mut Fabric<D> {
        &mut self.fabric
    }

    /// The subnet manager.
    ///
    /// # Panics
    /// Never: one always runs.
    #[must_use]
    pub const fn sm(&self) -> &SubnetManager {
        self.manager.sm.as_ref().expect("it always runs")
    }

    /// A VF's port, to be looked at.
    ///
    /// # Panics
    /// If the VF's program has closed it.
    #[must_use]
    pub fn port(&self, at: VfAt) -> &VfPort {
        let guest = &self.hosts[at.host].guests[usize::from(at.vf) - 1];
        let hca = guest.hca.as_ref().expect("an open VF");
        hca.port(PORT).expect("the port")
    }

    /// Calls something with a VF's port and its function.
    ///
    /// # Panics
    /// If the VF's program has closed it.
    pub fn on_port<T>(
        &mut self,
        at: VfAt,
        call: impl FnOnce(Instant, &mut VfPort, &mut dyn Hca) -> T,
    ) -> T {
        self.on_vf(at, |now, hca, function| {
            let hca = hca.as_mut().expect("an open VF");
            call(now, hca.port_mut(PORT).expect("the port"), function)
        })
    }

    /// Calls something with a VF, which its program may have closed, and its function.
    ///
    /// # Panics
    /// If the VF does not exist.
    pub fn on_vf<T>(
        &mut self,
        at: VfAt,
        call: impl FnOnce(Instant, &mut Option<VirtualHca>, &mut dyn Hca) -> T,
    ) -> T {
        let host = &mut self.hosts[at.host];
        let mut function = function(&mut self.fabric, host.node, FunctionId(at.vf));
        let guest = &mut host.guests[usize::from(at.vf) - 1];
        call(self.now, &mut guest.hca, &mut function)
    }

    /// Stops the subnet manager as if its process were killed, and starts another one that knows
    /// nothing of the first one's time.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn restart_manager(&mut self) {
        self.manager.restart(&mut self.fabric);
    }

    /// Calls something with a host's PF context and physical function.
    pub fn on_pf<T>(
        &mut self,
        host: usize,
        call: impl FnOnce(Instant, &mut PfContext, &mut dyn FunctionManager) -> T,
    ) -> T {
        let host = &mut self.hosts[host];
        let mut pf = function(&mut self.fabric, host.node, FunctionId::PF);
        call(self.now, &mut host.pf, &mut pf)
    }

    /// Closes a VF as its program.
    ///
    /// # Panics
    /// If it is closed already.
    pub fn close(&mut self, at: VfAt) {
        self.on_vf(at, |now, hca, function| {
            hca.take().expect("an open VF").close(now, function);
        });
        self.guest(at).events.clear();
    }

    /// Opens a VF as its program.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub fn open(&mut self, at: VfAt) {
        self.on_vf(at, |now, hca, function| {
            let config = VirtualHcaConfig::new(now.as_nanos());
            *hca = Some(VirtualHca::open(now, function, config).expect("a VF"));
        });
    }

    /// What a VF owns on its adapter.
    ///
    /// # Panics
    /// If the VF does not exist.
    pub fn owned(&mut self, at: VfAt) -> ResourceCounts {
        let vf = VfId::new(at.vf).expect("a number of a VF");
        let owned = self.on_pf(at.host, |_, pf, hca| pf.resources(hca, vf));
        owned.expect("a VF").0
    }

    /// Resets a VF as the PF does.
    ///
    /// # Panics
    /// If the VF does not exist.
    pub fn reset(&mut self, at: VfAt) {
        let vf = VfId::new(at.vf).expect("a number of a VF");
        self.on_pf(at.host, |now, pf, hca| pf.reset_vf(now, hca, vf))
            .expect("a VF");
    }

    /// The next event of a VF.
    pub fn poll_event(&mut self, at: VfAt) -> Option<VirtualHcaEvent> {
        self.guest(at).events.pop_front()
    }

    /// Runs until an event of a VF's port is what `pick` looks for; those before it are forgotten.
    ///
    /// # Panics
    /// If none is within [`SOON`].
    pub fn wait<T>(&mut self, at: VfAt, mut pick: impl FnMut(&VfPortEvent) -> Option<T>) -> T {
        let mut others = Vec::new();
        let mut found = None;
        self.run_until(SOON, |subnet| {
            while let Some(event) = subnet.poll_event(at) {
                if let VirtualHcaEvent::Port { event, .. } = &event {
                    found = pick(event);
                }
                if found.is_some() {
                    return true;
                }
                others.push(event);
            }
            false
        });
        found.unwrap_or_else(|| panic!("not within {SOON:?}; instead: {others:?}"))
    }

    /// Runs until the condition holds, for at most `limit`. Whether it came to hold.
    pub fn run_until(
        &mut self,
        limit: Duration,
        mut condition: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let end = self.now + limit;
        let mut standstill = 0;
        while standstill < MAX_ROUNDS {
            self.settle();
            if condition(self) {
                return true;
            }
            if self.now >= end {
                return false;
            }
            // What the condition did may be due at once.
            let next = self.poll_timeout().unwrap_or(end).clamp(self.now, end);
            standstill = if next > self.now { 0 } else { standstill + 1 };
            self.now = next;
        }
        panic!("somebody wants to be polled for ever: {self:?}");
    }

    /// Lets time pass.
    pub fn run_for(&mut self, duration: Duration) {
        self.run_until(duration, |_| false);
    }

    /// Lets everybody do what is due now. What a quiet round sent shows in the next one.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..MAX_ROUNDS {
            while self.fabric.poll(self.now) {}
            let mut busy = self.manager.poll(self.now, &mut self.fabric);
            for host in &mut self.hosts {
                busy |= host.poll(self.now, &mut self.fabric);
            }
            quiet = if busy { 0 } else { quiet + 1 };
            if quiet == 2 {
                // The fabric looks after the adapters that were lent out.
                while self.fabric.poll(self.now) {}
                return;
            }
        }
        panic!("somebody keeps himself busy for ever");
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let manager = [self.manager.port.poll_timeout(), self.sm().poll_timeout()];
        let hosts = self.hosts.iter().flat_map(|host| {
            let guests = host.guests.iter().filter_map(|guest| guest.hca.as_ref());
            let guests = guests.filter_map(VirtualHca::poll_timeout);
            guests.chain(host.pf.poll_timeout())
        });
        let machines = manager.into_iter().flatten().chain(hosts);
        machines.chain(self.fabric.poll_timeout()).min()
    }

    fn guest(&mut self, at: VfAt) -> &mut Guest {
        &mut self.hosts[at.host].guests[usize::from(at.vf) - 1]
    }
}

impl Manager {
    fn start<D: ChannelAdapter + Adapter>(fabric: &mut Fabric<D>, node: NodeId, seed: u64) -> Self {
        let mut hca = function(fabric, node, FunctionId::PF);
        let config = EndPortConfig::host(PORT, seed);
        let mut port = EndPort::open(Instant::ZERO, &mut hca, config).expect("a port");
        let sm = start_sm(&mut hca, &mut port, seed);
        Self {
            node,
            sm: Some(sm),
            port,
        }
    }

    fn restart<D: ChannelAdapter + Adapter>(&mut self, fabric: &mut Fabric<D>) {
        let mut hca = function(fabric, self.node, FunctionId::PF);
        if let Some(sm) = self.sm.take() {
            sm.close(&mut hca, self.port.gsi()).expect("it ends");
        }
        self.sm = Some(start_sm(&mut hca, &mut self.port, 99));
    }

    fn poll<D: ChannelAdapter + Adapter>(&mut self, now: Instant, fabric: &mut Fabric<D>) -> bool {
        let mut hca = function(fabric, self.node, FunctionId::PF);
        let sm = self.sm.as_mut().expect("it always runs");
        let mut busy = false;
        while let Some(event) = hca.poll_event() {
            busy = true;
            self.port
                .handle_hca_event(now, &mut hca, &event)
                .expect("the port can be read");
            sm.handle_hca_event(now, &event);
        }
        while self.port.poll(now, &mut hca) {}
        while let Some(event) = self.port.poll_event() {
            busy = true;
            if let EndPortEvent::Gsi(event) = event {
                let others = sm.handle_event(now, self.port.gsi(), event);
                assert_eq!(others, None, "nobody else is registered");
            }
        }
        while sm.poll(now, &mut hca, self.port.gsi()) {}
        while self.port.poll(now, &mut hca) {}
        while sm.poll_event().is_some() {}
        busy
    }
}

impl Host {
    fn start<D: ChannelAdapter + Adapter>(
        fabric: &mut Fabric<D>,
        node: NodeId,
        host: usize,
        vfs: u16,
        config: &PfConfig,
        spec: &VfPortSpec,
    ) -> Self {
        let now = Instant::ZERO;
        let config = PfConfig {
            secret: config.secret.of(&(host as u64).to_le_bytes()),
            ..config.clone()
        };
        let mut hca = function(fabric, node, FunctionId::PF);
        let mut pf = PfContext::open(now, &mut hca, &config).expect("a context");
        for vf in 1..=vfs {
            let spec = VfSpec {
                node_guid: node_guid(VfAt { host, vf }),
                memory: Box::new(HostMemory::new()),
                quota: QUOTA,
                ports: vec![spec.clone()],
            };
            let vf = VfId::new(vf).expect("a number of a VF");
            pf.add_vf(now, &mut hca, vf, spec).expect("a VF");
        }
        drop(hca);
        let guest = |vf| {
            let mut function = function(fabric, node, FunctionId(vf));
            let config =
                VirtualHcaConfig::new(config.secret.of(&(u64::from(vf) << 32).to_le_bytes()));
            Guest {
                hca: Some(VirtualHca::open(now, &mut function, config).expect("a VF")),
                events: VecDeque::new(),
            }
        };
        Self {
            node,
            pf,
            guests: (1..=vfs).map(guest).collect(),
        }
    }

    fn poll<D: ChannelAdapter + Adapter>(&mut self, now: Instant, fabric: &mut Fabric<D>) -> bool {
        let mut busy = false;
        let mut hca = function(fabric, self.node, FunctionId::PF);
        while let Some(event) = hca.poll_event() {
            busy = true;
            self.pf.handle_hca_event(now, &mut hca, &event);
        }
        while self.pf.poll(now, &mut hca) {}
        drop(hca);
        while self.pf.poll_event().is_some() {}
        for (vf, guest) in (1..).zip(&mut self.guests) {
            let Some(own) = &mut guest.hca else { continue };
            let mut hca = function(fabric, self.node, FunctionId(vf));
            while let Some(event) = hca.poll_event() {
                busy = true;
                own.handle_hca_event(now, &mut hca, &event)
                    .expect("the port can be read");
            }
            while own.poll(now, &mut hca) {}
            guest.events.extend(std::iter::from_fn(|| own.poll_event()));
        }
        busy
    }
}

/// Starts a subnet manager with both partitions.
fn start_sm(hca: &mut dyn Hca, port: &mut EndPort, seed: u64) -> SubnetManager {
    let second = Partition {
        pkey: SECOND_PKEY,
        ipoib: None,
        ..Partition::default_full()
    };
    let config = SubnetConfig {
        partitions: Partitions::new([Partition::default_full(), second]),
        ..SubnetConfig::default()
    };
    SubnetManager::open(hca, port.gsi(), PORT, config, seed).expect("a subnet manager")
}

fn function<D: ChannelAdapter + Adapter>(
    fabric: &mut Fabric<D>,
    node: NodeId,
    id: FunctionId,
) -> D::Function<'_> {
    let adapter = fabric.device_mut(node).expect("an adapter");
    adapter.function(id).expect("a function")
}

/// Changes an attribute of a port as a subnet manager does: asks the port's agent for it and sets what
/// `edit` makes of it.
///
/// # Panics
/// If the port's agent does not take it.
pub fn set_attribute<A: SmpAttribute>(
    device: &mut Device,
    modifier: u32,
    edit: impl FnOnce(&mut A),
) {
    let mut hca = device.function(FunctionId::PF).expect("the PF");
    let mut ask = |mad: &Mad| match hca.process_local_mad(PORT, MadView::Host, mad) {
        Ok(LocalMad::Reply(reply)) => reply,
        other => panic!("{other:?}"),
    };
    let mut header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, A::ID);
    header.attribute_modifier = AttributeModifier::new(modifier);
    let mut mad = ask(&Mad::new(header));
    mad.header.method = Method::SET;
    edit(mad.view_mut::<LidRoutedSmp>().attribute_mut());
    ask(&mad);
}

/// Writes a GUID of a port's table, as a subnet manager does.
///
/// # Panics
/// If the port's agent does not take it.
pub fn set_guid(device: &mut Device, index: u16, guid: Guid) {
    set_attribute(device, u32::from(index / 8), |table: &mut GuidInfo| {
        table.guids[usize::from(index % 8)] = guid;
    });
}
