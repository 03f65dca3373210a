//! The memory protection table: regions and windows.

use ib_wire::bit_fields;
use zerocopy::network_endian::{U32, U64};

use crate::Pdn;

layout! {
    /// An entry: the input of [`crate::Opcode::SW2HW_MPT`] and the output of [`crate::Opcode::QUERY_MPT`]
    /// (`struct mlx4_mpt_entry`).
    mailbox MptEntry, 64 {
        /// See the accessors.
        0x00 pub flags: U32,
        /// Windows only.
        0x04 pub qpn: U32,
        /// See [`Self::memory_key`].
        0x08 pub key: U32,
        /// See the accessors.
        0x0c pub pd_flags: U32,
        /// First address.
        0x10 pub start: U64,
        /// Bytes; all ones for all of the address space.
        0x18 pub length: U64,
        /// Windows: key of the region.
        0x20 pub lkey: U32,
        /// Windows that are bound to the region.
        0x24 pub window_count: U32,
        /// Reserved.
        0x28 pub reserved: [u8; 3],
        /// Repetition of the pages; zero.
        0x2b pub mtt_rep: u8,
        /// Where in the table the pages begin, in bytes.
        0x2c pub mtt_addr: U64,
        /// Number of pages that a fast registration may have.
        0x34 pub mtt_size: U32,
        /// Log2 of the bytes of a page.
        0x38 pub entity_size: U32,
        /// Offset in the first page; zero.
        0x3c pub first_byte_offset: U32,
    }
}

/// [`MptEntry::status`] of an entry that the driver hands over with its keys valid (`MLX4_MPT_FLAG_SW_OWNS`).
pub const STATUS_VALID: u8 = 0xf;

/// [`MptEntry::status`] of an entry that a fast registration is to make valid (`MLX4_MPT_FLAG_FREE`).
pub const STATUS_FREE: u8 = 0x3;

impl MptEntry {
    bit_fields! {
        /// [`STATUS_VALID`] or [`STATUS_FREE`].
        status, set_status: u8 = flags >> 28, 4;
        /// Always set (`MLX4_MPT_FLAG_MIO`).
        mio, set_mio: bool = flags >> 17, 1;
        /// Windows may be bound (`MLX4_MPT_FLAG_BIND_ENABLE`).
        bind, set_bind: bool = flags >> 15, 1;
        /// Remote atomic operations (`MLX4_PERM_ATOMIC`).
        atomic, set_atomic: bool = flags >> 14, 1;
        /// Remote writes (`MLX4_PERM_REMOTE_WRITE`).
        remote_write, set_remote_write: bool = flags >> 13, 1;
        /// Remote reads (`MLX4_PERM_REMOTE_READ`).
        remote_read, set_remote_read: bool = flags >> 12, 1;
        /// Local writes (`MLX4_PERM_LOCAL_WRITE`).
        local_write, set_local_write: bool = flags >> 11, 1;
        /// Local reads (`MLX4_PERM_LOCAL_READ`).
        local_read, set_local_read: bool = flags >> 10, 1;
        /// Addresses are DMA addresses (`MLX4_MPT_FLAG_PHYSICAL`).
        physical, set_physical: bool = flags >> 9, 1;
        /// A region, not a window (`MLX4_MPT_FLAG_REGION`).
        region, set_region: bool = flags >> 8, 1;
        /// Remote accesses are permitted to a fast registration (`MLX4_MPT_PD_FLAG_RAE`).
        remote_access, set_remote_access: bool = pd_flags >> 28, 1;
        /// A fast registration may change the entry (`MLX4_MPT_PD_FLAG_FAST_REG`).
        fast_register, set_fast_register: bool = pd_flags >> 27, 1;
        /// Which keys may be invalidated; 3 for regions (`MLX4_MPT_PD_FLAG_EN_INV`).
        enable_invalidate, set_enable_invalidate: u8 = pd_flags >> 24, 2;
        /// The virtual function; 0 from a guest.
        function, set_function: u8 = pd_flags >> 17, 7;
        /// The protection domain.
        pd, set_pd: Pdn = pd_flags >> 0, 17;
    }

    /// The key as users have it: the index above the variant. The entry has it the other way round
    /// (`hw_index_to_key`).
    #[must_use]
    pub fn memory_key(&self) -> u32 {
        self.key.get().rotate_left(8)
    }

    /// Sets [`Self::memory_key`].
    pub fn set_memory_key(&mut self, key: u32) {
        self.key.set(key.rotate_right(8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_its_index_above_its_variant() {
        let mut entry = MptEntry::default();
        entry.set_memory_key(0x0001_2342);
        assert_eq!(entry.key.get(), 0x4200_0123);
        assert_eq!(entry.memory_key(), 0x0001_2342);
    }

    #[test]
    fn a_regions_flags_are_those_of_the_driver() {
        let mut entry = MptEntry::default();
        entry.set_status(STATUS_VALID);
        entry.set_mio(true);
        entry.set_region(true);
        entry.set_local_read(true);
        entry.set_local_write(true);
        entry.set_enable_invalidate(3);
        entry.set_pd(Pdn(0x1_8001));
        assert_eq!(entry.flags.get(), 0xf002_0d00);
        assert_eq!(entry.pd_flags.get(), 0x0301_8001);
    }
}
