//! VFs for VMMs: a vfio-user server, by which QEMU and Cloud Hypervisor drive a [`vf_pci::PciFunction`].
//!
//! * [`codec`] is the protocol, a crate of its own that clients use as well.
//! * [`GuestMemory`] is what the VMM shares of its guest's memory.
//! * [`Session`] does what a VMM's messages say.

mod connection;
mod doorbells;
mod eventfd;
mod interrupts;
pub mod memory;
mod remote;
mod session;
mod unread;

pub use vhca_vfio_user_codec as codec;

pub use connection::{Connection, ConnectionEnd};
pub use doorbells::{DoorbellChange, MAX_DOORBELLS, MakeEvent};
pub use eventfd::{SignalError, Signaller, Signals};
pub use interrupts::Interrupts;
pub use memory::{
    GuardNotice, GuestMemory, MemoryLimit, MemoryPool, MemoryStatistics, PostedState,
};
pub use remote::{Patience, Remote};
pub use session::{Handled, Lent, Reply, Session, SessionError, SessionStatistics};
