//! What a client asks for, checked.

use rustix::io::Errno;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::assembler::head;
use super::layout::{
    Command, DeviceInfo, DmaMap, DmaUnmap, Header, IoEventFd, IrqInfo, IrqSet, MAX_DATA,
    MultiWrite, RegionAccess, RegionInfo, RegionIoFds,
};
use super::version::Version;

/// A command of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'m> {
    /// Agree on version and capabilities.
    Version(Version),
    /// Memory comes. One descriptor may have come along.
    DmaMap(DmaMap),
    /// Memory goes.
    DmaUnmap(DmaUnmap),
    /// Describe the device.
    DeviceInfo,
    /// Describe a region.
    RegionInfo {
        /// Which.
        index: u32,
    },
    /// Send the descriptors of a region.
    RegionIoFds {
        /// Which.
        index: u32,
        /// The most parts of the region for which the client has room.
        most: usize,
    },
    /// Describe an interrupt type.
    IrqInfo {
        /// Which.
        index: u32,
    },
    /// Set how interrupts are signalled.
    SetIrqs(SetIrqs<'m>),
    /// Read registers, [`MAX_DATA`] bytes at most.
    RegionRead(RegionAccess),
    /// Write registers.
    RegionWrite(RegionAccess, &'m [u8]),
    /// Write registers, one after another. No count is above 8.
    RegionWriteMulti(&'m [MultiWrite]),
    /// Reset the device.
    Reset,
}

/// A change of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    /// Mask them.
    Mask,
    /// Unmask them.
    Unmask,
    /// Signal them, or set the eventfds that signal them.
    Trigger,
}

/// Which interrupts of a range are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqData<'m> {
    /// All.
    None,
    /// Those whose byte is not 0; as many as the range has.
    Bool(&'m [u8]),
    /// All, and an eventfd for each came along; or none at all, which takes theirs away.
    EventFd,
}

/// A change to interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIrqs<'m> {
    /// Their type.
    pub index: u32,
    /// The first.
    pub start: u32,
    /// How many.
    pub count: u32,
    /// The change.
    pub action: IrqAction,
    /// The interrupts that it is for.
    pub data: IrqData<'m>,
}

impl<'m> Request<'m> {
    /// Reads a command, with which so many descriptors came.
    ///
    /// # Errors
    /// [`Errno::INVAL`] if its content makes no sense, or descriptors came that it does not have;
    /// [`Errno::OPNOTSUPP`] for what the protocol has and this does not; [`Errno::NOSYS`] for numbers that the
    /// protocol does not have.
    pub fn parse(header: &Header, payload: &'m [u8], fds: usize) -> Result<Self, Errno> {
        let request = match header.command() {
            Command::VERSION => Self::Version(Version::parse(payload)?),
            Command::DMA_MAP => {
                let map: DmaMap = fixed(payload)?;
                room_for::<DmaMap>(map.argsz.get())?;
                Self::DmaMap(map)
            }
            Command::DMA_UNMAP => {
                let unmap: DmaUnmap = fixed(payload)?;
                room_for::<DmaUnmap>(unmap.argsz.get())?;
                Self::DmaUnmap(unmap)
            }
            Command::DEVICE_GET_INFO => {
                let info: DeviceInfo = fixed(payload)?;
                room_for::<DeviceInfo>(info.argsz.get())?;
                Self::DeviceInfo
            }
            Command::DEVICE_GET_REGION_INFO => {
                let info: RegionInfo = fixed(payload)?;
                room_for::<RegionInfo>(info.argsz.get())?;
                Self::RegionInfo {
                    index: info.index.get(),
                }
            }
            Command::DEVICE_GET_REGION_IO_FDS => {
                let info: RegionIoFds = fixed(payload)?;
                room_for::<RegionIoFds>(info.argsz.get())?;
                if (info.flags.get(), info.count.get()) != (0, 0) {
                    return Err(Errno::INVAL);
                }
                let room = info.argsz.get() as usize - size_of::<RegionIoFds>();
                Self::RegionIoFds {
                    index: info.index.get(),
                    most: room / size_of::<IoEventFd>(),
                }
            }
            Command::DEVICE_GET_IRQ_INFO => {
                let info: IrqInfo = fixed(payload)?;
                room_for::<IrqInfo>(info.argsz.get())?;
                Self::IrqInfo {
                    index: info.index.get(),
                }
            }
            Command::DEVICE_SET_IRQS => Self::SetIrqs(SetIrqs::parse(payload)?),
            Command::REGION_READ => {
                let access: RegionAccess = fixed(payload)?;
                if access.count.get() as usize > MAX_DATA {
                    return Err(Errno::INVAL);
                }
                Self::RegionRead(access)
            }
            Command::REGION_WRITE => {
                let (access, data) = head::<RegionAccess>(payload).ok_or(Errno::INVAL)?;
                if access.count.get() as usize != data.len() {
                    return Err(Errno::INVAL);
                }
                Self::RegionWrite(access, data)
            }
            Command::REGION_WRITE_MULTI => Self::RegionWriteMulti(multi_writes(payload)?),
            Command::DEVICE_RESET => Self::Reset,
            Command::DIRTY_PAGES
            | Command::DEVICE_FEATURE
            | Command::MIG_DATA_READ
            | Command::MIG_DATA_WRITE => return Err(Errno::OPNOTSUPP),
            // Those that only a server sends are as unknown here as any other.
            _ => return Err(Errno::NOSYS),
        };
        if fds > request.most_fds() {
            return Err(Errno::INVAL);
        }
        Ok(request)
    }

