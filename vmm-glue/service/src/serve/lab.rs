//! What is served: a world whose nodes and hosts have names.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;

use emulated_hca::{Built, Endpoint, Fabric, HcaConfig, LinkConfig, LinkId, NodeId};
use ib_endpoint::EndPortError;
use ib_vtime::{Duration, Instant, Secret, SecretNumbers};
use ib_wire::{Guid, PortNum};
use pf_context::context::{PfConfig, PfError, VfPortSpec, VfSpec};
use pf_context::{AdaptAnswer, PlaceError};
use rustix::process::Pid;
use subnet_lite::{OpenError, SubnetConfig};
use thiserror::Error;
use vf_proxy::{PciFunction, Personality, mlx4};
use vf_tunnel::VfId;
use vhca_control::protocol::Sockets;
use vhca_control::{GuestAction, GuestReport, Refusal, Right};

use super::cast::Cast;
use super::guests::{Guests, JobId};
use super::rights::rights;
use super::set::{VfSettings, first_pkey};
use super::subnet::SubnetError;
use super::verbs::{ProcessMemory, ProcessVf, ProgramLimit, VerbsNetwork};
use super::watchdog::{Stall, Stalls};
use super::why::{Awaited, History, SaProbes};
use super::{NamedVf, Options, Plan, PlanError, Seat, SidrSpec, SmChoice, host_memory};
use crate::show::{ManagerFacts, Programs, ServiceFacts};
use vhca::Driven;
use vhca::Slice;
use vhca::world::{HostFunction, HostId, HostPortId, VfError, World, vf_spec};
use vhca_vfio_user::{GuestMemory, MemoryLimit, MemoryPool};

/// The adapter that VFs show to VMMs.
const SHOWN: Personality = mlx4::PERSONALITY;

