//! REQ, REP and RTU: the three steps of a connection.

use zerocopy::network_endian::U32;

use super::{CmTransport, FailoverAccepted};
use crate::mad::MadHeader;
use crate::{CommId, Gid, Guid, Lid, Mtu, PKey, Psn, QKey, Qpn, Rate, ServiceId, Sl};

layout! {
    /// A path between the two ports of a connection, as the sender of the message sees it
    /// (IBA 12.6.5, REQ: primary and alternate). 44 bytes.
    CmPath, 44 {
        /// LID of the sender's port.
        pub local_lid: Lid,
        /// LID of the receiver's port.
        pub remote_lid: Lid,
        /// GID of the sender's port.
        pub local_gid: Gid,
        /// GID of the receiver's port.
        pub remote_gid: Gid,
        /// Flow label (20 bits), reserved (6), packet rate (6).
        pub flow_label_and_rate: U32,
        /// Traffic class.
        pub traffic_class: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// SL (4 bits), subnet local (1), reserved (3).
        pub sl_and_scope: u8,
        /// Local ACK timeout (5 bits), in the alternate path of a REQ SAP supported (1), reserved.
        pub ack_timeout: u8,
    }
}

impl CmPath {
    bit_fields! {
        /// Flow label, 20 bits.
        flow_label, set_flow_label: u32 = flow_label_and_rate >> 12, 20;
        /// The path's static rate.
        rate, set_rate: Rate = flow_label_and_rate >> 0, 6;
        /// Service level.
        sl, set_sl: Sl = sl_and_scope >> 4, 4;
        /// Whether both ports are in one subnet, so that packets need no GRH.
        subnet_local, set_subnet_local: bool = sl_and_scope >> 3, 1;
        /// Local ACK timeout of the sender's QP over this path, a 5-bit code: twice the packet
        /// life time plus the CA's own delay (IBA 12.7.34).
        local_ack_timeout, set_local_ack_timeout: u8 = ack_timeout >> 3, 5;
        /// Whether the sender supports suggest-alternate-path messages. Only the alternate path
        /// of a REQ has this bit; it is reserved elsewhere.
        sap_supported, set_sap_supported: bool = ack_timeout >> 2, 1;
    }

    /// Whether the path is absent: an alternate path without LIDs and GIDs says that there is none,
    /// whatever else it holds.
    #[must_use]
    pub fn is_none(&self) -> bool {
        [self.local_lid, self.remote_lid] == [Lid::NONE; 2]
            && [self.local_gid, self.remote_gid] == [Gid::NONE; 2]
    }
}

layout! {
    /// REQ, the request to connect (IBA 12.6.5).
    mad CmReq {
        /// The common header.
        pub header: MadHeader,
        /// Communication id of the sender.
        pub local_comm_id: CommId,
        /// Reserved.
        pub reserved1: u8,
        /// Vendor id that private vendor options belong to.
        pub vendor_id: [u8; 3],
        /// The service asked for.
        pub service_id: ServiceId,
        /// GUID of the sender's CA.
        pub local_ca_guid: Guid,
        /// Reserved.
        pub reserved2: [u8; 4],
        /// Q_Key (reliable datagram only).
        pub local_qkey: QKey,
        /// The sender's QP.
        pub local_qpn: Qpn,
        /// RDMA reads and atomics that the sender can have outstanding as a responder.
        pub responder_resources: u8,
        /// The sender's EE context (reliable datagram only).
        pub local_eecn: Qpn,
        /// RDMA reads and atomics that the sender will have outstanding as a requester.
        pub initiator_depth: u8,
        /// The receiver's EE context (reliable datagram only).
        pub remote_eecn: Qpn,
        /// Remote CM response timeout (5 bits), transport service type (2), end-to-end flow
        /// control (1).
        pub timeout_and_transport: u8,
        /// PSN from which the receiver of the message starts (IBA 12.7.31).
        pub starting_psn: Psn,
        /// Local CM response timeout (5 bits), retry count (3).
        pub timeout_and_retries: u8,
        /// Partition of the connection.
        pub pkey: PKey,
        /// Path MTU (4 bits), RDC exists (1), RNR retry count (3).
        pub mtu_and_rnr: u8,
        /// Max CM retries (4 bits), SRQ (1), extended transport type (3).
        pub cm_retries: u8,
        /// The path of the connection.
        pub primary: CmPath,
        /// The alternate path, or zeros.
        pub alternate: CmPath,
        /// For the consumer.
        pub private_data: [u8; 92],
    }
}

