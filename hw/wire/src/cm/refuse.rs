//! MRA and REJ: wait, and no.

use super::{CmMessage, RejReason};
use crate::mad::MadHeader;
use crate::{CommId, Guid};

layout! {
    /// MRA, message receipt acknowledgement: the answer takes longer (IBA 12.6.6).
    mad CmMra {
        /// The common header.
        pub header: MadHeader,
        /// Communication id of the sender.
        pub local_comm_id: CommId,
        /// Communication id of the receiver.
        pub remote_comm_id: CommId,
        /// Message acknowledged (2 bits), reserved (6).
        pub message: u8,
        /// Service timeout (5 bits), reserved (3).
        pub timeout: u8,
        /// For the consumer.
        pub private_data: [u8; 222],
    }
}

impl CmMra {
    bit_fields! {
        /// The message that is acknowledged.
        message_mraed, set_message_mraed: CmMessage = message >> 6, 2;
        /// How long the sender takes to answer at most: a 5-bit code.
        service_timeout, set_service_timeout: u8 = timeout >> 3, 5;
    }
}

layout! {
    /// REJ, the rejection of a message or of the whole exchange (IBA 12.6.7).
    mad CmRej {
        /// The common header.
        pub header: MadHeader,
        /// Communication id of the sender; 0 if it never had one for this exchange.
        pub local_comm_id: CommId,
        /// Communication id of the receiver; 0 if the sender does not know it.
        pub remote_comm_id: CommId,
        /// Message rejected (2 bits), reserved (6).
        pub message: u8,
        /// Reject information length (7 bits), reserved (1).
        pub info_length: u8,
        /// Why.
        pub reason: RejReason,
        /// Additional reject information; what it holds depends on the reason.
        pub ari: [u8; 72],
        /// For the consumer.
        pub private_data: [u8; 148],
    }
}

impl CmRej {
    bit_fields! {
        /// The message that is rejected.
        message_rejected, set_message_rejected: CmMessage = message >> 6, 2;
        /// Valid bytes of the ARI.
        ari_length, set_ari_length: u8 = info_length >> 1, 7;
    }

    /// The valid bytes of the ARI.
    #[must_use]
    pub fn ari_bytes(&self) -> &[u8] {
        let length = usize::from(self.ari_length()).min(self.ari.len());
        &self.ari[..length]
    }

    /// The GUID that a REJ for timeout carries in its ARI: of the CA that gave up
    /// (IBA 12.6.7.2, code 4).
    #[must_use]
    pub fn timeout_ca_guid(&self) -> Option<Guid> {
        let guid = self.ari_bytes().first_chunk::<8>()?;
        (self.reason == RejReason::TIMEOUT).then(|| Guid::new(u64::from_be_bytes(*guid)))
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::cm::header;
    use crate::mad::AttributeId;

    #[test]
    fn fields_stand_at_the_offsets_of_the_tables() {
        assert_eq!(offset_of!(CmMra, message), 32);
        assert_eq!(offset_of!(CmMra, timeout), 33);
        assert_eq!(offset_of!(CmMra, private_data), 34);
        assert_eq!(offset_of!(CmRej, message), 32);
        assert_eq!(offset_of!(CmRej, info_length), 33);
        assert_eq!(offset_of!(CmRej, reason), 34);
        assert_eq!(offset_of!(CmRej, ari), 36);
        assert_eq!(offset_of!(CmRej, private_data), 108);
    }

    #[test]
    fn an_mra_of_a_rep_is_encoded_byte_for_byte() {
        let mut mra = CmMra {
            header: header(AttributeId::CM_MRA),
            local_comm_id: CommId::new(1),
            remote_comm_id: CommId::new(2),
            ..CmMra::default()
        };
        mra.set_message_mraed(CmMessage::REP);
        mra.set_service_timeout(24);
        assert_eq!(mra.as_bytes()[24..34], [0, 0, 0, 1, 0, 0, 0, 2, 0x40, 0xc0]);
    }

    #[test]
    fn a_rej_for_timeout_names_the_ca_that_gave_up() {
        let guid = Guid::new(0x0002_c903_0000_0001);
        let mut rej = CmRej {
            header: header(AttributeId::CM_REJ),
            reason: RejReason::TIMEOUT,
            ..CmRej::default()
        };
        assert_eq!(rej.timeout_ca_guid(), None, "no ARI");
        rej.set_ari_length(8);
        rej.set_message_rejected(CmMessage::OTHER);
        rej.ari[..8].copy_from_slice(guid.as_bytes());
        assert_eq!(rej.as_bytes()[32..36], [0x80, 0x10, 0, 4]);
        assert_eq!(rej.timeout_ca_guid(), Some(guid));
        rej.reason = RejReason::CONSUMER;
        assert_eq!(rej.timeout_ca_guid(), None, "the ARI is the consumer's");
    }

    #[test]
    fn an_ari_length_beyond_the_field_gives_the_whole_field() {
        let mut rej = CmRej::default();
        rej.set_ari_length(127);
        assert_eq!(rej.ari_bytes().len(), 72);
    }

    proptest! {
        #[test]
        fn accessors_keep_every_other_bit(bytes in prop::collection::vec(any::<u8>(), 256)) {
            let mut mra = CmMra::read_from_bytes(&bytes).expect("256 bytes");
            mra.set_message_mraed(mra.message_mraed());
            mra.set_service_timeout(mra.service_timeout());
            prop_assert_eq!(mra.as_bytes(), &bytes[..]);
            let mut rej = CmRej::read_from_bytes(&bytes).expect("256 bytes");
            rej.set_message_rejected(rej.message_rejected());
            rej.set_ari_length(rej.ari_length());
            prop_assert_eq!(rej.as_bytes(), &bytes[..]);
        }
    }
}
