//! Virtual InfiniBand HCAs for any VMM: what a VMM links.
//!
//! * [`world`] puts a fabric, the software of its hosts and a subnet manager together, and drives them in virtual time.
//! * [`Runner`] drives sans-I/O machines by the wall clock in an event loop, with the file descriptors that they
//!   [`watch`].
//! * [`DropLog`] turns what a PF dropped into log lines, a few for each VF and reason.

#![forbid(unsafe_code)]

mod driven;
mod drop_log;
mod log_limit;
mod real_time;
mod slice;
pub mod watch;
pub mod world;

pub use driven::Driven;
pub use drop_log::{DropLine, DropLog};
pub use log_limit::{LogLimit, Suppressed};
pub use real_time::{LoopError, RunEnd, Runner, StopHandle};
pub use slice::Slice;
