//! The slots of the table, and the order in which their times run out.
//!
//! All slots of a state have the same time to live, so each state is a list in the order of the last
//! use, threaded through the slots: touching one and finding the first that is due take a constant
//! time, and a timer costs two links.

use alloc::vec::Vec;
use core::ops::Index;
use core::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use vf_tunnel::VfTid;

use super::Peer;
use super::pages::Pages;
use crate::steering::Owner;

/// What a slot's transaction is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// The request went out.
    Open,
    /// RMPP packets went either way.
    Transfer,
    /// An answer came, or the transfer ended.
    Answered,
    /// Nobody's. Not given out again before its quarantine is over.
    Free,
}

const STATES: usize = 4;

impl SlotState {
    const LISTED: [Self; STATES] = [Self::Open, Self::Transfer, Self::Answered, Self::Free];

    /// How long a slot stays in the state without being used.
    const fn life(self) -> Duration {
        match self {
            Self::Open => Duration::from_secs(60),
            Self::Transfer => Duration::from_secs(45),
            Self::Answered => Duration::from_secs(15),
            Self::Free => QUARANTINE,
        }
    }

    /// The same in whole ticks, rounded down.
    const fn life_ticks(self) -> u64 {
        let life = self.life();
        (life.as_secs() * 1_000_000_000 + life.subsec_nanos() as u64) >> TICK_BITS
    }
}

/// A wire TID comes up again after 4096 uses of its slot at the earliest. With this much time between
/// two uses that takes more than a minute.
const QUARANTINE: Duration = Duration::from_millis(16);

/// Bits of a wire TID's plaintext that say which slot; the others count how often it was used.
const SLOT_BITS: u32 = 20;
const MAX_SLOTS: u32 = 1 << SLOT_BITS;

/// A transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) tid: VfTid,
    pub(super) peer: Peer,
    pub(super) owner: Owner,
    pub(super) class: MgmtClass,
    /// Of the latest request.
    pub(super) method: Method,
    /// Of the latest request.
    pub(super) attribute: AttributeId,
    pub(super) state: SlotState,
}

impl Slot {
    /// Whether a request is this one again, or belongs to its transfer.
    pub(super) fn is_request(&self, owner: Owner, header: &MadHeader, to: &Peer) -> bool {
        self.tid.0 == header.tid
            && self.owner == owner
            && self.class == header.mgmt_class
            && self.peer == *to
    }

    /// Whether something comes from the one that was asked.
    pub(super) fn is_peer(&self, from: &Peer) -> bool {
        let by_lid = self.peer.lid == from.lid && self.peer.qpn == from.qpn;
        let by_gid = !self.peer.gid.is_none() && self.peer.gid == from.gid;
        by_lid || (by_gid && self.peer.qpn == from.qpn)
    }

    /// Whether an answer's class, method and attribute answer the request.
    pub(super) fn is_answered_by(&self, answer: &MadHeader) -> bool {
        // Some answers are made of other records, and a trace comes as a table (IBA 15.4.9, 15.4.10).
        let (method, attribute) = match (self.method, self.attribute) {
            (Method::GET_TRACE_TABLE, _) => (Method::GET_TABLE_RESP, AttributeId::TRACE_RECORD),
            (method, AttributeId::MULTI_PATH_RECORD) => {
                (method.response(), AttributeId::PATH_RECORD)
            }
            (method, attribute) => (method.response(), attribute),
        };
        self.class == answer.mgmt_class
            && (answer.method == self.method.response() || answer.method == method)
            && (answer.attribute_id == self.attribute || answer.attribute_id == attribute)
    }

    /// As much of the request's header as its hash needs.
    pub(super) const fn request_header(&self) -> MadHeader {
        let mut header = MadHeader::new(self.class, self.method, self.attribute);
        header.tid = self.tid.0;
        header
    }
}

/// A slot with its place in the list of its state.
#[derive(Clone, Copy, Debug)]
struct Node {
    slot: Slot,
    /// When it was last used, in units of 2^20 ns (1.05 ms), modulo 2^32.
    used: u32,
    prev: u32,
    next: u32,
    /// How often the slot was given out, modulo 2^12.
    generation: u16,
}

// With the index's 12 bytes this is a transaction's whole cost.
const _: () = assert!(size_of::<Node>() <= 52);

const TICK_BITS: u32 = 20;
const END: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Slots {
    nodes: Pages<Node>,
    lists: [List; STATES],
    /// The upper part of the clock, which slots do not keep.
    now: u64,
    /// No live slot is due before this tick.
    soonest: u64,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            nodes: Pages::default(),
            lists: [List {
                first: END,
                last: END,
            }; STATES],
            now: 0,
            soonest: u64::MAX,
        }
    }
}

impl Index<u32> for Slots {
    type Output = Slot;

    fn index(&self, slot: u32) -> &Slot {
        &self.nodes[slot].slot
    }
}

impl Slots {
    /// Takes a slot; `None` if there are no more.
    pub(super) fn open(&mut self, now: Instant, slot: Slot) -> Option<u32> {
        self.see(now);
        let oldest = self.lists[SlotState::Free as usize].first;
        let at = if oldest != END && self.deadline(oldest, SlotState::Free) <= self.now {
            self.unlink(oldest);
            oldest
        } else {
            let at = self.nodes.len();
            if at >= MAX_SLOTS {
                return None;
            }
            self.nodes.push(Node {
                slot,
                used: 0,
                prev: END,
                next: END,
                generation: 0,
            });
            at
        };
        let node = &mut self.nodes[at];
        node.slot = slot;
        node.generation = node.generation.wrapping_add(1) & GENERATIONS;
        self.link(at);
        Some(at)
    }

