//! Deadlines in order of time, then of setting.

use alloc::collections::BTreeMap;

use crate::Instant;

/// Names a timer that was set; stays distinct for the life of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerKey {
    deadline: Instant,
    order: u64,
}

impl TimerKey {
    /// When the timer fires.
    #[must_use]
    pub const fn deadline(self) -> Instant {
        self.deadline
    }
}

/// A queue of timers that carry a `T`.
///
/// Setting, cancelling and firing cost O(log n). Timers with the same deadline fire in the order
/// in which they were set. A cancelled timer is gone at once: nothing is left behind to be skipped
/// later, so the queue's size is the number of live timers.
#[derive(Clone, Debug)]
pub struct TimerQueue<T> {
    timers: BTreeMap<TimerKey, T>,
    next_order: u64,
}

impl<T> TimerQueue<T> {
    /// An empty queue.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            timers: BTreeMap::new(),
            next_order: 0,
        }
    }

    /// Sets a timer.
    pub fn set(&mut self, deadline: Instant, value: T) -> TimerKey {
        let key = TimerKey {
            deadline,
            order: self.next_order,
        };
        self.next_order += 1;
        self.timers.insert(key, value);
        key
    }

    /// Takes a timer out before it fires. `None` if it fired or was cancelled already.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        self.timers.remove(&key)
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|(key, _)| key.deadline)
    }

    /// Takes the earliest timer out if it is due at `now`. Call until it gives `None`.
    pub fn pop_due(&mut self, now: Instant) -> Option<(TimerKey, T)> {
        let entry = self.timers.first_entry()?;
        (entry.key().deadline <= now).then(|| entry.remove_entry())
    }

    /// Live timers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.timers.len()
    }

    /// Whether no timer is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }
}

impl<T> Default for TimerQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn drain(queue: &mut TimerQueue<u32>, now: Instant) -> Vec<u32> {
        core::iter::from_fn(|| queue.pop_due(now))
            .map(|(_, value)| value)
            .collect()
    }

    #[test]
    fn equal_deadlines_fire_in_the_order_of_setting() {
        let mut queue = TimerQueue::new();
        let at = Instant::from_millis(5);
        queue.set(at, 1);
        queue.set(Instant::from_millis(4), 2);
        queue.set(at, 3);
        assert_eq!(drain(&mut queue, at), [2, 1, 3]);
    }

    #[test]
    fn a_timer_does_not_fire_before_its_deadline() {
        let mut queue = TimerQueue::new();
        queue.set(Instant::from_nanos(10), 1);
        assert_eq!(queue.pop_due(Instant::from_nanos(9)), None);
        assert_eq!(queue.next_deadline(), Some(Instant::from_nanos(10)));
        assert_eq!(drain(&mut queue, Instant::from_nanos(10)), [1]);
    }

    #[test]
    fn a_cancelled_timer_leaves_nothing() {
        let mut queue = TimerQueue::new();
        let key = queue.set(Instant::from_nanos(10), 1);
        assert_eq!(queue.cancel(key), Some(1));
        assert_eq!(queue.cancel(key), None);
        assert!(queue.is_empty());
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn a_million_timers_fire_in_order() {
        let mut queue = TimerQueue::new();
        // A full-period generator modulo 2^20 visits every deadline once in scrambled order.
        let mut at: u64 = 1;
        for _ in 0..1 << 20 {
            at = at.wrapping_mul(5).wrapping_add(3) & ((1 << 20) - 1);
            queue.set(Instant::from_nanos(at), 0);
        }
        assert_eq!(queue.len(), 1 << 20);
        let mut last = None;
        while let Some((key, _)) = queue.pop_due(Instant::FAR_FUTURE) {
            assert!(last < Some(key.deadline()));
            last = Some(key.deadline());
        }
        assert!(queue.is_empty());
    }

    proptest! {
        #[test]
        fn the_queue_is_a_stable_sort_of_what_is_not_cancelled(
            timers in prop::collection::vec((0_u64..20, any::<bool>()), 0..60)
        ) {
            let mut queue = TimerQueue::new();
            let mut model = Vec::new();
            let mut cancelled = Vec::new();
            for (i, (at, cancel)) in (0_u32..).zip(&timers) {
                let key = queue.set(Instant::from_nanos(*at), i);
                if *cancel { cancelled.push(key) } else { model.push((*at, i)) }
            }
            for key in cancelled {
                queue.cancel(key);
            }
            model.sort_by_key(|(at, _)| *at);
            let expected: Vec<u32> = model.into_iter().map(|(_, i)| i).collect();
            prop_assert_eq!(drain(&mut queue, Instant::FAR_FUTURE), expected);
        }
    }
}
