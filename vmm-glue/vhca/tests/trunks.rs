//! Worlds that trunks join: one of a single host, and one with a subnet manager, each with an event loop of its own.
#![cfg(feature = "trunk")]
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_api::PortState;
use vhca::device::event::EventLoop;
use vhca::emulated::{Endpoint, Fabric, Guid, Lid, VfOptions};
use vhca::trunk::{
    Security, TrunkAddress, TrunkConfig, TrunkError, TrunkEvent, TrunkId, TrunkPeer, TrunkWay,
};
use vhca::world::{HostFunction, World};
use vm_memory::{GuestAddress, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Time for all that happens.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(site: &str, way: TrunkWay, peer: TrunkPeer) -> TrunkConfig {
    TrunkConfig {
        site: site.parse().unwrap(),
        way,
        timeout: Duration::from_secs(5),
        security: Security::Plain,
        peer,
    }
}

fn memory() -> Arc<GuestMemoryMmap> {
    Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap())
}

/// Returns a port without a link.
fn free_port(fabric: &Fabric) -> Option<Endpoint> {
    let nodes = fabric.nodes().map(|(id, _)| id);
    let mut ports = nodes.flat_map(|node| (1..=8).map(move |port| node.port(port)));
    ports.find(|at| fabric.port(*at).is_some() && fabric.link_at(*at).is_none())
}

/// A world with an event loop.
struct Looped {
    steps: EventLoop<World>,
    host: HostFunction,
    /// The trunk of a VMM.
    trunk: Option<TrunkId>,
}

impl Looped {
    /// Returns the world of a daemon: two switches, a subnet manager, and a host with a VF; its first switch has trunks for hosts.
    fn daemon(addresses: &[TrunkAddress]) -> Self {
        let (mut world, host) = World::with_one_vf(memory(), &VfOptions::default()).unwrap();
        for address in addresses {
            let free = free_port(world.fabric()).unwrap();
            let way = TrunkWay::Listen(address.clone());
            let trunk = config("daemon", way, TrunkPeer::Host);
            world.add_trunk(free, trunk).unwrap();
        }
        Self::new(world, host)
    }

    /// Returns the world of a VMM, whose host is one of the daemon's fabric.
    fn vmm(address: &TrunkAddress) -> Self {
        let options = VfOptions::default();
        let (mut world, host, port) = World::with_one_vf_for_a_trunk(memory(), &options).unwrap();
        let way = TrunkWay::Connect(address.clone());
        let trunk = config("vmm", way, TrunkPeer::Fabric);
        let trunk = world.add_trunk(port, trunk).unwrap();
        Self {
            trunk: Some(trunk),
            ..Self::new(world, host)
        }
    }

    fn new(world: World, host: HostFunction) -> Self {
        Self {
            steps: EventLoop::new(world).unwrap(),
            host,
            trunk: None,
        }
    }

    /// Returns the LID of the host's port, if it is active.
    fn lid(&self) -> Option<Lid> {
        let at = self.host.host;
        let look = |world: &mut World| {
            let port = world.fabric().port(world.host(at).node().port(1))?;
            (port.state == PortState::Active).then_some(port.lid)
        };
        self.steps.backend().with(look).unwrap()
    }

    /// Returns the site at the other end of the trunk, if it is up.
    fn site(&self) -> Option<String> {
        let look = |world: &mut World| {
            let trunks = world.trunks_mut()?;
            while let Some(event) = trunks.poll_event() {
                assert!(matches!(event, TrunkEvent::Changed(_)), "{event:?}");
            }
            let peer = trunks.iter().next()?.peer()?.as_ref().ok()?;
            Some(peer.site.to_string())
        };
        self.steps.backend().with(look).unwrap()
    }

    /// Returns the GUIDs of the world's nodes.
    fn guids(&self) -> BTreeSet<Guid> {
        let nodes = |world: &mut World| {
            let fabric = world.fabric();
            let nodes = fabric.nodes().filter_map(|(id, _)| fabric.node(id));
            let guids = nodes.map(|node| node.node_guid);
            // The gateways of trunks are no nodes of the subnet.
            guids.filter(|guid| !guid.is_none()).collect()
        };
        self.steps.backend().with(nodes).unwrap()
    }
}

