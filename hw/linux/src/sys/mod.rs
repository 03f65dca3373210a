//! The interfaces of the kernel and of libibverbs, and all `unsafe` of the crate. By libc, whose functions a preload library can
//! stand in for.
//!
//! Objects of libibverbs are owned values here, which keep their parents alive and are destroyed when they are dropped.
#![expect(
    unsafe_code,
    reason = "the kernel and libibverbs take addresses of their arguments"
)]

pub(crate) mod abi;
#[cfg(test)]
mod fake;
mod library;
mod mapping;
mod queues;
mod resources;
mod shared_receives;
mod umad;

pub(crate) use mapping::{Mapping, Piece, RegionMemory};
pub(crate) use queues::{CompletionQueue, Parts, QueuePair, Remote, Request};
pub(crate) use resources::{
    AddressHandle, Device, MemoryRegion, ProtectionDomain, RaisedEvent, User,
};
pub(crate) use shared_receives::SharedQueue;
pub(crate) use umad::register;
