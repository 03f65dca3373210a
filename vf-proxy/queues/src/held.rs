//! Completion events that moderation holds back.

use std::collections::BTreeMap;

use ib_vtime::{Duration, Instant, TimerKey, TimerQueue};

/// Completion queues whose event is held back, each until a time of its own.
#[derive(Debug)]
pub struct HeldEvents<N> {
    /// Periods of queues that were held since the caller last gave the time.
    fresh: BTreeMap<N, Duration>,
    keys: BTreeMap<N, TimerKey>,
    timers: TimerQueue<N>,
}

impl<N> Default for HeldEvents<N> {
    fn default() -> Self {
        Self {
            fresh: BTreeMap::new(),
            keys: BTreeMap::new(),
            timers: TimerQueue::default(),
        }
    }
}

impl<N: Copy + Ord> HeldEvents<N> {
    /// Holds the event of a queue back for a period that starts with the next call of [`Self::due`], unless it is held already.
    pub fn hold(&mut self, queue: N, period: Duration) {
        if !self.keys.contains_key(&queue) {
            self.fresh.entry(queue).or_insert(period);
        }
    }

    /// Drops the event of a queue.
    pub fn forget(&mut self, queue: N) {
        self.fresh.remove(&queue);
        if let Some(key) = self.keys.remove(&queue) {
            self.timers.cancel(key);
        }
    }

    /// Takes the next queue whose event was held back for its period.
    pub fn due(&mut self, now: Instant) -> Option<N> {
        while let Some((queue, period)) = self.fresh.pop_first() {
            self.keys
                .insert(queue, self.timers.set(now + period, queue));
        }
        let (_, queue) = self.timers.pop_due(now)?;
        self.keys.remove(&queue);
        Some(queue)
    }

    /// Returns the time of the next call of [`Self::due`], or `None` if no event is held back. [`Instant::ZERO`] is at once.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        if self.fresh.is_empty() {
            self.timers.next_deadline()
        } else {
            Some(Instant::ZERO)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn a_period_starts_when_the_caller_gives_the_time() {
        let mut held = HeldEvents::default();
        held.hold(1, Duration::from_micros(10));
        held.hold(2, Duration::from_micros(5));
        assert_eq!(held.next(), Some(Instant::ZERO));
        assert_eq!(held.due(at(3)), None);
        held.hold(1, Duration::from_micros(100));
        assert_eq!(held.next(), Some(at(8)));
        assert_eq!((held.due(at(13)), held.due(at(13))), (Some(2), Some(1)));
        assert_eq!((held.due(at(999)), held.next()), (None, None));
        held.hold(1, Duration::from_micros(1));
        held.forget(1);
        held.hold(2, Duration::from_micros(1));
        assert_eq!(held.due(at(1000)), None);
        held.forget(2);
        assert_eq!((held.due(at(2000)), held.next()), (None, None));
    }
}
