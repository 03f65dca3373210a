//! Memory that frames come from and go to: far larger than the near caches.

use std::collections::VecDeque;

use ib_vtime::SplitMix64;
use prefetch_index::prefetch_index;

use super::rig::BATCH;

/// Bytes of a pool.
pub(super) const POOL: usize = 64 << 20;
/// Distance between the places in a pool: a frame and its slack, whole cache lines.
pub(super) const STRIDE: usize = 320;
const CACHE_LINE: usize = 64;

/// A frame in memory: from a VF's tunnel, or a GRH and a MAD from the wire.
pub(super) type Place = [u8; STRIDE];

/// A place in a pool, which begins with a cache line as the buffers of a driver's ring do.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Aligned(Place);

const _: () = assert!(size_of::<Aligned>() == STRIDE);

/// Places to put frames, one after the other wherever chance wants it.
#[derive(Debug)]
pub(super) struct Pool {
    places: Vec<Aligned>,
    random: SplitMix64,
}

impl Pool {
    /// So many bytes of places that all hold the frame: memory that is all there already.
    pub(super) fn new(seed: u64, frame: &Place, bytes: usize) -> Self {
        Self {
            places: vec![Aligned(*frame); bytes / STRIDE],
            random: SplitMix64::new(seed),
        }
    }

    /// A random place.
    pub(super) fn place(&mut self) -> &mut Place {
        let number = self.draw(0, 1);
        self.at(number)
    }

    /// The number of a random place, one of those that leave the remainder when divided by `step`.
    pub(super) fn draw(&mut self, remainder: usize, step: usize) -> usize {
        below(&mut self.random, self.places.len() / step) * step + remainder
    }

    /// The place of a number, to be read.
    pub(super) fn get(&self, number: usize) -> &Place {
        &self.places[number].0
    }

    /// The place of a number.
    pub(super) fn at(&mut self, number: usize) -> &mut Place {
        &mut self.places[number].0
    }

    /// Asks for the first line of a place. That waits until the address of its page is known, if it
    /// is not, but not for the line.
    pub(super) fn ask_for_first_line(&self, number: usize) {
        prefetch_index(self.get(number), 0);
    }

    /// Asks for the other lines of a place, best some time after the first.
    pub(super) fn ask_for_other_lines(&self, number: usize) {
        let place = self.get(number);
        for line in (CACHE_LINE..STRIDE).step_by(CACHE_LINE) {
            prefetch_index(place, line);
        }
    }
}

/// The receive buffers of a ring, which lie in a pool wherever chance put them. Which come next is
/// known before anything has come, as it is to a driver.
#[derive(Debug)]
pub(super) struct Ring {
    pool: Pool,
    upcoming: VecDeque<usize>,
    /// The newest of them of which only the first line was asked for.
    begun: usize,
}

impl Ring {
    /// Buffers with so many bytes together, in all of which the frame comes.
    pub(super) fn new(seed: u64, frame: &Place, bytes: usize) -> Self {
        Self {
            pool: Pool::new(seed, frame, bytes),
            upcoming: VecDeque::with_capacity(BATCH),
            begun: 0,
        }
    }

    /// What came next.
    pub(super) fn receive(&mut self) -> &Place {
        let upcoming = self.upcoming.pop_front();
        let number = upcoming.unwrap_or_else(|| self.pool.draw(0, 1));
        self.pool.get(number)
    }

    /// Begins to bring one more buffer near, if a batch of them is not near already.
    pub(super) fn begin_approach(&mut self) {
        if self.upcoming.len() < BATCH {
            let number = self.pool.draw(0, 1);
            self.upcoming.push_back(number);
            self.begun += 1;
            self.pool.ask_for_first_line(number);
        }
    }

    /// Brings the rest of these buffers near.
    pub(super) fn end_approach(&mut self) {
        for &number in self.upcoming.iter().rev().take(self.begun) {
            self.pool.ask_for_other_lines(number);
        }
        self.begun = 0;
    }
}

/// A random number below `bound`.
pub(super) fn below(random: &mut SplitMix64, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_ring_brought_near_is_received_in_that_order() {
        let mut ring = Ring::new(1, &[7; STRIDE], 1 << 20);
        for _ in 0..=BATCH {
            ring.begin_approach();
            ring.end_approach();
        }
        assert_eq!(ring.upcoming.len(), BATCH, "no more than a batch");
        let upcoming = ring.upcoming.clone();
        for (at, number) in upcoming.into_iter().enumerate() {
            ring.pool.at(number)[0] = u8::try_from(at).unwrap();
            assert_eq!(usize::from(ring.receive()[0]), at);
        }
        assert_eq!(ring.receive()[1], 7, "and then any");
    }
}
