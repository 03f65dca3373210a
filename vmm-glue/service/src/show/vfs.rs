//! VFs with their faults, and those that are not there yet.

use std::collections::BTreeMap;
use vhca_control::table::{Cell, Column, column};

use ib_vtime::Duration;
use pf_context::inspect::VfRow;

use super::table::Row;
use super::{NamedPf, Scene};

/// The codes of the faults of a host's VFs, by VF and port.
pub type FaultCodes = BTreeMap<(u16, u8), &'static str>;

/// A VF on a port, with the code of its fault, and what others wait for.
pub(super) struct FaultyVf {
    pub(super) row: VfRow,
    pub(super) fault: Option<&'static str>,
    /// The longest time for which the service waited for memory of the program that has the VF, if one has.
    pub(super) memory_wait: Option<Duration>,
}

/// The VFs of a PF.
pub(super) fn rows(scene: &Scene<'_>, pf: &NamedPf<'_>) -> Vec<FaultyVf> {
    let faults = scene.vmms.faults_of(pf.name);
    let programs = scene.vmms.programs_of(pf.name).into_iter();
    let programs = programs.filter(|program| program.since.is_some());
    let waits = programs.map(|program| (program.vf, program.memory_wait));
    let waits: BTreeMap<u16, Duration> = waits.collect();
    let rows = pf.rows.vfs(scene.now).map(|row| {
        let fault = faults.get(&(row.vf.get(), row.port.0)).copied();
        let memory_wait = waits.get(&row.vf.get()).copied();
        FaultyVf {
            row,
            fault,
            memory_wait,
        }
    });
    rows.collect()
}

/// A node of a simulator that is not attached yet, and whose VFs are not there therefore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedRow {
    /// The simulator.
    pub simulator: String,
    /// The node.
    pub node: String,
    /// Why it is not attached.
    pub reason: String,
}

impl Row for AwaitedRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("simulator").shrinks_to(12),
        column("node").shrinks_to(8),
        column("not_attached").shrinks_to(20),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::of(&self.simulator),
            Cell::of(&self.node),
            Cell::of(&self.reason),
        ]
    }

    fn has_problem(&self) -> bool {
        true
    }
}
