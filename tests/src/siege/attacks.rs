//! What a hostile VMM or guest does to keep a service busy. Each goes on until its process is killed.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ib_endpoint::SaRequest;
use ib_vtime::Duration;
use ib_wire::sa::{ComponentMask, PathRecord};
use ib_wire::{Gid, PortNum};
use mlx4_defs::cq::CqContext;
use mlx4_defs::eq::EqContext;
use mlx4_defs::mpt::{MptEntry, STATUS_VALID};
use mlx4_defs::mtt::MttBase;
use mlx4_defs::resource::{ResourceOp, ResourceType};
use mlx4_defs::{MttIndex, Opcode};
use rustix::fs::{FallocateFlags, fallocate};
use vhca_control::protocol::{Request, ShowQuery};
use vhca_control::{Remote, Subject};
use zerocopy::network_endian::{U32, U64};

use super::connections;
use super::passing::{self, Receiver};
use super::put_back::put_back;
use super::raw::{self, RawVmm};
use super::rings::rings;
use super::signals::signals;
use super::sweeper::Sweeper;
use super::trunks;
use super::victims::{Trouble, machine};
use crate::mlx4_driver::{Bus, Driver, GuestMemory, PAGE, Talker, TalkerSpec};

/// An address at which no guest has memory.
const NOWHERE: u64 = 1 << 50;

/// Pages of an attacker's memory.
pub(super) const PAGES: usize = 2048;

const PORT: PortNum = PortNum(1);

/// Progress of this process, in messages, requests or other units of its attack.
static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// Returns what this process has done so far.
pub(super) fn progress() -> u64 {
    PROGRESS.load(Ordering::Relaxed)
}

/// Notes that one more thing was done.
pub(super) fn note() {
    PROGRESS.fetch_add(1, Ordering::Relaxed);
}

/// Targets of an attack.
#[derive(Clone, Copy, Debug)]
pub struct Target<'t> {
    /// Bytes of memory for an attack that needs much.
    pub share: usize,
    /// The attacker's own VF.
    pub vf: &'t Path,
    /// A second one, for attacks by two VFs together.
    pub second_vf: &'t Path,
    /// The folder of the control socket and that of umad programs.
    pub lab: &'t Path,
}

/// A way to keep a service busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Messages full of commands for an event queue of 4 MiB whose last page is no memory.
    EventQueues,
    /// The same, with a last page that can be read but not written: all others are filled each time.
    ReadOnlyQueues,
    /// The same as the first for completion queues.
    CompletionQueues,
    /// Messages full of commands for a region of 2^19 pages of which the last is no memory.
    Regions,
    /// Messages full of commands that each fill a mailbox.
    Commands,
    /// The same, with mailboxes in memory that is not shared, and no answer to any question for a byte of it.
    Silence,
    /// Long writes over the doorbell pages.
    Doorbells,
    /// Resets of the device, one after another.
    Resets,
    /// Memory that goes and comes.
    Maps,
    /// Connections that come and go.
    Connections,
    /// Datagrams of 2 KiB to itself, as fast as they can be posted.
    Datagrams,
    /// Questions to the SA, as many at a time as there may be.
    Mads,
    /// Questions to the SA for the paths between all ports, eight at a time.
    Tables,
    /// Commands whose mailboxes are in memory that is not shared, with each question for it answered after 200 us.
    SlowAnswers,
    /// Memory of 256 MiB that is there and goes with its VMM.
    Unmap,
    /// A umad program that asks the SA for the paths between all ports.
    Programs,
    /// Clients of the control socket that ask for metrics of all VFs.
    Control,
    /// Two VFs that read from each other, 16 reads of 1 MiB each at a time.
    Reads,
    /// Two VFs that send to each other by 32 connections, and never post a receive: both are told to wait, for ever.
    NoReceives,
    /// Two VFs that send to each other by 2,000 connections, or as many as they may have, and never post a receive.
    Rnr,
    /// Two VFs that write to each other by 1,000 connections, 1 GiB a message.
    Writes,
    /// Queue pairs that are destroyed while their peers write to them.
    LostPeers,
    /// Programs on libibverbs that put back records which they never had.
    PutBack,
    /// TCP sockets whose close waits, passed to all sockets.
    Linger,
    /// Messages with as many descriptors as one can have.
    Descriptors,
    /// Memory files of 512 MiB, passed where none is taken.
    RefusedMemory,
    /// A VMM whose socket has 250,000 waiters.
    Watchers,
    /// Holes that are punched into memory that the device writes: of 8 GiB where the host has 12, else of 2, all attackers'
    /// together.
    Punch,
    /// Holes that a program on libibverbs punches into the file of its rings.
    Rings,
    /// Eventfds of doorbells of 64 queues, which are signalled without end.
    Signals,
    /// Packets in the names of others and orders to switches, by a trunk.
    TrunkRecords,
    /// A cable at the far end of a trunk that goes out and in without end.
    TrunkFlaps,
    /// Trunks in shared memory, of which random words change.
    TrunkRings,
    /// No attack: messages full of commands that do nothing, which others are measured beside.
    Nops,
}

