//! VMMs at the VFs that are offered to them.

use ib_vtime::Duration;
use vf_tunnel::VfId;
use vhca_control::table::{Cell, Column, column};

use super::table::Row;

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
    /// An access waited for a page of the memory, so a thread of the VMM's own writes there.
    pub guarded: bool,
    /// Resets of the VF by the guest's driver or its VMM.
    pub resets: u64,
    /// Commands of the VMM, and those that failed.
    pub commands: (u64, u64),
    /// Doorbells that were rung by their eventfds, without a command.
    pub rings: u64,
    /// VMMs that had the VF.
    pub vmms: u64,
    /// VMMs that were turned away.
    pub refused: u64,
    /// Where it is offered.
    pub socket: String,
}

impl Row for VmmRow {
    const COLUMNS: &'static [Column<'static>] = &[
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
        column("guarded").wide(),
        column("resets"),
        column("commands").wide(),
        column("errors"),
        column("rings").wide(),
        column("vmms").wide(),
        column("refused"),
        column("socket").shrinks_to(16),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::of(&self.host),
            Cell::Number(self.vf.into()),
            Cell::Flag(self.since.is_some()),
            Cell::option(self.pid, |pid| Cell::Number(pid.into())),
            Cell::option(self.uid, |uid| Cell::Number(uid.into())),
            Cell::option(self.since, Cell::time),
            Cell::count(self.vectors),
            Cell::Number(self.shared),
            Cell::Number(self.touched),
            Cell::Number(self.unshared),
            Cell::Flag(self.guarded),
            Cell::Number(self.resets),
            Cell::Number(self.commands.0),
            Cell::Number(self.commands.1),
            Cell::Number(self.rings),
            Cell::Number(self.vmms),
            Cell::Number(self.refused),
            Cell::of(&self.socket),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.vf == vf.get()
    }
}
