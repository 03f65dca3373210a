//! What lies in messages, byte by byte.
#![expect(
    missing_debug_implementations,
    reason = "zerocopy makes hidden types for the fields of a macro's structs"
)]

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most bytes that one message reads or writes (`max_data_xfer_size`). Registers have eight bytes, and all of
/// configuration space 4096.
pub const MAX_DATA: usize = 64 << 10;

/// The most bytes of a message with its header.
pub const MAX_MESSAGE: usize = size_of::<Header>() + size_of::<RegionAccess>() + MAX_DATA;

/// The most descriptors with one message that a server announces (`max_msg_fds`). QEMU refuses a server that names more.
pub const ANNOUNCED_FDS: usize = 16;

/// A layout of little-endian fields and its size.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident of $size:literal { $($(#[$of:meta])* pub $field:ident: $type:ty,)* }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
            Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$of])* pub $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $size);
    };
}

/// What a message is about (`enum vfio_user_command`). Other numbers are other clients' business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Command(pub u16);

impl Command {
    /// Agree on version and capabilities; the first message.
    pub const VERSION: Self = Self(1);
    /// Memory that the device may reach.
    pub const DMA_MAP: Self = Self(2);
    /// Memory that it may not reach from here on.
    pub const DMA_UNMAP: Self = Self(3);
    /// What the device is.
    pub const DEVICE_GET_INFO: Self = Self(4);
    /// What a region is.
    pub const DEVICE_GET_REGION_INFO: Self = Self(5);
    /// Descriptors that stand for parts of a region.
    pub const DEVICE_GET_REGION_IO_FDS: Self = Self(6);
    /// What an interrupt type is.
    pub const DEVICE_GET_IRQ_INFO: Self = Self(7);
    /// How interrupts are signalled.
    pub const DEVICE_SET_IRQS: Self = Self(8);
    /// Read registers.
    pub const REGION_READ: Self = Self(9);
    /// Write registers.
    pub const REGION_WRITE: Self = Self(10);
    /// From the server: read memory.
    pub const DMA_READ: Self = Self(11);
    /// From the server: write memory.
    pub const DMA_WRITE: Self = Self(12);
    /// Reset the device.
    pub const DEVICE_RESET: Self = Self(13);
    /// Which pages were written; of an older revision of the protocol.
    pub const DIRTY_PAGES: Self = Self(14);
    /// Several writes of registers.
    pub const REGION_WRITE_MULTI: Self = Self(15);
    /// Migration and the like.
    pub const DEVICE_FEATURE: Self = Self(16);
    /// Read the device's state.
    pub const MIG_DATA_READ: Self = Self(17);
    /// Write the device's state.
    pub const MIG_DATA_WRITE: Self = Self(18);
}

bitflags! {
    /// Flags of a header. The lower four bits are the type, of which two are known.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct HeaderFlags: u32 {
        /// A reply; else a command.
        const REPLY = 1;
        /// The sender wants no reply.
        const NO_REPLY = 1 << 4;
        /// The command failed.
        const ERROR = 1 << 5;
        const _ = !0;
    }
}

impl HeaderFlags {
    /// The bits of the type.
    pub const TYPE: u32 = 0xf;
}

layout! {
    /// Before every message (`struct vfio_user_header`).
    pub struct Header of 16 {
        /// The sender's number for the message; that of the command in a reply.
        pub id: U16,
        /// [`Command`].
        pub command: U16,
        /// Bytes of the whole message.
        pub size: U32,
        /// [`HeaderFlags`].
        pub flags: U32,
        /// An error number (`errno.h`) if the flags say so.
        pub error: U32,
    }
}

impl Header {
    /// What the message is about.
    #[must_use]
    pub const fn command(&self) -> Command {
        Command(self.command.get())
    }

    /// The flags.
    #[must_use]
    pub const fn flags(&self) -> HeaderFlags {
        HeaderFlags::from_bits_retain(self.flags.get())
    }
}

bitflags! {
    /// Rights to a range of memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DmaMapFlags: u32 {
        /// The device may read.
        const READ = 1 << 0;
        /// The device may write.
        const WRITE = 1 << 1;
    }
}

layout! {
    /// Memory that the device may reach (`struct vfio_user_dma_map`).
    pub struct DmaMap of 32 {
        /// Bytes of this.
        pub argsz: U32,
        /// [`DmaMapFlags`].
        pub flags: U32,
        /// Where the memory begins in the file whose descriptor comes along.
        pub offset: U64,
        /// Where it begins for the device.
        pub address: U64,
        /// Bytes.
        pub size: U64,
    }
}

bitflags! {
    /// How memory is taken away.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DmaUnmapFlags: u32 {
        /// Reply with the pages that were written.
        const GET_DIRTY_BITMAP = 1 << 0;
        /// All memory; the range is empty.
        const ALL = 1 << 1;
    }
}

layout! {
    /// Memory that the device may not reach from here on (`struct vfio_user_dma_unmap`).
    pub struct DmaUnmap of 24 {
        /// The most bytes of the reply.
        pub argsz: U32,
        /// [`DmaUnmapFlags`].
        pub flags: U32,
        /// Where the memory begins for the device.
        pub address: U64,
        /// Bytes; in the reply, bytes that were taken away.
        pub size: U64,
    }
}

