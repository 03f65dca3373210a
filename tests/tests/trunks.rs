//! Two fabrics that a trunk joins, in virtual time: one subnet, whose packets do not show where the trunk is.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

use emulated_hca::hca::Way;
use emulated_hca::{Built, LinkConfig, NodeId, Topology};
use hca_api::{
    AccessFlags, CompletionOp, CompletionStatus, Hca, Payload, RemoteAddress, SendFlags, SendOp,
};
use ib_trunk::{CloseReason, Hello, SessionConfig, SiteName, TrunkEnd, TrunkState};
use ib_vtime::{Duration, Instant};
use ib_wire::smp::PortState;
use ib_wire::{Guid, PKey, PortNum};
use pf_context::context::PfConfig;
use subnet_lite::SubnetConfig;
use vf_proxy::native::{
    ConnectedQp, ConnectedQpId, ConnectedQpSpec, MemoryRegion, Partition, Peer, VfPort,
    VirtualHcaConfig,
};
use vf_tunnel::VfId;
use vhca::Driven;
use vhca::world::{HostId, HostPortId, World, vf_node_guid, vf_spec};

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

    /// Adds a host with VFs that the test holds.
    fn add_held_host(&mut self, index: usize, vfs: u16) -> Vec<HostPortId> {
        let host = self.add_pf_host(index, 0);
        let guid = self.world.fabric().node(self.built.hcas[index]).unwrap();
        let guid = guid.node_guid;
        let held = (1..=vfs).filter_map(VfId::new).map(|vf| {
            let spec = vf_spec(vf_node_guid(guid, vf));
            self.world.add_idle_vf(host, vf, spec).unwrap();
            let config = VirtualHcaConfig::new(u64::from(vf.get()));
            self.world.open_vf(host, vf, config).unwrap().port(1)
        });
        held.collect()
    }

    /// Returns the numbers of dropped and of repeated packets.
    fn losses(&self) -> (u64, u64) {
        let fabric = self.world.fabric();
        let nodes = fabric.nodes().filter_map(|(id, _)| fabric.node(id));
        let dropped = nodes.map(|node| node.drops().total()).sum();
        let devices = self.built.hcas.iter().filter_map(|id| fabric.device(*id));
        let counters = devices.flat_map(|device| device.connection_counters());
        (
            dropped,
            counters.map(|(_, counters)| counters.retransmissions).sum(),
        )
    }

    /// Returns the ways of the connections of an adapter.
    fn ways(&self, node: NodeId) -> Vec<Way> {
        let device = self.world.fabric().device(node).unwrap();
        device.queue_pairs().filter_map(|row| row.way).collect()
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
    /// The hellos say that both ends take runs.
    takes_runs: bool,
    /// Bytes that the stream takes each way at a time, of times that are a [`TICK`] apart.
    rate: usize,
    /// Bytes that wait for the stream.
    waiting: [Vec<u8>; 2],
    carried: [Vec<u8>; 2],
}

const TICK: Duration = Duration::from_micros(100);

impl Joined {
    fn new(seed: u64) -> Self {
        Self {
            sites: [Site::new("north", seed), Site::new("south", seed + 1)],
            now: Instant::ZERO,
            is_cut: false,
            takes_runs: true,
            rate: usize::MAX,
            waiting: Default::default(),
            carried: Default::default(),
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
            let is_full = self.step();
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
            let due = due.flatten().chain(is_full.then(|| self.now + TICK));
            self.now = due.min().unwrap_or(end).clamp(self.now, end);
        }
    }

