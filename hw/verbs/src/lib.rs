//! Linux' uverbs without Linux: what `/dev/infiniband/uverbsN` does, as a machine on a function of an adapter, and the
//! protocol by which a preload library in a program reaches it.
//!
//! The device that programs find is rxe with link layer InfiniBand: its provider in libibverbs keeps the queues in rings of
//! mapped memory, whose layout the kernel's interface fixes, and passes LIDs on as they are.
//!
//! Everything here is sans-I/O. A [`ProcessDevice`] is a [`Consumer`](hca_api::Consumer) of a function: it is given commands
//! and doorbells of one process and returns answers and records of events. Rings are behind [`RingMemory`], since the program
//! writes them at any time: indices are masked, each element is read once, and sizes come from the machine's own record.
#![forbid(unsafe_code)]

pub mod abi;
mod budget;
mod command;
mod completion_rings;
mod device;
mod event_queue;
pub mod netlink;
mod overflow;
mod protocol;
mod rdma_cm;
mod ring;
mod ring_memory;
mod ring_pages;
mod send;
mod send_gate;
pub mod sysfs;
#[cfg(test)]
mod testing;
mod view;

pub use budget::{Budget, Charge, MemoryReserve};
pub use command::{Answer, Command, Reply, RetiredEvents};
pub use completion_rings::CompletionRings;
pub use device::{CHANNEL_BUFFER, ChannelId, ContextId, EventRecord, ProcessDevice};
pub use linux_abi::Errno;
pub use protocol::{ArmLayout, CallReply, MAX_REQUEST, PutBackLimit, Request, Verb};
pub use rdma_cm::{AddressBook, CmHost, Network, RdmaCm};
pub use ring_memory::RingMemory;
pub use send_gate::SendGate;
pub use view::{DeviceView, PortView, Resources};
