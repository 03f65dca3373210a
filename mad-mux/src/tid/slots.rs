//! The slots of the table, and the order in which their times run out.
//!
//! All slots of a state have the same time to live, so each state is a list in the order of the last
//! use (answered transactions: a list for each owner), threaded through the slots: touching one and
//! finding the first that is due take a constant time, and a timer costs two links.

use std::ops;
use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use vf_tunnel::wire_id::Index;
use vf_tunnel::{SubnetLmcs, VfId, VfTid};

use super::Peer;
use super::lists::{END, Lists, low};
use crate::steering::Owner;

/// What a slot's transaction is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// The request went out.
    Open,
    /// RMPP packets went either way.
    Transfer,
    /// Nobody's. Not given out again before its quarantine is over.
    Free,
    /// An answer came, or the transfer ended.
    Answered,
}

impl SlotState {
    /// The first so many states have one list for all owners.
    pub(super) const SHARED: usize = 3;
    /// Those of them in which a slot is live.
    pub(super) const LIVE_SHARED: [Self; 2] = [Self::Open, Self::Transfer];

    /// How long a slot stays in the state without being used.
    const fn life(self) -> Duration {
        match self {
            Self::Open => Duration::from_secs(60),
            Self::Transfer => Duration::from_secs(45),
            Self::Answered => Duration::from_secs(15),
            Self::Free => QUARANTINE,
        }
    }

    /// Ticks after which it is over for certain: the clock and the last use are both rounded down.
    const fn most_ticks(self) -> u64 {
        let life = self.life();
        ((life.as_secs() * 1_000_000_000 + life.subsec_nanos() as u64) >> TICK_BITS) + 2
    }
}

/// A wire TID comes up again after 4096 uses of its slot at the earliest. With this much time between
/// two uses that takes more than a minute.
const QUARANTINE: Duration = Duration::from_millis(16);

/// Bits of a wire TID's plaintext that say which slot; the others count how often it was used.
const SLOT_BITS: u32 = 20;
const MAX_SLOTS: u32 = 1 << SLOT_BITS;

/// The largest count of a slot's uses, and the bits of a [`Tag`] that hold it.
const GENERATIONS: u32 = (1 << (32 - SLOT_BITS)) - 1;

/// The upper bits of a request's hash, as many as there can be slots, and how often the slot was given
/// out, modulo 2^12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag(u32);

impl Tag {
    const fn of_first_use(hash: u32) -> Self {
        Self(hash & !GENERATIONS | 1)
    }

    /// The tag of the slot's next transaction.
    const fn of_next_use(self, hash: u32) -> Self {
        Self(hash & !GENERATIONS | self.0.wrapping_add(1) & GENERATIONS)
    }

    const fn generation(self) -> u32 {
        self.0 & GENERATIONS
    }

    /// The hash under which the index has the slot.
    const fn hash(self) -> u32 {
        self.0 & !GENERATIONS
    }
}

/// An [`Owner`] in two bytes: its place in tables by owner, the PF first, then its software and the
/// VFs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotOwner(u16);

impl SlotOwner {
    pub(super) fn get(self) -> Owner {
        match self.0.checked_sub(1) {
            None => Owner::Pf,
            Some(number) => Owner::Vf(VfId::new(number).unwrap_or(VfId::PF)),
        }
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<Owner> for SlotOwner {
    fn from(owner: Owner) -> Self {
        match owner {
            Owner::Pf => Self(0),
            Owner::Vf(vf) => Self(vf.get() + 1),
        }
    }
}

/// A transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) tid: VfTid,
    pub(super) peer: Peer,
    pub(super) owner: SlotOwner,
    pub(super) class: MgmtClass,
    /// Of the latest request.
    pub(super) method: Method,
    /// Of the latest request.
    pub(super) attribute: AttributeId,
    pub(super) state: SlotState,
}

impl Slot {
    pub(super) fn is_live(&self) -> bool {
        self.state != SlotState::Free
    }

    /// Whether a request is this one again, or belongs to its transfer.
    pub(super) fn is_request(&self, owner: Owner, header: &MadHeader, to: &Peer) -> bool {
        self.tid.0 == header.tid
            && self.owner == owner.into()
            && self.class == header.mgmt_class
            && self.peer == *to
    }

