//! Whose turn it is, of the queue pairs that have something to send.
//!
//! A guest writes its rings while they are read, so it can post for as long as it is served. Whoever polls
//! does so until nothing is left to do at that time: there has to be an end of it, or the guest would keep
//! everybody else waiting. So there is a number of turns to each instant, and the rest comes later.

use core::ops::Bound;
use std::collections::BTreeSet;

use ib_vtime::{Duration, Instant};
use ib_wire::Qpn;

/// Turns of one instant, of all queue pairs together.
pub(in super::super) const TURNS: u32 = 256;
/// How long it is from one instant to the next that has turns.
const TICK: Duration = Duration::from_micros(1);

/// The queue pairs whose send queue may have something.
#[derive(Debug, Default)]
pub(super) struct Turns {
    waiting: BTreeSet<Qpn>,
    /// Those up to this number have had their turn.
    cursor: Qpn,
    now: Instant,
    /// Turns that were had at that time.
    had: u32,
}

impl Turns {
    /// A queue pair may have something.
    pub(super) fn add(&mut self, qpn: Qpn) {
        self.waiting.insert(qpn);
    }

    /// A queue pair is gone.
    pub(super) fn remove(&mut self, qpn: Qpn) {
        self.waiting.remove(&qpn);
    }

    /// Takes the next queue pair, if one waits and there are turns left at this time.
    pub(super) fn take(&mut self, now: Instant) -> Option<Qpn> {
        if self.now != now {
            (self.now, self.had) = (now, 0);
        }
        if self.had == TURNS {
            return None;
        }
        let ahead = self
            .waiting
            .range((Bound::Excluded(self.cursor), Bound::Unbounded))
            .next();
        let qpn = *ahead.or_else(|| self.waiting.first())?;
        self.waiting.remove(&qpn);
        self.cursor = qpn;
        self.had += 1;
        Some(qpn)
    }

    /// When there are turns for those that wait.
    pub(super) fn next(&self) -> Option<Instant> {
        let at = if self.had < TURNS {
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

    fn qp(number: u32) -> Qpn {
        Qpn::from_low_bits(number)
    }

    #[test]
    fn turns_go_round_and_come_to_an_end() {
        let mut turns = Turns::default();
        assert_eq!((turns.take(NOW), turns.next()), (None, None));
        let mut had = [0; 3];
        for _ in 0..TURNS {
            (0..3).for_each(|qpn| turns.add(qp(qpn)));
            assert_eq!(turns.next(), Some(Instant::ZERO));
            had[turns.take(NOW).unwrap().get() as usize] += 1;
        }
        assert!(had.iter().all(|had| *had >= TURNS / 3), "{had:?}");
        assert_eq!(turns.take(NOW), None);
        let next = turns.next().unwrap();
        assert!(next > NOW);
        assert!(turns.take(next).is_some());
        assert_eq!(turns.next(), Some(Instant::ZERO));
    }

    #[test]
    fn who_is_gone_has_no_turn() {
        let mut turns = Turns::default();
        turns.add(qp(7));
        turns.add(Qpn::MAX);
        turns.remove(qp(7));
        assert_eq!(turns.take(NOW), Some(Qpn::MAX));
        assert_eq!((turns.take(NOW), turns.next()), (None, None));
    }
}
