//! Finding the slot of a request: a table of the live slots by their hashes.
//!
//! A bucket is a line of the cache: the numbers of 15 slots, each with a few bits of its hash, and how
//! many slots that are at home here lie in a bucket behind it for want of room. So one line tells, as a
//! rule, where a slot is, that it is not there, or where there is room for it; all words of the line are
//! compared at once. Guests choose what is hashed, but not the hash.

use prefetch_index::prefetch_index;
use wide::{CmpEq, i32x8};

use super::array::Array;
use super::slots::{Node, SLOT_BITS};

/// Bits of a name that count how often its slot was used, and of a tag.
const GENERATION_BITS: u32 = 32 - SLOT_BITS;
const GENERATIONS: u32 = (1 << GENERATION_BITS) - 1;

/// As much of a hash as there can be slots, and how often the slot was given out, modulo 2^12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u32);

impl Tag {
    pub(super) const fn of_first_use(hash: u32) -> Self {
        Self(hash & !GENERATIONS | 1)
    }

    /// That of the slot's next transaction.
    pub(super) const fn of_next_use(self, hash: u32) -> Self {
        Self(hash & !GENERATIONS | self.0.wrapping_add(1) & GENERATIONS)
    }

    pub(super) const fn generation(self) -> u32 {
        self.0 & GENERATIONS
    }

    /// A hash that leads to the same buckets as the one that the tag was made with.
    pub(super) const fn hash(self) -> u32 {
        self.0
    }
}

const PLACES: usize = 15;

/// Slots of a bucket beyond which the table grows.
const FILL: u32 = 10;

/// Buckets that may hold a slot, its home the first. A slot that finds none of them with room is left
/// out: at this fill one in 10^14 of those that need a second bucket.
const REACH: usize = 8;

/// What a place holds: a slot's number and a part of its hash, which is never 0; 0 if there is none.
type Word = i32;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    words: [Word; PLACES],
    /// Slots at home here, or in a bucket before, that are in a bucket behind.
    passed: u32,
}

impl Bucket {
    const EMPTY: Self = Self {
        words: [0; PLACES],
        passed: 0,
    };

    /// The places with a word whose bits under a mask are these, a bit for each.
    fn places_of(&self, mask: Word, bits: Word) -> u32 {
        let w = &self.words;
        let low = i32x8::new([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]);
        let high = i32x8::new([w[8], w[9], w[10], w[11], w[12], w[13], w[14], 0]);
        let (mask, bits) = (i32x8::splat(mask), i32x8::splat(bits));
        let equal = |words: i32x8| (words & mask).cmp_eq(bits).move_mask().cast_unsigned();
        (equal(low) | equal(high) << 8) & ((1 << PLACES) - 1)
    }
}

/// The part of a hash that a word has, where the word has it.
const fn part_of(hash: u32) -> u32 {
    hash << (SLOT_BITS - GENERATION_BITS) | 1 << 31
}

const PART: u32 = !((1 << SLOT_BITS) - 1);

const fn word_of(hash: u32, at: u32) -> Word {
    (part_of(hash) & PART | at).cast_signed()
}

/// The table.
#[derive(Clone, Debug, Default)]
pub(super) struct Buckets {
    /// Those that are some hash's home, and a few more.
    buckets: Vec<Bucket>,
    homes: u32,
}

impl Buckets {
    const fn home(&self, hash: u32) -> usize {
        let hash = (hash >> GENERATION_BITS) as u64;
        ((hash * self.homes as u64) >> SLOT_BITS) as usize
    }

    /// Asks for the bucket of a hash to be brought near, and waits for nothing.
    pub(super) fn approach(&self, hash: u32) {
        prefetch_index(&self.buckets, self.home(hash));
    }

