//! Timers, retry counters and sizes of a connection, as their codes stand in contexts and packets.

use ib_vtime::Duration;
use ib_wire::Mtu;

/// ACK timeout as the IBA code: 4.096 µs × 2^code, 0 waits for ever (IBA 9.7.6.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// Makes the timeout of a 5-bit code; higher bits are ignored.
    #[must_use]
    pub const fn from_low_bits(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// Returns the time after which an unanswered packet is sent again, or `None` for never.
    #[must_use]
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            code => Some(Duration::from_nanos(4096 << code)),
        }
    }
}

/// Minimum time to wait after an RNR NAK, as the 5-bit code of IBA 9.7.5.2.8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Units of 10 µs by code.
    const TENS_OF_MICROSECONDS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// Makes the timer of a 5-bit code; higher bits are ignored.
    #[must_use]
    pub const fn from_low_bits(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// Returns the code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time to wait.
    #[must_use]
    pub fn duration(self) -> Duration {
        let tens = Self::TENS_OF_MICROSECONDS[usize::from(self.0)];
        Duration::from_micros(u64::from(tens) * 10)
    }
}

/// Transport retries before a request fails, 0 to 7, all finite (IBA 9.9.2.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryCount(u8);

impl RetryCount {
    /// Makes the count of its 3 bits; higher bits are ignored.
    #[must_use]
    pub const fn from_low_bits(count: u8) -> Self {
        Self(count & 7)
    }

    /// Takes one retry. Returns `false` if none is left.
    pub(crate) const fn take(&mut self) -> bool {
        let left = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        left
    }
}

/// RNR retries before a request fails: 0 to 6, or 7 for ever (IBA 9.9.2.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RnrRetryCount(u8);

impl RnrRetryCount {
    /// Retries without end.
    pub const INFINITE: Self = Self(7);

    /// Makes the count of its 3 bits; higher bits are ignored.
    #[must_use]
    pub const fn from_low_bits(count: u8) -> Self {
        Self(count & 7)
    }

    /// Takes one retry. Returns `false` if none is left.
    pub(crate) const fn take(&mut self) -> bool {
        let left = self.0 > 0;
        if self.0 != Self::INFINITE.0 {
            self.0 = self.0.saturating_sub(1);
        }
        left
    }
}

/// Path MTU: bytes of payload of every packet of a message but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu(u16);

impl PathMtu {
    /// Makes the path MTU of a legal code.
    #[must_use]
    pub fn new(code: Mtu) -> Option<Self> {
        Some(Self(u16::try_from(code.bytes()?).ok()?))
    }

    /// Returns the payload of a full packet, in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.0 as u32
    }

    /// Returns the code, as PortInfo has it (IBA 14.2.5.6).
    #[must_use]
    pub fn code(self) -> Mtu {
        // The first one, 1, is of 256 bytes, and each has twice the bytes of the one before.
        Mtu::new(u8::try_from(self.0.trailing_zeros().saturating_sub(7)).unwrap_or(0))
    }

    /// Returns the packets of a message of `len` bytes: at least one.
    #[must_use]
    pub const fn packets(self, len: u32) -> u32 {
        match len.div_ceil(self.bytes()) {
            0 => 1,
            packets => packets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t017_the_ack_timeout_doubles_with_each_code_and_0_is_never() {
        assert_eq!(AckTimeout::from_low_bits(0).duration(), None);
        let first = AckTimeout::from_low_bits(1).duration();
        assert_eq!(first, Some(Duration::from_nanos(8192)));
        let last = AckTimeout::from_low_bits(0xff).duration();
        assert_eq!(last, Some(Duration::from_nanos(4096 << 31)));
    }

    #[test]
    fn t020_rnr_timers_are_those_of_the_table() {
        let of = |code| RnrTimer::from_low_bits(code).duration();
        assert_eq!(of(0), Duration::from_micros(655_360));
        assert_eq!(of(1), Duration::from_micros(10));
        assert_eq!(of(13), Duration::from_micros(960));
        assert_eq!(of(25), Duration::from_micros(61_440));
        assert_eq!(of(31), Duration::from_micros(491_520));
        for code in 1..31 {
            assert!(of(code) < of(code + 1));
        }
    }

    #[test]
    fn t018_retries_are_finite_and_seven_rnr_retries_are_not() {
        let mut retries = RetryCount::from_low_bits(7);
        assert_eq!((0..9).filter(|_| retries.take()).count(), 7);
        let mut rnr = RnrRetryCount::from_low_bits(6);
        assert_eq!((0..9).filter(|_| rnr.take()).count(), 6);
        let mut for_ever = RnrRetryCount::INFINITE;
        assert!((0..1000).all(|_| for_ever.take()));
        assert!(!RnrRetryCount::from_low_bits(0).take());
    }

    #[test]
    fn t002_a_message_takes_one_psn_for_each_path_mtu_and_at_least_one() {
        let pmtu = PathMtu::new(Mtu::MTU_256).unwrap();
        let packets = [0, 1, 256, 257, 1 << 31].map(|len| pmtu.packets(len));
        assert_eq!(packets, [1, 1, 1, 2, 1 << 23]);
        assert_eq!(PathMtu::new(Mtu::new(0)), None);
    }
}
