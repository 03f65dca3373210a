//! One captured frame.

use core::fmt;

use ib_vtime::Instant;

use crate::format::ERF_HEADER_LEN;

/// The longest frame a record can hold: the record's 16-bit length counts its own 16-byte header.
pub const MAX_FRAME_LEN: usize = u16::MAX as usize - ERF_HEADER_LEN;

/// The capture interface of a frame, 0 to 3: Wireshark shows and filters it (`erf.flags.cap`).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interface(u8);

impl Interface {
    /// The highest interface.
    pub const MAX: Self = Self(3);

    /// Makes the interface, if it is in range.
    #[must_use]
    pub const fn new(value: u8) -> Option<Self> {
        if value <= Self::MAX.0 {
            Some(Self(value))
        } else {
            None
        }
    }

    /// Makes the interface from the low two bits of `value`; the rest is ignored.
    #[must_use]
    pub const fn from_low_bits(value: u8) -> Self {
        Self(value & Self::MAX.0)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interface({})", self.0)
    }
}

/// A frame with the time and place of its capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameRecord {
    /// When, counted from the origin of whoever captured (in a file: since 1970 by convention).
    pub time: Instant,
    /// Where.
    pub interface: Interface,
    /// The frame from its LRH through its VCRC.
    pub bytes: Vec<u8>,
}
