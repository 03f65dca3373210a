//! RDMA writes between two worlds that a trunk joins, each driven by a thread of its own, beside the same writes within one world.
//!
//! The time is the wall clock's. Loops are the ones of a service: they sleep while there is nothing to do.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant as WallInstant;

use anyhow::{Context, anyhow, ensure};
use emulated_hca::Topology;
use hca_api::{RemoteAddress, SendOp};
use ib_vtime::{Duration, Instant};
use ib_wire::Guid;
use ib_wire::smp::PortState;
use pf_context::context::PfConfig;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{read, write};
use subnet_lite::SubnetConfig;
use vf_proxy::native::{Peer, VirtualHcaConfig};
use vf_tunnel::VfId;
use vhca::trunk::{Security, TrunkAddress, TrunkConfig, TrunkPeer, TrunkWay};
use vhca::watch::{EventSet, Ready, WatchChange, Watches};
use vhca::world::{HostPortId, World, vf_spec};
use vhca::{Driven, RunEnd, Runner, Slice};

use super::rdma::{End, Traffic};
use super::{Measured, Sample, nanos_per};

/// Bytes of a large write.
const LARGE: u32 = 1 << 20;

/// Large writes of a run, and the ones under way.
const STREAM: u32 = 2000;
const WINDOW: u32 = 16;

/// Value of each byte of a large write.
const VALUE: u8 = 0x5a;

/// Bytes of a small write.
const SMALL: u32 = 8;

/// Small writes of a run there and back without a pause, and with one before each.
const BUSY: u32 = 5000;
const RESTED: u32 = 200;

/// Time after which both loops sleep.
const PAUSE: Duration = Duration::from_millis(1);

/// Time of one poll of a world, as a service has it.
const SLICE: Duration = Duration::from_micros(250);

/// Time for all that happens on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Time after which a thread looks for word of the other one.
const LOOK: Duration = Duration::from_millis(1);

/// A way to join the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    OneWorld,
    Rings,
    Unix,
}

/// Prepares the case of large writes.
pub(super) fn prepare_large() -> Measured {
    Measured {
        setup: "RDMA writes (RC) of 1 MiB to another world by a vhost: trunk, by a unix: trunk, and within one world; wall clock"
            .to_owned(),
        ops: STREAM.into(),
        mads_per_op: None,
        run: Box::new(|seed| large(seed.into())),
    }
}

/// Prepares the case of small writes.
pub(super) fn prepare_small() -> Measured {
    Measured {
        setup: "RDMA writes (RC) of 8 bytes there and back, half of the time, by a vhost: trunk, by a unix: trunk, and within one world; wall clock"
            .to_owned(),
        ops: u64::from(2 * BUSY),
        mads_per_op: None,
        run: Box::new(|seed| small(seed.into())),
    }
}

fn large(seed: u64) -> anyhow::Result<Sample> {
    let [own, rings, unix] = [Way::OneWorld, Way::Rings, Way::Unix]
        .map(|way| joined(way, seed, Job::Stream).map(|elapsed| nanos_per(elapsed, STREAM.into())));
    let (own, rings, unix) = (own?, rings?, unix?);
    Ok(Sample {
        nanos: rings,
        bytes_per_live: None,
        figures: vec![
            ("MB/s, vhost:", f64::from(LARGE) * 1e3 / rings),
            ("ns, unix:", unix),
            ("ns, one world", own),
            ("times one world, vhost:", rings / own),
            ("times one world, unix:", unix / own),
        ],
    })
}

fn small(seed: u64) -> anyhow::Result<Sample> {
    let half = |way| {
        let elapsed = joined(way, seed, Job::Bounce(BUSY, None))?;
        anyhow::Ok(nanos_per(elapsed, u64::from(2 * BUSY)))
    };
    let rested = |way| {
        let elapsed = joined(way, seed, Job::Bounce(RESTED, Some(PAUSE)))?;
        anyhow::Ok(nanos_per(elapsed, RESTED.into()))
    };
    let (rings, unix, own) = (half(Way::Rings)?, half(Way::Unix)?, half(Way::OneWorld)?);
    let (asleep, own_asleep, wake_up) = (rested(Way::Rings)?, rested(Way::OneWorld)?, wake_up()?);
    Ok(Sample {
        nanos: rings,
        bytes_per_live: None,
        figures: vec![
            ("ns, unix:", unix),
            ("ns, one world", own),
            ("ns there and back, asleep", asleep),
            ("ns the same, one world", own_asleep),
            ("ns a wake-up", wake_up),
            (
                "times one world + 2 wake-ups",
                asleep / (own_asleep + 2.0 * wake_up),
            ),
        ],
    })
}

