//! A block target: a VF keeps blocks, and programs on two other VFs write and read them over links that lose packets.
//!
//! A client sends a command with the key of its buffer. The target reads the client's buffer into its blocks, or writes its blocks
//! into the buffer, by RDMA, and replies with a checksum. Blocks that follow each other are not neighbours in the target's memory,
//! which has no key: transfers register the pages in regions of a pool. Commands of both clients come by one completion queue.
//!
//! `cargo run -p vhca --example block_target SEED` runs it in virtual time; the same seed prints the same bytes.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt::Write;

use vhca::emulated::{
    AccessFlags, CompletionStatus, ConnectedQpId, ConnectedQpSpec, DmaBuffer, Duration, Fault,
    FaultPlan, Guid, Hca, LocalMemory, MemoryRegion, PKey, PacketFilter, Partition, Payload, Peer,
    PfConfig, QpState, RKey, ReceiveRing, RegistrationPool, RemoteAddress, Secret, SendFlags,
    SendOp, SharedCompletionsId, SubnetConfig, Topology, Transfer, TransferError, TransferState,
    VfId, VfPort, VirtualHcaConfig, When,
};
use vhca::world::{HostPortId, World, vf_spec};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of a block; four are a page.
const BLOCK: u32 = 1024;
const BLOCKS: u32 = 64;
/// Blocks of a command, at most.
const MOST: u32 = 8;
/// Commands of a client, each a write and a read.
const ROUNDS: u32 = 6;
/// Receives that each queue pair has posted.
const DEPTH: u32 = 4;
/// Completions of a poll.
const BUDGET: usize = 4;

/// Names of requests: receives are less than [`REPLY`], and transfers are counted from [`TRANSFER`].
const REPLY: u64 = 1 << 32;
const TRANSFER: u64 = 1 << 33;
const SENDS_END: u64 = 1 << 34;
const RECEIVES_END: u64 = SENDS_END + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Command {
    is_write: bool,
    first: u32,
    count: u32,
    buffer: RemoteAddress,
    /// Checksum of the blocks that are written.
    crc: u32,
}

impl Command {
    fn to_bytes(self) -> Vec<u8> {
        let numbers = [u32::from(self.is_write), self.first, self.count];
        let numbers = numbers.into_iter().chain([self.buffer.rkey.0, self.crc]);
        let mut bytes: Vec<u8> = numbers.flat_map(u32::to_be_bytes).collect();
        bytes.extend(self.buffer.addr.to_be_bytes());
        bytes
    }

    /// Takes a command apart; `None` if it is none, or reaches beyond the blocks.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, addr) = bytes.split_first_chunk::<20>()?;
        let number = |at: usize| {
            let (words, _) = numbers.as_chunks();
            u32::from_be_bytes(words[at])
        };
        let this = Self {
            is_write: number(0) != 0,
            first: number(1),
            count: number(2),
            buffer: RemoteAddress {
                addr: u64::from_be_bytes(addr.try_into().ok()?),
                rkey: RKey(number(3)),
            },
            crc: number(4),
        };
        let end = this.first.checked_add(this.count)?;
        (end <= BLOCKS && (1..=MOST).contains(&this.count)).then_some(this)
    }
}

/// CRC-32 of IEEE 802.3.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    let add = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), step);
    !bytes.iter().fold(!0, add)
}

fn on_port<T>(
    world: &mut World,
    at: HostPortId,
    call: impl FnOnce(&mut VfPort, &mut dyn Hca) -> Outcome<T>,
) -> Outcome<T> {
    let called = world.with_vf_port(at, |port, hca, _| call(port, hca));
    called.ok_or("the VF is not open")?
}

fn spec() -> ConnectedQpSpec {
    ConnectedQpSpec {
        sq_sig_all: false,
        timeout: 8, // About 1 ms, in a fabric of microseconds.
        ..ConnectedQpSpec::rc(Partition::Key(PKey::DEFAULT_FULL))
    }
}

/// Returns where the peer finds a queue pair.
fn address(port: &VfPort, qp: ConnectedQpId) -> Outcome<Peer> {
    let (lid, gid) = (port.view().lid, port.gid().ok_or("no GID")?);
    let own = port.connected_qp(qp)?;
    Ok(Peer::on_subnet(port.port(), lid, gid, own.qpn(), own.psn()))
}

/// A command that the target carries out.
struct Job {
    qp: ConnectedQpId,
    command: Command,
    transfer: Transfer,
}

