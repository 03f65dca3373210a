//! Conformance of the port's mux, by statement number.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod cm;
mod egress;
mod events;
mod harness;
mod ingress;
mod notices;
mod pf_software;
mod rate;
mod sa;
mod statistics;
