//! Records of events that wait to be passed on.

use std::collections::VecDeque;

use crate::EventRecord;
use crate::budget::{Budget, Charge};

/// Records that wait at most.
const MAX_EVENTS: usize = 1 << 16;

/// Records of events, charged to the budget of their process.
#[derive(Debug, Default)]
pub(crate) struct EventQueue(VecDeque<(EventRecord, Charge)>);

impl EventQueue {
    /// Queues a record. Returns `false` if there is no room.
    pub(crate) fn push(&mut self, budget: &Budget, record: EventRecord) -> bool {
        if self.0.len() >= MAX_EVENTS {
            return false;
        }
        let charge = budget.charge(record.cost());
        let charged = charge.map(|charge| self.0.push_back((record, charge)));
        charged.is_some()
    }

    pub(crate) fn pop(&mut self) -> Option<EventRecord> {
        self.0.pop_front().map(|(record, _)| record)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
