//! Error numbers as Linux gives them to programs.

use core::fmt;

/// An error number of Linux (`asm-generic/errno.h`), never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// No such file.
    pub const ENOENT: Self = Self(2);
    /// An exchange with the server failed.
    pub const EIO: Self = Self(5);
    /// Not now.
    pub const EAGAIN: Self = Self(11);
    /// No room for another object.
    pub const ENOMEM: Self = Self(12);
    /// No such adapter.
    pub const ENODEV: Self = Self(19);
    /// Not a valid argument.
    pub const EINVAL: Self = Self(22);
    /// The server has no descriptors left.
    pub const ENFILE: Self = Self(23);
    /// Not an operation of this file.
    pub const ENOTTY: Self = Self(25);
    /// The buffer is too small.
    pub const ENOSPC: Self = Self(28);
    /// The peer speaks another protocol.
    pub const EPROTO: Self = Self(71);
    /// The message is too long.
    pub const EMSGSIZE: Self = Self(90);
    /// No answer came.
    pub const ETIMEDOUT: Self = Self(110);

    /// The number as protocol and headers carry it.
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        self.0.unsigned_abs()
    }

    /// The error that a number in a reply stands for; `None` for 0, which is success. A number that
    /// cannot be one is a peer's mistake.
    #[must_use]
    pub fn from_u32(number: u32) -> Option<Self> {
        (number != 0).then(|| match i32::try_from(number) {
            Ok(number) if number < 4096 => Self(number),
            _ => Self::EPROTO,
        })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl core::error::Error for Errno {}