/// Writes to time.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Large ones, a window at a time.
    Stream,
    /// So many small ones there and back, with a pause before each.
    Bounce(u32, Option<Duration>),
}

/// A world in a loop.
struct Site {
    world: World,
    watches: Watches,
}

impl Driven for Site {
    fn poll(&mut self, now: Instant) {
        self.world.poll_for(now, &mut Slice::of(SLICE));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.world.poll_timeout()
    }

    fn poll_watch(&mut self) -> Option<WatchChange> {
        self.watches.poll()
    }

    /// Does nothing: the world looks at its trunks when it is polled, which follows.
    fn handle_ready(&mut self, _: Instant, _: Ready) {}
}

/// A loop, and the ports of its VFs.
struct Looped {
    runner: Runner<Site>,
    ports: Vec<HostPortId>,
}

impl Looped {
    /// Makes a world with a VF on each of so many hosts, and with the subnet manager if it is to have one. The trunk is of a port of the
    /// switch, or of the host without one.
    fn new(
        seed: u64,
        has_manager: bool,
        hosts: u8,
        trunk: Option<TrunkWay>,
    ) -> anyhow::Result<Self> {
        let mut topology = match has_manager {
            true => Topology::two_switches(hosts),
            false => {
                let mut alone = Topology::default();
                alone.add_hca("host", 1);
                alone
            }
        };
        let site = 0x06 << 56 | u64::from(has_manager) << 48;
        topology.move_to_site(|number| Guid::new(site | u64::from(number)))?;
        let (fabric, built) = topology.build(seed);
        let mut world = World::new(fabric, seed);
        let mut nodes = built.hcas.into_iter();
        if has_manager {
            let manager = world.add_host(nodes.next().context("no adapter")?)?;
            world.start_manager(manager.port(1), SubnetConfig::default())?;
        }
        let vf = VfId::new(1).context("VFs are numbered from 1")?;
        let (mut ports, mut last) = (Vec::new(), None);
        for (n, node) in (1..).zip(nodes.take(hosts.into())) {
            let host = world.add_pf_host(node, &PfConfig::new(n))?;
            world.add_idle_vf(host, vf, vf_spec(Guid::new(site | 0x1_0000 << n)))?;
            let function = world.open_vf(host, vf, VirtualHcaConfig::new(n))?;
            ports.push(function.port(1));
            last = Some(node);
        }
        let mut watches = Watches::new();
        if let Some(way) = trunk {
            let switch = built.switches.last().copied();
            let fabric = world.fabric();
            let mut free = (1..=u8::MAX).filter_map(|port| {
                let at = switch.or(last)?.port(port);
                (fabric.port(at).is_some() && fabric.link_at(at).is_none()).then_some(at)
            });
            let near = free.next().context("no free port")?;
            let config = TrunkConfig {
                site: if has_manager { "daemon" } else { "host" }.parse()?,
                way,
                timeout: Duration::from_secs(5),
                security: Security::Plain,
                peer: TrunkPeer::Fabric,
            };
            world.add_trunk(near, config)?;
            let trunks = world.trunks().context("no trunk")?;
            watches.tagged(0).add(trunks, EventSet::IN);
        }
        Ok(Self {
            runner: Runner::new(Site { world, watches })?,
            ports,
        })
    }

    fn world(&mut self) -> anyhow::Result<&mut World> {
        Ok(&mut self.runner.driven()?.world)
    }

    /// Runs until the condition holds.
    fn run_until(
        &mut self,
        mut condition: impl FnMut(&mut World) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let mut failure = None;
        let end = self.runner.run_until(LIMIT, |site| {
            condition(&mut site.world).unwrap_or_else(|error| {
                failure = Some(error);
                true
            })
        })?;
        failure.map_or(Ok(()), Err)?;
        ensure!(end == RunEnd::Reached, "it takes too long");
        Ok(())
    }

    fn rest(&mut self, pause: Duration) -> anyhow::Result<()> {
        self.runner.run_until(pause, |_| false)?;
        Ok(())
    }

