//! Virtual InfiniBand HCAs for any VMM.
//!
//! This is the only crate of the workspace with file descriptors, threads and a wall clock.

mod real_time;

pub use real_time::{Driven, LoopError, RunEnd, Runner, StopHandle};