/// Steps the loops until the condition comes true.
fn wait_until(loops: &mut [&mut Looped], is_reached: impl Fn(&[&mut Looped]) -> bool) {
    let epoll = Epoll::new().unwrap();
    for (number, looped) in (0..).zip(loops.iter()) {
        let event = EpollEvent::new(EventSet::IN, number);
        let fd = looped.steps.as_raw_fd();
        epoll.ctl(ControlOperation::Add, fd, event).unwrap();
    }
    let begun = Instant::now();
    while !is_reached(loops) {
        assert!(begun.elapsed() < PATIENCE, "it takes too long");
        let mut ready = [EpollEvent::default(); 2];
        let count = epoll.wait(100, &mut ready).unwrap();
        for event in &ready[..count] {
            loops[usize::try_from(event.data()).unwrap()]
                .steps
                .step()
                .unwrap();
        }
    }
}

#[test]
fn a_world_of_one_host_is_a_host_of_the_daemons_fabric() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("trunk");
    for address in [TrunkAddress::Unix, TrunkAddress::Vhost].map(|of| of(socket.clone())) {
        let mut vmm = Looped::vmm(&address);
        let mut daemon = Looped::daemon(&[address]);
        wait_until(&mut [&mut daemon, &mut vmm], |loops| {
            loops[1].lid().is_some()
        });
        assert_eq!(daemon.site().as_deref(), Some("vmm"));
        assert_eq!(vmm.site().as_deref(), Some("daemon"));
        assert!(daemon.guids().is_disjoint(&vmm.guids()));
        let lid = vmm.lid();
        assert_ne!(lid, daemon.lid());
        drop(vmm);
        wait_until(&mut [&mut daemon], |loops| loops[0].site().is_none());
    }
}

#[test]
fn loops_of_worlds_on_a_quiet_trunk_over_queues_sleep() {
    let folder = tempfile::tempdir().unwrap();
    let address = TrunkAddress::Vhost(folder.path().join("trunk"));
    let mut vmm = Looped::vmm(&address);
    let mut daemon = Looped::daemon(&[address]);
    let is_up = |loops: &[&mut Looped]| loops[1].lid().is_some();
    wait_until(&mut [&mut daemon, &mut vmm], is_up);
    let steps = |looped: &Looped| looped.steps.statistics().steps;
    let before = steps(&daemon) + steps(&vmm);
    let begun = Instant::now();
    wait_until(&mut [&mut daemon, &mut vmm], |_| {
        begun.elapsed() > Duration::from_millis(500)
    });
    // A step looks at queues for 50 us at most. The subnet manager, and pings, bring a few.
    let steps = steps(&daemon) + steps(&vmm) - before;
    assert!(steps < 1000, "{steps} steps");
}

#[test]
fn a_host_that_leaves_a_port_for_another_one_keeps_its_lid() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] =
        ["first", "second"].map(|name| TrunkAddress::Unix(folder.path().join(name)));
    let mut daemon = Looped::daemon(&[first.clone(), second.clone()]);
    let mut vmm = Looped::vmm(&first);
    wait_until(&mut [&mut daemon, &mut vmm], |loops| {
        loops[1].lid().is_some()
    });
    let lid = vmm.lid();
    // Without credentials there is no way to an end that wants them, and the trunk stays where it is.
    let proving = "tls:localhost:1".parse().unwrap();
    let trunk = vmm.trunk.unwrap();
    let refused =
        (vmm.steps.backend()).with(|world: &mut World| world.redirect_trunk(trunk, proving));
    assert!(matches!(
        refused.unwrap(),
        Err(TrunkError::NoCredentials(_))
    ));
    assert_eq!(vmm.lid(), lid);
    for address in [second, first] {
        let begun = Instant::now();
        let trunk = vmm.trunk.unwrap();
        let redirect = |world: &mut World| world.redirect_trunk(trunk, address);
        let redirected = vmm.steps.backend().with(redirect).unwrap();
        redirected.unwrap();
        assert_eq!(vmm.lid(), None);
        wait_until(&mut [&mut daemon, &mut vmm], |loops| {
            loops[1].lid().is_some()
        });
        println!("away for {:?}", begun.elapsed());
        assert_eq!(vmm.lid(), lid);
    }
}