    /// Opens a queue pair on each VF once the ports are active.
    fn open(&mut self) -> anyhow::Result<Vec<End>> {
        let ports = self.ports.clone();
        self.run_until(|world| {
            Ok(ports.iter().all(|at| {
                let state = world.with_vf_port(*at, |port, _, _| port.view().state);
                state == Some(PortState::ACTIVE)
            }))
        })?;
        let world = self.world()?;
        let open = |at: &HostPortId| End::open(world, *at, Traffic::Write);
        ports.iter().map(open).collect()
    }
}

/// One thread's word with the other one.
struct Word {
    to: Sender<Greeting>,
    from: Receiver<Greeting>,
}

impl Word {
    fn pair() -> [Self; 2] {
        let ((to_b, at_b), (to_a, at_a)) = (channel(), channel());
        [(to_b, at_a), (to_a, at_b)].map(|(to, from)| Self { to, from })
    }

    /// Sends a word, and runs the own loop until the other one's came.
    fn exchange(&self, own: Greeting, looped: &mut Looped) -> anyhow::Result<Greeting> {
        self.to.send(own)?;
        let end = WallInstant::now() + LIMIT;
        loop {
            if let Ok(other) = self.from.try_recv() {
                return Ok(other);
            }
            ensure!(WallInstant::now() < end, "the other end ended or hangs");
            looped.rest(LOOK)?;
        }
    }
}

