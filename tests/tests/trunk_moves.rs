//! A host behind a trunk that moves from one port of a fabric to another amid RDMA writes, in virtual time: it keeps its LIDs and GIDs,
//! and its connections go on.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

use std::collections::VecDeque;

use emulated_hca::{Endpoint, LinkConfig, NodeId, Topology};
use hca_api::{AccessFlags, CompletionOp, CompletionStatus, Hca, Payload, SendFlags, SendOp};
use ib_trunk::{Hello, SessionConfig, SiteName, TrunkEnd};
use ib_vtime::{Duration, Instant};
use ib_wire::smp::PortState;
use ib_wire::{Gid, Guid, Lid, PKey, PortNum};
use pf_context::context::PfConfig;
use subnet_lite::SubnetConfig;
use vf_proxy::native::{
    ConnectedQp, ConnectedQpId, ConnectedQpSpec, MemoryRegion, Partition, Peer, VfPort,
    VirtualHcaConfig,
};
use vf_tunnel::VfId;
use vhca::Driven;
use vhca::world::{HostPortId, World, vf_node_guid, vf_spec};

/// Time that a byte takes from one process to another.
const LATENCY: Duration = Duration::from_micros(100);

/// Time from one look at the completions to the next.
const TICK: Duration = Duration::from_millis(1);

/// Time by which the subnet is up.
const LATEST: Instant = Instant::from_millis(20_000);

/// Time for which a requester repeats a request: seven times, after 67 ms each.
const RETRIES: Duration = Duration::from_nanos(8 * (4096 << 14));

/// Bytes of a write.
const WRITE: u32 = 16 << 10;

/// A process: its fabric, and the ends of its trunks.
struct Site {
    name: SiteName,
    world: World,
    hcas: Vec<NodeId>,
    ends: Vec<TrunkEnd>,
}

/// An end of a trunk: a site, and a place among its ends.
type End = (usize, usize);

/// The connection of two ends.
struct Cable {
    ends: [End; 2],
    /// Bytes on the way from each end, with the times at which they arrive.
    on_the_way: [VecDeque<(Instant, Vec<u8>)>; 2],
}

/// A port of a VF that a test holds.
type Port = (usize, HostPortId);

impl Site {
    fn new(name: &str, seed: u64, mut topology: Topology) -> (Self, Vec<NodeId>) {
        let name: SiteName = name.parse().unwrap();
        topology.move_to_site(|number| name.guid(number)).unwrap();
        let (fabric, built) = topology.build(seed);
        let site = Self {
            name,
            world: World::new(fabric, seed),
            hcas: built.hcas,
            ends: Vec::new(),
        };
        (site, built.switches)
    }

    /// Makes a host alone, with one end.
    fn alone(seed: u64) -> Self {
        let mut topology = Topology::default();
        topology.add_hca("host", 1);
        let (mut host, _) = Self::new("host", seed, topology);
        host.add_end(host.hcas[0].port(1), false);
        host
    }

    fn add_end(&mut self, near: Endpoint, is_for_host: bool) {
        let fabric = self.world.fabric_mut();
        let end = TrunkEnd::new(fabric, near, "trunk", LinkConfig::default()).unwrap();
        assert!(!is_for_host || fabric.set_guarded(near, true));
        self.ends.push(end);
    }

    /// Adds a host with a VF that the test holds.
    fn add_held_vf(&mut self, host: usize) -> HostPortId {
        let node = self.hcas[host];
        let guid = self.world.fabric().node(node).unwrap().node_guid;
        let pf = PfConfig::new(guid.get());
        let host = self.world.add_pf_host(node, &pf).unwrap();
        let vf = VfId::new(1).unwrap();
        let spec = vf_spec(vf_node_guid(guid, vf));
        self.world.add_idle_vf(host, vf, spec).unwrap();
        let config = VirtualHcaConfig::new(1);
        self.world.open_vf(host, vf, config).unwrap().port(1)
    }

    fn session(&self, end: usize) -> SessionConfig {
        SessionConfig {
            hello: Hello {
                site: self.name.clone(),
                node_guid: Guid::NONE,
                port: self.ends[end].near().port.0,
            },
            timeout: Duration::from_secs(1),
        }
    }
}

