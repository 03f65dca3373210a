//! Messages through connected queue pairs of VFs of two hosts, beside copies of as many bytes.
//!
//! Both hosts' software, both adapters and the switches between them run in one thread, over links without latency, so a
//! message costs all that is computed for it on its way, its acknowledgement included. Each message is sent twice: in runs that
//! go whole, as nothing is in their way, and in packets.

use std::fs;
use std::hint::black_box;
use std::thread;

use anyhow::{Context, anyhow, ensure};
use emulated_hca::{Adapters, Topology};
use hca_api::{AccessFlags, CompletionOp, CompletionStatus, Hca, Payload, SendFlags, SendOp};
use ib_vtime::Duration;
use ib_wire::smp::PortState;
use ib_wire::{Guid, Mtu, PKey};
use pf_context::context::PfConfig;
use subnet_lite::SubnetConfig;
use vf_proxy::native::{
    ConnectedQp, ConnectedQpId, ConnectedQpSpec, MemoryRegion, Partition, Peer, VfPort,
    VfPortEvent, VirtualHcaConfig, VirtualHcaEvent,
};
use vf_tunnel::VfId;

use super::clock::Stopwatch;
use super::{Measured, Sample, nanos_per};
use vhca::Driven;
use vhca::world::{HostPortId, World, vf_spec};

/// Bytes of a region.
const REGION: u32 = 1 << 20;

/// Requests posted at a time, as many as a queue pair holds.
const WINDOW: u32 = 64;

/// Pairs of queue pairs that rest, for the bytes of one: nearly all that a VF may have.
const RESTING: u32 = 2000;

/// Virtual time in which a subnet comes up.
const COMES_UP: Duration = Duration::from_secs(5);

/// Bytes that are copied in a run, in messages of each size.
const COPIED: u32 = 256 << 20;

/// A size of messages, and the names of its figures.
struct Size {
    bytes: u32,
    messages: u32,
    /// Names of the time, of that of a copy, and of how many times longer the former is.
    figures: [&'static str; 3],
    /// Names of the time in packets, and of how many times longer than a copy it is.
    in_packets: [&'static str; 2],
}

/// The size by which a case is called.
const SMALL: Size = Size {
    bytes: 8,
    messages: 32_000,
    figures: ["ns, 8 B", "memcpy ns, 8 B", "times memcpy, 8 B"],
    in_packets: ["ns in packets, 8 B", "times memcpy in packets, 8 B"],
};

const LARGER: [Size; 3] = [
    Size {
        bytes: 4 << 10,
        messages: 16_000,
        figures: ["ns, 4 KiB", "memcpy ns, 4 KiB", "times memcpy, 4 KiB"],
        in_packets: ["ns in packets, 4 KiB", "times memcpy in packets, 4 KiB"],
    },
    Size {
        bytes: 64 << 10,
        messages: 1_280,
        figures: ["ns, 64 KiB", "memcpy ns, 64 KiB", "times memcpy, 64 KiB"],
        in_packets: ["ns in packets, 64 KiB", "times memcpy in packets, 64 KiB"],
    },
    Size {
        bytes: 1 << 20,
        messages: 128,
        figures: ["ns, 1 MiB", "memcpy ns, 1 MiB", "times memcpy, 1 MiB"],
        in_packets: ["ns in packets, 1 MiB", "times memcpy in packets, 1 MiB"],
    },
];

/// Messages of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traffic {
    /// RDMA writes of a reliable connection.
    Write,
    /// RDMA reads of a reliable connection.
    Read,
    /// Sends of a reliable connection.
    Send,
    /// Sends of a reliable connection there and back, one under way.
    Latency,
    /// RDMA writes of an unreliable connection.
    UnreliableWrite,
}

impl Traffic {
    const fn words(self) -> &'static str {
        match self {
            Self::Write => "RDMA writes (RC)",
            Self::Read => "RDMA reads (RC)",
            Self::Send => "sends (RC)",
            Self::Latency => "sends (RC) there and back, one under way",
            Self::UnreliableWrite => "RDMA writes (UC)",
        }
    }

    fn spec(self) -> ConnectedQpSpec {
        let partition = Partition::Key(PKey::DEFAULT_FULL);
        match self {
            Self::UnreliableWrite => ConnectedQpSpec::uc(partition),
            _ => ConnectedQpSpec {
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
                ..ConnectedQpSpec::rc(partition)
            },
        }
    }
}

