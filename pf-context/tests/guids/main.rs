//! The alias GUIDs of a port's VFs, by statement number and against a model of an SA.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod asking;
mod bench;
mod corners;
mod giving_back;
mod model;
mod port;
