//! Numbers that follow from a secret and cannot be computed without it.

use core::fmt;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// 256 bits that belong to one device, service or program. Keys, PSNs and ids follow from them.
///
/// Outside of tests the bits come from the system's random source. `Secret::from(seed)` makes a secret of a 64-bit seed,
/// so that a run in virtual time can be repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Returns the secret of 256 random bits.
    #[must_use]
    pub const fn new(bits: [u8; 32]) -> Self {
        Self(bits)
    }

    /// Returns the secret of one purpose. Secrets of different purposes reveal neither each other nor this one.
    #[must_use]
    pub fn of(self, purpose: &[u8; 8]) -> Self {
        let mut cipher = ChaCha20Rng::from_seed(self.0);
        cipher.set_stream(u64::from_le_bytes(*purpose));
        let mut bits = [0; 32];
        cipher.fill_bytes(&mut bits);
        Self(bits)
    }

    /// Returns the sequence of the secret's numbers.
    #[must_use]
    pub fn numbers(self) -> SecretNumbers {
        SecretNumbers(ChaCha20Rng::from_seed(self.0))
    }

    /// Returns a seed for numbers that need not be secret, such as transaction ids. It does not reveal the secret.
    #[must_use]
    pub fn seed(self) -> u64 {
        self.of(b"the seed").numbers().next_u64()
    }
}

impl From<u64> for Secret {
    fn from(seed: u64) -> Self {
        let mut bits = [0; 32];
        bits[..8].copy_from_slice(&seed.to_le_bytes());
        Self(bits)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The sequence of a [`Secret`]: the key stream of ChaCha20 (Bernstein, 2008). Any part of it reveals nothing of the rest.
///
/// For keys, QPNs, first PSNs and ids, which are chosen when an object is made and never for a packet: a number costs some
/// ten nanoseconds. [`SplitMix64`](crate::SplitMix64) is for numbers that peers may compute.
#[derive(Clone)]
pub struct SecretNumbers(ChaCha20Rng);

impl SecretNumbers {
    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns the next number of 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Returns a number below `bound`, which must not be 0. The bias of the modulus is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Returns the next 256 bits as a secret, which reveals no other number.
    pub fn secret(&mut self) -> Secret {
        let mut bits = [0; 32];
        self.0.fill_bytes(&mut bits);
        Secret(bits)
    }
}

impl fmt::Debug for SecretNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretNumbers(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::format;
    use std::vec::Vec;

    use super::*;

    /// RFC 8439, A.1, test vector 1.
    #[test]
    fn the_numbers_of_zeros_are_the_published_key_stream() {
        let mut numbers = Secret::new([0; 32]).numbers();
        assert_eq!(numbers.next_u32(), 0xade0_b876);
        assert_eq!(numbers.next_u32(), 0x903d_f1a0);
        assert_eq!(numbers.next_u64(), 0x28bd_8653_e56a_5d40);
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_seed_others() {
        let first = |seed: u64| {
            let mut numbers = Secret::from(seed).numbers();
            [(); 8].map(|()| numbers.next_u64())
        };
        assert_eq!(first(7), first(7));
        assert_ne!(first(7), first(8));
    }

    #[test]
    fn secrets_of_purposes_numbers_and_seeds_are_all_different() {
        let root = Secret::from(1);
        let mut numbers = root.numbers();
        let mut bits: Vec<[u8; 32]> = [
            root,
            root.of(b"a purpos"),
            root.of(b"another "),
            numbers.secret(),
            numbers.secret(),
        ]
        .map(|secret| secret.0)
        .to_vec();
        bits.push(root.of(b"a purpos").of(b"a purpos").0);
        let seeds: BTreeSet<u64> = bits.iter().map(|bits| Secret(*bits).seed()).collect();
        let own: BTreeSet<u64> = bits
            .iter()
            .map(|bits| Secret(*bits).numbers().next_u64())
            .collect();
        let bits: BTreeSet<[u8; 32]> = bits.into_iter().collect();
        assert_eq!((bits.len(), seeds.len(), own.len()), (6, 6, 6));
        assert!(seeds.is_disjoint(&own));
    }

    #[test]
    fn numbers_below_a_bound_are_below_it_and_reach_every_value() {
        let mut numbers = Secret::from(1).numbers();
        let values: BTreeSet<u64> = (0..1000).map(|_| numbers.below(7)).collect();
        assert_eq!(values, (0..7).collect());
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::from(0x1234_5678_9abc_def0);
        assert_eq!(
            format!("{secret:?} {:?}", secret.numbers()),
            "Secret(..) SecretNumbers(..)"
        );
    }
}
