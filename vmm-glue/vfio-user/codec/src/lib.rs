//! The vfio-user protocol, without its socket.
//!
//! Source: "vfio-user Protocol Specification" (QEMU's `docs/interop/vfio-user.rst`, libvfio-user's
//! `vfio-user.h`), of which this speaks version 0.0, like its clients QEMU (10.1 and later), Cloud Hypervisor
//! and the crate `vfio_user`. The protocol has the byte order of the host; here it is that of a little-endian one.
//!
//! * [`Assembler`] makes messages from what a socket gives, however it is cut, with the descriptors that came
//!   with each.
//! * [`Request`] is a message that a client sent, checked.
//! * [`reply`], [`error_reply`] and [`Version::negotiate`] make what goes back.
//! * [`ClientCommand`] is a command that a client sends, and [`parse_reply`] reads what the server replies to it.
//!
//! Lengths are bounded by [`MAX_MESSAGE`] before anything is kept. A message whose frame makes no sense is a
//! [`ProtocolError`], after which the rest of the connection cannot be understood; one whose content makes no
//! sense is an error number for the reply.
//!
//! Not here: migration, dirty pages, regions that are mapped, descriptors of regions other than eventfds, device features.

#![forbid(unsafe_code)]

mod assembler;
mod client;
mod layout;
mod outgoing;
mod request;
mod version;

pub use assembler::{Assembler, Message, ProtocolError};
pub use client::{
    Access, ClientCommand, ReplyError, ServerLimits, parse_done, parse_io_fds, parse_registers,
    parse_reply, parse_version, signal_by_eventfds,
};
pub use layout::{
    ANNOUNCED_FDS, Command, DeviceInfo, DmaAccess, DmaMap, DmaMapFlags, DmaUnmap, DmaUnmapFlags,
    Header, HeaderFlags, IoEventFd, IrqInfo, IrqInfoFlags, IrqSet, MAX_DATA, MAX_MESSAGE,
    MultiWrite, RegionAccess, RegionInfo, RegionInfoFlags, RegionIoFds,
};
pub use outgoing::{dma_read, dma_write, error_reply, parse_dma_reply, reply};
pub use request::{IrqAction, IrqData, Request, SetIrqs};
pub use version::{Capabilities, Version};

#[cfg(test)]
mod tests;
