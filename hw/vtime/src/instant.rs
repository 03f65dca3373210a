//! A point in time, as the caller counts it.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since an origin that the caller chose.
///
/// Arithmetic saturates at [`Instant::FAR_FUTURE`] (584 years), which serves as "never".
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The caller's origin.
    pub const ZERO: Self = Self(0);
    /// The end of time.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The instant so many nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant so many milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// The beginning of a tick, for whoever counts ticks of 2^`bits` ns.
    #[must_use]
    pub const fn from_ticks(ticks: u64, bits: u32) -> Self {
        if ticks > u64::MAX >> bits {
            return Self::FAR_FUTURE;
        }
        Self(ticks << bits)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the origin.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).map_or(u64::MAX, |n| self.0.saturating_add(n)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instant({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn adding_saturates_at_the_far_future() {
        assert_eq!(Instant::from_nanos(5) + Duration::MAX, Instant::FAR_FUTURE);
        assert_eq!(
            Instant::FAR_FUTURE + Duration::from_nanos(1),
            Instant::FAR_FUTURE
        );
    }

    #[test]
    fn a_tick_beyond_the_far_future_is_there() {
        assert_eq!(Instant::from_ticks(3, 4), Instant::from_nanos(48));
        let last = u64::MAX >> 20;
        let began = Instant::from_nanos(u64::MAX << 20);
        assert_eq!(Instant::from_ticks(last, 20), began);
        assert_eq!(Instant::from_ticks(last + 1, 20), Instant::FAR_FUTURE);
        assert_eq!(Instant::from_ticks(u64::MAX, 20), Instant::FAR_FUTURE);
    }

    #[test]
    fn a_difference_is_never_negative() {
        assert_eq!(
            Instant::from_millis(1) - Instant::from_millis(2),
            Duration::ZERO
        );
        assert_eq!(
            Instant::from_millis(3) - Instant::from_millis(2),
            Duration::from_millis(1)
        );
    }

    #[test]
    fn an_instant_prints_seconds_with_nanoseconds() {
        assert_eq!(
            Instant::from_nanos(12_000_000_034).to_string(),
            "12.000000034s"
        );
    }
}
