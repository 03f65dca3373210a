//! The tables of a port: GUIDInfo, P_KeyTable, SLtoVLMappingTable and VLArbitrationTable.

use crate::{Guid, PKey, Sl, Vl};

layout! {
    /// A block of 8 entries of a port's GUID table (IBA 14.2.5.5). The modifier is the block; entry
    /// 0 of block 0 is the port GUID and read only.
    GuidInfo, 64 {
        /// The GUIDs; 0 in entries that are not assigned.
        pub guids: [Guid; 8],
    }
}

impl GuidInfo {
    /// GUIDs in each block.
    pub const ENTRIES: usize = 8;
}

layout! {
    /// A block of 32 entries of a port's P_Key table (IBA 14.2.5.7).
    PKeyTable, 64 {
        /// The keys; 0 in empty entries.
        pub pkeys: [PKey; 32],
    }
}

impl PKeyTable {
    /// Keys in each block.
    pub const ENTRIES: usize = 32;
}

layout! {
    /// The virtual lane of each service level (IBA 14.2.5.8), two to the byte, even ones first.
    SlToVlMappingTable, 64 {
        /// The lanes of SL 0 and 1, 2 and 3, and so on.
        pub pairs: [u8; 8],
        /// Reserved.
        pub reserved: [u8; 56],
    }
}

impl SlToVlMappingTable {
    /// The lane of a service level. Lane 15 drops the packet.
    #[must_use]
    pub const fn vl(&self, sl: Sl) -> Vl {
        let pair = self.pairs[(sl.get() / 2) as usize];
        Vl::from_low_bits(if sl.get().is_multiple_of(2) {
            pair >> 4
        } else {
            pair
        })
    }

    /// Writes [`Self::vl`] of one service level.
    pub const fn set_vl(&mut self, sl: Sl, vl: Vl) {
        let pair = &mut self.pairs[(sl.get() / 2) as usize];
        *pair = if sl.get().is_multiple_of(2) {
            (vl.get() << 4) | (*pair & 0x0f)
        } else {
            (*pair & 0xf0) | vl.get()
        };
    }
}

layout! {
    /// One turn of a virtual lane (IBA 14.2.5.9).
    VlArbitrationEntry, 2 {
        /// Reserved (4) and the lane (4).
        pub reserved_vl: u8,
        /// How much the lane may send in its turn, in units of 64 bytes; 0 skips the entry.
        pub weight: u8,
    }
}

impl VlArbitrationEntry {
    bit_fields! {
        /// The lane whose turn it is.
        vl, set_vl: Vl = reserved_vl >> 0, 4;
    }
}

layout! {
    /// Half of a port's low- or high-priority arbitration table (IBA 14.2.5.9).
    VlArbitrationTable, 64 {
        /// The turns.
        pub entries: [VlArbitrationEntry; 32],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_level_has_its_own_lane() {
        let mut table = SlToVlMappingTable::default();
        for sl in 0..16 {
            table.set_vl(Sl::from_low_bits(sl), Vl::from_low_bits(15 - sl));
        }
        assert_eq!(
            table.pairs,
            [0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10]
        );
        for sl in 0..16 {
            assert_eq!(table.vl(Sl::from_low_bits(sl)).get(), 15 - sl);
        }
    }
}
