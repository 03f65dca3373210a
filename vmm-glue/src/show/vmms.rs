//! VMMs at the VFs that are offered to them.

use std::io::{self, Write};

use ib_vtime::Duration;
use vf_tunnel::VfId;

use super::cell::Cell;
use super::metrics::escaped;
use super::table::{Column, Row, column};

/// A VF that is offered to VMMs, and who has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmmRow {
    /// The name of its host.
    pub host: String,
    /// Its number.
    pub vf: u16,
    /// The process that has it.
    pub pid: Option<u32>,
    /// Whose process that is.
    pub uid: Option<u32>,
    /// How long the process has had it; `None` if none has.
    pub since: Option<Duration>,
    /// Interrupt vectors that the guest's driver has set up.
    pub vectors: usize,
    /// Bytes of the guest's memory that are shared.
    pub shared: u64,
    /// Bytes of it that the device has touched.
    pub touched: u64,
    /// Bytes of the guest's memory that are not shared.
    pub unshared: u64,
    /// Resets of the VF by the guest's driver or its VMM.
    pub resets: u64,
    /// Commands of the VMM, and those that failed.
    pub commands: (u64, u64),
    /// VMMs that had the VF.
    pub vmms: u64,
    /// VMMs that were turned away.
    pub refused: u64,
    /// Where it is offered.
    pub socket: String,
}

impl Row for VmmRow {
    const COLUMNS: &'static [Column] = &[
        column("host").shrinks_to(8),
        column("vf"),
        column("attached").wide(),
        column("pid"),
        column("uid"),
        column("since_ms"),
        column("vectors").wide(),
        column("shared_bytes"),
        column("touched_bytes"),
        column("unshared_bytes").wide(),
        column("resets"),
        column("commands").wide(),
        column("errors"),
        column("vmms").wide(),
        column("refused"),
        column("socket").shrinks_to(16),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::text(&self.host),
            Cell::Number(self.vf.into()),
            Cell::Flag(self.since.is_some()),
            Cell::option(self.pid, |pid| Cell::Number(pid.into())),
            Cell::option(self.uid, |uid| Cell::Number(uid.into())),
            Cell::option(self.since, Cell::Time),
            Cell::count(self.vectors),
            Cell::Number(self.shared),
            Cell::Number(self.touched),
            Cell::Number(self.unshared),
            Cell::Number(self.resets),
            Cell::Number(self.commands.0),
            Cell::Number(self.commands.1),
            Cell::Number(self.vmms),
            Cell::Number(self.refused),
            Cell::text(&self.socket),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.vf == vf.get()
    }
}

/// What is measured of a VF that is offered to VMMs: name, kind, help, and its value.
type Metric = (&'static str, &'static str, &'static str, fn(&VmmRow) -> u64);

const METRICS: &[Metric] = &[
    (
        "vhca_vmm_attached",
        "gauge",
        "Whether a VMM has the VF.",
        |row| u64::from(row.since.is_some()),
    ),
    (
        "vhca_vmm_vectors",
        "gauge",
        "Interrupt vectors that the guest's driver has set up.",
        |row| u64::try_from(row.vectors).unwrap_or(u64::MAX),
    ),
    (
        "vhca_vmm_shared_bytes",
        "gauge",
        "Memory of the guest that its VMM shares.",
        |row| row.shared,
    ),
    (
        "vhca_vmm_touched_bytes",
        "gauge",
        "Memory of the guest that the device has touched, for which the service may be charged.",
        |row| row.touched,
    ),
    (
        "vhca_vmm_unshared_bytes",
        "gauge",
        "Memory of the guest that its VMM does not share.",
        |row| row.unshared,
    ),
    (
        "vhca_vmm_resets_total",
        "counter",
        "Resets of the VF by the guest's driver or its VMM.",
        |row| row.resets,
    ),
    (
        "vhca_vmm_total",
        "counter",
        "VMMs that had the VF.",
        |row| row.vmms,
    ),
    (
        "vhca_vmm_refused_total",
        "counter",
        "VMMs that were turned away from the VF.",
        |row| row.refused,
    ),
];

/// Writes the metrics of the VFs that are offered to VMMs, if there are any.
pub(super) fn write_metrics(out: &mut impl Write, rows: &[VmmRow]) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    for (name, kind, help, value) in METRICS {
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
        for row in rows {
            let host = escaped(&row.host);
            let (vf, value) = (row.vf, value(row));
            writeln!(out, "{name}{{pf=\"{host}\",vf=\"{vf}\"}} {value}")?;
        }
    }
    Ok(())
}
