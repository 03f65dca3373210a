//! PathRecord and MultiPathRecord.

use zerocopy::network_endian::{U16, U32};

use super::{SaRecord, Selector, components};
use crate::mad::AttributeId;
use crate::{Gid, Lid, Mtu, PKey, Rate, ServiceId, Sl};

/// The bit fields that both path records pack alike.
macro_rules! path_fields {
    ($record:ident) => {
        impl $record {
            bit_fields! {
                /// Whether raw packets may use the path.
                raw_traffic, set_raw_traffic: bool = raw_flow_hop >> 31, 1;
                /// Flow label, 20 bits.
                flow_label, set_flow_label: u32 = raw_flow_hop >> 8, 20;
                /// Hop limit.
                hop_limit, set_hop_limit: u8 = raw_flow_hop >> 0, 8;
                /// Whether the path works in both directions.
                reversible, set_reversible: bool = reversible_numb_path >> 7, 1;
                /// Request: the most paths wanted.
                numb_path, set_numb_path: u8 = reversible_numb_path >> 0, 7;
                /// QoS class, 12 bits.
                qos_class, set_qos_class: u16 = qos_class_and_sl >> 4, 12;
                /// Service level.
                sl, set_sl: Sl = qos_class_and_sl >> 0, 4;
                /// How the MTU is meant.
                mtu_selector, set_mtu_selector: Selector = mtu >> 6, 2;
                /// Path MTU.
                mtu_value, set_mtu_value: Mtu = mtu >> 0, 6;
                /// How the rate is meant.
                rate_selector, set_rate_selector: Selector = rate >> 6, 2;
                /// Static rate.
                rate_value, set_rate_value: Rate = rate >> 0, 6;
                /// How the packet life time is meant.
                packet_life_time_selector, set_packet_life_time_selector: Selector = packet_life_time >> 6, 2;
                /// Packet life time as 4.096 µs × 2^value.
                packet_life_time_value, set_packet_life_time_value: u8 = packet_life_time >> 0, 6;
            }
        }
    };
}

layout! {
    /// PathRecord (IBA 15.2.5.16): how packets get from one port to another. 64 bytes.
    PathRecord, 64 {
        /// Service that the path is for, when QoS goes by service.
        pub service_id: ServiceId,
        /// Destination GID.
        pub dgid: Gid,
        /// Source GID.
        pub sgid: Gid,
        /// Destination LID.
        pub dlid: Lid,
        /// Source LID.
        pub slid: Lid,
        /// Raw traffic (1 bit), reserved (3), flow label (20), hop limit (8).
        pub raw_flow_hop: U32,
        /// Traffic class.
        pub traffic_class: u8,
        /// Reversible (1 bit), number of paths (7).
        pub reversible_numb_path: u8,
        /// Partition.
        pub pkey: PKey,
        /// QoS class (12 bits), SL (4).
        pub qos_class_and_sl: U16,
        /// Selector (2 bits), MTU (6).
        pub mtu: u8,
        /// Selector (2 bits), rate (6).
        pub rate: u8,
        /// Selector (2 bits), packet life time (6).
        pub packet_life_time: u8,
        /// Order of preference among the paths of one answer; 0 is best.
        pub preference: u8,
        /// Reserved.
        pub reserved: [u8; 6],
    }
}

path_fields!(PathRecord);

impl SaRecord for PathRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::PATH_RECORD;
}

components! {
    PathRecord {
        SERVICE_ID = 0 | 1, "the service id";
        DGID = 2, "the destination GID";
        SGID = 3, "the source GID";
        DLID = 4, "the destination LID";
        SLID = 5, "the source LID";
        RAW_TRAFFIC = 6, "raw traffic";
        FLOW_LABEL = 8, "the flow label";
        HOP_LIMIT = 9, "the hop limit";
        TRAFFIC_CLASS = 10, "the traffic class";
        REVERSIBLE = 11, "reversible";
        NUMB_PATH = 12, "the number of paths";
        PKEY = 13, "the P_Key";
        QOS_CLASS = 14, "the QoS class";
        SL = 15, "the SL";
        MTU_SELECTOR = 16, "the MTU selector";
        MTU = 17, "the MTU";
        RATE_SELECTOR = 18, "the rate selector";
        RATE = 19, "the rate";
        PACKET_LIFE_TIME_SELECTOR = 20, "the packet life time selector";
        PACKET_LIFE_TIME = 21, "the packet life time";
        PREFERENCE = 22, "the preference";
    }
}

