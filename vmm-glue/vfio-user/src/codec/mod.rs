//! The vfio-user protocol, without its socket.
//!
//! Source: "vfio-user Protocol Specification" (QEMU's `docs/interop/vfio-user.rst`, libvfio-user's
//! `vfio-user.h`), of which this speaks version 0.0, like its clients QEMU (10.1 and later), Cloud Hypervisor
//! and the crate `vfio_user`. The protocol has the byte order of the host; here it is that of a little-endian one.
//!
//! * [`Assembler`] makes messages from what a socket gives, however it is cut, and tells which descriptors came
//!   with which.
//! * [`Request`] is a message that a client sent, checked.
//! * [`reply`], [`error_reply`] and [`Version::negotiate`] make what goes back.
//!
//! Lengths are bounded by [`MAX_MESSAGE`] before anything is kept. A message whose frame makes no sense is a
//! [`ProtocolError`], after which nothing of the connection can be understood any more; one whose content makes no
//! sense is an error number for the reply.
//!
//! Not here: migration, dirty pages, regions that are mapped or served by descriptors, device features.

mod assembler;
mod layout;
mod outgoing;
mod request;
mod version;

pub use assembler::{Assembler, Message, ProtocolError};
pub use layout::{
    Command, DeviceInfo, DmaAccess, DmaMap, DmaMapFlags, DmaUnmap, DmaUnmapFlags, Header,
    HeaderFlags, IrqInfo, IrqInfoFlags, IrqSet, MultiWrite, RegionAccess, RegionInfo,
    RegionInfoFlags, RegionIoFds,
};
pub use outgoing::{dma_read, dma_write, error_reply, parse_dma_reply, reply};
pub use request::{IrqAction, IrqData, Request, SetIrqs};
pub use version::{Capabilities, Version};

/// The most bytes that one message reads or writes (`max_data_xfer_size`). Registers have eight bytes, and all of
/// configuration space 4096.
pub const MAX_DATA: usize = 64 << 10;

/// The most bytes of a message with its header.
pub const MAX_MESSAGE: usize = size_of::<Header>() + size_of::<RegionAccess>() + MAX_DATA;

/// Descriptors that a client is told to send at most with one message (`max_msg_fds`). QEMU refuses a server that
/// names more.
pub const ANNOUNCED_FDS: usize = 16;

#[cfg(test)]
mod tests;
