//! The service of the `vhca` command.
//!
//! * [`serve`] is the running service: a world driven by the wall clock, and the ways in to it.
//! * [`show`] writes what the PF's inspection data looks like.
//! * [`lab`] puts unmodified Linux guests on a service's VFs.
//! * [`programs`] has programs that use Linux' umad run on a service's ports.

mod credentials;
pub mod lab;
mod packages;
pub mod places;
pub mod programs;
pub mod qemu;
pub mod serve;
mod shell;
pub mod show;
