//! Facts on which diagnoses rest, as they are at one time.

use std::collections::BTreeMap;

use ib_vtime::{Duration, Instant};
use ib_wire::{Lid, PKey, PortNum};
use pf_context::guids::{GuidView, WishRefusal};
use pf_context::{PortReason, VfPKeyEntry, VfUsage};

use crate::subnet::{Dropped, Port, PortAt, Subnet};

/// Time for which a loss counts as a fault: long enough for an operator who noticed it to ask.
pub const RECENT: Duration = Duration::from_secs(60);

/// Time for which an error of a link counts: links with many retransmissions are slow, and make few an hour.
pub const ERRORS_COUNT: Duration = Duration::from_secs(600);

/// Time of an access to a program's memory from which on the memory counts as slow: as much more as SECURITY.md has a client wait
/// at the longest for another.
pub const SLOW_MEMORY: Duration = Duration::from_millis(50);

/// Time for which a slow access counts.
pub const SLOW_MEMORY_REMEMBERED: Duration = Duration::from_secs(600);

/// Facts of a subnet and of the VFs on it.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Time at which it was taken.
    pub taken: Instant,
    /// The subnet, as far as it is known.
    pub subnet: Subnet,
    /// The PFs whose VFs are to be diagnosed.
    pub pfs: Vec<Pf>,
}

/// Time that a subnet manager may take to notice a port whose link came up: OpenSM looks every ten seconds if no trap arrives.
const NOTICING: Duration = Duration::from_secs(12);

impl Snapshot {
    /// Returns `true` if diagnoses need more of the subnet than [`Extent::Near`](crate::Extent::Near): a port is not active, an SA
    /// is silent, or M_Keys are to be compared. An owner of a large fabric, or of one that has to be asked, takes the near part
    /// first.
    #[must_use]
    pub fn looks_far(&self) -> bool {
        let is_down = |port: &VfPort| port.reason == PortReason::PhysicalDown;
        let is_silent = |port: &PfPort| port.sa_answers == Some(false);
        let looks = |pf: &Pf| {
            let mut vfs = pf.vfs.values();
            pf.ports.iter().any(is_silent) || vfs.any(|vf| vf.ports.values().any(is_down))
        };
        self.pfs.iter().any(looks) || self.subnet.has_m_keys()
    }
}

/// A PF and its VFs.
#[derive(Clone, Debug, Default)]
pub struct Pf {
    /// The name of its host.
    pub host: String,
    /// Its adapter: an index of [`Subnet::nodes`].
    pub node: usize,
    /// Its ports, from port 1 on.
    pub ports: Vec<PfPort>,
    /// Its VFs by their numbers.
    pub vfs: BTreeMap<u16, Vf>,
    /// Senders of packets that connections of its VFs refused, the latest last.
    pub foreign_peers: Vec<ForeignPeer>,
}

/// A port of a PF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PfPort {
    /// The SA's answer when the port asked it last: `true` if there was any, `None` if the port did not ask.
    pub sa_answers: Option<bool>,
    /// `true` if the SM's port answered the Get(ClassPortInfo) that the port sent to its performance management agent at the same
    /// time; `None` if the port did not ask.
    pub sm_port_answers: Option<bool>,
    /// Number of times that its link went down within [`RECENT`].
    pub losses: u64,
    /// Errors that both ends of its link counted within [`ERRORS_COUNT`].
    pub errors: u64,
    /// `true` if an order to the service made the link worse than its cable.
    pub is_impaired: bool,
}

/// A VF.
#[derive(Clone, Debug, Default)]
pub struct Vf {
    /// Its ports.
    pub ports: BTreeMap<PortNum, VfPort>,
    /// Facts of its device, if it is offered to VMMs.
    pub offer: Option<Offer>,
    /// The process that has it, if it is a program's.
    pub program: Option<Program>,
    /// The latest stand of the service for a client that had the VF.
    pub stall: Option<Stall>,
}

/// A port of a VF.
#[derive(Clone, Debug)]
pub struct VfPort {
    /// The reason for its state.
    pub reason: PortReason,
    /// Time for which it has been in that state.
    pub since: Option<Duration>,
    /// Its GUID: wanted, granted and in hardware.
    pub guid: GuidView,
    /// Reason for which the GUID that was wanted last can never be the VF's.
    pub refusal: Option<WishRefusal>,
    /// Objects of the VF, and its quotas.
    pub usage: VfUsage,
    /// Its transactions that are not answered yet, counted where all its transactions fill the quota. Answered ones are kept to
    /// recognize repeats, and make room for new ones.
    pub open_transactions: usize,
    /// Age of its oldest transaction.
    pub oldest_transaction: Option<Duration>,
    /// Frames that were dropped because the VF sent more than it may.
    pub rate_drops: u64,
    /// Its P_Key table; `None` if it is the one of the start, whose only entry stands for the first of the physical port.
    pub pkeys: Option<PKeyTable>,
    /// Packets that were lost because the guest had no receive posted.
    pub no_receives: Option<Dropped>,
    /// Packets of queue pairs that are not the peers of the VF's connections, which refused them.
    pub foreign: Option<Dropped>,
}

