//! Posted writes that wait for whoever has the lock.

use std::collections::{BTreeMap, VecDeque};

use vf_pci::Doorbell;

/// Writes of one device that may wait.
const MOST: usize = 1024;

/// The longest write that is posted, in bytes: a vCPU makes none that is longer.
const LONGEST: usize = 8;

/// A write that its vCPU does not wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    Write {
        bar: u8,
        offset: u64,
        bytes: [u8; LONGEST],
        len: u8,
    },
    Ring(Doorbell),
}

impl Posted {
    /// Copies a write. `None` if it is too long to be posted.
    pub(super) fn write(bar: u8, offset: u64, written: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONGEST];
        bytes.get_mut(..written.len())?.copy_from_slice(written);
        Some(Self::Write {
            bar,
            offset,
            bytes,
            len: u8::try_from(written.len()).ok()?,
        })
    }
}

/// The posted writes of all devices of a backend.
#[derive(Debug)]
pub(super) struct Inbox<A> {
    /// By device, none of them empty.
    posted: BTreeMap<A, VecDeque<Posted>>,
    /// The same of devices that are held: nobody takes these.
    kept: BTreeMap<A, VecDeque<Posted>>,
}

impl<A> Default for Inbox<A> {
    fn default() -> Self {
        Self {
            posted: BTreeMap::new(),
            kept: BTreeMap::new(),
        }
    }
}

impl<A: Copy + Ord> Inbox<A> {
    /// Adds a write. Returns `false` if too many of the device wait.
    pub(super) fn push(&mut self, at: A, posted: Posted) -> bool {
        let queue = match self.kept.get_mut(&at) {
            // A doorbell that is rung again while nobody looks is rung once.
            Some(kept) if matches!(posted, Posted::Ring(_)) && kept.contains(&posted) => {
                return true;
            }
            Some(kept) => kept,
            None => self.posted.entry(at).or_default(),
        };
        let has_room = queue.len() < MOST;
        if has_room {
            queue.push_back(posted);
        }
        has_room
    }

    /// Keeps the writes of a device from here on, those that wait included.
    pub(super) fn hold(&mut self, at: A) {
        let waiting = self.posted.remove(&at).unwrap_or_default();
        self.kept.entry(at).or_insert(waiting);
    }

    /// Returns `true` if the writes of a device are kept.
    pub(super) fn is_held(&self, at: A) -> bool {
        self.kept.contains_key(&at)
    }

    /// Keeps the writes of a device no longer, and returns those that were kept.
    pub(super) fn release(&mut self, at: A) -> VecDeque<Posted> {
        self.kept.remove(&at).unwrap_or_default()
    }

    /// Forgets the writes of a device that are kept.
    pub(super) fn forget_kept(&mut self, at: A) {
        if let Some(kept) = self.kept.get_mut(&at) {
            kept.clear();
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.posted.clear();
        self.kept.clear();
    }

    /// Takes all writes of a device.
    pub(super) fn take_of(&mut self, at: A) -> VecDeque<Posted> {
        self.posted.remove(&at).unwrap_or_default()
    }

    /// Takes all writes.
    pub(super) fn take_all(&mut self) -> BTreeMap<A, VecDeque<Posted>> {
        core::mem::take(&mut self.posted)
    }

    /// Returns `true` if there is nothing to take.
    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_room_of_its_own_and_its_order() {
        let mut inbox = Inbox::default();
        let write = |byte| Posted::write(2, 0, &[byte]).expect("it is short");
        for _ in 0..MOST {
            assert!(inbox.push(1, write(1)));
        }
        assert!(!inbox.push(1, write(2)));
        assert!(inbox.push(2, write(3)) && inbox.push(2, write(4)));
        assert_eq!(inbox.take_of(2), [write(3), write(4)]);
        assert_eq!(inbox.take_all()[&1].len(), MOST);
        assert!(inbox.is_empty());
    }

    #[test]
    fn a_held_device_s_writes_are_kept_and_its_doorbells_once() {
        let mut inbox = Inbox::default();
        let write = |byte| Posted::write(2, 0, &[byte]).expect("it is short");
        let ring = Posted::Ring(Doorbell {
            bar: 2,
            offset: 0x14,
            len: 4,
        });
        assert!(inbox.push(1, write(1)));
        inbox.hold(1);
        assert!(inbox.push(1, ring) && inbox.push(1, write(2)) && inbox.push(1, ring));
        assert!(inbox.is_empty() && inbox.take_of(1).is_empty() && inbox.take_all().is_empty());
        assert!(inbox.is_held(1) && !inbox.is_held(2));
        while inbox.push(1, write(3)) {}
        assert!(inbox.push(1, ring), "it is there already");
        let released = inbox.release(1);
        assert_eq!(released.len(), MOST);
        assert_eq!(
            released.range(..3).copied().collect::<Vec<_>>(),
            [write(1), ring, write(2)]
        );
        assert!(inbox.push(1, write(4)) && !inbox.is_empty());
    }

    #[test]
    fn a_write_that_no_vcpu_makes_is_not_posted() {
        assert!(Posted::write(2, 0, &[0; 8]).is_some());
        assert!(Posted::write(2, 0, &[0; 9]).is_none());
        assert!(Posted::write(2, 0, &[0; 4096]).is_none());
    }
}
