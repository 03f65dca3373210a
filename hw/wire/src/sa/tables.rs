//! Records of the subnet's tables: links, GUIDs, P_Keys, SL to VL, VL arbitration, forwarding.

use zerocopy::network_endian::U16;

use super::{ComponentMask, SaRecord, components};
use crate::mad::AttributeId;
use crate::{Guid, Lid, PKey, PortNum};

layout! {
    /// LinkRecord (IBA 15.2.5.13). 6 bytes and padding: 8.
    LinkRecord, 8 {
        /// LID of the node at one end.
        pub from_lid: Lid,
        /// Port at that end.
        pub from_port: PortNum,
        /// Port at the other end.
        pub to_port: PortNum,
        /// LID of the node at the other end.
        pub to_lid: Lid,
        /// Padding to a multiple of eight bytes.
        pub pad: [u8; 2],
    }
}

impl SaRecord for LinkRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::LINK_RECORD;
}

components! {
    LinkRecord {
        FROM_LID = 0, "the LID at one end";
        FROM_PORT = 1, "the port at one end";
        TO_PORT = 2, "the port at the other end";
        TO_LID = 3, "the LID at the other end";
    }
}

layout! {
    /// GUIDInfoRecord (IBA 15.2.5.18): a block of a port's GUID table. 72 bytes.
    GuidInfoRecord, 72 {
        /// The port.
        pub lid: Lid,
        /// The block: GUIDs from 8 × this.
        pub block: u8,
        /// Reserved.
        pub reserved1: u8,
        /// Reserved.
        pub reserved2: [u8; 4],
        /// The GUIDs.
        pub guids: [Guid; 8],
    }
}

impl GuidInfoRecord {
    /// Component mask of one GUID, 0 to 7; of none for a larger index.
    #[must_use]
    pub const fn guid_component(index: usize) -> ComponentMask {
        ComponentMask::new(if index < 8 { 1 << (4 + index) } else { 0 })
    }
}

impl SaRecord for GuidInfoRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::GUID_INFO_RECORD;
}

components! {
    GuidInfoRecord {
        LID = 0, "the LID";
        BLOCK = 1, "the block";
    }
}

layout! {
    /// P_KeyTableRecord (IBA 15.2.5.11): a block of a port's P_Key table. 72 bytes.
    PKeyTableRecord, 72 {
        /// The port, or the switch.
        pub lid: Lid,
        /// The block: keys from 32 × this.
        pub block: U16,
        /// The switch's port; reserved for CAs.
        pub port_num: PortNum,
        /// Reserved.
        pub reserved: [u8; 3],
        /// The keys.
        pub pkeys: [PKey; 32],
    }
}

impl SaRecord for PKeyTableRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::PKEY_TABLE_RECORD;
}

components! {
    PKeyTableRecord {
        LID = 0, "the LID";
        BLOCK = 1, "the block";
        PORT_NUM = 2, "the port";
    }
}

layout! {
    /// SLtoVLMappingTableRecord (IBA 15.2.5.4). 16 bytes.
    SlToVlRecord, 16 {
        /// The port, or the switch.
        pub lid: Lid,
        /// The switch's input port; reserved for CAs.
        pub in_port: PortNum,
        /// The switch's output port; reserved for CAs.
        pub out_port: PortNum,
        /// Reserved.
        pub reserved: [u8; 4],
        /// The lanes of the sixteen service levels, four bits each, level 0 first.
        pub table: [u8; 8],
    }
}

impl SaRecord for SlToVlRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::SL_TO_VL_RECORD;
}

components! {
    SlToVlRecord {
        LID = 0, "the LID";
        IN_PORT = 1, "the input port";
        OUT_PORT = 2, "the output port";
    }
}

layout! {
    /// VLArbitrationTableRecord (IBA 15.2.5.9). 72 bytes.
    VlArbRecord, 72 {
        /// The port, or the switch.
        pub lid: Lid,
        /// The switch's output port; reserved for CAs.
        pub out_port: PortNum,
        /// The block: 1 and 2 of low, 3 and 4 of high priority.
        pub block: u8,
        /// Reserved.
        pub reserved: [u8; 4],
        /// Pairs of lane and weight.
        pub table: [[u8; 2]; 32],
    }
}

impl SaRecord for VlArbRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::VL_ARB_RECORD;
}

