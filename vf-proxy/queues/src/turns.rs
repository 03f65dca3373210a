//! The order in which send queues are served.
//!
//! A guest writes its rings while they are read, so it can post for as long as it is served, and the caller polls until nothing is
//! left to do at that time. An instant has a bounded number of turns, and later instants the rest, or one guest would keep all others
//! waiting.

use core::ops::Bound;
use std::collections::BTreeSet;

use ib_vtime::{Duration, Instant};

/// Turns of one instant, of all queues together.
pub const TURNS: u32 = 256;

/// Time from one instant with turns to the next.
const TICK: Duration = Duration::from_micros(1);

/// Queues that may have requests, served in turn.
#[derive(Debug)]
pub struct Turns<N> {
    waiting: BTreeSet<N>,
    /// The queue that was served last.
    cursor: Option<N>,
    now: Instant,
    /// Turns taken at that time.
    taken: u32,
}

impl<N> Default for Turns<N> {
    fn default() -> Self {
        Self {
            waiting: BTreeSet::new(),
            cursor: None,
            now: Instant::ZERO,
            taken: 0,
        }
    }
}

impl<N: Copy + Ord> Turns<N> {
    /// Adds a queue that may have requests.
    pub fn add(&mut self, queue: N) {
        self.waiting.insert(queue);
    }

    /// Removes a queue that is gone.
    pub fn remove(&mut self, queue: N) {
        self.waiting.remove(&queue);
    }

    /// Takes the next queue, if one waits and there are turns left at this time.
    pub fn take(&mut self, now: Instant) -> Option<N> {
        if self.now != now {
            (self.now, self.taken) = (now, 0);
        }
        if self.taken == TURNS {
            return None;
        }
        let behind = self.cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let ahead = self.waiting.range((behind, Bound::Unbounded)).next();
        let queue = *ahead.or_else(|| self.waiting.first())?;
        self.waiting.remove(&queue);
        self.cursor = Some(queue);
        self.taken += 1;
        Some(queue)
    }

    /// Returns the time at which the queues that wait have turns, or `None` if no queue waits. [`Instant::ZERO`] is at once.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        let at = if self.taken < TURNS {
            Instant::ZERO
        } else {
            self.now + TICK
        };
        (!self.waiting.is_empty()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn turns_go_round_and_come_to_an_end() {
        let mut turns = Turns::default();
        assert_eq!((turns.take(NOW), turns.next()), (None, None));
        let mut taken = [0; 3];
        for _ in 0..TURNS {
            (0..3).for_each(|queue| turns.add(queue));
            assert_eq!(turns.next(), Some(Instant::ZERO));
            taken[turns.take(NOW).unwrap()] += 1;
        }
        assert!(taken.iter().all(|taken| *taken >= TURNS / 3), "{taken:?}");
        assert_eq!(turns.take(NOW), None);
        let next = turns.next().unwrap();
        assert!(next > NOW);
        assert!(turns.take(next).is_some());
        assert_eq!(turns.next(), Some(Instant::ZERO));
    }

    #[test]
    fn a_queue_that_is_gone_has_no_turn() {
        let mut turns = Turns::default();
        turns.add(7);
        turns.add(u32::MAX);
        turns.remove(7);
        assert_eq!(turns.take(NOW), Some(u32::MAX));
        assert_eq!((turns.take(NOW), turns.next()), (None, None));
    }
}
