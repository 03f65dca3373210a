//! The caller's clock, a deterministic timer queue, token buckets and deterministic sources of
//! numbers.
//!
//! Nothing in the workspace below `vmm-glue` reads a clock. Whoever drives a machine passes an
//! [`Instant`] with every call, taken from a real clock or made up by a test, and asks it for the
//! next deadline. [`TimerQueue`] keeps deadlines: equal ones fire in the order they were set, so
//! that a run is a function of its inputs.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod instant;
mod secret;
mod split_mix;
mod timer_queue;
mod token_bucket;

pub use core::time::Duration;
pub use instant::Instant;
pub use secret::{Secret, SecretNumbers};
pub use split_mix::SplitMix64;
pub use timer_queue::{TimerKey, TimerQueue};
pub use token_bucket::{Rate, TokenBucket};
