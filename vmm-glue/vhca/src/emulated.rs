//! An emulated fabric in the VMM's own process: a world with one VF by one call, and the types that a [`World`] takes
//! and returns.
//!
//! Such a VF reaches the hosts and VFs of its own world, so VMs of one process. A trunk joins worlds of several processes, or one and
//! `vhca serve`.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use thiserror::Error;
use vm_memory::GuestAddressSpace;

pub use emulated_hca::{
    Adapters, DropReason, Endpoint, Fabric, Fault, FaultPlan, HcaConfig, NodeId, PacketFilter,
    PlannedPort, PortConfig, TapId, TapPoint, Topology, When,
};
pub use hca_api::{
    AccessFlags, AddressSpace, Completion, CompletionStatus, Consumer, DmaBuffer, FunctionId, Hca,
    HcaError, HcaEvent, Payload, QpState, RKey, RemoteAddress, SendFlags, SendOp, SpecialQp,
    UdDestination,
};
pub use ib_capture::FrameRecord;
pub use ib_endpoint::{
    Datagram, DatagramQp, DatagramQpSpec, EndPort, EndPortError, EndPortEvent, MadAgent, SmaError,
};
pub use ib_vtime::{Duration, Instant, Secret};
pub use ib_wire::packet::FlushPlacement;
pub use ib_wire::{Gid, Guid, Lid, PKey, PKeyIndex, PortNum, QKey, Qpn};
pub use pf_context::context::{PfConfig, PfError, PfEvent, VfPortSpec, VfSpec};
pub use pf_context::inspect::Inspect;
pub use pf_context::{AdaptAnswer, EgressLimit, PfContext, PlaceError, VfPKeyEntry};
pub use subnet_lite::sm::SmEvent;
pub use subnet_lite::{OpenError, SubnetConfig, SubnetManager};
pub use vf_pci::{PciDevice, PciFunction};
pub use vf_proxy::Personality;
pub use vf_proxy::mlx4::PERSONALITY as MLX4;
pub use vf_proxy::native::{
    ConnectedQp, ConnectedQpId, ConnectedQpSpec, GroupEvent, GroupId, GroupSpec, LocalMemory,
    MemoryRegion, Partition, Peer, ReceiveRing, Received, RegistrationPool, ResolveError,
    SharedCompletionsId, Transfer, TransferError, TransferLimits, TransferState, UdQp, UdQpId,
    UdQpSpec, VfPort, VfPortError, VfPortEvent, VirtualHca, VirtualHcaConfig, VirtualHcaEvent,
};
pub use vf_tunnel::VfId;

use crate::GuestRam;
use crate::world::{HostFunction, HostId, VfError, World, vf_node_guid, vf_spec};

/// Virtual time in which a subnet of two hosts comes up.
const SUBNET_UP: Duration = Duration::from_secs(2);

/// Hosts of [`World::with_hosts`] at most: a switch has 254 ports.
const MOST_HOSTS: u8 = 200;

/// The VF of [`World::with_one_vf`].
const FIRST: VfId = VfId::new(1).expect("VFs are numbered from 1");

/// Properties of a VF that a VMM drives.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VfOptions {
    /// Keys, PSNs and ids follow from this. Random by default, as it must be outside of tests; `seed.into()` makes a run
    /// that can be repeated.
    pub secret: Secret,
    /// GUID of the VF's adapter as its guest sees it; by default it follows from the host's and the VF's number. The GUIDs of its
    /// ports are the SA's choice.
    pub node_guid: Option<Guid>,
    /// The kind of adapter that the guest's driver finds: a ConnectX-3 VF by default.
    pub personality: Personality,
}

/// Returns the secret of a process without a random source of its own: hashes under keys that the system has drawn for its
/// hash tables, 128 bits of them.
fn random_secret() -> Secret {
    let mut bits = [0; 32];
    for part in bits.chunks_exact_mut(8) {
        let hash = RandomState::new().build_hasher().finish();
        part.copy_from_slice(&hash.to_ne_bytes());
    }
    Secret::new(bits)
}

impl Default for VfOptions {
    fn default() -> Self {
        Self {
            secret: random_secret(),
            node_guid: None,
            personality: MLX4,
        }
    }
}

