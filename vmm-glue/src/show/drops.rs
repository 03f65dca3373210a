//! Packets that nodes of a fabric dropped.

use std::io::{self, Write};

use emulated_hca::{DropReason, Dropped, Fabric};
use hca_api::FunctionId;
use ib_vtime::Instant;
use ib_wire::PortNum;

use super::cell::Cell;
use super::fabric;
use super::metrics::escaped;
use super::table::Row;

/// Packets dropped at a port for one reason.
pub(super) struct DropRow {
    node: String,
    port: PortNum,
    function: Option<FunctionId>,
    reason: DropReason,
    dropped: Dropped,
    now: Instant,
}

pub(super) fn rows(fabric: &Fabric, now: Instant) -> impl Iterator<Item = DropRow> + '_ {
    fabric::all(fabric).flat_map(move |(_, node)| {
        node.drops()
            .iter()
            .map(move |(port, function, reason, dropped)| DropRow {
                node: fabric::name(node).to_string(),
                port,
                function,
                reason,
                dropped,
                now,
            })
    })
}

impl Row for DropRow {
    const COLUMNS: &'static [&'static str] = &["node", "port", "vf", "reason", "packets", "ago_ms"];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::text(&self.node),
            Cell::Number(self.port.0.into()),
            Cell::option(self.function, |function| match function {
                FunctionId::PF => Cell::text(function),
                vf => Cell::Number(vf.0.into()),
            }),
            Cell::text(self.reason.as_str()),
            Cell::Number(self.dropped.packets),
            Cell::Time(self.now.saturating_duration_since(self.dropped.last)),
        ]
    }
}

/// Writes the metric of all that nodes dropped.
pub(super) fn write_metrics(out: &mut impl Write, fabric: &Fabric, now: Instant) -> io::Result<()> {
    const NAME: &str = "vhca_packet_dropped_total";
    writeln!(
        out,
        "# HELP {NAME} Packets that a node dropped.\n# TYPE {NAME} counter"
    )?;
    for row in rows(fabric, now) {
        let (node, port) = (escaped(&row.node), row.port);
        write!(out, "{NAME}{{node=\"{node}\",port=\"{port}\"")?;
        match row.function {
            Some(FunctionId::PF) => write!(out, ",vf=\"pf\"")?,
            Some(vf) => write!(out, ",vf=\"{}\"", vf.0)?,
            None => {}
        }
        let (reason, packets) = (row.reason.as_str(), row.dropped.packets);
        writeln!(out, ",reason=\"{reason}\"}} {packets}")?;
    }
    Ok(())
}
