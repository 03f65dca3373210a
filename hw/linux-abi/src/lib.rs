//! The common parts of Linux' interfaces for RDMA: umad, uverbs and the RDMA CM.
//!
//! * [`Errno`]: error numbers, and the kernel's answer to each refusal of a provider.
//! * [`abi_layout`]: declares a layout of an interface, with a checked size.
//! * [`sysfs`]: the texts of the files in `/sys/class/infiniband`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod errno;
mod layout;
pub mod sysfs;

pub use errno::Errno;

/// For [`abi_layout`], whose users need no dependency of their own.
#[doc(hidden)]
pub use zerocopy;
