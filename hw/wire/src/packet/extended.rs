//! The extended transport headers (IBA 9.3) and immediate data (IBA 9.4).

use zerocopy::network_endian::{U32, U64};

use crate::{Psn, QKey, Qpn, RKey};

layout! {
    /// The reliable datagram extended header (IBA 9.3.1).
    Rdeth, 4 {
        /// Reserved.
        pub reserved: u8,
        /// The end-to-end context.
        pub ee_context: Qpn,
    }
}

layout! {
    /// The datagram extended header (IBA 9.3.2; kernel `struct ib_unpacked_deth`).
    Deth, 8 {
        /// Queue key.
        pub qkey: QKey,
        /// Reserved.
        pub reserved: u8,
        /// Source queue pair.
        pub src_qp: Qpn,
    }
}

layout! {
    /// The extended reliable connection header (IBA annex A14).
    XrcEth, 4 {
        /// Reserved.
        pub reserved: u8,
        /// The destination's shared receive queue.
        pub srq: Qpn,
    }
}

layout! {
    /// The extended header of a flush, in front of its RETH (IBA annex A19; kernel `struct rxe_feth`).
    Feth, 4 {
        /// Placement type and selectivity; the other bits are reserved.
        pub bits: U32,
    }
}

impl Feth {
    bit_fields! {
        /// Placement that the flush asks for.
        placement, set_placement: FlushPlacement = bits >> 0, 4;
        /// Memory that the flush is about.
        selectivity, set_selectivity: FlushSelectivity = bits >> 4, 2;
    }
}

bits_newtype! {
    /// Placement of bytes of earlier requests, a set of 4 bits of which the standard names two (IBA annex A19; kernel
    /// `enum ib_placement_type`).
    FlushPlacement, 0x0f
}

impl FlushPlacement {
    /// No placement, or no right to ask for one.
    pub const NONE: Self = Self::from_low_bits(0);
    /// All that read the memory find the bytes.
    pub const GLOBAL: Self = Self::from_low_bits(1);
    /// The bytes survive a loss of power.
    pub const PERSISTENT: Self = Self::from_low_bits(2);

    /// Returns `true` if all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.get() & other.get() == other.get()
    }

    /// Returns the bits that are set in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self::from_low_bits(self.get() | other.get())
    }
}

bits_newtype! {
    /// Memory that a flush is about, as 2 bits (IBA annex A19; kernel `enum ib_selectivity_level`).
    FlushSelectivity, 0x03
}

impl FlushSelectivity {
    /// The range of the RETH.
    pub const RANGE: Self = Self::from_low_bits(0);
    /// The whole region of the RETH's key.
    pub const REGION: Self = Self::from_low_bits(1);
}

layout! {
    /// The RDMA extended header (IBA 9.3.3).
    Reth, 16 {
        /// Virtual address at the responder.
        pub virtual_address: U64,
        /// Key of the responder's memory.
        pub rkey: RKey,
        /// Bytes of the whole message.
        pub dma_length: U32,
    }
}

layout! {
    /// The atomic extended header (IBA 9.3.4).
    AtomicEth, 28 {
        /// Virtual address at the responder.
        pub virtual_address: U64,
        /// Key of the responder's memory.
        pub rkey: RKey,
        /// The value to swap in or to add.
        pub swap_add: U64,
        /// The value to compare with.
        pub compare: U64,
    }
}

layout! {
    /// The masks of [`BthOpcode::RC_MASKED_COMPARE_SWAP`](crate::packet::BthOpcode::RC_MASKED_COMPARE_SWAP), behind its AtomicETH. A
    /// masked fetch and add has none: its mask stands in [`AtomicEth::compare`].
    AtomicMasks, 16 {
        /// Bits that are stored.
        pub swap_mask: U64,
        /// Bits that are compared.
        pub compare_mask: U64,
    }
}

layout! {
    /// The acknowledge extended header (IBA 9.3.5).
    Aeth, 4 {
        /// What the acknowledgement says; see [`Aeth::syndrome`].
        pub syndrome_byte: u8,
        /// Message sequence number.
        pub msn: Psn,
    }
}

