//! The base transport header (IBA 9.2).

use crate::packet::BthOpcode;
use crate::{PKey, Psn, Qpn};

layout! {
    /// The base transport header (IBA 9.2; kernel `struct ib_unpacked_bth`).
    Bth, 12 {
        /// Transport service and operation.
        pub opcode: BthOpcode,
        /// Solicited event (1), migration state (1), pad count (2), transport version (4).
        pub flags: u8,
        /// Partition key.
        pub pkey: PKey,
        /// Congestion notification (2) and reserved (6). Not covered by the ICRC.
        pub congestion_reserved: u8,
        /// Destination queue pair.
        pub dest_qp: Qpn,
        /// Acknowledge request (1) and reserved (7).
        pub ack_reserved: u8,
        /// Packet sequence number.
        pub psn: Psn,
    }
}

impl Bth {
    bit_fields! {
        /// Whether the receiver should raise an event.
        solicited, set_solicited: bool = flags >> 7, 1;
        /// The migration state: set when migrated, as it always is without path migration.
        migrated, set_migrated: bool = flags >> 6, 1;
        /// Bytes of padding behind the payload, 0 to 3.
        pad_count, set_pad_count: u8 = flags >> 4, 2;
        /// The transport version: 0.
        transport_version, set_transport_version: u8 = flags >> 0, 4;
        /// Forward explicit congestion notification (IBA annex A10).
        fecn, set_fecn: bool = congestion_reserved >> 7, 1;
        /// Backward explicit congestion notification (IBA annex A10).
        becn, set_becn: bool = congestion_reserved >> 6, 1;
        /// Whether the sender asks for an acknowledgement.
        ack_request, set_ack_request: bool = ack_reserved >> 7, 1;
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn bth_fields_stand_at_their_bits() {
        let mut bth = Bth {
            opcode: BthOpcode::UD_SEND_ONLY,
            pkey: PKey::new(0x8001),
            dest_qp: Qpn::from_low_bits(0x0a_0b0c),
            psn: Psn::from_low_bits(0x01_0203),
            ..Bth::default()
        };
        bth.set_solicited(true);
        bth.set_pad_count(2);
        bth.set_ack_request(true);
        bth.set_becn(true);
        assert_eq!(
            bth.as_bytes(),
            [
                0x64, 0xa0, 0x80, 0x01, 0x40, 0x0a, 0x0b, 0x0c, 0x80, 1, 2, 3
            ]
        );
    }
}
