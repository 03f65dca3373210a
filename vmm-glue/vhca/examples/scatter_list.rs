//! A scatter list of one VF is written to the memory of another: by keys, and by registrations of its pages.
//!
//! `cargo run -p vhca --example scatter_list` runs it in virtual time.

use std::error::Error;
use std::fmt::Write;

use vhca::emulated::{
    AccessFlags, ConnectedQpId, ConnectedQpSpec, DmaBuffer, Duration, Guid, Hca, LocalMemory,
    MemoryRegion, PKey, Partition, Peer, PfConfig, RegistrationPool, SubnetConfig, Topology,
    Transfer, TransferState, VfId, VfPort, VirtualHcaConfig,
};
use vhca::world::{HostPortId, World, vf_spec};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PAGE: u32 = 4096;
/// Pages of the list: the first and the last in part, and two pages that follow each other.
const LIST: [(u32, u32); 4] = [
    (1000, 3096),
    (3 * PAGE, PAGE),
    (4 * PAGE, PAGE),
    (2 * PAGE, 500),
];

fn on_port<T>(
    world: &mut World,
    at: HostPortId,
    call: impl FnOnce(&mut VfPort, &mut dyn Hca) -> Outcome<T>,
) -> Outcome<T> {
    let called = world.with_vf_port(at, |port, hca, _| call(port, hca));
    called.ok_or("the VF is not open")?
}

/// Makes a queue pair and a region, and returns them with what the peer needs.
fn open(world: &mut World, at: HostPortId) -> Outcome<(ConnectedQpId, MemoryRegion, Peer)> {
    on_port(world, at, |port, hca| {
        let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let region = port.reg_mr(hca, 8 * PAGE as usize, rights)?;
        let mut spec = ConnectedQpSpec::rc(Partition::Key(PKey::DEFAULT_FULL));
        (spec.sq_sig_all, spec.caps.max_send_sge) = (false, 2);
        let qp = port.open_connected_qp(hca, &spec)?;
        let (lid, gid) = (port.view().lid, port.gid().ok_or("no GID")?);
        let own = port.connected_qp(qp)?;
        let peer = Peer::on_subnet(port.port(), lid, gid, own.qpn(), own.psn());
        Ok((qp, region, peer))
    })
}

/// Writes the list both ways, and returns the requests that it took.
pub(crate) fn write_lists(seed: u64) -> Outcome<String> {
    let (fabric, built) = Topology::two_switches(2).build(seed);
    let mut world = World::new(fabric, seed);
    let manager = world.add_host(built.hcas[0])?;
    world.start_manager(manager.port(1), SubnetConfig::default())?;
    let vf = VfId::new(1).ok_or("VFs are numbered from 1")?;
    let mut ports = Vec::new();
    for (n, node) in (1..).zip(&built.hcas[1..3]) {
        let host = world.add_pf_host(*node, &PfConfig::new(seed + n))?;
        world.add_idle_vf(host, vf, vf_spec(Guid::new(0x0014_0580_0000_0000 + n)))?;
        let config = VirtualHcaConfig::new(seed + n);
        ports.push(world.open_vf(host, vf, config)?.port(1));
    }
    world.run_for(Duration::from_secs(2)); // The subnet comes up.
    let (qp, source, own) = open(&mut world, ports[0])?;
    let (far, target, peer) = open(&mut world, ports[1])?;
    for (at, id, other) in [(ports[0], qp, &peer), (ports[1], far, &own)] {
        on_port(&mut world, at, |port, hca| {
            Ok(port.connected_qp(id)?.connect(hca, other)?)
        })?;
    }

    let bytes: Vec<u8> = (0..8 * PAGE).map(|at| (at % 251) as u8).collect();
    let listed = LIST.map(|(at, len)| &bytes[at as usize..(at + len) as usize]);
    let listed = listed.concat();
    let sges = LIST.map(|(at, len)| source.sge(at, len));
    let memory = LIST.map(|(at, len)| DmaBuffer {
        addr: source.addr() + u64::from(at),
        len: len as usize,
    });
    let mut pool = on_port(&mut world, ports[0], |port, hca| {
        source.write(hca, 0, &bytes)?;
        let rights = AccessFlags::LOCAL_WRITE;
        Ok(RegistrationPool::allocate(port, hca, 2, 4, rights)?)
    })?;
    let mut log = String::new();
    for is_keyed in [true, false] {
        let mut transfer = on_port(&mut world, ports[0], |port, hca| {
            let local = match is_keyed {
                true => LocalMemory::Keyed(&sges),
                false => LocalMemory::Unregistered(&memory, &mut pool),
            };
            let qp = port.connected_qp(qp)?;
            let limits = qp.transfer_limits();
            let mut transfer = Transfer::write(1, local, target.remote(0), &limits)?;
            transfer.post(hca, qp)?;
            Ok(transfer)
        })?;
        world.run_for(Duration::from_millis(1));
        on_port(&mut world, ports[0], |port, hca| {
            let qp = port.connected_qp(qp)?;
            while let Some(done) = qp.poll_cq(hca) {
                transfer.handle_completion(&done);
            }
            let (requests, regions) = (transfer.requests(), transfer.registrations());
            let (state, psn) = (transfer.state(), qp.query(hca)?.sq_psn);
            writeln!(
                log,
                "{requests} requests, {regions} regions: {state:?}, next {psn:?}"
            )?;
            Ok(())
        })?;
        if transfer.state() != TransferState::Done {
            return Err("the list was not written within a millisecond".into());
        }
        transfer.release(&mut pool);
        let mut arrived = vec![0; listed.len()];
        on_port(&mut world, ports[1], |_, hca| {
            target.read(hca, 0, &mut arrived)?;
            Ok(target.write(hca, 0, &vec![0; listed.len()])?)
        })?;
        if arrived != listed {
            return Err("other bytes arrived than were written".into());
        }
    }
    Ok(log)
}

fn main() -> Outcome<()> {
    print!("{}", write_lists(1)?);
    Ok(())
}
