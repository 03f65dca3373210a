//! Doorbells of a function that have eventfds, so that a guest's stores to them are no messages.
//!
//! The client shares the files. So an eventfd is never read, since a read of one that is empty may wait: it is watched for its edges,
//! and each write of the client is one.

use core::fmt;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use vf_pci::{Doorbell, PciFunction};

/// The most doorbells of a function that have an eventfd. Stores to the others are messages.
pub const MAX_DOORBELLS: usize = 64;

/// A change to the eventfds of doorbells, for the loop that watches them.
#[derive(Debug)]
pub enum DoorbellChange {
    /// The eventfd is there, and is to be watched for edges.
    Added(Doorbell),
    /// It is not to be watched any longer, and then to be closed.
    Removed(OwnedFd),
}

/// Makes an eventfd. The error is that of a process that has no descriptor to spare.
pub type MakeEvent = Box<dyn Fn() -> Result<OwnedFd, Errno>>;

/// The eventfds of one function.
#[derive(Default)]
pub(super) struct Doorbells {
    /// Without it there are no eventfds.
    make: Option<MakeEvent>,
    events: BTreeMap<Doorbell, OwnedFd>,
    changes: VecDeque<DoorbellChange>,
}

impl fmt::Debug for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbells")
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

impl Doorbells {
    pub(super) fn new(make: MakeEvent) -> Self {
        Self {
            make: Some(make),
            ..Self::default()
        }
    }

    /// Returns the eventfd of a doorbell.
    pub(super) fn event(&self, doorbell: &Doorbell) -> Option<&OwnedFd> {
        self.events.get(doorbell)
    }

    /// Makes the eventfds of a region's doorbells that have none yet, and removes the eventfds of doorbells that are gone. Returns the
    /// doorbells of the region that have one, `most` at most.
    pub(super) fn of_region(
        &mut self,
        function: &dyn PciFunction,
        region: u32,
        most: usize,
    ) -> Vec<Doorbell> {
        let all = function.doorbells();
        self.retain(|doorbell| all.contains(doorbell));
        let mut of_region = all;
        of_region.retain(|doorbell| u32::from(doorbell.bar) == region);
        of_region.retain(|doorbell| self.make(*doorbell));
        of_region.truncate(most);
        of_region
    }

    /// Makes the eventfd of a doorbell unless it is there. Returns `false` if it cannot have one.
    fn make(&mut self, doorbell: Doorbell) -> bool {
        if self.events.contains_key(&doorbell) {
            return true;
        }
        let made = match &self.make {
            Some(make) if self.events.len() < MAX_DOORBELLS => make().ok(),
            _ => None,
        };
        let Some(event) = made else {
            return false;
        };
        self.events.insert(doorbell, event);
        self.changes.push_back(DoorbellChange::Added(doorbell));
        true
    }

    fn retain(&mut self, stays: impl Fn(&Doorbell) -> bool) {
        let (stay, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = core::mem::take(&mut self.events)
            .into_iter()
            .partition(|(doorbell, _)| stays(doorbell));
        self.events = stay;
        self.changes
            .extend(gone.into_values().map(DoorbellChange::Removed));
    }

    /// Removes all eventfds.
    pub(super) fn clear(&mut self) {
        self.retain(|_| false);
    }

    pub(super) fn poll_change(&mut self) -> Option<DoorbellChange> {
        self.changes.pop_front()
    }
}
