//! The receive buffers of a queue pair.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use hca_api::{AddressSpace, Hca, LKey, PulledReceives, QpHandle, ReceiveMode, RecvRequest, Sge};

const WORD: u32 = u64::BITS;

/// Where a queue pair's receive buffers are: one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// First byte of the first one.
    pub(super) addr: u64,
    /// Bytes of each.
    pub(super) len: u32,
    pub(super) lkey: LKey,
}

impl Place {
    /// First byte of a buffer.
    fn buffer(&self, slot: u32) -> u64 {
        self.addr + u64::from(slot) * u64::from(self.len)
    }

    fn scatter(&self, slot: u32) -> Sge {
        Sge {
            addr: self.buffer(slot),
            len: self.len,
            lkey: self.lkey,
        }
    }
}

/// Buffers that wait for a message, a bit each; held by both sides.
#[derive(Clone, Debug)]
struct Waiting(Arc<[AtomicU64]>);

impl Waiting {
    fn new(count: u32) -> Self {
        let words = (0..count.div_ceil(WORD)).map(|word| {
            let bits = (count - word * WORD).min(WORD);
            AtomicU64::new(u64::MAX >> (WORD - bits))
        });
        Self(words.collect())
    }

    /// Takes the first one.
    fn take(&self) -> Option<u32> {
        for (base, word) in (0..).step_by(WORD as usize).zip(&*self.0) {
            let bits = word.load(Ordering::Acquire);
            if bits != 0 {
                let bit = bits.trailing_zeros();
                word.fetch_and(!(1 << bit), Ordering::Acquire);
                return Some(base + bit);
            }
        }
        None
    }

    fn put(&self, slot: u32) {
        if let Some(word) = self.0.get((slot / WORD) as usize) {
            word.fetch_or(1 << (slot % WORD), Ordering::Release);
        }
    }

    fn count(&self) -> u32 {
        let bits = |word: &AtomicU64| word.load(Ordering::Relaxed).count_ones();
        self.0.iter().map(bits).sum()
    }
}

/// The provider's side of [`Receives::Pulled`].
#[derive(Debug)]
struct Source {
    place: Place,
    waiting: Waiting,
}

impl PulledReceives for Source {
    fn pull(&mut self, _: &dyn AddressSpace, scatter: &mut Vec<Sge>) -> Option<u64> {
        let slot = self.waiting.take()?;
        scatter.push(self.place.scatter(slot));
        Some(u64::from(slot))
    }

    fn pending(&self, _: &dyn AddressSpace) -> usize {
        self.waiting.count() as usize
    }
}

/// How a provider gets the buffers.
#[derive(Debug)]
enum Way {
    /// It takes one when a message comes: always the first that is free, so that of many buffers those
    /// are in use, and stay in near caches, that the traffic needs.
    Pulled(Waiting),
    /// Posted again and again, and filled in turn, where a provider cannot do otherwise.
    Posted(QpHandle),
}

/// The receive buffers of a queue pair.
#[derive(Debug)]
pub(super) struct Receives {
    place: Place,
    count: u32,
    way: Way,
    /// Buffers that were filled, and that the provider has not been given again.
    idle: Vec<u32>,
    is_over: bool,
}

impl Receives {
    /// Buffers that the provider takes when it needs them, and its side of that.
    pub(super) fn pulled(place: Place, count: u32) -> (Self, ReceiveMode) {
        let waiting = Waiting::new(count);
        let source = Source {
            place,
            waiting: waiting.clone(),
        };
        let this = Self {
            place,
            count,
            way: Way::Pulled(waiting),
            idle: Vec::new(),
            is_over: false,
        };
        (this, ReceiveMode::Pulled(Box::new(source)))
    }

    /// Buffers that have to be posted to a queue pair.
    pub(super) fn posted(place: Place, count: u32, qp: QpHandle) -> Self {
        Self {
            place,
            count,
            way: Way::Posted(qp),
            idle: (0..count).rev().collect(),
            is_over: false,
        }
    }

    /// First byte of a buffer.
    pub(super) fn buffer(&self, slot: u32) -> u64 {
        self.place.buffer(slot)
    }

    /// The key of the memory that the buffers are in.
    pub(super) const fn lkey(&self) -> LKey {
        self.place.lkey
    }

    /// Whether all buffers wait for messages.
    pub(super) fn are_at_rest(&self) -> bool {
        match &self.way {
            Way::Pulled(waiting) => waiting.count() == self.count,
            Way::Posted(_) => self.idle.is_empty(),
        }
    }

    /// A buffer was filled. It stays as it is until the next [`Self::replenish`].
    pub(super) fn filled(&mut self, slot: u32) {
        self.idle.push(slot);
    }

    /// Keeps all buffers from now on: the queue pair is in the error state, and would flush each at once.
    pub(super) const fn end(&mut self) {
        self.is_over = true;
    }

    /// Gives the provider the buffers that were filled, as many as it takes.
    pub(super) fn replenish(&mut self, hca: &mut dyn Hca) {
        if self.is_over {
            return;
        }
        while let Some(slot) = self.idle.pop() {
            match &self.way {
                Way::Pulled(waiting) => waiting.put(slot),
                Way::Posted(qp) => {
                    let request = RecvRequest {
                        wr_id: u64::from(slot),
                        scatter: &[self.place.scatter(slot)],
                    };
                    if hca.post_recv(*qp, &request).is_err() {
                        self.idle.push(slot);
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hca_api::HostMemory;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// No buffer is with both sides, none is lost, and the first free one is next.
        #[test]
        fn a_source_gives_the_first_buffer_that_is_free(
            count in 1_u32..200, steps: Vec<Option<prop::sample::Index>>
        ) {
            let place = Place { addr: 64, len: 10, lkey: LKey(3) };
            let (receives, mode) = Receives::pulled(place, count);
            let Way::Pulled(waiting) = &receives.way else { unreachable!() };
            let ReceiveMode::Pulled(mut source) = mode else { unreachable!() };
            let memory = HostMemory::new();
            let mut taken: Vec<u32> = Vec::new();
            for step in steps {
                let mut scatter = Vec::new();
                if let (Some(which), false) = (&step, taken.is_empty()) {
                    waiting.put(taken.swap_remove(which.index(taken.len())));
                } else if let Some(slot) = source.pull(&memory, &mut scatter) {
                    let slot = u32::try_from(slot).unwrap();
                    let first = (0..count).find(|slot| !taken.contains(slot));
                    prop_assert_eq!(Some(slot), first);
                    prop_assert_eq!(scatter, [place.scatter(slot)]);
                    taken.push(slot);
                } else {
                    prop_assert_eq!(taken.len(), count as usize);
                }
                prop_assert_eq!(source.pending(&memory), count as usize - taken.len());
                prop_assert_eq!(receives.are_at_rest(), taken.is_empty());
            }
        }
    }
}
