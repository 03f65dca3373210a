//! What is served: a world whose nodes and hosts have names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use emulated_hca::{Built, Endpoint, Fabric, HcaConfig, NodeId};
use hca_functions::Functions;
use ib_vtime::{Duration, Instant, Secret, SecretNumbers};
use ib_wire::{Guid, PortNum};
use pf_context::context::{PfConfig, VfPortSpec, VfSpec};
use pf_context::{AdaptAnswer, PlaceError};
use rustix::process::Pid;
use subnet_lite::SubnetConfig;
use vf_pci::PciFunction;
use vf_proxy::{Personality, mlx4};
use vf_tunnel::VfId;
use vhca_control::protocol::Sockets;
use vhca_control::{GuestAction, GuestReport, LinkFaults, Refusal, Right, VfChange};
use vhca_trunk::TrunkId;

use super::attach_spec::{AttachSpec, LinuxSpec};
use super::cables::{self, Cables};
use super::cast::Cast;
use super::guests::{Guests, JobId};
use super::host_memory;
use super::inventory::{Inventory, LabHost, NamedVf};
use super::lab_error::LabError;
use super::linux_port;
use super::options::{Options, SidrSpec, SmChoice};
use super::rights::rights;
use super::settings::{self, Settings, first_pkey};
use super::subnet::SubnetError;
use super::topology::Plan;
use super::verbs::conflict::Conflicts;
use super::verbs::memory::ProcessMemory;
use super::verbs::process_vf::ProcessVf;
use super::verbs::program::{MAX_REGIONS, ProgramLimit};
use super::vfio_user::seat::Seat;
use super::watchdog::{Stall, Stalls};
use super::why::{History, SaProbes};
use crate::show::{ManagerFacts, Programs, ServiceFacts};
use vhca::Driven;
use vhca::Slice;
use vhca::world::{HostFunction, HostId, VfError, World, vf_node_guid, vf_spec};
use vhca_vfio_user::{GuardNotice, GuestMemory, MemoryLimit, MemoryPool};

/// The adapter that VFs show to VMMs.
const SHOWN: Personality = mlx4::PERSONALITY;

/// A world whose nodes and hosts have names.
#[derive(Debug)]
pub struct Lab {
    /// The world, and the names of its hosts, VFs and nodes.
    pub inventory: Inventory,
    /// Secrets of PFs and of programs.
    pub(super) secrets: SecretNumbers,
    pub(super) guests: Guests,
    pub(super) settings: Settings,
    pub(super) history: History,
    pub(super) cables: Cables,
    /// What the SAs of the PFs' ports were asked for diagnoses.
    pub(super) sa_probes: SaProbes,
    /// The programs that say that they are the subnet managers of ports, as far as their processes are known.
    pub(super) managers: BTreeMap<Endpoint, Pid>,
    /// Ports of the trunks, as `NODE/PORT`.
    pub(super) trunks: BTreeMap<TrunkId, String>,
    /// Memory that devices of guests without a quota of their own share, and programs.
    memory_pool: Arc<MemoryPool>,
    /// Notes that memory of a VMM became guarded.
    pub(super) guard_notice: GuardNotice,
    /// The VFs that VMMs can take.
    pub(super) seats: BTreeMap<HostFunction, Seat>,
    /// The VFs that programs on libibverbs can have.
    pub(super) process_vfs: BTreeMap<HostFunction, ProcessVf>,
    pub(super) address_conflicts: Conflicts,
    /// Number of the service's own network namespace, if it can be read.
    pub(super) network_namespace: Option<u64>,
    /// When the service was started, since the Unix epoch.
    pub(super) started: Duration,
    /// Programs that use Linux' umad.
    pub(super) programs: Programs,
    pub(super) sockets: Sockets,
    /// Clients for which the service stood.
    pub(super) stalls: Stalls,
    /// The latest of them at each VF, and when its connection ended.
    pub(super) stalled: BTreeMap<HostFunction, (Stall, Instant)>,
}

