//! [`PortInfo`] (IBA 14.2.5.6).

use zerocopy::network_endian::{U16, U32};

use crate::{Lid, Lmc, MKey, Mtu, PortNum, Sl, SubnetPrefix};

open_enum! {
    /// The logical state of a port (IBA 7.2.7).
    PortState(u8) {
        /// In a Set: leave the state as it is.
        NO_CHANGE = 0,
        /// No link; packets are dropped.
        DOWN = 1,
        /// Only SMPs pass.
        INIT = 2,
        /// SMPs pass, data packets may be received.
        ARMED = 3,
        /// Everything passes.
        ACTIVE = 4,
        /// As ARMED, after a link error.
        ACTIVE_DEFER = 5,
    }
}

open_enum! {
    /// The physical state of a port (IBA 14.2.5.6, PortPhysicalState).
    PortPhysState(u8) {
        /// In a Set: leave the state as it is.
        NO_CHANGE = 0,
        /// Sleeping.
        SLEEP = 1,
        /// Looking for a peer.
        POLLING = 2,
        /// Switched off.
        DISABLED = 3,
        /// Training the link.
        PORT_CONFIGURATION_TRAINING = 4,
        /// Up.
        LINK_UP = 5,
        /// Recovering from link errors.
        LINK_ERROR_RECOVERY = 6,
        /// Testing the physical layer.
        PHY_TEST = 7,
    }
}

open_enum! {
    /// The physical state that a link falls to (IBA 14.2.5.6, LinkDownDefaultState).
    LinkDownDefaultState(u8) {
        /// In a Set: leave it as it is.
        NO_CHANGE = 0,
        /// Sleeping.
        SLEEP = 1,
        /// Looking for a peer.
        POLLING = 2,
    }
}

impl_bits! {
    PortState, u8, PortState::new, PortState::get;
    PortPhysState, u8, PortPhysState::new, PortPhysState::get;
    LinkDownDefaultState, u8, LinkDownDefaultState::new, LinkDownDefaultState::get;
}

/// Link widths as bits of LinkWidthEnabled, -Supported and -Active (IBA 14.2.5.6).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
    zerocopy::Unaligned,
)]
#[repr(transparent)]
pub struct LinkWidth(pub u8);

impl LinkWidth {
    /// One lane.
    pub const X1: Self = Self(1);
    /// Four lanes.
    pub const X4: Self = Self(2);
    /// Eight lanes.
    pub const X8: Self = Self(4);
    /// Twelve lanes.
    pub const X12: Self = Self(8);
    /// Two lanes.
    pub const X2: Self = Self(16);
    /// In a Set of LinkWidthEnabled: whatever is supported.
    pub const ALL_SUPPORTED: Self = Self(0xff);

    /// The lanes of a single width.
    #[must_use]
    pub const fn lanes(self) -> Option<u8> {
        Some(match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
            Self::X8 => 8,
            Self::X12 => 12,
            _ => return None,
        })
    }
}

/// Link speeds as bits of LinkSpeedEnabled, -Supported and -Active (IBA 14.2.5.6), 4 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkSpeed(u8);

impl LinkSpeed {
    /// 2.5 Gb/s per lane.
    pub const SDR: Self = Self(1);
    /// 5 Gb/s per lane.
    pub const DDR: Self = Self(2);
    /// 10 Gb/s per lane.
    pub const QDR: Self = Self(4);
    /// In a Set of LinkSpeedEnabled: whatever is supported.
    pub const ALL_SUPPORTED: Self = Self(15);

    /// Makes the set from its low 4 bits.
    #[must_use]
    pub const fn from_low_bits(bits: u8) -> Self {
        Self(bits & 15)
    }

    /// The 4 bits.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the signalling rate of a lane in kb/s, or `None` if this is not a single speed.
    #[must_use]
    pub const fn lane_kbps(self) -> Option<u32> {
        Some(match self {
            Self::SDR => 2_500_000,
            Self::DDR => 5_000_000,
            Self::QDR => 10_000_000,
            _ => return None,
        })
    }
}

/// Extended link speeds as bits of LinkSpeedExtEnabled, -Supported and -Active (IBA 14.2.5.6),
/// at most 5 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkSpeedExt(u8);

