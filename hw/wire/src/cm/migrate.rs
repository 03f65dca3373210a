//! LAP and APR: a new alternate path for a connection.

use zerocopy::network_endian::U32;

use super::{ApStatus, CmPath};
use crate::mad::MadHeader;
use crate::{CommId, Gid, Lid, Qpn, Rate, Sl};

layout! {
    /// LAP, load alternate path (IBA 12.6.12).
    mad CmLap {
        /// The common header.
        pub header: MadHeader,
        /// Communication id of the sender.
        pub local_comm_id: CommId,
        /// Communication id of the receiver.
        pub remote_comm_id: CommId,
        /// Reserved.
        pub reserved1: [u8; 4],
        /// The receiver's QP or EE context.
        pub remote_qpn: Qpn,
        /// Remote CM response timeout (5 bits), reserved (3).
        pub timeout: u8,
        /// Reserved.
        pub reserved2: [u8; 4],
        /// LID of the sender's port.
        pub alternate_local_lid: Lid,
        /// LID of the receiver's port.
        pub alternate_remote_lid: Lid,
        /// GID of the sender's port.
        pub alternate_local_gid: Gid,
        /// GID of the receiver's port.
        pub alternate_remote_gid: Gid,
        /// Flow label (20 bits), reserved (4), traffic class (8).
        pub flow_label_and_class: U32,
        /// Hop limit.
        pub hop_limit: u8,
        /// Reserved (2 bits), packet rate (6).
        pub packet_rate: u8,
        /// SL (4 bits), subnet local (1), reserved (3).
        pub sl_and_scope: u8,
        /// Local ACK timeout (5 bits), reserved (3).
        pub ack_timeout: u8,
        /// For the consumer.
        pub private_data: [u8; 168],
    }
}

impl CmLap {
    bit_fields! {
        /// How long the sender waits for an answer of the receiver's CM: a 5-bit code.
        remote_cm_response_timeout, set_remote_cm_response_timeout: u8 = timeout >> 3, 5;
        /// Flow label, 20 bits.
        flow_label, set_flow_label: u32 = flow_label_and_class >> 12, 20;
        /// Traffic class.
        traffic_class, set_traffic_class: u8 = flow_label_and_class >> 0, 8;
        /// The path's static rate.
        rate, set_rate: Rate = packet_rate >> 0, 6;
        /// Service level.
        sl, set_sl: Sl = sl_and_scope >> 4, 4;
        /// Whether both ports are in one subnet.
        subnet_local, set_subnet_local: bool = sl_and_scope >> 3, 1;
        /// Local ACK timeout of the sender's QP over this path: a 5-bit code.
        local_ack_timeout, set_local_ack_timeout: u8 = ack_timeout >> 3, 5;
    }

    /// The path in the form that a REQ gives it, which packs the same fields differently.
    #[must_use]
    pub fn path(&self) -> CmPath {
        let mut path = CmPath {
            local_lid: self.alternate_local_lid,
            remote_lid: self.alternate_remote_lid,
            local_gid: self.alternate_local_gid,
            remote_gid: self.alternate_remote_gid,
            traffic_class: self.traffic_class(),
            hop_limit: self.hop_limit,
            sl_and_scope: self.sl_and_scope,
            ack_timeout: self.ack_timeout,
            ..CmPath::default()
        };
        path.set_flow_label(self.flow_label());
        path.set_rate(self.rate());
        path
    }

    /// Takes the path over from the form that a REQ gives it.
    pub fn set_path(&mut self, path: &CmPath) {
        self.alternate_local_lid = path.local_lid;
        self.alternate_remote_lid = path.remote_lid;
        self.alternate_local_gid = path.local_gid;
        self.alternate_remote_gid = path.remote_gid;
        self.set_flow_label(path.flow_label());
        self.set_traffic_class(path.traffic_class);
        self.hop_limit = path.hop_limit;
        self.set_rate(path.rate());
        self.sl_and_scope = path.sl_and_scope;
        self.ack_timeout = path.ack_timeout;
    }
}

layout! {
    /// APR, alternate path response (IBA 12.6.13).
    mad CmApr {
        /// The common header.
        pub header: MadHeader,
        /// Communication id of the sender.
        pub local_comm_id: CommId,
        /// Communication id of the receiver.
        pub remote_comm_id: CommId,
        /// Valid bytes of the additional information.
        pub info_length: u8,
        /// What became of the LAP.
        pub ap_status: ApStatus,
        /// Reserved.
        pub reserved: [u8; 2],
        /// Additional information; what it holds depends on the status.
        pub info: [u8; 72],
        /// For the consumer.
        pub private_data: [u8; 148],
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use proptest::prelude::*;
    use zerocopy::{FromBytes, FromZeros, IntoBytes};

    use super::*;

    #[test]
    fn fields_stand_at_the_offsets_of_the_tables() {
        for (offset, expected) in [
            (offset_of!(CmLap, remote_qpn), 36),
            (offset_of!(CmLap, timeout), 39),
            (offset_of!(CmLap, alternate_local_lid), 44),
            (offset_of!(CmLap, alternate_remote_lid), 46),
            (offset_of!(CmLap, alternate_local_gid), 48),
            (offset_of!(CmLap, alternate_remote_gid), 64),
            (offset_of!(CmLap, flow_label_and_class), 80),
            (offset_of!(CmLap, hop_limit), 84),
            (offset_of!(CmLap, packet_rate), 85),
            (offset_of!(CmLap, sl_and_scope), 86),
            (offset_of!(CmLap, ack_timeout), 87),
            (offset_of!(CmLap, private_data), 88),
            (offset_of!(CmApr, info_length), 32),
            (offset_of!(CmApr, ap_status), 33),
            (offset_of!(CmApr, info), 36),
            (offset_of!(CmApr, private_data), 108),
        ] {
            assert_eq!(offset, expected);
        }
    }

    #[test]
    fn the_path_of_a_lap_is_encoded_byte_for_byte() {
        let mut lap = CmLap::new_zeroed();
        lap.set_remote_cm_response_timeout(20);
        lap.set_flow_label(0x1_2345);
        lap.set_traffic_class(0x67);
        lap.hop_limit = 64;
        lap.set_rate(Rate::GBPS_10);
        lap.set_sl(Sl::from_low_bits(5));
        lap.set_subnet_local(true);
        lap.set_local_ack_timeout(18);
        assert_eq!(lap.as_bytes()[39], 0xa0);
        assert_eq!(
            lap.as_bytes()[80..88],
            [0x12, 0x34, 0x50, 0x67, 64, 3, 0x58, 0x90]
        );
    }

    proptest! {
        #[test]
        fn a_path_survives_the_way_through_a_lap(
            bytes in prop::collection::vec(any::<u8>(), 44)
        ) {
            let mut path = CmPath::read_from_bytes(&bytes).expect("44 bytes");
            // The six reserved bits between flow label and rate have no counterpart in a LAP.
            path.flow_label_and_rate.set(path.flow_label_and_rate.get() & 0xffff_f03f);
            let mut lap = CmLap::default();
            lap.set_path(&path);
            prop_assert_eq!(lap.path(), path);
        }

        #[test]
        fn accessors_keep_every_other_bit(bytes in prop::collection::vec(any::<u8>(), 256)) {
            let mut lap = CmLap::read_from_bytes(&bytes).expect("256 bytes");
            lap.set_remote_cm_response_timeout(lap.remote_cm_response_timeout());
            lap.set_path(&lap.path());
            prop_assert_eq!(lap.as_bytes(), &bytes[..]);
        }
    }
}
