//! Moderation of completion events: an armed queue wakes its driver when so many completions have come, or
//! so long after the first of them.
//!
//! Either number being zero means none (`mlx4_cq_modify` sets both; a new queue has neither). What the driver
//! has not taken when it arms wakes it at once, moderated or not.

use std::collections::BTreeMap;

use ib_vtime::{Duration, Instant, TimerKey, TimerQueue};
use mlx4_defs::Cqn;
use mlx4_defs::cq::CqContext;

/// How a queue's events are moderated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Moderation {
    /// Completions that make an event.
    pub(super) count: u16,
    /// How long fewer wait.
    pub(super) period: Duration,
}

impl Moderation {
    /// What a context says; `None` is no moderation.
    pub(in super::super) fn of(context: &CqContext) -> Option<Self> {
        let (count, micros) = (context.max_count.get(), context.period.get());
        (count != 0 && micros != 0).then(|| Self {
            count,
            period: Duration::from_micros(micros.into()),
        })
    }
}

/// The queues whose event is held back, and until when.
#[derive(Debug, Default)]
pub(super) struct HeldEvents {
    /// Held since the last time that somebody told the time, and for how long.
    fresh: BTreeMap<Cqn, Duration>,
    keys: BTreeMap<Cqn, TimerKey>,
    timers: TimerQueue<Cqn>,
}

impl HeldEvents {
    /// Holds a queue's event back, unless it is already.
    pub(super) fn hold(&mut self, cqn: Cqn, period: Duration) {
        if !self.keys.contains_key(&cqn) {
            self.fresh.entry(cqn).or_insert(period);
        }
    }

    /// Holds it no more.
    pub(super) fn forget(&mut self, cqn: Cqn) {
        self.fresh.remove(&cqn);
        if let Some(key) = self.keys.remove(&cqn) {
            self.timers.cancel(key);
        }
    }

    /// The next queue that was held back for long enough.
    pub(super) fn due(&mut self, now: Instant) -> Option<Cqn> {
        while let Some((cqn, period)) = self.fresh.pop_first() {
            self.keys.insert(cqn, self.timers.set(now + period, cqn));
        }
        let (_, cqn) = self.timers.pop_due(now)?;
        self.keys.remove(&cqn);
        Some(cqn)
    }

    /// When to ask for the next one.
    pub(super) fn next(&self) -> Option<Instant> {
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

    const ONE: Cqn = Cqn::from_low_bits(1);
    const TWO: Cqn = Cqn::from_low_bits(2);

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn a_context_without_one_of_the_numbers_moderates_nothing() {
        let mut context = CqContext::default();
        context.max_count.set(8);
        assert_eq!(Moderation::of(&context), None);
        context.period.set(16);
        let expected = Moderation {
            count: 8,
            period: Duration::from_micros(16),
        };
        assert_eq!(Moderation::of(&context), Some(expected));
        context.max_count.set(0);
        assert_eq!(Moderation::of(&context), None);
    }

    #[test]
    fn an_event_is_held_from_when_the_time_is_told() {
        let mut held = HeldEvents::default();
        held.hold(ONE, Duration::from_micros(10));
        held.hold(TWO, Duration::from_micros(5));
        assert_eq!(held.next(), Some(Instant::ZERO));
        assert_eq!(held.due(at(3)), None);
        held.hold(ONE, Duration::from_micros(100));
        assert_eq!(held.next(), Some(at(8)));
        assert_eq!((held.due(at(13)), held.due(at(13))), (Some(TWO), Some(ONE)));
        assert_eq!((held.due(at(999)), held.next()), (None, None));
        held.hold(ONE, Duration::from_micros(1));
        held.forget(ONE);
        held.hold(TWO, Duration::from_micros(1));
        assert_eq!(held.due(at(1000)), None);
        held.forget(TWO);
        assert_eq!((held.due(at(2000)), held.next()), (None, None));
    }
}