/// Why a lab cannot be built.
#[derive(Debug, Error)]
pub enum LabError {
    /// The topology file cannot be used.
    #[error(transparent)]
    Topology(#[from] PlanError),
    /// No adapter has that name.
    #[error("there is no adapter {0:?} in the topology: name one of {1}")]
    NoSuchAdapter(String, String),
    /// A switch has no VFs, and no software of its own.
    #[error("{0} is a switch, and cannot be in pf or be the manager: name one of {1}")]
    Switch(String, String),
    /// Two names of one adapter.
    #[error("pf names {0} twice, once as {1}: name it once")]
    TwoNames(String, String),
    /// An adapter is to be shared, and the manager's alone.
    #[error("{0} is both manager and in pf: name another manager, or leave it out of pf")]
    ManagerShared(String),
    /// The topology has no adapter.
    #[error("the topology has no adapter")]
    NoAdapter,
    /// The adapter has not so many VFs.
    #[error("{host} has {most} VFs at most, not {wanted}")]
    TooManyVfs {
        /// The host.
        host: String,
        /// How many it has.
        most: u16,
        /// How many are wanted.
        wanted: u16,
    },
    /// A host's software cannot be started.
    #[error("cannot start host {0}")]
    Host(String, #[source] EndPortError),
    /// A PF context cannot be started.
    #[error("cannot start the PF context of {0}")]
    Pf(String, #[source] PfError),
    /// The VFs of two adapters would have the same node GUIDs.
    #[error(
        "the VFs of {0} would have the node GUIDs of those of {1}, since their adapters' node GUIDs \
         end alike: give one of them another"
    )]
    SameGuids(String, String),
    /// A VF cannot be started.
    #[error("cannot start {1} of {0}")]
    Vf(String, VfId, #[source] VfError),
    /// A VF cannot be given to VMMs.
    #[error("cannot make a device of {1} of {0}")]
    Device(String, VfId, #[source] PlaceError),
    /// The network of programs has no address for the VFs of a host.
    #[error(
        "{1} has no address for the VFs of {0}: give a larger verbs_network, such as 127.0.0.0/8"
    )]
    NoAddress(String, VerbsNetwork),
    /// A VF cannot be given addresses or services.
    #[error("[[sidr]] of VF {1} of {0}: {2}")]
    Sidr(String, u16, String),
    /// The subnet manager cannot be configured.
    #[error(transparent)]
    Subnet(#[from] SubnetError),
    /// The subnet manager cannot be started.
    #[error("cannot start the subnet manager on {0}")]
    Manager(String, #[source] OpenError),
}

/// A host by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabHost {
    /// The description of its adapter.
    pub name: String,
    /// The host.
    pub id: HostId,
    /// Whether it shares its adapter among VFs.
    pub is_pf: bool,
}

/// A world whose nodes and hosts have names.
#[derive(Debug)]
pub struct Lab {
    world: World,
    hosts: Vec<LabHost>,
    /// Which of the hosts is for management.
    manager: usize,
    /// Secrets of PFs and of programs.
    pub(super) secrets: SecretNumbers,
    /// Names of nodes besides their descriptions.
    names: BTreeMap<String, NodeId>,
    pub(super) guests: Guests,
    /// What was changed on VFs' ports.
    pub(super) settings: BTreeMap<HostPortId, VfSettings>,
    pub(super) history: History,
    /// Links as they were before they had faults.
    pub(super) sound_cables: BTreeMap<LinkId, LinkConfig>,
    /// What the SAs of the PFs' ports were asked for diagnoses.
    pub(super) sa_probes: SaProbes,
    /// The programs that say that they are the subnet managers of ports, as far as their processes are known.
    pub(super) managers: BTreeMap<Endpoint, Pid>,
    /// The nodes of simulators that are not attached yet.
    pub(super) awaited: Awaited,
    /// Memory that devices of guests without a quota of their own share, and programs.
    memory_pool: Arc<MemoryPool>,
    /// The VFs that VMMs can take.
    pub(super) seats: BTreeMap<HostFunction, Seat>,
    /// The VFs that programs on libibverbs can have.
    pub(super) process_vfs: BTreeMap<HostFunction, ProcessVf>,
    /// Whether the PF contexts have QP0 of their ports, for VFs with the right to send SMPs.
    pub(super) vfs_may_have_smi: bool,
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
            return Ok(Self::empty(secret));
        }
        let Plan { topology, names } = options.topology.plan()?;
        let (fabric, built) = topology.build(secret);
        let cast = Cast::new(options, &topology, &names)?;
        let names = names.into_iter();
        let mut lab = Self {
            manager: cast.manager,
            names: names
                .filter_map(|(name, node)| Some((name, built.node(node)?)))
                .collect(),
            ..Self::of(World::new(fabric, secret), secret)
        };
        lab.start_hosts(options, &topology.hcas, &built, &cast)?;
        let nobodys = |spec: &&SidrSpec| lab.pf_hosts().all(|host| host.name != spec.host);
        match options.sidr.iter().find(nobodys) {
            Some(spec) => Err(no_sidr(spec, "no host of that name has VFs")),
            None => Ok(lab),
        }
    }

    /// A lab without a node.
    #[must_use]
    pub fn empty(secret: impl Into<Secret>) -> Self {
        let secret = secret.into();
        Self::of(World::new(Fabric::new(secret), secret), secret)
    }

    fn of(world: World, secret: Secret) -> Self {
        Self {
            world,
            hosts: Vec::new(),
            manager: 0,
            secrets: secret.of(b"PFs, VFs").numbers(),
            names: BTreeMap::new(),
            guests: Guests::default(),
            settings: BTreeMap::new(),
            history: History::default(),
            sound_cables: BTreeMap::new(),
            sa_probes: SaProbes::default(),
            managers: BTreeMap::new(),
            awaited: Awaited::default(),
            // The service itself, and the VMMs beside it, need the other half.
            memory_pool: Arc::new(MemoryPool::new(host_memory::most() / 2)),
            seats: BTreeMap::new(),
            process_vfs: BTreeMap::new(),
            vfs_may_have_smi: false,
            started: Duration::ZERO,
            programs: Programs::default(),
            sockets: Sockets::default(),
            stalls: Stalls::default(),
            stalled: BTreeMap::new(),
        }
    }