/// Prepares a case. Of reliable writes it is also measured what a queue pair takes that rests.
pub(super) fn prepare(traffic: Traffic) -> anyhow::Result<Measured> {
    let resting = if traffic == Traffic::Write {
        Some(resting_bytes()?)
    } else {
        None
    };
    Ok(Measured {
        setup: format!(
            "{} of {} bytes to 1 MiB between VFs of two hosts, 2 switches, packets of 4096 bytes",
            traffic.words(),
            SMALL.bytes
        ),
        ops: SMALL.messages.into(),
        mads_per_op: None,
        run: Box::new(move |seed| run(traffic, resting, seed)),
    })
}

fn run(traffic: Traffic, resting: Option<f64>, seed: u32) -> anyhow::Result<Sample> {
    let mut pair = Pair::connect(traffic, seed, true)?;
    let mut packets = Pair::connect(traffic, seed, false)?;
    let nanos = pair.measure(traffic, &SMALL)?;
    let mut figures = vec![
        (SMALL.figures[1], copy(&SMALL)),
        (SMALL.in_packets[0], packets.measure(traffic, &SMALL)?),
    ];
    for size in &LARGER {
        let (message, copied) = (pair.measure(traffic, size)?, copy(size));
        let values = [message, copied, message / copied];
        figures.extend(size.figures.into_iter().zip(values));
        let message = packets.measure(traffic, size)?;
        let values = [message, message / copied];
        figures.extend(size.in_packets.into_iter().zip(values));
    }
    figures.extend(resting.map(|bytes| ("bytes/idle queue pair", bytes)));
    Ok(Sample {
        nanos,
        bytes_per_live: None,
        figures,
    })
}

/// Returns the nanoseconds to copy a message from one place to another, over and over as the messages of a case are.
fn copy(size: &Size) -> f64 {
    let bytes = size.bytes as usize;
    let (from, mut to) = (vec![0x5a_u8; bytes], vec![0_u8; bytes]);
    let count = (COPIED / size.bytes).min(1 << 20);
    let began = Stopwatch::start();
    for _ in 0..count {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    }
    nanos_per(began.elapsed(), count.into())
}

/// A VF's queue pair, with a region that its peer may read and write.
pub(super) struct End {
    at: HostPortId,
    qp: ConnectedQpId,
    pub(super) region: MemoryRegion,
    /// The queue pair as its peer names it.
    pub(super) address: Peer,
}

/// Two VFs' queue pairs, connected to each other.
struct Pair {
    world: World,
    ends: [End; 2],
}

/// A subnet with a VF on each of two hosts behind different switches. Packets of connections go in whole runs or one by one.
fn subnet(seed: u32, whole: bool) -> anyhow::Result<(World, [HostPortId; 2])> {
    let (mut fabric, built) = Topology::two_switches(2).build(u64::from(seed));
    fabric.set_whole_runs(whole);
    let [manager, near, far, ..] = built.hcas[..] else {
        return Err(anyhow!("three adapters were planned"));
    };
    let mut world = World::new(fabric, u64::from(seed));
    let manager = world.add_host(manager)?;
    world.start_manager(manager.port(1), SubnetConfig::default())?;
    let vf = VfId::new(1).context("VFs are numbered from 1")?;
    let mut open = |node, n| {
        let host = world.add_pf_host(node, &PfConfig::new(n))?;
        world.add_idle_vf(host, vf, vf_spec(Guid::new(0x0014_0580_0000_0000 + n)))?;
        let function = world.open_vf(host, vf, VirtualHcaConfig::new(n))?;
        anyhow::Ok(function.port(1))
    };
    let ports = [open(near, 1)?, open(far, 2)?];
    world.run_for(COMES_UP);
    for at in ports {
        let state = world.with_vf_port(at, |port, _, _| port.view().state);
        ensure!(state == Some(PortState::ACTIVE), "a VF's port is {state:?}");
    }
    Ok((world, ports))
}

fn on_port<T>(
    world: &mut World,
    at: HostPortId,
    call: impl FnOnce(&mut VfPort, &mut dyn Hca) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let called = world.with_vf_port(at, |port, hca, _| call(port, hca));
    called.context("the VF is not open")?
}

impl End {
    pub(super) fn open(
        world: &mut World,
        at: HostPortId,
        traffic: Traffic,
    ) -> anyhow::Result<Self> {
        on_port(world, at, |port, hca| {
            let rights =
                AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
            let region = port.reg_mr(hca, REGION as usize, rights)?;
            let qp = port.open_connected_qp(hca, &traffic.spec())?;
            let address = address(port, at, qp)?;
            Ok(Self {
                at,
                qp,
                region,
                address,
            })
        })
    }

