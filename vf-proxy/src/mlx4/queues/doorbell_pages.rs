//! Doorbell pages, with the queues that use each.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};

use mlx4_defs::Uar;

/// Queues by the page of their doorbell, and the pages whose doorbell was rung for one of them, nobody knows which.
#[derive(Debug)]
pub(super) struct DoorbellPages<N> {
    queues: BTreeMap<Uar, BTreeSet<N>>,
    rung: BTreeMap<Uar, Round<N>>,
    /// The page that had its turn last.
    cursor: Option<Uar>,
    are_pages_changed: bool,
}

/// One look at all queues of a page.
#[derive(Debug)]
struct Round<N> {
    /// The queue that was looked at last.
    after: Option<N>,
    /// The doorbell was rung meanwhile: those that were looked at may have something by now.
    is_rung_again: bool,
}

impl<N> Default for Round<N> {
    fn default() -> Self {
        Self {
            after: None,
            is_rung_again: false,
        }
    }
}

impl<N> Default for DoorbellPages<N> {
    fn default() -> Self {
        Self {
            queues: BTreeMap::new(),
            rung: BTreeMap::new(),
            cursor: None,
            are_pages_changed: false,
        }
    }
}

impl<N: Copy + Ord> DoorbellPages<N> {
    /// Adds a queue.
    pub(super) fn add(&mut self, uar: Uar, queue: N) {
        let queues = self.queues.entry(uar).or_default();
        self.are_pages_changed |= queues.is_empty();
        queues.insert(queue);
    }

    /// Removes a queue.
    pub(super) fn remove(&mut self, uar: Uar, queue: N) {
        if let Some(queues) = self.queues.get_mut(&uar) {
            queues.remove(&queue);
            if queues.is_empty() {
                self.queues.remove(&uar);
                self.rung.remove(&uar);
                self.are_pages_changed = true;
            }
        }
    }

    /// Returns the pages that have queues.
    pub(super) fn pages(&self) -> impl Iterator<Item = Uar> {
        self.queues.keys().copied()
    }

    /// Returns `true` if the pages changed since the last call.
    pub(super) const fn take_changed(&mut self) -> bool {
        core::mem::replace(&mut self.are_pages_changed, false)
    }

    /// Takes a doorbell that may have meant any queue of a page.
    pub(super) fn ring(&mut self, uar: Uar) {
        if let Some(round) = self.rung.get_mut(&uar) {
            round.is_rung_again = true;
        } else if self.queues.contains_key(&uar) {
            self.rung.insert(uar, Round::default());
        }
    }

    /// Returns `true` if [`DoorbellPages::take_rung`] may have something.
    pub(super) fn has_rung(&self) -> bool {
        !self.rung.is_empty()
    }

    /// Takes the next queue that a doorbell may have meant, of each page in turn.
    pub(super) fn take_rung(&mut self) -> Option<N> {
        loop {
            let behind = self.cursor.map_or(Bound::Unbounded, Bound::Excluded);
            let ahead = self.rung.range((behind, Bound::Unbounded)).next();
            let (&uar, _) = ahead.or_else(|| self.rung.first_key_value())?;
            self.cursor = Some(uar);
            let round = self.rung.get_mut(&uar)?;
            let from = round.after.map_or(Bound::Unbounded, Bound::Excluded);
            let queues = self.queues.get(&uar);
            let next = queues.and_then(|queues| queues.range((from, Bound::Unbounded)).next());
            if let Some(&queue) = next {
                round.after = Some(queue);
                return Some(queue);
            }
            if round.is_rung_again {
                *round = Round::default();
            } else {
                self.rung.remove(&uar);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uar(index: u32) -> Uar {
        Uar::from_low_bits(index)
    }

    fn all(pages: &mut DoorbellPages<u32>) -> Vec<u32> {
        core::iter::from_fn(|| pages.take_rung()).collect()
    }

    #[test]
    fn a_page_comes_with_its_first_queue_and_goes_with_its_last() {
        let mut pages = DoorbellPages::default();
        pages.add(uar(130), 1);
        assert!(pages.take_changed());
        pages.add(uar(130), 2);
        pages.remove(uar(130), 1);
        assert!(!pages.take_changed());
        assert_eq!(pages.pages().collect::<Vec<_>>(), [uar(130)]);
        pages.ring(uar(130));
        pages.remove(uar(130), 2);
        assert!(pages.take_changed() && !pages.has_rung());
        pages.remove(uar(130), 2);
        assert!(!pages.take_changed());
    }

    #[test]
    fn pages_that_are_rung_have_turns_and_others_have_none() {
        let mut pages = DoorbellPages::default();
        for queue in 0..6 {
            pages.add(uar(130 + queue % 3), queue);
        }
        pages.ring(uar(130));
        pages.ring(uar(132));
        pages.ring(uar(200));
        assert_eq!(all(&mut pages), [0, 2, 3, 5]);
        assert!(!pages.has_rung());
    }

    #[test]
    fn a_doorbell_during_a_round_begins_another_one() {
        let mut pages = DoorbellPages::default();
        (0..3).for_each(|queue| pages.add(uar(130), queue));
        pages.ring(uar(130));
        assert_eq!(pages.take_rung(), Some(0));
        pages.ring(uar(130));
        pages.ring(uar(130));
        assert_eq!(all(&mut pages), [1, 2, 0, 1, 2]);
    }
}
