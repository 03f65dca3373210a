//! Deadlines of a million slots in eight bytes each.
//!
//! A timing wheel of one level: a bucket per tick of 2^26 ns (67 ms), each a doubly linked list
//! threaded through the slots, first set first fired. A deadline that moves further away is only
//! written down in the slot; the slot moves when its old bucket comes up. So a message that extends
//! a deadline touches nothing but its slot.

use ib_vtime::{Duration, Instant};

use crate::store::{Flags, Links, Store};
use vf_tunnel::wire_id::NO_SLOT;

const TICK_BITS: u32 = 26;
const BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 14;
/// In a link, marks a bucket instead of a slot: the list's end, and which list it is.
const BUCKET_MARK: u32 = 1 << 31;

/// How far ahead the wheel looks, in ticks: about 18 minutes. A deadline that is further away is
/// looked at again by then.
pub(crate) const HORIZON: u32 = (1 << BUCKET_BITS) - 2;

/// The tick that has begun at `now`.
pub(crate) const fn tick_at(now: Instant) -> u64 {
    now.as_nanos() >> TICK_BITS
}

/// Ticks that cover a duration, at most [`HORIZON`].
pub(crate) fn ticks(duration: Duration) -> u32 {
    let ticks = duration.as_nanos().div_ceil(1 << TICK_BITS);
    u32::try_from(ticks).map_or(HORIZON, |ticks| ticks.min(HORIZON))
}

/// Ticks that cover a duration, for a deadline beyond the horizon; at most two years of them.
pub(crate) fn many_ticks(duration: Duration) -> u32 {
    const MOST: u32 = 1 << 30;

    let ticks = duration.as_nanos().div_ceil(1 << TICK_BITS);
    u32::try_from(ticks).map_or(MOST, |ticks| ticks.min(MOST))
}

/// How long a number of ticks takes.
pub(crate) fn duration(ticks: u32) -> Duration {
    Duration::from_nanos(u64::from(ticks) << TICK_BITS)
}

/// The low half of a tick. Ticks in slots are at most four years apart, where that is enough.
#[expect(clippy::cast_possible_truncation, reason = "the low half is asked for")]
pub(crate) const fn low(tick: u64) -> u32 {
    tick as u32
}

/// Whether tick `a` comes before tick `b`, for ticks at most four years apart.
pub(crate) const fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) >> 31 != 0
}

/// Ticks from `now` to another tick; 0 if that is over.
pub(crate) const fn ticks_until(now: u32, tick: u32) -> u32 {
    if before(tick, now) {
        0
    } else {
        tick.wrapping_sub(now)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Wheel {
    /// First and last slot per bucket; the bucket's own mark if it is empty.
    buckets: Vec<Links>,
    /// A bit per bucket that is not empty.
    occupied: Vec<u64>,
    /// The first tick that has not been fired.
    cursor: u64,
    /// No bucket before this tick is occupied.
    next: u64,
}

const fn bucket_of(tick: u32) -> usize {
    tick as usize & (BUCKETS - 1)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "buckets are numbered in 14 bits"
)]
const fn mark(bucket: usize) -> u32 {
    BUCKET_MARK | bucket as u32
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self {
            buckets: (0..BUCKETS)
                .map(|bucket| Links {
                    prev: mark(bucket),
                    next: mark(bucket),
                })
                .collect(),
            occupied: vec![0; BUCKETS / 64],
            cursor: 0,
            next: u64::MAX,
        }
    }

    /// Bytes that the wheel holds.
    pub(crate) const fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Links>() + self.occupied.capacity() * 8
    }

    /// Whether any bucket may be due at `now`.
    pub(crate) const fn is_due(&self, now: u64) -> bool {
        now >= self.next
    }

    /// The next tick at which something may be due.
    pub(crate) const fn next(&self) -> Option<Instant> {
        if self.next == u64::MAX {
            return None;
        }
        Some(Instant::from_ticks(self.next, TICK_BITS))
    }

    /// Sets the slot's deadline.
    pub(crate) fn set(&mut self, store: &mut Store, slot: u32, now: u64, deadline: u32) {
        let hot = store.hot_mut(slot);
        let earlier = before(deadline, hot.deadline);
        hot.deadline = deadline;
        if hot.has(Flags::TIMED) {
            if !earlier {
                return;
            }
            self.unlink(store, slot);
        }
        self.link(store, slot, now);
    }

    /// Puts the slot into the bucket of its deadline.
    pub(crate) fn link(&mut self, store: &mut Store, slot: u32, now: u64) {
        if self.next > now {
            // Nothing before `now` is occupied, so the look-out may start there.
            self.cursor = self.cursor.max(now);
        }
        let hot = store.hot_mut(slot);
        hot.flags.insert(Flags::TIMED);
        // What is overdue goes into the first bucket that will be looked at.
        let ahead = ticks_until(low(now), hot.deadline).min(HORIZON);
        let tick = (now + u64::from(ahead)).max(self.cursor);
        let bucket = bucket_of(low(tick));
        let last = self.buckets[bucket].prev;
        store.cold_mut(slot).timer = Links {
            prev: last,
            next: mark(bucket),
        };
        if last & BUCKET_MARK == 0 {
            store.cold_mut(last).timer.next = slot;
        } else {
            self.buckets[bucket].next = slot;
        }
        self.buckets[bucket].prev = slot;
        self.occupied[bucket / 64] |= 1 << (bucket % 64);
        self.next = self.next.min(tick);
    }

    /// Takes the slot out of its bucket.
    pub(crate) fn unlink(&mut self, store: &mut Store, slot: u32) {
        store.hot_mut(slot).flags.remove(Flags::TIMED);
        let Links { prev, next } = store.cold(slot).timer;
        if prev & BUCKET_MARK == 0 {
            store.cold_mut(prev).timer.next = next;
        } else {
            self.buckets[(prev & !BUCKET_MARK) as usize].next = next;
        }
        if next & BUCKET_MARK == 0 {
            store.cold_mut(next).timer.prev = prev;
        } else {
            self.buckets[(next & !BUCKET_MARK) as usize].prev = prev;
        }
        if prev & next & BUCKET_MARK != 0 {
            self.vacate((prev & !BUCKET_MARK) as usize);
        }
    }

    fn vacate(&mut self, bucket: usize) {
        self.occupied[bucket / 64] &= !(1 << (bucket % 64));
    }

    /// Empties the first bucket that is due at `now` and gives its first slot; the others follow
    /// through [`Store`]'s links until one is a bucket's mark. `None` if nothing is due.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<u32> {
        let tick = self.first_occupied().filter(|&tick| tick <= now);
        let Some(tick) = tick else {
            self.cursor = self.cursor.max(now + 1);
            self.next = self.first_occupied().unwrap_or(u64::MAX);
            return None;
        };
        self.cursor = tick + 1;
        self.next = self.cursor;
        let bucket = bucket_of(low(tick));
        let first = self.buckets[bucket].next;
        self.buckets[bucket] = Links {
            prev: mark(bucket),
            next: mark(bucket),
        };
        self.vacate(bucket);
        Some(first)
    }

    /// The tick of the first occupied bucket from the cursor on.
    fn first_occupied(&self) -> Option<u64> {
        let start = bucket_of(low(self.cursor));
        let words = self.occupied.len();
        // The start's word comes twice: first its bits from the start on, last those before.
        (0..=words).find_map(|i| {
            let word = (start / 64 + i) % words;
            let mut bits = self.occupied[word];
            if i == 0 {
                bits &= u64::MAX << (start % 64);
            } else if i == words {
                bits &= !(u64::MAX << (start % 64));
            }
            (bits != 0).then(|| {
                let bucket = word * 64 + bits.trailing_zeros() as usize;
                let ahead = (bucket + BUCKETS - start) % BUCKETS;
                self.cursor + ahead as u64
            })
        })
    }
}

