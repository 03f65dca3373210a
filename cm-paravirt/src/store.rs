//! The slots: one for every communication id, in pages of two parallel arrays.
//!
//! What a message that passes needs is in [`Hot`], half a cache line that never straddles two. What
//! only the beginning, the end and the timers of an exchange need is in [`Cold`]. Pages never move,
//! so a growing table neither copies nor doubles.

use bitflags::bitflags;
use ib_wire::{CommId, Gid, Guid, Lid, PKey, PortNum, Qpn};
use vf_tunnel::wire_id::{NO_SLOT, Permutation};
use vf_tunnel::{RemoteCommId, VfCommId, VfId, WireCommId};

use crate::state::State;

bitflags! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u8 {
        /// The slot is in use.
        const LIVE = 1 << 0;
        /// The VF's id is known and in the index.
        const BOUND = 1 << 1;
        /// The peer's id is known.
        const REMOTE = 1 << 2;
        /// A SIDR request id, not a communication id.
        const SIDR = 1 << 3;
        /// The VF uses its id for something newer; only the peer can still name this slot.
        const SUPERSEDED = 1 << 4;
        /// In a bucket of the wheel.
        const TIMED = 1 << 5;
        /// In the index of peers.
        const BY_PEER = 1 << 6;
        /// The exchange's packets have a GRH.
        const GLOBAL = 1 << 7;
    }
}

/// What every passing message needs.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Hot {
    pub(crate) wire: WireCommId,
    pub(crate) guest: VfCommId,
    pub(crate) remote: RemoteCommId,
    /// The tick at which the slot ends, unless the state's clock is "never".
    pub(crate) deadline: u32,
    /// Until the connection ends the handshake's [`Terms`], in quarantine the tick beyond which
    /// nothing extends it.
    pub(crate) limit: u32,
    pub(crate) vf: VfId,
    /// The peer's LID; [`Lid::NONE`] if the next message shall tell.
    pub(crate) lid: Lid,
    /// The LID of the peer's alternate path.
    pub(crate) alternate_lid: Lid,
    pub(crate) pkey: PKey,
    pub(crate) state: State,
    pub(crate) flags: Flags,
    pub(crate) port: PortNum,
    pub(crate) sl: u8,
}

/// What a handshake is given, as its REQ says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Ticks after each of its messages.
    pub(crate) ticks: u16,
    /// How often its REP can still be sent.
    pub(crate) reps: u8,
    /// Whether the VF's end is an XRC target, which ends without a DREQ.
    pub(crate) is_xrc_target: bool,
}

impl Terms {
    pub(crate) const fn from_word(word: u32) -> Self {
        let [high, low, reps, xrc] = word.to_be_bytes();
        Self {
            ticks: u16::from_be_bytes([high, low]),
            reps,
            is_xrc_target: xrc != 0,
        }
    }

    pub(crate) const fn to_word(self) -> u32 {
        let [high, low] = self.ticks.to_be_bytes();
        u32::from_be_bytes([high, low, self.reps, self.is_xrc_target as u8])
    }
}

/// Neighbours in a doubly linked list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

/// What only the beginning and the end need.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Cold {
    pub(crate) gid: Gid,
    pub(crate) ca_guid: Guid,
    /// The peer's QP; zero if not learned.
    pub(crate) qpn: Qpn,
    /// In the wheel or, for a slot not in use, in the list of those.
    pub(crate) timer: Links,
    /// The VF's other slots.
    pub(crate) siblings: Links,
}

const _: () = assert!(size_of::<Hot>() == 32);
const _: () = assert!(size_of::<Cold>() == 44);

const UNLINKED: Links = Links {
    prev: NO_SLOT,
    next: NO_SLOT,
};

impl Hot {
    pub(crate) const fn has(&self, flags: Flags) -> bool {
        self.flags.contains(flags)
    }

    /// Whether the slot's owner is there on a port: a VF is on all of them.
    pub(crate) fn is_reached_by(&self, port: PortNum) -> bool {
        self.vf != VfId::PF || self.port == port
    }

    /// The terms of the slot's handshake. In quarantine it has none any more.
    pub(crate) const fn terms(&self) -> Terms {
        Terms::from_word(self.limit)
    }

    /// A slot that nobody uses yet.
    fn blank() -> Self {
        Self {
            wire: WireCommId(CommId::NONE),
            guest: VfCommId(CommId::NONE),
            remote: RemoteCommId(CommId::NONE),
            deadline: 0,
            limit: 0,
            vf: FIRST_VF,
            lid: Lid::NONE,
            alternate_lid: Lid::NONE,
            pkey: PKey::INVALID,
            state: State::Closed,
            flags: Flags::empty(),
            port: PortNum(0),
            sl: 0,
        }
    }
}

