//! The service of the `vhca` command.
//!
//! * [`serve`] is the running service: a world driven by the wall clock, and the ways in to it.
//! * [`show`] writes what the PF's inspection data looks like.

mod credentials;
pub mod serve;
pub mod show;