impl LinkSpeedExt {
    /// None: the speed is one of [`LinkSpeed`]. In a Set of LinkSpeedExtEnabled: leave it as it is.
    pub const NONE: Self = Self(0);
    /// 14.0625 Gb/s per lane.
    pub const FDR: Self = Self(1);
    /// 25.78125 Gb/s per lane.
    pub const EDR: Self = Self(2);
    /// 53.125 Gb/s per lane.
    pub const HDR: Self = Self(4);
    /// 106.25 Gb/s per lane.
    pub const NDR: Self = Self(8);
    /// In a Set of LinkSpeedExtEnabled: no extended speed.
    pub const DISABLE: Self = Self(30);
    /// In a Set of LinkSpeedExtEnabled: whatever is supported.
    pub const ALL_SUPPORTED: Self = Self(31);

    /// Makes the set from its low 5 bits.
    #[must_use]
    pub const fn from_low_bits(bits: u8) -> Self {
        Self(bits & 31)
    }

    /// The bits.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the signalling rate of a lane in kb/s, or `None` if this is not a single extended speed.
    #[must_use]
    pub const fn lane_kbps(self) -> Option<u32> {
        Some(match self {
            Self::FDR => 14_062_500,
            Self::EDR => 25_781_250,
            Self::HDR => 53_125_000,
            Self::NDR => 106_250_000,
            _ => return None,
        })
    }
}

impl_bits! {
    LinkSpeed, u8, LinkSpeed::from_low_bits, LinkSpeed::get;
    LinkSpeedExt, u8, LinkSpeedExt::from_low_bits, LinkSpeedExt::get;
}

be_newtype! {
    /// What a port supports (IBA 14.2.5.6, PortInfo:CapabilityMask).
    CapabilityMask(u32, 4), "0x{:08x}"
}

flags! {
    CapabilityMask(u32) {
        /// A subnet manager sits on the port.
        IS_SM = 1,
        /// Notices are supported.
        IS_NOTICE_SUPPORTED = 2,
        /// Traps are sent.
        IS_TRAP_SUPPORTED = 3,
        /// Optional IPD values are supported.
        IS_OPTIONAL_IPD_SUPPORTED = 4,
        /// The port can migrate paths by itself.
        IS_AUTOMATIC_MIGRATION_SUPPORTED = 5,
        /// SLtoVLMappingTable is supported.
        IS_SL_MAPPING_SUPPORTED = 6,
        /// The M_Key is kept over a power cycle.
        IS_MKEY_NVRAM = 7,
        /// The P_Key table is kept over a power cycle.
        IS_PKEY_NVRAM = 8,
        /// LedInfo is supported.
        IS_LED_INFO_SUPPORTED = 9,
        /// The subnet manager on the port is disabled.
        IS_SM_DISABLED = 10,
        /// The system image GUID is supported.
        IS_SYSTEM_IMAGE_GUID_SUPPORTED = 11,
        /// External switch ports send P_Key violation traps.
        IS_PKEY_SWITCH_EXTERNAL_PORT_TRAP_SUPPORTED = 12,
        /// Cable information is supported (Mellanox).
        IS_CABLE_INFO_SUPPORTED = 13,
        /// Extended link speeds are supported.
        IS_EXTENDED_SPEEDS_SUPPORTED = 14,
        /// CapabilityMask2 is supported.
        IS_CAPABILITY_MASK2_SUPPORTED = 15,
        /// Communication management is supported.
        IS_COMMUNICATION_MANAGEMENT_SUPPORTED = 16,
        /// SNMP tunneling is supported.
        IS_SNMP_TUNNELING_SUPPORTED = 17,
        /// The port can be reinitialised.
        IS_REINIT_SUPPORTED = 18,
        /// Device management is supported.
        IS_DEVICE_MANAGEMENT_SUPPORTED = 19,
        /// A vendor class is supported.
        IS_VENDOR_CLASS_SUPPORTED = 20,
        /// DR notices are supported.
        IS_DR_NOTICE_SUPPORTED = 21,
        /// Trap 144 is sent when this mask changes.
        IS_CAPABILITY_MASK_NOTICE_SUPPORTED = 22,
        /// Boot management is supported.
        IS_BOOT_MANAGEMENT_SUPPORTED = 23,
        /// LinkRoundTripLatency is supported.
        IS_LINK_ROUND_TRIP_LATENCY_SUPPORTED = 24,
        /// ClientReregister is supported.
        IS_CLIENT_REREGISTRATION_SUPPORTED = 25,
        /// Trap 144 is sent for other local changes.
        IS_OTHER_LOCAL_CHANGES_NOTICE_SUPPORTED = 26,
        /// LinkSpeedWidthPairsTable is supported.
        IS_LINK_SPEED_WIDTH_PAIRS_TABLE_SUPPORTED = 27,
        /// Vendor-specific MADs table is supported.
        IS_VENDOR_SPECIFIC_MADS_TABLE_SUPPORTED = 28,
        /// P_Key traps to multicast groups can be suppressed.
        IS_MULTICAST_PKEY_TRAP_SUPPRESSION_SUPPORTED = 29,
        /// Multicast forwarding has a top.
        IS_MULTICAST_FDB_TOP_SUPPORTED = 30,
        /// The hierarchy of the port is known.
        IS_HIERARCHY_INFO_SUPPORTED = 31,
    }
}