impl Cold {
    fn blank() -> Self {
        Self {
            gid: Gid::NONE,
            ca_guid: Guid::NONE,
            qpn: Qpn::default(),
            timer: UNLINKED,
            siblings: UNLINKED,
        }
    }
}

const FIRST_VF: VfId = match VfId::new(1) {
    Some(vf) => vf,
    None => unreachable!(),
};

/// Bits of a wire id's plaintext that say which slot; the others count how often it was used.
pub(crate) const SLOT_BITS: u32 = 24;
const PAGE_BITS: u32 = 10;
const PAGE: usize = 1 << PAGE_BITS;

#[derive(Clone, Debug)]
struct Page {
    hot: Box<[Hot]>,
    cold: Box<[Cold]>,
}

#[derive(Clone, Debug)]
pub(crate) struct Store {
    pages: Vec<Page>,
    permutation: Permutation,
    /// Slots that were ever used.
    opened: u32,
    live: u32,
    /// Slots not in use, the one that waits longest first.
    free_first: u32,
    free_last: u32,
}

const fn split(slot: u32) -> (usize, usize) {
    ((slot >> PAGE_BITS) as usize, slot as usize & (PAGE - 1))
}

impl Store {
    pub(crate) const fn new(permutation: Permutation) -> Self {
        Self {
            pages: Vec::new(),
            permutation,
            opened: 0,
            live: 0,
            free_first: NO_SLOT,
            free_last: NO_SLOT,
        }
    }

    pub(crate) fn hot(&self, slot: u32) -> &Hot {
        let (page, place) = split(slot);
        &self.pages[page].hot[place]
    }

    pub(crate) fn hot_mut(&mut self, slot: u32) -> &mut Hot {
        let (page, place) = split(slot);
        &mut self.pages[page].hot[place]
    }

    pub(crate) fn cold(&self, slot: u32) -> &Cold {
        let (page, place) = split(slot);
        &self.pages[page].cold[place]
    }

    pub(crate) fn cold_mut(&mut self, slot: u32) -> &mut Cold {
        let (page, place) = split(slot);
        &mut self.pages[page].cold[place]
    }

    pub(crate) const fn live(&self) -> u32 {
        self.live
    }

    /// Bytes that the slots hold.
    pub(crate) const fn bytes(&self) -> usize {
        self.pages.len() * PAGE * (size_of::<Hot>() + size_of::<Cold>())
    }

