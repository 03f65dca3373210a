//! The routing headers: LRH (IBA 7.7), GRH (IBA 8.3) and the raw header (IBA 5.3).

use zerocopy::network_endian::{U16, U32};

use crate::{Gid, Lid, Sl, Vl};

/// What follows the LRH (IBA 7.7.5, "LNH").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lnh {
    /// A raw packet with an EtherType header ([`Rwh`]).
    #[default]
    RawEthertype,
    /// A raw packet with an IPv6 header, which has the layout of a GRH.
    RawIpv6,
    /// An IBA packet within its subnet: the BTH.
    IbaLocal,
    /// An IBA packet with a GRH.
    IbaGlobal,
}

impl Lnh {
    /// What a packet's second byte announces; `None` if there is none.
    pub(crate) fn of_first_bytes(packet: &[u8]) -> Option<Self> {
        packet.get(1).map(|byte| Self::from_low_bits(*byte))
    }

    const fn from_low_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::RawEthertype,
            1 => Self::RawIpv6,
            2 => Self::IbaLocal,
            _ => Self::IbaGlobal,
        }
    }

    const fn get(self) -> u8 {
        match self {
            Self::RawEthertype => 0,
            Self::RawIpv6 => 1,
            Self::IbaLocal => 2,
            Self::IbaGlobal => 3,
        }
    }
}

impl_bits! { Lnh, u8, Lnh::from_low_bits, Lnh::get; }

layout! {
    /// The local route header (IBA 7.7; kernel `struct ib_unpacked_lrh`).
    Lrh, 8 {
        /// Virtual lane (4) and link version (4).
        pub vl_lver: u8,
        /// Service level (4), reserved (2) and next header (2).
        pub sl_lnh: u8,
        /// Destination LID.
        pub dlid: Lid,
        /// Reserved (5) and the packet's length in 4-byte words (11).
        pub reserved_length: U16,
        /// Source LID.
        pub slid: Lid,
    }
}

impl Lrh {
    bit_fields! {
        /// The virtual lane on this link.
        vl, set_vl: Vl = vl_lver >> 4, 4;
        /// The link version: 0.
        link_version, set_link_version: u8 = vl_lver >> 0, 4;
        /// The service level.
        sl, set_sl: Sl = sl_lnh >> 4, 4;
        /// What follows the LRH.
        lnh, set_lnh: Lnh = sl_lnh >> 0, 2;
        /// The packet's length in 4-byte words, from the LRH's first byte to the ICRC's last.
        length_words, set_length_words: u16 = reserved_length >> 0, 11;
    }
}

impl Lrh {
    /// Bytes of the packet on the link as the header tells: the counted words and the VCRC.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        usize::from(self.length_words()) * 4 + super::VCRC_SIZE
    }
}

layout! {
    /// The global route header (IBA 8.3; kernel `struct ib_grh`), of IPv6's layout.
    Grh, 40 {
        /// IP version (4), traffic class (8) and flow label (20).
        pub version_class_flow: U32,
        /// Bytes from behind the GRH to the ICRC's last byte.
        pub payload_length: U16,
        /// Next header: 0x1B for the BTH.
        pub next_header: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Source GID.
        pub sgid: Gid,
        /// Destination GID.
        pub dgid: Gid,
    }
}

impl Grh {
    bit_fields! {
        /// The IP version: 6.
        ip_version, set_ip_version: u8 = version_class_flow >> 28, 4;
        /// The traffic class.
        traffic_class, set_traffic_class: u8 = version_class_flow >> 20, 8;
        /// The flow label, 20 bits.
        flow_label, set_flow_label: u32 = version_class_flow >> 0, 20;
    }
}

impl Grh {
    /// The IP version of every GRH.
    pub const VERSION: u8 = 6;
    /// The next-header value of the IBA transport (IBA 8.3.5).
    pub const NEXT_HEADER_IBA: u8 = 0x1b;

    /// A header from `sgid` to `dgid` with the fixed fields set, traffic class and flow label 0.
    #[must_use]
    pub fn new(sgid: Gid, dgid: Gid, hop_limit: u8) -> Self {
        let mut grh = Self {
            next_header: Self::NEXT_HEADER_IBA,
            hop_limit,
            sgid,
            dgid,
            ..Self::default()
        };
        grh.set_ip_version(Self::VERSION);
        grh
    }

    /// The header of a response to a packet with this one (IBA 13.5.4): the GIDs change places, traffic class and flow
    /// label stay, and it may pass as many routers as there are.
    #[must_use]
    pub fn back(&self) -> Self {
        let mut back = Self::new(self.dgid, self.sgid, u8::MAX);
        back.set_traffic_class(self.traffic_class());
        back.set_flow_label(self.flow_label());
        back
    }
}

layout! {
    /// The raw header of packets that carry an EtherType (IBA 5.3).
    Rwh, 4 {
        /// Reserved.
        pub reserved: U16,
        /// The EtherType of the payload.
        pub ethertype: U16,
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn lrh_fields_stand_at_their_bits() {
        let lrh = Lrh::read_from_bytes(&[0xf0, 0x52, 0x12, 0x34, 0xf8, 72, 0xab, 0xcd]).unwrap();
        assert_eq!(lrh.vl(), Vl::MANAGEMENT);
        assert_eq!(lrh.sl().get(), 5);
        assert_eq!(lrh.lnh(), Lnh::IbaLocal);
        assert_eq!(lrh.length_words(), 72);
        assert_eq!(lrh.frame_bytes(), 290);
        assert_eq!((lrh.dlid, lrh.slid), (Lid::new(0x1234), Lid::new(0xabcd)));
    }

    #[test]
    fn grh_fields_stand_at_their_bits() {
        let mut grh = Grh::new(Gid([1; 16]), Gid([2; 16]), 9);
        grh.set_traffic_class(0xab);
        grh.set_flow_label(0xcdef1);
        grh.payload_length = U16::new(280);
        assert_eq!(
            grh.as_bytes()[..8],
            [0x6a, 0xbc, 0xde, 0xf1, 1, 24, 0x1b, 9]
        );
    }
}
