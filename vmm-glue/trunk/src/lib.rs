//! Carriers of trunks between emulated fabrics: Unix and TCP connections that never block, and the process that makes them.
//!
//! [`TrunkListener`] accepts connections, and [`Door`] makes them; a [`Carrier`] has one, and carries the bytes of a
//! [`Session`](ib_trunk::Session) over it.
#![forbid(unsafe_code)]

mod address;
mod carrier;
mod door;
mod listener;

pub use address::{AddressError, TrunkAddress};
pub use carrier::Carrier;
pub use door::{COMMAND, Door, DoorAnswer, run};
pub use listener::TrunkListener;

#[cfg(test)]
mod tests;
