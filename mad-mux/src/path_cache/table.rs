//! The entries of the cache: by request, by time and by VF.

use std::array;
use std::collections::{BTreeMap, BTreeSet};

use ib_vtime::{Instant, SplitMix64};
use ib_wire::Guid;
use ib_wire::mad::Mad;
use vf_tunnel::wire_id::{Index, KeyedHash};
use vf_tunnel::{VfId, VfTid, WireTid};

use super::request::PathRequest;

/// What is known about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The SA is being asked.
    Asked {
        /// Since when.
        since: Instant,
        /// The request's TID as its VF wrote it.
        tid: VfTid,
        /// The same as the SA sees it.
        wire: WireTid,
    },
    /// The SA gave it.
    Path,
    /// The SA said why there is none.
    Error,
}

/// A path that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) request: PathRequest,
    /// Who asked, and has it in its share.
    pub(super) vf: VfId,
    pub(super) state: State,
    pub(super) deadline: Instant,
    /// The answer, once there is one.
    pub(super) answer: Mad,
}

// What a cached path costs, but for the trees' and the index's part of about 150 bytes.
const _: () = assert!(size_of::<Option<Entry>>() <= 384);

/// The entries.
#[derive(Clone, Debug)]
pub(super) struct Table {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    index: Index,
    keys: [u64; 10],
    hash: KeyedHash,
    by_deadline: BTreeSet<(Instant, u32)>,
    by_vf: BTreeSet<(VfId, Instant, u32)>,
    by_wire_tid: BTreeMap<WireTid, u32>,
    by_end: BTreeSet<(Guid, u32)>,
}

impl Table {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            index: Index::new(),
            keys: array::from_fn(|_| random.next()),
            hash: KeyedHash::new([random.next(), random.next()]),
            by_deadline: BTreeSet::new(),
            by_vf: BTreeSet::new(),
            by_wire_tid: BTreeMap::new(),
            by_end: BTreeSet::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_deadline.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn find(&self, request: &PathRequest) -> Option<u32> {
        let mut slots = self.index.matches(self.hash_of(request));
        slots.find(|&slot| self.get(slot).is_some_and(|e| e.request == *request))
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Entry> {
        self.entries.get(slot as usize)?.as_ref()
    }

    /// The entry whose answer comes under a wire TID.
    pub(super) fn asked_under(&self, wire: WireTid) -> Option<u32> {
        self.by_wire_tid.get(&wire).copied()
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        let Some(slot) = self.free.pop().or_else(|| {
            let slot = u32::try_from(self.entries.len()).ok()?;
            self.entries.push(None);
            Some(slot)
        }) else {
            return;
        };
        if let State::Asked { wire, .. } = entry.state {
            self.by_wire_tid.insert(wire, slot);
        }
        self.index.insert(self.hash_of(&entry.request), slot);
        self.by_deadline.insert((entry.deadline, slot));
        self.by_vf.insert((entry.vf, entry.deadline, slot));
        self.by_end
            .extend(entry.request.ends().map(|end| (end, slot)));
        self.entries[slot as usize] = Some(entry);
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Entry> {
        let entry = self.entries.get_mut(slot as usize)?.take()?;
        if let State::Asked { wire, .. } = entry.state {
            self.by_wire_tid.remove(&wire);
        }
        self.index.remove(self.hash_of(&entry.request), slot);
        self.by_deadline.remove(&(entry.deadline, slot));
        self.by_vf.remove(&(entry.vf, entry.deadline, slot));
        for end in entry.request.ends() {
            self.by_end.remove(&(end, slot));
        }
        self.free.push(slot);
        Some(entry)
    }

    /// Takes the answer to what was asked.
    pub(super) fn settle(&mut self, slot: u32, state: State, answer: &Mad, deadline: Instant) {
        if let Some(entry) = self.remove(slot) {
            self.insert(Entry {
                state,
                answer: *answer,
                deadline,
                ..entry
            });
        }
    }

    /// The entry that ends first.
    pub(super) fn first(&self) -> Option<(Instant, u32)> {
        self.by_deadline.first().copied()
    }

    /// The entries of a VF, those that end first before the others.
    pub(super) fn of(&self, vf: VfId) -> impl Iterator<Item = u32> {
        let all = (vf, Instant::ZERO, 0)..=(vf, Instant::from_nanos(u64::MAX), u32::MAX);
        self.by_vf.range(all).map(|&(_, _, slot)| slot)
    }

    /// The entries from and to the port with this GUID.
    pub(super) fn of_end(&self, end: Guid) -> impl Iterator<Item = u32> {
        let all = (end, 0)..=(end, u32::MAX);
        self.by_end.range(all).map(|&(_, slot)| slot)
    }

    /// Chosen requests must not collide: the words are summed in pairs under secret keys (NH of Black
    /// et al., "UMAC", 1999, with 64-bit words), and the sum is hashed. SipHash over all of them would
    /// take most of the time of a hit.
    fn hash_of(&self, request: &PathRequest) -> u32 {
        let words = request.words();
        let pairs = words.chunks_exact(2).zip(self.keys.chunks_exact(2));
        let sum = pairs.fold(0_u128, |sum, (words, keys)| {
            let [a, b] = [0, 1].map(|i| u128::from(words[i].wrapping_add(keys[i])));
            sum.wrapping_add(a * b)
        });
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the two halves, one after the other"
        )]
        let (high, low) = ((sum >> 64) as u64, sum as u64);
        self.hash.hash(low ^ high.rotate_left(32))
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::Gid;
    use ib_wire::mad::Method;
    use ib_wire::sa::{PathRecord, SaMad};

    use super::*;

    #[test]
    fn a_bit_more_or_less_in_a_request_gives_another_hash() {
        let table = Table::new(7);
        let hash = |mask, record: &PathRecord| {
            let mad = SaMad::new(Method::GET, mask, record);
            table.hash_of(&PathRequest::of(&mad).expect("a request for a path"))
        };
        let record = PathRecord {
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
            ..PathRecord::default()
        };
        let ends = PathRecord::SGID | PathRecord::DGID;
        let mut hashes =
            BTreeSet::from([hash(ends, &record), hash(ends | PathRecord::SL, &record)]);
        for bit in 0..512 {
            let mut bytes: [u8; 64] = zerocopy::transmute!(record);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let other: PathRecord = zerocopy::transmute!(bytes);
            hashes.insert(hash(ends, &other));
        }
        assert!(hashes.len() > 512, "{}", hashes.len());
    }
}
