//! A keyed permutation of the 32-bit words: what makes wire ids unguessable and yet decodable.
//!
//! The cipher is Speck32/64 (Beaulieu et al., "The SIMON and SPECK Families of Lightweight Block
//! Ciphers", 2013): a block of exactly 32 bits, no tables, about as long as a cache miss. An
//! observer who collects wire ids learns nothing about the next one; the owner of the key turns one
//! back into a place in the table without any lookup.

const ROUNDS: usize = 22;

/// A permutation of `u32` chosen by a 64-bit key.
#[derive(Clone, Debug)]
pub struct Permutation {
    round_keys: [u16; ROUNDS],
}

/// A 32-bit block as the cipher's two words, the high one first.
const fn split(block: u32) -> (u16, u16) {
    let [a, b, c, d] = block.to_be_bytes();
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

const fn join(x: u16, y: u16) -> u32 {
    (x as u32) << 16 | y as u32
}

const fn round(x: u16, y: u16, key: u16) -> (u16, u16) {
    let x = x.rotate_right(7).wrapping_add(y) ^ key;
    (x, y.rotate_left(2) ^ x)
}

impl Permutation {
    /// The permutation of a key.
    #[must_use]
    pub fn new(key: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = key.to_be_bytes();
        let mut left = [
            u16::from_be_bytes([e, f]),
            u16::from_be_bytes([c, d]),
            u16::from_be_bytes([a, b]),
        ];
        let mut current = u16::from_be_bytes([g, h]);
        let mut round_keys = [0; ROUNDS];
        for (i, (round_key, counter)) in round_keys.iter_mut().zip(0_u16..).enumerate() {
            *round_key = current;
            let (next_left, next) = round(left[i % 3], current, counter);
            left[i % 3] = next_left;
            current = next;
        }
        Self { round_keys }
    }

    /// Where the permutation takes a word.
    #[must_use]
    pub fn encode(&self, block: u32) -> u32 {
        let (mut x, mut y) = split(block);
        for key in self.round_keys {
            (x, y) = round(x, y, key);
        }
        join(x, y)
    }

    /// What the permutation takes to a word.
    #[must_use]
    pub fn decode(&self, block: u32) -> u32 {
        let (mut x, mut y) = split(block);
        for key in self.round_keys.iter().rev() {
            y = (y ^ x).rotate_right(2);
            x = (x ^ key).wrapping_sub(y).rotate_left(7);
        }
        join(x, y)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_published_test_vector_holds() {
        let cipher = Permutation::new(0x1918_1110_0908_0100);
        assert_eq!(cipher.encode(0x6574_694c), 0xa868_42f2);
        assert_eq!(cipher.decode(0xa868_42f2), 0x6574_694c);
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(key: u64, block: u32) {
            let cipher = Permutation::new(key);
            prop_assert_eq!(cipher.decode(cipher.encode(block)), block);
        }
    }
}