layout! {
    /// MultiPathRecord (IBA 15.2.5.20), the request for paths between sets of ports: the fixed
    /// part of 24 bytes, then SGIDCount source GIDs and DGIDCount destination GIDs. 200 bytes.
    MultiPathRecord, 200 {
        /// Raw traffic (1 bit), reserved (3), flow label (20), hop limit (8).
        pub raw_flow_hop: U32,
        /// Traffic class.
        pub traffic_class: u8,
        /// Reversible (1 bit), number of paths (7).
        pub reversible_numb_path: u8,
        /// Partition.
        pub pkey: PKey,
        /// QoS class (12 bits), SL (4).
        pub qos_class_and_sl: U16,
        /// Selector (2 bits), MTU (6).
        pub mtu: u8,
        /// Selector (2 bits), rate (6).
        pub rate: u8,
        /// Selector (2 bits), packet life time (6).
        pub packet_life_time: u8,
        /// Bits 63..56 of the service id.
        pub service_id_high: u8,
        /// Independence selector (2 bits), reserved (6).
        pub independence: u8,
        /// Source GIDs.
        pub sgid_count: u8,
        /// Destination GIDs.
        pub dgid_count: u8,
        /// Bits 55..0 of the service id.
        pub service_id_low: [u8; 7],
        /// The source GIDs, then the destination GIDs.
        pub gids: [Gid; 11],
    }
}

path_fields!(MultiPathRecord);

impl MultiPathRecord {
    bit_fields! {
        /// Which paths are wanted: as fault-independent as possible, or whatever there is.
        independence_selector, set_independence_selector: u8 = independence >> 6, 2;
    }

    /// The service id.
    #[must_use]
    pub fn service_id(&self) -> ServiceId {
        let mut bytes = [self.service_id_high; 8];
        bytes[1..].copy_from_slice(&self.service_id_low);
        ServiceId::new(u64::from_be_bytes(bytes))
    }

    /// Sets the service id.
    pub fn set_service_id(&mut self, service_id: ServiceId) {
        let [high, low @ ..] = service_id.get().to_be_bytes();
        self.service_id_high = high;
        self.service_id_low = low;
    }

    /// The source and the destination GIDs; `None` if the counts exceed the record.
    #[must_use]
    pub fn endpoints(&self) -> Option<(&[Gid], &[Gid])> {
        let sources = usize::from(self.sgid_count);
        let both = sources + usize::from(self.dgid_count);
        Some(self.gids.get(..both)?.split_at(sources))
    }
}

impl SaRecord for MultiPathRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::MULTI_PATH_RECORD;
}