/// Why [`World::with_one_vf`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SetUpError {
    /// The software of the management host cannot be started.
    #[error("the management host cannot be started")]
    Host(#[from] EndPortError),
    /// The subnet manager cannot be started.
    #[error("the subnet manager cannot be started")]
    Manager(#[from] OpenError),
    /// The PF or the VF was refused.
    #[error(transparent)]
    Vf(#[from] VfError),
}

impl From<PfError> for SetUpError {
    fn from(error: PfError) -> Self {
        Self::Vf(error.into())
    }
}

/// Sets GUIDs that follow from a world's secret, so that fabrics of several processes that trunks join have none twice.
fn set_guids(topology: &mut Topology, secret: Secret) {
    let of_world = secret.of(b"GUIDs   ").seed() >> 24;
    // 0x06 is a locally administered EUI-64, as GUIDs of sites are. The topologies here have far fewer nodes than there are numbers.
    let guid = |number| Guid::new(0x06 << 56 | of_world << 16 | u64::from(number));
    let _ = topology.move_to_site(guid);
}

impl World {
    /// Makes a world with one VF for a guest's memory: a host that runs a subnet manager, and a host whose PF offers the
    /// VF. The subnet is up when this returns. The name is for [`Backend::attach`](crate::device::Backend::attach).
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn with_one_vf<M>(
        memory: M,
        options: &VfOptions,
    ) -> Result<(Self, HostFunction), SetUpError>
    where
        M: GuestAddressSpace + Send + 'static,
    {
        let mut topology = Topology::two_switches(1);
        set_guids(&mut topology, options.secret);
        let (fabric, built) = topology.build(options.secret);
        let mut world = Self::new(fabric, options.secret);
        let [manager, shared] = [built.hcas[0], built.hcas[1]];
        let manager = world.add_host(manager)?;
        world.start_manager(manager.port(1), SubnetConfig::default())?;
        let host = world.add_pf_host(shared, &PfConfig::new(options.secret.of(b"the PF  ")))?;
        let at = world.add_vf_for_vmm(host, FIRST, memory, options)?;
        world.run_for(SUBNET_UP);
        Ok((world, at))
    }

    /// Makes a world of so many hosts whose PFs have VFs, 200 at most, and a host that runs a subnet manager, at one switch; its other ports
    /// are free. [`World::add_vf_for_vmm`] adds a VF for each VM, on any host. The subnet is up when this returns.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn with_hosts(count: u8, options: &VfOptions) -> Result<(Self, Vec<HostId>), SetUpError> {
        let mut topology = Topology::default();
        let switch = topology.add_switch("switch", 254);
        for number in 0..=count.min(MOST_HOSTS) {
            let node = topology.add_hca(&format!("host-{number}"), 1);
            let port = PlannedPort::Switch(switch, number + 1);
            topology.connect(PlannedPort::Hca(node, 1), port);
        }
        set_guids(&mut topology, options.secret);
        let (fabric, built) = topology.build(options.secret);
        let mut world = Self::new(fabric, options.secret);
        let mut nodes = built.hcas.into_iter();
        if let Some(manager) = nodes.next() {
            let manager = world.add_host(manager)?;
            world.start_manager(manager.port(1), SubnetConfig::default())?;
        }
        let mut secrets = options.secret.of(b"the PFs ").numbers();
        let hosts = nodes.map(|node| world.add_pf_host(node, &PfConfig::new(secrets.secret())));
        let hosts = hosts.collect::<Result<_, _>>()?;
        world.run_for(SUBNET_UP);
        Ok((world, hosts))
    }

    /// Makes a world of one host with one VF for a guest's memory, without a switch and a subnet manager: a trunk of the returned port
    /// ([`World::add_trunk`]) makes it a host of another fabric, whose manager gives it a LID of its own.
    ///
    /// # Errors
    /// [`SetUpError`].
    #[cfg(feature = "trunk")]
    pub fn with_one_vf_for_a_trunk<M>(
        memory: M,
        options: &VfOptions,
    ) -> Result<(Self, HostFunction, Endpoint), SetUpError>
    where
        M: GuestAddressSpace + Send + 'static,
    {
        let mut topology = Topology::default();
        topology.add_hca("host", 1);
        set_guids(&mut topology, options.secret);
        let (fabric, built) = topology.build(options.secret);
        let mut world = Self::new(fabric, options.secret);
        let node = built.hcas[0];
        let host = world.add_pf_host(node, &PfConfig::new(options.secret.of(b"the PF  ")))?;
        let at = world.add_vf_for_vmm(host, FIRST, memory, options)?;
        Ok((world, at, node.port(1)))
    }

    /// Adds another VF for a VMM, on a host with a PF.
    ///
    /// # Errors
    /// [`VfError`]; nothing is left behind then.
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn add_vf_for_vmm<M>(
        &mut self,
        host: HostId,
        vf: VfId,
        memory: M,
        options: &VfOptions,
    ) -> Result<HostFunction, VfError>
    where
        M: GuestAddressSpace + Send + 'static,
    {
        let own = || {
            let node = self.fabric().node(self.host(host).node());
            vf_node_guid(node.map_or(Guid::NONE, |node| node.node_guid), vf)
        };
        let node_guid = options.node_guid.unwrap_or_else(own);
        let port = VfPortSpec {
            adapt_answer: Some(AdaptAnswer(options.personality.adapt_answer)),
            ..VfPortSpec::default()
        };
        let spec = VfSpec {
            memory: Box::new(GuestRam::new(memory)),
            ports: vec![port],
            ..vf_spec(node_guid)
        };
        self.add_idle_vf(host, vf, spec)?;
        let at = self.add_device(host, vf, (options.personality.make)())?;
        Ok(at)
    }
}
