//! How often something may happen.

use core::time::Duration;

use crate::Instant;

/// A rate in the long run, and how much may happen at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds per token; 0 for no limit.
    interval: u64,
    /// Nanoseconds that a bucket of which one token is left lacks.
    ahead: u64,
}

impl Rate {
    /// No limit.
    pub const UNLIMITED: Self = Self {
        interval: 0,
        ahead: 0,
    };

    /// So many a second, or 0 for no limit. A burst of 0 is as one of 1.
    #[must_use]
    pub const fn per_second(tokens: u32, burst: u32) -> Self {
        match 1_000_000_000_u64.checked_div(tokens as u64) {
            Some(interval) => Self::of_nanos(interval, burst),
            None => Self::UNLIMITED,
        }
    }

    /// One every so often. A burst of 0 is as one of 1.
    #[must_use]
    pub fn every(interval: Duration, burst: u32) -> Self {
        Self::of_nanos(
            u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX),
            burst,
        )
    }

    const fn of_nanos(interval: u64, burst: u32) -> Self {
        Self {
            interval,
            ahead: interval.saturating_mul(burst.saturating_sub(1) as u64),
        }
    }
}

/// A token bucket, kept as the one time at which it will be full again: the "theoretical arrival
/// time" of the generic cell rate algorithm (ITU-T I.371).
///
/// The rate is given with each call, so that many buckets can share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBucket {
    full_at: Instant,
}

impl TokenBucket {
    /// A full one.
    #[must_use]
    pub const fn full() -> Self {
        Self {
            full_at: Instant::ZERO,
        }
    }

    /// When there is a token.
    #[must_use]
    pub const fn ready_at(&self, rate: &Rate) -> Instant {
        Instant::from_nanos(self.full_at.as_nanos().saturating_sub(rate.ahead))
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Instant, rate: &Rate) -> bool {
        let ready = self.ready_at(rate) <= now;
        if ready {
            self.full_at = self.full_at.max(now) + Duration::from_nanos(rate.interval);
        }
        ready
    }

    /// Goes on with another rate. What the bucket lacks it lacks still, counted in tokens.
    pub fn change_rate(&mut self, now: Instant, from: &Rate, to: &Rate) {
        let lacking = self.full_at.saturating_duration_since(now).as_nanos();
        let tokens = lacking.div_ceil(u128::from(from.interval.max(1)));
        let nanos = tokens.saturating_mul(u128::from(to.interval));
        self.full_at = now + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn taken(bucket: &mut TokenBucket, now: Instant, rate: &Rate) -> usize {
        (0..100).filter(|_| bucket.take(now, rate)).count()
    }

    #[test]
    fn a_burst_passes_then_one_per_interval() {
        let rate = Rate::per_second(10, 3);
        let mut bucket = TokenBucket::full();
        assert_eq!(taken(&mut bucket, Instant::ZERO, &rate), 3);
        assert_eq!(taken(&mut bucket, Instant::from_millis(99), &rate), 0);
        assert_eq!(taken(&mut bucket, Instant::from_millis(100), &rate), 1);
        assert_eq!(taken(&mut bucket, Instant::from_millis(10_000), &rate), 3);
        assert_eq!(bucket.ready_at(&rate), Instant::from_millis(10_100));
    }

    #[test]
    fn a_bucket_without_limit_is_always_ready() {
        let mut bucket = TokenBucket::full();
        let rate = Rate::per_second(0, 5);
        assert_eq!(taken(&mut bucket, Instant::ZERO, &rate), 100);
    }

    #[test]
    fn a_burst_of_0_is_as_one_of_1() {
        let rate = Rate::every(Duration::from_millis(1), 0);
        let mut bucket = TokenBucket::full();
        assert_eq!(taken(&mut bucket, Instant::ZERO, &rate), 1);
        assert_eq!(taken(&mut bucket, Instant::from_millis(1), &rate), 1);
    }

    #[test]
    fn tokens_that_lack_when_the_rate_changes_lack_still() {
        let (slow, fast) = (Rate::per_second(10, 4), Rate::per_second(1_000, 4));
        let mut bucket = TokenBucket::full();
        assert_eq!(taken(&mut bucket, Instant::ZERO, &slow), 4);
        bucket.change_rate(Instant::ZERO, &slow, &fast);
        assert!(!bucket.take(Instant::ZERO, &fast));
        assert!(bucket.take(Instant::from_millis(1), &fast));
        bucket.change_rate(Instant::from_millis(1), &fast, &Rate::UNLIMITED);
        assert_eq!(
            taken(&mut bucket, Instant::from_millis(1), &Rate::UNLIMITED),
            100
        );
    }

    proptest! {
        /// In any window of time no more passes than the burst and what the window brings.
        #[test]
        fn no_window_has_more_than_its_burst_and_its_rate(
            burst in 1_u32..5,
            gaps in prop::collection::vec(0_u64..300, 1..80),
        ) {
            let rate = Rate::every(Duration::from_nanos(100), burst);
            let (mut bucket, mut now) = (TokenBucket::full(), 0);
            let mut passed = Vec::new();
            for gap in gaps {
                now += gap;
                let due = bucket.ready_at(&rate) <= Instant::from_nanos(now);
                prop_assert_eq!(bucket.take(Instant::from_nanos(now), &rate), due);
                if due {
                    passed.push(now);
                }
            }
            for (first, &begin) in passed.iter().enumerate() {
                for (count, &end) in (1_u64..).zip(&passed[first..]) {
                    prop_assert!(count <= u64::from(burst) + (end - begin) / 100);
                }
            }
        }
    }
}