impl Attack {
    /// Those that others are protected from.
    pub const ALL: [Self; 33] = [
        Self::EventQueues,
        Self::ReadOnlyQueues,
        Self::CompletionQueues,
        Self::Regions,
        Self::Commands,
        Self::Silence,
        Self::Doorbells,
        Self::Resets,
        Self::Maps,
        Self::Connections,
        Self::Datagrams,
        Self::Mads,
        Self::Tables,
        Self::SlowAnswers,
        Self::Unmap,
        Self::Programs,
        Self::Control,
        Self::Reads,
        Self::NoReceives,
        Self::Rnr,
        Self::Writes,
        Self::LostPeers,
        Self::PutBack,
        Self::Linger,
        Self::Descriptors,
        Self::RefusedMemory,
        Self::Watchers,
        Self::Punch,
        Self::Rings,
        Self::Signals,
        Self::TrunkRecords,
        Self::TrunkFlaps,
        Self::TrunkRings,
    ];

    /// Its name on a command line and in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EventQueues => "event-queues",
            Self::ReadOnlyQueues => "read-only-queues",
            Self::CompletionQueues => "completion-queues",
            Self::Regions => "regions",
            Self::Commands => "commands",
            Self::Silence => "silence",
            Self::Doorbells => "doorbells",
            Self::Resets => "resets",
            Self::Maps => "maps",
            Self::Connections => "connections",
            Self::Datagrams => "datagrams",
            Self::Mads => "mads",
            Self::Tables => "tables",
            Self::SlowAnswers => "slow-answers",
            Self::Unmap => "unmap",
            Self::Programs => "programs",
            Self::Control => "control",
            Self::Reads => "reads",
            Self::NoReceives => "no-receives",
            Self::Rnr => "rnr",
            Self::Writes => "writes",
            Self::LostPeers => "lost-peers",
            Self::PutBack => "put-back",
            Self::Linger => "linger",
            Self::Descriptors => "descriptors",
            Self::RefusedMemory => "refused-memory",
            Self::Watchers => "watchers",
            Self::Punch => "punch",
            Self::Rings => "rings",
            Self::Signals => "signals",
            Self::TrunkRecords => "trunk-records",
            Self::TrunkFlaps => "trunk-flaps",
            Self::TrunkRings => "trunk-rings",
            Self::Nops => "nops",
        }
    }

    /// Attacks until this process is killed.
    ///
    /// # Errors
    /// Why it cannot go on.
    pub fn carry_out(self, target: Target<'_>) -> Result<(), Trouble> {
        let socket = target.vf;
        match self {
            Self::EventQueues => event_queues(socket, NOWHERE)?,
            Self::ReadOnlyQueues => event_queues(socket, RawVmm::read_only_page())?,
            Self::CompletionQueues => completion_queues(socket)?,
            Self::Regions => regions(socket)?,
            Self::Commands => {
                let vmm = RawVmm::start(socket, PAGES)?;
                vmm.prepare(Opcode::QUERY_DEV_CAP, 0, 0, 0);
                let posts = vmm.posts();
                vmm.repeat(&[posts])?;
            }
            Self::Silence => {
                let vmm = RawVmm::start(socket, PAGES)?;
                vmm.prepare(Opcode::SW2HW_EQ, 7, 0, RawVmm::unshared_page());
                let posts = vmm.posts();
                vmm.repeat(&[posts])?;
            }
            Self::Doorbells => RawVmm::start(socket, PAGES)?.repeat(&[raw::doorbells()])?,
            Self::Resets => RawVmm::start(socket, PAGES)?.repeat(&[raw::reset()])?,
            Self::Maps => maps(socket)?,
            Self::Connections => vmm_connections(socket)?,
            Self::Datagrams => return datagrams(socket),
            Self::Mads => return mads(socket),
            Self::Tables => return tables(socket),
            Self::SlowAnswers => {
                let vmm = RawVmm::start(socket, PAGES)?;
                vmm.prepare(Opcode::QUERY_DEV_CAP, 0, 0, RawVmm::unshared_page());
                vmm.answer_slowly()?;
            }
            Self::Unmap => unmap(socket)?,
            Self::Programs => return programs(target.lab),
            Self::Control => return control(target.lab),
            Self::Reads => return connections::reads(target),
            Self::NoReceives => return connections::no_receives(target),
            Self::Rnr => return connections::rnr(target),
            Self::Writes => return connections::writes(target),
            Self::LostPeers => return connections::lost_peers(target),
            Self::PutBack => return put_back(&target.lab.join("umad.verbs"), "H1-1"),
            Self::Linger => return passing::linger(target.receiver()),
            Self::Descriptors => return passing::descriptors(target.receiver()),
            Self::RefusedMemory => return passing::refused_memory(target.receiver()),
            Self::Watchers => return passing::watchers(socket, PAGES),
            Self::Punch => punch(socket, target.share)?,
            Self::Rings => return rings(&target.lab.join("umad.verbs"), "H1-1", target.share),
            Self::Signals => return signals(socket),
            Self::TrunkRecords => return trunks::records(target.sockets()?),
            Self::TrunkFlaps => return trunks::flaps(target.sockets()?),
            Self::TrunkRings => return trunks::rings(target.sockets()?),
            Self::Nops => {
                let vmm = RawVmm::start(socket, PAGES)?;
                vmm.prepare(Opcode::NOP, 0, 0, 0);
                let posts = vmm.posts();
                vmm.repeat(&[posts])?;
            }
        }
        Ok(())
    }

    /// Returns true if the attack costs all processes of the host time even without the service: closing files, freeing memory and waking
    /// waiters are the kernel's work. It is measured beside processes that do the same to sockets of their own.
    #[must_use]
    pub(super) const fn is_of_the_kernel(self) -> bool {
        matches!(
            self,
            Self::Linger | Self::Descriptors | Self::RefusedMemory | Self::Watchers
        )
    }

    /// Returns true if the service learns from the first success of the attack how to bear the next ones.
    #[must_use]
    pub(super) const fn is_learnt(self) -> bool {
        matches!(self, Self::Punch | Self::Rings)
    }

    /// Does the same to sockets of its own until this process is killed, where the attack [is of the
    /// kernel](Self::is_of_the_kernel).
    ///
    /// # Errors
    /// An error of the attack, or a message if the attack needs the service.
    pub(super) fn carry_out_on_own(self) -> Result<(), Trouble> {
        match self {
            Self::Linger => passing::linger(Receiver::Own),
            Self::Descriptors => passing::descriptors(Receiver::Own),
            Self::RefusedMemory => passing::refused_memory(Receiver::Own),
            Self::Watchers => passing::own_watchers(),
            _ => Err(format!("{self} needs the service").into()),
        }
    }
}

