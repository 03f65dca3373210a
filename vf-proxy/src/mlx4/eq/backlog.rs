//! What a full event queue could not take.

use std::collections::{BTreeSet, VecDeque};

use mlx4_defs::eqe::{EQE_SIZE, Eqe};
use zerocopy::IntoBytes;

use super::super::capability::CQ_QUOTA;

/// Events that are kept: one of each completion queue, and as many others as any driver has under way.
const MOST: usize = CQ_QUOTA as usize + 0x80;

/// Events in the order in which they came. One that waits already comes once: it says no more than that
/// the driver shall look.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    order: VecDeque<Eqe>,
    known: BTreeSet<[u8; EQE_SIZE]>,
}

impl Backlog {
    /// Keeps an event; `false` if there are too many.
    pub(super) fn keep(&mut self, eqe: Eqe) -> bool {
        if self.known.contains(eqe.as_bytes()) {
            return true;
        }
        if self.order.len() >= MOST {
            return false;
        }
        self.known.insert(key(eqe));
        self.order.push_back(eqe);
        true
    }

    /// Takes the oldest event.
    pub(super) fn next(&mut self) -> Option<Eqe> {
        let eqe = self.order.pop_front()?;
        self.known.remove(&key(eqe));
        Some(eqe)
    }

    /// Drops an event if it waits.
    pub(super) fn forget(&mut self, eqe: Eqe) {
        if self.known.remove(&key(eqe)) {
            self.order.retain(|kept| *kept != eqe);
        }
    }
}

const fn key(eqe: Eqe) -> [u8; EQE_SIZE] {
    zerocopy::transmute!(eqe)
}

#[cfg(test)]
mod tests {
    use mlx4_defs::Cqn;

    use super::*;

    fn completion(cqn: u32) -> Eqe {
        Eqe::completion(Cqn::from_low_bits(cqn))
    }

    #[test]
    fn events_come_in_order_and_equal_ones_once() {
        let mut backlog = Backlog::default();
        for cqn in [3, 1, 3, 2, 1] {
            assert!(backlog.keep(completion(cqn)));
        }
        backlog.forget(completion(1));
        backlog.forget(completion(9));
        assert_eq!(backlog.next(), Some(completion(3)));
        assert!(backlog.keep(completion(3)), "once more after it came");
        assert_eq!(backlog.next(), Some(completion(2)));
        assert_eq!(backlog.next(), Some(completion(3)));
        assert_eq!(backlog.next(), None);
    }

    #[test]
    fn every_completion_queue_has_its_place_and_more_are_refused() {
        let mut backlog = Backlog::default();
        for token in 0..0x80 {
            assert!(backlog.keep(Eqe::command(token)));
        }
        for cqn in 0..CQ_QUOTA {
            assert!(backlog.keep(completion(cqn)), "{cqn}");
        }
        assert!(!backlog.keep(completion(CQ_QUOTA)));
        assert!(backlog.keep(completion(0)), "it waits already");
    }
}