components! {
    VlArbRecord {
        LID = 0, "the LID";
        OUT_PORT = 1, "the output port";
        BLOCK = 2, "the block";
    }
}

layout! {
    /// LinearForwardingTableRecord (IBA 15.2.5.6). 72 bytes.
    LftRecord, 72 {
        /// The switch.
        pub lid: Lid,
        /// The block: LIDs from 64 × this.
        pub block: U16,
        /// Reserved.
        pub reserved: [u8; 4],
        /// Output ports; 255 for none.
        pub ports: [PortNum; 64],
    }
}

impl SaRecord for LftRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::LFT_RECORD;
}

components! {
    LftRecord {
        LID = 0, "the LID";
        BLOCK = 1, "the block";
    }
}

layout! {
    /// MulticastForwardingTableRecord (IBA 15.2.5.8). 72 bytes.
    MftRecord, 72 {
        /// The switch.
        pub lid: Lid,
        /// Position (4 bits), reserved (3), block (9).
        pub position_and_block: U16,
        /// Reserved.
        pub reserved: [u8; 4],
        /// Masks of sixteen output ports each.
        pub port_masks: [U16; 32],
    }
}

impl MftRecord {
    bit_fields! {
        /// Which sixteen ports the masks are of.
        position, set_position: u8 = position_and_block >> 12, 4;
        /// The block: multicast LIDs from 0xC000 + 32 × this.
        block, set_block: u16 = position_and_block >> 0, 9;
    }
}

impl SaRecord for MftRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::MFT_RECORD;
}

components! {
    MftRecord {
        LID = 0, "the LID";
        POSITION = 1, "the position";
        BLOCK = 3, "the block";
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn fields_stand_at_their_offsets() {
        for (offset, expected) in [
            (offset_of!(LinkRecord, from_port), 2),
            (offset_of!(LinkRecord, to_port), 3),
            (offset_of!(LinkRecord, to_lid), 4),
            (offset_of!(GuidInfoRecord, block), 2),
            (offset_of!(GuidInfoRecord, guids), 8),
            (offset_of!(PKeyTableRecord, block), 2),
            (offset_of!(PKeyTableRecord, port_num), 4),
            (offset_of!(PKeyTableRecord, pkeys), 8),
            (offset_of!(SlToVlRecord, out_port), 3),
            (offset_of!(SlToVlRecord, table), 8),
            (offset_of!(VlArbRecord, out_port), 2),
            (offset_of!(VlArbRecord, block), 3),
            (offset_of!(VlArbRecord, table), 8),
            (offset_of!(LftRecord, block), 2),
            (offset_of!(LftRecord, ports), 8),
            (offset_of!(MftRecord, position_and_block), 2),
            (offset_of!(MftRecord, port_masks), 8),
        ] {
            assert_eq!(offset, expected);
        }
    }

    #[test]
    fn a_link_is_encoded_byte_for_byte() {
        let link = LinkRecord {
            from_lid: Lid::new(0x0102),
            from_port: PortNum(3),
            to_port: PortNum(4),
            to_lid: Lid::new(0x0506),
            pad: [0; 2],
        };
        assert_eq!(link.as_bytes(), [1, 2, 3, 4, 5, 6, 0, 0]);
    }

    #[test]
    fn a_guid_block_is_encoded_byte_for_byte() {
        let mut record = GuidInfoRecord {
            lid: Lid::new(9),
            block: 1,
            ..GuidInfoRecord::default()
        };
        record.guids[1] = Guid::new(0x0014_0500_0000_0001);
        let bytes = record.as_bytes();
        assert_eq!(bytes[..8], [0, 9, 1, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..24], [0, 0x14, 5, 0, 0, 0, 0, 1]);
        assert_eq!(GuidInfoRecord::guid_component(0).get(), 0x10);
        assert_eq!(GuidInfoRecord::guid_component(7).get(), 0x800);
        assert_eq!(GuidInfoRecord::guid_component(8), ComponentMask::NONE);
    }

    #[test]
    fn position_and_block_of_a_multicast_table_share_a_word() {
        let mut record = MftRecord::default();
        record.position_and_block.set(0x0e00);
        record.set_position(0xf);
        record.set_block(0x1ff);
        assert_eq!(record.position_and_block.get(), 0xffff);
        record.set_position(2);
        record.set_block(3);
        assert_eq!(record.position_and_block.get(), 0x2e03);
        assert_eq!((record.position(), record.block()), (2, 3));
    }
}