be_newtype! {
    /// More of what a port supports (IBA 14.2.5.6, PortInfo:CapabilityMask2).
    CapabilityMask2(u16, 2), "0x{:04x}"
}

flags! {
    CapabilityMask2(u16) {
        /// Set(NodeDescription) is supported.
        IS_SET_NODE_DESCRIPTION_SUPPORTED = 0,
        /// PortInfoExtended is supported.
        IS_PORT_INFO_EXTENDED_SUPPORTED = 1,
        /// Virtualization is supported.
        IS_VIRTUALIZATION_SUPPORTED = 2,
        /// Switch port state tables are supported.
        IS_SWITCH_PORT_STATE_TABLE_SUPPORTED = 3,
        /// Two lanes are supported.
        IS_LINK_WIDTH_2X_SUPPORTED = 4,
        /// HDR is supported.
        IS_LINK_SPEED_HDR_SUPPORTED = 5,
        /// NDR is supported.
        IS_LINK_SPEED_NDR_SUPPORTED = 10,
    }
}

layout! {
    /// A port's addresses, state and abilities (IBA 14.2.5.6).
    ///
    /// ```
    /// use ib_wire::smp::{CapabilityMask, PortInfo, PortState};
    ///
    /// let mut info = PortInfo::default();
    /// info.set_port_state(PortState::ACTIVE);
    /// info.capability_mask = CapabilityMask::IS_SM | CapabilityMask::IS_TRAP_SUPPORTED;
    /// assert_eq!(info.port_state(), PortState::ACTIVE);
    /// assert!(info.capability_mask.contains(CapabilityMask::IS_SM));
    /// ```
    PortInfo, 64 {
        /// Byte 0: the key that guards the port's attributes.
        pub mkey: MKey,
        /// Byte 8: the subnet prefix of the port's GIDs.
        pub gid_prefix: SubnetPrefix,
        /// Byte 16: base LID.
        pub lid: Lid,
        /// Byte 18: LID of the master subnet manager.
        pub master_sm_lid: Lid,
        /// Byte 20: what the port supports.
        pub capability_mask: CapabilityMask,
        /// Byte 24: diagnostic code (IBA 14.2.5.6.1).
        pub diag_code: U16,
        /// Byte 26: seconds until an unrefreshed M_Key's protection ends; 0 never.
        pub mkey_lease_period: U16,
        /// Byte 28: the port that received the SMP.
        pub local_port: PortNum,
        /// Byte 29: widths that the link may have.
        pub link_width_enabled: LinkWidth,
        /// Byte 30: widths that the link can have.
        pub link_width_supported: LinkWidth,
        /// Byte 31: the width that the link has.
        pub link_width_active: LinkWidth,
        /// Byte 32: LinkSpeedSupported (4), PortState (4).
        pub speed_supported_state: u8,
        /// Byte 33: PortPhysicalState (4), LinkDownDefaultState (4).
        pub phys_state_down_default: u8,
        /// Byte 34: M_KeyProtectBits (2), reserved (3), LMC (3).
        pub mkey_protect_lmc: u8,
        /// Byte 35: LinkSpeedActive (4), LinkSpeedEnabled (4).
        pub speed_active_enabled: u8,
        /// Byte 36: NeighborMTU (4), MasterSMSL (4).
        pub neighbor_mtu_sm_sl: u8,
        /// Byte 37: VLCap (4), InitType (4).
        pub vl_cap_init_type: u8,
        /// Byte 38: how much may be sent at high priority before low priority gets its turn.
        pub vl_high_limit: u8,
        /// Byte 39: entries of the high-priority arbitration table.
        pub vl_arbitration_high_cap: u8,
        /// Byte 40: entries of the low-priority arbitration table.
        pub vl_arbitration_low_cap: u8,
        /// Byte 41: InitTypeReply (4), MTUCap (4).
        pub init_reply_mtu_cap: u8,
        /// Byte 42: VLStallCount (3), HOQLife (5).
        pub stall_count_hoq_life: u8,
        /// Byte 43: OperationalVLs (4), PartitionEnforcementInbound, PartitionEnforcementOutbound,
        /// FilterRawInbound, FilterRawOutbound (1 each).
        pub operational_vls_enforcement: u8,
        /// Byte 44: M_Key violations counted.
        pub mkey_violations: U16,
        /// Byte 46: P_Key violations counted.
        pub pkey_violations: U16,
        /// Byte 48: Q_Key violations counted.
        pub qkey_violations: U16,
        /// Byte 50: entries of the GUID table.
        pub guid_cap: u8,
        /// Byte 51: ClientReregister (1), MulticastPKeyTrapSuppressionEnabled (2),
        /// SubnetTimeOut (5).
        pub reregister_subnet_timeout: u8,
        /// Byte 52: reserved (3), RespTimeValue (5).
        pub resp_time: u8,
        /// Byte 53: LocalPhyErrors (4), OverrunErrors (4).
        pub error_thresholds: u8,
        /// Byte 54: hint on the credits that a long link needs.
        pub max_credit_hint: U16,
        /// Byte 56: reserved (8), LinkRoundTripLatency (24).
        pub round_trip_latency: U32,
        /// Byte 60: more of what the port supports.
        pub capability_mask2: CapabilityMask2,
        /// Byte 62: LinkSpeedExtActive (4), LinkSpeedExtSupported (4).
        pub speed_ext_active_supported: u8,
        /// Byte 63: reserved (3), LinkSpeedExtEnabled (5).
        pub speed_ext_enabled: u8,
    }
}

