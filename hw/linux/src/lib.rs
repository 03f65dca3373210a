//! A port of a Linux HCA as an [`hca_api::Hca`] of one function, from user space and without a kernel patch.
//!
//! The function has the port's QP1 ([`QpKind::Special`](hca_api::QpKind::Special), [`SpecialQp::Gsi`](hca_api::SpecialQp::Gsi)),
//! which is umad's files: a send request is written to one of them, and a MAD that is read completes a posted receive. State,
//! addresses and tables of the port come from sysfs, which [`LinuxHca::poll`] reads each second. The function has no other queue
//! pairs yet, hence no data.
//!
//! [`LinuxHca`] is a machine over [`PortFiles`]: it has no clock and makes no system call itself. [`LinuxHca::open`] opens all files of
//! a port; from then on they are only read and written.

mod error;
mod files;
mod gsi;
mod hca;
mod local_mad;
mod memory;
mod open;
mod queue;
mod sys;
mod transactions;
mod umad;

pub use error::OpenError;
pub use files::OpenFiles;
pub use hca::{LinuxHca, LinuxHcaConfig, PORT};
pub use open::PortConfig;
pub use umad::{FILES, PortFiles, UNSOLICITED, UmadCounters};

#[cfg(test)]
mod testing;
