//! VFs for VMMs: a vfio-user server, by which QEMU and Cloud Hypervisor drive a [`vf_proxy::PciFunction`].
//!
//! * [`codec`] is the protocol.
//! * [`GuestMemory`] is what the VMM shares of its guest's memory.
//! * [`Session`] does what a VMM's messages say.

pub mod codec;
mod connection;
mod eventfd;
mod interrupts;
pub mod memory;
mod remote;
mod session;

pub use connection::{Connection, ConnectionEnd};
pub use eventfd::{SignalError, Signaller, Signals};
pub use interrupts::Interrupts;
pub use memory::{
    GuardNotice, GuestMemory, MemoryLimit, MemoryPool, MemoryStatistics, PostedState,
};
pub use remote::{Patience, Remote};
pub use session::{Handled, Lent, Session, SessionError, SessionStatistics};
