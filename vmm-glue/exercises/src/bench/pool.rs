//! Memory that frames come from and go to: far larger than the near caches.

use ib_vtime::SplitMix64;

/// Bytes of a pool.
pub(super) const POOL: usize = 64 << 20;
/// Distance between the places in a pool: a frame and its slack, whole cache lines.
pub(super) const STRIDE: usize = 320;

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
}

/// A random number below `bound`.
pub(super) fn below(random: &mut SplitMix64, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).unwrap_or(0)
}
