//! A compact index from hashed keys to slots.
//!
//! Open addressing with linear probing, without wrap-around and sorted by hash: a bucket's home is
//! its hash scaled to the table's size, which keeps the order, so the whole table is an ascending
//! array with gaps. That has three uses: a miss ends at the first larger hash; the table need not be
//! a power of two, so that it grows by an eighth and stays well filled; and growing is one sequential
//! pass that reads no entry.
//!
//! The index stores hashes and slots only. Equal hashes are told apart by the caller, who looks into
//! the slot.

use alloc::vec;
use alloc::vec::Vec;
use core::hint::black_box;

use super::Trail;

/// The slot number that means "none".
pub const NO_SLOT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    hash: u32,
    slot: u32,
}

const EMPTY: Bucket = Bucket {
    hash: 0,
    slot: NO_SLOT,
};

const FIRST_CAPACITY: usize = 64;
/// Buckets behind the last home, for what is pushed beyond it; more are added when needed.
const TAIL: usize = 64;

/// An index from hashes to slots.
#[derive(Clone, Debug)]
pub struct Index {
    buckets: Vec<Bucket>,
    /// Buckets that are some hash's home.
    homes: usize,
    len: usize,
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buckets: vec![EMPTY; FIRST_CAPACITY + TAIL],
            homes: FIRST_CAPACITY,
            len: 0,
        }
    }

    /// Pairs that the index holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the index holds nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the index holds.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }

    const fn home(&self, hash: u32) -> usize {
        ((hash as u64 * self.homes as u64) >> 32) as usize
    }

    fn at(&self, position: usize) -> Bucket {
        self.buckets.get(position).copied().unwrap_or(EMPTY)
    }

    /// The first place from the hash's home on that is empty or holds at least `hash`.
    fn lower_bound(&self, hash: u32) -> usize {
        let mut position = self.home(hash);
        loop {
            let bucket = self.at(position);
            if bucket.slot == NO_SLOT || bucket.hash >= hash {
                return position;
            }
            position += 1;
        }
    }

    /// Begins a [`Trail`] to the slot of a hash: reads the hash's home, and waits for nothing.
    #[must_use]
    pub fn approach(&self, hash: u32) -> Trail {
        black_box(self.at(self.home(hash)));
        Trail::Bucket(hash)
    }

    /// Takes a [`Trail`] through the index to a slot.
    #[must_use]
    pub fn follow(&self, trail: Trail) -> Trail {
        match trail {
            Trail::Bucket(hash) => self.matches(hash).next().map_or(Trail::End, Trail::Slot),
            Trail::Slot(_) | Trail::End => trail,
        }
    }

    /// The slots with exactly this hash, oldest first.
    pub fn matches(&self, hash: u32) -> impl Iterator<Item = u32> {
        (self.lower_bound(hash)..)
            .map(|position| self.at(position))
            .take_while(move |bucket| bucket.slot != NO_SLOT && bucket.hash == hash)
            .map(|bucket| bucket.slot)
    }

    /// Adds a pair. The same pair twice is two pairs.
    pub fn insert(&mut self, hash: u32, slot: u32) {
        if (self.len + 1) * 5 > self.homes * 4 {
            self.grow();
        }
        let mut position = self.lower_bound(hash);
        while self.at(position).slot != NO_SLOT && self.at(position).hash == hash {
            position += 1;
        }
        let mut free = position;
        while self.at(free).slot != NO_SLOT {
            free += 1;
        }
        if free >= self.buckets.len() {
            self.lengthen_tail();
        }
        self.buckets.copy_within(position..free, position + 1);
        self.buckets[position] = Bucket { hash, slot };
        self.len += 1;
    }

    /// Adds room behind the last home.
    fn lengthen_tail(&mut self) {
        self.buckets.reserve_exact(TAIL);
        self.buckets.resize(self.buckets.len() + TAIL, EMPTY);
    }

    /// Takes the pair out; does nothing if it is not there.
    pub fn remove(&mut self, hash: u32, slot: u32) {
        let Some(offset) = self.matches(hash).position(|found| found == slot) else {
            return;
        };
        let gap = self.lower_bound(hash) + offset;
        // What was pushed away from its home moves back by one, up to the first bucket at home.
        let pushed = (gap + 1..)
            .take_while(|&p| {
                let bucket = self.at(p);
                bucket.slot != NO_SLOT && self.home(bucket.hash) < p
            })
            .count();
        self.buckets.copy_within(gap + 1..=gap + pushed, gap);
        self.buckets[gap + pushed] = EMPTY;
        self.len -= 1;
    }

    fn grow(&mut self) {
        let old = core::mem::take(&mut self.buckets);
        self.homes += self.homes / 8 + 1;
        self.buckets = vec![EMPTY; self.homes + TAIL];
        let mut free = 0;
        for bucket in old.into_iter().filter(|bucket| bucket.slot != NO_SLOT) {
            let position = free.max(self.home(bucket.hash));
            if position >= self.buckets.len() {
                self.lengthen_tail();
            }
            self.buckets[position] = bucket;
            free = position + 1;
        }
    }
}

