//! A large subnet, from power-on until every port is active.

use std::fs;
use std::time::Instant as WallInstant;

use anyhow::{Context, ensure};
use emulated_hca::{LinkConfig, NodeKind, Topology};
use ib_vtime::Duration;

use super::subnet::bring_up;
use super::{Measured, Sample};

const HCAS: usize = 1000;
/// Ports of each switch; a three-level tree of them has room for 1,024 adapters.
const RADIX: u8 = 16;

/// Time that a signal takes along a cable of 20 m.
const LATENCY: Duration = Duration::from_nanos(100);

pub(super) fn prepare() -> Measured {
    Measured {
        setup: format!(
            "{HCAS} HCAs under a three-level fat tree of {RADIX}-port switches, until all are active"
        ),
        ops: 1,
        mads_per_op: None,
        run: Box::new(run),
    }
}

fn run(seed: u32) -> anyhow::Result<Sample> {
    let mut plan = Topology::fat_tree(RADIX, HCAS);
    plan.link = LinkConfig {
        latency: LATENCY,
        timed: true,
        ..LinkConfig::default()
    };
    let began = WallInstant::now();
    let (world, hosts) = bring_up(&plan, 1, seed)?;
    let elapsed = began.elapsed();
    let fabric = world.fabric();
    let adapters = fabric
        .nodes()
        .filter(|(_, kind)| *kind == NodeKind::ChannelAdapter);
    let active = adapters
        .filter_map(|(node, _)| fabric.port(node.port(1)))
        .filter(|port| port.state == hca_api::PortState::Active && port.lid.is_unicast())
        .count();
    ensure!(active == HCAS, "{active} of {HCAS} HCAs are active");
    let manager = world.manager(hosts[0]).context("the manager is gone")?;
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let smps = manager.sm().mad_counters().sent as f64;
    Ok(Sample {
        nanos: elapsed.as_secs_f64() * 1e9,
        bytes_per_live: None,
        figures: vec![
            ("wall ms", elapsed.as_secs_f64() * 1e3),
            ("virtual ms", world.now().as_nanos() as f64 / 1e6),
            ("SMPs sent", smps),
            ("peak memory MiB", peak_memory_mib()?),
        ],
    })
}

/// The most memory that this process ever had resident (`VmHWM`).
fn peak_memory_mib() -> anyhow::Result<f64> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: f64 = kib.context("no VmHWM in /proc/self/status")?.parse()?;
    Ok(kib / 1024.0)
}