    /// Adds a host with an adapter of its own, which it shares among VFs. The adapter has no cable.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn add_pf(&mut self, options: &Options, config: &HcaConfig) -> Result<HostId, LabError> {
        let node = self.world.fabric_mut().add_hca(config);
        let name = config.description.clone();
        let id = self.start_pf(options, &name, node, config)?;
        let is_pf = true;
        self.hosts.push(LabHost { name, id, is_pf });
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
            } else {
                let started = self.world.add_host(*node);
                started.map_err(|error| LabError::Host(name.clone(), error))?
            };
            if index == cast.manager && options.sm == SmChoice::Lite {
                let subnet = subnet.clone();
                let started = self.world.start_manager(id.port(1), subnet);
                started.map_err(|error| LabError::Manager(name.clone(), error))?;
            }
            self.hosts.push(LabHost { name, id, is_pf });
        }
        Ok(())
    }

    fn start_pf(
        &mut self,
        options: &Options,
        name: &str,
        node: NodeId,
        config: &HcaConfig,
    ) -> Result<HostId, LabError> {
        let most = config.max_functions.min(VfId::MAX);
        let too_many = || LabError::TooManyVfs {
            host: name.to_owned(),
            most,
            wanted: options.vfs,
        };
        if options.vfs > most {
            return Err(too_many());
        }
        if let Some(other) = self
            .pf_hosts()
            .find(|host| self.node_guid(host).map(extension) == Some(extension(config.node_guid)))
        {
            return Err(LabError::SameGuids(name.to_owned(), other.name.clone()));
        }
        let config_of_pf = PfConfig {
            limits: options.quotas.limits(),
            policy: options.policy.policy(),
            smi: options.rights.contains(&Right::Smi),
            ..PfConfig::new(self.secrets.secret())
        };
        self.vfs_may_have_smi |= config_of_pf.smi;
        let started = self.world.add_pf_host(node, &config_of_pf);
        let id = started.map_err(|error| LabError::Pf(name.to_owned(), error))?;
        for number in 1..=options.vfs {
            let vf = VfId::new(number).ok_or_else(too_many)?;
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
                ports: vec![port; usize::from(config.ports)],
                ..vf_spec(vf_node_guid(config.node_guid, vf))
            };
            let offered = vmm_has_it.then(|| {
                let pool = || MemoryLimit::Pool(self.memory_pool.clone());
                let limit = options.quotas.guest_bytes().map(MemoryLimit::Bytes);
                GuestMemory::new(limit.unwrap_or_else(pool))
            });
            if let Some(memory) = &offered {
                spec.memory = Box::new(memory.clone());
            }
            let for_programs = is_for_program.then(ProcessMemory::default);
            if let Some(memory) = &for_programs {
                spec.memory = Box::new(memory.clone());
            }
            let added = if options.guests {
                self.add_guest(id, vf, spec)
            } else {
                self.world.add_idle_vf(id, vf, spec).map_err(VfError::from)
            };
            added.map_err(|error| LabError::Vf(name.to_owned(), vf, error))?;
            if let Some(memory) = for_programs {
                let limit = ProgramLimit {
                    most: options.quotas.program_bytes(),
                    pool: self.memory_pool.clone(),
                };
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
            let set = self.world.context_mut(id).set_sidr(vf, &spec.at);
            set.map_err(|error| no_sidr(spec, error))?;
        }
        Ok(id)
    }

    /// Notes at a VF that the service stood for the client which had it, if it did.
    pub(super) fn note_stall(&mut self, client: RawFd, at: HostFunction) {
        if let Some(stall) = self.stalls.take(client) {
            self.stalled.insert(at, (stall, self.world.now()));
        }
    }

    fn node_guid(&self, host: &LabHost) -> Option<Guid> {
        let node = self.world.host(host.id).node();
        self.world.fabric().node(node).map(|node| node.node_guid)
    }

    fn add_guest(&mut self, host: HostId, vf: VfId, spec: VfSpec) -> Result<(), VfError> {
        let on = self.world.add_vf(host, vf, spec)?;
        Ok(self.guests.add(&mut self.world, on)?)
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
        let at = self.world.add_device(host, vf, function)?;
        let seat = Seat::new(at, vf, name.to_owned(), memory);
        self.seats.insert(at, seat);
        Ok(())
    }

    /// The world.
    #[must_use]
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// The world, to be used. What is put into it is done with the next poll.
    pub const fn world_mut(&mut self) -> &mut World {
        &mut self.world
    }

    /// The fabric.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        self.world.fabric()
    }

    /// The hosts, in the order of the topology.
    #[must_use]
    pub fn hosts(&self) -> &[LabHost] {
        &self.hosts
    }

    /// The hosts that share their adapters.
    pub fn pf_hosts(&self) -> impl Iterator<Item = &LabHost> {
        self.hosts.iter().filter(|host| host.is_pf)
    }

    /// The management host.
    #[must_use]
    pub fn manager(&self) -> Option<&LabHost> {
        self.hosts.get(self.manager)
    }

    /// Returns what is measured of the service itself.
    pub(super) fn service_facts(&self) -> ServiceFacts {
        let host = self.manager().map(|host| self.world.host(host.id));
        let manager = host.and_then(|host| host.manager().zip(Some(host.sweeps())));
        ServiceFacts {
            started: self.started,
            manager: manager.map(|(manager, sweeps)| ManagerFacts {
                state: manager.sm().state().get(),
                stats: manager.sm().stats(),
                sweep_time: sweeps.time,
                last_sweep: sweeps.last.map(|(time, _)| time),
                last_sweep_age: sweeps.last.map(|(_, end)| self.world.now() - end),
            }),
            programs: self.programs,
        }
    }

    /// A host by its name.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<&LabHost> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// A host that shares its adapter, by any name of the adapter's.
    ///
    /// # Errors
    /// A refusal that names those that exist.
    pub fn pf_host(&self, name: &str) -> Result<&LabHost, Refusal> {
        let node = self.node(name);
        self.pf_hosts()
            .find(|host| node == Some(self.world.host(host.id).node()))
            .ok_or_else(|| {
                if let Some(refusal) = self.awaited.refusal(Some(name)) {
                    return refusal;
                }
                let names: Vec<&str> = self.pf_hosts().map(|host| host.name.as_str()).collect();
                let message = format!("no host {name:?} has VFs; there are {}", names.join(", "));
                Refusal::new("no_such_host", message)
            })
    }

    /// A node by its description, by the name that its topology file has for it, or by its node GUID as
    /// `0x` and its digits.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<NodeId> {
        if let Some(node) = self.names.get(name) {
            return Some(*node);
        }
        let digits = name.strip_prefix("0x");
        let guid = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let fabric = self.world.fabric();
        let mut ids = fabric.nodes().map(|(id, _)| id);
        ids.find(|id| {
            fabric.node(*id).is_some_and(|node| {
                node.description.as_str() == Some(name) || Some(node.node_guid.get()) == guid
            })
        })
    }

    /// Lets happen what is due, until the slice is over.
    pub(super) fn poll(&mut self, now: Instant, slice: &mut Slice) {
        self.world.poll_for(now, slice);
        while let Some(polled) = self.world.take_polled() {
            if let Some(host) = self.hosts.iter().find(|host| host.id == polled) {
                take_events(
                    &mut self.world,
                    host,
                    &mut self.history,
                    &mut self.sa_probes,
                );
            }
            self.guests.poll(&mut self.world, polled);
        }
        self.guests.expire(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let guests = self.guests.poll_timeout();
        self.world.poll_timeout().into_iter().chain(guests).min()
    }

    /// Has the guests of VFs do something. What came of it is told by [`Lab::poll_report`].
    ///
    /// # Errors
    /// A refusal that says what is wrong with the action.
    pub fn guests_do(&mut self, vfs: &[NamedVf], action: &GuestAction) -> Result<JobId, Refusal> {
        let now = self.world.now();
        let started = self.guests.start(&mut self.world, now, vfs, action);
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
        for host in self.hosts.iter().filter(|host| host.is_pf) {
            // A VF that cannot be reset keeps nobody from giving the rest back.
            let _ = self.world.shut_down(host.id);
        }
    }

    /// Whether nothing of the VFs is left at the SA.
    pub(super) fn is_quiet(&self) -> bool {
        let mut contexts = self.pf_hosts().map(|host| self.world.context(host.id));
        contexts.all(pf_context::PfContext::is_quiet)
    }
}