impl<'t> Target<'t> {
    /// Returns the folder of the sockets of VFs and trunks.
    fn sockets(self) -> Result<&'t Path, Trouble> {
        self.vf
            .parent()
            .ok_or_else(|| "a socket is in a folder".into())
    }

    fn receiver(self) -> Receiver<'t> {
        Receiver::Service {
            lab: self.lab,
            vf: self.second_vf,
        }
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Attack {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut known = Self::ALL.into_iter().chain([Self::Nops]);
        known.find(|attack| attack.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no attack {name}; there are {names}")
        })
    }
}

fn event_queues(socket: &Path, last: u64) -> io::Result<()> {
    let mut vmm = RawVmm::start(socket, PAGES)?;
    let first = vmm.map_pages(10, last)?;
    let mut context = EqContext {
        mtt_base: MttBase::from_entry(MttIndex(first)),
        ..EqContext::default()
    };
    context.set_log_entries(17);
    let at = vmm.mailbox(&context);
    vmm.prepare(Opcode::SW2HW_EQ, 7, 0, at);
    let posts = vmm.posts();
    vmm.repeat(&[posts])
}

fn completion_queues(socket: &Path) -> io::Result<()> {
    let mut vmm = RawVmm::start(socket, PAGES)?;
    let first = vmm.map_pages(10, NOWHERE)?;
    let op = ResourceOp::RESERVE_AND_MAP;
    let cqn = vmm.allocate(ResourceType::CQ, op, 0)?;
    let mut context = CqContext {
        mtt_base: MttBase::from_entry(MttIndex(first)),
        ..CqContext::default()
    };
    context.set_log_entries(17);
    let at = vmm.mailbox(&context);
    let cqn = u32::try_from(cqn).map_err(io::Error::other)?;
    vmm.prepare(Opcode::SW2HW_CQ, cqn, 0, at);
    let posts = vmm.posts();
    vmm.repeat(&[posts])
}

