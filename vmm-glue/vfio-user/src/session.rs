//! What a client's commands do to a function: the server without its socket.

use core::fmt;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use hca_api::Hca;
use ib_vtime::Instant;
use rustix::io::Errno;
use thiserror::Error;
use vf_pci::{Doorbell, PciFunction};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use vhca_receiver::PassedFd;

use super::doorbells::{DoorbellChange, Doorbells, MakeEvent};
use super::eventfd::Signaller;
use super::interrupts::{IRQ_TYPES, Interrupts};
use super::memory::{GuestMemory, MAX_RANGES};
use vhca_device::Slice;
use vhca_vfio_user_codec::{
    Command, DeviceInfo, DmaUnmap, DmaUnmapFlags, Header, HeaderFlags, IoEventFd, IrqInfo,
    IrqInfoFlags, MAX_DATA, Message, RegionAccess, RegionInfo, RegionInfoFlags, RegionIoFds,
    Request, Version, error_reply, reply,
};

/// Regions of a PCI function: BARs 0 to 5, expansion ROM, configuration space, VGA.
const REGIONS: u32 = 9;

/// The number of configuration space among the regions (`VFIO_PCI_CONFIG_REGION_INDEX`).
const CONFIG: u32 = 7;

/// Bytes of configuration space.
const CONFIG_SIZE: u64 = 4096;

/// Bytes of a long write that are passed on at a time: no more doorbells than a few are in as many.
const PIECE: usize = 64;

/// A function, lent for a call.
pub struct Lent<'d> {
    /// The function.
    pub function: &'d mut dyn PciFunction,
    /// The VF's function of the adapter.
    pub hca: &'d mut dyn Hca,
    /// The time.
    pub now: Instant,
}

impl fmt::Debug for Lent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lent = f.debug_struct("Lent");
        lent.field("function", &self.function)
            .finish_non_exhaustive()
    }
}

/// Why a client is cut off whose messages could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SessionError {
    /// The first message is not the one that agrees on a version.
    #[error("it does not begin with a VERSION message")]
    NoVersion,
    /// The version cannot be agreed on.
    #[error("its VERSION message is not understood, or of another version of the protocol than 0")]
    BadVersion,
    /// It wants memory to be read and written in too small pieces.
    #[error("it takes less than 4096 bytes of memory in a message (max_data_xfer_size)")]
    SmallTransfers,
    /// A reply came to a command that was not sent.
    #[error("it replies to something that it was not asked")]
    StrayReply,
}

/// A message to a client, in reply to one of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The bytes of the message.
    pub bytes: Vec<u8>,
    /// The doorbells whose eventfds go along ([`Session::event`]).
    pub doorbells: Vec<Doorbell>,
}

impl Reply {
    /// Returns the reply to the same command that it failed.
    #[must_use]
    pub fn refused(&self, error: Errno) -> Vec<u8> {
        let header = Header::read_from_prefix(&self.bytes).map(|(header, _)| header);
        error_reply(&header.unwrap_or_default(), error)
    }
}

impl From<Vec<u8>> for Reply {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            doorbells: Vec::new(),
        }
    }
}

/// What came of a message.
#[derive(Debug, PartialEq, Eq)]
pub struct Handled {
    /// What goes back, unless the client wants nothing.
    pub reply: Option<Reply>,
    /// The client is to be cut off behind the reply.
    pub end: Option<SessionError>,
}

/// What a client did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStatistics {
    /// Commands.
    pub commands: u64,
    /// Commands that failed.
    pub errors: u64,
    /// Resets of the device.
    pub resets: u64,
    /// Doorbells that were rung by their eventfds, without a command.
    pub rings: u64,
}

/// A client from its first message to its last.
#[derive(Debug)]
pub struct Session {
    memory: GuestMemory,
    interrupts: Interrupts,
    doorbells: Doorbells,
    /// Doorbells whose eventfds were signalled.
    rung: BTreeSet<Doorbell>,
    is_agreed: bool,
    most_data: usize,
    statistics: SessionStatistics,
    under_way: Option<UnderWay>,
}