/// Whether a link ends its list.
pub(crate) const fn is_end(link: u32) -> bool {
    link & BUCKET_MARK != 0 || link == NO_SLOT
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use vf_tunnel::VfId;

    use super::*;
    use vf_tunnel::wire_id::Permutation;

    fn drain(wheel: &mut Wheel, store: &mut Store, now: u64) -> Vec<u32> {
        let mut fired = Vec::new();
        while let Some(first) = wheel.take_due(now) {
            let mut slot = first;
            while !is_end(slot) {
                let next = store.cold(slot).timer.next;
                store.hot_mut(slot).flags.remove(Flags::TIMED);
                if before(low(now), store.hot(slot).deadline) {
                    wheel.link(store, slot, now);
                } else {
                    fired.push(slot);
                }
                slot = next;
            }
        }
        fired
    }

    #[test]
    fn a_deadline_is_never_early_and_at_most_a_tick_late() {
        let tick = 1 << TICK_BITS;
        assert_eq!(ticks(Duration::from_nanos(1)), 1);
        assert_eq!(ticks(Duration::from_nanos(tick)), 1);
        assert_eq!(ticks(Duration::from_nanos(tick + 1)), 2);
        assert_eq!(ticks(Duration::from_secs(3600)), HORIZON);
        assert_eq!(tick_at(Instant::from_nanos(tick - 1)), 0);
    }

    #[test]
    fn comparison_survives_the_wrap_of_the_low_half() {
        assert!(before(u32::MAX, 0));
        assert!(!before(0, u32::MAX));
        assert!(!before(5, 5));
    }

    proptest! {
        #[test]
        fn slots_fire_when_due_whatever_moves(
            start in prop_oneof![Just(0_u64), Just(0xffff_fff0), Just(25_000_000_000)],
            operations in prop::collection::vec((0_u32..8, 1..3 * HORIZON, 0_u64..20_000), 1..60)
        ) {
            let mut store = Store::new(Permutation::new(1));
            let slots: Vec<u32> =
                (0..8).filter_map(|_| store.open(VfId::new(1)?)).collect();
            let mut wheel = Wheel::new();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = start;
            for (slot, ahead, step) in operations {
                let slot = slots[slot as usize];
                wheel.set(&mut store, slot, now, low(now + u64::from(ahead)));
                model.insert(slot, now + u64::from(ahead));
                now += step;
                let mut fired = drain(&mut wheel, &mut store, now);
                fired.sort_unstable();
                let expected: Vec<u32> =
                    model.iter().filter(|(_, at)| **at <= now).map(|(slot, _)| *slot).collect();
                prop_assert_eq!(fired, expected);
                model.retain(|_, at| *at > now);
                let first = model.values().min();
                let next = wheel.next().map(tick_at);
                prop_assert_eq!(next.is_some(), first.is_some());
                prop_assert!(next <= first.copied());
                prop_assert!(next.is_none_or(|next| next > now));
            }
        }
    }
}
