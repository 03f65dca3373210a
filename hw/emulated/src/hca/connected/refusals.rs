//! Requests that a peer without receives refuses again and again.
//!
//! The peer's RNR timer is the least time that a requester waits, and a requester may wait longer (IBA 9.7.5.2.8). A peer that
//! sets the shortest, 10 us, and never posts a receive has the adapter of both exchange packets that move nothing. After a
//! thousand refusals the receive is not late by accident, and the requester asks less often.

use ib_vtime::{Duration, Instant};

/// Refusals in a row after which the requester waits for [`LEAST_WAIT`] at least.
const PATIENCE: u64 = 1000;

/// Least time between two attempts of a request that was refused so often.
const LEAST_WAIT: Duration = Duration::from_micros(100);

/// RNR NAKs that a queue pair received without a request of its own that completed between two of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refusals {
    in_row: u64,
    /// The next attempt comes at this time at the earliest.
    until: Option<Instant>,
}

impl Refusals {
    /// Counts the RNR NAKs of a call, in which requests completed or not.
    pub(super) fn note(&mut self, now: Instant, naks: u64, completed: bool) {
        if completed {
            *self = Self::default();
        }
        if naks > 0 {
            self.in_row = self.in_row.saturating_add(naks);
            self.until = (self.in_row >= PATIENCE).then(|| now + LEAST_WAIT);
        }
    }

    /// Returns the time at which a timer fires that the machine wants to fire at `deadline`.
    pub(super) fn postpone(&self, deadline: Instant) -> Instant {
        self.until.map_or(deadline, |until| deadline.max(until))
    }

    /// Returns `true` if the time of the next attempt has not come.
    pub(super) fn has_to_wait(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMER: Duration = Duration::from_micros(10);

    /// Notes so many NAKs, each of which the machine answers after its timer.
    fn refused(refusals: &mut Refusals, times: u64) {
        (0..times).for_each(|_| refusals.note(Instant::ZERO, 1, false));
    }

    #[test]
    fn a_request_that_was_refused_a_thousand_times_waits_for_a_tenth_of_a_millisecond() {
        let mut refusals = Refusals::default();
        let wanted = Instant::ZERO + TIMER;
        refused(&mut refusals, PATIENCE - 1);
        assert_eq!(refusals.postpone(wanted), wanted);
        assert!(!refusals.has_to_wait(wanted));
        refused(&mut refusals, 1);
        let end = Instant::ZERO + LEAST_WAIT;
        assert_eq!(refusals.postpone(wanted), end);
        assert!(refusals.has_to_wait(wanted) && !refusals.has_to_wait(end));
        let late = end + TIMER;
        assert_eq!(refusals.postpone(late), late);
    }

    #[test]
    fn a_request_that_completes_ends_the_row() {
        let mut refusals = Refusals::default();
        refused(&mut refusals, PATIENCE);
        refusals.note(Instant::ZERO, 0, true);
        refused(&mut refusals, PATIENCE - 1);
        let wanted = Instant::ZERO + TIMER;
        assert_eq!(refusals.postpone(wanted), wanted);
    }
}