/// A message whose writes are not all done.
#[derive(Debug)]
struct UnderWay {
    message: Message<PassedFd>,
    /// Pieces that are done.
    done: usize,
}

impl Session {
    /// A session of a client that said nothing yet, with a function of so many MSI-X vectors.
    #[must_use]
    pub fn new(memory: GuestMemory, vectors: u16, signaller: Signaller) -> Self {
        let interrupts = Interrupts::new(vectors, signaller.behind(memory.clone()));
        Self {
            memory,
            interrupts,
            doorbells: Doorbells::default(),
            rung: BTreeSet::new(),
            is_agreed: false,
            most_data: 0,
            statistics: SessionStatistics::default(),
            under_way: None,
        }
    }

    /// Returns the session with doorbells that are rung by eventfds, which `make` makes.
    #[must_use]
    pub fn with_doorbells(self, make: MakeEvent) -> Self {
        let doorbells = Doorbells::new(make);
        Self { doorbells, ..self }
    }

    /// Returns the eventfd of a doorbell.
    #[must_use]
    pub fn event(&self, doorbell: &Doorbell) -> Option<&OwnedFd> {
        self.doorbells.event(doorbell)
    }

    /// Takes the next change to the eventfds.
    #[must_use]
    pub fn poll_doorbell_change(&mut self) -> Option<DoorbellChange> {
        self.doorbells.poll_change()
    }

    /// Removes all eventfds, as [`Self::poll_doorbell_change`] says then.
    pub fn remove_doorbells(&mut self) {
        self.doorbells.clear();
    }

    /// Signals that the doorbells are others than before, for a client that wants to know.
    pub fn raise_doorbells_changed(&mut self) {
        self.interrupts.raise_doorbells_changed();
    }

    /// Notes that the eventfd of a doorbell was signalled.
    pub fn note_rung(&mut self, doorbell: Doorbell) {
        self.rung.insert(doorbell);
    }

    /// Returns `true` if [`Self::ring`] has doorbells to ring.
    #[must_use]
    pub fn is_rung(&self) -> bool {
        !self.rung.is_empty()
    }

    /// Rings the doorbells whose eventfds were signalled.
    pub fn ring(&mut self, lent: &mut Lent<'_>) {
        for doorbell in core::mem::take(&mut self.rung) {
            self.statistics.rings += 1;
            lent.function.ring(lent.now, lent.hca, doorbell);
        }
    }

    /// Whether a version was agreed on.
    #[must_use]
    pub const fn is_agreed(&self) -> bool {
        self.is_agreed
    }

    /// The most bytes of its memory that the client takes in one message.
    #[must_use]
    pub const fn most_data(&self) -> usize {
        self.most_data
    }

    /// The memory of the client's guest.
    #[must_use]
    pub const fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// What the client did.
    #[must_use]
    pub const fn statistics(&self) -> SessionStatistics {
        self.statistics
    }

    /// The interrupts.
    #[must_use]
    pub const fn interrupts(&self) -> &Interrupts {
        &self.interrupts
    }

    /// Signals an MSI-X vector.
    pub fn raise(&mut self, vector: u16) {
        self.interrupts.raise(vector);
    }

    /// Whether a message waits for [`Self::go_on`]. The next one comes behind it.
    #[must_use]
    pub const fn is_amid(&self) -> bool {
        self.under_way.is_some()
    }

