//! Two fabrics that a trunk joins, in virtual time: one subnet, of which nothing tells where the trunk is.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

use emulated_hca::{Built, LinkConfig, Topology};

use ib_trunk::{CloseReason, Hello, SessionConfig, SiteName, TrunkEnd, TrunkState};
use ib_vtime::{Duration, Instant};
use ib_wire::Guid;
use ib_wire::smp::PortState;
use pf_context::context::PfConfig;
use subnet_lite::SubnetConfig;
use vf_tunnel::VfId;
use vhca::Driven;
use vhca::world::{HostId, World, vf_node_guid, vf_spec};

/// A site: a fabric of two switches with a host each, and its end of the trunk at S1/8... see `TRUNK`.
struct Site {
    name: SiteName,
    world: World,
    built: Built,
    trunk: TrunkEnd,
}

/// The port of the trunk: of the first switch, since its ports from 3 on are free.
const TRUNK: u8 = 5;

const TIMEOUT: Duration = Duration::from_secs(1);

impl Site {
    fn new(name: &str, seed: u64) -> Self {
        let name: SiteName = name.parse().unwrap();
        let mut topology = Topology::two_switches(2);
        topology.move_to_site(|number| name.guid(number)).unwrap();
        let (mut fabric, built) = topology.build(seed);
        let near = built.switches[0].port(TRUNK);
        let trunk = TrunkEnd::new(&mut fabric, near, "trunk", LinkConfig::default()).unwrap();
        let world = World::new(fabric, seed);
        Self {
            name,
            world,
            built,
            trunk,
        }
    }

    fn config(&self) -> SessionConfig {
        SessionConfig {
            hello: Hello {
                site: self.name.clone(),
                node_guid: Guid::NONE,
                port: TRUNK,
            },
            timeout: TIMEOUT,
        }
    }

    fn add_pf_host(&mut self, index: usize, vfs: u16) -> HostId {
        let node = self.built.hcas[index];
        let guid = self.world.fabric().node(node).unwrap().node_guid;
        let host = self
            .world
            .add_pf_host(node, &PfConfig::new(guid.get()))
            .unwrap();
        for vf in (1..=vfs).filter_map(VfId::new) {
            let spec = vf_spec(vf_node_guid(guid, vf));
            self.world.add_vf(host, vf, spec).unwrap();
        }
        host
    }

    /// Returns `true` if a port of the host has an active port on its VF.
    fn is_up(&self, host: HostId) -> bool {
        let vf = host.vf(VfId::new(1).unwrap()).port(1);
        self.world.port(vf).view().state == PortState::ACTIVE
    }
}

/// Two sites, and a stream between them.
struct Joined {
    sites: [Site; 2],
    now: Instant,
    /// The stream carries nothing and says nothing, as after a cable is pulled out.
    is_cut: bool,
    carried: Vec<u8>,
}

impl Joined {
    fn new(seed: u64) -> Self {
        Self {
            sites: [Site::new("north", seed), Site::new("south", seed + 1)],
            now: Instant::ZERO,
            is_cut: false,
            carried: Vec::new(),
        }
    }

    fn connect(&mut self) {
        for site in &mut self.sites {
            let config = site.config();
            site.trunk
                .connect(self.now, site.world.fabric_mut(), config);
        }
    }

    /// Runs both sites until a condition holds, for at most a time.
    fn run_until(&mut self, limit: Duration, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            self.step();
            if holds(self) {
                return true;
            }
            if self.now >= end {
                return false;
            }
            let due = self.sites.iter_mut().flat_map(|site| {
                let session = site
                    .trunk
                    .session_mut()
                    .and_then(|session| session.poll_timeout());
                [site.world.poll_timeout(), session]
            });
            self.now = due.flatten().min().unwrap_or(end).clamp(self.now, end);
        }
    }

    /// Does what is due now.
    fn step(&mut self) {
        loop {
            let mut is_busy = false;
            for site in &mut self.sites {
                site.world.poll(self.now);
                is_busy |= site.trunk.exchange(site.world.fabric_mut());
                if let Some(session) = site.trunk.session_mut()
                    && session.poll_timeout().is_some_and(|due| due <= self.now)
                {
                    session.handle_timeout(self.now);
                }
            }
            for from in [0, 1] {
                let Some(session) = self.sites[from].trunk.session_mut() else {
                    continue;
                };
                let mut bytes = Vec::new();
                is_busy |= session.poll_transmit(&mut bytes, usize::MAX);
                self.carried.extend(&bytes);
                if let Some(session) = self.sites[1 - from].trunk.session_mut()
                    && !self.is_cut
                {
                    session.handle_bytes(self.now, &bytes);
                }
            }
            if !is_busy {
                return;
            }
        }
    }

    fn manage(&mut self) {
        let manager = self.sites[0]
            .world
            .add_host(self.sites[0].built.hcas[0])
            .unwrap();
        let config = SubnetConfig::default();
        self.sites[0]
            .world
            .start_manager(manager.port(1), config)
            .unwrap();
    }
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn one_subnet_manager_brings_up_the_vfs_of_both_sites() {
    let mut joined = Joined::new(1);
    joined.manage();
    let hosts = [
        joined.sites[0].add_pf_host(1, 2),
        joined.sites[1].add_pf_host(3, 2),
    ];
    let is_up = |joined: &mut Joined, site: usize| joined.sites[site].is_up(hosts[site]);
    assert!(joined.run_until(LONG, |joined| is_up(joined, 0)));
    assert!(!is_up(&mut joined, 1));
    joined.connect();
    assert!(joined.run_until(LONG, |joined| is_up(joined, 1)));
    let peers = [1, 0].map(|site| joined.sites[site].config().hello);
    for (site, peer) in joined.sites.iter().zip(peers) {
        assert_eq!(site.trunk.state(), TrunkState::Up(peer));
    }

    // A stream that carries nothing any more is a cable that is out.
    joined.is_cut = true;
    assert!(joined.run_until(TIMEOUT * 2, |joined| {
        joined.sites[0].trunk.state() == TrunkState::Down(Some(CloseReason::Timeout))
            || joined.sites[0]
                .trunk
                .session_mut()
                .is_some_and(|session| session.is_closed())
    }));
    for site in &mut joined.sites {
        site.trunk.disconnect(site.world.fabric_mut());
    }
    joined.is_cut = false;
    joined.connect();
    assert!(joined.run_until(LONG, |joined| is_up(joined, 1)));
}