/// Sites, and the connections of their trunks.
struct Subnet {
    sites: Vec<Site>,
    cables: Vec<Cable>,
    now: Instant,
}

/// The site of a host alone, with one end.
const HOST: usize = 1;

/// Ends of the first site: two ports of one switch for hosts, and one of the other switch.
const PORTS: [End; 3] = [(0, 0), (0, 1), (0, 2)];

/// A port of a second site with switches, for a host.
const ELSEWHERE: End = (2, 0);

impl Subnet {
    /// Makes a site with a subnet manager and a host alone, and a further site that a trunk joins to the first one. No other trunk is open.
    fn new(seed: u64) -> Self {
        let (mut daemon, switches) = Site::new("daemon", seed, Topology::two_switches(2));
        let manager = daemon.world.add_host(daemon.hcas[0]).unwrap();
        let config = SubnetConfig::default();
        let started = daemon.world.start_manager(manager.port(1), config);
        started.unwrap();
        for (switch, port) in [(0, 4), (0, 5), (1, 4)] {
            daemon.add_end(switches[switch].port(port), true);
        }
        daemon.add_end(switches[1].port(6), false);

        let host = Site::alone(seed + 1);

        let (mut other, switches) = Site::new("other", seed + 2, Topology::two_switches(1));
        other.add_end(switches[0].port(4), true);
        other.add_end(switches[1].port(5), false);

        let mut subnet = Self {
            sites: vec![daemon, host, other],
            cables: Vec::new(),
            now: Instant::ZERO,
        };
        subnet.plug((0, 3), (2, 1));
        subnet
    }

    /// Connects two ends.
    fn plug(&mut self, a: End, b: End) {
        for (site, end) in [a, b] {
            let site = &mut self.sites[site];
            let config = site.session(end);
            site.ends[end].connect(self.now, site.world.fabric_mut(), config);
        }
        self.cables.push(Cable {
            ends: [a, b],
            on_the_way: Default::default(),
        });
    }

    /// Disconnects an end of a trunk from its peer, and drops the bytes on their way between the two.
    fn unplug(&mut self, end: End) {
        let place = self.cables.iter().position(|it| it.ends.contains(&end));
        for (site, end) in self.cables.remove(place.unwrap()).ends {
            let site = &mut self.sites[site];
            site.ends[end].disconnect(site.world.fabric_mut());
        }
    }

    /// Runs all worlds for a time.
    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.step();
            if self.now >= end {
                return;
            }
            let on_the_way = self.cables.iter().flat_map(|cable| &cable.on_the_way);
            let arrivals = on_the_way.filter_map(|bytes| Some(bytes.front()?.0));
            let mut due: Vec<_> = arrivals.collect();
            for site in &mut self.sites {
                due.extend(site.world.poll_timeout());
                let sessions = site.ends.iter_mut().filter_map(TrunkEnd::session_mut);
                due.extend(sessions.filter_map(|session| session.poll_timeout()));
            }
            let next = due.into_iter().min().unwrap_or(end);
            self.now = next.clamp(self.now, end);
        }
    }

    /// Polls all worlds and ends of trunks at the present time.
    fn step(&mut self) {
        let mut is_busy = true;
        while is_busy {
            is_busy = false;
            for site in &mut self.sites {
                site.world.poll(self.now);
                for end in &mut site.ends {
                    is_busy |= end.exchange(site.world.fabric_mut());
                    if let Some(session) = end.session_mut()
                        && session.poll_timeout().is_some_and(|due| due <= self.now)
                    {
                        session.handle_timeout(self.now);
                    }
                }
            }
            for cable in &mut self.cables {
                is_busy |= cable.carry(self.now, &mut self.sites);
            }
        }
    }

    fn on_port<T>(
        &mut self,
        (site, port): Port,
        call: impl FnOnce(&mut VfPort, &mut dyn Hca) -> T,
    ) -> T {
        let world = &mut self.sites[site].world;
        let called = world.with_vf_port(port, |port, hca, _| call(port, hca));
        called.unwrap()
    }

    /// Returns the addresses of a port, if it is up.
    fn addresses(&mut self, port: Port) -> Option<(Lid, Gid)> {
        self.on_port(port, |port, _| {
            let view = port.view();
            (view.state == PortState::ACTIVE).then(|| Some((view.lid, port.gid()?)))?
        })
    }
}

