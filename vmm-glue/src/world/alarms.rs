//! Which functions' software is to be polled when.

use std::collections::BTreeMap;

use ib_vtime::{Instant, TimerKey, TimerQueue};

use super::HostFunction;

/// One deadline for each function that has any.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    queue: TimerQueue<HostFunction>,
    keys: BTreeMap<HostFunction, TimerKey>,
}

impl Alarms {
    /// Sets a function's deadline anew.
    pub(super) fn set(&mut self, at: HostFunction, deadline: Option<Instant>) {
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

    /// The next function whose time has come.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<HostFunction> {
        let (_, at) = self.queue.pop_due(now)?;
        self.keys.remove(&at);
        Some(at)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.queue.next_deadline()
    }
}
