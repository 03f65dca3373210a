//! The floors that targets are counted in: moving a frame between places that are in no near cache,
//! one probe of a large table, and a hash over a frame in the near cache. The first two follow the
//! machine's memory, the third its processor.

use std::hint::black_box;

use ib_vtime::SplitMix64;
use vf_tunnel::wire_id::KeyedHash;

use super::clock::Stopwatch;
use super::pool::{POOL, Pool, STRIDE, below};
use super::{LEAST_OPS, Measured, Sample, nanos_per};

/// A MAD behind a GRH, as it is received.
const FRAME: usize = 296;
/// Words of the frame that is hashed.
const WORDS: usize = FRAME / 8;
const TABLE: usize = 1_000_000;

/// Operations of a run of a floor.
const OPS: u64 = LEAST_OPS as u64;

/// The floors, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct FloorTimes {
    pub(super) copy: f64,
    pub(super) lookup: f64,
    pub(super) compute: f64,
}

/// The memory that the floors are measured on.
#[derive(Debug)]
pub(super) struct Floors {
    from: Pool,
    to: Pool,
    table: Vec<[u64; 4]>,
    random: SplitMix64,
    hash: KeyedHash,
    frame: [u64; WORDS],
}

impl Floors {
    pub(super) fn new() -> Self {
        Self {
            from: Pool::new(3, &[1; STRIDE], POOL),
            to: Pool::new(4, &[1; STRIDE], POOL),
            table: (0..).take(TABLE).map(|n| [n; 4]).collect(),
            random: SplitMix64::new(5),
            hash: KeyedHash::new([6, 7]),
            frame: [1; WORDS],
        }
    }

    pub(super) fn measure(&mut self) -> FloorTimes {
        FloorTimes {
            copy: self.copy(),
            lookup: self.lookup(),
            compute: self.compute(),
        }
    }

    /// Nanoseconds to copy a frame from a random place of one pool to one of the other.
    fn copy(&mut self) -> f64 {
        let began = Stopwatch::start();
        for _ in 0..OPS {
            let from = self.from.place();
            self.to.place()[..FRAME].copy_from_slice(&from[..FRAME]);
        }
        let elapsed = began.elapsed();
        black_box(&self.to);
        nanos_per(elapsed, OPS)
    }

    /// Nanoseconds to find an entry of the table. Each place depends on what was found in the one
    /// before, as a message depends on what is found for it.
    fn lookup(&mut self) -> f64 {
        let began = Stopwatch::start();
        let mut last = 0;
        for _ in 0..OPS {
            let at = below(&mut self.random, TABLE) ^ usize::from(last);
            last = u8::from(self.table.get(at).is_none_or(|entry| entry[1] & 1 != 0));
        }
        black_box(last);
        nanos_per(began.elapsed(), OPS)
    }

    /// Nanoseconds to hash a frame. Each frame depends on the hash of the one before.
    fn compute(&mut self) -> f64 {
        let began = Stopwatch::start();
        for _ in 0..OPS {
            self.frame[0] = u64::from(self.hash.hash_all(self.frame));
        }
        let elapsed = began.elapsed();
        black_box(&self.frame);
        nanos_per(elapsed, OPS)
    }
}

/// The first floor as a case of its own.
pub(super) fn prepare_copy() -> Measured {
    floor(
        "296 bytes between random places of two pools of 64 MiB",
        Floors::copy,
    )
}

/// The second floor as a case of its own.
pub(super) fn prepare_lookup() -> Measured {
    floor(
        "one random probe of a table of a million entries of 32 bytes",
        Floors::lookup,
    )
}

/// The third floor as a case of its own.
pub(super) fn prepare_compute() -> Measured {
    floor(
        "SipHash-1-3 over 296 bytes in the near cache",
        Floors::compute,
    )
}

fn floor(setup: &str, measure: fn(&mut Floors) -> f64) -> Measured {
    let mut floors = Floors::new();
    Measured {
        setup: setup.into(),
        ops: OPS,
        mads_per_op: None,
        run: Box::new(move |_| Ok(Sample::of(measure(&mut floors)))),
    }
}
