//! Whose software is to be polled when.

use std::collections::BTreeMap;

use ib_vtime::{Instant, TimerKey, TimerQueue};

/// One deadline for each place that has any.
#[derive(Debug)]
pub(super) struct Alarms<P> {
    queue: TimerQueue<P>,
    keys: BTreeMap<P, TimerKey>,
}

impl<P: Copy + Ord> Alarms<P> {
    pub(super) fn new() -> Self {
        Self {
            queue: TimerQueue::new(),
            keys: BTreeMap::new(),
        }
    }

    /// Sets a place's deadline anew.
    pub(super) fn set(&mut self, at: P, deadline: Option<Instant>) {
        let old = self.keys.get(&at).copied();
        if old.map(TimerKey::deadline) == deadline {
            return;
        }
        if let Some(old) = old {
            self.queue.cancel(old);
        }
        match deadline {
            Some(deadline) => {
                let key = self.queue.set(deadline, at);
                self.keys.insert(at, key);
            }
            None => {
                self.keys.remove(&at);
            }
        }
    }

    /// The next place whose time has come.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<P> {
        let (_, at) = self.queue.pop_due(now)?;
        self.keys.remove(&at);
        Some(at)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.queue.next_deadline()
    }
}
