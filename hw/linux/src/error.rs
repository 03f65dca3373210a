//! Errors, each with the next step.

use thiserror::Error;

/// Why a port cannot be opened, and the next step.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no such device.
    #[error(
        "there is no RDMA device {device} here: {}",
        if others.is_empty() {
            "no driver has one (rdma link lists them; modprobe mlx4_ib or mlx5_ib)".to_owned()
        } else {
            format!("the devices are {}", others.join(", "))
        }
    )]
    NoDevice {
        /// Its name.
        device: String,
        /// Names of the devices that there are.
        others: Vec<String>,
    },
    /// The device has no such port.
    #[error("{device} has no port {port}: rdma link lists the ports")]
    NoPort {
        /// Name of the device.
        device: String,
        /// The port.
        port: u8,
    },
    /// The link of the port is neither InfiniBand nor Ethernet.
    #[error(
        "the link layer of port {port} of {device} is {link_layer}: choose a port of InfiniBand or Ethernet (ibstat)"
    )]
    LinkLayer {
        /// Name of the device.
        device: String,
        /// The port.
        port: u8,
        /// Its link layer.
        link_layer: String,
    },
    /// The port has no umad file.
    #[error("port {port} of {device} has no umad file: as root, modprobe ib_umad")]
    NoUmad {
        /// Name of the device.
        device: String,
        /// The port.
        port: u8,
    },
    /// The user may not open the umad file.
    #[error(
        "{0} may be opened by root only: run this as root, or as root chown the file to the user of this program"
    )]
    Denied(String),
    /// Another agent takes Send of the CM.
    #[error(
        "the CM of {0} is taken: ib_cm is loaded, or another program has it. As root, modprobe -r ib_ipoib rdma_ucm rdma_cm ib_cm; or serve without CM"
    )]
    CmTaken(String),
    /// Another agent takes Report of the SA.
    #[error(
        "the reports of the SA to {device} are taken by another program, as srp_daemon or a second service on this port does: fuser -v {umad} names it"
    )]
    ReportTaken {
        /// Name of the device, and its port behind a slash.
        device: String,
        /// Path of the umad file.
        umad: String,
    },
    /// sysfs does not show state and addresses of the port.
    #[error(
        "sysfs does not show state and addresses of {0}: on RoCE, give its netdev an address (ip address add); else dmesg may say why"
    )]
    Unreadable(String),
    /// The process may not open that many files.
    #[error("the port takes some {0} open files, more than this process may have: ulimit -n {1}")]
    TooManyFiles(usize, usize),
    /// libibverbs is not installed.
    #[error(
        "data needs libibverbs, and it cannot be loaded: install the package ibverbs-providers; or open the port for MADs alone"
    )]
    NoLibrary,
    /// libibverbs does not list the device.
    #[error(
        "libibverbs has no device {0}: load ib_uverbs (modprobe ib_uverbs), and install the package ibverbs-providers for its driver"
    )]
    NoVerbs(String),
    /// The kernel refuses something else.
    #[error("{what}: {why}; dmesg may say more")]
    Kernel {
        /// The refused thing.
        what: String,
        /// The kernel's words.
        why: std::io::Error,
    },
}
