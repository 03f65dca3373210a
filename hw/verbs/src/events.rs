//! Channels of a process, and records of events that wait to be passed on to them.

use std::collections::VecDeque;

use crate::budget::{Budget, Charge};

/// A channel: a descriptor of the program that becomes readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

/// A record of an event for a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Channel.
    pub channel: ChannelId,
    /// Bytes that a read returns.
    pub bytes: Vec<u8>,
}

/// Bytes of the buffer in which a channel holds records that the program has not read. Each channel is charged so much.
pub const CHANNEL_BUFFER: u32 = 32 << 10;

/// Records that wait at most.
const MAX_EVENTS: usize = 1 << 16;

impl EventRecord {
    /// Bytes that a record costs beside its own: its entry in a queue, and its allocation.
    const OVERHEAD: u64 = 128;

    /// Returns the bytes that a record costs as long as it waits.
    #[must_use]
    pub fn cost(&self) -> u64 {
        Self::OVERHEAD + self.bytes.len() as u64
    }
}

/// Records of events, charged to the budget of their process.
#[derive(Debug, Default)]
pub struct EventQueue(VecDeque<(EventRecord, Charge)>);

impl EventQueue {
    /// Queues a record. Returns `false` if there is no room, or the budget does not have the bytes.
    pub fn push(&mut self, budget: &Budget, record: EventRecord) -> bool {
        if self.0.len() >= MAX_EVENTS {
            return false;
        }
        let charge = budget.charge(record.cost());
        let charged = charge.map(|charge| self.0.push_back((record, charge)));
        charged.is_some()
    }

    /// Removes the oldest record, if there is one.
    pub fn pop(&mut self) -> Option<EventRecord> {
        self.0.pop_front().map(|(record, _)| record)
    }

    /// Returns `true` if no record waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
