//! Virtual InfiniBand HCAs for any VMM.
//!
//! This is the only crate of the workspace with file descriptors, threads and a wall clock.
//!
//! * [`Runner`] drives sans-I/O machines by the wall clock in an event loop.
//! * [`show`] writes what the PF's inspection data looks like.
//! * [`lab`] puts unmodified Linux guests on a service's VFs.
//! * [`serve`] is the running service: a world driven by the wall clock, and the ways in to it.
//! * [`vfio_user`] gives VFs to VMMs.
//! * [`world`] puts a fabric, the software of its hosts and a subnet manager together, and drives
//!   them in virtual time.

pub mod bench;
pub mod conversations;
mod credentials;
pub mod demo;
pub mod drain;
mod driven;
mod drop_log;
pub mod flood;
pub mod lab;
mod log_limit;
pub mod places;
pub mod programs;
pub mod qemu;
mod real_time;
pub mod replay;
pub mod serve;
pub mod show;
mod slice;
pub mod vfio_user;
pub mod watch;
pub mod world;

pub use driven::Driven;
pub use drop_log::{DropLine, DropLog};
pub use real_time::{LoopError, RunEnd, Runner, StopHandle};
pub use slice::Slice;