impl VfPort {
    /// Returns a port with nothing that hampers it.
    #[must_use]
    pub fn new(reason: PortReason, guid: GuidView) -> Self {
        Self {
            reason,
            since: None,
            guid,
            refusal: None,
            usage: VfUsage::default(),
            open_transactions: 0,
            oldest_transaction: None,
            rate_drops: 0,
            pkeys: None,
            no_receives: None,
            foreign: None,
        }
    }
}

/// P_Key table of a VF's port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PKeyTable {
    /// Entries as they were set.
    pub wanted: Vec<Option<VfPKeyEntry>>,
    /// Keys behind them, by index.
    pub keys: Vec<(u16, PKey)>,
}

/// A function whose packets a connection refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignPeer {
    /// Number of the VF that the packets were for.
    pub to: u16,
    /// Source LID of the latest packet.
    pub slid: Lid,
    /// Number of the sending VF; 0 for software of the host itself.
    pub function: u16,
    /// Packets refused.
    pub refused: Dropped,
}

/// A VF that is offered to VMMs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Path of its socket if the file is gone, so that no VMM finds the VF.
    pub lost_socket: Option<String>,
    /// Number of VMMs that had it, the present one included.
    pub vmms: u64,
    /// Number of VMMs that were turned away.
    pub refused: u64,
    /// The VMM that has it.
    pub vmm: Option<Vmm>,
    /// Memory of the guest, as the device reaches it.
    pub memory: Memory,
}

/// A VMM that has a VF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vmm {
    /// Its process, if it has a number here.
    pub pid: Option<u32>,
    /// Interrupt vectors that the guest's driver has set up.
    pub vectors: usize,
    /// `true` if a driver has set up commands.
    pub has_driver: bool,
    /// Time since which the oldest event waits for the driver.
    pub events_waiting_since: Option<Instant>,
}

/// Memory of a guest, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Shared by the VMM.
    pub shared: u64,
    /// Not shared, and writable for the device.
    pub unshared: u64,
    /// Touched by the device.
    pub touched: u64,
    /// Limit of the bytes that the device may touch.
    pub most: Option<u64>,
    /// Number of accesses that failed at that limit.
    pub refused: u64,
}

/// A process that has a VF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Its number, if it has one here.
    pub pid: Option<u32>,
    /// Time for which it has had the VF.
    pub since: Duration,
    /// Its queue pairs.
    pub queue_pairs: usize,
    /// Its sends under way.
    pub outstanding: usize,
    /// Its queue pairs whose next sends wait for room.
    pub waiting: usize,
    /// Its events that were lost.
    pub dropped_events: u64,
    /// Bytes that the service spends on it.
    pub memory: u64,
    /// Bytes that the service may spend on it.
    pub memory_most: u64,
    /// The longest recent wait for its memory that took [`SLOW_MEMORY`] or more.
    pub slow_memory: Option<SlowMemory>,
}

/// Wait of the service for memory of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowMemory {
    /// Time that the access took.
    pub wait: Duration,
    /// Time since its end.
    pub ago: Duration,
}

/// Stand of the service for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The client's work, and its process.
    pub work: String,
    /// Time at which its connection was shut down.
    pub ended: Instant,
}

/// A port of a PF, and the snapshot that it is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnPort<'s> {
    pub(crate) snapshot: &'s Snapshot,
    pub(crate) pf: &'s Pf,
    pub(crate) number: PortNum,
}

impl<'s> OnPort<'s> {
    /// Returns the place of the physical port.
    pub(crate) const fn at(self) -> PortAt {
        PortAt {
            node: self.pf.node,
            port: self.number,
        }
    }

    pub(crate) const fn subnet(self) -> &'s Subnet {
        &self.snapshot.subnet
    }

    /// Returns the physical port.
    pub(crate) fn physical(self) -> Option<&'s Port> {
        self.subnet().port(self.at())
    }

    /// Returns the facts of the port; `None` if the adapter has no such port.
    pub(crate) fn facts(self) -> Option<&'s PfPort> {
        self.pf.ports.get(self.number.index().checked_sub(1)?)
    }

    /// Returns the facts of a VF's port.
    pub(crate) fn of_vf(self, vf: u16) -> Option<&'s VfPort> {
        self.pf.vfs.get(&vf)?.ports.get(&self.number)
    }

    /// Returns `true` if all VFs have had the port's state for less than a subnet manager may take to change it.
    pub(crate) fn is_fresh(self) -> bool {
        let rows = self.pf.vfs.values();
        let mut rows = rows.filter_map(|vf| vf.ports.get(&self.number)?.since);
        self.pf.vfs.is_empty() || rows.any(|since| since < NOTICING)
    }

    /// Returns the time that has passed since a time before the snapshot.
    pub(crate) fn ago(self, then: Instant) -> Duration {
        self.snapshot.taken.saturating_duration_since(then)
    }
}