fn no_sidr(spec: &SidrSpec, why: impl ToString) -> LabError {
    LabError::Sidr(spec.host.clone(), spec.vf, why.to_string())
}

/// Takes the events of a host's own software, for which only diagnoses wait, and what happened to its VFs.
fn take_events(world: &mut World, host: &LabHost, history: &mut History, probes: &mut SaProbes) {
    let node = world.host(host.id).node();
    let ports = world
        .fabric()
        .node(node)
        .map_or(0, |node| node.port_count());
    for port in (1..=ports).map(PortNum) {
        let at = host.id.port(port.0);
        while let Some(event) = world.poll_event(at) {
            probes.note(at, world.now(), &event);
        }
        if let Some(physical) = world.fabric().port(node.port(port.0)) {
            history.note_losses(at, world.now(), physical.counters.link_downed);
        }
    }
    if host.is_pf {
        while let Some((when, event)) = world.poll_vf_news(host.id) {
            history.note(host.id, when, &event);
        }
    }
}

/// The node GUID of a VF, `02:VV:VV:EE:EE:EE:EE:EE`: a locally administered EUI-64 with the VF's number where
/// a company's is, and its adapter's extension identifier.
///
/// So it is the same whenever the service starts, and different from VF to VF and from every node of a
/// vendor's. The PF's driver of a real adapter gives each VF a random one anew whenever it is loaded
/// (`mlx4_ib_gen_node_guid`), which keeps peers from taking new connections for old ones; here the ids of
/// connections do that, which are different each time.
fn vf_node_guid(adapter: Guid, vf: VfId) -> Guid {
    const LOCAL: u64 = 0x02 << 56;
    Guid::new(LOCAL | u64::from(vf.get()) << 40 | extension(adapter))
}