    /// The slots in use, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        (0..self.opened).filter(|&slot| self.hot(slot).has(Flags::LIVE))
    }

    /// The slot that a wire id names.
    pub(crate) fn by_wire(&self, wire: WireCommId) -> Option<u32> {
        let slot = self.place_of(wire);
        self.get(slot)
            .is_some_and(|hot| hot.wire == wire && hot.has(Flags::LIVE))
            .then_some(slot)
    }

    /// The slot that a wire id would name.
    pub(crate) fn place_of(&self, wire: WireCommId) -> u32 {
        self.permutation.decode(wire.0.get()) & ((1 << SLOT_BITS) - 1)
    }

    /// A slot that was in use at least once.
    pub(crate) fn get(&self, slot: u32) -> Option<&Hot> {
        (slot < self.opened).then(|| self.hot(slot))
    }

    /// Takes a slot into use and gives it a wire id that it never had, or not for as long as its
    /// count of uses takes to come round.
    pub(crate) fn open(&mut self, vf: VfId) -> Option<u32> {
        let slot = self.take_free().or_else(|| self.take_fresh())?;
        let wire = self.next_wire_id(slot);
        *self.hot_mut(slot) = Hot {
            wire,
            vf,
            flags: Flags::LIVE,
            ..Hot::blank()
        };
        *self.cold_mut(slot) = Cold::blank();
        self.live += 1;
        Some(slot)
    }

    pub(crate) fn close(&mut self, slot: u32) {
        self.hot_mut(slot).flags = Flags::empty();
        self.cold_mut(slot).timer = UNLINKED;
        match self.free_last {
            NO_SLOT => self.free_first = slot,
            last => self.cold_mut(last).timer.next = slot,
        }
        self.free_last = slot;
        self.live -= 1;
    }

    fn take_free(&mut self) -> Option<u32> {
        let slot = self.free_first;
        if slot == NO_SLOT {
            return None;
        }
        self.free_first = self.cold(slot).timer.next;
        if self.free_first == NO_SLOT {
            self.free_last = NO_SLOT;
        }
        Some(slot)
    }

    fn take_fresh(&mut self) -> Option<u32> {
        let slot = self.opened;
        if slot >> SLOT_BITS != 0 {
            return None;
        }
        if split(slot).0 == self.pages.len() {
            self.pages.push(Page {
                hot: vec![Hot::blank(); PAGE].into_boxed_slice(),
                cold: vec![Cold::blank(); PAGE].into_boxed_slice(),
            });
        }
        self.opened += 1;
        // "Used never" is one step before the first use; the step from there is the first id.
        let before = u32::MAX << SLOT_BITS | slot;
        self.hot_mut(slot).wire = WireCommId(CommId::new(self.permutation.encode(before)));
        Some(slot)
    }

    /// The id after the slot's last one. Two of the 2^32 words are no ids and are passed over.
    fn next_wire_id(&self, slot: u32) -> WireCommId {
        let mut plain = self.permutation.decode(self.hot(slot).wire.0.get());
        loop {
            plain = plain.wrapping_add(1 << SLOT_BITS);
            let id = self.permutation.encode(plain);
            if id != 0 && id != u32::MAX {
                return WireCommId(CommId::new(id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn store() -> Store {
        Store::new(Permutation::new(7))
    }

    #[test]
    fn a_wire_id_leads_to_its_slot_only_while_that_is_in_use() {
        let mut store = store();
        let slot = store.open(FIRST_VF).expect("room");
        let wire = store.hot(slot).wire;
        assert_eq!(store.by_wire(wire), Some(slot));
        store.close(slot);
        assert_eq!(store.by_wire(wire), None);
        assert_eq!(store.open(FIRST_VF), Some(slot));
        assert_eq!(store.by_wire(wire), None, "a slot used again has a new id");
    }

    #[test]
    fn a_slot_has_256_ids_before_one_comes_again() {
        let mut store = store();
        let mut seen = BTreeSet::new();
        for _ in 0..256 {
            let slot = store.open(FIRST_VF).expect("room");
            assert!(seen.insert(store.hot(slot).wire));
            store.close(slot);
        }
        assert_eq!(store.opened, 1);
    }

    #[test]
    fn a_slot_rests_while_others_are_free_longer() {
        let mut store = store();
        let slots: Vec<u32> = (0..3).filter_map(|_| store.open(FIRST_VF)).collect();
        for slot in [1, 0, 2] {
            store.close(slots[slot]);
        }
        let again: Vec<u32> = (0..3).filter_map(|_| store.open(FIRST_VF)).collect();
        assert_eq!(again, [1, 0, 2]);
        assert_eq!(store.live(), 3);
    }

    #[test]
    fn neither_zero_nor_all_ones_is_ever_a_wire_id() {
        let mut store = store();
        // The first id of this slot would be the word that encodes to zero.
        let zero = store.permutation.decode(0);
        store.opened = 1;
        store.pages.push(Page {
            hot: vec![Hot::blank(); PAGE].into_boxed_slice(),
            cold: vec![Cold::blank(); PAGE].into_boxed_slice(),
        });
        let before = store.permutation.encode(zero.wrapping_sub(1 << SLOT_BITS));
        store.hot_mut(0).wire = WireCommId(CommId::new(before));
        let after = store.permutation.encode(zero.wrapping_add(1 << SLOT_BITS));
        assert_eq!(store.next_wire_id(0).0.get(), after);
    }

    #[test]
    fn a_wire_id_of_the_first_slot_that_was_never_used_names_nothing() {
        let mut store = store();
        for opened in 0..=2 * PAGE {
            let next = u32::try_from(opened).expect("few");
            let guess = WireCommId(CommId::new(store.permutation.encode(next)));
            assert_eq!(store.by_wire(guess), None);
            assert!(store.get(next).is_none());
            store.open(FIRST_VF).expect("room");
        }
    }

    #[test]
    fn random_words_name_no_slot() {
        let mut store = store();
        let slots: Vec<u32> = (0..1000).filter_map(|_| store.open(FIRST_VF)).collect();
        let ids: BTreeSet<u32> = slots.iter().map(|&s| store.hot(s).wire.0.get()).collect();
        let hits = (0..1_000_000)
            .filter(|id| !ids.contains(id))
            .filter(|&id| store.by_wire(WireCommId(CommId::new(id))).is_some())
            .count();
        assert_eq!(hits, 0);
    }
}
