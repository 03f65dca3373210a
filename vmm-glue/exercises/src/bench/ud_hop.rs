//! UD datagrams through chains of switches.
//!
//! The longer chain costs more only by its additional hops, so the difference is what a hop costs;
//! the rest is the two ends: posting, building, checking and completing a packet.

use std::time::Instant as WallInstant;

use anyhow::{Context, ensure};
use emulated_hca::{PlannedPort, Topology};
use hca_api::{AddressVector, QpKind, UdAddress, UdDestination};
use ib_endpoint::DatagramQpSpec;
use ib_wire::{PKeyIndex, PortNum, QKey, Sl};

use super::subnet::bring_up;
use super::{Measured, Sample, nanos_per};
use vhca::Driven;
use vhca::world::{SocketId, World};

const SHORT: u8 = 1;
const LONG: u8 = 9;
const PACKETS: u64 = 100_000;
const BATCH: u32 = 64;
const MESSAGE: [u8; 256] = [0x5a; 256];

pub(super) fn prepare() -> Measured {
    Measured {
        setup: format!(
            "{PACKETS} UD datagrams of {} bytes through {SHORT} and through {LONG} switches",
            MESSAGE.len()
        ),
        ops: PACKETS,
        mads_per_op: Some(1),
        run: Box::new(run),
    }
}

fn run(seed: u32) -> anyhow::Result<Sample> {
    let short = packet_cost(SHORT, seed)?;
    let long = packet_cost(LONG, seed)?;
    let hops = f64::from(LONG - SHORT);
    Ok(Sample {
        nanos: short,
        bytes_per_live: None,
        figures: vec![
            ("ns/packet, 9 hops", long),
            ("ns/hop", (long - short) / hops),
        ],
    })
}

/// Nanoseconds for each datagram from one end of a chain to the other.
fn packet_cost(switches: u8, seed: u32) -> anyhow::Result<f64> {
    let mut plan = Topology::default();
    let chain: Vec<usize> = (0..switches)
        .map(|n| plan.add_switch(&format!("switch-{n}"), 4))
        .collect();
    for pair in chain.windows(2) {
        plan.connect(
            PlannedPort::Switch(pair[0], 1),
            PlannedPort::Switch(pair[1], 2),
        );
    }
    let (first, last) = chain
        .first()
        .zip(chain.last())
        .context("a chain has switches")?;
    for (name, switch) in [("sender", first), ("receiver", last)] {
        let port = if name == "sender" { 3 } else { 4 };
        let hca = plan.add_hca(name, 1);
        plan.connect(PlannedPort::Hca(hca, 1), PlannedPort::Switch(*switch, port));
    }
    let (mut world, built) = bring_up(&plan, 2, seed)?;
    ensure!(built.len() == 2, "two hosts were planned");
    let (sender, receiver) = (built[0], built[1]);
    let from = open(&mut world, sender)?;
    let to = open(&mut world, receiver)?;
    let destination = UdDestination {
        address: UdAddress::Vector(AddressVector {
            port: PortNum(1),
            dlid: world.port(receiver.port(1)).view().lid,
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: None,
        }),
        qpn: world.socket(to).qp().numbers().external,
        qkey: QKey::new(1),
        pkey_index: None,
    };

    let began = WallInstant::now();
    let mut received = 0;
    while received < PACKETS {
        for _ in 0..BATCH {
            world.send(from, &destination, &MESSAGE)?;
        }
        world.poll(world.now());
        let arrived = std::iter::from_fn(|| world.socket_mut(to).receive()).count();
        ensure!(
            arrived == BATCH as usize,
            "{arrived} of {BATCH} packets arrived"
        );
        received += u64::from(BATCH);
    }
    Ok(nanos_per(began.elapsed(), received))
}

fn open(world: &mut World, host: vhca::world::HostId) -> anyhow::Result<SocketId> {
    let spec = DatagramQpSpec {
        kind: QpKind::Ud,
        port: PortNum(1),
        pkey_index: PKeyIndex(0),
        qkey: QKey::new(1),
        receives: 2 * BATCH,
        sends: 2 * BATCH,
        max_message: 2048,
        block_multicast_loopback: false,
    };
    Ok(world.open_socket(host, spec)?)
}
