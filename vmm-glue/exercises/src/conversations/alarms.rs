//! Who wants to be called when.

use std::collections::BTreeSet;

use ib_vtime::Instant;

/// One alarm for each of a number of nodes.
#[derive(Clone, Debug)]
pub(super) struct Alarms {
    set: Vec<Option<Instant>>,
    order: BTreeSet<(Instant, usize)>,
}

impl Alarms {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            set: vec![None; nodes],
            order: BTreeSet::new(),
        }
    }

    /// Sets a node's alarm in place of the one that it had.
    pub(super) fn set(&mut self, node: usize, at: Option<Instant>) {
        let before = std::mem::replace(&mut self.set[node], at);
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, node));
        }
        if let Some(at) = at {
            self.order.insert((at, node));
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// A node whose time has come; its alarm is off then.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<usize> {
        let &(at, node) = self.order.first()?;
        if at > now {
            return None;
        }
        self.set(node, None);
        Some(node)
    }
}