impl CmReq {
    bit_fields! {
        /// How long the sender waits for an answer of the receiver's CM: a 5-bit code.
        remote_cm_response_timeout, set_remote_cm_response_timeout: u8 = timeout_and_transport >> 3, 5;
        /// Transport service type.
        transport, set_transport: CmTransport = timeout_and_transport >> 1, 2;
        /// Whether the sender implements end-to-end flow control.
        end_to_end_flow_control, set_end_to_end_flow_control: bool = timeout_and_transport >> 0, 1;
        /// How long the sender's CM takes to answer at most: a 5-bit code.
        local_cm_response_timeout, set_local_cm_response_timeout: u8 = timeout_and_retries >> 3, 5;
        /// Transport retries of the QP.
        retry_count, set_retry_count: u8 = timeout_and_retries >> 0, 3;
        /// Path MTU.
        mtu, set_mtu: Mtu = mtu_and_rnr >> 4, 4;
        /// Whether a reliable datagram channel exists already.
        rdc_exists, set_rdc_exists: bool = mtu_and_rnr >> 3, 1;
        /// RNR retries of the QP; 7 for ever.
        rnr_retry_count, set_rnr_retry_count: u8 = mtu_and_rnr >> 0, 3;
        /// How often either CM sends a message again that is not answered.
        max_cm_retries, set_max_cm_retries: u8 = cm_retries >> 4, 4;
        /// Whether the sender's QP uses an SRQ.
        srq, set_srq: bool = cm_retries >> 3, 1;
        /// Extended transport type, when the transport says so.
        extended_transport, set_extended_transport: u8 = cm_retries >> 0, 3;
    }
}

layout! {
    /// REP, the reply that accepts a REQ (IBA 12.6.8).
    mad CmRep {
        /// The common header.
        pub header: MadHeader,
        /// Communication id of the sender.
        pub local_comm_id: CommId,
        /// Communication id of the receiver, from the REQ.
        pub remote_comm_id: CommId,
        /// Q_Key (reliable datagram only).
        pub local_qkey: QKey,
        /// The sender's QP.
        pub local_qpn: Qpn,
        /// Vendor id, bits 23..16.
        pub vendor_id_high: u8,
        /// The sender's EE context (reliable datagram only).
        pub local_eecn: Qpn,
        /// Vendor id, bits 15..8.
        pub vendor_id_middle: u8,
        /// PSN from which the receiver of the message starts (IBA 12.7.31).
        pub starting_psn: Psn,
        /// Vendor id, bits 7..0.
        pub vendor_id_low: u8,
        /// RDMA reads and atomics that the sender can have outstanding as a responder.
        pub responder_resources: u8,
        /// RDMA reads and atomics that the sender will have outstanding as a requester.
        pub initiator_depth: u8,
        /// Target ACK delay (5 bits), failover accepted (2), end-to-end flow control (1).
        pub delay_and_failover: u8,
        /// RNR retry count (3 bits), SRQ (1), reserved (4).
        pub rnr_and_srq: u8,
        /// GUID of the sender's CA.
        pub local_ca_guid: Guid,
        /// For the consumer.
        pub private_data: [u8; 196],
    }
}

impl CmRep {
    bit_fields! {
        /// The sender's own delay before it acknowledges a packet: a 5-bit code.
        target_ack_delay, set_target_ack_delay: u8 = delay_and_failover >> 3, 5;
        /// The fate of the REQ's alternate path.
        failover_accepted, set_failover_accepted: FailoverAccepted = delay_and_failover >> 1, 2;
        /// Whether the sender implements end-to-end flow control.
        end_to_end_flow_control, set_end_to_end_flow_control: bool = delay_and_failover >> 0, 1;
        /// RNR retries of the QP; 7 for ever.
        rnr_retry_count, set_rnr_retry_count: u8 = rnr_and_srq >> 5, 3;
        /// Whether the sender's QP uses an SRQ.
        srq, set_srq: bool = rnr_and_srq >> 4, 1;
    }
}