    /// Connects the queue pair.
    pub(super) fn connect(&self, world: &mut World, peer: &Peer) -> anyhow::Result<()> {
        self.with(world, |qp, hca| Ok(qp.connect(hca, peer)?))
    }

    /// Fills the front of the region with a value.
    pub(super) fn fill(&self, world: &mut World, value: u8, bytes: u32) -> anyhow::Result<()> {
        let (region, bytes) = (self.region, vec![value; bytes as usize]);
        on_port(world, self.at, |_, hca| Ok(region.write(hca, 0, &bytes)?))
    }

    /// Returns `true` if all bytes at the front of the region have a value.
    pub(super) fn has(&self, world: &mut World, value: u8, bytes: u32) -> anyhow::Result<bool> {
        let (region, mut there) = (self.region, vec![0; bytes as usize]);
        on_port(
            world,
            self.at,
            |_, hca| Ok(region.read(hca, 0, &mut there)?),
        )?;
        Ok(there.iter().all(|byte| *byte == value))
    }

    /// Returns `true` if completions may have come, without a look at the queue.
    pub(super) fn has_event(&self, world: &mut World) -> bool {
        let mut any = false;
        while let Some(event) = world.poll_vf_event(self.at.on()) {
            any |= matches!(
                event,
                VirtualHcaEvent::Port {
                    event: VfPortEvent::CompletionsReady(_),
                    ..
                }
            );
        }
        any
    }

    /// Calls something with the queue pair.
    fn with<T>(
        &self,
        world: &mut World,
        call: impl FnOnce(&ConnectedQp, &mut dyn Hca) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        on_port(world, self.at, |port, hca| {
            call(port.connected_qp(self.qp)?, hca)
        })
    }

    pub(super) fn post(
        &self,
        world: &mut World,
        op: SendOp<'_>,
        bytes: u32,
        count: u32,
    ) -> anyhow::Result<()> {
        let local = [self.region.sge(0, bytes)];
        self.with(world, |qp, hca| {
            (0..count).try_for_each(|_| {
                let payload = Payload::Gather(&local);
                Ok(qp.post_send(hca, 0, op, payload, SendFlags::empty())?)
            })
        })
    }

    pub(super) fn post_receives(
        &self,
        world: &mut World,
        bytes: u32,
        count: u32,
    ) -> anyhow::Result<()> {
        let local = [self.region.sge(0, bytes)];
        self.with(world, |qp, hca| {
            (0..count).try_for_each(|_| Ok(qp.post_recv(hca, 0, &local)?))
        })
    }

    /// Takes all completions, which must be successes. Returns how many there were of sends and of receives.
    pub(super) fn completions(&self, world: &mut World) -> anyhow::Result<[u32; 2]> {
        while world.poll_vf_event(self.at.on()).is_some() {}
        self.with(world, |qp, hca| {
            let mut counts = [0; 2];
            while let Some(done) = qp.poll_cq(hca) {
                ensure!(done.status == CompletionStatus::Success, "{done:?}");
                let is_received = matches!(done.op, CompletionOp::Recv | CompletionOp::RecvRdmaImm);
                counts[usize::from(is_received)] += 1;
            }
            Ok(counts)
        })
    }
}

fn address(port: &VfPort, at: HostPortId, qp: ConnectedQpId) -> anyhow::Result<Peer> {
    let (lid, gid) = (port.view().lid, port.gid().context("a port without a GID")?);
    let own = port.connected_qp(qp)?;
    Ok(Peer {
        path_mtu: Mtu::MTU_4096,
        ..Peer::on_subnet(at.port, lid, gid, own.qpn(), own.psn())
    })
}

