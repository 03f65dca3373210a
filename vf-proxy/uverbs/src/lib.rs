//! A function of an adapter as the uverbs device of one process: what the kernel does behind `/dev/infiniband/uverbsN`.
//!
//! The device is rxe with link layer InfiniBand: its provider in libibverbs keeps the queues in rings of mapped memory, whose
//! layout the kernel's interface fixes ([`verbs_link::abi`]), and passes LIDs on as they are.
//!
//! Everything here is sans-I/O. A [`ProcessDevice`] is a [`Consumer`](hca_api::Consumer) of a function: it is given commands
//! and doorbells of one process and returns answers and records of events. Rings are behind [`RingMemory`], since the program
//! writes them at any time: indices are masked, each element is read once, and sizes come from the machine's own record.
#![forbid(unsafe_code)]

mod device;
mod overflow;
mod rights;
mod ring;
mod ring_memory;
mod ring_pages;
mod send;
#[cfg(test)]
mod testing;

pub use device::{ContextId, ProcessDevice};
pub use ring_memory::RingMemory;