impl Lab {
    /// Builds the fabric and starts the software of its hosts, and their VFs.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn build(options: &Options, secret: impl Into<Secret>) -> Result<Self, LabError> {
        let secret = secret.into();
        if !options.attach.is_empty() {
            options.subnet.check_unused()?;
            let mut lab = Self::empty(secret);
            for spec in options.attach.iter().filter_map(AttachSpec::linux) {
                lab.add_linux_port(options, spec)?;
            }
            return Ok(lab);
        }
        let Plan {
            mut topology,
            names,
        } = options.topology.plan()?;
        if let Some(site) = options.site_name()? {
            topology.move_to_site(|number| site.guid(number))?;
            topology.name_site(&site.to_string());
        }
        let (fabric, built) = topology.build(secret);
        let cast = Cast::new(options, &topology, &names)?;
        let names = names.into_iter();
        let names = names.filter_map(|(name, node)| Some((name, built.node(node)?)));
        let world = World::new(fabric, secret);
        let inventory = Inventory::new(world, cast.manager, names.collect());
        let mut lab = Self::of(inventory, secret);
        lab.start_hosts(options, &topology.hcas, &built, &cast)?;
        let nobodys =
            |spec: &&SidrSpec| lab.inventory.pf_hosts().all(|host| host.name != spec.host);
        match options.sidr.iter().find(nobodys) {
            Some(spec) => Err(no_sidr(spec, "no host of that name has VFs")),
            None => Ok(lab),
        }
    }

    /// A lab without a node.
    #[must_use]
    pub fn empty(secret: impl Into<Secret>) -> Self {
        let secret = secret.into();
        let world = World::new(Fabric::new(secret), secret);
        Self::of(Inventory::new(world, 0, BTreeMap::new()), secret)
    }

    fn of(inventory: Inventory, secret: Secret) -> Self {
        Self {
            inventory,
            secrets: secret.of(b"PFs, VFs").numbers(),
            guests: Guests::default(),
            settings: Settings::default(),
            history: History::default(),
            cables: Cables::default(),
            sa_probes: SaProbes::default(),
            managers: BTreeMap::new(),
            trunks: BTreeMap::new(),
            // The service itself, and the VMMs beside it, need the other half.
            memory_pool: Arc::new(MemoryPool::new(host_memory::most() / 2)),
            guard_notice: GuardNotice::default(),
            seats: BTreeMap::new(),
            process_vfs: BTreeMap::new(),
            address_conflicts: Conflicts::default(),
            network_namespace: fs::metadata("/proc/self/ns/net")
                .ok()
                .map(|file| file.ino()),
            started: Duration::ZERO,
            programs: Programs::default(),
            sockets: Sockets::default(),
            stalls: Stalls::default(),
            stalled: BTreeMap::new(),
        }
    }

    /// Opens a port of a Linux HCA, and shares it among VFs.
    fn add_linux_port(&mut self, options: &Options, spec: &LinuxSpec) -> Result<(), LabError> {
        let name = spec.device.clone();
        check_number(options, &name, linux_port::MAX_VFS)?;
        let config = self.pf_config(options);
        let functions = Functions::new(linux_port::MAX_VFS, self.secrets.secret());
        let secret = self.secrets.secret();
        let world = self.world_mut();
        let port = linux_port::Port::open(world.now(), spec, secret, functions.memory(), options);
        let started = world.add_outside_pf_host(&name, Box::new(port?), functions, &config);
        let id = started.map_err(|error| LabError::Pf(name.clone(), error))?;
        let adapter = world.with_hca(id, |hca| Ok(hca.attributes()));
        let adapter = adapter.map_err(|error| LabError::Pf(name.clone(), error.into()))?;
        self.add_vfs(options, &name, id, adapter.node_guid, adapter.num_ports)?;
        let is_pf = true;
        self.inventory.add_host(LabHost { name, id, is_pf });
        Ok(())
    }

    /// Adds a host with an adapter of its own, which it shares among VFs. The adapter has no cable.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn add_pf(&mut self, options: &Options, config: &HcaConfig) -> Result<HostId, LabError> {
        let node = self.world_mut().fabric_mut().add_hca(config);
        let name = config.description.clone();
        let id = self.start_pf(options, &name, node, config)?;
        let is_pf = true;
        self.inventory.add_host(LabHost { name, id, is_pf });
        Ok(id)
    }

    fn start_hosts(
        &mut self,
        options: &Options,
        hcas: &[HcaConfig],
        built: &Built,
        cast: &Cast,
    ) -> Result<(), LabError> {
        let subnet = subnet_config(options, hcas, cast)?;
        for (index, (config, node)) in hcas.iter().zip(&built.hcas).enumerate() {
            let name = config.description.clone();
            let is_pf = cast.pfs.contains(&index);
            let id = if is_pf {
                self.start_pf(options, &name, *node, config)?
            } else if cast.bare.contains(&index) {
                self.start_bare(options, &name, *node)?
            } else {
                let started = self.world_mut().add_host(*node);
                started.map_err(|error| LabError::Host(name.clone(), error))?
            };
            if index == cast.manager && options.sm == SmChoice::Lite {
                let subnet = subnet.clone();
                let started = self.world_mut().start_manager(id.port(1), subnet);
                started.map_err(|error| LabError::Manager(name.clone(), error))?;
            }
            self.inventory.add_host(LabHost { name, id, is_pf });
        }
        Ok(())
    }

    fn start_bare(
        &mut self,
        options: &Options,
        name: &str,
        node: NodeId,
    ) -> Result<HostId, LabError> {
        let memory = ProcessMemory::default();
        let reached = Box::new(memory.clone());
        let started = self.world_mut().add_bare_host(node, reached);
        let id = started.map_err(|error| LabError::Bare(name.to_owned(), error))?;
        if options.verbs {
            let limit = self.program_limit(options);
            self.offer_bare_node(name, id, memory, limit);
        }
        Ok(id)
    }

    /// Returns the memory that the service may spend on a program.
    fn program_limit(&self, options: &Options) -> ProgramLimit {
        ProgramLimit {
            most: options.quotas.program_bytes(),
            pool: self.memory_pool.clone(),
        }
    }

    fn start_pf(
        &mut self,
        options: &Options,
        name: &str,
        node: NodeId,
        config: &HcaConfig,
    ) -> Result<HostId, LabError> {
        check_number(options, name, config.max_functions)?;
        if let Some(other) = self.host_with_guids_of(config.node_guid, options.vfs) {
            return Err(LabError::SameGuids(name.to_owned(), other));
        }
        let config_of_pf = self.pf_config(options);
        let started = self.world_mut().add_pf_host(node, &config_of_pf);
        let id = started.map_err(|error| LabError::Pf(name.to_owned(), error))?;
        self.add_vfs(options, name, id, config.node_guid, config.ports)?;
        Ok(id)
    }

    fn pf_config(&mut self, options: &Options) -> PfConfig {
        let config = PfConfig {
            limits: options.quotas.limits(),
            policy: options.policy.policy(),
            smi: options.rights.contains(&Right::Smi),
            ..PfConfig::new(self.secrets.secret())
        };
        self.settings.vfs_may_have_smi |= config.smi;
        config
    }

    /// Adds the VFs of a PF host, with their addresses and services.
    fn add_vfs(
        &mut self,
        options: &Options,
        name: &str,
        id: HostId,
        node_guid: Guid,
        ports: u8,
    ) -> Result<(), LabError> {
        for number in 1..=options.vfs {
            let vf = VfId::new(number).ok_or_else(|| too_many(options, name, VfId::MAX))?;
            let is_for_program = options.is_for_program(number);
            let vmm_has_it = options.vfio_user.is_some() && !is_for_program;
            let adapt_answer = vmm_has_it.then_some(SHOWN.adapt_answer);
            let port = VfPortSpec {
                guid: options.guids.into(),
                pkeys: first_pkey(),
                rights: rights(&options.rights),
                adapt_answer: adapt_answer.map(AdaptAnswer),
                ..VfPortSpec::default()
            };
            let mut spec = VfSpec {
                ports: vec![port; usize::from(ports)],
                ..vf_spec(vf_node_guid(node_guid, vf))
            };
            let offered = vmm_has_it.then(|| {
                let pool = || MemoryLimit::Pool(self.memory_pool.clone());
                let limit = options.quotas.guest_bytes().map(MemoryLimit::Bytes);
                let memory = GuestMemory::new(limit.unwrap_or_else(pool));
                memory.with_notice(self.guard_notice.clone())
            });
            if let Some(memory) = &offered {
                spec.memory = Box::new(memory.clone());
            }
            let for_programs = is_for_program.then(ProcessMemory::default);
            if let Some(memory) = &for_programs {
                spec.memory = Box::new(memory.clone());
                spec.quota.mrs = MAX_REGIONS;
            }
            let port = self.world_mut().outside_hca_mut::<linux_port::Port>(id);
            if let Some(port) = port.filter(|_| offered.is_none() && for_programs.is_none()) {
                let memory = port.vf_memory();
                let failed = |error| LabError::Vf(name.to_owned(), vf, error);
                spec.memory = memory.map_err(|error| failed(VfError::from(error)))?;
            }
            let added = if options.guests {
                self.add_guest(id, vf, spec)
            } else {
                self.world_mut()
                    .add_idle_vf(id, vf, spec)
                    .map_err(VfError::from)
            };
            added.map_err(|error| linux_port::vf_error(self.world_mut(), id, (name, vf), error))?;
            if let Some(memory) = for_programs {
                let limit = self.program_limit(options);
                let network = options.verbs_network;
                self.offer_to_programs(name, id, vf, memory, network, limit)?;
            }
            if let Some(memory) = offered {
                let offered = self.offer(name, id, vf, memory, (SHOWN.make)());
                offered.map_err(|error| LabError::Device(name.to_owned(), vf, error))?;
            }
        }
        for spec in options.sidr.iter().filter(|spec| spec.host == name) {
            let vf = VfId::new(spec.vf).ok_or_else(|| no_sidr(spec, "there is no such VF"))?;
            let set = self.world_mut().context_mut(id).set_sidr(vf, &spec.at);
            set.map_err(|error| no_sidr(spec, error))?;
        }
        Ok(())
    }

    /// Notes at a VF that the service stood for the client which had it, if it did.
    pub(super) fn note_stall(&mut self, client: RawFd, at: HostFunction) {
        if let Some(stall) = self.stalls.take(client) {
            self.stalled.insert(at, (stall, self.world().now()));
        }
    }

    /// Returns the name of a host, one of whose VFs has a node GUID that one of an adapter's would have.
    fn host_with_guids_of(&self, adapter: Guid, vfs: u16) -> Option<String> {
        let guids: BTreeSet<Guid> = vf_node_guids(adapter, vfs).collect();
        let has_one = |other| vf_node_guids(other, vfs).any(|guid| guids.contains(&guid));
        let mut others = self.inventory.pf_hosts();
        let other = others.find(|host| self.node_guid(host).is_some_and(has_one))?;
        Some(other.name.clone())
    }

    fn node_guid(&self, host: &LabHost) -> Option<Guid> {
        let node = self.world().host(host.id).node();
        let node = self.inventory.fabric_node(node);
        node.map(|node| node.node_guid)
    }

    fn add_guest(&mut self, host: HostId, vf: VfId, spec: VfSpec) -> Result<(), VfError> {
        let on = self.world_mut().add_vf(host, vf, spec)?;
        Ok(self.guests.add(self.inventory.world_mut(), on)?)
    }

    /// Makes a device of a VF on which nothing runs and that reaches `memory`, for VMMs to take.
    pub(super) fn offer(
        &mut self,
        name: &str,
        host: HostId,
        vf: VfId,
        memory: GuestMemory,
        function: Box<dyn PciFunction>,
    ) -> Result<(), PlaceError> {
        let at = self.world_mut().add_device(host, vf, function)?;
        let seat = Seat::new(at, vf, name.to_owned(), memory);
        self.seats.insert(at, seat);
        Ok(())
    }

    /// Returns the world.
    #[must_use]
    pub const fn world(&self) -> &World {
        self.inventory.world()
    }

    /// Returns the world, to be used. The next poll carries out the changes.
    pub const fn world_mut(&mut self) -> &mut World {
        self.inventory.world_mut()
    }

    /// Changes a VF's port.
    ///
    /// # Errors
    /// A refusal with the reason; nothing has changed then.
    pub fn set_vf(
        &mut self,
        vf: &NamedVf,
        port: PortNum,
        change: &VfChange,
    ) -> Result<(), Refusal> {
        self.inventory.check_port(vf, port)?;
        let at = settings::at(vf, port);
        let is_guid = matches!(change, VfChange::PortGuid(_));
        if is_guid {
            self.history.forget_refusal(at);
        }
        let world = self.inventory.world_mut();
        self.settings.change(world, vf, port, change)?;
        if is_guid {
            // The PF refuses a GUID with the next poll.
            self.poll(self.world().now(), &mut Slice::endless());
        }
        match self.history.refusal(at).filter(|_| is_guid) {
            Some(refusal) => Err(Refusal::new("guid_refused", refusal.to_string())),
            None => Ok(()),
        }
    }

    /// Plugs cables in or out: that of a port (`NODE/PORT`), or all between two nodes. Returns their number.
    ///
    /// # Errors
    /// A refusal with the reason; nothing has changed then.
    pub fn set_link(&mut self, a: &str, b: Option<&str>, up: bool) -> Result<usize, Refusal> {
        cables::set_link(&mut self.inventory, a, b, up)
    }

    /// Plans faults of the link of a port (`NODE/PORT`), or of all links between two nodes, in place of all former
    /// faults. They strike every packet, those of management too. A link that gets another width or speed goes down for it.
    /// Returns the number of links.
    ///
    /// # Errors
    /// A refusal with the reason; nothing has changed then.
    pub fn set_link_faults(
        &mut self,
        a: &str,
        b: Option<&str>,
        faults: LinkFaults,
    ) -> Result<usize, Refusal> {
        let links = self.cables.plan_faults(&mut self.inventory, a, b, faults)?;
        let now = self.world().now();
        let ports = self.ports_of(self.inventory.pf_hosts().map(|host| host.id).collect());
        for at in ports {
            let end = self.world().host(at.host).node().port(at.port.0);
            let fabric = self.world().fabric();
            let is_of_these = fabric
                .link_at(end)
                .is_some_and(|link| links.contains(&link));
            let errors = link_errors(fabric, end);
            if let Some(errors) = errors.filter(|_| is_of_these) {
                self.history.note_errors(at, now, errors);
                if faults == LinkFaults::default() {
                    self.history.forget_errors(at);
                }
            }
        }
        Ok(links.len())
    }

    /// Returns what is measured of the service itself.
    pub(super) fn service_facts(&self) -> ServiceFacts {
        let host = self
            .inventory
            .manager()
            .map(|host| self.world().host(host.id));
        let manager = host.and_then(|host| host.manager().zip(Some(host.sweeps())));
        ServiceFacts {
            started: self.started,
            manager: manager.map(|(manager, sweeps)| ManagerFacts {
                state: manager.sm().state().get(),
                stats: manager.sm().stats(),
                sweep_time: sweeps.time,
                last_sweep: sweeps.last.map(|(time, _)| time),
                last_sweep_age: sweeps.last.map(|(_, end)| self.world().now() - end),
            }),
            programs: self.programs,
            trunks: self.trunk_rows().collect(),
        }
    }

    /// Lets happen what is due, until the slice is over.
    pub(super) fn poll(&mut self, now: Instant, slice: &mut Slice) {
        self.world_mut().poll_for(now, slice);
        while let Some(polled) = self.world_mut().take_polled() {
            let host = self.inventory.hosts().iter().find(|host| host.id == polled);
            if let Some(is_pf) = host.map(|host| host.is_pf) {
                take_events(
                    self.inventory.world_mut(),
                    polled,
                    is_pf,
                    &mut self.history,
                    &mut self.sa_probes,
                );
            }
            self.guests.poll(self.inventory.world_mut(), polled);
        }
        self.guests.expire(now);
        self.sa_probes.take_answers(self.inventory.world_mut());
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let guests = self.guests.poll_timeout();
        self.world().poll_timeout().into_iter().chain(guests).min()
    }

    /// Has the guests of VFs do something. What came of it is told by [`Lab::poll_report`].
    ///
    /// # Errors
    /// A refusal that says what is wrong with the action.
    pub fn guests_do(&mut self, vfs: &[NamedVf], action: &GuestAction) -> Result<JobId, Refusal> {
        let now = self.world().now();
        let started = self
            .guests
            .start(self.inventory.world_mut(), now, vfs, action);
        started.map_err(|why| Refusal::new("bad_action", why))
    }

    /// What came of a job of guests, once it is over.
    pub fn poll_report(&mut self, job: JobId) -> Option<Vec<GuestReport>> {
        self.guests.poll_report(job)
    }

    /// Forgets a job about which nobody wants to know any more.
    pub(super) fn forget_job(&mut self, job: JobId) {
        self.guests.forget(job);
    }

    /// Begins to give back what the VFs have at the SA.
    pub(super) fn shut_down(&mut self) {
        let hosts: Vec<HostId> = self.inventory.pf_hosts().map(|host| host.id).collect();
        for host in hosts {
            // A VF that cannot be reset keeps nobody from giving the rest back.
            let _ = self.world_mut().shut_down(host);
        }
    }

    /// Whether nothing of the VFs is left at the SA.
    pub(super) fn is_quiet(&self) -> bool {
        let mut contexts = self
            .inventory
            .pf_hosts()
            .map(|host| self.world().context(host.id));
        contexts.all(pf_context::PfContext::is_quiet)
    }
}