    /// The slot of a hash that is the one sought.
    pub(super) fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let part = word_of(hash, 0);
        for bucket in self.buckets.get(self.home(hash)..)?.iter().take(REACH) {
            let mut places = bucket.places_of(PART.cast_signed(), part);
            while places != 0 {
                let word = bucket.words.get(places.trailing_zeros() as usize)?;
                let at = word.cast_unsigned() & !PART;
                if is_it(at) {
                    return Some(at);
                }
                places &= places - 1;
            }
            if bucket.passed == 0 {
                return None;
            }
        }
        None
    }

    /// Adds a slot. There must be [room](Self::make_room).
    pub(super) fn insert(&mut self, hash: u32, at: u32) {
        let home = self.home(hash);
        for (step, bucket) in self.buckets[home..home + REACH].iter_mut().enumerate() {
            let place = bucket.places_of(-1, 0).trailing_zeros() as usize;
            if let Some(word) = bucket.words.get_mut(place) {
                *word = word_of(hash, at);
                self.pass(home, step, 1);
                return;
            }
        }
    }

    /// Takes a slot out, if it is there.
    pub(super) fn remove(&mut self, hash: u32, at: u32) {
        let home = self.home(hash);
        for (step, bucket) in self.buckets[home..home + REACH].iter_mut().enumerate() {
            let place = bucket.places_of(-1, word_of(hash, at)).trailing_zeros() as usize;
            if let Some(word) = bucket.words.get_mut(place) {
                *word = 0;
                self.pass(home, step, -1);
                return;
            }
        }
    }

    /// Counts one slot more or less that lies so many steps from its home.
    fn pass(&mut self, home: usize, steps: usize, one: i32) {
        for bucket in &mut self.buckets[home..home + steps] {
            bucket.passed = bucket.passed.saturating_add_signed(one);
        }
    }

    /// Makes room for all slots, all of which but the newest are in the table already if they are
    /// live.
    pub(super) fn make_room(&mut self, nodes: &Array<Node>) {
        let slots = nodes.len();
        if slots <= self.homes * FILL {
            return;
        }
        self.homes += self.homes / 8 + 8;
        let len = self.homes as usize + REACH;
        self.buckets.clear();
        self.buckets.reserve_exact(len);
        self.buckets.resize(len, Bucket::EMPTY);
        for (at, node) in (0..slots - 1).zip(nodes.iter()) {
            if node.slot.is_live() {
                self.insert(node.tag.hash(), at);
            }
        }
    }

    /// Bytes of the table.
    pub(super) const fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn with_homes(homes: u32) -> Buckets {
        Buckets {
            buckets: vec![Bucket::EMPTY; homes as usize + REACH],
            homes,
        }
    }

    fn held(buckets: &Buckets) -> usize {
        let words = buckets.buckets.iter().flat_map(|bucket| bucket.words);
        words.filter(|&word| word != 0).count()
    }

    fn finds(buckets: &Buckets, hash: u32, at: u32) -> bool {
        buckets.find(hash, |found| found == at).is_some()
    }

    #[test]
    fn what_a_bucket_has_no_room_for_is_found_behind_it_until_the_reach_ends() {
        let mut buckets = with_homes(64);
        let hash = 0x8000_0000;
        let most = u32::try_from(PLACES * REACH).unwrap();
        for at in 0..=most {
            buckets.insert(hash, at);
        }
        assert_eq!(held(&buckets), PLACES * REACH);
        assert!((0..most).all(|at| finds(&buckets, hash, at)));
        assert!(!finds(&buckets, hash, most), "left out");
        // Taking that out changes nothing, and once the others are gone the table is as it was.
        for at in (0..=most).rev() {
            buckets.remove(hash, at);
            assert!((0..at.min(most)).all(|at| finds(&buckets, hash, at)));
        }
        assert_eq!(held(&buckets), 0);
        assert!(buckets.buckets.iter().all(|bucket| bucket.passed == 0));
    }

    #[test]
    fn a_slot_is_found_by_what_its_tag_keeps_of_the_hash() {
        let hash = 0xdead_beef;
        let tag = Tag::of_first_use(hash).of_next_use(hash);
        assert_eq!(tag.generation(), 2);
        let mut buckets = with_homes(1000);
        buckets.insert(hash, 7);
        buckets.remove(tag.hash(), 7);
        assert_eq!(held(&buckets), 0);
    }

    proptest! {
        /// Whatever is put in is found by its hash and nowhere else, whatever else comes and goes.
        #[test]
        fn the_table_is_a_set_of_hashes_and_slots(
            homes in 1..12_u32,
            operations in prop::collection::vec((any::<bool>(), 0..6_u32, 0..19_u32), 0..300),
        ) {
            let mut buckets = with_homes(homes);
            let mut model = BTreeSet::new();
            for (insert, key, at) in operations {
                // Few hashes, so that buckets run over, and never more slots than the reach of one.
                let hash = (key << 30) | (key << 13);
                if insert {
                    if model.insert((hash, at)) {
                        buckets.insert(hash, at);
                    }
                } else {
                    model.remove(&(hash, at));
                    buckets.remove(hash, at);
                }
                prop_assert_eq!(held(&buckets), model.len());
                for &(hash, at) in &model {
                    prop_assert!(finds(&buckets, hash, at));
                }
                prop_assert_eq!(finds(&buckets, hash, at), model.contains(&(hash, at)));
            }
            for (hash, at) in model {
                buckets.remove(hash, at);
            }
            prop_assert!(buckets.buckets.iter().all(|b| b.passed == 0 && b.words == [0; PLACES]));
        }
    }
}
