//! MCMemberRecord: membership of multicast groups.

use core::ops::BitOr;

use zerocopy::network_endian::U32;

use super::{ComponentMask, SaRecord, Selector, components};
use crate::mad::AttributeId;
use crate::{Gid, Lid, Mtu, PKey, QKey, Rate, Sl};

/// The kinds of membership that a port holds or asks for (IBA 15.2.5.17, JoinState). Four bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JoinState(u8);

impl JoinState {
    /// No membership.
    pub const NONE: Self = Self(0);
    /// Sends and receives; keeps the group alive and may create it.
    pub const FULL_MEMBER: Self = Self(1);
    /// Sends and receives, but does not keep the group alive.
    pub const NON_MEMBER: Self = Self(2);
    /// Sends only, and does not keep the group alive.
    pub const SEND_ONLY_NON_MEMBER: Self = Self(4);
    /// Sends only; keeps the group alive and may create it.
    pub const SEND_ONLY_FULL_MEMBER: Self = Self(8);

    /// Makes the set from the field's four bits.
    #[must_use]
    pub const fn from_low_bits(bits: u8) -> Self {
        Self(bits & 0xf)
    }

    /// The field's four bits.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The set without the members of `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is in the set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether nothing is in the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set has a kind that creates a group and keeps it alive.
    #[must_use]
    pub const fn is_full(self) -> bool {
        self.0 & (Self::FULL_MEMBER.0 | Self::SEND_ONLY_FULL_MEMBER.0) != 0
    }

    /// Whether the set has a kind that receives the group's packets.
    #[must_use]
    pub const fn receives(self) -> bool {
        self.0 & (Self::FULL_MEMBER.0 | Self::NON_MEMBER.0) != 0
    }
}

impl BitOr for JoinState {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl_bits! {
    JoinState, u8, JoinState::from_low_bits, JoinState::get;
}

layout! {
    /// MCMemberRecord (IBA 15.2.5.17). 52 bytes and padding: 56.
    McMemberRecord, 56 {
        /// The group.
        pub mgid: Gid,
        /// The member.
        pub port_gid: Gid,
        /// Q_Key of the group.
        pub qkey: QKey,
        /// Multicast LID of the group.
        pub mlid: Lid,
        /// Selector (2 bits), MTU (6).
        pub mtu: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Partition of the group.
        pub pkey: PKey,
        /// Selector (2 bits), rate (6).
        pub rate: u8,
        /// Selector (2 bits), packet life time (6).
        pub packet_life_time: u8,
        /// SL (4 bits), flow label (20), hop limit (8).
        pub sl_flow_hop: U32,
        /// Scope (4 bits), JoinState (4).
        pub scope_and_state: u8,
        /// ProxyJoin (1 bit), reserved (7).
        pub proxy: u8,
        /// Reserved.
        pub reserved: [u8; 2],
        /// Padding to a multiple of eight bytes.
        pub pad: [u8; 4],
    }
}

impl McMemberRecord {
    /// What every Set and Delete must name (IBA 15.2.5.17).
    pub const JOIN: ComponentMask = Self::MGID.union(Self::PORT_GID).union(Self::JOIN_STATE);

    /// What a join must name besides to make its group, if that does not exist (IBA 15.2.5.17).
    pub const CREATE: ComponentMask = Self::QKEY
        .union(Self::TRAFFIC_CLASS)
        .union(Self::PKEY)
        .union(Self::SL)
        .union(Self::FLOW_LABEL);

    bit_fields! {
        /// How the MTU is meant.
        mtu_selector, set_mtu_selector: Selector = mtu >> 6, 2;
        /// MTU of the group.
        mtu_value, set_mtu_value: Mtu = mtu >> 0, 6;
        /// How the rate is meant.
        rate_selector, set_rate_selector: Selector = rate >> 6, 2;
        /// Static rate of the group.
        rate_value, set_rate_value: Rate = rate >> 0, 6;
        /// How the packet life time is meant.
        packet_life_time_selector, set_packet_life_time_selector: Selector = packet_life_time >> 6, 2;
        /// Packet life time as 4.096 µs × 2^value.
        packet_life_time_value, set_packet_life_time_value: u8 = packet_life_time >> 0, 6;
        /// Service level.
        sl, set_sl: Sl = sl_flow_hop >> 28, 4;
        /// Flow label, 20 bits.
        flow_label, set_flow_label: u32 = sl_flow_hop >> 8, 20;
        /// Hop limit.
        hop_limit, set_hop_limit: u8 = sl_flow_hop >> 0, 8;
        /// Scope of the group, as in the MGID.
        scope, set_scope: u8 = scope_and_state >> 4, 4;
        /// Kinds of membership.
        join_state, set_join_state: JoinState = scope_and_state >> 0, 4;
        /// Whether the record was made on behalf of another port. The first bit of its byte; a
        /// little-endian OpenSM puts it in the last one, and does not read it.
        proxy_join, set_proxy_join: bool = proxy >> 7, 1;
    }
}

impl SaRecord for McMemberRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::MC_MEMBER_RECORD;
}