open_enum! {
    /// The reason of a negative acknowledgement (IBA 9.7.5.2.8).
    NakCode(u8) {
        /// A packet is missing.
        PSN_SEQUENCE_ERROR = 0,
        /// The request is malformed or not supported.
        INVALID_REQUEST = 1,
        /// Key, bounds or permission of a memory access.
        REMOTE_ACCESS_ERROR = 2,
        /// The responder could not complete the request.
        REMOTE_OPERATIONAL_ERROR = 3,
        /// The end-to-end context does not fit the request.
        INVALID_RD_REQUEST = 4,
    }
}

/// The meaning of an AETH's first byte (IBA 9.7.5.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AethSyndrome {
    /// Positive, with a 5-bit credit count; 31 means that no credits are counted.
    Ack {
        /// Encoded credit count.
        credits: u8,
    },
    /// Receiver not ready, with the 5-bit code of the time to wait.
    RnrNak {
        /// Encoded timer (IBA 9.7.5.2.8, table of RNR NAK timer codes).
        timer: u8,
    },
    /// Negative.
    Nak(NakCode),
    /// A reserved encoding.
    Reserved(u8),
}

impl Aeth {
    /// Decodes the first byte.
    #[must_use]
    pub const fn syndrome(&self) -> AethSyndrome {
        let low = self.syndrome_byte & 0x1f;
        match self.syndrome_byte >> 5 {
            0 => AethSyndrome::Ack { credits: low },
            1 => AethSyndrome::RnrNak { timer: low },
            3 => AethSyndrome::Nak(NakCode::new(low)),
            _ => AethSyndrome::Reserved(self.syndrome_byte),
        }
    }

    /// Encodes the first byte; codes are cut to 5 bits.
    pub const fn set_syndrome(&mut self, syndrome: AethSyndrome) {
        self.syndrome_byte = match syndrome {
            AethSyndrome::Ack { credits } => credits & 0x1f,
            AethSyndrome::RnrNak { timer } => 0x20 | (timer & 0x1f),
            AethSyndrome::Nak(code) => 0x60 | (code.get() & 0x1f),
            AethSyndrome::Reserved(byte) => byte,
        };
    }
}

layout! {
    /// The atomic acknowledge extended header (IBA 9.3.5.3).
    AtomicAckEth, 8 {
        /// What stood in memory before the operation.
        pub original: U64,
    }
}

layout! {
    /// Immediate data (IBA 9.4): 4 bytes that belong to the consumer.
    ImmDt, 4 {
        /// The data.
        pub data: [u8; 4],
    }
}

layout! {
    /// The invalidate extended header (IBA 9.3.6).
    Ieth, 4 {
        /// The key that the receiver shall invalidate.
        pub rkey: RKey,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_survives_decoding() {
        for byte in 0..=u8::MAX {
            let decoded = Aeth {
                syndrome_byte: byte,
                msn: Psn::default(),
            }
            .syndrome();
            let mut aeth = Aeth::default();
            aeth.set_syndrome(decoded);
            assert_eq!(aeth.syndrome_byte, byte, "{decoded:?}");
        }
    }

    #[test]
    fn the_fields_of_a_feth_are_the_low_bits_of_its_last_byte() {
        let mut feth = Feth::default();
        feth.set_placement(FlushPlacement::GLOBAL.union(FlushPlacement::PERSISTENT));
        feth.set_selectivity(FlushSelectivity::REGION);
        assert_eq!(feth.bits.get(), 0x13);
        assert_eq!(feth.selectivity(), FlushSelectivity::REGION);
        assert!(feth.placement().contains(FlushPlacement::PERSISTENT));
        assert!(!FlushPlacement::GLOBAL.contains(feth.placement()));
    }

    #[test]
    fn a_nak_is_decoded_to_its_code() {
        let aeth = Aeth {
            syndrome_byte: 0x62,
            msn: Psn::default(),
        };
        assert_eq!(
            aeth.syndrome(),
            AethSyndrome::Nak(NakCode::REMOTE_ACCESS_ERROR)
        );
    }
}
