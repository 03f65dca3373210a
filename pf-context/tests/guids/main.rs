//! The alias GUIDs of a port's VFs, by statement number.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod asking;
mod bench;
mod corners;
mod giving_back;
mod port;
