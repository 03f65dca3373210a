//! File descriptors that an event loop watches for what it drives.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

pub use event_manager::EventSet;

/// A watched descriptor is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Which; it may have been given up meanwhile.
    pub fd: RawFd,
    /// The number that it was watched under.
    pub tag: u32,
    /// For what. Errors and hang-ups are told whether asked for or not.
    pub events: EventSet,
}

/// A change to what is watched.
#[derive(Debug)]
pub enum WatchChange {
    /// Watch a descriptor: level-triggered, unless the events say [`EventSet::EDGE_TRIGGERED`].
    Add(RawFd, u32, EventSet),
    /// Watch it for something else.
    Modify(RawFd, u32, EventSet),
    /// Watch it no more, and close it.
    Remove(OwnedFd),
}

/// Changes that an event loop has yet to take over, in their order.
#[derive(Debug, Default)]
pub struct Watches(VecDeque<WatchChange>);

impl Watches {
    /// No changes.
    #[must_use]
    pub const fn new() -> Self {
        Self(VecDeque::new())
    }

    /// The oldest change.
    pub fn poll(&mut self) -> Option<WatchChange> {
        self.0.pop_front()
    }

    /// The changes of one user, whose descriptors are told apart from those of others by a number.
    pub const fn tagged(&mut self, tag: u32) -> TaggedWatches<'_> {
        TaggedWatches { watches: self, tag }
    }
}

/// Changes to the descriptors of one user.
#[derive(Debug)]
pub struct TaggedWatches<'w> {
    watches: &'w mut Watches,
    tag: u32,
}

impl TaggedWatches<'_> {
    /// Watches a descriptor from now on. It must stay open until [`Self::remove`] takes it.
    pub fn add(&mut self, fd: &impl AsFd, events: EventSet) {
        let fd = fd.as_fd().as_raw_fd();
        self.push(WatchChange::Add(fd, self.tag, events));
    }

    /// Watches a watched descriptor for something else from now on.
    pub fn modify(&mut self, fd: &impl AsFd, events: EventSet) {
        let fd = fd.as_fd().as_raw_fd();
        self.push(WatchChange::Modify(fd, self.tag, events));
    }

    /// Ends the watch, and closes the descriptor then. It may be told ready once more.
    pub fn remove(&mut self, fd: impl Into<OwnedFd>) {
        self.push(WatchChange::Remove(fd.into()));
    }

    fn push(&mut self, change: WatchChange) {
        self.watches.0.push_back(change);
    }
}