    /// Returns `true` if something may come from the one that was asked: from where
    /// [`SubnetLmcs::may_answer`] says, or from the GID that was asked.
    pub(super) fn is_peer(&self, from: &Peer, lmcs: &SubnetLmcs) -> bool {
        let by_gid = !self.peer.gid.is_none() && self.peer.gid == from.gid;
        self.peer.qpn == from.qpn && (by_gid || lmcs.may_answer(self.peer.lid, from.lid))
    }

    /// Whether an answer's class, method and attribute answer the request.
    pub(super) fn is_answered_by(&self, answer: &MadHeader) -> bool {
        // Some answers are made of other records, and a trace comes as a table (IBA 15.4.9, 15.4.10).
        let attribute = match (self.method, self.attribute) {
            (Method::GET_TRACE_TABLE, _) => AttributeId::TRACE_RECORD,
            (_, AttributeId::MULTI_PATH_RECORD) => AttributeId::PATH_RECORD,
            (_, attribute) => attribute,
        };
        self.class == answer.mgmt_class
            && answer.method == self.method.response()
            && (answer.attribute_id == self.attribute || answer.attribute_id == attribute)
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
    tag: Tag,
}

// With its entry in the index this is a transaction's whole cost.
const _: () = assert!(size_of::<Node>() == 52);

const TICK_BITS: u32 = 20;

/// Slots that there is room for at first.
const FIRST: usize = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    nodes: Vec<Node>,
    /// The live slots by the hashes of their requests.
    index: Index,
    live: usize,
    lists: Lists,
    /// The upper part of the clock, which slots do not keep.
    now: u64,
}

impl ops::Index<u32> for Slots {
    type Output = Slot;

    fn index(&self, slot: u32) -> &Slot {
        &self.node(slot).slot
    }
}

impl Slots {
    /// Live slots.
    pub(super) const fn len(&self) -> usize {
        self.live
    }

    /// Takes note of the time.
    pub(super) fn see(&mut self, now: Instant) {
        self.now = self.now.max(now.as_nanos() >> TICK_BITS);
    }

    /// The live slot with a hash that is the one sought.
    pub(super) fn find(&self, hash: u32, is_it: impl Fn(&Slot) -> bool) -> Option<u32> {
        let mut slots = self.index.matches(hash & !GENERATIONS);
        slots.find(|&at| is_it(&self[at]))
    }

    /// Takes a slot, in the state that `slot` says; `None` if there are no more.
    pub(super) fn open(&mut self, hash: u32, slot: Slot) -> Option<u32> {
        let free = *self.lists.free();
        let at = if free.due <= self.now {
            let oldest = free.first;
            let Node {
                prev, next, tag, ..
            } = *self.node(oldest);
            self.unlink(SlotState::Free, slot.owner, prev, next);
            let node = self.node_mut(oldest);
            node.slot = slot;
            node.tag = tag.of_next_use(hash);
            oldest
        } else {
            self.push(Node {
                slot,
                used: 0,
                prev: END,
                next: END,
                tag: Tag::of_first_use(hash),
            })?
        };
        self.index.insert(self.node(at).tag.hash(), at);
        self.live += 1;
        self.link(at, slot.state, slot.owner);
        Some(at)
    }