impl Pair {
    fn connect(traffic: Traffic, seed: u32, whole: bool) -> anyhow::Result<Self> {
        let (mut world, [near, far]) = subnet(seed, whole)?;
        let ends = [
            End::open(&mut world, near, traffic)?,
            End::open(&mut world, far, traffic)?,
        ];
        for (own, peer) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            own.connect(&mut world, &peer.address)?;
        }
        Ok(Self { world, ends })
    }

    /// Returns the nanoseconds for each message of a size, after it was made sure that they carry bytes.
    fn measure(&mut self, traffic: Traffic, size: &Size) -> anyhow::Result<f64> {
        let [a, b] = &self.ends;
        let (source, target) = if traffic == Traffic::Read {
            (b, a)
        } else {
            (a, b)
        };
        for (end, value) in [(source, 0x5a), (target, 0)] {
            end.fill(&mut self.world, value, size.bytes)?;
        }
        let before = self.received();
        let began = Stopwatch::start();
        if traffic == Traffic::Latency {
            self.bounce(size)?;
        } else {
            self.stream(traffic, size)?;
        }
        let nanos = nanos_per(began.elapsed(), size.messages.into());
        let [a, b] = &self.ends;
        let target = if traffic == Traffic::Read { a } else { b };
        let is_there = target.has(&mut self.world, 0x5a, size.bytes)?;
        let received = self.received() - before;
        let sent = u64::from(size.messages) * u64::from(size.bytes);
        ensure!(
            is_there && received == sent,
            "{received} of {sent} bytes arrived, the last as they were sent: {is_there}"
        );
        Ok(nanos)
    }

    /// Bytes that arrived at both ends so far. Each counts as often as it was sent.
    fn received(&self) -> u64 {
        let nodes = self
            .ends
            .iter()
            .map(|end| self.world.host(end.at.host).node());
        let devices = nodes.filter_map(|node| self.world.fabric().device(node));
        let counters = devices.flat_map(|device| device.connection_counters());
        counters.map(|(_, counted)| counted.received_bytes).sum()
    }

    /// Sends messages from one end to the other, a window at a time.
    fn stream(&mut self, traffic: Traffic, size: &Size) -> anyhow::Result<()> {
        let [a, b] = &self.ends;
        let op = match traffic {
            Traffic::Write | Traffic::UnreliableWrite => SendOp::RdmaWrite(b.region.remote(0)),
            Traffic::Read => SendOp::RdmaRead(b.region.remote(0)),
            Traffic::Send | Traffic::Latency => SendOp::Send,
        };
        let mut left = size.messages;
        while left > 0 {
            let count = left.min(WINDOW);
            if op == SendOp::Send {
                b.post_receives(&mut self.world, size.bytes, count)?;
            }
            a.post(&mut self.world, op, size.bytes, count)?;
            self.world.poll(self.world.now());
            let [sent, _] = a.completions(&mut self.world)?;
            ensure!(sent == count, "{sent} of {count} requests completed");
            if op == SendOp::Send {
                let [_, received] = b.completions(&mut self.world)?;
                ensure!(received == count, "{received} of {count} messages arrived");
            }
            left -= count;
        }
        Ok(())
    }

    /// Sends a message to and fro.
    fn bounce(&mut self, size: &Size) -> anyhow::Result<()> {
        let [a, b] = &self.ends;
        for _ in 0..size.messages / 2 {
            for (from, to) in [(a, b), (b, a)] {
                to.post_receives(&mut self.world, size.bytes, 1)?;
                from.post(&mut self.world, SendOp::Send, size.bytes, 1)?;
                self.world.poll(self.world.now());
                let [_, received] = to.completions(&mut self.world)?;
                ensure!(received == 1, "{received} messages arrived in place of one");
            }
        }
        Ok(())
    }
}

/// Returns the bytes of a reliable queue pair that rests, with its completion queue: connected, after one write each way.
///
/// On a thread of its own, whose part of the heap has nothing that other cases have left.
fn resting_bytes() -> anyhow::Result<f64> {
    let measured = thread::spawn(|| {
        let (mut world, ports) = subnet(0, true)?;
        let traffic = Traffic::Write;
        let ends = [
            End::open(&mut world, ports[0], traffic)?,
            End::open(&mut world, ports[1], traffic)?,
        ];
        let before = anonymous_kib()?;
        for _ in 0..RESTING {
            let mut open = |end: &End| {
                on_port(&mut world, end.at, |port, hca| {
                    let qp = port.open_connected_qp(hca, &traffic.spec())?;
                    Ok(End {
                        qp,
                        address: address(port, end.at, qp)?,
                        ..*end
                    })
                })
            };
            let pair = [open(&ends[0])?, open(&ends[1])?];
            for (own, peer) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
                own.connect(&mut world, &peer.address)?;
            }
            for (own, peer) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
                let op = SendOp::RdmaWrite(peer.region.remote(0));
                own.post(&mut world, op, SMALL.bytes, 1)?;
            }
            world.poll(world.now());
            for end in &pair {
                ensure!(end.completions(&mut world)? == [1, 0], "a write is missing");
            }
        }
        anyhow::Ok((anonymous_kib()? - before) * 1024.0 / f64::from(2 * RESTING))
    });
    measured
        .join()
        .map_err(|_| anyhow!("the bytes of queue pairs could not be measured"))?
}

/// Memory of this process that no file backs, in KiB.
fn anonymous_kib() -> anyhow::Result<f64> {
    const FILE: &str = "/proc/self/smaps_rollup";
    let rollup = fs::read_to_string(FILE).context(FILE)?;
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("no Anonymous in smaps_rollup")?.parse()?)
}
