//! Error numbers as Linux gives them to programs.

use core::fmt;

use hca_api::HcaError;

/// An error number of Linux (`asm-generic/errno.h`), never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Self = Self(1);
    /// No such file.
    pub const ENOENT: Self = Self(2);
    /// A signal came first.
    pub const EINTR: Self = Self(4);
    /// The device failed.
    pub const EIO: Self = Self(5);
    /// Not now.
    pub const EAGAIN: Self = Self(11);
    /// No room for another object.
    pub const ENOMEM: Self = Self(12);
    /// The memory is not accessible.
    pub const EFAULT: Self = Self(14);
    /// The object is in use.
    pub const EBUSY: Self = Self(16);
    /// No such device.
    pub const ENODEV: Self = Self(19);
    /// Not a valid argument.
    pub const EINVAL: Self = Self(22);
    /// The service has no descriptors left.
    pub const ENFILE: Self = Self(23);
    /// Not an operation of this file.
    pub const ENOTTY: Self = Self(25);
    /// The answer does not fit.
    pub const ENOSPC: Self = Self(28);
    /// Unknown command.
    pub const ENOSYS: Self = Self(38);
    /// The peer speaks another protocol.
    pub const EPROTO: Self = Self(71);
    /// The message is too long.
    pub const EMSGSIZE: Self = Self(90);
    /// Protocol not supported.
    pub const EPROTONOSUPPORT: Self = Self(93);
    /// Not supported by the device.
    pub const EOPNOTSUPP: Self = Self(95);
    /// Another id has the port.
    pub const EADDRINUSE: Self = Self(98);
    /// The address is another device's.
    pub const EADDRNOTAVAIL: Self = Self(99);
    /// The membership of a multicast group has changed.
    pub const ENETRESET: Self = Self(102);
    /// No answer came.
    pub const ETIMEDOUT: Self = Self(110);
    /// There is no path.
    pub const EHOSTUNREACH: Self = Self(113);

    /// Returns the number as events of the RDMA CM carry it: negative.
    #[must_use]
    pub const fn status(self) -> i32 {
        -self.0
    }

    /// Returns the number as headers and protocols carry it.
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        self.0.unsigned_abs()
    }

    /// Returns the error that a number in a reply stands for; `None` for 0, which is success. A number that cannot be one is
    /// a mistake of the peer.
    #[must_use]
    pub fn from_u32(number: u32) -> Option<Self> {
        (number != 0).then(|| match i32::try_from(number) {
            Ok(number) if number < 4096 => Self(number),
            _ => Self::EPROTO,
        })
    }
}

impl From<HcaError> for Errno {
    /// Returns what the kernel's uverbs answers for a verb that the provider refuses.
    fn from(error: HcaError) -> Self {
        match error {
            HcaError::InsufficientResources | HcaError::QueueFull => Self::ENOMEM,
            HcaError::InUse | HcaError::SpecialQpTaken => Self::EBUSY,
            HcaError::PermissionDenied => Self::EPERM,
            HcaError::Dma(_) => Self::EFAULT,
            HcaError::Unsupported => Self::EOPNOTSUPP,
            HcaError::DeviceFailed => Self::EIO,
            _ => Self::EINVAL,
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl core::error::Error for Errno {}