fn regions(socket: &Path) -> io::Result<()> {
    const ORDER: u8 = 19;

    let mut vmm = RawVmm::start(socket, PAGES)?;
    let first = vmm.map_pages(ORDER, NOWHERE)?;
    let index = vmm.allocate(ResourceType::MPT, ResourceOp::RESERVE, 0)?;
    vmm.allocate(ResourceType::MPT, ResourceOp::MAP_ICM, index)?;
    let index = u32::try_from(index).map_err(io::Error::other)?;
    let mut entry = MptEntry {
        length: U64::new(4096 << ORDER),
        entity_size: U32::new(12),
        mtt_addr: U64::new(first * 8),
        ..MptEntry::default()
    };
    entry.set_region(true);
    entry.set_status(STATUS_VALID);
    entry.set_memory_key(index << 8);
    let at = vmm.mailbox(&entry);
    vmm.prepare(Opcode::SW2HW_MPT, index, 0, at);
    let posts = vmm.posts();
    vmm.repeat(&[posts])
}

fn maps(socket: &Path) -> io::Result<()> {
    let mut vmm = RawVmm::start(socket, PAGES)?;
    loop {
        vmm.ask(&raw::unmap_all())?;
        vmm.map()?;
        note();
    }
}

fn vmm_connections(socket: &Path) -> io::Result<()> {
    let memory = GuestMemory::shared(PAGES)?;
    loop {
        // The one before may not be missed yet.
        if let Ok(mut vmm) = RawVmm::connect(socket, memory.clone()) {
            vmm.map()?;
            note();
        }
    }
}

fn datagrams(socket: &Path) -> Result<(), Trouble> {
    const SENDS: u32 = 256;

    let (mut bus, memory) = machine(socket, 2 * PAGES)?;
    let mut driver = Driver::probe(&mut bus, memory)?;
    let spec = TalkerSpec {
        sends: SENDS,
        receives: SENDS,
        ..TalkerSpec::default()
    };
    let mut talker = Talker::open(&mut driver, &mut bus, &spec)?;
    let lid = driver.port(PORT).info.lid;
    let way = talker.way_to(talker.address(lid));
    let words = [0x5a; 2048];
    loop {
        let mut works = Vec::new();
        while let Ok(work) = talker.request(&mut driver, &way, &words) {
            works.push(work);
        }
        driver.post_sends(&mut bus, talker.qpn, &works)?;
        talker.hear(&mut driver)?;
        while talker.take_sent(&mut driver)? == 0 {
            driver.serve(&mut bus)?;
            bus.wait(Duration::from_micros(100));
        }
        note();
    }
}