impl Cable {
    /// Carries bytes from each end of the cable to the other one. Returns `true` if any left or arrived.
    fn carry(&mut self, now: Instant, sites: &mut [Site]) -> bool {
        let mut any = false;
        for (from, to) in [(0, 1), (1, 0)] {
            let on_the_way = &mut self.on_the_way[from];
            let (site, end) = self.ends[from];
            let mut bytes = Vec::new();
            if let Some(session) = sites[site].ends[end].session_mut() {
                session.poll_transmit(&mut bytes, usize::MAX);
            }
            if !bytes.is_empty() {
                on_the_way.push_back((now + LATENCY, bytes));
            }
            let (site, end) = self.ends[to];
            while on_the_way.front().is_some_and(|(due, _)| *due <= now) {
                let Some((_, bytes)) = on_the_way.pop_front() else {
                    break;
                };
                any = true;
                if let Some(session) = sites[site].ends[end].session_mut() {
                    session.handle_bytes(now, &bytes);
                }
            }
        }
        any
    }
}

/// An RC queue pair that writes to a region of its peer, one write after the other.
struct Writer {
    port: Port,
    qp: ConnectedQpId,
    region: MemoryRegion,
    /// Time at which the write under way was posted.
    posted: Option<Instant>,
    /// Longest time from a write to its completion.
    longest: Duration,
    writes: u32,
}

impl Subnet {
    fn open(&mut self, at: Port) -> Writer {
        let spec = ConnectedQpSpec::rc(Partition::Key(PKey::DEFAULT_FULL));
        assert_eq!((spec.timeout, spec.retry_cnt), (14, 7));
        let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let (qp, region) = self.on_port(at, |port, hca| {
            let region = port.reg_mr(hca, WRITE as usize, rights).unwrap();
            (port.open_connected_qp(hca, &spec).unwrap(), region)
        });
        Writer {
            port: at,
            qp,
            region,
            posted: None,
            longest: Duration::ZERO,
            writes: 0,
        }
    }

    fn on<T>(&mut self, writer: &Writer, call: impl FnOnce(&ConnectedQp, &mut dyn Hca) -> T) -> T {
        let qp = writer.qp;
        self.on_port(writer.port, |port, hca| {
            call(port.connected_qp(qp).unwrap(), hca)
        })
    }

    /// Joins two ports by a connection.
    fn join(&mut self, ports: [Port; 2]) -> [Writer; 2] {
        let writers = ports.map(|port| self.open(port));
        for (own, other) in [(0, 1), (1, 0)] {
            let (lid, gid) = self.addresses(ports[other]).unwrap();
            let (qpn, psn) = self.on(&writers[other], |qp, _| (qp.qpn(), qp.psn()));
            let peer = Peer::on_subnet(PortNum(1), lid, gid, qpn, psn);
            let connected = self.on(&writers[own], |qp, hca| qp.connect(hca, &peer));
            connected.unwrap();
        }
        writers
    }

    /// Writes from both ends of a connection for a time.
    fn write(&mut self, writers: &mut [Writer; 2], time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.run_for(TICK);
            for (own, other) in [(0, 1), (1, 0)] {
                let there = writers[other].region.remote(0);
                self.look(&mut writers[own], there);
            }
        }
    }

    /// Takes the completion of a write, and posts the next one.
    fn look(&mut self, writer: &mut Writer, there: hca_api::RemoteAddress) {
        if let Some(done) = self.on(writer, |qp, hca| qp.poll_cq(hca)) {
            let result = (done.op, done.status);
            assert_eq!(result, (CompletionOp::RdmaWrite, CompletionStatus::Success));
            let time = self.now - writer.posted.take().unwrap();
            writer.longest = writer.longest.max(time);
            writer.writes += 1;
        }
        if writer.posted.is_none() {
            writer.posted = Some(self.now);
            let gather = [writer.region.sge(0, WRITE)];
            let op = SendOp::RdmaWrite(there);
            self.on(writer, |qp, hca| {
                qp.post_send(hca, 1, op, Payload::Gather(&gather), SendFlags::empty())
            })
            .unwrap();
        }
    }
}

