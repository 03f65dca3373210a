//! Subnets to measure on.

use anyhow::{Context, ensure};
use emulated_hca::Topology;
use ib_vtime::Duration;
use subnet_lite::SubnetConfig;

use vhca::world::{HostId, Outcome, World};

/// Virtual time within which a subnet must come up.
const LIMIT: Duration = Duration::from_secs(600);

/// Builds a fabric, starts software on its first `hosts` adapters and a subnet manager on the first,
/// and waits until the manager serves the subnet.
pub(super) fn bring_up(
    plan: &Topology,
    hosts: usize,
    seed: u32,
) -> anyhow::Result<(World, Vec<HostId>)> {
    let (fabric, built) = plan.build(u64::from(seed));
    let mut world = World::new(fabric, u64::from(seed));
    let hosts = built
        .hcas
        .iter()
        .take(hosts)
        .map(|node| world.add_host(*node))
        .collect::<Result<Vec<_>, _>>()?;
    let manager = *hosts.first().context("no host for the manager")?;
    world.start_manager(manager.port(1), SubnetConfig::default())?;
    let serving = |world: &mut World| {
        let manager = world.manager(manager);
        manager.is_some_and(|manager| manager.sm().is_serving() && manager.sm().is_settled())
    };
    let outcome = world.run_until(LIMIT, serving);
    ensure!(
        outcome == Outcome::Reached,
        "the subnet did not come up: {outcome:?}"
    );
    Ok((world, hosts))
}