    /// Does what a message says. `None` if the slice was over first: what is left of it is done by [`Self::go_on`].
    pub fn handle(
        &mut self,
        mut message: Message<PassedFd>,
        lent: &mut Lent<'_>,
        slice: &mut Slice,
    ) -> Option<Handled> {
        if message.header.flags().contains(HeaderFlags::REPLY) {
            return Some(Handled {
                reply: None,
                end: Some(SessionError::StrayReply),
            });
        }
        self.statistics.commands += 1;
        let writes = [Command::REGION_WRITE, Command::REGION_WRITE_MULTI];
        if self.is_agreed && writes.contains(&message.header.command()) {
            self.under_way = Some(UnderWay { message, done: 0 });
            return self.go_on(lent, slice);
        }
        let fds = core::mem::take(&mut message.fds);
        let count = fds.len();
        let done = match Request::parse(&message.header, &message.payload, count) {
            Ok(request) => self.act(&message, request, fds, lent),
            Err(error) => Err(error),
        };
        Some(self.end(&message, done))
    }

    /// Goes on with the message of which something is left. `None` if the slice was over first, or nothing is left.
    pub fn go_on(&mut self, lent: &mut Lent<'_>, slice: &mut Slice) -> Option<Handled> {
        let mut under_way = self.under_way.take()?;
        let UnderWay { message, done } = &mut under_way;
        match write_on(message, done, lent, slice) {
            Ok(Some(reply)) => Some(self.end(&under_way.message, Ok(reply.into()))),
            Ok(None) => {
                self.under_way = Some(under_way);
                None
            }
            Err(error) => Some(self.end(&under_way.message, Err(error))),
        }
    }

    /// What came of a message.
    fn end(&mut self, message: &Message<PassedFd>, done: Result<Reply, Errno>) -> Handled {
        let was_agreed = self.is_agreed;
        self.is_agreed = was_agreed || done.is_ok();
        let end = (!was_agreed && done.is_err()).then(|| first_error(message));
        let wants_reply = !message.header.flags().contains(HeaderFlags::NO_REPLY);
        let reply = match done {
            Ok(reply) => reply,
            Err(error) => {
                self.statistics.errors += 1;
                log::debug!("vfio-user: {:?} fails: {error}", message.header.command());
                error_reply(&message.header, error).into()
            }
        };
        Handled {
            reply: wants_reply.then_some(reply),
            end,
        }
    }

    fn act(
        &mut self,
        message: &Message<PassedFd>,
        request: Request<'_>,
        mut fds: Vec<PassedFd>,
        lent: &mut Lent<'_>,
    ) -> Result<Reply, Errno> {
        let header = &message.header;
        if self.is_agreed == matches!(request, Request::Version(_)) {
            return Err(Errno::INVAL);
        }
        match request {
            Request::Version(version) => {
                let most = version.capabilities.max_data_xfer_size;
                self.most_data = usize::try_from(most).unwrap_or(MAX_DATA).min(MAX_DATA);
                version.negotiate(header, MAX_RANGES).map(Reply::from)
            }
            Request::DmaMap(map) => {
                self.memory.map(&map, fds.pop())?;
                Ok(reply(header, &[]).into())
            }
            Request::DmaUnmap(unmap) => {
                let size = U64::new(self.unmap(&unmap)?);
                let unmapped = DmaUnmap { size, ..unmap };
                Ok(reply(header, &[unmapped.as_bytes()]).into())
            }
            Request::DeviceInfo => Ok(reply(header, &[device_info().as_bytes()]).into()),
            Request::RegionInfo { index } => {
                let info = region_info(lent.function, index)?;
                Ok(reply(header, &[info.as_bytes()]).into())
            }
            Request::IrqInfo { index } => {
                let info = self.irq_info(index)?;
                Ok(reply(header, &[info.as_bytes()]).into())
            }
            Request::RegionIoFds { index, most } => {
                region_size(lent.function, index)?;
                let doorbells = self.doorbells.of_region(lent.function, index, most);
                Ok(io_fds(header, index, doorbells))
            }
            Request::SetIrqs(set) => {
                self.interrupts.set(&set, fds)?;
                Ok(reply(header, &[]).into())
            }
            Request::RegionRead(access) => {
                let data = read(lent, &access)?;
                Ok(reply(header, &[access.as_bytes(), &data]).into())
            }
            // A version comes first, and then these are done piece by piece.
            Request::RegionWrite(..) | Request::RegionWriteMulti(_) => Err(Errno::INVAL),
            Request::Reset => {
                self.statistics.resets += 1;
                lent.function.reset(lent.now, lent.hca);
                Ok(reply(header, &[]).into())
            }
        }
    }

