//! The demo's subnet: [`Topology::three_switches`], whose hosts share their adapters among guests.

use emulated_hca::{LinkConfig, LinkId, PlannedPort, Topology};
use hca_api::{HcaError, QpKind};
use ib_endpoint::{DatagramQpSpec, EndPortError};
use ib_vtime::Duration;
use ib_wire::{Guid, PKeyIndex, PortNum, QKey};
use pf_context::context::{PfConfig, PfError};
use thiserror::Error;
use vf_tunnel::VfId;

use vhca::world::{HostFunction, HostId, HostPortId, SocketId, VfError, World, vf_spec};

/// The Q_Key of the demo's own datagrams.
pub(super) const QKEY: QKey = QKey::new(0x1111_1111);

/// Time that a signal takes along a cable of 20 m.
const LATENCY: Duration = Duration::from_nanos(100);

/// The names of the hosts that share their adapters.
const HOSTS: [&str; 2] = ["host-a", "host-b"];

/// The names of their guests.
const GUESTS: [[&str; 4]; 2] = [
    ["a/vf1", "a/vf2", "a/vf3", "a/vf4"],
    ["b/vf1", "b/vf2", "b/vf3", "b/vf4"],
];

/// The first of the node GUIDs that the VFs show.
const VF_NODE_GUID: u64 = 0x0002_c903_00f0_0000;

/// Why the subnet cannot be built.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// A host's software cannot be started.
    #[error("cannot start a host")]
    Host(#[from] EndPortError),
    /// A PF context cannot be started.
    #[error("cannot start a PF context")]
    Pf(#[from] PfError),
    /// A VF cannot be started.
    #[error("cannot start a VF")]
    Vf(#[from] VfError),
    /// A queue pair cannot be made.
    #[error("cannot make a queue pair")]
    Hca(#[from] HcaError),
    /// The planned topology lacks a part that the demo needs.
    #[error("the topology has no {0}")]
    Missing(&'static str),
}

/// A port of a host or a guest, by name, with its datagram socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedPort {
    pub(super) name: &'static str,
    pub(super) at: HostPortId,
    pub(super) socket: SocketId,
}

/// A host that shares its adapter, by name.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedHost {
    pub(super) name: &'static str,
    pub(super) id: HostId,
}

/// Who is in the demo, and the link that will fail.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) manager: NamedPort,
    pub(super) hosts: [NamedHost; 2],
    /// For each host its guests, each by its first port.
    guests: Vec<Vec<NamedPort>>,
    /// The link between the switches of the hosts' first ports.
    pub(super) direct_link: LinkId,
}

impl Network {
    /// Builds the fabric and starts the software of hosts and guests. No subnet manager runs yet.
    pub(super) fn build(seed: u64) -> Result<(World, Self), NetworkError> {
        let mut plan = Topology::three_switches();
        plan.link = LinkConfig {
            latency: LATENCY,
            timed: true,
            ..LinkConfig::default()
        };
        let (fabric, built) = plan.build(seed);
        let [manager, a, b] = built.hcas[..] else {
            return Err(NetworkError::Missing("three adapters"));
        };
        let switch_of = |hca| {
            built
                .endpoint(PlannedPort::Hca(hca, 1))
                .and_then(|port| fabric.peer(port))
        };
        let direct_link = switch_of(1).zip(switch_of(2)).and_then(|(one, other)| {
            fabric.links().find(|link| {
                let ends = fabric.link_ends(*link).map(|ends| ends.map(|end| end.node));
                ends == Some([one.node, other.node]) || ends == Some([other.node, one.node])
            })
        });
        let direct_link = direct_link.ok_or(NetworkError::Missing("direct link"))?;

        let mut world = World::new(fabric, seed);
        let manager = world.add_host(manager)?.pf();
        let manager = open_port(&mut world, "manager/1", manager)?;
        let mut hosts = Vec::new();
        let mut guests = Vec::new();
        for ((number, name), (node, names)) in (1..).zip(HOSTS).zip([a, b].into_iter().zip(GUESTS))
        {
            let config = PfConfig::new(seed.wrapping_add(number));
            let id = world.add_pf_host(node, &config)?;
            hosts.push(NamedHost { name, id });
            guests.push(add_guests(&mut world, id, number, names)?);
        }
        let [a, b] = hosts[..] else {
            return Err(NetworkError::Missing("two hosts"));
        };
        let network = Self {
            manager,
            hosts: [a, b],
            guests,
            direct_link,
        };
        Ok((world, network))
    }

    /// A guest of host-a, counted from 1 as its VF is.
    pub(super) fn a(&self, vf: usize) -> NamedPort {
        self.guests[0][vf - 1]
    }

    /// A guest of host-b.
    pub(super) fn b(&self, vf: usize) -> NamedPort {
        self.guests[1][vf - 1]
    }

    /// The guests of both hosts.
    pub(super) fn guests(&self) -> Vec<NamedPort> {
        self.guests.concat()
    }

    /// Opens the socket of a guest whose software was started anew. Gives the guest as it is now.
    pub(super) fn reopen(
        &mut self,
        world: &mut World,
        guest: NamedPort,
    ) -> Result<NamedPort, HcaError> {
        let anew = open_port(world, guest.name, guest.at.on())?;
        for known in self.guests.iter_mut().flatten() {
            if known.at == guest.at {
                *known = anew;
            }
        }
        Ok(anew)
    }
}

/// Gives a host as many VFs as there are names, each with a guest.
fn add_guests(
    world: &mut World,
    host: HostId,
    number: u64,
    names: [&'static str; 4],
) -> Result<Vec<NamedPort>, NetworkError> {
    let mut guests = Vec::new();
    for (n, name) in (1..).zip(names) {
        let vf = VfId::new(n).ok_or(NetworkError::Missing("such VF"))?;
        let node_guid = Guid::new(VF_NODE_GUID + (number << 8) + u64::from(n));
        let function = world.add_vf(host, vf, vf_spec(node_guid))?;
        guests.push(open_port(world, name, function)?);
    }
    Ok(guests)
}

/// Opens a socket on the first port of a function.
fn open_port(
    world: &mut World,
    name: &'static str,
    function: HostFunction,
) -> Result<NamedPort, HcaError> {
    let at = function.port(1);
    let socket = world.open_socket(
        function,
        DatagramQpSpec {
            kind: QpKind::Ud,
            port: PortNum(1),
            pkey_index: PKeyIndex(0),
            qkey: QKEY,
            receives: 16,
            sends: 16,
            max_message: 2048,
            block_multicast_loopback: false,
        },
    )?;
    Ok(NamedPort { name, at, socket })
}
