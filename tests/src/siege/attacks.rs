//! What a hostile VMM or guest does to keep a service busy. Each goes on until its process is killed.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

use ib_endpoint::SaRequest;
use ib_vtime::Duration;
use ib_wire::PortNum;
use mlx4_defs::cq::CqContext;
use mlx4_defs::eq::EqContext;
use mlx4_defs::mpt::{MptEntry, STATUS_VALID};
use mlx4_defs::mtt::MttBase;
use mlx4_defs::resource::{ResourceOp, ResourceType};
use mlx4_defs::{MttIndex, Opcode};
use zerocopy::network_endian::{U32, U64};

use super::raw::{self, RawVmm};
use super::victims::{Trouble, machine};
use crate::mlx4_driver::{Bus, Driver, GuestMemory, Talker, TalkerSpec};

/// An address at which no guest has memory.
const NOWHERE: u64 = 1 << 50;

/// Pages of an attacker's memory.
const PAGES: usize = 2048;

const PORT: PortNum = PortNum(1);

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
}

impl Attack {
    /// All of them.
    pub const ALL: [Self; 12] = [
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
        }
    }

    /// Attacks the VF behind a socket until this process is killed.
    ///
    /// # Errors
    /// Why it cannot go on.
    pub fn carry_out(self, socket: &Path) -> Result<(), Trouble> {
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
            Self::Connections => connections(socket)?,
            Self::Datagrams => return datagrams(socket),
            Self::Mads => return mads(socket),
        }
        Ok(())
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
        let known = Self::ALL.into_iter().find(|attack| attack.name() == name);
        known.ok_or_else(|| {
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
    }
}

fn connections(socket: &Path) -> io::Result<()> {
    let memory = GuestMemory::shared(PAGES)?;
    loop {
        // The one before may not be missed yet.
        if let Ok(mut vmm) = RawVmm::connect(socket, memory.clone()) {
            vmm.map()?;
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
    }
}

fn mads(socket: &Path) -> Result<(), Trouble> {
    const AT_ONCE: usize = 128;

    let (mut bus, memory) = machine(socket, PAGES)?;
    let mut driver = Driver::probe(&mut bus, memory)?;
    let gid = driver.port(PORT).gid();
    let mut under_way = 0;
    loop {
        let now = bus.now();
        let mads = driver.mads(PORT);
        while under_way < AT_ONCE {
            let request = SaRequest::path_by_gids(gid, gid, None);
            mads.sa.query(now, &mut mads.agent, request);
            under_way += 1;
        }
        driver.serve(&mut bus)?;
        let sa = &mut driver.mads(PORT).sa;
        under_way -= core::iter::from_fn(|| sa.poll_event())
            .count()
            .min(under_way);
        bus.wait(Duration::from_micros(100));
    }
}