impl Default for Index {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn sorted_and_reachable(index: &Index) {
        let used: Vec<(usize, u32)> = index
            .buckets
            .iter()
            .enumerate()
            .filter(|(_, b)| b.slot != NO_SLOT)
            .map(|(p, b)| (p, b.hash))
            .collect();
        assert_eq!(used.len(), index.len());
        assert_eq!(used.is_empty(), index.is_empty());
        assert!(used.is_sorted_by_key(|(_, hash)| *hash));
        for (position, hash) in used {
            let home = index.home(hash);
            assert!(home <= position);
            assert!((home..position).all(|p| index.at(p).slot != NO_SLOT));
        }
    }

    #[test]
    fn equal_hashes_are_found_in_the_order_of_insertion() {
        let mut index = Index::new();
        for slot in 0..100 {
            index.insert(u32::MAX, slot);
        }
        assert_eq!(
            index.matches(u32::MAX).collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
        index.remove(u32::MAX, 50);
        assert_eq!(index.matches(u32::MAX).nth(50), Some(51));
        sorted_and_reachable(&index);
    }

    #[test]
    fn a_hundred_thousand_entries_cost_at_most_12_bytes_each_and_leave_nothing() {
        let mut index = Index::new();
        let hash = |i: u32| i.wrapping_mul(0x9e37_79b1);
        for i in 0..100_000 {
            index.insert(hash(i), i);
        }
        sorted_and_reachable(&index);
        assert!(index.bytes() <= 12 * 100_000, "{}", index.bytes());
        assert!(index.bytes() >= 8 * 100_000, "{}", index.bytes());
        // Hashes at equal distances stand at home or nearly so: homes are spread over the whole table.
        let far = |hash: u32| index.lower_bound(hash) - index.home(hash);
        assert!((0..100_000).all(|i| far(hash(i)) < 16));
        assert_eq!((index.home(0), index.home(u32::MAX)), (0, index.homes - 1));
        for i in 0..100_000 {
            assert!(index.matches(hash(i)).eq([i]));
            index.remove(hash(i), i);
        }
        assert_eq!(index.len(), 0);
        assert!(index.buckets.iter().all(|b| b.slot == NO_SLOT));
    }

    #[test]
    fn a_trail_leads_through_the_index_to_the_first_slot_of_its_hash() {
        let mut index = Index::new();
        index.insert(7, 70);
        index.insert(7, 71);
        let bucket = index.approach(7);
        assert_eq!(bucket, Trail::Bucket(7));
        assert_eq!(index.follow(bucket), Trail::Slot(70));
        assert_eq!(index.follow(Trail::Slot(70)), Trail::Slot(70));
        assert_eq!(index.follow(Trail::Bucket(8)), Trail::End);
    }

    proptest! {
        #[test]
        fn the_index_is_a_multimap(
            operations in prop::collection::vec((any::<bool>(), 0_u32..40, any::<bool>()), 0..400)
        ) {
            let mut index = Index::new();
            let mut model: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            for (slot, (insert, key, crowd)) in (0_u32..).zip(operations) {
                // Half of the keys crowd the end of the table.
                let hash = if crowd { u32::MAX - key } else { key << 27 };
                let slots = model.entry(hash).or_default();
                if insert {
                    index.insert(hash, slot);
                    slots.push(slot);
                } else if !slots.is_empty() {
                    index.remove(hash, slots.remove(0));
                }
                prop_assert!(index.matches(hash).eq(slots.iter().copied()));
            }
            sorted_and_reachable(&index);
            for (hash, slots) in model {
                prop_assert!(index.matches(hash).eq(slots));
            }
        }
    }
}
