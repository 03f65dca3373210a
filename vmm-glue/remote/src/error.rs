//! Reasons why there is no device, or why it has failed.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;
use vhca_vfio_user_codec::{Command, ProtocolError, ReplyError};

/// Why the connection to a service is over.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The service closed the connection, or has ended.
    #[error("the service closed the connection, or has ended")]
    Closed,
    /// The service did not take a message, or did not reply to it, in time.
    #[error("the service did not answer within {0:?}")]
    TimedOut(Duration),
    /// The socket failed.
    #[error("the socket to the service failed: {0}")]
    Socket(Errno),
    /// Messages of the service cannot be understood.
    #[error("the service does not speak vfio-user: {0}")]
    Protocol(#[from] ProtocolError),
    /// A reply does not fit its command.
    #[error("the service answers {0:?} in a way that makes no sense")]
    Malformed(Command),
    /// The service refused a command that no server refuses.
    #[error("the service refuses {0:?}: {1}")]
    Refused(Command, Errno),
}

impl LinkError {
    /// Returns the error for a reply to a command.
    pub(crate) const fn of(command: Command, error: ReplyError) -> Self {
        match error {
            ReplyError::Refused(errno) => Self::Refused(command, errno),
            ReplyError::Malformed => Self::Malformed(command),
        }
    }
}

/// Why there is no device.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// No service listens at the socket, or it does not admit this process.
    #[error(
        "cannot connect to {path}: {error}; does vhca serve --vfio-user run, and may this user connect (--access)?"
    )]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The error of the host.
        error: io::Error,
    },
    /// Another VMM has the VF.
    #[error("another VMM has this VF; each socket serves one VMM at a time")]
    InUse,
    /// The service has no room for interrupts of another VMM just now.
    #[error("the service cannot signal interrupts of another VMM now; its log says why")]
    Busy,
    /// A region of the guest's memory is in no file, so that no other process can map it.
    #[error(
        "guest memory at {address:#x} ({size} bytes) is in no file, and another process cannot map it: make it of a memfd, \
         mapped shared (GuestMemoryMmap::from_ranges_with_files)"
    )]
    NoFile {
        /// Guest-physical address of the region.
        address: u64,
        /// Its bytes.
        size: u64,
    },
    /// The service does not map a region of the guest's memory.
    #[error("the service does not map guest memory at {address:#x}: {error}")]
    Memory {
        /// Guest-physical address of the region.
        address: u64,
        /// The error of the service.
        error: Errno,
    },
    /// The socket serves something else than a PCI function with MSI-X and 64-bit registers.
    #[error("the socket serves no VF: {0}")]
    NoVf(&'static str),
    /// The host gives no eventfds or no thread.
    #[error("the host gives no eventfds or thread for the interrupts of a device: {0}")]
    Host(#[from] io::Error),
    /// The connection failed.
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl From<Errno> for AttachError {
    fn from(error: Errno) -> Self {
        Self::Host(error.into())
    }
}
