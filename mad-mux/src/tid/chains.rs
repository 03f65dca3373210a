//! Finding the slot of a request: chains of the live slots whose hashes fall together.
//!
//! A chain's head is a slot's number, and the slot has the number of the next; so a slot costs one
//! head and one link, and a search reads little but the slot that it is for. Guests choose what is
//! hashed, but not the hash's key.

use alloc::vec::Vec;

use super::pages::Pages;
use super::slots::{END, Node, SLOT_BITS, Slot};

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

    const fn is_of(self, hash: u32) -> bool {
        self.0 >> GENERATION_BITS == hash >> GENERATION_BITS
    }
}

/// The heads of the chains.
#[derive(Clone, Debug, Default)]
pub(super) struct Chains(Vec<u32>);

impl Chains {
    /// Where the chain of a hash, or of the tag of that hash, has its head.
    const fn home(&self, hash: u32) -> usize {
        let hash = (hash >> GENERATION_BITS) as u64;
        ((hash * self.0.len() as u64) >> SLOT_BITS) as usize
    }

    /// The first slot of the chain of a hash.
    pub(super) fn first(&self, hash: u32) -> u32 {
        self.0.get(self.home(hash)).copied().unwrap_or(END)
    }

    /// The slot with a hash that is the one sought.
    pub(super) fn find(
        &self,
        nodes: &Pages<Node>,
        hash: u32,
        is_it: impl Fn(&Slot) -> bool,
    ) -> Option<u32> {
        let mut at = self.first(hash);
        while let Some(node) = nodes.get(at) {
            if node.tag.is_of(hash) && is_it(&node.slot) {
                return Some(at);
            }
            at = node.chained;
        }
        None
    }

    /// Puts a slot into the chain of its tag. There must be [room](Self::make_room).
    pub(super) fn insert(&mut self, nodes: &mut Pages<Node>, at: u32) {
        let node = &mut nodes[at];
        let home = self.home(node.tag.0);
        node.chained = core::mem::replace(&mut self.0[home], at);
    }

    /// Takes a slot out of its chain.
    pub(super) fn remove(&mut self, nodes: &mut Pages<Node>, at: u32) {
        let Node { tag, chained, .. } = nodes[at];
        let home = self.home(tag.0);
        let mut before = self.0[home];
        if before == at {
            self.0[home] = chained;
            return;
        }
        while nodes[before].chained != at {
            before = nodes[before].chained;
        }
        nodes[before].chained = chained;
    }

    /// Makes heads for all slots, all of which but the newest are in the chains already if they are
    /// live.
    pub(super) fn make_room(&mut self, nodes: &mut Pages<Node>) {
        let slots = nodes.len();
        if self.0.len() >= slots as usize {
            return;
        }
        let heads = self.0.len() + self.0.len() / 8 + 64;
        self.0.clear();
        self.0.reserve_exact(heads);
        self.0.resize(heads, END);
        for at in 0..slots - 1 {
            if nodes[at].slot.is_live() {
                self.insert(nodes, at);
            }
        }
    }

    /// Bytes of the heads.
    pub(super) const fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<u32>()
    }
}
