//! Queue pairs in error, whose requests complete as flushed.
//!
//! A driver or program that drains a queue pair moves it to the error state, posts one more request on either queue and waits for it
//! (`ib_drain_qp`). No doorbell announces a receive, so the queue pairs are looked at from time to time, less and less often while
//! none has requests.

use core::ops::Bound;
use std::collections::{BTreeSet, VecDeque};

use hca_api::{Hca, HcaError, QpHandle, QpModify, QpState};
use ib_vtime::{Duration, Instant};

/// Time to the next look once a queue pair enters the error state, or has requests flushed.
const SOONEST: Duration = Duration::from_millis(1);

/// The work of a [`FlushTimer`] while queue pairs stay in error.
#[derive(Clone, Copy, Debug)]
pub struct FlushPace {
    /// Queue pairs that are looked at before the next pause.
    pub at_a_time: usize,
    /// Longest pause.
    pub seldom: Duration,
}

/// Moves a queue pair to the error state. The provider completes its requests as flushed, and as many of its receives as it does at a
/// time; of a queue pair that is in that state, the requests that came since.
///
/// # Errors
/// As [`Hca::modify_qp`]. From every state but the reset state there is a way to error.
pub fn fail(hca: &mut dyn Hca, qp: QpHandle) -> Result<(), HcaError> {
    let error = QpModify {
        state: Some(QpState::Error),
        ..QpModify::default()
    };
    hca.modify_qp(qp, &error)
}

/// The times at which queue pairs in error are looked at.
#[derive(Debug)]
pub struct FlushTimer<N> {
    pace: FlushPace,
    qps: BTreeSet<N>,
    /// The last queue pair of the round before.
    cursor: Option<N>,
    /// Queue pairs that are to be looked at before the next pause.
    round: VecDeque<N>,
    /// One of the round had requests.
    flushed: bool,
    /// `None` is at once.
    next: Option<Instant>,
    interval: Duration,
}

/// Requests that a queue pair in error had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// None.
    Nothing,
    /// Some, and all are flushed.
    Some,
    /// Some, and there may be more.
    More,
}

impl<N> FlushTimer<N> {
    /// Creates a timer without queue pairs.
    #[must_use]
    pub const fn new(pace: FlushPace) -> Self {
        Self {
            pace,
            qps: BTreeSet::new(),
            cursor: None,
            round: VecDeque::new(),
            flushed: false,
            next: None,
            interval: SOONEST,
        }
    }
}

impl<N: Copy + Ord> FlushTimer<N> {
    /// Adds a queue pair that entered the error state.
    pub fn add(&mut self, qp: N) {
        self.qps.insert(qp);
        self.hurry();
    }

    /// Removes a queue pair that left it.
    pub fn remove(&mut self, qp: N) {
        self.qps.remove(&qp);
        self.round.retain(|other| *other != qp);
    }

    /// Makes the next look due at once, and the pauses short: there may be requests.
    pub const fn hurry(&mut self) {
        self.next = None;
        self.interval = SOONEST;
    }

    /// Returns `true` if [`Self::take`] is to be called.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Returns the time of the next look, or `None` if no queue pair is in error. [`Instant::ZERO`] is at once.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        if !self.round.is_empty() {
            return Some(Instant::ZERO);
        }
        (!self.qps.is_empty()).then(|| self.next.unwrap_or(Instant::ZERO))
    }

    /// Takes the next queue pair to look at. The caller reports it by [`Self::done`].
    pub fn take(&mut self) -> Option<N> {
        if self.round.is_empty() {
            let behind = self.cursor.map_or(Bound::Unbounded, Bound::Excluded);
            let ahead = self.qps.range((behind, Bound::Unbounded));
            let around = self.qps.iter().take_while(|qp| Some(**qp) <= self.cursor);
            self.round = ahead
                .chain(around)
                .take(self.pace.at_a_time)
                .copied()
                .collect();
            self.cursor = self.round.back().copied();
        }
        self.round.pop_front()
    }

    /// Notes the requests that a queue pair had. One with more is looked at again in this round; a pause follows the round.
    pub fn done(&mut self, now: Instant, qp: N, found: Found) {
        self.flushed |= found != Found::Nothing;
        if found == Found::More {
            self.round.push_back(qp);
        }
        if self.round.is_empty() {
            let longer = self.interval.saturating_mul(2).min(self.pace.seldom);
            let flushed = core::mem::take(&mut self.flushed);
            self.interval = if flushed { SOONEST } else { longer };
            self.next = Some(now + self.interval);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: FlushPace = FlushPace {
        at_a_time: 64,
        seldom: Duration::from_millis(256),
    };

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// Looks at a whole round, finds the same in each queue pair, and returns the queue pairs.
    fn look(timer: &mut FlushTimer<u32>, now: Instant, found: Found) -> Vec<u32> {
        let mut seen = Vec::new();
        while timer.is_due(now) {
            let qp = timer.take().unwrap();
            timer.done(now, qp, found);
            seen.push(qp);
        }
        seen
    }

    #[test]
    fn queues_that_stay_empty_are_looked_at_less_and_less_often() {
        let mut timer = FlushTimer::new(PACE);
        assert_eq!(timer.due(), None);
        timer.add(7);
        assert_eq!(look(&mut timer, at(0), Found::Nothing), [7]);
        assert_eq!(timer.due(), Some(at(2)));
        for n in 0..20 {
            look(&mut timer, at(1000 * n), Found::Nothing);
        }
        assert_eq!(timer.due(), Some(at(19_256)));
        look(&mut timer, at(20_000), Found::Some);
        assert_eq!(timer.due(), Some(at(20_001)));
        look(&mut timer, at(20_001), Found::Nothing);
        timer.hurry();
        assert!(timer.is_due(at(20_001)));
        timer.remove(7);
        assert_eq!(timer.due(), None);
    }

    #[test]
    fn every_queue_pair_has_its_turn() {
        let mut timer = FlushTimer::new(PACE);
        (1..=100).for_each(|qp| timer.add(qp));
        let first = look(&mut timer, at(0), Found::Nothing);
        assert_eq!(first, (1..=64).collect::<Vec<_>>());
        let second = look(&mut timer, at(1000), Found::Nothing);
        assert_eq!(second, (65..=100).chain(1..=28).collect::<Vec<_>>());
    }

    #[test]
    fn a_queue_pair_with_more_is_looked_at_again_without_a_pause() {
        let mut timer = FlushTimer::new(PACE);
        (1..=3).for_each(|qp| timer.add(qp));
        for (qp, found) in [(1, Found::More), (2, Found::Nothing), (3, Found::Nothing)] {
            assert_eq!(timer.take(), Some(qp));
            timer.done(at(0), qp, found);
        }
        assert!(timer.is_due(at(0)));
        assert_eq!(look(&mut timer, at(0), Found::Some), [1]);
        assert_eq!(timer.due(), Some(at(1)));
    }
}
