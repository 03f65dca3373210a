//! Queue pairs in error, where what is posted completes as flushed.
//!
//! A driver that drains a queue pair moves it to the error state, posts one more request on either queue
//! and waits for it (`ib_drain_qp`). Nothing tells of a receive that is posted, so the queues are looked
//! at from time to time, less and less often while nothing is found.

use core::ops::Bound;
use std::collections::{BTreeSet, VecDeque};

use hca_api::{Hca, MAX_FLUSHED, QpModify, QpState as ProviderState};
use ib_vtime::{Duration, Instant};
use ib_wire::Qpn;

use super::Queues;

/// How soon after a queue pair went to the error state, or had something flushed, it is looked at.
const SOONEST: Duration = Duration::from_millis(1);
/// How often it is looked at in the end.
const SELDOM: Duration = Duration::from_millis(256);
/// Queue pairs that are looked at before the next pause.
const AT_A_TIME: usize = 64;

/// When to look at which queue pairs.
#[derive(Debug)]
pub(super) struct FlushTimer {
    qps: BTreeSet<Qpn>,
    /// Those up to this number have had their turn.
    cursor: Qpn,
    /// Those that are still to be looked at before the next pause.
    round: VecDeque<Qpn>,
    /// Whether one of those before had something.
    flushed: bool,
    /// `None` is at once.
    next: Option<Instant>,
    interval: Duration,
}

impl Default for FlushTimer {
    fn default() -> Self {
        Self {
            qps: BTreeSet::new(),
            cursor: Qpn::SMI,
            round: VecDeque::new(),
            flushed: false,
            next: None,
            interval: SOONEST,
        }
    }
}

impl FlushTimer {
    /// A queue pair went to the error state.
    pub(super) fn add(&mut self, qpn: Qpn) {
        self.qps.insert(qpn);
        self.hurry();
    }

    /// A queue pair left it.
    pub(super) fn remove(&mut self, qpn: Qpn) {
        self.qps.remove(&qpn);
        self.round.retain(|other| *other != qpn);
    }

    /// There may be something.
    pub(super) const fn hurry(&mut self) {
        self.next = None;
        self.interval = SOONEST;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        if !self.round.is_empty() {
            return Some(Instant::ZERO);
        }
        (!self.qps.is_empty()).then(|| self.next.unwrap_or(Instant::ZERO))
    }

    /// The next one to be looked at.
    fn take(&mut self) -> Option<Qpn> {
        if self.round.is_empty() {
            let ahead = self
                .qps
                .range((Bound::Excluded(self.cursor), Bound::Unbounded));
            let around = self.qps.range(..=self.cursor);
            self.round = ahead.chain(around).take(AT_A_TIME).copied().collect();
            self.cursor = self.round.back().copied().unwrap_or(Qpn::SMI);
        }
        self.round.pop_front()
    }

    /// It was looked at, and had something or not, or even more.
    fn done(&mut self, now: Instant, qpn: Qpn, found: Found) {
        self.flushed |= found != Found::Nothing;
        if found == Found::More {
            self.round.push_back(qpn);
        }
        if self.round.is_empty() {
            let longer = self.interval.saturating_mul(2).min(SELDOM);
            let flushed = core::mem::take(&mut self.flushed);
            self.interval = if flushed { SOONEST } else { longer };
            self.next = Some(now + self.interval);
        }
    }
}

/// What a queue pair in error had to be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing.
    Nothing,
    /// Some receives, and these were all.
    Some,
    /// So many that there are more.
    More,
}

impl Queues {
    /// Flushes what has been posted to the next queue pair in error. Whether there was anything.
    pub(super) fn flush_next(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        let Some(qpn) = self.flush.take() else {
            return false;
        };
        self.flush_at_provider(hca, qpn);
        let found = self.completions(hca, qpn);
        self.collect_of(hca, qpn);
        self.flush.done(now, qpn, found);
        found != Found::Nothing
    }

    /// Has the provider complete what is posted to a queue pair, of very many receives some.
    pub(super) fn flush_at_provider(&self, hca: &mut dyn Hca, qpn: Qpn) {
        if let Some(qp) = self.qps.get(&qpn) {
            let error = QpModify {
                state: Some(ProviderState::Error),
                ..QpModify::default()
            };
            let moved = hca.modify_qp(qp.handle, &error);
            debug_assert_eq!(moved, Ok(()), "from every state there is a way to error");
        }
    }

    /// What the provider flushed of a queue pair's receives, as far as that can be told.
    fn completions(&self, hca: &dyn Hca, qpn: Qpn) -> Found {
        let cqn = self.qps.get(&qpn).map(|qp| qp.cqn(true));
        let cq = cqn.and_then(|cqn| self.cqs.get(&cqn));
        match cq.map(|cq| hca.peek_cq(cq.handle, MAX_FLUSHED)) {
            None | Some(Ok(0) | Err(_)) => Found::Nothing,
            Some(Ok(MAX_FLUSHED..)) => Found::More,
            Some(Ok(_)) => Found::Some,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn qp(number: u32) -> Qpn {
        Qpn::from_low_bits(number)
    }

    /// Looks at a whole round; what it finds is the same everywhere. Gives whom it looked at.
    fn look(timer: &mut FlushTimer, now: Instant, found: Found) -> Vec<u32> {
        let mut seen = Vec::new();
        while timer.is_due(now) {
            let qpn = timer.take().unwrap();
            timer.done(now, qpn, found);
            seen.push(qpn.get());
        }
        seen
    }

    #[test]
    fn queues_that_stay_empty_are_looked_at_less_and_less_often() {
        let mut timer = FlushTimer::default();
        assert_eq!(timer.due(), None);
        timer.add(qp(7));
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
        timer.remove(qp(7));
        assert_eq!(timer.due(), None);
    }

    #[test]
    fn every_queue_pair_has_its_turn() {
        let mut timer = FlushTimer::default();
        (1..=100).for_each(|qpn| timer.add(qp(qpn)));
        let first = look(&mut timer, at(0), Found::Nothing);
        assert_eq!(first, (1..=64).collect::<Vec<_>>());
        let second = look(&mut timer, at(1000), Found::Nothing);
        assert_eq!(second, (65..=100).chain(1..=28).collect::<Vec<_>>());
    }

    #[test]
    fn a_queue_pair_with_more_is_looked_at_again_without_a_pause() {
        let mut timer = FlushTimer::default();
        (1..=3).for_each(|qpn| timer.add(qp(qpn)));
        for (qpn, found) in [(1, Found::More), (2, Found::Nothing), (3, Found::Nothing)] {
            assert_eq!(timer.take(), Some(qp(qpn)));
            timer.done(at(0), qp(qpn), found);
        }
        assert!(timer.is_due(at(0)));
        assert_eq!(look(&mut timer, at(0), Found::Some), [1]);
        assert_eq!(timer.due(), Some(at(1)));
    }
}
