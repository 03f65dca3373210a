//! Queue pairs in error, where what is posted completes as flushed.
//!
//! A driver that drains a queue pair moves it to the error state, posts one more request on either queue
//! and waits for it (`ib_drain_qp`). Nothing tells of a receive that is posted, so the queues are looked
//! at from time to time, less and less often while nothing is found.

use std::collections::BTreeSet;

use hca_api::{Hca, QpModify, QpState as ProviderState};
use ib_vtime::{Duration, Instant};
use mlx4_defs::cqe::Syndrome;

use super::Queues;
use super::cqe::Entry;
use super::name::receive_index;
use super::qp::Transport;

/// How soon after a queue pair went to the error state, or had something flushed, it is looked at.
const SOONEST: Duration = Duration::from_millis(1);
/// How often it is looked at in the end.
const SELDOM: Duration = Duration::from_millis(256);
/// Queue pairs that are looked at together.
const AT_A_TIME: usize = 64;

/// When to look at which queue pairs.
#[derive(Debug)]
pub(super) struct FlushTimer {
    qps: BTreeSet<u32>,
    /// Those up to this number have had their turn.
    cursor: u32,
    /// `None` is at once.
    next: Option<Instant>,
    interval: Duration,
}

impl Default for FlushTimer {
    fn default() -> Self {
        Self {
            qps: BTreeSet::new(),
            cursor: 0,
            next: None,
            interval: SOONEST,
        }
    }
}

impl FlushTimer {
    /// A queue pair went to the error state.
    pub(super) fn add(&mut self, qpn: u32) {
        self.qps.insert(qpn);
        self.hurry();
    }

    /// A queue pair left it.
    pub(super) fn remove(&mut self, qpn: u32) {
        self.qps.remove(&qpn);
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
        (!self.qps.is_empty()).then(|| self.next.unwrap_or(Instant::ZERO))
    }

    /// Some were looked at, and had something or not.
    pub(super) fn done(&mut self, now: Instant, flushed: bool) {
        let longer = self.interval.saturating_mul(2).min(SELDOM);
        self.interval = if flushed { SOONEST } else { longer };
        self.next = Some(now + self.interval);
    }

    /// Those whose turn it is.
    fn turn(&mut self) -> Vec<u32> {
        let ahead = self.qps.range(self.cursor.saturating_add(1)..);
        let around = self.qps.range(..=self.cursor);
        let turn: Vec<u32> = ahead.chain(around).take(AT_A_TIME).copied().collect();
        self.cursor = turn.last().copied().unwrap_or(0);
        turn
    }
}

impl Queues {
    /// Flushes what has been posted to queue pairs in error. Whether there was anything.
    pub(super) fn flush_all(&mut self, hca: &mut dyn Hca) -> bool {
        let mut flushed = false;
        for qpn in self.flush.turn() {
            flushed |= self.flush_at_provider(hca, qpn);
            flushed |= self.has_completions(hca, qpn);
            self.collect_of(hca, qpn);
        }
        flushed
    }

    /// Has the provider complete everything that is posted to a queue pair; the receives of one that it
    /// does not carry complete here. Whether there were any of these.
    pub(super) fn flush_at_provider(&mut self, hca: &mut dyn Hca, qpn: u32) -> bool {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return false;
        };
        if let Some(handle) = qp.handle() {
            let error = QpModify {
                state: Some(ProviderState::Error),
                ..QpModify::default()
            };
            let moved = hca.modify_qp(handle, &error);
            debug_assert_eq!(moved, Ok(()), "from every state there is a way to error");
            return false;
        }
        let Transport::Connected(Some(receives)) = &mut qp.transport else {
            return false;
        };
        let mut names = Vec::new();
        let mut scatter = Vec::new();
        while names.len() < receives.len() {
            scatter.clear();
            let read = |addr, buf: &mut [u8]| hca.dma_read(addr, buf);
            match receives.take(&read, &mut scatter) {
                Some(name) => names.push(name),
                None => break,
            }
        }
        if let Some(last) = names.last() {
            qp.received = receive_index(*last).wrapping_add(1);
        }
        let (cqn, qpn) = (qp.cqn(true), qp.qpn);
        for name in &names {
            let entry = Entry::failed(qpn, false, receive_index(*name), Syndrome::FLUSHED);
            self.write(hca, cqn, &entry);
        }
        !names.is_empty()
    }

    fn has_completions(&self, hca: &dyn Hca, qpn: u32) -> bool {
        let cqn = self.qps.get(&qpn).map(|qp| qp.cqn(true));
        let cq = cqn.and_then(|cqn| self.cqs.get(&cqn));
        cq.is_some_and(|cq| hca.peek_cq(cq.handle, 1) == Ok(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn queues_that_stay_empty_are_looked_at_less_and_less_often() {
        let mut timer = FlushTimer::default();
        assert_eq!(timer.due(), None);
        timer.add(7);
        assert!(timer.is_due(at(0)));
        timer.done(at(0), false);
        assert_eq!(timer.due(), Some(at(2)));
        for _ in 0..20 {
            timer.done(at(1000), false);
        }
        assert_eq!(timer.due(), Some(at(1256)));
        timer.done(at(2000), true);
        assert_eq!(timer.due(), Some(at(2001)));
        timer.done(at(2001), false);
        timer.hurry();
        assert!(timer.is_due(at(2001)));
        timer.remove(7);
        assert_eq!(timer.due(), None);
    }

    #[test]
    fn every_queue_pair_has_its_turn() {
        let mut timer = FlushTimer::default();
        (1..=100).for_each(|qpn| timer.add(qpn));
        let first = timer.turn();
        assert_eq!(first, (1..=64).collect::<Vec<_>>());
        let second = timer.turn();
        assert_eq!(second, (65..=100).chain(1..=28).collect::<Vec<_>>());
    }
}