struct Target {
    at: HostPortId,
    completions: SharedCompletionsId,
    pool: RegistrationPool,
    disk: DmaBuffer,
    rings: BTreeMap<ConnectedQpId, ReceiveRing>,
    waiting: VecDeque<(ConnectedQpId, Command)>,
    jobs: Vec<Job>,
    names: u64,
    /// Ends of drains that came.
    drained: usize,
}

impl Target {
    fn new(world: &mut World, at: HostPortId) -> Outcome<Self> {
        on_port(world, at, |port, hca| {
            let rights = AccessFlags::LOCAL_WRITE;
            Ok(Self {
                at,
                completions: port.create_shared_completions(hca, 1024)?,
                // Room for one command of scattered blocks, and not for two.
                pool: RegistrationPool::allocate(port, hca, MOST as usize, 1, rights)?,
                disk: hca.allocate_dma((BLOCKS * BLOCK) as usize)?,
                rings: BTreeMap::new(),
                waiting: VecDeque::new(),
                jobs: Vec::new(),
                names: TRANSFER,
                drained: 0,
            })
        })
    }

    fn open(&mut self, port: &mut VfPort, hca: &mut dyn Hca) -> Outcome<ConnectedQpId> {
        let id = port.open_connected_qp_on(hca, &spec(), self.completions)?;
        let mut ring = ReceiveRing::allocate(port, hca, 0, DEPTH, 64)?;
        ring.fill(hca, port.connected_qp(id)?)?;
        self.rings.insert(id, ring);
        Ok(id)
    }

    /// Where a command's blocks are: not beside each other.
    fn blocks(&self, command: &Command) -> Vec<DmaBuffer> {
        let blocks = command.first..command.first + command.count;
        let places = blocks.map(|block| u64::from(block * 5 % BLOCKS * BLOCK));
        let at = |place| DmaBuffer {
            addr: self.disk.addr + place,
            len: BLOCK as usize,
        };
        places.map(at).collect()
    }

    fn checksum(&self, hca: &dyn Hca, command: &Command) -> Outcome<u32> {
        let mut bytes = Vec::new();
        for block in self.blocks(command) {
            let start = bytes.len();
            bytes.resize(start + block.len, 0);
            hca.dma_read(block.addr, &mut bytes[start..])?;
        }
        Ok(crc32(&bytes))
    }

    fn poll(&mut self, world: &mut World, log: &mut String) -> Outcome<()> {
        let now = world.now();
        on_port(world, self.at, |port, hca| {
            for (id, done) in port.poll_shared_completions(hca, self.completions, BUDGET)? {
                let qp = port.connected_qp(id)?;
                let ring = self.rings.get_mut(&id).ok_or("no such client")?;
                if let Some(received) = ring.receive(hca, qp, &done) {
                    // A receive without a message is flushed at the end.
                    if let Ok(message) = received {
                        let command = Command::from_bytes(&message.bytes);
                        self.waiting.push_back((id, command.ok_or("no command")?));
                    }
                    continue;
                }
                self.drained += usize::from(done.wr_id >= SENDS_END);
                for job in self.jobs.iter_mut().filter(|job| job.qp == id) {
                    if job.transfer.handle_completion(&done) {
                        job.transfer.post(hca, qp)?;
                    }
                }
            }
            while let Some(at) = self.jobs.iter().position(|job| is_over(&job.transfer)) {
                let job = self.jobs.swap_remove(at);
                let (state, crc) = (job.transfer.state(), self.checksum(hca, &job.command)?);
                let requests = job.transfer.requests();
                job.transfer.release(&mut self.pool);
                let Command {
                    is_write,
                    first,
                    count,
                    ..
                } = job.command;
                let verb = if is_write { "write" } else { "read" };
                writeln!(
                    log,
                    "{now:?} {verb} {first}+{count}: {requests} requests, {state:?}, crc {crc:08x}"
                )?;
                if is_write && crc != job.command.crc {
                    return Err("other bytes arrived than were written".into());
                }
                let (qp, reply) = (port.connected_qp(job.qp)?, crc.to_be_bytes());
                let reply = Payload::Inline(&reply);
                qp.post_send(hca, REPLY, SendOp::Send, reply, SendFlags::SIGNALED)?;
            }
            while let Some((id, command)) = self.waiting.front().copied() {
                let qp = port.connected_qp(id)?;
                let blocks = self.blocks(&command);
                let local = LocalMemory::Unregistered(&blocks, &mut self.pool);
                let make = if command.is_write {
                    Transfer::read
                } else {
                    Transfer::write
                };
                let mut transfer =
                    match make(self.names, local, command.buffer, &qp.transfer_limits()) {
                        Ok(transfer) => transfer,
                        // The next job that ends gives its regions back.
                        Err(TransferError::NoRegions { .. }) => break,
                        Err(error) => return Err(error.into()),
                    };
                transfer.post(hca, qp)?;
                self.names += 1;
                self.waiting.pop_front();
                self.jobs.push(Job {
                    qp: id,
                    command,
                    transfer,
                });
            }
            Ok(())
        })
    }

