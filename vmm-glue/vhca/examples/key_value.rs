//! A key-value store of which only the clients run code: RDMA reads, writes and fetch-and-adds on a server's memory.
//!
//! The memory is a log: a count of slots, and the slots. A client that puts takes a slot by a fetch-and-add on the count and
//! writes key and value there; one that gets reads the log, in which the last entry of a key counts.
//!
//! `cargo run -p vhca --example key_value` runs it in virtual time, with two clients on two hosts.

use std::error::Error;

use vhca::emulated::{
    AccessFlags, CompletionStatus, ConnectedQpId, ConnectedQpSpec, Duration, Guid, Hca,
    MemoryRegion, PKey, Partition, Payload, Peer, PfConfig, SendFlags, SendOp, SubnetConfig,
    Topology, VfId, VfPort, VirtualHcaConfig,
};
use vhca::world::{HostPortId, World, vf_spec};

type Outcome<T> = Result<T, Box<dyn Error>>;

const SLOTS: u32 = 64;
/// Bytes of the count, which stands in front of the slots.
const COUNT: u32 = 8;
/// Bytes of a slot: a key, which is not 0, and a value.
const SLOT: u32 = 32;
const LOG: usize = (SLOTS * SLOT) as usize;

fn on_port<T>(
    world: &mut World,
    at: HostPortId,
    call: impl FnOnce(&mut VfPort, &mut dyn Hca) -> Outcome<T>,
) -> Outcome<T> {
    let called = world.with_vf_port(at, |port, hca, _| call(port, hca));
    called.ok_or("the VF is not open")?
}

/// Makes a queue pair, and returns it with what its peer is told.
fn open_qp(world: &mut World, at: HostPortId) -> Outcome<(ConnectedQpId, Peer)> {
    on_port(world, at, |port, hca| {
        let spec = ConnectedQpSpec::rc(Partition::Key(PKey::DEFAULT_FULL));
        let qp = port.open_connected_qp(hca, &spec)?;
        let (lid, gid) = (port.view().lid, port.gid().ok_or("no GID")?);
        let own = port.connected_qp(qp)?;
        let peer = Peer::on_subnet(at.port, lid, gid, own.qpn(), own.psn());
        Ok((qp, peer))
    })
}

/// A client: a queue pair to the server, a buffer of its own, and the server's memory.
struct Client {
    at: HostPortId,
    qp: ConnectedQpId,
    buffer: MemoryRegion,
    store: MemoryRegion,
}

impl Client {
    fn connect(
        world: &mut World,
        at: HostPortId,
        server: HostPortId,
        store: MemoryRegion,
    ) -> Outcome<Self> {
        let (own, far) = (open_qp(world, at)?, open_qp(world, server)?);
        for (at, qp, peer) in [(at, own.0, far.1), (server, far.0, own.1)] {
            on_port(world, at, |port, hca| {
                Ok(port.connected_qp(qp)?.connect(hca, &peer)?)
            })?;
        }
        let reg_mr = |port: &mut VfPort, hca: &mut dyn Hca| {
            Ok(port.reg_mr(hca, LOG, AccessFlags::LOCAL_WRITE)?)
        };
        let buffer = on_port(world, at, reg_mr)?;
        Ok(Self {
            at,
            qp: own.0,
            buffer,
            store,
        })
    }

    /// Does one operation between the buffer and the store, and waits for its completion.
    fn run(&self, world: &mut World, op: SendOp<'_>, len: u32) -> Outcome<()> {
        on_port(world, self.at, |port, hca| {
            let (qp, buffer) = (port.connected_qp(self.qp)?, [self.buffer.sge(0, len)]);
            Ok(qp.post_send(hca, 1, op, Payload::Gather(&buffer), SendFlags::empty())?)
        })?;
        world.run_for(Duration::from_millis(1));
        let done = on_port(world, self.at, |port, hca| {
            Ok(port.connected_qp(self.qp)?.poll_cq(hca))
        })?;
        match done.ok_or("not within a millisecond")?.status {
            CompletionStatus::Success => Ok(()),
            status => Err(format!("{op:?}: {status:?}").into()),
        }
    }

    fn put(&self, world: &mut World, key: u64, value: &str) -> Outcome<()> {
        let mut slot = [0; SLOT as usize];
        slot[..8].copy_from_slice(&key.to_ne_bytes());
        let room = slot[8..].get_mut(..value.len());
        room.ok_or("the value is too long")?
            .copy_from_slice(value.as_bytes());
        let remote = self.store.remote(0);
        self.run(world, SendOp::FetchAdd { remote, add: 1 }, 8)?;
        let taken = on_port(world, self.at, |_, hca| {
            let taken = self.buffer.read_u64(hca, 0)?;
            self.buffer.write(hca, 0, &slot)?;
            Ok(u32::try_from(taken)?)
        })?;
        if taken >= SLOTS {
            return Err("the store is full".into());
        }
        let to = self.store.remote(COUNT + taken * SLOT);
        self.run(world, SendOp::RdmaWrite(to), SLOT)
    }

    fn get(&self, world: &mut World, key: u64) -> Outcome<Option<String>> {
        let from = self.store.remote(COUNT);
        self.run(world, SendOp::RdmaRead(from), SLOTS * SLOT)?;
        let mut log = [0; LOG];
        on_port(world, self.at, |_, hca| {
            Ok(self.buffer.read(hca, 0, &mut log)?)
        })?;
        let mut slots = log.chunks(SLOT as usize).rev();
        let found = slots.find(|slot| slot[..8] == key.to_ne_bytes());
        let value = found.map(|slot| String::from_utf8_lossy(&slot[8..]));
        Ok(value.map(|value| value.trim_end_matches('\0').to_owned()))
    }
}

fn main() -> Outcome<()> {
    let (fabric, built) = Topology::two_switches(2).build(1);
    let mut world = World::new(fabric, 1);
    let manager = world.add_host(built.hcas[0])?;
    world.start_manager(manager.port(1), SubnetConfig::default())?;
    let vf = VfId::new(1).ok_or("VFs are numbered from 1")?;
    let mut ports = Vec::new();
    for (n, node) in (1..).zip(&built.hcas[1..]) {
        let host = world.add_pf_host(*node, &PfConfig::new(n))?;
        world.add_idle_vf(host, vf, vf_spec(Guid::new(0x0014_0580_0000_0000 + n)))?;
        ports.push(world.open_vf(host, vf, VirtualHcaConfig::new(n))?.port(1));
    }
    world.run_for(Duration::from_secs(2)); // The subnet comes up.

    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let rights = rights | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let store = on_port(&mut world, ports[0], |port, hca| {
        Ok(port.reg_mr(hca, COUNT as usize + LOG, rights)?)
    })?;
    let one = Client::connect(&mut world, ports[1], ports[0], store)?;
    let other = Client::connect(&mut world, ports[2], ports[0], store)?;
    one.put(&mut world, 1, "first")?;
    other.put(&mut world, 2, "second")?;
    other.put(&mut world, 1, "changed")?;
    for (key, wanted) in [(1, Some("changed")), (2, Some("second")), (3, None)] {
        let value = one.get(&mut world, key)?;
        println!("{key}: {value:?}");
        if value.as_deref() != wanted {
            return Err(format!("{wanted:?} was put").into());
        }
    }
    Ok(())
}
