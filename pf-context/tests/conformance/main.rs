//! Conformance of the port's mux, by statement number.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod aliases;
mod cm;
mod egress;
mod events;
mod harness;
mod hostile;
mod ingress;
mod notices;
mod own_lid;
mod paths;
mod pf_software;
mod rate;
mod redirects;
mod rmpp;
mod sa;
mod services;
mod statistics;
mod texts;
