//! The worlds of the VMs.

use std::error::Error;

use vhca::emulated::{Duration, PfConfig, PlannedPort, SubnetConfig, Topology, VfOptions};
use vhca::world::{HostFunction, HostId, World};

use crate::vm::MEMORY;
use crate::{VFS, memory};

type Built = Result<(World, [HostId; VFS.len()]), Box<dyn Error>>;

/// Nodes of the tour besides those of the VMs, the first of which manages the subnet: so many that a table of all nodes has
/// more than 64 segments.
const OTHERS: u8 = 121;

/// Virtual time in which the subnet comes up.
const SUBNET_UP: Duration = Duration::from_secs(3);

/// Returns the world of a mode, with the host of each VM.
pub(crate) fn of(arguments: &[&str]) -> Built {
    match arguments {
        ["tour"] => two_hosts(),
        _ => one_host(),
    }
}

fn one_host() -> Built {
    let (mut world, HostFunction { host, .. }) =
        World::with_one_vf(memory(MEMORY)?, &VfOptions::default())?;
    // Each VM gets its own.
    world.remove_vf(host, VFS[0])?;
    Ok((world, [host; VFS.len()]))
}

fn two_hosts() -> Built {
    let mut plan = Topology::default();
    let switch = plan.add_switch("switch", 254);
    for port in 1..=OTHERS + 2 {
        let node = plan.add_hca(&format!("node-{port}"), 1);
        plan.connect(PlannedPort::Hca(node, 1), PlannedPort::Switch(switch, port));
    }
    let options = VfOptions::default();
    let (fabric, built) = plan.build(options.secret);
    let mut world = World::new(fabric, options.secret);
    let manager = world.add_host(built.hcas[0])?;
    world.start_manager(manager.port(1), SubnetConfig::default())?;
    let config = PfConfig::new(options.secret.of(b"the PF  "));
    let at = [
        world.add_pf_host(built.hcas[1], &config)?,
        world.add_pf_host(built.hcas[2], &config)?,
    ];
    world.run_for(SUBNET_UP);
    Ok((world, at))
}
