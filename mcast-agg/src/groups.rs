//! The groups of a port, found by what names them.

use std::ops::{Index, IndexMut};

use ib_vtime::SplitMix64;
use slab::Slab;
use vf_tunnel::wire_id::{self, KeyedHash};

use crate::aim::GroupKey;
use crate::group::Group;

#[derive(Clone, Debug)]
struct Entry {
    key: GroupKey,
    group: Group,
}

/// The groups, found by a keyed hash, because members choose the addresses.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    entries: Slab<Entry>,
    index: wire_id::Index,
    hash: KeyedHash,
}

impl Groups {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        Self {
            entries: Slab::new(),
            index: wire_id::Index::new(),
            hash: KeyedHash::new([random.next(), random.next()]),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of the groups, with what they have room for.
    pub(crate) fn bytes(&self) -> usize {
        let groups = self.iter().map(|(_, group)| group.bytes());
        self.entries.capacity() * size_of::<Entry>() + groups.sum::<usize>() + self.index.bytes()
    }

    pub(crate) fn find(&self, key: GroupKey) -> Option<usize> {
        self.index
            .matches(self.hash_of(key))
            .map(|slot| slot as usize)
            .find(|&at| self.entries.get(at).is_some_and(|entry| entry.key == key))
    }

    /// The group of a key, a new one if there is none.
    pub(crate) fn find_or_insert(&mut self, key: GroupKey) -> usize {
        self.find(key).unwrap_or_else(|| {
            let group = Group::default();
            let at = self.entries.insert(Entry { key, group });
            self.index.insert(self.hash_of(key), slot_of(at));
            at
        })
    }

    /// A group, to change, with its key.
    pub(crate) fn entry(&mut self, at: usize) -> (GroupKey, &mut Group) {
        let Entry { key, group } = &mut self.entries[at];
        (*key, group)
    }

    pub(crate) fn remove(&mut self, at: usize) {
        if let Some(Entry { key, .. }) = self.entries.try_remove(at) {
            self.index.remove(self.hash_of(key), slot_of(at));
        }
    }

    /// All of them, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (GroupKey, &Group)> {
        self.entries
            .iter()
            .map(|(_, entry)| (entry.key, &entry.group))
    }

    /// The same, to change.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.entries.iter_mut().map(|(_, entry)| &mut entry.group)
    }

    /// The names of all groups, in their order.
    pub(crate) fn keys(&self) -> Vec<GroupKey> {
        let mut keys: Vec<GroupKey> = self.iter().map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys
    }

    fn hash_of(&self, key: GroupKey) -> u32 {
        let (prefix, id) = (key.mgid.prefix(), key.mgid.interface_id());
        self.hash
            .hash_all([prefix.get(), id.get(), key.port_guid.get()])
    }
}

/// Quotas keep the number of groups far below what a slot's number can say.
fn slot_of(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(wire_id::NO_SLOT)
}

impl Index<usize> for Groups {
    type Output = Group;

    fn index(&self, at: usize) -> &Group {
        &self.entries[at].group
    }
}

impl IndexMut<usize> for Groups {
    fn index_mut(&mut self, at: usize) -> &mut Group {
        &mut self.entries[at].group
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::{Gid, Guid};

    use super::*;

    fn key(number: u8) -> GroupKey {
        let mut mgid = Gid::NONE;
        mgid.0[15] = number;
        GroupKey {
            mgid,
            port_guid: Guid::new(7),
        }
    }

    #[test]
    fn groups_are_found_by_their_names_and_listed_in_order_until_they_are_removed() {
        let mut groups = Groups::new(1);
        for number in [3, 1, 2] {
            let at = groups.find_or_insert(key(number));
            assert_eq!(groups.find_or_insert(key(number)), at);
        }
        assert_eq!(groups.keys(), [key(1), key(2), key(3)]);
        let gone = groups.find(key(2)).unwrap();
        groups.remove(gone);
        assert_eq!(groups.find(key(2)), None);
        assert_eq!(groups.keys(), [key(1), key(3)]);
        assert_eq!((groups.len(), groups.index.len()), (2, 2));
    }
}
