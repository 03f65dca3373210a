//! Sets of a switch's ports.

use super::MulticastForwardingTable;
use crate::PortNum;

const WORDS: usize = 256 / u64::BITS as usize;
const POSITIONS_PER_WORD: usize = u64::BITS as usize / MulticastForwardingTable::PORTS;

/// A set of switch ports, 0 to 255: what the masks of a multicast LID at all positions of the
/// forwarding table say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortMask([u64; WORDS]);

impl PortMask {
    /// The ports from 0 to `last`.
    #[must_use]
    pub fn up_to(last: PortNum) -> Self {
        let mut mask = Self::default();
        for port in 0..=last.0 {
            mask.insert(PortNum(port));
        }
        mask
    }

    const fn place(port: PortNum) -> (usize, u64) {
        let bits = u64::BITS as usize;
        (port.index() / bits, 1 << (port.index() % bits))
    }

    /// Adds a port.
    pub const fn insert(&mut self, port: PortNum) {
        let (word, bit) = Self::place(port);
        self.0[word] |= bit;
    }

    /// Takes a port out.
    pub const fn remove(&mut self, port: PortNum) {
        let (word, bit) = Self::place(port);
        self.0[word] &= !bit;
    }

    /// Whether the port is in the set.
    #[must_use]
    pub const fn contains(&self, port: PortNum) -> bool {
        let (word, bit) = Self::place(port);
        self.0[word] & bit != 0
    }

    /// Whether no port is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    const fn field(position: u8) -> (usize, usize) {
        let position = (position & 0xf) as usize;
        (
            position / POSITIONS_PER_WORD,
            position % POSITIONS_PER_WORD * MulticastForwardingTable::PORTS,
        )
    }

    /// The 16 ports that an entry of the given position (0 to 15) carries: bit `i` stands for port
    /// `16 * position + i`.
    #[must_use]
    pub const fn position(&self, position: u8) -> u16 {
        let (word, shift) = Self::field(position);
        let [low, high, ..] = (self.0[word] >> shift).to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Sets the 16 ports that an entry of the given position (0 to 15) carries.
    pub const fn set_position(&mut self, position: u8, ports: u16) {
        let (word, shift) = Self::field(position);
        self.0[word] = self.0[word] & !((u16::MAX as u64) << shift) | (ports as u64) << shift;
    }

    /// The ports in the set, ascending.
    pub fn ports(&self) -> impl Iterator<Item = PortNum> + use<> {
        let words = self
            .0
            .into_iter()
            .zip((0_u32..).step_by(u64::BITS as usize));
        words.flat_map(|(mut word, first)| {
            core::iter::from_fn(move || {
                let bit = word.trailing_zeros();
                // Of a word without bits there is no bit to be cleared.
                word &= word.checked_sub(1)?;
                u8::try_from(first + bit).ok().map(PortNum)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_at_their_positions_and_in_order() {
        let mut mask = PortMask::default();
        assert!(mask.is_empty());
        for port in [255, 0, 17, 128, 63, 64] {
            mask.insert(PortNum(port));
        }
        mask.remove(PortNum(63));
        assert_eq!(
            mask.ports()
                .map(|port| port.0)
                .collect::<std::vec::Vec<_>>(),
            [0, 17, 64, 128, 255]
        );
        assert!(mask.contains(PortNum(128)) && !mask.contains(PortNum(63)));
        assert_eq!(
            [0, 1, 3, 4, 8, 15].map(|position| mask.position(position)),
            [1, 2, 0, 1, 1, 0x8000]
        );
    }

    #[test]
    fn a_position_is_set_beside_the_others() {
        let mut mask = PortMask::up_to(PortNum(254));
        assert_eq!((mask.position(14), mask.position(15)), (0xffff, 0x7fff));
        mask.set_position(8, 0x8001);
        for position in 0..15 {
            let expected = if position == 8 { 0x8001 } else { 0xffff };
            assert_eq!(mask.position(position), expected, "position {position}");
        }
    }
}