layout! {
    /// RTU, ready to use (IBA 12.6.9).
    mad CmRtu {
        /// The common header.
        pub header: MadHeader,
        /// Communication id of the sender.
        pub local_comm_id: CommId,
        /// Communication id of the receiver.
        pub remote_comm_id: CommId,
        /// For the consumer.
        pub private_data: [u8; 224],
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;
    use std::vec::Vec;

    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::cm::header;
    use crate::mad::AttributeId;

    /// Offsets in the tables count from the end of the common header.
    const DATA: usize = 24;

    #[test]
    fn req_fields_stand_at_the_offsets_of_the_table() {
        for (offset, table) in [
            (offset_of!(CmReq, local_comm_id), 0),
            (offset_of!(CmReq, vendor_id), 5),
            (offset_of!(CmReq, service_id), 8),
            (offset_of!(CmReq, local_ca_guid), 16),
            (offset_of!(CmReq, local_qkey), 28),
            (offset_of!(CmReq, local_qpn), 32),
            (offset_of!(CmReq, responder_resources), 35),
            (offset_of!(CmReq, local_eecn), 36),
            (offset_of!(CmReq, initiator_depth), 39),
            (offset_of!(CmReq, remote_eecn), 40),
            (offset_of!(CmReq, timeout_and_transport), 43),
            (offset_of!(CmReq, starting_psn), 44),
            (offset_of!(CmReq, timeout_and_retries), 47),
            (offset_of!(CmReq, pkey), 48),
            (offset_of!(CmReq, mtu_and_rnr), 50),
            (offset_of!(CmReq, cm_retries), 51),
            (offset_of!(CmReq, primary.local_gid), 56),
            (offset_of!(CmReq, primary.remote_gid), 72),
            (offset_of!(CmReq, primary.flow_label_and_rate), 88),
            (offset_of!(CmReq, primary.ack_timeout), 95),
            (offset_of!(CmReq, alternate), 96),
            (offset_of!(CmReq, alternate.remote_gid), 116),
            (offset_of!(CmReq, private_data), 140),
        ] {
            assert_eq!(offset, DATA + table);
        }
    }

    #[test]
    fn rep_and_rtu_fields_stand_at_the_offsets_of_the_table() {
        for (offset, table) in [
            (offset_of!(CmRep, remote_comm_id), 4),
            (offset_of!(CmRep, local_qkey), 8),
            (offset_of!(CmRep, local_qpn), 12),
            (offset_of!(CmRep, local_eecn), 16),
            (offset_of!(CmRep, starting_psn), 20),
            (offset_of!(CmRep, responder_resources), 24),
            (offset_of!(CmRep, initiator_depth), 25),
            (offset_of!(CmRep, delay_and_failover), 26),
            (offset_of!(CmRep, rnr_and_srq), 27),
            (offset_of!(CmRep, local_ca_guid), 28),
            (offset_of!(CmRep, private_data), 36),
            (offset_of!(CmRtu, remote_comm_id), 4),
            (offset_of!(CmRtu, private_data), 8),
        ] {
            assert_eq!(offset, DATA + table);
        }
    }

    #[test]
    fn a_req_is_encoded_byte_for_byte() {
        let mut req = CmReq {
            header: header(AttributeId::CM_REQ),
            local_comm_id: CommId::new(0x1122_3344),
            service_id: ServiceId::new(0x0100_0000_0000_1234),
            local_ca_guid: Guid::new(0x0002_c903_0000_0001),
            local_qpn: Qpn::from_low_bits(0x4_0405),
            responder_resources: 4,
            initiator_depth: 5,
            starting_psn: Psn::from_low_bits(0x00ab_cdef),
            pkey: PKey::DEFAULT_FULL,
            ..CmReq::default()
        };
        req.set_remote_cm_response_timeout(20);
        req.set_transport(CmTransport::UC);
        req.set_end_to_end_flow_control(true);
        req.set_local_cm_response_timeout(19);
        req.set_retry_count(7);
        req.set_mtu(Mtu::MTU_2048);
        req.set_rnr_retry_count(6);
        req.set_max_cm_retries(15);
        req.set_srq(true);
        let path = &mut req.primary;
        path.local_lid = Lid::new(1);
        path.remote_lid = Lid::new(2);
        path.set_flow_label(0x1_2345);
        path.set_rate(Rate::GBPS_40);
        path.traffic_class = 8;
        path.hop_limit = 64;
        path.set_sl(Sl::from_low_bits(3));
        path.set_subnet_local(true);
        path.set_local_ack_timeout(18);

        let bytes = req.as_bytes();
        assert_eq!(bytes[..4], [1, 7, 2, 3]);
        assert_eq!(bytes[24..28], [0x11, 0x22, 0x33, 0x44]);
        assert_eq!(bytes[32..40], [1, 0, 0, 0, 0, 0, 0x12, 0x34]);
        assert_eq!(bytes[40..48], [0, 2, 0xc9, 3, 0, 0, 0, 1]);
        assert_eq!(bytes[56..60], [0x04, 0x04, 0x05, 4]);
        assert_eq!(bytes[60..68], [0, 0, 0, 5, 0, 0, 0, 0b1010_0011]);
        assert_eq!(bytes[68..72], [0xab, 0xcd, 0xef, 0b1001_1111]);
        assert_eq!(bytes[72..76], [0xff, 0xff, 0x46, 0xf8]);
        assert_eq!(bytes[76..80], [0, 1, 0, 2]);
        assert_eq!(bytes[112..120], [0x12, 0x34, 0x50, 7, 8, 64, 0x38, 0x90]);
        assert!(req.alternate.is_none());
        assert!(!req.primary.is_none());
    }

    #[test]
    fn a_rep_is_encoded_byte_for_byte() {
        let mut rep = CmRep {
            header: header(AttributeId::CM_REP),
            local_comm_id: CommId::new(2),
            remote_comm_id: CommId::new(1),
            local_qpn: Qpn::from_low_bits(0x99),
            responder_resources: 1,
            initiator_depth: 2,
            ..CmRep::default()
        };
        rep.set_target_ack_delay(15);
        rep.set_failover_accepted(FailoverAccepted::REJECTED);
        rep.set_rnr_retry_count(7);
        rep.set_srq(true);
        let bytes = rep.as_bytes();
        assert_eq!(bytes[24..32], [0, 0, 0, 2, 0, 0, 0, 1]);
        assert_eq!(bytes[36..40], [0, 0, 0x99, 0]);
        assert_eq!(bytes[48..52], [1, 2, 0b0111_1100, 0b1111_0000]);
    }

    proptest! {
        #[test]
        fn req_accessors_keep_every_other_bit(
            bytes in prop::collection::vec(any::<u8>(), 256), value: u8
        ) {
            let before = CmReq::read_from_bytes(&bytes).expect("256 bytes");
            let mut req = before;
            // Setting each field to what it holds changes nothing.
            req.set_remote_cm_response_timeout(before.remote_cm_response_timeout());
            req.set_transport(before.transport());
            req.set_end_to_end_flow_control(before.end_to_end_flow_control());
            req.set_local_cm_response_timeout(before.local_cm_response_timeout());
            req.set_retry_count(before.retry_count());
            req.set_mtu(before.mtu());
            req.set_rdc_exists(before.rdc_exists());
            req.set_rnr_retry_count(before.rnr_retry_count());
            req.set_max_cm_retries(before.max_cm_retries());
            req.set_srq(before.srq());
            req.set_extended_transport(before.extended_transport());
            let path = before.primary;
            req.primary.set_flow_label(path.flow_label());
            req.primary.set_rate(path.rate());
            req.primary.set_sl(path.sl());
            req.primary.set_subnet_local(path.subnet_local());
            req.primary.set_local_ack_timeout(path.local_ack_timeout());
            prop_assert_eq!(req.as_bytes(), &bytes[..]);

            // Setting a field to something else changes its bits only.
            req.set_remote_cm_response_timeout(value);
            req.set_max_cm_retries(value);
            prop_assert_eq!(req.remote_cm_response_timeout(), value & 0x1f);
            prop_assert_eq!(req.max_cm_retries(), value & 0x0f);
            let changed: Vec<usize> = (0..256).filter(|&i| req.as_bytes()[i] != bytes[i]).collect();
            prop_assert!(changed.iter().all(|i| [67, 75].contains(i)));
            prop_assert_eq!(req.transport(), before.transport());
            prop_assert_eq!(req.srq(), before.srq());
        }

        #[test]
        fn rep_accessors_keep_every_other_bit(bytes in prop::collection::vec(any::<u8>(), 256)) {
            let before = CmRep::read_from_bytes(&bytes).expect("256 bytes");
            let mut rep = before;
            rep.set_target_ack_delay(before.target_ack_delay());
            rep.set_failover_accepted(before.failover_accepted());
            rep.set_end_to_end_flow_control(before.end_to_end_flow_control());
            rep.set_rnr_retry_count(before.rnr_retry_count());
            rep.set_srq(before.srq());
            prop_assert_eq!(rep.as_bytes(), &bytes[..]);
        }
    }
}
