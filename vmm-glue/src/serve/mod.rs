//! The running service: a fabric with the software of its hosts, driven by the wall clock, and the ways
//! in to it.
//!
//! A [`Lab`] is what is served: a [`World`](crate::world::World) whose nodes and hosts have names. A
//! [`Service`] drives it, and lends it to its [`WayIn`]s (sockets of every kind, signals) when their
//! descriptors are ready and after each poll. [`run`] makes one from [`Options`] and runs it until it
//! is asked to stop.

mod attach;
mod claim;
pub mod control;
mod ibsim;
mod lab;
mod notify;
mod options;
mod run;
mod service;
mod signals;
mod topology;
mod umad;
mod way_in;

pub use attach::{AttachSpec, AttachSpecError, IbsimNode};
pub use claim::{Claim, ClaimError, claim_packet_socket, claim_socket};
pub use ibsim::{IbsimAddress, IbsimError, IbsimWay};
pub use lab::{Lab, LabError, LabHost};
pub use options::{GuidPolicy, Options, SmChoice};
pub use run::{Announcement, ServeError, run};
pub use service::Service;
pub use signals::Signals;
pub use topology::{TopologyError, TopologySpec};
pub use umad::UmadSocket;
pub use way_in::{Turn, WayIn};

#[cfg(test)]
mod tests;