    /// Takes memory away, and returns how many bytes.
    fn unmap(&self, unmap: &DmaUnmap) -> Result<u64, Errno> {
        let (address, size) = (unmap.address.get(), unmap.size.get());
        let flags = DmaUnmapFlags::from_bits(unmap.flags.get()).ok_or(Errno::INVAL)?;
        if flags.contains(DmaUnmapFlags::GET_DIRTY_BITMAP) {
            return Err(Errno::OPNOTSUPP);
        }
        if !flags.contains(DmaUnmapFlags::ALL) {
            return self.memory.unmap(address, size);
        }
        if (address, size) != (0, 0) {
            return Err(Errno::INVAL);
        }
        Ok(self.memory.unmap_all())
    }

    fn irq_info(&self, index: u32) -> Result<IrqInfo, Errno> {
        if index >= IRQ_TYPES {
            return Err(Errno::INVAL);
        }
        let (flags, count) = match index {
            IrqInfo::DOORBELLS => (IrqInfoFlags::EVENTFD, 1),
            IrqInfo::MSIX => (
                IrqInfoFlags::EVENTFD | IrqInfoFlags::MASKABLE,
                self.interrupts.len(),
            ),
            _ => (IrqInfoFlags::EVENTFD, 0),
        };
        Ok(IrqInfo {
            argsz: size::<IrqInfo>(),
            flags: U32::new(flags.bits()),
            index: U32::new(index),
            count: U32::new(u32::try_from(count).unwrap_or(u32::MAX)),
        })
    }
}

/// Why a client whose first message failed is cut off.
fn first_error(message: &Message<PassedFd>) -> SessionError {
    match message.header.command() {
        Command::VERSION => match Version::parse(&message.payload) {
            Ok(version) if version.takes_too_little() => SessionError::SmallTransfers,
            _ => SessionError::BadVersion,
        },
        _ => SessionError::NoVersion,
    }
}

fn size<T>() -> U32 {
    U32::new(u32::try_from(size_of::<T>()).unwrap_or(u32::MAX))
}

fn device_info() -> DeviceInfo {
    DeviceInfo {
        argsz: size::<DeviceInfo>(),
        flags: U32::new(DeviceInfo::RESET | DeviceInfo::PCI),
        num_regions: U32::new(REGIONS),
        num_irqs: U32::new(IRQ_TYPES),
    }
}

/// Describes doorbells, whose eventfds go along.
fn io_fds(to: &Header, region: u32, doorbells: Vec<Doorbell>) -> Reply {
    let part = |(index, doorbell): (u32, &Doorbell)| IoEventFd {
        offset: U64::new(doorbell.offset),
        // A store of any length does.
        size: U64::new(0),
        fd_index: U32::new(index),
        kind: U32::new(IoEventFd::EVENTFD),
        ..IoEventFd::default()
    };
    let parts: Vec<IoEventFd> = (0..).zip(&doorbells).map(part).collect();
    let bytes = size_of::<RegionIoFds>() + size_of_val(&*parts);
    let [argsz, count] =
        [bytes, parts.len()].map(|n| U32::new(u32::try_from(n).unwrap_or(u32::MAX)));
    let head = RegionIoFds {
        argsz,
        flags: U32::new(0),
        index: U32::new(region),
        count,
    };
    Reply {
        bytes: reply(to, &[head.as_bytes(), parts.as_bytes()]),
        doorbells,
    }
}

/// Bytes of a region; 0 for one that the function does not have.
fn region_size(function: &dyn PciFunction, index: u32) -> Result<u64, Errno> {
    if index >= REGIONS {
        return Err(Errno::INVAL);
    }
    if index == CONFIG {
        return Ok(CONFIG_SIZE);
    }
    let bar = function
        .bars()
        .iter()
        .find(|bar| u32::from(bar.index) == index);
    Ok(bar.map_or(0, |bar| bar.size))
}