    /// Drains the queue pairs.
    fn drain(&self, world: &mut World) -> Outcome<()> {
        on_port(world, self.at, |port, hca| {
            for id in self.rings.keys() {
                let qp = port.connected_qp(*id)?;
                qp.drain_send(hca, SENDS_END)?;
                qp.drain_receive(hca, RECEIVES_END)?;
            }
            Ok(())
        })
    }

    /// Gives all back, once the queue pairs are drained.
    fn close(self, world: &mut World) -> Outcome<()> {
        on_port(world, self.at, |port, hca| {
            for (id, ring) in self.rings {
                let state = port.connected_qp(id)?.query(hca)?.state;
                if state != QpState::Error || ring.posted() != 0 {
                    return Err(format!("{state:?} after a drain").into());
                }
                port.close_connected_qp(hca, id)?;
                ring.deallocate(port, hca)?;
            }
            port.destroy_shared_completions(hca, self.completions)?;
            self.pool.deallocate(port, hca);
            hca.free_dma(self.disk);
            Ok(())
        })
    }
}

fn is_over(transfer: &Transfer) -> bool {
    matches!(
        transfer.state(),
        TransferState::Done | TransferState::Failed(_)
    )
}

/// A client, which writes blocks and reads them back.
struct Client {
    at: HostPortId,
    qp: ConnectedQpId,
    ring: ReceiveRing,
    buffer: MemoryRegion,
    /// First of the client's blocks.
    base: u32,
    secret: Secret,
    /// Commands that were answered: writes are even, reads are odd.
    answered: u32,
    written: Vec<u8>,
}

impl Client {
    fn connect(
        world: &mut World,
        at: HostPortId,
        target: &mut Target,
        number: u32,
        seed: u64,
    ) -> Outcome<Self> {
        let (far, far_peer) = on_port(world, target.at, |port, hca| {
            let far = target.open(port, hca)?;
            Ok((far, address(port, far)?))
        })?;
        let (client, peer) = on_port(world, at, |port, hca| {
            let qp = port.open_connected_qp(hca, &spec())?;
            let own = port.connected_qp(qp)?;
            own.connect(hca, &far_peer)?;
            let rights =
                AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
            let buffer = port.reg_mr(hca, (MOST * BLOCK) as usize, rights)?;
            let mut ring = ReceiveRing::allocate(port, hca, 0, DEPTH, 64)?;
            ring.fill(hca, port.connected_qp(qp)?)?;
            let client = Self {
                at,
                qp,
                ring,
                buffer,
                base: number * BLOCKS / 2,
                secret: (seed + u64::from(number)).into(),
                answered: 0,
                written: Vec::new(),
            };
            Ok((client, address(port, qp)?))
        })?;
        on_port(world, target.at, |port, hca| {
            Ok(port.connected_qp(far)?.connect(hca, &peer)?)
        })?;
        Ok(client)
    }

    fn is_done(&self) -> bool {
        self.answered == 2 * ROUNDS
    }

    /// Returns the first block, and their number, of a round.
    const fn range(&self) -> (u32, u32) {
        let round = self.answered / 2;
        (self.base + round * 3, 2 + round)
    }

    fn send(&mut self, world: &mut World) -> Outcome<()> {
        let (first, count) = self.range();
        let is_write = self.answered.is_multiple_of(2);
        if is_write {
            let mut numbers = self
                .secret
                .of(&u64::from(self.answered).to_be_bytes())
                .numbers();
            let words = (0..count * BLOCK / 8).map(|_| numbers.next_u64());
            self.written = words.flat_map(u64::to_be_bytes).collect();
        }
        let (buffer, crc) = (self.buffer.remote(0), crc32(&self.written));
        let command = Command {
            is_write,
            first,
            count,
            buffer,
            crc,
        }
        .to_bytes();
        on_port(world, self.at, |port, hca| {
            let zeros = vec![0; self.written.len()];
            let bytes = if is_write { &self.written } else { &zeros };
            self.buffer.write(hca, 0, bytes)?;
            let payload = Payload::Inline(&command);
            let qp = port.connected_qp(self.qp)?;
            Ok(qp.post_send(hca, REPLY, SendOp::Send, payload, SendFlags::SIGNALED)?)
        })
    }