    /// Descriptors that may come along.
    fn most_fds(&self) -> usize {
        match self {
            Self::DmaMap(_) => 1,
            Self::SetIrqs(set) if set.data == IrqData::EventFd => set.count as usize,
            _ => 0,
        }
    }
}

impl<'m> SetIrqs<'m> {
    const DATA_NONE: u32 = 1 << 0;
    const DATA_BOOL: u32 = 1 << 1;
    const DATA_EVENTFD: u32 = 1 << 2;
    const ACTION_MASK: u32 = 1 << 3;
    const ACTION_UNMASK: u32 = 1 << 4;
    const ACTION_TRIGGER: u32 = 1 << 5;
    const DATA: u32 = 0b111;

    fn parse(payload: &'m [u8]) -> Result<Self, Errno> {
        let (set, rest) = head::<IrqSet>(payload).ok_or(Errno::INVAL)?;
        let flags = set.flags.get();
        let count = set.count.get();
        let action = match flags & !Self::DATA {
            Self::ACTION_MASK => IrqAction::Mask,
            Self::ACTION_UNMASK => IrqAction::Unmask,
            Self::ACTION_TRIGGER => IrqAction::Trigger,
            _ => return Err(Errno::INVAL),
        };
        let data = match flags & Self::DATA {
            Self::DATA_NONE => IrqData::None,
            Self::DATA_BOOL => IrqData::Bool(rest.get(..count as usize).ok_or(Errno::INVAL)?),
            Self::DATA_EVENTFD => IrqData::EventFd,
            _ => return Err(Errno::INVAL),
        };
        Ok(Self {
            index: set.index.get(),
            start: set.start.get(),
            count,
            action,
            data,
        })
    }

    /// Returns the layout that goes before the array of [`IrqData::Bool`].
    pub(super) fn layout(&self) -> IrqSet {
        let (data, follow) = match self.data {
            IrqData::None => (Self::DATA_NONE, 0),
            IrqData::Bool(which) => (Self::DATA_BOOL, which.len()),
            IrqData::EventFd => (Self::DATA_EVENTFD, 0),
        };
        let action = match self.action {
            IrqAction::Mask => Self::ACTION_MASK,
            IrqAction::Unmask => Self::ACTION_UNMASK,
            IrqAction::Trigger => Self::ACTION_TRIGGER,
        };
        let argsz = size_of::<IrqSet>() + follow;
        IrqSet {
            argsz: U32::new(u32::try_from(argsz).unwrap_or(u32::MAX)),
            flags: U32::new(data | action),
            index: U32::new(self.index),
            start: U32::new(self.start),
            count: U32::new(self.count),
        }
    }
}

fn fixed<T: FromBytes + KnownLayout + Immutable>(payload: &[u8]) -> Result<T, Errno> {
    head(payload).map(|(layout, _)| layout).ok_or(Errno::INVAL)
}

/// Whether a reply of a layout fits into what the client has for it.
fn room_for<T>(argsz: u32) -> Result<(), Errno> {
    if (argsz as usize) < size_of::<T>() {
        return Err(Errno::INVAL);
    }
    Ok(())
}

fn multi_writes(payload: &[u8]) -> Result<&[MultiWrite], Errno> {
    let (count, writes) = head::<U64>(payload).ok_or(Errno::INVAL)?;
    let writes = slice_of::<MultiWrite>(writes)?;
    let sound = writes.len() as u64 == count.get()
        && writes.iter().all(|write| write.access.count.get() <= 8);
    sound.then_some(writes).ok_or(Errno::INVAL)
}

pub(super) fn slice_of<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &[u8],
) -> Result<&[T], Errno> {
    <[T]>::ref_from_bytes(bytes).map_err(|_| Errno::INVAL)
}
