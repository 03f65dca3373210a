//! Work that the queues of a function have left.

use std::collections::BTreeSet;

use ib_vtime::Instant;

use crate::flush::{FlushPace, FlushTimer};
use crate::held::HeldEvents;
use crate::turns::Turns;

/// Queues with work for later polls: queue pairs named `Q` and completion queues named `C`, each until the caller takes it or the
/// queue is gone.
#[derive(Debug)]
pub struct Backlog<Q, C> {
    /// Queue pairs whose send queues may have requests.
    pub sends: Turns<Q>,
    /// Queue pairs in error.
    pub flush: FlushTimer<Q>,
    /// Completion queues whose events moderation holds back.
    pub held: HeldEvents<C>,
    failing: BTreeSet<Q>,
    uncollected: BTreeSet<C>,
}

impl<Q: Copy + Ord, C: Copy + Ord> Backlog<Q, C> {
    /// Creates the backlog of a function without queues, whose queue pairs in error are looked at in this pace.
    #[must_use]
    pub fn new(pace: FlushPace) -> Self {
        Self {
            sends: Turns::default(),
            flush: FlushTimer::new(pace),
            held: HeldEvents::default(),
            failing: BTreeSet::new(),
            uncollected: BTreeSet::new(),
        }
    }

    /// Adds queue pairs that have to go to the error state.
    pub fn fail(&mut self, qps: impl IntoIterator<Item = Q>) {
        self.failing.extend(qps);
    }

    /// Takes the next queue pair that has to go to the error state.
    pub fn take_failing(&mut self) -> Option<Q> {
        self.failing.pop_first()
    }

    /// Adds a completion queue that had more completions than [`collect`](crate::collect) moves at once.
    pub fn collect(&mut self, cq: C) {
        self.uncollected.insert(cq);
    }

    /// Takes the next completion queue with more completions.
    pub fn take_uncollected(&mut self) -> Option<C> {
        self.uncollected.pop_first()
    }

    /// Removes a queue pair that is gone.
    pub fn remove_qp(&mut self, qp: Q) {
        self.sends.remove(qp);
        self.flush.remove(qp);
        self.failing.remove(&qp);
    }

    /// Removes a completion queue that is gone.
    pub fn remove_cq(&mut self, cq: C) {
        self.held.forget(cq);
        self.uncollected.remove(&cq);
    }

    /// Returns the time of the next work, or `None` if there is none. [`Instant::ZERO`] is at once.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        if !self.failing.is_empty() || !self.uncollected.is_empty() {
            return Some(Instant::ZERO);
        }
        let next = [self.sends.next(), self.flush.due(), self.held.next()];
        next.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use ib_vtime::Duration;

    use super::*;

    const PACE: FlushPace = FlushPace {
        at_a_time: 8,
        seldom: Duration::from_millis(20),
    };

    #[test]
    fn work_is_due_until_it_is_taken_or_its_queue_is_gone() {
        let mut backlog = Backlog::new(PACE);
        assert_eq!(backlog.next(), None);
        backlog.fail([3, 1, 3]);
        backlog.collect(7_u8);
        assert_eq!(backlog.next(), Some(Instant::ZERO));
        let taken = [(); 3].map(|()| backlog.take_failing());
        assert_eq!(taken, [Some(1), Some(3), None]);
        assert_eq!(backlog.next(), Some(Instant::ZERO));
        assert_eq!(backlog.take_uncollected(), Some(7));
        assert_eq!((backlog.take_uncollected(), backlog.next()), (None, None));

        backlog.sends.add(1_u32);
        backlog.flush.add(1);
        backlog.fail([1]);
        backlog.remove_qp(1);
        backlog.held.hold(7, Duration::from_micros(1));
        backlog.collect(7);
        assert_eq!(backlog.next(), Some(Instant::ZERO));
        backlog.remove_cq(7);
        assert_eq!(backlog.next(), None);
    }
}
