//! One RDMA write, from the memory of a VF of one host into that of a VF of another.
//!
//! `cargo run -p vhca --example rdma_write` runs it in virtual time.

use std::error::Error;

use vhca::emulated::{
    AccessFlags, CompletionStatus, ConnectedQpId, ConnectedQpSpec, Duration, Guid, Hca,
    MemoryRegion, PKey, Partition, Payload, Peer, PfConfig, SendFlags, SendOp, SubnetConfig,
    Topology, VfId, VfPort, VirtualHcaConfig,
};
use vhca::world::{HostPortId, World, vf_spec};

type Outcome<T> = Result<T, Box<dyn Error>>;

const MESSAGE: &[u8] = b"written by the other host";

/// A program's objects on its VF, of which its peer is told.
struct End {
    at: HostPortId,
    qp: ConnectedQpId,
    region: MemoryRegion,
    address: Peer,
}

/// Calls something with a VF's port and function.
fn on_port<T>(
    world: &mut World,
    at: HostPortId,
    call: impl FnOnce(&mut VfPort, &mut dyn Hca) -> Outcome<T>,
) -> Outcome<T> {
    let called = world.with_vf_port(at, |port, hca, _| call(port, hca));
    called.ok_or("the VF is not open")?
}

fn open(world: &mut World, at: HostPortId) -> Outcome<End> {
    on_port(world, at, |port, hca| {
        let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let region = port.reg_mr(hca, 4096, rights)?;
        let spec = ConnectedQpSpec::rc(Partition::Key(PKey::DEFAULT_FULL));
        let qp = port.open_connected_qp(hca, &spec)?;
        let (lid, gid) = (port.view().lid, port.gid().ok_or("no GID")?);
        let own = port.connected_qp(qp)?;
        Ok(End {
            at,
            qp,
            region,
            address: Peer::on_subnet(at.port, lid, gid, own.qpn(), own.psn()),
        })
    })
}

fn main() -> Outcome<()> {
    let (fabric, built) = Topology::two_switches(2).build(1);
    let mut world = World::new(fabric, 1);
    let manager = world.add_host(built.hcas[0])?;
    world.start_manager(manager.port(1), SubnetConfig::default())?;
    let vf = VfId::new(1).ok_or("VFs are numbered from 1")?;
    let mut ports = Vec::new();
    for (n, node) in (1..).zip(&built.hcas[1..3]) {
        let host = world.add_pf_host(*node, &PfConfig::new(n))?;
        world.add_idle_vf(host, vf, vf_spec(Guid::new(0x0014_0580_0000_0000 + n)))?;
        ports.push(world.open_vf(host, vf, VirtualHcaConfig::new(n))?.port(1));
    }
    world.run_for(Duration::from_secs(2)); // The subnet comes up.

    let (writer, target) = (open(&mut world, ports[0])?, open(&mut world, ports[1])?);
    for (own, peer) in [(&writer, &target), (&target, &writer)] {
        on_port(&mut world, own.at, |port, hca| {
            Ok(port.connected_qp(own.qp)?.connect(hca, &peer.address)?)
        })?;
    }
    on_port(&mut world, writer.at, |port, hca| {
        let op = SendOp::RdmaWrite(target.region.remote(64));
        let (qp, payload) = (port.connected_qp(writer.qp)?, Payload::Inline(MESSAGE));
        Ok(qp.post_send(hca, 1, op, payload, SendFlags::empty())?)
    })?;
    world.run_for(Duration::from_millis(1));

    let done = on_port(&mut world, writer.at, |port, hca| {
        Ok(port.connected_qp(writer.qp)?.poll_cq(hca))
    })?;
    let status = done.map(|completion| completion.status);
    let mut bytes = [0; MESSAGE.len()];
    on_port(&mut world, target.at, |_, hca| {
        Ok(target.region.read(hca, 64, &mut bytes)?)
    })?;
    println!("{status:?}: {}", String::from_utf8_lossy(&bytes));
    if status != Some(CompletionStatus::Success) || bytes != *MESSAGE {
        return Err("the write did not arrive".into());
    }
    Ok(())
}