layout! {
    /// What the device is (`struct vfio_user_device_info`).
    pub struct DeviceInfo of 16 {
        /// The most bytes of the reply; in the reply, its bytes.
        pub argsz: U32,
        /// [`Self::RESET`], [`Self::PCI`].
        pub flags: U32,
        /// Regions.
        pub num_regions: U32,
        /// Interrupt types.
        pub num_irqs: U32,
    }
}

impl DeviceInfo {
    /// The device can be reset.
    pub const RESET: u32 = 1 << 0;
    /// It is a PCI function.
    pub const PCI: u32 = 1 << 1;
}

bitflags! {
    /// What can be done with a region.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RegionInfoFlags: u32 {
        /// It can be read.
        const READ = 1 << 0;
        /// It can be written.
        const WRITE = 1 << 1;
    }
}

layout! {
    /// What a region is (`struct vfio_region_info`).
    pub struct RegionInfo of 32 {
        /// The most bytes of the reply; in the reply, its bytes.
        pub argsz: U32,
        /// [`RegionInfoFlags`].
        pub flags: U32,
        /// Which region.
        pub index: U32,
        /// Where capabilities begin.
        pub cap_offset: U32,
        /// Bytes of the region.
        pub size: U64,
        /// Where it begins in a file that can be mapped.
        pub offset: U64,
    }
}

layout! {
    /// Which region's descriptors are wanted (`vfio_user_region_io_fds_request_t`), and the head of the reply.
    pub struct RegionIoFds of 16 {
        /// The most bytes of the reply; in the reply, its bytes.
        pub argsz: U32,
        /// 0.
        pub flags: U32,
        /// Which region.
        pub index: U32,
        /// Parts of the region that have a descriptor.
        pub count: U32,
    }
}

layout! {
    /// A part of a region, and the eventfd that stands for writes to it (`vfio_user_sub_region_ioeventfd_t`).
    pub struct IoEventFd of 40 {
        /// Offset in the region.
        pub offset: U64,
        /// Bytes of a write; 0 for any.
        pub size: U64,
        /// Index of the eventfd among the descriptors of the reply.
        pub fd_index: U32,
        /// [`Self::EVENTFD`]; other types are no eventfds alone.
        pub kind: U32,
        /// [`Self::DATAMATCH`], and others.
        pub flags: U32,
        /// 0.
        pub padding: U32,
        /// The value whose write signals the eventfd, with [`Self::DATAMATCH`].
        pub datamatch: U64,
    }
}

impl IoEventFd {
    /// Writes signal the eventfd (`VFIO_USER_IO_FD_TYPE_IOEVENTFD`).
    pub const EVENTFD: u32 = 0;
    /// Only writes of one value do (`KVM_IOEVENTFD_FLAG_DATAMATCH`).
    pub const DATAMATCH: u32 = 1 << 0;
}

bitflags! {
    /// What an interrupt type can do.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct IrqInfoFlags: u32 {
        /// It is signalled by eventfds.
        const EVENTFD = 1 << 0;
        /// It can be masked by messages.
        const MASKABLE = 1 << 1;
    }
}

layout! {
    /// What an interrupt type is (`struct vfio_irq_info`).
    pub struct IrqInfo of 16 {
        /// The most bytes of the reply; in the reply, its bytes.
        pub argsz: U32,
        /// [`IrqInfoFlags`].
        pub flags: U32,
        /// Which type.
        pub index: U32,
        /// Interrupts of it.
        pub count: U32,
    }
}

impl IrqInfo {
    /// The type of MSI-X (`VFIO_PCI_MSIX_IRQ_INDEX`).
    pub const MSIX: u32 = 2;
    /// The type of the one interrupt that says that the parts of regions with an eventfd are others than before. VFIO's types come
    /// before it, and clients that do not know it need not ask.
    pub const DOORBELLS: u32 = 5;
}

layout! {
    /// How interrupts are signalled (`struct vfio_irq_set`). An array of bytes may follow.
    pub struct IrqSet of 20 {
        /// Bytes of this with what follows.
        pub argsz: U32,
        /// Bits 0 to 2: what follows; bits 3 to 5: what to do.
        pub flags: U32,
        /// Which type.
        pub index: U32,
        /// The first interrupt.
        pub start: U32,
        /// Interrupts.
        pub count: U32,
    }
}

layout! {
    /// A part of a region (`struct vfio_user_region_access`). Data follow where some are meant.
    pub struct RegionAccess of 16 {
        /// Where in the region.
        pub offset: U64,
        /// Which region.
        pub region: U32,
        /// Bytes.
        pub count: U32,
    }
}

layout! {
    /// One of several writes.
    pub struct MultiWrite of 24 {
        /// Where; the count is 8 at most.
        pub access: RegionAccess,
        /// The bytes, from the first.
        pub data: [u8; 8],
    }
}

layout! {
    /// A part of memory (`struct vfio_user_dma_region_access`). Data follow where some are meant.
    pub struct DmaAccess of 16 {
        /// Where, for the device.
        pub address: U64,
        /// Bytes.
        pub count: U64,
    }
}
