//! Records that carry an attribute of subnet management: nodes, ports, switches, SMs; and
//! subscriptions to notices.
//!
//! A record keeps only the bytes of the attribute that mean something; the attribute's layout in
//! an SMP fills 64.

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use super::{SaRecord, components};
use crate::mad::AttributeId;
use crate::notice::InformInfo;
use crate::smp::{NodeDescription, NodeInfo, PortInfo, SmInfo, SwitchInfo};
use crate::{Gid, Lid, PortNum};

/// Reads an attribute whose first bytes are `front` and whose other bytes are zero.
fn extend<T: FromBytes + IntoBytes>(front: &[u8]) -> T {
    let mut attribute = T::new_zeroed();
    for (to, from) in attribute.as_mut_bytes().iter_mut().zip(front) {
        *to = *from;
    }
    attribute
}

/// Defines the getter and setter of an attribute that a record carries without its trailing
/// reserved bytes.
macro_rules! carried {
    ($record:ident: $get:ident, $set:ident: $ty:ty = $field:ident) => {
        impl $record {
            #[doc = concat!("The ", stringify!($ty), "; the bytes that the record leaves out are zero.")]
            #[must_use]
            pub fn $get(&self) -> $ty {
                extend(&self.$field)
            }

            #[doc = concat!("Sets the ", stringify!($ty), ".")]
            pub fn $set(&mut self, attribute: &$ty) {
                self.$field = extend(attribute.as_bytes());
            }
        }
    };
}

layout! {
    /// NodeRecord (IBA 15.2.5.2). 108 bytes and padding: 112.
    NodeRecord, 112 {
        /// The port through which the node is seen.
        pub lid: Lid,
        /// Reserved.
        pub reserved: [u8; 2],
        /// NodeInfo, 40 bytes: see [`NodeRecord::node_info`].
        pub node_info_bytes: [u8; 40],
        /// NodeDescription.
        pub description: NodeDescription,
        /// Padding to a multiple of eight bytes.
        pub pad: [u8; 4],
    }
}

carried!(NodeRecord: node_info, set_node_info: NodeInfo = node_info_bytes);

impl SaRecord for NodeRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::NODE_RECORD;
}

components! {
    NodeRecord {
        LID = 0, "the LID";
        BASE_VERSION = 2, "the base version";
        CLASS_VERSION = 3, "the class version";
        NODE_TYPE = 4, "the node type";
        NUM_PORTS = 5, "the number of ports";
        SYSTEM_IMAGE_GUID = 6, "the system image GUID";
        NODE_GUID = 7, "the node GUID";
        PORT_GUID = 8, "the port GUID";
        PARTITION_CAP = 9, "the size of the P_Key table";
        DEVICE_ID = 10, "the device id";
        REVISION = 11, "the revision";
        LOCAL_PORT_NUM = 12, "the local port number";
        VENDOR_ID = 13, "the vendor id";
        NODE_DESCRIPTION = 14, "the node description";
    }
}

layout! {
    /// PortInfoRecord (IBA 15.2.5.3). 68 bytes and padding: 72.
    PortInfoRecord, 72 {
        /// LID of the port, or of the switch.
        pub end_port_lid: Lid,
        /// The switch's port; reserved for CAs.
        pub port_num: PortNum,
        /// Options: which of the two component mask definitions applies.
        pub options: u8,
        /// PortInfo.
        pub port_info: PortInfo,
        /// Padding to a multiple of eight bytes.
        pub pad: [u8; 4],
    }
}

impl SaRecord for PortInfoRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::PORT_INFO_RECORD;
}

components! {
    PortInfoRecord {
        END_PORT_LID = 0, "the end port LID";
        PORT_NUM = 1, "the port number";
        OPTIONS = 2, "the options";
        MKEY = 3, "the M_Key";
        GID_PREFIX = 4, "the GID prefix";
        BASE_LID = 5, "the base LID";
        MASTER_SM_LID = 6, "the master SM's LID";
        CAPABILITY_MASK = 7, "the capability mask";
        PORT_STATE = 15, "the port state";
        PORT_PHYSICAL_STATE = 16, "the physical state";
        LMC = 20, "the LMC";
        NEIGHBOR_MTU = 23, "the neighbor MTU";
        MASTER_SM_SL = 24, "the master SM's SL";
        GUID_CAP = 42, "the size of the GUID table";
    }
}

layout! {
    /// SwitchInfoRecord (IBA 15.2.5.5). 24 bytes.
    SwitchInfoRecord, 24 {
        /// LID of the switch.
        pub lid: Lid,
        /// Reserved.
        pub reserved: [u8; 2],
        /// SwitchInfo, 20 bytes: see [`SwitchInfoRecord::switch_info`].
        pub switch_info_bytes: [u8; 20],
    }
}

carried!(SwitchInfoRecord: switch_info, set_switch_info: SwitchInfo = switch_info_bytes);

impl SaRecord for SwitchInfoRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::SWITCH_INFO_RECORD;
}

components! {
    SwitchInfoRecord {
        LID = 0, "the LID";
    }
}