/// The extension identifier of an EUI-64: what a company numbers its devices with.
const fn extension(guid: Guid) -> u64 {
    guid.get() & 0xff_ffff_ffff
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
    fn a_vf_s_node_guid_is_its_own_and_always_the_same() {
        let vf = |number| VfId::new(number).unwrap();
        let adapter = Guid::new(0x0002_c903_0000_1000);
        let first = vf_node_guid(adapter, vf(1));
        assert_eq!(first, Guid::new(0x0200_0103_0000_1000));
        assert_eq!(
            vf_node_guid(adapter, vf(100)),
            Guid::new(0x0200_6403_0000_1000)
        );
        let other = Guid::new(0x0002_c903_0001_1000);
        assert_ne!(vf_node_guid(other, vf(1)), first);
    }

    #[test]
    fn adapters_of_two_vendors_with_one_number_cannot_both_have_vfs() {
        let options = Options {
            vfs: 2,
            ..Options::default()
        };
        let mut lab = Lab::empty(1);
        let config = |guid, name| HcaConfig::new(Guid::new(guid), name);
        let mut add = |config: &HcaConfig| lab.add_pf(&options, config);
        add(&config(0x0002_c903_0000_1000, "alpha")).unwrap();
        let refused = add(&config(0x0014_0503_0000_1000, "beta")).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the VFs of beta would have the node GUIDs of those of alpha, since their adapters' node \
             GUIDs end alike: give one of them another"
        );
        add(&config(0x0014_0503_0000_2000, "beta")).unwrap();
    }
}
