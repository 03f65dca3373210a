//! The demo's subnet: [`Topology::three_switches`] with the software of its hosts.

use emulated_hca::{LinkConfig, LinkId, PlannedPort, Topology};
use hca_api::{HcaError, QpKind};
use ib_endpoint::{DatagramQpSpec, EndPortError};
use ib_vtime::Duration;
use ib_wire::{PKeyIndex, QKey};
use thiserror::Error;

use crate::world::{HostId, HostPortId, SocketId, World};

/// The Q_Key of the demo's own datagrams.
pub(super) const QKEY: QKey = QKey::new(0x1111_1111);

/// Time that a signal takes along a cable of 20 m.
const LATENCY: Duration = Duration::from_nanos(100);

/// Why the subnet cannot be built.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// A host's software cannot be started.
    #[error("cannot start a host")]
    Host(#[from] EndPortError),
    /// A host's queue pair cannot be made.
    #[error("cannot make a queue pair")]
    Hca(#[from] HcaError),
    /// The planned topology lacks a part that the demo needs.
    #[error("the topology has no {0}")]
    Missing(&'static str),
}

/// A port of a host, by name, with its datagram socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedPort {
    pub(super) name: &'static str,
    pub(super) at: HostPortId,
    pub(super) socket: SocketId,
}

/// The ports of the demo's hosts, and the link that will fail.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) manager: NamedPort,
    pub(super) a1: NamedPort,
    pub(super) a2: NamedPort,
    pub(super) b1: NamedPort,
    pub(super) b2: NamedPort,
    /// The link between the switches of host-a's and host-b's first ports.
    pub(super) direct_link: LinkId,
}

impl Network {
    /// Builds the fabric and starts the hosts' software. No subnet manager runs yet.
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
        let manager = world.add_host(manager)?;
        let a = world.add_host(a)?;
        let b = world.add_host(b)?;
        let network = Self {
            manager: open_port(&mut world, "manager/1", manager, 1)?,
            a1: open_port(&mut world, "host-a/1", a, 1)?,
            a2: open_port(&mut world, "host-a/2", a, 2)?,
            b1: open_port(&mut world, "host-b/1", b, 1)?,
            b2: open_port(&mut world, "host-b/2", b, 2)?,
            direct_link,
        };
        Ok((world, network))
    }

    /// All ports of hosts.
    pub(super) const fn ports(&self) -> [NamedPort; 5] {
        [self.manager, self.a1, self.a2, self.b1, self.b2]
    }
}

fn open_port(
    world: &mut World,
    name: &'static str,
    host: HostId,
    port: u8,
) -> Result<NamedPort, HcaError> {
    let at = host.port(port);
    let socket = world.open_socket(
        host,
        DatagramQpSpec {
            kind: QpKind::Ud,
            port: at.port,
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
