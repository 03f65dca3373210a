//! Every InfiniBand byte layout that vhca reads or writes, and nothing else.
//!
//! The crate follows two rules:
//!
//! * **A layout is a `repr(C)` struct of unaligned big-endian fields** that borrows or copies straight
//!   out of a buffer (`zerocopy`). Reserved bits are named fields, so decoding and encoding any
//!   bytes is the identity and a forwarded packet keeps the bits this code knows nothing of.
//! * **A quantity is a newtype** ([`Lid`], [`Gid`], [`PKey`], [`Qpn`], ...), stored big-endian with
//!   alignment 1, so that the newtypes are the fields of the layouts. Enumerations are open:
//!   an unknown wire value is a value, not an error.
//!
//! Sources: InfiniBand Architecture Specification volume 1, release 1.4 ("IBA"), with the Linux
//! kernel's and rdma-core's headers as witnesses where noted. Nothing here allocates, panics on
//! input or keeps state.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

#[macro_use]
mod newtype;
#[macro_use]
pub mod layout;

pub mod cm;
pub mod devmgt;
mod id;
pub mod ipoib;
pub mod mad;
pub mod notice;
pub mod packet;
pub mod perf;
pub mod rmpp;
pub mod sa;
pub mod smp;

pub use id::*;
