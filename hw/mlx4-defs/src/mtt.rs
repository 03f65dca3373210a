//! The memory translation table: the pages behind queues and regions.

use zerocopy::network_endian::U64;

use crate::MttIndex;

/// Bytes of an entry, which the addresses in contexts count ([`MttBase`]).
pub const MTT_ENTRY_SIZE: u64 = 8;

/// The most entries that one command writes: what a mailbox has room for.
pub const MAX_ENTRIES_PER_WRITE: usize = crate::MAILBOX_SIZE / 8 - 2;

transparent! {
    /// An entry: the DMA address of a page (`struct mlx4_mtt` in the device's memory).
    pub struct MttEntry(pub U64);
}

impl MttEntry {
    /// The entry of a present page at an address (`MLX4_MTT_FLAG_PRESENT`).
    #[must_use]
    pub const fn new(address: u64) -> Self {
        Self(U64::new(address | 1))
    }

    /// Whether there is a page.
    #[must_use]
    pub fn is_present(self) -> bool {
        self.0.get() & 1 != 0
    }

    /// The page's address. The lowest three bits are flags and never part of it.
    #[must_use]
    pub fn address(self) -> u64 {
        self.0.get() & !7
    }
}

layout! {
    /// The input of [`crate::Opcode::WRITE_MTT`] (`mlx4_write_mtt`). The input modifier tells how many of
    /// the entries count.
    mailbox WriteMtt, 4096 {
        /// Index of the first entry to write.
        0x00 pub first: U64,
        /// Reserved.
        0x08 pub reserved: U64,
        /// The entries.
        0x10 pub entries: [MttEntry; MAX_ENTRIES_PER_WRITE],
    }
}

transparent! {
    /// Where in the table the pages of a queue begin: 40 bits, in bytes (`mtt_base_addr_h` and
    /// `mtt_base_addr_l` of every context).
    pub struct MttBase([u8; 5]);
}

impl MttBase {
    /// The value for pages that begin at an entry. Bits beyond the 40 are dropped.
    #[must_use]
    pub const fn from_entry(entry: MttIndex) -> Self {
        let [_, _, _, a, b, c, d, e] = entry.0.wrapping_mul(MTT_ENTRY_SIZE).to_be_bytes();
        Self([a, b, c, d, e])
    }

    /// The entry at which the pages begin. The lowest three bits of the field count for nothing.
    #[must_use]
    pub const fn entry(self) -> MttIndex {
        let [a, b, c, d, e] = self.0;
        MttIndex(u64::from_be_bytes([0, 0, 0, a, b, c, d, e]) / MTT_ENTRY_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn two_pages_have_the_bytes_of_the_driver() {
        let mut write = WriteMtt {
            first: U64::new(0x40),
            ..WriteMtt::default()
        };
        write.entries[0] = MttEntry::new(0x1_2345_6000);
        write.entries[1] = MttEntry::new(0x7000);
        let mut bytes = [0; 32];
        bytes[7] = 0x40;
        bytes[16..24].copy_from_slice(&[0, 0, 0, 1, 0x23, 0x45, 0x60, 1]);
        bytes[24..].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x70, 1]);
        assert_eq!(write.as_bytes()[..32], bytes);
        assert_eq!(write.entries[0].address(), 0x1_2345_6000);
        assert!(write.entries[0].is_present() && !write.entries[2].is_present());
        assert_eq!(MAX_ENTRIES_PER_WRITE, 510);
    }

    #[test]
    fn a_base_counts_bytes_of_the_table() {
        let base = MttBase::from_entry(MttIndex(0x20_0000_0001));
        assert_eq!(base.as_bytes(), [0, 0, 0, 0, 8]);
        let base = MttBase::from_entry(MttIndex(0x1f_ffff_ffff));
        assert_eq!(base.as_bytes(), [0xff, 0xff, 0xff, 0xff, 0xf8]);
        assert_eq!(base.entry(), MttIndex(0x1f_ffff_ffff));
    }
}