/// Returns the time of a job.
fn joined(way: Way, seed: u64, job: Job) -> anyhow::Result<Duration> {
    if way == Way::OneWorld {
        return alone(seed, job);
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("trunk");
    let address = match way {
        Way::Rings => TrunkAddress::Vhost(path),
        Way::Unix | Way::OneWorld => TrunkAddress::Unix(path),
    };
    let [near_word, far_word] = Word::pair();
    let mut near = Looped::new(seed, true, 1, Some(TrunkWay::Listen(address.clone())))?;
    thread::scope(|scope| {
        let far = scope.spawn(move || {
            let mut far = Looped::new(!seed, false, 1, Some(TrunkWay::Connect(address)))?;
            answer(&mut far, &far_word, job)
        });
        let elapsed = ask(&mut near, &near_word, job);
        drop(near_word);
        let answered = far.join();
        answered.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        elapsed
    })
}

/// The first word of an end is its address, and the others are `None`.
type Greeting = Option<(Peer, RemoteAddress)>;

/// Opens and connects the end of a world, and returns the memory of the other one.
fn connect(looped: &mut Looped, word: &Word) -> anyhow::Result<(End, RemoteAddress)> {
    let end = looped.open()?.pop().context("no port")?;
    let own = Some((end.address, end.region.remote(0)));
    let (peer, remote) = word.exchange(own, looped)?.context("no address")?;
    let world = looped.world()?;
    end.connect(world, &peer)?;
    end.post_receives(world, SMALL, 1)?;
    ensure!(end.completions(world)? == [0, 0], "a completion of nothing");
    word.exchange(None, looped)?;
    Ok((end, remote))
}

/// Writes from a world to the other one.
fn ask(looped: &mut Looped, word: &Word, job: Job) -> anyhow::Result<Duration> {
    let (end, remote) = connect(looped, word)?;
    let elapsed = match job {
        Job::Stream => stream(looped, &end, remote)?,
        Job::Bounce(count, pause) => bounce(looped, count, pause, |world, is_first| {
            if is_first {
                end.write_small(world, remote)?;
            }
            end.take_small(world)
        })?,
    };
    word.exchange(None, looped)?;
    Ok(elapsed)
}

/// Takes the writes of the other world, and answers small ones.
fn answer(looped: &mut Looped, word: &Word, job: Job) -> anyhow::Result<()> {
    let (end, remote) = connect(looped, word)?;
    if let Job::Bounce(count, _) = job {
        for _ in 0..count {
            looped.run_until(|world| end.take_small(world))?;
            end.write_small(looped.world()?, remote)?;
        }
    }
    word.exchange(None, looped)?;
    if matches!(job, Job::Stream) {
        let is_there = end.has(looped.world()?, VALUE, LARGE)?;
        ensure!(is_there, "the bytes did not arrive");
    }
    Ok(())
}

/// Writes within one world.
fn alone(seed: u64, job: Job) -> anyhow::Result<Duration> {
    let mut looped = Looped::new(seed, true, 2, None)?;
    let ends = looped.open()?;
    let [a, b] = &ends[..] else {
        return Err(anyhow!("two ends were opened"));
    };
    let world = looped.world()?;
    for (own, peer) in [(a, b), (b, a)] {
        own.connect(world, &peer.address)?;
        own.post_receives(world, SMALL, 1)?;
        ensure!(own.completions(world)? == [0, 0], "a completion of nothing");
    }
    match job {
        Job::Stream => {
            let elapsed = stream(&mut looped, a, b.region.remote(0))?;
            let is_there = b.has(looped.world()?, VALUE, LARGE)?;
            ensure!(is_there, "the bytes did not arrive");
            Ok(elapsed)
        }
        Job::Bounce(count, pause) => bounce(&mut looped, count, pause, |world, is_first| {
            if is_first {
                a.write_small(world, b.region.remote(0))?;
            }
            if b.take_small(world)? {
                b.write_small(world, a.region.remote(0))?;
            }
            a.take_small(world)
        }),
    }
}

/// Writes large messages, and returns the time until all are acknowledged.
fn stream(looped: &mut Looped, end: &End, remote: RemoteAddress) -> anyhow::Result<Duration> {
    end.fill(looped.world()?, VALUE, LARGE)?;
    let op = SendOp::RdmaWrite(remote);
    let begun = WallInstant::now();
    end.post(looped.world()?, op, LARGE, WINDOW)?;
    let (mut left, mut posted) = (STREAM, WINDOW);
    looped.run_until(|world| {
        if end.has_event(world) {
            let [sent, _] = end.completions(world)?;
            left -= sent;
            let more = sent.min(STREAM - posted);
            end.post(world, op, LARGE, more)?;
            posted += more;
        }
        Ok(left == 0)
    })?;
    Ok(begun.elapsed())
}

/// Makes so many rounds, and returns the time of all without the pauses. `step` is called with `true` to begin a round, and then after
/// each poll; it returns `true` at the end of the round.
fn bounce(
    looped: &mut Looped,
    count: u32,
    pause: Option<Duration>,
    mut step: impl FnMut(&mut World, bool) -> anyhow::Result<bool>,
) -> anyhow::Result<Duration> {
    let mut elapsed = Duration::ZERO;
    for _ in 0..count {
        if let Some(pause) = pause {
            looped.rest(pause)?;
        }
        let begun = WallInstant::now();
        step(looped.world()?, true)?;
        looped.run_until(|world| step(world, false))?;
        elapsed += begun.elapsed();
    }
    Ok(elapsed)
}

impl End {
    /// Writes a small message, of which the other end has an event.
    fn write_small(&self, world: &mut World, remote: RemoteAddress) -> anyhow::Result<()> {
        self.post(world, SendOp::RdmaWriteImmediate(remote, 0), SMALL, 1)
    }

    /// Returns `true` if a small message came, and makes ready for the next.
    fn take_small(&self, world: &mut World) -> anyhow::Result<bool> {
        if !self.has_event(world) {
            return Ok(false);
        }
        let [_, received] = self.completions(world)?;
        self.post_receives(world, SMALL, received)?;
        Ok(received > 0)
    }
}

/// Returns the nanoseconds from a signal to a thread that sleeps until that runs: half of the way there and back.
fn wake_up() -> anyhow::Result<f64> {
    let [ask, answer] = [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC));
    let (ask, answer) = (ask?, answer?);
    let wait = |fd: &OwnedFd| {
        let mut watched = [PollFd::new(fd, PollFlags::IN)];
        poll(&mut watched, None)?;
        read(fd, &mut [0; 8])
    };
    let signal = |fd: &OwnedFd| write(fd, &1_u64.to_ne_bytes());
    let elapsed = thread::scope(|scope| {
        let answering = scope.spawn(|| {
            (0..RESTED).try_for_each(|_| wait(&ask).and_then(|_| signal(&answer)).map(drop))
        });
        let mut elapsed = Duration::ZERO;
        for _ in 0..RESTED {
            thread::sleep(PAUSE);
            let begun = WallInstant::now();
            signal(&ask)?;
            wait(&answer)?;
            elapsed += begun.elapsed();
        }
        let answered = answering.join();
        answered.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        anyhow::Ok(elapsed)
    })?;
    Ok(nanos_per(elapsed, u64::from(2 * RESTED)))
}
