//! The MAD agent and the connection manager that every InfiniBand host has.
#![forbid(unsafe_code)]

mod address;

pub use address::MadAddress;
