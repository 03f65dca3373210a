//! DREQ and DREP: the end of a connection.

use crate::mad::MadHeader;
use crate::{CommId, Qpn};

layout! {
    /// DREQ, the request to disconnect (IBA 12.6.10).
    mad CmDreq {
        /// The common header.
        pub header: MadHeader,
        /// Communication id of the sender.
        pub local_comm_id: CommId,
        /// Communication id of the receiver.
        pub remote_comm_id: CommId,
        /// The receiver's QP or EE context.
        pub remote_qpn: Qpn,
        /// Reserved.
        pub reserved: u8,
        /// For the consumer.
        pub private_data: [u8; 220],
    }
}

layout! {
    /// DREP, the reply to a DREQ (IBA 12.6.11).
    mad CmDrep {
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

    use zerocopy::IntoBytes;

    use super::*;
    use crate::cm::header;
    use crate::mad::AttributeId;

    #[test]
    fn fields_stand_at_the_offsets_of_the_tables() {
        assert_eq!(offset_of!(CmDreq, remote_qpn), 32);
        assert_eq!(offset_of!(CmDreq, private_data), 36);
        assert_eq!(offset_of!(CmDrep, remote_comm_id), 28);
        assert_eq!(offset_of!(CmDrep, private_data), 32);
    }

    #[test]
    fn a_dreq_is_encoded_byte_for_byte() {
        let mut dreq = CmDreq {
            header: header(AttributeId::CM_DREQ),
            local_comm_id: CommId::new(0x0a),
            remote_comm_id: CommId::new(0x0b),
            remote_qpn: Qpn::from_low_bits(0x01_0203),
            ..CmDreq::default()
        };
        dreq.private_data[0] = 0xee;
        assert_eq!(
            dreq.as_bytes()[16..37],
            [
                0, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xa, 0, 0, 0, 0xb, 1, 2, 3, 0, 0xee
            ]
        );
    }
}