/// Checks that an adapter has as many VFs as are wanted.
fn check_number(options: &Options, host: &str, most: u16) -> Result<(), LabError> {
    let most = most.min(VfId::MAX);
    match options.vfs <= most {
        true => Ok(()),
        false => Err(too_many(options, host, most)),
    }
}

fn too_many(options: &Options, host: &str, most: u16) -> LabError {
    LabError::TooManyVfs {
        host: host.to_owned(),
        most,
        wanted: options.vfs,
    }
}

fn no_sidr(spec: &SidrSpec, why: impl ToString) -> LabError {
    LabError::Sidr(spec.host.clone(), spec.vf, why.to_string())
}

/// Takes the events of a host's own software, for which only diagnoses wait, and what happened to its VFs.
fn take_events(
    world: &mut World,
    host: HostId,
    is_pf: bool,
    history: &mut History,
    probes: &mut SaProbes,
) {
    let node = world.host(host).node();
    let ports = world
        .fabric()
        .node(node)
        .map_or(0, |node| node.port_count());
    for port in (1..=ports).map(PortNum) {
        let at = host.port(port.0);
        while let Some(event) = world.poll_event(at) {
            probes.note(at, world.now(), &event);
        }
        if let Some(physical) = world.fabric().port(node.port(port.0)) {
            history.note_losses(at, world.now(), physical.counters.link_downed);
        }
        if let Some(errors) = link_errors(world.fabric(), node.port(port.0)) {
            history.note_errors(at, world.now(), errors);
        }
    }
    if is_pf {
        while let Some((when, event)) = world.poll_vf_news(host) {
            history.note(host, when, &event);
        }
    }
}

