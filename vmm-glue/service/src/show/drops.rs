//! Packets that nodes of a fabric dropped.

use emulated_hca::{DropReason, Dropped, Fabric, NodeId};
use hca_api::FunctionId;
use ib_vtime::{Duration, Instant};
use ib_wire::PortNum;
use vf_tunnel::VfId;
use vhca_control::table::{Cell, Column, column};

use super::fabric;
use super::table::Row;

/// How long ago a packet was dropped at most for that to be a problem now.
const LATELY: Duration = Duration::from_secs(60);

/// Packets dropped at a port for one reason.
pub(super) struct DropRow {
    node: String,
    port: PortNum,
    function: Option<FunctionId>,
    reason: DropReason,
    dropped: Dropped,
    now: Instant,
}

/// Returns what a node dropped.
pub(super) fn rows(fabric: &Fabric, id: NodeId, now: Instant) -> Vec<DropRow> {
    let drops = fabric
        .node(id)
        .into_iter()
        .flat_map(|node| node.drops().iter());
    let rows = drops.map(|(port, function, reason, dropped)| DropRow {
        node: fabric::name(fabric, id),
        port,
        function,
        reason,
        dropped,
        now,
    });
    rows.collect()
}

impl DropRow {
    fn age(&self) -> Duration {
        self.now.saturating_duration_since(self.dropped.last)
    }
}

impl Row for DropRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("node").shrinks_to(8),
        column("port"),
        column("vf"),
        column("reason"),
        column("packets"),
        column("ago_ms"),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::of(&self.node),
            Cell::Number(self.port.0.into()),
            Cell::option(self.function, |function| match function {
                FunctionId::PF => Cell::of(function),
                vf => Cell::Number(vf.0.into()),
            }),
            Cell::of(self.reason.as_str()),
            Cell::Number(self.dropped.packets),
            Cell::time(self.age()),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.function == Some(FunctionId(vf.get()))
    }

    fn has_problem(&self) -> bool {
        self.age() <= LATELY
    }
}
