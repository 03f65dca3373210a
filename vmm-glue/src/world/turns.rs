//! Whose turn it is: first come, first served.

use std::collections::{BTreeSet, VecDeque};

/// A line of those that have something to do. Nobody stands in it twice.
#[derive(Debug)]
pub(super) struct Turns<P> {
    line: VecDeque<P>,
    waiting: BTreeSet<P>,
}

impl<P> Default for Turns<P> {
    fn default() -> Self {
        Self {
            line: VecDeque::new(),
            waiting: BTreeSet::new(),
        }
    }
}

impl<P: Copy + Ord> Turns<P> {
    /// Somebody has something to do.
    pub(super) fn add(&mut self, who: P) {
        if self.waiting.insert(who) {
            self.line.push_back(who);
        }
    }

    /// Takes the first in the line.
    pub(super) fn take(&mut self) -> Option<P> {
        let who = self.line.pop_front()?;
        self.waiting.remove(&who);
        Some(who)
    }

    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
}