/// Returns the errors that both ends of a port's link have counted: of symbols, of recoveries and of packets.
fn link_errors(fabric: &Fabric, at: Endpoint) -> Option<u64> {
    let ends = [Some(at), fabric.peer(at)].into_iter().flatten();
    let counters = ends.filter_map(|end| Some(fabric.port(end)?.counters));
    counters
        .map(|of| {
            let packets =
                of.rcv_errors + of.local_link_integrity_errors + of.excessive_buffer_overruns;
            of.symbol_errors + of.link_error_recoveries + packets
        })
        .reduce(|one, other| one + other)
}

/// Returns the node GUIDs of an adapter's first VFs.
fn vf_node_guids(adapter: Guid, vfs: u16) -> impl Iterator<Item = Guid> {
    let vfs = (1..=vfs).filter_map(VfId::new);
    vfs.map(move |vf| vf_node_guid(adapter, vf))
}

/// Returns the configuration of vhca's own subnet manager, with members of partitions by the adapters' names.
fn subnet_config(
    options: &Options,
    hcas: &[HcaConfig],
    cast: &Cast,
) -> Result<SubnetConfig, SubnetError> {
    if options.sm != SmChoice::Lite {
        options.subnet.check_unused()?;
    }
    let ports = |hca: &HcaConfig| (1..=hca.ports).map(|port| hca.port_guid(port)).collect();
    let adapters = hcas
        .iter()
        .map(|hca| (hca.description.as_str(), ports(hca)));
    let manager = hcas[cast.manager].port_guid(1);
    options.subnet.config(manager, &adapters.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_whose_vfs_would_share_a_guid_cannot_both_have_vfs() {
        let options = Options {
            vfs: 2,
            ..Options::default()
        };
        let mut lab = Lab::empty(1);
        let config = |guid, name| HcaConfig::new(Guid::new(guid), name);
        let mut add = |config: &HcaConfig| lab.add_pf(&options, config);
        // Found by trying three million.
        add(&config(0x0002_c900_001e_09c5, "alpha")).unwrap();
        let refused = add(&config(0x0002_c900_0010_4512, "beta")).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a VF of beta would have the node GUID of one of alpha: give one of the adapters another node GUID"
        );
        add(&config(0x0002_c900_0010_4513, "beta")).unwrap();
    }
}
