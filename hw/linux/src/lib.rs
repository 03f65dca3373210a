//! A port of a Linux HCA as an [`hca_api::Hca`] of one function, from user space and without a kernel patch.
//!
//! The function has the port's QP1 ([`QpKind::Special`](hca_api::QpKind::Special), [`SpecialQp::Gsi`](hca_api::SpecialQp::Gsi)),
//! which is umad's files: a send request is written to one of them, and a MAD that is read completes a posted receive. State,
//! addresses and tables of the port come from sysfs, which [`LinuxHca::poll`] reads each second.
//!
//! After [`LinuxHca::open_data`] it has queue pairs of RC, UC and UD as well, each of which is one of the host's, by libibverbs. Their
//! regions are of memory in [`MappedFiles`]; asynchronous events take the place of looks at sysfs each second.
//!
//! A port whose link layer is Ethernet (RoCE) has no subnet manager: its GUIDs are addresses of its netdev, which an SA of this crate gives
//! out, and every address vector needs a route.
//!
//! [`LinuxHca`] is a machine over [`PortFiles`]: it has no clock, and for MADs makes no system call itself. [`LinuxHca::open`] opens
//! all files of a port; from then on they are only read and written.

mod addresses;
mod attributes;
mod data;
mod error;
mod files;
mod gsi;
mod hca;
mod local_mad;
mod local_sa;
mod mapped;
mod memory;
mod open;
mod outstanding;
mod pair;
mod queue;
mod shared_receives;
mod sys;
mod transactions;
mod umad;
mod worker;

pub use attributes::PORT;
pub use error::OpenError;
pub use files::OpenFiles;
pub use hca::{LinuxHca, LinuxHcaConfig};
pub use mapped::{MappedFiles, MappedMemory};
pub use open::PortConfig;
pub use umad::{FILES, PortFiles, UNSOLICITED, UmadCounters};

#[cfg(test)]
mod testing;