components! {
    McMemberRecord {
        MGID = 0, "the MGID";
        PORT_GID = 1, "the port GID";
        QKEY = 2, "the Q_Key";
        MLID = 3, "the MLID";
        MTU_SELECTOR = 4, "the MTU selector";
        MTU = 5, "the MTU";
        TRAFFIC_CLASS = 6, "the traffic class";
        PKEY = 7, "the P_Key";
        RATE_SELECTOR = 8, "the rate selector";
        RATE = 9, "the rate";
        PACKET_LIFE_TIME_SELECTOR = 10, "the packet life time selector";
        PACKET_LIFE_TIME = 11, "the packet life time";
        SL = 12, "the SL";
        FLOW_LABEL = 13, "the flow label";
        HOP_LIMIT = 14, "the hop limit";
        SCOPE = 15, "the scope";
        JOIN_STATE = 16, "the join state";
        PROXY_JOIN = 17, "proxy join";
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn fields_stand_at_their_offsets() {
        for (offset, expected) in [
            (offset_of!(McMemberRecord, port_gid), 16),
            (offset_of!(McMemberRecord, qkey), 32),
            (offset_of!(McMemberRecord, mlid), 36),
            (offset_of!(McMemberRecord, mtu), 38),
            (offset_of!(McMemberRecord, traffic_class), 39),
            (offset_of!(McMemberRecord, pkey), 40),
            (offset_of!(McMemberRecord, rate), 42),
            (offset_of!(McMemberRecord, packet_life_time), 43),
            (offset_of!(McMemberRecord, sl_flow_hop), 44),
            (offset_of!(McMemberRecord, scope_and_state), 48),
            (offset_of!(McMemberRecord, proxy), 49),
        ] {
            assert_eq!(offset, expected);
        }
    }

    #[test]
    fn the_broadcast_group_is_encoded_byte_for_byte() {
        let mut group = McMemberRecord {
            qkey: QKey::new(0x0b1b),
            mlid: Lid::FIRST_MULTICAST,
            pkey: PKey::DEFAULT_FULL,
            ..McMemberRecord::default()
        };
        group.set_mtu_selector(Selector::EXACTLY);
        group.set_mtu_value(Mtu::MTU_2048);
        group.set_rate_selector(Selector::EXACTLY);
        group.set_rate_value(Rate::GBPS_10);
        group.set_sl(Sl::from_low_bits(1));
        group.set_flow_label(0x2_3456);
        group.set_hop_limit(0x78);
        group.set_scope(2);
        group.set_join_state(JoinState::FULL_MEMBER | JoinState::SEND_ONLY_NON_MEMBER);
        group.set_proxy_join(true);
        assert_eq!(
            group.as_bytes()[32..52],
            [
                0, 0, 0x0b, 0x1b, 0xc0, 0, 0x84, 0, 0xff, 0xff, 0x83, 0, 0x12, 0x34, 0x56, 0x78,
                0x25, 0x80, 0, 0
            ]
        );
    }

    #[test]
    fn the_create_mask_is_that_of_the_traces() {
        let create = McMemberRecord::JOIN | McMemberRecord::CREATE | McMemberRecord::HOP_LIMIT;
        assert_eq!(create.get(), 0x1_0003 | 0x70c4);
    }

    #[test]
    fn full_kinds_keep_a_group_and_members_receive() {
        for (state, full, receives) in [
            (JoinState::NONE, false, false),
            (JoinState::FULL_MEMBER, true, true),
            (JoinState::NON_MEMBER, false, true),
            (JoinState::SEND_ONLY_NON_MEMBER, false, false),
            (JoinState::SEND_ONLY_FULL_MEMBER, true, false),
        ] {
            assert_eq!((state.is_full(), state.receives()), (full, receives));
        }
        let both = JoinState::FULL_MEMBER | JoinState::NON_MEMBER;
        assert_eq!(
            both.difference(JoinState::FULL_MEMBER),
            JoinState::NON_MEMBER
        );
    }

    proptest! {
        #[test]
        fn accessors_keep_every_other_bit(bytes in prop::collection::vec(any::<u8>(), 56)) {
            let before = McMemberRecord::read_from_bytes(&bytes).expect("56 bytes");
            let mut record = before;
            record.set_mtu_selector(before.mtu_selector());
            record.set_mtu_value(before.mtu_value());
            record.set_rate_selector(before.rate_selector());
            record.set_rate_value(before.rate_value());
            record.set_packet_life_time_selector(before.packet_life_time_selector());
            record.set_packet_life_time_value(before.packet_life_time_value());
            record.set_sl(before.sl());
            record.set_flow_label(before.flow_label());
            record.set_hop_limit(before.hop_limit());
            record.set_scope(before.scope());
            record.set_join_state(before.join_state());
            record.set_proxy_join(before.proxy_join());
            prop_assert_eq!(record.as_bytes(), &bytes[..]);
        }
    }
}
