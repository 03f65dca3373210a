//! Programs on libibverbs at the VFs that are offered to them.

use std::net::Ipv4Addr;
use vhca_control::table::{Cell, Column, column};

use ib_vtime::Duration;
use ib_wire::Gid;
use vf_tunnel::VfId;
use vhca_diagnosis::SlowMemory;

use super::table::Row;

/// A VF that is offered to programs, and the process that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRow {
    /// Number of the VF.
    pub vf: u16,
    /// Address by which programs find the VF with the RDMA CM.
    pub address: Ipv4Addr,
    /// GID of its port; `None` until the subnet manager has written it.
    pub gid: Option<Gid>,
    /// Process that has the VF, if it has a number here.
    pub pid: Option<u32>,
    /// User of that process.
    pub uid: Option<u32>,
    /// Time for which the process has had the VF; `None` if none has.
    pub since: Option<Duration>,
    /// Longest time for which the service, and with it all its clients, waited for the memory of the process.
    pub memory_wait: Duration,
    /// The longest recent one of these waits, if it was long for a neighbour.
    pub slow_memory: Option<SlowMemory>,
    /// Objects of the process.
    pub usage: ProgramUsage,
}

/// Objects of a process, and what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramUsage {
    /// Open files of the device.
    pub files: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Ids of the RDMA CM.
    pub cm_ids: usize,
    /// Sends that were taken and have not completed.
    pub outstanding: usize,
    /// Queue pairs whose next sends wait for room.
    pub waiting: usize,
    /// Events that found their channel full or closed, or the memory used up.
    pub dropped_events: u64,
    /// Bytes that the service spends on the process.
    pub memory: u64,
    /// Bytes that it may spend at most.
    pub memory_most: u64,
}

impl Row for ProgramRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("vf"),
        column("address"),
        column("gid"),
        column("pid"),
        column("uid"),
        column("since_ms"),
        column("files").wide(),
        column("qps"),
        column("cm_ids").headed("IDS"),
        column("outstanding").headed("OUT").wide(),
        column("waiting"),
        column("dropped_events").headed("LOST").wide(),
        column("memory_bytes").wide(),
        column("memory_most_bytes").wide(),
        column("memory_wait_ms").wide(),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::Number(self.vf.into()),
            Cell::of(self.address),
            Cell::option(self.gid, Cell::of),
            Cell::option(self.pid, |pid| Cell::Number(pid.into())),
            Cell::option(self.uid, |uid| Cell::Number(uid.into())),
            Cell::option(self.since, Cell::time),
            Cell::count(self.usage.files),
            Cell::count(self.usage.queue_pairs),
            Cell::count(self.usage.cm_ids),
            Cell::count(self.usage.outstanding),
            Cell::count(self.usage.waiting),
            Cell::Number(self.usage.dropped_events),
            Cell::Number(self.usage.memory),
            Cell::Number(self.usage.memory_most),
            Cell::time(self.memory_wait),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.vf == vf.get()
    }
}
