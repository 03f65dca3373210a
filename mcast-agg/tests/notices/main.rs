//! Conformance of the aggregation of notice subscriptions: statements 202 and 205 to 213, by number;
//! and what OpenSM was recorded to do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]
#![expect(unreachable_pub, reason = "the modules of one test program")]

mod limits;
mod port;
mod reports;
mod requests;
mod trace;