    /// Adds a slot; `None` if there can be no more. The room grows by a sixteenth, because room is
    /// counted with what it holds.
    fn push(&mut self, node: Node) -> Option<u32> {
        let at = u32::try_from(self.nodes.len()).ok();
        let at = at.filter(|&at| at < MAX_SLOTS)?;
        if self.nodes.len() == self.nodes.capacity() {
            self.nodes.reserve_exact(self.nodes.len() / 16 + FIRST);
        }
        self.nodes.push(node);
        Some(at)
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    /// Takes note of the question that is asked now.
    pub(super) fn ask(&mut self, at: u32, request: &MadHeader) {
        let slot = &mut self.node_mut(at).slot;
        (slot.method, slot.attribute) = (request.method, request.attribute_id);
    }

    /// Notes that a slot was used, and what it does now.
    pub(super) fn touch(&mut self, at: u32, state: SlotState) {
        let now = low(self.now);
        let node = self.node_mut(at);
        let (before, owner) = (node.slot.state, node.slot.owner);
        let (prev, next) = (node.prev, node.next);
        if before == state && next == END && prev != END {
            node.used = now;
            self.check_later(state, owner);
            return;
        }
        node.slot.state = state;
        self.unlink(before, owner, prev, next);
        self.link(at, state, owner);
    }

    /// Ends a live slot's transaction.
    pub(super) fn close(&mut self, at: u32) {
        self.index.remove(self.node(at).tag.hash(), at);
        self.live -= 1;
        self.touch(at, SlotState::Free);
    }

    /// A live slot whose time is over.
    #[inline]
    pub(super) fn first_due(&mut self) -> Option<u32> {
        self.lists.first_due(self.now)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let due = self.lists.next_due(self.now)?;
        Some(Instant::from_ticks(due, TICK_BITS))
    }

    /// The owner's answered slot that was not used for the longest time.
    pub(super) fn oldest_answered(&self, owner: Owner) -> Option<u32> {
        let list = self.lists.answered(owner.into())?;
        (list.first != END).then_some(list.first)
    }

    /// The live slots, in the order of their numbers.
    pub(super) fn live(&self) -> impl Iterator<Item = u32> {
        (0..)
            .zip(self.nodes.iter())
            .filter(|(_, node)| node.slot.is_live())
            .map(|(at, _)| at)
    }

    /// The live slots of one owner.
    pub(super) fn of(&self, owner: Owner) -> Vec<u32> {
        self.live()
            .filter(|&at| self[at].owner == owner.into())
            .collect()
    }

    /// How long a slot has not been used, in steps of [`TICK_BITS`].
    pub(super) fn idle(&self, now: Instant, at: u32) -> Duration {
        let now = low(self.now.max(now.as_nanos() >> TICK_BITS));
        let ticks = now.wrapping_sub(self.node(at).used);
        Duration::from_nanos(u64::from(ticks) << TICK_BITS)
    }

    /// The plaintext of a slot's wire TID.
    pub(super) fn name(&self, at: u32) -> u32 {
        name_of(at, self.node(at).tag)
    }

    /// The live slot that a plaintext names.
    pub(super) fn named(&self, name: u32) -> Option<u32> {
        let at = name & (MAX_SLOTS - 1);
        let node = self.nodes.get(at as usize)?;
        let is_named = node.tag.generation() == name >> SLOT_BITS;
        (is_named && node.slot.is_live()).then_some(at)
    }

    pub(super) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.index.bytes() + self.lists.bytes()
    }

    /// The tick at which a slot of the state is due.
    fn deadline(&self, at: u32, state: SlotState) -> u64 {
        let age = low(self.now).wrapping_sub(self.node(at).used);
        self.now.saturating_sub(u64::from(age)) + state.most_ticks()
    }

    /// Puts a slot, which is of the state already, behind the others of its list.
    fn link(&mut self, at: u32, state: SlotState, owner: SlotOwner) {
        let due = self.now + state.most_ticks();
        let list = self.lists.of_mut(state, owner);
        let last = core::mem::replace(&mut list.last, at);
        if last == END {
            list.first = at;
            list.due = due;
        } else {
            self.node_mut(last).next = at;
        }
        self.check_later(state, owner);
        let now = low(self.now);
        let node = self.node_mut(at);
        node.used = now;
        node.prev = last;
        node.next = END;
    }

    /// Sees to it that a slot that is used now is looked at when its time is over, if that is not told
    /// by the first of its list.
    #[inline]
    fn check_later(&mut self, state: SlotState, owner: SlotOwner) {
        if state == SlotState::Answered {
            self.lists.check(owner, self.now + state.most_ticks());
        }
    }

    /// Takes the slot out between two others of a list.
    fn unlink(&mut self, state: SlotState, owner: SlotOwner, prev: u32, next: u32) {
        if next == END {
            self.lists.of_mut(state, owner).last = prev;
        } else {
            self.node_mut(next).prev = prev;
        }
        if prev != END {
            self.node_mut(prev).next = next;
            return;
        }
        let due = if next == END {
            u64::MAX
        } else {
            self.deadline(next, state)
        };
        let list = self.lists.of_mut(state, owner);
        (list.first, list.due) = (next, due);
    }
}

const fn name_of(at: u32, tag: Tag) -> u32 {
    tag.generation() << SLOT_BITS | at
}
