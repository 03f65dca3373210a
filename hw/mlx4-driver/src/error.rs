//! Errors of a driver.

use alloc::string::String;

use thiserror::Error;

/// Why the guest's kernel would not go on, or what a call of a program would fail with.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DriverError {
    /// The registers read as all ones: there is no device.
    #[error("the device is gone")]
    Gone,
    /// The flags say that the channel is offline.
    #[error("communication channel is offline")]
    Offline,
    /// RESET was not answered: the kernel would try again later.
    #[error("RESET was not answered in time")]
    Deferred,
    /// The interface revision is not one that the driver knows.
    #[error("slave driver version is not supported by the master: revision {0}")]
    Revision(u8),
    /// A command of the channel was not answered: the driver enters its error state.
    #[error("communication channel command {command:#x} (op {opcode:#x}) timed out")]
    TimedOut {
        /// The channel's command.
        command: u8,
        /// The opcode posted with it.
        opcode: u16,
    },
    /// The device signalled an internal error.
    #[error("the device reports an internal error")]
    Internal,
    /// A command failed.
    #[error("command {opcode:#x} failed with status {status:#x}")]
    Command {
        /// The opcode.
        opcode: u16,
        /// The device's status.
        status: u8,
    },
    /// A value of a query is not one that the driver goes on with.
    #[error("{0}")]
    Refused(String),
    /// The device did something at which a kernel would crash or lose track.
    #[error("the kernel would fail here: {0}")]
    Oops(String),
    /// The reset handshake failed, on which the kernel calls `BUG()`.
    #[error("VF reset failed")]
    ResetFailed,
    /// The caller asks for more than there is, or in the wrong state.
    #[error("{0}")]
    Usage(&'static str),
}

impl DriverError {
    /// The status, if a command failed.
    #[must_use]
    pub const fn status(&self) -> Option<u8> {
        match self {
            Self::Command { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Makes an [`DriverError::Oops`].
pub(super) fn oops(what: impl Into<String>) -> DriverError {
    DriverError::Oops(what.into())
}

/// Makes an [`DriverError::Refused`].
pub(super) fn refused(what: impl Into<String>) -> DriverError {
    DriverError::Refused(what.into())
}