layout! {
    /// SMInfoRecord (IBA 15.2.5.10). 25 bytes and padding: 32.
    SmInfoRecord, 32 {
        /// LID of the SM's port.
        pub lid: Lid,
        /// Reserved.
        pub reserved: [u8; 2],
        /// SMInfo, 21 bytes: see [`SmInfoRecord::sm_info`].
        pub sm_info_bytes: [u8; 21],
        /// Padding to a multiple of eight bytes.
        pub pad: [u8; 7],
    }
}

carried!(SmInfoRecord: sm_info, set_sm_info: SmInfo = sm_info_bytes);

impl SaRecord for SmInfoRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::SM_INFO_RECORD;
}

components! {
    SmInfoRecord {
        LID = 0, "the LID";
        GUID = 2, "the GUID";
        SM_KEY = 3, "the SM_Key";
        ACT_COUNT = 4, "the activity counter";
        PRIORITY = 5, "the priority";
        SM_STATE = 6, "the state";
    }
}

/// InformInfo is an attribute of every class; a class manager takes subscriptions by it. With the
/// SA it is 36 bytes, and a stride of 4 × 8 bytes is what OpenSM gives.
impl SaRecord for InformInfo {
    const ATTRIBUTE_ID: AttributeId = AttributeId::INFORM_INFO;
    const ATTRIBUTE_OFFSET: u16 = 4;
}

layout! {
    /// InformInfoRecord (IBA 15.2.5.12): a subscription. 60 bytes and padding: 64.
    InformInfoRecord, 64 {
        /// The subscriber.
        pub subscriber_gid: Gid,
        /// Tells the subscriptions of one subscriber.
        pub enumeration: U16,
        /// Reserved.
        pub reserved: [u8; 6],
        /// What it subscribed to.
        pub inform_info: InformInfo,
        /// Padding to a multiple of eight bytes.
        pub pad: [u8; 4],
    }
}

impl SaRecord for InformInfoRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::INFORM_INFO_RECORD;
}

components! {
    InformInfoRecord {
        SUBSCRIBER_GID = 0, "the subscriber's GID";
        ENUMERATION = 1, "the enumeration";
        GID = 3, "the GID";
        LID_RANGE_BEGIN = 4, "the begin of the LID range";
        LID_RANGE_END = 5, "the end of the LID range";
        IS_GENERIC = 7, "the kind of notice";
        SUBSCRIBE = 8, "subscribe";
        NOTICE_TYPE = 9, "the type of notice";
        TRAP_NUMBER = 10, "the trap number or device id";
        QPN = 11, "the QPN";
        RESP_TIME = 13, "the response time";
        PRODUCER = 15, "the producer type or vendor id";
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;
    use crate::{Guid, SmKey};

    #[test]
    fn fields_stand_at_their_offsets_and_tables_at_their_strides() {
        for (offset, expected) in [
            (offset_of!(NodeRecord, node_info_bytes), 4),
            (offset_of!(NodeRecord, description), 44),
            (offset_of!(PortInfoRecord, port_num), 2),
            (offset_of!(PortInfoRecord, port_info), 4),
            (offset_of!(SwitchInfoRecord, switch_info_bytes), 4),
            (offset_of!(SmInfoRecord, sm_info_bytes), 4),
            (offset_of!(InformInfoRecord, enumeration), 16),
            (offset_of!(InformInfoRecord, inform_info), 24),
        ] {
            assert_eq!(offset, expected);
        }
        for (stride, expected) in [
            (NodeRecord::ATTRIBUTE_OFFSET, 14),
            (PortInfoRecord::ATTRIBUTE_OFFSET, 9),
            (SwitchInfoRecord::ATTRIBUTE_OFFSET, 3),
            (SmInfoRecord::ATTRIBUTE_OFFSET, 4),
            (InformInfoRecord::ATTRIBUTE_OFFSET, 8),
            (InformInfo::ATTRIBUTE_OFFSET, 4),
        ] {
            assert_eq!(stride, expected);
        }
    }

    #[test]
    fn a_carried_attribute_reads_back_without_its_reserved_bytes() {
        let info = SmInfo {
            guid: Guid::new(0x0002_c903_0000_0001),
            sm_key: SmKey::new(7),
            priority_state: 0xe3,
            reserved: [0xa5; 43],
            ..SmInfo::default()
        };
        let mut record = SmInfoRecord {
            lid: Lid::new(1),
            ..SmInfoRecord::default()
        };
        record.set_sm_info(&info);
        assert_eq!(
            record.as_bytes()[..12],
            [0, 1, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, 1]
        );
        assert_eq!(record.as_bytes()[24..], [0xe3, 0, 0, 0, 0, 0, 0, 0]);
        let read = record.sm_info();
        assert_eq!(read.guid, info.guid);
        assert_eq!(read.reserved, [0; 43]);
    }

    #[test]
    fn node_and_switch_info_pass_through_their_records() {
        let node_info = NodeInfo {
            num_ports: 2,
            port_guid: Guid::new(5),
            ..NodeInfo::default()
        };
        let mut node = NodeRecord::default();
        node.set_node_info(&node_info);
        assert_eq!(node.node_info(), node_info);

        let switch_info = SwitchInfo {
            linear_fdb_cap: U16::new(0xc000),
            ..SwitchInfo::default()
        };
        let mut switch = SwitchInfoRecord::default();
        switch.set_switch_info(&switch_info);
        assert_eq!(switch.switch_info(), switch_info);
    }
}
