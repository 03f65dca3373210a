//! A node of IP over InfiniBand (RFC 4391) without a network interface: names for the RDMA CM.
//!
//! [`Arp`] is the machine: it claims an IPv4 address, answers requests for it, and finds the GIDs of other addresses.
//!
//! No IP packets are carried: packets other than requests and replies of ARP are counted and dropped.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod arp;

pub use arp::{Arp, ArpCounters, ArpEvent, Sender};