fn mads(socket: &Path) -> Result<(), Trouble> {
    ask_the_sa(socket, 128, |gid| SaRequest::path_by_gids(gid, gid, None))
}

fn tables(socket: &Path) -> Result<(), Trouble> {
    ask_the_sa(socket, 8, |_| {
        SaRequest::get_table(&PathRecord::default(), ComponentMask::default())
    })
}

/// Asks the SA without end, so much at a time.
fn ask_the_sa(
    socket: &Path,
    at_once: usize,
    request: impl Fn(Gid) -> SaRequest,
) -> Result<(), Trouble> {
    let (mut bus, memory) = machine(socket, PAGES)?;
    let mut driver = Driver::probe(&mut bus, memory)?;
    let gid = driver.port(PORT).gid();
    let mut under_way = 0;
    loop {
        let now = bus.now();
        let mads = driver.mads(PORT);
        while under_way < at_once {
            mads.sa.query(now, &mut mads.agent, request(gid));
            under_way += 1;
        }
        // It asks for as much as it may, whether that is answered or not.
        note();
        driver.serve(&mut bus)?;
        let sa = &mut driver.mads(PORT).sa;
        while sa.poll_event().is_some() {
            under_way = under_way.saturating_sub(1);
        }
        bus.wait(Duration::from_micros(100));
    }
}

fn unmap(socket: &Path) -> io::Result<()> {
    const LARGE: usize = 1 << 16;
    // The host clears 256 MiB a round, and beside many of these would measure itself.
    const PAUSE: Duration = Duration::from_secs(5);

    loop {
        let memory = GuestMemory::shared(LARGE)?;
        let file = memory.file().ok_or(io::ErrorKind::Unsupported)?;
        fallocate(&*file, FallocateFlags::empty(), 0, (LARGE * PAGE) as u64)?;
        drop(file);
        // The one before may not be missed yet.
        if let Ok(mut vmm) = RawVmm::connect(socket, memory) {
            // Nor what it left.
            if vmm.map().is_ok() {
                note();
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Bytes of memory whose holes are punched, of all attackers together.
pub(super) fn punched() -> usize {
    const GIB: usize = 1 << 30;

    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = available.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    let has_much = available.is_some_and(|kib: usize| kib << 10 >= 12 * GIB);
    if has_much { 8 * GIB } else { 2 * GIB }
}

fn punch(socket: &Path, bytes: usize) -> io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(50);

    let pages = bytes / PAGE;
    // All but the pages with the command register and what the driver wrote.
    let (from, len) = (2 * PAGE as u64, ((pages - 2) * PAGE) as u64);
    loop {
        // The VMM is cut off where a write to its memory takes more than a second, and its VF is not free at once.
        let Ok(vmm) = RawVmm::start(socket, pages) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let file = vmm.file().ok_or(io::ErrorKind::Unsupported)?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                while !is_over.load(Ordering::Relaxed) {
                    let filled = fallocate(&*file, FallocateFlags::empty(), from, len);
                    let punched = fallocate(&*file, hole, from, len);
                    // Beside others there may be too little memory at times.
                    if filled.and(punched).is_err() {
                        std::thread::sleep(PAUSE);
                    }
                }
            });
            vmm.prepare(Opcode::QUERY_DEV_CAP, 0, 0, 0);
            let posts = vmm.posts();
            let _cut_off = vmm.repeat(&[posts]);
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

fn programs(lab: &Path) -> Result<(), Trouble> {
    let mut program = Sweeper::open_for_tables(&lab.join("umad"), "H1-2")?;
    loop {
        program.ask_for_paths()?;
        note();
    }
}

fn control(lab: &Path) -> Result<(), Trouble> {
    let mut remote = Remote::connect(&lab.join("control"))?;
    loop {
        remote.ask(&Request::Show(ShowQuery::new(Subject::Vfs)))?;
        note();
    }
}
