//! A port of a Linux HCA as an [`hca_api::Hca`] of one function, from user space and without a kernel patch.
//!
//! The function has the port's QP1 ([`QpKind::Special`](hca_api::QpKind::Special), [`SpecialQp::Gsi`](hca_api::SpecialQp::Gsi)),
//! which is umad's files: a send request is written to one of them, and a MAD that is read completes a posted receive. State,
//! addresses and tables of the port come from sysfs, which [`LinuxHca::poll`] reads each second. The function has no other queue
//! pairs yet, hence no data.
//!
//! [`LinuxHca`] is a machine over [`PortFiles`]: it has no clock and makes no system call itself.
mod gsi;
mod hca;
mod local_mad;
mod memory;
mod queue;
mod transactions;
mod umad;

pub use hca::{LinuxHca, LinuxHcaConfig, PORT};
pub use umad::{FILES, PortFiles, UNSOLICITED, UmadCounters};

#[cfg(test)]
mod testing;