    /// Takes note of the question that is asked now.
    pub(super) fn ask(&mut self, at: u32, request: &MadHeader) {
        let slot = &mut self.nodes[at].slot;
        (slot.method, slot.attribute) = (request.method, request.attribute_id);
    }

    /// Notes that a slot was used, and what it does now.
    pub(super) fn touch(&mut self, now: Instant, at: u32, state: SlotState) {
        self.see(now);
        let node = &mut self.nodes[at];
        if node.slot.state == state && self.lists[state as usize].last == at {
            node.used = low(self.now);
            return;
        }
        self.unlink(at);
        self.nodes[at].slot.state = state;
        self.link(at);
    }

    pub(super) fn close(&mut self, now: Instant, at: u32) {
        self.touch(now, at, SlotState::Free);
    }

    /// A live slot whose time is over.
    pub(super) fn first_due(&mut self, now: Instant) -> Option<u32> {
        self.see(now);
        if self.now < self.soonest {
            return None;
        }
        let first = self.first_live();
        self.soonest = first.map_or(u64::MAX, |(_, due)| due);
        first
            .filter(|&(_, due)| due <= self.now)
            .map(|(slot, _)| slot)
    }

    /// The live slot that is due first, and the tick at which it is.
    fn first_live(&self) -> Option<(u32, u64)> {
        let live = &SlotState::LISTED[..SlotState::Free as usize];
        let firsts = live.iter().filter_map(|&state| {
            let first = self.lists[state as usize].first;
            (first != END).then(|| (first, self.deadline(first, state)))
        });
        firsts.min_by_key(|&(_, due)| due)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let (_, due) = self.first_live()?;
        Some(Instant::from_nanos(due << TICK_BITS))
    }

    /// The live slots, in the order of their numbers.
    pub(super) fn live(&self) -> impl Iterator<Item = u32> {
        (0..)
            .zip(self.nodes.iter())
            .filter(|(_, node)| node.slot.state != SlotState::Free)
            .map(|(at, _)| at)
    }

    /// The live slots of one owner.
    pub(super) fn of(&self, owner: Owner) -> Vec<u32> {
        self.live().filter(|&at| self[at].owner == owner).collect()
    }

    /// How long a slot has not been used, in steps of [`TICK_BITS`].
    pub(super) fn idle(&self, now: Instant, at: u32) -> Duration {
        let now = low(self.now.max(now.as_nanos() >> TICK_BITS));
        let ticks = now.wrapping_sub(self.nodes[at].used);
        Duration::from_nanos(u64::from(ticks) << TICK_BITS)
    }

    /// The plaintext of a slot's wire TID.
    pub(super) fn name(&self, at: u32) -> u32 {
        u32::from(self.nodes[at].generation) << SLOT_BITS | at
    }

    /// The slot that a plaintext would name.
    pub(super) const fn place_of(name: u32) -> u32 {
        name & ((1 << SLOT_BITS) - 1)
    }

    /// Reads a bit of a slot, if it was ever in use.
    pub(super) fn peek(&self, at: u32) -> Option<u32> {
        self.nodes.get(at).map(|node| node.used)
    }

    /// The live slot that a plaintext names.
    pub(super) fn named(&self, name: u32) -> Option<u32> {
        let at = Self::place_of(name);
        let node = self.nodes.get(at)?;
        (node.slot.state != SlotState::Free && self.name(at) == name).then_some(at)
    }

    pub(super) const fn bytes(&self) -> usize {
        self.nodes.bytes()
    }

    fn see(&mut self, now: Instant) {
        self.now = self.now.max(now.as_nanos() >> TICK_BITS);
    }

    /// The tick at which a slot of the state is due: rounded up, so never early.
    fn deadline(&self, at: u32, state: SlotState) -> u64 {
        let used = self.nodes[at].used;
        let age = low(self.now).wrapping_sub(used);
        self.now - u64::from(age).min(self.now) + state.life_ticks() + 2
    }

    fn link(&mut self, at: u32) {
        let node = &mut self.nodes[at];
        let state = node.slot.state as usize;
        if node.slot.state != SlotState::Free {
            self.soonest = self
                .soonest
                .min(self.now + node.slot.state.life_ticks() + 2);
        }
        let last = self.lists[state].last;
        node.used = low(self.now);
        node.prev = last;
        node.next = END;
        if last == END {
            self.lists[state].first = at;
        } else {
            self.nodes[last].next = at;
        }
        self.lists[state].last = at;
    }

    fn unlink(&mut self, at: u32) {
        let Node {
            prev, next, slot, ..
        } = self.nodes[at];
        let list = &mut self.lists[slot.state as usize];
        if prev == END {
            list.first = next;
        }
        if next == END {
            list.last = prev;
        }
        if prev != END {
            self.nodes[prev].next = next;
        }
        if next != END {
            self.nodes[next].prev = prev;
        }
    }
}

const GENERATIONS: u16 = (1 << (32 - SLOT_BITS)) - 1;

#[expect(
    clippy::cast_possible_truncation,
    reason = "slots keep the low half of the clock"
)]
const fn low(tick: u64) -> u32 {
    tick as u32
}
