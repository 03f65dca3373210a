//! The hash that keeps chosen keys from colliding.
//!
//! Guests choose their communication ids and peers choose theirs, so the hash of the tables is
//! SipHash (Aumasson, Bernstein, 2012) with one compression and three finalization rounds under a
//! secret key: nobody outside can aim at a place in a table.

/// A keyed hash of a fixed number of 64-bit words.
#[derive(Clone, Copy, Debug)]
pub struct KeyedHash {
    key: [u64; 2],
}

impl KeyedHash {
    /// The hash under a key.
    #[must_use]
    pub const fn new(key: [u64; 2]) -> Self {
        Self { key }
    }

    /// The hash that places a word in a table.
    #[must_use]
    pub fn hash(self, word: u64) -> u32 {
        self.hash_all([word])
    }

    /// The hash that places several words, together, in a table.
    #[must_use]
    pub fn hash_all<const N: usize>(self, words: [u64; N]) -> u32 {
        (self.sip::<1, 3, N>(words) >> 32) as u32
    }

    /// SipHash-C-D of the bytes of `words`, each with the least significant first.
    fn sip<const C: usize, const D: usize, const N: usize>(self, words: [u64; N]) -> u64 {
        let [k0, k1] = self.key;
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        for word in words {
            absorb::<C>(&mut v, word);
        }
        // The length in bytes, modulo 256, ends the message.
        absorb::<C>(&mut v, (8 * N as u64) << 56);
        v[2] ^= 0xff;
        for _ in 0..D {
            sip_round(&mut v);
        }
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

#[inline(always)]
fn absorb<const C: usize>(v: &mut [u64; 4], word: u64) {
    v[3] ^= word;
    for _ in 0..C {
        sip_round(v);
    }
    v[0] ^= word;
}

#[inline(always)]
const fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siphash_2_4_gives_the_published_value() {
        // Reference vector of the SipHash paper's code: key 00..0f, message 00..07.
        let hash = KeyedHash::new([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        assert_eq!(
            hash.sip::<2, 4, 1>([0x0706_0504_0302_0100]),
            0x93f5_f579_9a93_2462
        );
        // The same, message 00..0f.
        assert_eq!(
            hash.sip::<2, 4, 2>([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]),
            0x3f2a_cc7f_57c2_9bdb
        );
    }

    #[test]
    fn another_key_gives_another_hash() {
        assert_ne!(
            KeyedHash::new([1, 2]).hash(3),
            KeyedHash::new([1, 3]).hash(3)
        );
    }
}
