//! Conformance of the multicast aggregation: statements 116 to 152, by number.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]
#![expect(unreachable_pub, reason = "the modules of one test program")]

mod aliases;
mod leaves;
mod port;
mod requests;
mod the_sa_and_time;
mod views;
