//! The board, its firmware, and counters.

use zerocopy::network_endian::{U16, U32, U64};

layout! {
    /// The output of [`crate::Opcode::QUERY_FW`] (`mlx4_QUERY_FW`), as far as a virtual function's driver reads
    /// it.
    mailbox QueryFirmware, 16 {
        /// Major version.
        0x0 pub major: U32,
        /// Sub-minor version. The driver swaps it with the minor one.
        0x4 pub subminor: U16,
        /// Minor version.
        0x6 pub minor: U16,
        /// Reserved.
        0x8 pub reserved0: u8,
        /// The function's number.
        0x9 pub function: u8,
        /// Reserved.
        0xa pub reserved1: [u8; 6],
    }
}

layout! {
    /// The output of [`crate::Opcode::QUERY_ADAPTER`] (`mlx4_QUERY_ADAPTER`).
    mailbox QueryAdapter, 256 {
        /// Reserved.
        0x00 pub reserved0: [u8; 16],
        /// The interrupt pin.
        0x10 pub inta_pin: u8,
        /// Reserved.
        0x11 pub reserved1: [u8; 15],
        /// Vendor specific data.
        0x20 pub vsd: [u8; 208],
        /// See [`Self::board_id`].
        0xf0 pub board_id_words: [u8; 16],
    }
}

impl QueryAdapter {
    /// The board's id: ASCII, with zeros behind it. The layout has the bytes of each four in reverse
    /// order (`get_board_id`).
    #[must_use]
    pub fn board_id(&self) -> [u8; 16] {
        swap_words(self.board_id_words)
    }

    /// Sets [`Self::board_id`].
    pub fn set_board_id(&mut self, id: [u8; 16]) {
        self.board_id_words = swap_words(id);
    }
}

fn swap_words(mut bytes: [u8; 16]) -> [u8; 16] {
    for word in bytes.chunks_exact_mut(4) {
        word.reverse();
    }
    bytes
}

layout! {
    /// The output of [`crate::Opcode::QUERY_IF_STAT`] (`struct mlx4_counter`). The input modifier is the
    /// counter's index, with bit 31 to reset it.
    mailbox QueryInterfaceCounters, 48 {
        /// Reserved.
        0x00 pub reserved0: [u8; 3],
        /// Layout of the rest; 0 is this one.
        0x03 pub counter_mode: u8,
        /// Number of interfaces.
        0x04 pub interfaces: U32,
        /// Reserved.
        0x08 pub reserved1: [u8; 8],
        /// Packets received.
        0x10 pub rx_frames: U64,
        /// Bytes received.
        0x18 pub rx_bytes: U64,
        /// Packets sent.
        0x20 pub tx_frames: U64,
        /// Bytes sent.
        0x28 pub tx_bytes: U64,
    }
}

/// Bit of the input modifier of [`crate::Opcode::QUERY_IF_STAT`]: reset the counter.
pub const RESET_COUNTER: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_version_has_its_last_numbers_swapped() {
        let firmware = QueryFirmware {
            major: U32::new(2),
            minor: U16::new(42),
            subminor: U16::new(5000),
            ..QueryFirmware::default()
        };
        assert_eq!(firmware.as_bytes()[..8], [0, 0, 0, 2, 0x13, 0x88, 0, 0x2a]);
    }

    #[test]
    fn a_board_id_has_its_words_reversed() {
        let mut adapter = QueryAdapter::default();
        adapter.set_board_id(*b"VHCA_VF\0\0\0\0\0\0\0\0\0");
        assert_eq!(&adapter.as_bytes()[0xf0..0xf8], b"ACHV\0FV_");
        assert_eq!(&adapter.board_id()[..7], b"VHCA_VF");
    }
}
