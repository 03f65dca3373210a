//! Messages of a client: commands to the server, and the server's replies.

use rustix::io::Errno;
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::assembler::Message;
use super::assembler::head;
use super::layout::{
    ANNOUNCED_FDS, Command, DeviceInfo, DmaMap, DmaUnmap, Header, HeaderFlags, IoEventFd, IrqInfo,
    MAX_DATA, RegionAccess, RegionInfo, RegionIoFds,
};
use super::outgoing::message;
use super::request::{IrqAction, IrqData, SetIrqs, slice_of};
use super::version::{self, Version};

/// Why a reply is not the one that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReplyError {
    /// The server refused the command, with an error number of `errno.h`.
    #[error("the server refused it: {0}")]
    Refused(Errno),
    /// The content is shorter than the command's reply, or is about something else.
    #[error("the server's reply makes no sense")]
    Malformed,
}

/// A command of a client. [`ClientCommand::message`] returns its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCommand<'m> {
    /// Agree on version and capabilities; the first message.
    Version,
    /// Let the device reach memory. The descriptor of its file goes along.
    DmaMap(DmaMap),
    /// Take memory away from the device. The argsz of this is set by [`ClientCommand::message`].
    DmaUnmap(DmaUnmap),
    /// Ask for the numbers of regions and interrupt types.
    DeviceInfo,
    /// Ask for the size of a region.
    RegionInfo {
        /// Number of the region (`VFIO_PCI_*_REGION_INDEX`).
        index: u32,
    },
    /// Ask for the eventfds of a region's parts ([`parse_io_fds`]).
    RegionIoFds {
        /// Number of the region (`VFIO_PCI_*_REGION_INDEX`).
        index: u32,
        /// The most parts that are wanted.
        most: u32,
    },
    /// Ask for the number of interrupts of a type.
    IrqInfo {
        /// Number of the type (`VFIO_PCI_*_IRQ_INDEX`).
        index: u32,
    },
    /// Change how interrupts are signalled. Eventfds go along if the data say so.
    SetIrqs(SetIrqs<'m>),
    /// Read registers.
    RegionRead(Access),
    /// Write registers.
    RegionWrite(Access, &'m [u8]),
    /// Reset the device.
    Reset,
}

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Number of the region (`VFIO_PCI_*_REGION_INDEX`).
    pub region: u32,
    /// First byte, counted from the region's.
    pub offset: u64,
    /// Bytes; [`MAX_DATA`] at most.
    pub count: u32,
}

impl From<Access> for RegionAccess {
    fn from(access: Access) -> Self {
        Self {
            offset: U64::new(access.offset),
            region: U32::new(access.region),
            count: U32::new(access.count),
        }
    }
}

impl ClientCommand<'_> {
    /// Returns the number of the command.
    #[must_use]
    pub const fn command(&self) -> Command {
        match self {
            Self::Version => Command::VERSION,
            Self::DmaMap(_) => Command::DMA_MAP,
            Self::DmaUnmap(_) => Command::DMA_UNMAP,
            Self::DeviceInfo => Command::DEVICE_GET_INFO,
            Self::RegionInfo { .. } => Command::DEVICE_GET_REGION_INFO,
            Self::RegionIoFds { .. } => Command::DEVICE_GET_REGION_IO_FDS,
            Self::IrqInfo { .. } => Command::DEVICE_GET_IRQ_INFO,
            Self::SetIrqs(_) => Command::DEVICE_SET_IRQS,
            Self::RegionRead(_) => Command::REGION_READ,
            Self::RegionWrite(..) => Command::REGION_WRITE,
            Self::Reset => Command::DEVICE_RESET,
        }
    }

    /// Returns the bytes of the command, to which the server replies under the number `id`.
    #[must_use]
    pub fn message(&self, id: u16) -> Vec<u8> {
        self.bytes(id, HeaderFlags::empty())
    }

    /// Returns the bytes of the command, to which the server does not reply, even if it fails.
    #[must_use]
    pub fn posted(&self, id: u16) -> Vec<u8> {
        self.bytes(id, HeaderFlags::NO_REPLY)
    }

    fn bytes(&self, id: u16, flags: HeaderFlags) -> Vec<u8> {
        let header = Header {
            id: U16::new(id),
            command: U16::new(self.command().0),
            flags: U32::new(flags.bits()),
            ..Header::default()
        };
        let of = |parts: &[&[u8]]| message(header, parts);
        match *self {
            Self::Version => of(&[&version::proposal()]),
            Self::DmaMap(map) => {
                let argsz = argsz::<DmaMap>();
                of(&[DmaMap { argsz, ..map }.as_bytes()])
            }
            Self::DmaUnmap(unmap) => {
                let argsz = argsz::<DmaUnmap>();
                of(&[DmaUnmap { argsz, ..unmap }.as_bytes()])
            }
            Self::DeviceInfo => {
                let argsz = argsz::<DeviceInfo>();
                of(&[DeviceInfo {
                    argsz,
                    ..DeviceInfo::default()
                }
                .as_bytes()])
            }
            Self::RegionInfo { index } => {
                let (argsz, index) = (argsz::<RegionInfo>(), U32::new(index));
                of(&[RegionInfo {
                    argsz,
                    index,
                    ..RegionInfo::default()
                }
                .as_bytes()])
            }
            Self::RegionIoFds { index, most } => {
                let parts = most.saturating_mul(argsz::<IoEventFd>().get());
                of(&[RegionIoFds {
                    argsz: U32::new(argsz::<RegionIoFds>().get().saturating_add(parts)),
                    index: U32::new(index),
                    ..RegionIoFds::default()
                }
                .as_bytes()])
            }
            Self::IrqInfo { index } => {
                let (argsz, index) = (argsz::<IrqInfo>(), U32::new(index));
                of(&[IrqInfo {
                    argsz,
                    index,
                    ..IrqInfo::default()
                }
                .as_bytes()])
            }
            Self::SetIrqs(set) => {
                let which = match set.data {
                    IrqData::Bool(which) => which,
                    IrqData::None | IrqData::EventFd => &[],
                };
                of(&[set.layout().as_bytes(), which])
            }
            Self::RegionRead(access) => of(&[RegionAccess::from(access).as_bytes()]),
            Self::RegionWrite(access, data) => of(&[RegionAccess::from(access).as_bytes(), data]),
            Self::Reset => of(&[]),
        }
    }
}

