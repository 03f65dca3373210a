//! SIDR_REQ and SIDR_REP: service id resolution for datagrams.

use super::SidrStatus;
use crate::mad::MadHeader;
use crate::{CommId, PKey, QKey, Qpn, ServiceId};

layout! {
    /// SIDR_REQ, the request for the QP that serves a service id (IBA 12.11.1).
    mad CmSidrReq {
        /// The common header.
        pub header: MadHeader,
        /// Request id, chosen by the sender.
        pub request_id: CommId,
        /// Partition that the datagrams will use.
        pub pkey: PKey,
        /// Reserved.
        pub reserved: [u8; 2],
        /// The service asked for.
        pub service_id: ServiceId,
        /// For the consumer.
        pub private_data: [u8; 216],
    }
}

layout! {
    /// SIDR_REP, the answer (IBA 12.11.2).
    mad CmSidrRep {
        /// The common header.
        pub header: MadHeader,
        /// Request id, from the request.
        pub request_id: CommId,
        /// Outcome.
        pub status: SidrStatus,
        /// Valid bytes of the additional information.
        pub info_length: u8,
        /// Vendor id, bits 23..8.
        pub vendor_id_high: [u8; 2],
        /// The QP that serves the service.
        pub qpn: Qpn,
        /// Vendor id, bits 7..0.
        pub vendor_id_low: u8,
        /// The service, from the request.
        pub service_id: ServiceId,
        /// Q_Key of the QP.
        pub qkey: QKey,
        /// Additional information; what it holds depends on the status.
        pub info: [u8; 72],
        /// For the consumer.
        pub private_data: [u8; 136],
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use zerocopy::IntoBytes;

    use super::*;
    use crate::cm::header;
    use crate::mad::AttributeId;

    #[test]
    fn fields_stand_at_the_offsets_of_the_tables() {
        for (offset, expected) in [
            (offset_of!(CmSidrReq, pkey), 28),
            (offset_of!(CmSidrReq, service_id), 32),
            (offset_of!(CmSidrReq, private_data), 40),
            (offset_of!(CmSidrRep, status), 28),
            (offset_of!(CmSidrRep, info_length), 29),
            (offset_of!(CmSidrRep, vendor_id_high), 30),
            (offset_of!(CmSidrRep, qpn), 32),
            (offset_of!(CmSidrRep, vendor_id_low), 35),
            (offset_of!(CmSidrRep, service_id), 36),
            (offset_of!(CmSidrRep, qkey), 44),
            (offset_of!(CmSidrRep, info), 48),
            (offset_of!(CmSidrRep, private_data), 120),
        ] {
            assert_eq!(offset, expected);
        }
    }

    #[test]
    fn a_sidr_rep_is_encoded_byte_for_byte() {
        let rep = CmSidrRep {
            header: header(AttributeId::CM_SIDR_REP),
            request_id: CommId::new(0x0102_0304),
            status: SidrStatus::REJECTED,
            qpn: Qpn::from_low_bits(0x0a_0b0c),
            service_id: ServiceId::new(0x0100_0000_0000_0002),
            qkey: QKey::new(0x1122_3344),
            ..CmSidrRep::default()
        };
        assert_eq!(
            rep.as_bytes()[24..48],
            [
                1, 2, 3, 4, 2, 0, 0, 0, 0xa, 0xb, 0xc, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0x11, 0x22, 0x33,
                0x44
            ]
        );
    }
}