    /// Takes the target's reply, and sends the next command.
    fn poll(&mut self, world: &mut World) -> Outcome<()> {
        let answered = on_port(world, self.at, |port, hca| {
            let qp = port.connected_qp(self.qp)?;
            let mut answered = 0;
            while let Some(done) = qp.poll_cq(hca) {
                let Some(received) = self.ring.receive(hca, qp, &done) else {
                    if done.status != CompletionStatus::Success {
                        return Err(format!("a command: {:?}", done.status).into());
                    }
                    continue;
                };
                let reply = received.map_err(|status| format!("a reply: {status:?}"))?;
                let mut bytes = vec![0; self.written.len()];
                self.buffer.read(hca, 0, &mut bytes)?;
                if bytes != self.written || reply.bytes != crc32(&bytes).to_be_bytes() {
                    return Err("other bytes were read than were written".into());
                }
                answered += 1;
            }
            Ok(answered)
        })?;
        self.answered += answered;
        if answered > 0 && !self.is_done() {
            self.send(world)?;
        }
        Ok(())
    }
}

/// Makes every link lose two packets in a hundred.
fn lose_packets(world: &mut World, seed: u64) {
    let fabric = world.fabric_mut();
    let plan = FaultPlan::new(seed).rule(
        PacketFilter::default(),
        When::PerMillion(20_000),
        Fault::Drop,
    );
    for link in fabric.links().collect::<Vec<_>>() {
        for end in fabric.link_ends(link).into_iter().flatten() {
            fabric.set_faults(end, Some(&plan));
        }
    }
}

/// Lets time pass until the condition holds.
fn wait(world: &mut World, mut step: impl FnMut(&mut World) -> Outcome<bool>) -> Outcome<()> {
    let end = world.now() + Duration::from_secs(5);
    while !step(world)? {
        if world.now() >= end {
            return Err("not within five seconds".into());
        }
        world.run_for(Duration::from_micros(20));
    }
    Ok(())
}

/// Serves both clients, and returns the target's log.
pub(crate) fn serve(seed: u64) -> Outcome<String> {
    let (fabric, built) = Topology::two_switches(2).build(seed);
    let mut world = World::new(fabric, seed);
    let manager = world.add_host(built.hcas[0])?;
    world.start_manager(manager.port(1), SubnetConfig::default())?;
    let vf = VfId::new(1).ok_or("VFs are numbered from 1")?;
    let mut ports = Vec::new();
    for (n, node) in (1..).zip(&built.hcas[1..]) {
        let host = world.add_pf_host(*node, &PfConfig::new(seed + n))?;
        world.add_idle_vf(host, vf, vf_spec(Guid::new(0x0014_0580_0000_0000 + n)))?;
        ports.push(
            world
                .open_vf(host, vf, VirtualHcaConfig::new(seed + n))?
                .port(1),
        );
    }
    world.run_for(Duration::from_secs(2)); // The subnet comes up.

    let mut target = Target::new(&mut world, ports[0])?;
    let mut clients = Vec::new();
    for (number, port) in (0..).zip(&ports[1..]) {
        clients.push(Client::connect(
            &mut world,
            *port,
            &mut target,
            number,
            seed,
        )?);
    }
    lose_packets(&mut world, seed);
    for client in &mut clients {
        client.send(&mut world)?;
    }
    let mut log = String::new();
    wait(&mut world, |world| {
        target.poll(world, &mut log)?;
        for client in &mut clients {
            client.poll(world)?;
        }
        Ok(clients.iter().all(Client::is_done))
    })?;
    target.drain(&mut world)?;
    wait(&mut world, |world| {
        target.poll(world, &mut log)?;
        Ok(target.drained == 2 * clients.len())
    })?;
    target.close(&mut world)?;
    Ok(log)
}

fn main() -> Outcome<()> {
    let seed = std::env::args().nth(1);
    print!("{}", serve(seed.map_or(Ok(1), |seed| seed.parse())?)?);
    Ok(())
}