components! {
    MultiPathRecord {
        RAW_TRAFFIC = 0, "raw traffic";
        FLOW_LABEL = 2, "the flow label";
        HOP_LIMIT = 3, "the hop limit";
        TRAFFIC_CLASS = 4, "the traffic class";
        REVERSIBLE = 5, "reversible";
        NUMB_PATH = 6, "the number of paths";
        PKEY = 7, "the P_Key";
        QOS_CLASS = 8, "the QoS class";
        SL = 9, "the SL";
        MTU_SELECTOR = 10, "the MTU selector";
        MTU = 11, "the MTU";
        RATE_SELECTOR = 12, "the rate selector";
        RATE = 13, "the rate";
        PACKET_LIFE_TIME_SELECTOR = 14, "the packet life time selector";
        PACKET_LIFE_TIME = 15, "the packet life time";
        SERVICE_ID = 16 | 21, "the service id";
        INDEPENDENCE_SELECTOR = 17, "the independence selector";
        SGID_COUNT = 19, "the count of source GIDs";
        DGID_COUNT = 20, "the count of destination GIDs";
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn path_fields_stand_at_their_offsets() {
        for (offset, expected) in [
            (offset_of!(PathRecord, dgid), 8),
            (offset_of!(PathRecord, sgid), 24),
            (offset_of!(PathRecord, dlid), 40),
            (offset_of!(PathRecord, slid), 42),
            (offset_of!(PathRecord, raw_flow_hop), 44),
            (offset_of!(PathRecord, traffic_class), 48),
            (offset_of!(PathRecord, reversible_numb_path), 49),
            (offset_of!(PathRecord, pkey), 50),
            (offset_of!(PathRecord, qos_class_and_sl), 52),
            (offset_of!(PathRecord, mtu), 54),
            (offset_of!(PathRecord, rate), 55),
            (offset_of!(PathRecord, packet_life_time), 56),
            (offset_of!(PathRecord, preference), 57),
            (offset_of!(MultiPathRecord, pkey), 6),
            (offset_of!(MultiPathRecord, mtu), 10),
            (offset_of!(MultiPathRecord, service_id_high), 13),
            (offset_of!(MultiPathRecord, sgid_count), 15),
            (offset_of!(MultiPathRecord, service_id_low), 17),
            (offset_of!(MultiPathRecord, gids), 24),
        ] {
            assert_eq!(offset, expected);
        }
    }

    #[test]
    fn a_path_is_encoded_as_opensm_encodes_it() {
        let mut path = PathRecord {
            dlid: Lid::new(4),
            slid: Lid::new(1),
            pkey: PKey::DEFAULT_FULL,
            ..PathRecord::default()
        };
        path.set_reversible(true);
        path.set_numb_path(1);
        path.set_flow_label(0x1_2345);
        path.set_hop_limit(64);
        path.set_qos_class(0xabc);
        path.set_sl(Sl::from_low_bits(5));
        path.set_mtu_selector(Selector::EXACTLY);
        path.set_mtu_value(Mtu::MTU_2048);
        path.set_rate_selector(Selector::EXACTLY);
        path.set_rate_value(Rate::GBPS_10);
        path.set_packet_life_time_selector(Selector::EXACTLY);
        path.set_packet_life_time_value(18);
        assert_eq!(
            path.as_bytes()[40..58],
            [
                0, 4, 0, 1, 0x01, 0x23, 0x45, 64, 0, 0x81, 0xff, 0xff, 0xab, 0xc5, 0x84, 0x83,
                0x92, 0
            ]
        );
    }

    #[test]
    fn component_bits_are_those_of_the_kernel() {
        assert_eq!(PathRecord::SERVICE_ID.get(), 3);
        assert_eq!((PathRecord::DGID | PathRecord::SGID).get(), 0x0c);
        assert_eq!((PathRecord::DLID | PathRecord::SLID).get(), 0x30);
        assert_eq!(PathRecord::PACKET_LIFE_TIME.get(), 1 << 21);
        assert_eq!(MultiPathRecord::SERVICE_ID.get(), 1 << 16 | 1 << 21);
    }

    #[test]
    fn counts_beyond_the_record_give_no_gids() {
        let mut record = MultiPathRecord {
            sgid_count: 1,
            dgid_count: 2,
            ..MultiPathRecord::default()
        };
        record.gids[1] = Gid([7; 16]);
        let (sources, destinations) = record.endpoints().expect("three fit");
        assert_eq!(sources, [Gid::NONE]);
        assert_eq!(destinations, [Gid([7; 16]), Gid::NONE]);
        record.dgid_count = 255;
        assert_eq!(record.endpoints(), None);
    }

    proptest! {
        #[test]
        fn path_accessors_keep_every_other_bit(bytes in prop::collection::vec(any::<u8>(), 64)) {
            let before = PathRecord::read_from_bytes(&bytes).expect("64 bytes");
            let mut path = before;
            path.set_raw_traffic(before.raw_traffic());
            path.set_flow_label(before.flow_label());
            path.set_hop_limit(before.hop_limit());
            path.set_reversible(before.reversible());
            path.set_numb_path(before.numb_path());
            path.set_qos_class(before.qos_class());
            path.set_sl(before.sl());
            path.set_mtu_selector(before.mtu_selector());
            path.set_mtu_value(before.mtu_value());
            path.set_rate_selector(before.rate_selector());
            path.set_rate_value(before.rate_value());
            path.set_packet_life_time_selector(before.packet_life_time_selector());
            path.set_packet_life_time_value(before.packet_life_time_value());
            prop_assert_eq!(path.as_bytes(), &bytes[..]);
        }

        #[test]
        fn the_split_service_id_reads_back(id: u64) {
            let mut record = MultiPathRecord::default();
            record.set_service_id(ServiceId::new(id));
            prop_assert_eq!(record.service_id().get(), id);
        }
    }
}