/// No region can be mapped: each has registers whose reading or writing does something.
fn region_info(function: &dyn PciFunction, index: u32) -> Result<RegionInfo, Errno> {
    let bytes = region_size(function, index)?;
    let flags = match bytes {
        0 => RegionInfoFlags::empty(),
        _ => RegionInfoFlags::READ | RegionInfoFlags::WRITE,
    };
    Ok(RegionInfo {
        argsz: size::<RegionInfo>(),
        flags: U32::new(flags.bits()),
        index: U32::new(index),
        size: U64::new(bytes),
        ..RegionInfo::default()
    })
}

/// Where in which region an access is, if it is within it.
enum Place {
    Config(u16),
    Bar(u8, u64),
}

fn place(function: &dyn PciFunction, access: &RegionAccess) -> Result<Place, Errno> {
    let (region, offset) = (access.region.get(), access.offset.get());
    let end = offset.checked_add(u64::from(access.count.get()));
    let size = region_size(function, region)?;
    if end.is_none_or(|end| end > size) {
        return Err(Errno::INVAL);
    }
    if region == CONFIG {
        let offset = u16::try_from(offset).map_err(|_| Errno::INVAL)?;
        return Ok(Place::Config(offset));
    }
    let bar = u8::try_from(region).map_err(|_| Errno::INVAL)?;
    Ok(Place::Bar(bar, offset))
}

fn read(lent: &mut Lent<'_>, access: &RegionAccess) -> Result<Vec<u8>, Errno> {
    let place = place(lent.function, access)?;
    let mut data = vec![0; access.count.get() as usize];
    match place {
        Place::Config(offset) => lent.function.config_read(offset, &mut data),
        Place::Bar(bar, offset) => lent.function.bar_read(bar, offset, &mut data),
    }
    Ok(data)
}

fn write(lent: &mut Lent<'_>, access: &RegionAccess, data: &[u8]) -> Result<(), Errno> {
    match place(lent.function, access)? {
        Place::Config(offset) => {
            lent.function.config_write(lent.now, lent.hca, offset, data);
        }
        Place::Bar(bar, offset) => {
            lent.function
                .bar_write(lent.now, lent.hca, bar, offset, data);
        }
    }
    Ok(())
}

/// Does more of a message's writes, and counts the pieces. The reply, if these were the last.
fn write_on(
    message: &Message<PassedFd>,
    done: &mut usize,
    lent: &mut Lent<'_>,
    slice: &mut Slice,
) -> Result<Option<Vec<u8>>, Errno> {
    let header = &message.header;
    match Request::parse(header, &message.payload, message.fds.len())? {
        Request::RegionWriteMulti(writes) => {
            for one in writes.iter().skip(*done) {
                let data = one.data.get(..one.access.count.get() as usize);
                write(lent, &one.access, data.ok_or(Errno::INVAL)?)?;
                *done += 1;
                if slice.is_over() && *done < writes.len() {
                    return Ok(None);
                }
            }
            let count = U64::new(writes.len() as u64);
            Ok(Some(reply(header, &[count.as_bytes()])))
        }
        Request::RegionWrite(access, data) => {
            place(lent.function, &access)?;
            let starts = (0..).step_by(PIECE);
            for (start, piece) in starts.zip(data.chunks(PIECE)).skip(*done) {
                let at = RegionAccess {
                    offset: U64::new(access.offset.get() + start),
                    count: U32::new(u32::try_from(piece.len()).unwrap_or(u32::MAX)),
                    ..access
                };
                write(lent, &at, piece)?;
                *done += 1;
                if slice.is_over() && *done < data.len().div_ceil(PIECE) {
                    return Ok(None);
                }
            }
            Ok(Some(reply(header, &[access.as_bytes()])))
        }
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests;