/// Returns the change that has the interrupts from `start` on signalled by eventfds, one for each. For none of them to be
/// signalled, send it without a descriptor.
#[must_use]
pub const fn signal_by_eventfds(index: u32, start: u32, count: u32) -> SetIrqs<'static> {
    SetIrqs {
        index,
        start,
        count,
        action: IrqAction::Trigger,
        data: IrqData::EventFd,
    }
}

/// Reads the content of a reply to a command: the layout at its beginning, and what follows it.
///
/// # Errors
/// [`ReplyError`].
pub fn parse_reply<T, F>(to: Command, reply: &Message<F>) -> Result<(T, &[u8]), ReplyError>
where
    T: FromBytes + KnownLayout + Immutable,
{
    let payload = accept(to, reply)?;
    head(payload).ok_or(ReplyError::Malformed)
}

/// Looks at a reply whose content does not matter.
///
/// # Errors
/// [`ReplyError`].
pub fn parse_done<F>(to: Command, reply: &Message<F>) -> Result<(), ReplyError> {
    accept(to, reply).map(|_| ())
}

/// Reads the registers in a reply to [`ClientCommand::RegionRead`].
///
/// # Errors
/// [`ReplyError`], also if there are more or fewer bytes than were asked for.
pub fn parse_registers<F>(access: Access, reply: &Message<F>) -> Result<&[u8], ReplyError> {
    let (of, data) = parse_reply::<RegionAccess, F>(Command::REGION_READ, reply)?;
    let is_asked = of == access.into() && data.len() == access.count as usize;
    is_asked.then_some(data).ok_or(ReplyError::Malformed)
}

/// Reads a reply to [`ClientCommand::RegionIoFds`], and returns the parts of the region that have an eventfd, with the
/// number of that among the descriptors of the reply. Parts of other types, and parts that want a value, are left out. A server
/// that has no such parts, or does not know the command, has none.
///
/// # Errors
/// [`ReplyError`], also if a part names a descriptor that did not come.
pub fn parse_io_fds<F>(reply: &Message<F>) -> Result<Vec<(IoEventFd, usize)>, ReplyError> {
    let command = Command::DEVICE_GET_REGION_IO_FDS;
    let (head, parts) = match parse_reply::<RegionIoFds, F>(command, reply) {
        Err(ReplyError::Refused(Errno::OPNOTSUPP | Errno::NOSYS | Errno::AGAIN)) => {
            return Ok(Vec::new());
        }
        parsed => parsed?,
    };
    let parts = slice_of::<IoEventFd>(parts).map_err(|_| ReplyError::Malformed)?;
    if parts.len() > head.count.get() as usize {
        return Err(ReplyError::Malformed);
    }
    let parts = parts.iter().filter(|part| {
        part.kind.get() == IoEventFd::EVENTFD && part.flags.get() & IoEventFd::DATAMATCH == 0
    });
    let with_index = |part: &IoEventFd| {
        let index = usize::try_from(part.fd_index.get()).ok();
        let index = index.filter(|index| *index < reply.fds.len());
        Ok((*part, index.ok_or(ReplyError::Malformed)?))
    };
    parts.map(with_index).collect()
}

fn accept<F>(to: Command, reply: &Message<F>) -> Result<&[u8], ReplyError> {
    let flags = reply.header.flags();
    if !flags.contains(HeaderFlags::REPLY) || reply.header.command() != to {
        return Err(ReplyError::Malformed);
    }
    if flags.contains(HeaderFlags::ERROR) {
        let number = i32::try_from(reply.header.error.get()).unwrap_or(i32::MAX);
        return Err(ReplyError::Refused(Errno::from_raw_os_error(number)));
    }
    Ok(&reply.payload)
}

/// Limits of a server, of the reply to [`ClientCommand::Version`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Bytes of registers in one message; [`MAX_DATA`] at most.
    pub max_data: usize,
    /// Descriptors with one message; [`ANNOUNCED_FDS`] at most.
    pub max_fds: usize,
}

/// Reads what a server replied to [`ClientCommand::Version`].
///
/// # Errors
/// [`ReplyError`], also for another major version.
pub fn parse_version<F>(reply: &Message<F>) -> Result<ServerLimits, ReplyError> {
    let payload = accept(Command::VERSION, reply)?;
    let said = Version::parse(payload).map_err(|_| ReplyError::Malformed)?;
    if said.major != version::MAJOR {
        return Err(ReplyError::Malformed);
    }
    let bounded =
        |number: u64, most: usize| usize::try_from(number).map_or(most, |n| n.clamp(1, most));
    Ok(ServerLimits {
        max_data: bounded(said.capabilities.max_data_xfer_size, MAX_DATA),
        max_fds: bounded(said.capabilities.max_msg_fds, ANNOUNCED_FDS),
    })
}

fn argsz<T>() -> U32 {
    U32::new(u32::try_from(size_of::<T>()).unwrap_or(u32::MAX))
}