impl PortInfo {
    bit_fields! {
        /// Speeds that the link can have.
        link_speed_supported, set_link_speed_supported: LinkSpeed = speed_supported_state >> 4, 4;
        /// The logical state.
        port_state, set_port_state: PortState = speed_supported_state >> 0, 4;
        /// The physical state.
        phys_state, set_phys_state: PortPhysState = phys_state_down_default >> 4, 4;
        /// The physical state that the link falls to.
        link_down_default, set_link_down_default: LinkDownDefaultState = phys_state_down_default >> 0, 4;
        /// What the M_Key protects (IBA 14.2.4.1).
        mkey_protect, set_mkey_protect: u8 = mkey_protect_lmc >> 6, 2;
        /// The LID mask count.
        lmc, set_lmc: Lmc = mkey_protect_lmc >> 0, 3;
        /// The speed that the link has.
        link_speed_active, set_link_speed_active: LinkSpeed = speed_active_enabled >> 4, 4;
        /// Speeds that the link may have.
        link_speed_enabled, set_link_speed_enabled: LinkSpeed = speed_active_enabled >> 0, 4;
        /// The largest payload that may be sent to the neighbour.
        neighbor_mtu, set_neighbor_mtu: Mtu = neighbor_mtu_sm_sl >> 4, 4;
        /// The service level towards the subnet manager.
        master_sm_sl, set_master_sm_sl: Sl = neighbor_mtu_sm_sl >> 0, 4;
        /// Data lanes that the port has, as a code: 1, 2, 4, 8 or 15 lanes are 1 to 5.
        vl_cap, set_vl_cap: u8 = vl_cap_init_type >> 4, 4;
        /// The kind of initialisation that the port asks for (IBA 14.4.4).
        init_type, set_init_type: u8 = vl_cap_init_type >> 0, 4;
        /// The kind of initialisation that the subnet manager did.
        init_type_reply, set_init_type_reply: u8 = init_reply_mtu_cap >> 4, 4;
        /// The largest payload that the port can receive.
        mtu_cap, set_mtu_cap: Mtu = init_reply_mtu_cap >> 0, 4;
        /// Packets to drop in a row before a lane is taken for stalled.
        vl_stall_count, set_vl_stall_count: u8 = stall_count_hoq_life >> 5, 3;
        /// How long a packet may stay at the head of a lane: 4.096 µs × 2^value; above 19 without
        /// limit.
        hoq_life, set_hoq_life: u8 = stall_count_hoq_life >> 0, 5;
        /// Data lanes in use, coded as [`PortInfo::vl_cap`]; 0 in a Set leaves them as they are.
        operational_vls, set_operational_vls: u8 = operational_vls_enforcement >> 4, 4;
        /// Whether the switch port checks P_Keys of packets that it receives.
        partition_enforcement_inbound, set_partition_enforcement_inbound: bool = operational_vls_enforcement >> 3, 1;
        /// Whether the switch port checks P_Keys of packets that it sends.
        partition_enforcement_outbound, set_partition_enforcement_outbound: bool = operational_vls_enforcement >> 2, 1;
        /// Whether the switch port drops raw packets that it receives.
        filter_raw_inbound, set_filter_raw_inbound: bool = operational_vls_enforcement >> 1, 1;
        /// Whether the switch port drops raw packets that it should send.
        filter_raw_outbound, set_filter_raw_outbound: bool = operational_vls_enforcement >> 0, 1;
        /// In a Set: clients on the port shall register again with the subnet manager.
        client_reregister, set_client_reregister: bool = reregister_subnet_timeout >> 7, 1;
        /// Whether P_Key traps about multicast packets are suppressed.
        multicast_pkey_trap_suppression, set_multicast_pkey_trap_suppression: u8 = reregister_subnet_timeout >> 5, 2;
        /// The longest way through the subnet: 4.096 µs × 2^value.
        subnet_timeout, set_subnet_timeout: u8 = reregister_subnet_timeout >> 0, 5;
        /// How long the port takes to answer an SMP: 4.096 µs × 2^value.
        resp_time_value, set_resp_time_value: u8 = resp_time >> 0, 5;
        /// Threshold of local physical errors.
        local_phy_errors, set_local_phy_errors: u8 = error_thresholds >> 4, 4;
        /// Threshold of overrun errors.
        overrun_errors, set_overrun_errors: u8 = error_thresholds >> 0, 4;
        /// Round-trip latency of the link in 4 ns units.
        link_round_trip_latency, set_link_round_trip_latency: u32 = round_trip_latency >> 0, 24;
        /// The extended speed that the link has.
        link_speed_ext_active, set_link_speed_ext_active: LinkSpeedExt = speed_ext_active_supported >> 4, 4;
        /// Extended speeds that the link can have.
        link_speed_ext_supported, set_link_speed_ext_supported: LinkSpeedExt = speed_ext_active_supported >> 0, 4;
        /// Extended speeds that the link may have.
        link_speed_ext_enabled, set_link_speed_ext_enabled: LinkSpeedExt = speed_ext_enabled >> 0, 5;
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn port_info_fields_stand_at_their_offsets() {
        for (offset, expected) in [
            (offset_of!(PortInfo, lid), 16),
            (offset_of!(PortInfo, capability_mask), 20),
            (offset_of!(PortInfo, local_port), 28),
            (offset_of!(PortInfo, link_width_active), 31),
            (offset_of!(PortInfo, speed_active_enabled), 35),
            (offset_of!(PortInfo, vl_cap_init_type), 37),
            (offset_of!(PortInfo, operational_vls_enforcement), 43),
            (offset_of!(PortInfo, guid_cap), 50),
            (offset_of!(PortInfo, reregister_subnet_timeout), 51),
            (offset_of!(PortInfo, error_thresholds), 53),
            (offset_of!(PortInfo, capability_mask2), 60),
            (offset_of!(PortInfo, speed_ext_enabled), 63),
        ] {
            assert_eq!(offset, expected);
        }
    }

    #[test]
    fn capability_bits_are_sets() {
        let both = CapabilityMask::IS_SM | CapabilityMask::IS_TRAP_SUPPORTED;
        assert_eq!(both.get(), 0xa);
        assert!(both.contains(CapabilityMask::IS_SM));
        assert!(!CapabilityMask::IS_SM.contains(both));
        assert_eq!(
            both.difference(CapabilityMask::IS_SM),
            CapabilityMask::IS_TRAP_SUPPORTED
        );
    }

    #[test]
    fn widths_count_lanes() {
        assert_eq!(LinkWidth::X12.lanes(), Some(12));
        assert_eq!(LinkWidth::X2.lanes(), Some(2));
        assert_eq!(LinkWidth(3).lanes(), None);
    }
}
