//! The lists of a VF's slots, threaded through the slots.

use vf_tunnel::VfId;
use vf_tunnel::wire_id::NO_SLOT;

use crate::state::State;
use crate::store::{Hot, Links};
use crate::table::Table;

/// The ends of a list of slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self {
        first: NO_SLOT,
        last: NO_SLOT,
    };
}

impl Table {
    /// The list of its VF's in which a slot is.
    fn list_of(&mut self, slot: u32) -> &mut List {
        let Hot { vf, state, .. } = *self.store.hot(slot);
        let record = self.vf_mut(vf);
        if state == State::Quiet {
            &mut record.quiet
        } else {
            &mut record.slots
        }
    }

    /// Puts a slot at the head of its list.
    pub(crate) fn attach(&mut self, slot: u32) {
        let list = self.list_of(slot);
        let next = core::mem::replace(&mut list.first, slot);
        if next == NO_SLOT {
            list.last = slot;
        } else {
            self.store.cold_mut(next).siblings.prev = slot;
        }
        self.store.cold_mut(slot).siblings = Links {
            prev: NO_SLOT,
            next,
        };
    }

    /// Takes a slot out of its list.
    pub(crate) fn detach(&mut self, slot: u32) {
        let Links { prev, next } = self.store.cold(slot).siblings;
        if prev == NO_SLOT {
            self.list_of(slot).first = next;
        } else {
            self.store.cold_mut(prev).siblings.next = next;
        }
        if next == NO_SLOT {
            self.list_of(slot).last = prev;
        } else {
            self.store.cold_mut(next).siblings.prev = prev;
        }
    }

    /// One of a VF's slots.
    pub(crate) fn first_of(&self, vf: VfId) -> Option<u32> {
        self.of_vf(vf).next()
    }

    /// A VF's slots: the newest first, then those of quiet connections.
    pub(crate) fn of_vf(&self, vf: VfId) -> impl Iterator<Item = u32> {
        let lists = self.vf(vf).map(|record| [record.slots, record.quiet]);
        lists.into_iter().flatten().flat_map(|list| {
            core::iter::successors(a_slot(list.first), |&slot| {
                a_slot(self.store.cold(slot).siblings.next)
            })
        })
    }
}

/// The slot that a link leads to, if it leads to any.
pub(crate) fn a_slot(link: u32) -> Option<u32> {
    (link != NO_SLOT).then_some(link)
}
