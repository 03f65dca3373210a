//! A hash that is quick, for tables in which a collision costs little.
//!
//! Multilinear hashing modulo 2^128, of which the upper 32 bits count, is strongly universal
//! (Dietzfelbinger, "Universal Hashing and k-Wise Independent Random Variables via Integer
//! Arithmetic without Primes", 1996): whatever words others choose, two of them fall together under a
//! random key as often as by chance. That holds for those who never learn a hash. Where collisions
//! could hold up somebody else and many tries are cheap, take [`KeyedHash`](super::KeyedHash), which
//! hides its key from those who see hashes, too.

/// A hash of up to `N` words of 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct UniversalHash<const N: usize> {
    offset: u128,
    factors: [u128; N],
}

impl<const N: usize> UniversalHash<N> {
    /// The hash that random words make.
    #[must_use]
    pub fn new(mut random: impl FnMut() -> u64) -> Self {
        let mut word = || u128::from(random()) << 64 | u128::from(random());
        Self {
            offset: word(),
            factors: [(); N].map(|()| word()),
        }
    }

    /// The hash that places words, together, in a table. Fewer than `N` are as if zeros followed.
    #[must_use]
    pub fn hash<const M: usize>(&self, words: [u64; M]) -> u32 {
        const { assert!(M <= N, "there is no factor for some word") };
        let mut sum = self.offset;
        for (factor, word) in self.factors.iter().zip(words) {
            sum = sum.wrapping_add(factor.wrapping_mul(u128::from(word)));
        }
        (sum >> 96) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_what_the_definition_says() {
        let hash = UniversalHash {
            offset: 5 << 96,
            factors: [1 << 96, 1 << 95],
        };
        assert_eq!(hash.hash([7, 4]), 5 + 7 + 2);
        assert_eq!(hash.hash([u64::from(u32::MAX) - 4]), 0, "modulo 2^32");
        assert_eq!(hash.hash([9]), hash.hash([9, 0]));
    }

    proptest! {
        /// Of 2^32 hashes, 64 words in a row have nearly always as many.
        #[test]
        fn neighbours_have_hashes_of_their_own(random: [u64; 6], first: u64) {
            let mut random = random.into_iter();
            let hash = UniversalHash::<2>::new(|| random.next().unwrap_or_default());
            let words = (0..64).map(|n| first.wrapping_add(n));
            let hashes: BTreeSet<u32> = words.map(|word| hash.hash([1, word])).collect();
            prop_assert!(hashes.len() > 60, "{}", hashes.len());
        }
    }
}
