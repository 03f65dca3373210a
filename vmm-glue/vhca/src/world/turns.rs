//! Whose turn it is: first come, first served, and who wants a word has not to wait for all who never end.

use std::collections::{BTreeSet, VecDeque};

/// Those that have something to do, in two lines that are served by turns: who just got it, and who had a turn that
/// was too short. Nobody stands in them twice.
#[derive(Debug)]
pub(super) struct Turns<P> {
    fresh: VecDeque<P>,
    again: VecDeque<P>,
    is_again_next: bool,
    waiting: BTreeSet<P>,
}

impl<P> Default for Turns<P> {
    fn default() -> Self {
        Self {
            fresh: VecDeque::new(),
            again: VecDeque::new(),
            is_again_next: false,
            waiting: BTreeSet::new(),
        }
    }
}

impl<P: Copy + Ord> Turns<P> {
    /// Somebody has something to do.
    pub(super) fn add(&mut self, who: P) {
        if self.waiting.insert(who) {
            self.fresh.push_back(who);
        }
    }

    /// Somebody's turn was too short.
    pub(super) fn add_again(&mut self, who: P) {
        if self.waiting.insert(who) {
            self.again.push_back(who);
        }
    }

    /// Takes whose turn it is.
    pub(super) fn take(&mut self) -> Option<P> {
        let [first, second] = if self.is_again_next {
            [&mut self.again, &mut self.fresh]
        } else {
            [&mut self.fresh, &mut self.again]
        };
        let who = first.pop_front().or_else(|| second.pop_front())?;
        self.is_again_next = !self.is_again_next;
        self.waiting.remove(&who);
        Some(who)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_waits_for_one_of_those_whose_turns_are_too_short() {
        let mut turns = Turns::default();
        (0..16).for_each(|who| turns.add_again(who));
        for who in [100, 101, 102] {
            turns.add(who);
            turns.add(who);
        }
        let taken: Vec<i32> = core::iter::from_fn(|| turns.take()).take(6).collect();
        assert_eq!(taken, [100, 0, 101, 1, 102, 2]);
    }

    #[test]
    fn those_that_come_keep_nobody_waiting_whose_turn_was_too_short() {
        let mut turns = Turns::default();
        turns.add_again(0);
        for who in 1..10 {
            turns.add(2 * who);
            turns.add(2 * who + 1);
            if turns.take() == Some(0) || turns.take() == Some(0) {
                return;
            }
        }
        panic!("it has no turn");
    }
}