/// A host that writes to a peer in the first site, and the peer to it.
struct Moving {
    subnet: Subnet,
    host: Port,
    addresses: (Lid, Gid),
    writers: [Writer; 2],
}

impl Moving {
    /// Brings up a host at a port.
    fn at(seed: u64, port: End) -> Self {
        let mut subnet = Subnet::new(seed);
        let host = (HOST, subnet.sites[HOST].add_held_vf(0));
        let peer = (0, subnet.sites[0].add_held_vf(3));
        subnet.plug((HOST, 0), port);
        for port in [host, peer] {
            while subnet.addresses(port).is_none() {
                assert!(subnet.now < LATEST, "{port:?}");
                subnet.run_for(TICK);
            }
        }
        let addresses = subnet.addresses(host).unwrap();
        let writers = subnet.join([host, peer]);
        Self {
            subnet,
            host,
            addresses,
            writers,
        }
    }

    /// Moves the host to a port, which takes a time, amid writes. Returns the longest times of writes of the host and of its peer.
    fn move_to(&mut self, port: End, away: Duration) -> [Duration; 2] {
        let Self {
            subnet, writers, ..
        } = self;
        subnet.write(writers, Duration::from_millis(20));
        let before = [0, 1].map(|end: usize| writers[end].writes);
        for writer in writers.iter_mut() {
            writer.longest = Duration::ZERO;
        }
        subnet.unplug((HOST, 0));
        subnet.write(writers, away);
        subnet.plug((HOST, 0), port);
        subnet.write(writers, Duration::from_secs(1));
        for (writer, before) in writers.iter().zip(before) {
            assert!(writer.writes > before + 200, "{}", writer.writes - before);
        }
        assert_eq!(subnet.addresses(self.host), Some(self.addresses));
        [0, 1].map(|end: usize| writers[end].longest)
    }
}

/// Ports that a host visits one after the other.
const TOUR: [End; 5] = [PORTS[1], PORTS[2], ELSEWHERE, PORTS[0], PORTS[1]];

#[test]
fn a_host_moves_between_ports_switches_and_sites_amid_writes_that_wait_for_one_retry() {
    let mut moving = Moving::at(1, PORTS[0]);
    // The first switch sends more traps than the manager acts upon.
    for port in TOUR.iter().cycle().take(30) {
        let longest = moving.move_to(*port, Duration::ZERO);
        assert!(
            longest < [Duration::from_millis(75); 2],
            "{port:?}: {longest:?}"
        );
    }
}

#[test]
fn a_host_that_is_away_for_a_while_has_its_connections_again_within_a_few_retries() {
    for millis in [1, 2, 3, 20, 21, 40, 50, 60, 100, 200] {
        let away = Duration::from_millis(millis);
        let mut moving = Moving::at(millis, PORTS[0]);
        for port in TOUR.iter().cycle().take(10) {
            let longest = moving.move_to(*port, away);
            let gap = longest.map(|longest| longest.saturating_sub(away));
            assert!(gap < [RETRIES / 2; 2], "{millis} ms, {port:?}: {gap:?}");
        }
    }
}

#[test]
fn a_second_host_of_the_same_guids_takes_nothing_from_the_first_one_whatever_port_it_is_behind() {
    for [first, later] in [
        [PORTS[0], PORTS[1]],
        [PORTS[1], PORTS[0]],
        [ELSEWHERE, PORTS[0]],
    ] {
        let mut moving = Moving::at(1, first);
        let subnet = &mut moving.subnet;
        let mut second = Site::alone(7);
        let vf = (subnet.sites.len(), second.add_held_vf(0));
        subnet.sites.push(second);
        subnet.plug((vf.0, 0), later);
        subnet.write(&mut moving.writers, Duration::from_secs(2));
        assert_eq!(subnet.addresses(vf), None, "{first:?}");
        assert_eq!(subnet.addresses(moving.host), Some(moving.addresses));
        for writer in &moving.writers {
            let longest = writer.longest;
            assert!(longest < Duration::from_millis(5), "{first:?}: {longest:?}");
        }
    }
}
