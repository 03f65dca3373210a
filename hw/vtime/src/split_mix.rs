//! Numbers that look random and are a function of a seed.

/// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014): one
/// addition and a mix per number, full period, any seed is a good one.
///
/// For everything that must not repeat or must look unordered, yet come out the same for the same
/// seed. Not for secrets: one number, or parts of three, give all of the rest. [`SecretNumbers`](crate::SecretNumbers)
/// are for keys, and for whatever else a client must not compute.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The upper half of the next number.
    pub const fn next_u32(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// A number below `bound`, which must not be 0. The bias of the modulus is below `bound / 2^64`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// `true` in `part` of `whole` cases.
    pub const fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_seed_0_is_the_published_one() {
        let mut numbers = SplitMix64::new(0);
        assert_eq!(numbers.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(numbers.next(), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(numbers.next(), 0x06c4_5d18_8009_454f);
    }

    #[test]
    fn numbers_below_a_bound_are_below_it() {
        let mut numbers = SplitMix64::new(1);
        assert!((0..1000).all(|_| numbers.below(7) < 7));
    }
}
