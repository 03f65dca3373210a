//! Subnet managers, and the partitions of the embedded one.

use ib_vtime::Duration;
use ib_wire::smp::SmState;
use ib_wire::{Guid, Lid, PKey, PortNum, Sl};
use vhca_control::table::{Cell, Column, column};

use super::table::Row;

/// A subnet manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmRow {
    /// Name of the node at which it runs.
    pub node: String,
    /// Its port.
    pub port: PortNum,
    /// GUID of the port.
    pub guid: Guid,
    /// LID of the port.
    pub lid: Lid,
    /// Kind of program.
    pub kind: &'static str,
    /// State, as far as the manager, or the embedded one, says.
    pub state: Option<SmState>,
    /// Priority, likewise.
    pub priority: Option<u8>,
    /// Heavy sweeps, of the embedded one.
    pub sweeps: Option<u64>,
    /// Time that its last complete heavy sweep took.
    pub last_sweep: Option<Duration>,
    /// Time since that sweep ended.
    pub last_sweep_age: Option<Duration>,
}

/// A partition of the embedded subnet manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionRow {
    /// P_Key of its full members.
    pub pkey: PKey,
    /// Service level of paths within it.
    pub sl: Sl,
    /// `true` if the SA creates its IPoIB broadcast group.
    pub ipoib: bool,
    /// Ports that are full members.
    pub full: usize,
    /// Ports that are limited members.
    pub limited: usize,
}

const fn state(state: SmState) -> &'static str {
    match state {
        SmState::MASTER => "master",
        SmState::STANDBY => "standby",
        SmState::DISCOVERING => "discovering",
        _ => "not_active",
    }
}

impl Row for SmRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("node").shrinks_to(8),
        column("port"),
        column("guid"),
        column("lid"),
        column("kind"),
        column("state"),
        column("priority"),
        column("sweeps"),
        column("last_sweep_ms"),
        column("last_sweep_age_ms").headed("AGO"),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::of(&self.node),
            Cell::Number(self.port.0.into()),
            Cell::of(self.guid),
            Cell::option((self.lid != Lid::NONE).then_some(self.lid), |lid| {
                Cell::Number(lid.get().into())
            }),
            Cell::of(self.kind),
            Cell::option(self.state, |held| Cell::of(state(held))),
            Cell::option(self.priority, |priority| Cell::Number(priority.into())),
            Cell::option(self.sweeps, Cell::Number),
            Cell::option(self.last_sweep, Cell::time),
            Cell::option(self.last_sweep_age, Cell::time),
        ]
    }
}

impl Row for PartitionRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("pkey"),
        column("sl"),
        column("ipoib"),
        column("full"),
        column("limited"),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::of(self.pkey),
            Cell::Number(self.sl.get().into()),
            Cell::Flag(self.ipoib),
            Cell::count(self.full),
            Cell::count(self.limited),
        ]
    }
}