    /// Does what is due now. Returns `true` if the stream has taken all that it takes at a time.
    fn step(&mut self) -> bool {
        let mut room = [self.rate; 2];
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
                let waiting = &mut self.waiting[from];
                session.poll_transmit(waiting, room[from]);
                let taken = waiting.len().min(room[from]);
                room[from] -= taken;
                let mut bytes: Vec<u8> = waiting.drain(..taken).collect();
                is_busy |= taken > 0;
                // The first record is the hello.
                if self.carried[from].is_empty() && taken > 0 {
                    bytes[FEATURES] = u8::from(self.takes_runs);
                }
                self.carried[from].extend(&bytes);
                if let Some(session) = self.sites[1 - from].trunk.session_mut()
                    && !self.is_cut
                {
                    session.handle_bytes(self.now, &bytes);
                }
            }
            if !is_busy {
                return room.contains(&0);
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

/// Place of the lower byte of the features in the record of a hello.
const FEATURES: usize = 8 + 11;

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

/// Bytes of a message, and of a region.
const MESSAGE: u32 = 1 << 20;

/// An RC queue pair with a region that its peer may do everything with.
struct End {
    site: usize,
    port: HostPortId,
    qp: ConnectedQpId,
    region: MemoryRegion,
}

impl Joined {
    fn on_port<T>(
        &mut self,
        site: usize,
        port: HostPortId,
        call: impl FnOnce(&mut VfPort, &mut dyn Hca) -> T,
    ) -> T {
        let world = &mut self.sites[site].world;
        let called = world.with_vf_port(port, |port, hca, _| call(port, hca));
        called.unwrap()
    }

    /// Brings up the fabric with VFs at both sites, which one manager has.
    fn with_vfs(
        seed: u64,
        takes_runs: bool,
        vfs: [&[(usize, u16)]; 2],
    ) -> (Self, [Vec<HostPortId>; 2]) {
        let mut joined = Self::new(seed);
        joined.takes_runs = takes_runs;
        joined.manage();
        let ports = [0, 1].map(|site: usize| {
            let hosts = vfs[site].iter();
            let added = hosts.flat_map(|(host, vfs)| joined.sites[site].add_held_host(*host, *vfs));
            added.collect::<Vec<_>>()
        });
        joined.connect();
        let all: Vec<_> = (0..)
            .zip(&ports)
            .flat_map(|(site, of)| of.iter().map(move |port| (site, *port)))
            .collect();
        let is_up = joined.run_until(LONG, |joined| {
            all.iter().all(|(site, port)| {
                joined.on_port(*site, *port, |port, _| {
                    port.view().state == PortState::ACTIVE && port.gid().is_some()
                })
            })
        });
        assert!(is_up);
        (joined, ports)
    }

    fn open(&mut self, site: usize, port: HostPortId) -> End {
        let mut spec = ConnectedQpSpec::rc(Partition::Key(PKey::DEFAULT_FULL));
        // Half a second for each try.
        spec.timeout = 17;
        let rights =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let (qp, region) = self.on_port(site, port, |port, hca| {
            let region = port.reg_mr(hca, 2 * MESSAGE as usize, rights).unwrap();
            (port.open_connected_qp(hca, &spec).unwrap(), region)
        });
        End {
            site,
            port,
            qp,
            region,
        }
    }

    fn on<T>(&mut self, end: &End, call: impl FnOnce(&ConnectedQp, &mut dyn Hca) -> T) -> T {
        self.on_port(end.site, end.port, |port, hca| {
            call(port.connected_qp(end.qp).unwrap(), hca)
        })
    }

    fn join(&mut self, from: (usize, HostPortId), to: (usize, HostPortId)) -> [End; 2] {
        let ends = [from, to].map(|(site, port)| self.open(site, port));
        for (own, other) in [(0, 1), (1, 0)] {
            let (own, other) = (&ends[own], &ends[other]);
            let (lid, gid) = self.on_port(other.site, other.port, |port, _| {
                (port.view().lid, port.gid().unwrap())
            });
            let numbers = self.on(other, |qp, _| (qp.qpn(), qp.psn()));
            let peer = Peer::on_subnet(PortNum(1), lid, gid, numbers.0, numbers.1);
            self.on(own, |qp, hca| qp.connect(hca, &peer)).unwrap();
        }
        ends
    }

    fn post(&mut self, end: &End, op: SendOp<'_>, from: u32, len: u32) {
        let gather = [end.region.sge(from, len)];
        self.on(end, |qp, hca| {
            qp.post_send(hca, 1, op, Payload::Gather(&gather), SendFlags::empty())
        })
        .unwrap();
    }

    /// Returns the operations that completed, with their results.
    fn completed(&mut self, end: &End) -> Vec<(CompletionOp, CompletionStatus)> {
        self.on(end, |qp, hca| {
            let all = std::iter::from_fn(|| qp.poll_cq(hca));
            all.map(|done| (done.op, done.status)).collect()
        })
    }

    fn write(&mut self, end: &End, bytes: &[u8]) {
        let region = end.region;
        let written = self.on_port(end.site, end.port, |_, hca| region.write(hca, 0, bytes));
        written.unwrap();
    }

    fn read(&mut self, end: &End, at: u32) -> Vec<u8> {
        let region = end.region;
        let mut bytes = vec![0; MESSAGE as usize];
        let read = self.on_port(end.site, end.port, |_, hca| {
            region.read(hca, at as usize, &mut bytes)
        });
        read.unwrap();
        bytes
    }
}

/// Writes and reads a message across, and returns what completed and what the stream carried.
fn write_and_read(takes_runs: bool) -> (Vec<(CompletionOp, CompletionStatus)>, [Vec<u8>; 2]) {
    let (mut joined, ports) = Joined::with_vfs(3, takes_runs, [&[(1, 1)], &[(3, 1)]]);
    let [a, b] = joined.join((0, ports[0][0]), (1, ports[1][0]));
    let message: Vec<u8> = (0..=250).cycle().take(MESSAGE as usize).collect();
    joined.write(&a, &message);
    let (there, back): (RemoteAddress, u32) = (b.region.remote(MESSAGE), MESSAGE);
    joined.post(&a, SendOp::RdmaWrite(there), 0, MESSAGE);
    joined.post(&a, SendOp::RdmaRead(there), back, MESSAGE);
    let mut done = Vec::new();
    joined.run_until(LONG, |joined| {
        done.extend(joined.completed(&a));
        done.len() == 2
    });
    assert_eq!(joined.read(&b, MESSAGE), message);
    assert_eq!(joined.read(&a, MESSAGE), message);
    (done, joined.carried)
}

#[test]
fn a_message_crosses_in_runs_as_it_does_in_packets() {
    let (done, whole) = write_and_read(true);
    assert_eq!(
        done,
        [CompletionOp::RdmaWrite, CompletionOp::RdmaRead].map(|op| (op, CompletionStatus::Success))
    );
    assert!(write_and_read(true) == (done.clone(), whole.clone()));
    let (in_packets, apart) = write_and_read(false);
    assert_eq!(in_packets, done);
    // Each of 1024 packets has 60 bytes of headers, and each of 64 runs.
    for (whole, apart) in whole.iter().zip(&apart) {
        let saved = apart.len() - whole.len();
        assert!((55_000..70_000).contains(&saved), "{saved}");
    }
}

#[test]
fn senders_wait_in_turn_for_a_slow_stream_and_lose_nothing() {
    const WRITES: usize = 8;
    const PART: u32 = MESSAGE / 8;
    let (mut joined, ports) = Joined::with_vfs(5, true, [&[(1, 2), (2, 2)], &[(3, 1)]]);
    let ends: Vec<_> = ports[0]
        .iter()
        .map(|from| joined.join((0, *from), (1, ports[1][0])))
        .collect();
    let before = [0, 1].map(|site: usize| joined.sites[site].losses());
    for [a, b] in &ends {
        for _ in 0..WRITES {
            joined.post(a, SendOp::RdmaWrite(b.region.remote(0)), 0, PART);
        }
    }
    joined.rate = 4096;
    let mut done = vec![0; ends.len()];
    let mut count = |joined: &mut Joined| {
        for ([a, _], done) in ends.iter().zip(&mut done) {
            *done += joined.completed(a).len();
        }
        done.clone()
    };
    let is_one_done = |done: &Vec<usize>| done.contains(&WRITES);
    assert!(joined.run_until(LONG, |joined| is_one_done(&count(joined))));
    let all = count(&mut joined);
    assert!(all.iter().all(|done| *done >= WRITES - 2), "{all:?}");
    assert!(joined.run_until(LONG, |joined| count(joined) == [WRITES; 4]));
    let after = [0, 1].map(|site: usize| joined.sites[site].losses());
    assert_eq!(before, after);
    for host in [1, 2] {
        let ways = joined.sites[0].ways(joined.sites[0].built.hcas[host]);
        assert_eq!(ways, [Way::Whole; 2]);
    }
}

/// Its packets are on the lane that is full, as on any link: it ends with the trunk at the latest.
#[test]
fn a_stream_that_takes_nothing_holds_a_neighbour_up_no_longer_than_the_trunk_lasts() {
    let (mut joined, ports) = Joined::with_vfs(7, true, [&[(1, 5), (2, 1)], &[(3, 1)]]);
    let north = &ports[0];
    let stopped: Vec<_> = north[..4]
        .iter()
        .map(|from| joined.join((0, *from), (1, ports[1][0])))
        .collect();
    let local = joined.join((0, north[4]), (0, north[5]));
    joined.rate = 0;
    for [a, b] in &stopped {
        joined.post(a, SendOp::RdmaWrite(b.region.remote(0)), 0, MESSAGE);
    }
    joined.run_until(TICK, |_| false);
    let [a, b] = &local;
    joined.post(a, SendOp::RdmaWrite(b.region.remote(0)), 0, 4096);
    let begun = joined.now;
    // A look at completions lends the adapter, which keeps the fabric busy.
    while joined.completed(a).is_empty() {
        assert!(joined.now < begun + 2 * TIMEOUT, "{:?}", joined.now);
        joined.run_until(TICK * 10, |_| false);
    }
}
