//! Linux' uverbs without Linux, as far as it needs no queues: the layouts of commands and rings, the protocol by which a preload
//! library in a program reaches the device that a service has for it, ids of the RDMA CM, RDMA netlink and sysfs.
//!
//! The device that programs find is rxe with link layer InfiniBand. The machine behind it is the crate `vf-uverbs`; the preload
//! library links this crate alone. Everything here is sans-I/O.
#![forbid(unsafe_code)]

pub mod abi;
pub mod budget;
mod command;
mod completion_rings;
mod events;
mod interface;
mod namespace;
pub mod netlink;
mod protocol;
mod rdma_cm;
mod send_gate;
pub mod sysfs;
#[cfg(test)]
mod testing;
mod view;

pub use budget::{Budget, Charge, MemoryReserve};
pub use command::{Answer, Command, Reply, RetiredEvents};
pub use completion_rings::CompletionRings;
pub use events::{CHANNEL_BUFFER, ChannelId, EventQueue, EventRecord};
pub use interface::InterfaceLayout;
pub use linux_abi::Errno;
pub use namespace::{MAX_NAMESPACE_ADDRESSES, Namespace};
pub use protocol::{ArmLayout, CallReply, MAX_REQUEST, PutBackLimit, Request, Verb};
pub use rdma_cm::{AddressBook, CmHost, Network, RdmaCm};
pub use send_gate::SendGate;
pub use view::{DeviceView, PortView, Resources, physical_state, port_state, qp_state};
