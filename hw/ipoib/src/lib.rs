//! A node of IP over InfiniBand (RFC 4391) without a network interface: names for the RDMA CM.
//!
//! [`Arp`] is the machine: it claims an IPv4 address, answers requests for it, and finds the GIDs of other addresses. [`Node`]
//! puts it on a datagram queue pair of an HCA, as a member of the broadcast group of its port's partition. The owner lends HCA and
//! port to each call, and moves the time.
//!
//! No IP packets are carried: packets other than requests and replies of ARP are counted and dropped.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod arp;
mod node;

pub use arp::{Arp, ArpCounters, ArpEvent, Sender};
pub use node::Node;
