//! A port's state: what the SMA reads and writes, the transport obeys and the link drives.

use bitflags::bitflags;
use hca_api::{PhysicalState, PortChange, PortState};
use ib_wire::{
    Gid, GidIndex, Guid, Lid, Lmc, MKey, Mtu, PKey, PKeyIndex, PortNum, Sl, SubnetPrefix, Vl,
};

use crate::PortCounters;

bitflags! {
    /// Link widths, as PortInfo codes them (IBA 14.2.5.6).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct LinkWidth: u8 {
        /// One lane.
        const X1 = 1;
        /// Four lanes.
        const X4 = 2;
        /// Eight lanes.
        const X8 = 4;
        /// Twelve lanes.
        const X12 = 8;
    }
}

bitflags! {
    /// Link speeds per lane, as PortInfo codes them (IBA 14.2.5.6).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct LinkSpeed: u8 {
        /// 2.5 Gb/s.
        const SDR = 1;
        /// 5 Gb/s.
        const DDR = 2;
        /// 10 Gb/s.
        const QDR = 4;
    }
}

bitflags! {
    /// Extended link speeds per lane, as PortInfo codes them (IBA 14.2.5.6).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct ExtendedSpeed: u8 {
        /// 14.0625 Gb/s.
        const FDR = 1;
        /// 25.78125 Gb/s.
        const EDR = 2;
        /// 53.125 Gb/s.
        const HDR = 4;
    }
}

bitflags! {
    /// PortInfo:CapabilityMask (IBA 14.2.5.6).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct CapabilityMask: u32 {
        /// A subnet manager runs here.
        const IS_SM = 1 << 1;
        /// Notices are supported.
        const IS_NOTICE = 1 << 2;
        /// Traps are supported.
        const IS_TRAP = 1 << 3;
        /// Automatic path migration.
        const IS_AUTO_MIGRATION = 1 << 5;
        /// SLtoVLMappingTable exists.
        const IS_SL_MAPPING = 1 << 6;
        /// NodeInfo carries a system image GUID.
        const IS_SYSTEM_IMAGE_GUID = 1 << 11;
        /// The extended speeds exist.
        const IS_EXTENDED_SPEEDS = 1 << 14;
        /// PortInfo:CapabilityMask2 exists.
        const IS_CAPABILITY_MASK_2 = 1 << 15;
        /// A communication manager runs here.
        const IS_CM = 1 << 16;
        /// A device management agent runs here.
        const IS_DEVICE_MANAGEMENT = 1 << 19;
        /// A vendor class exists.
        const IS_VENDOR_CLASS = 1 << 20;
        /// Changes of this mask raise trap 144.
        const IS_CAPABILITY_MASK_NOTICE = 1 << 22;
        /// PortInfo:ClientReregister is understood.
        const IS_CLIENT_REREGISTRATION = 1 << 25;
        /// Trap 144 also tells of link width, speed and node description changes.
        const IS_OTHER_LOCAL_CHANGES_NOTICE = 1 << 26;
        /// Bits that this crate knows nothing of survive.
        const _ = !0;
    }
}

/// A port of a channel adapter or a switch.
///
/// The owner of a port is its [`crate::Node`]. The SMA writes these fields as Set(PortInfo) and the
/// other attributes ask; the link writes the states and the active width, speed and MTU; the
/// device's transport reads them for every packet. Everything that changes is noted in
/// [`PhysicalPort::pending`], level-triggered, until the device takes it.
#[derive(Clone, Debug)]
pub struct PhysicalPort {
    /// Its number: 1.. for channel adapters and switches, 0 for a switch's management port.
    pub number: PortNum,
    /// The port GUID (of a switch, the node GUID: only port 0 is an end port).
    pub guid: Guid,
    /// Logical state.
    pub state: PortState,
    /// Physical state.
    pub physical_state: PhysicalState,
    /// Where the port goes when the link goes down: polling, or sleep.
    pub link_down_default: PhysicalState,
    /// Base LID.
    pub lid: Lid,
    /// LID mask count.
    pub lmc: Lmc,
    /// LID of the master SM.
    pub sm_lid: Lid,
    /// Service level to the master SM.
    pub sm_sl: Sl,
    /// Subnet prefix.
    pub subnet_prefix: SubnetPrefix,
    /// Capability mask.
    pub capabilities: CapabilityMask,
    /// Protection key.
    pub m_key: MKey,
    /// PortInfo:M_KeyProtectBits, 0 to 3.
    pub m_key_protect: u8,
    /// Seconds that a foreign manager must fail before the key is released; 0 means never.
    pub m_key_lease_seconds: u16,
    /// SMPs refused for a wrong M_Key.
    pub m_key_violations: u16,
    /// Packets refused for a wrong P_Key.
    pub p_key_violations: u16,
    /// Packets refused for a wrong Q_Key.
    pub q_key_violations: u16,
    /// PortInfo:DiagCode.
    pub diag_code: u16,
    /// Widths: enabled.
    pub width_enabled: LinkWidth,
    /// Widths: supported.
    pub width_supported: LinkWidth,
    /// Width in use.
    pub width_active: LinkWidth,
    /// Speeds: enabled.
    pub speed_enabled: LinkSpeed,
    /// Speeds: supported.
    pub speed_supported: LinkSpeed,
    /// Speed in use.
    pub speed_active: LinkSpeed,
    /// Extended speeds: enabled.
    pub extended_speed_enabled: ExtendedSpeed,
    /// Extended speeds: supported.
    pub extended_speed_supported: ExtendedSpeed,
    /// Extended speed in use; empty when an ordinary speed is.
    pub extended_speed_active: ExtendedSpeed,
    /// Largest MTU supported.
    pub mtu_cap: Mtu,
    /// MTU towards the neighbour, set by the SM.
    pub neighbor_mtu: Mtu,
    /// PortInfo:VLCap: 1 VL0, 2 VL0-1, 3 VL0-3, 4 VL0-7, 5 VL0-14.
    pub vl_cap: u8,
    /// PortInfo:OperationalVLs, coded likewise.
    pub operational_vls: u8,
    /// PortInfo:VLHighLimit.
    pub vl_high_limit: u8,
    /// Init type that the host wants, 4 bits.
    pub init_type: u8,
    /// Init type that the SM provided, 4 bits.
    pub init_type_reply: u8,
    /// PortInfo:VLStallCount, 3 bits.
    pub vl_stall_count: u8,
    /// PortInfo:HOQLife, 5 bits.
    pub hoq_life: u8,
    /// Check the P_Key of packets that enter here (switches).
    pub partition_enforcement_in: bool,
    /// Check the P_Key of packets that leave here (switches).
    pub partition_enforcement_out: bool,
    /// PortInfo:FilterRawInbound.
    pub filter_raw_in: bool,
    /// PortInfo:FilterRawOutbound.
    pub filter_raw_out: bool,
    /// PortInfo:SubnetTimeOut: bounds the trap rate, 4.096 us x 2^code.
    pub subnet_timeout: u8,
    /// PortInfo:RespTimeValue.
    pub response_time: u8,
    /// PortInfo:LocalPhyErrors, 4 bits.
    pub local_phy_errors: u8,
    /// PortInfo:OverrunErrors, 4 bits.
    pub overrun_errors: u8,
    /// PortInfo:MaxCreditHint.
    pub max_credit_hint: u16,
    /// PortInfo:LinkRoundTripLatency, 24 bits.
    pub link_round_trip_latency: u32,
    /// Entries of the GID table.
    pub guid_cap: u16,
    /// Entries of the P_Key table.
    pub pkey_cap: u16,
    /// Port counters.
    pub counters: PortCounters,
    /// Changes that the device has not taken yet.
    pub pending: PortChange,
    /// GUIDs behind entry 0; as long as the highest entry ever set.
    pub(crate) alias_guids: Vec<Guid>,
    /// P_Keys; as long as the highest entry ever set.
    pub(crate) pkeys: Vec<PKey>,
    /// SLtoVL of a channel adapter, or of a switch for packets from port 0; `None` is the default.
    pub sl2vl: Option<Box<[Vl; 16]>>,
    /// VLArbitration tables, 4 blocks of 64 bytes; `None` until the SM writes one.
    pub vl_arbitration: Option<Box<[[u8; 64]; 4]>>,
}

impl PhysicalPort {
    /// The GID at an index of the port's table: the port's own at 0, alias GIDs behind it. An
    /// entry without a GUID is [`Gid::NONE`].
    #[must_use]
    pub fn gid(&self, index: GidIndex) -> Option<Gid> {
        self.guid_at(index).map(|guid| {
            if guid.is_none() {
                Gid::NONE
            } else {
                Gid::from_parts(self.subnet_prefix, guid)
            }
        })
    }

    /// The GUID at an index of the GUIDInfo table; `None` beyond [`PhysicalPort::guid_cap`].
    #[must_use]
    pub fn guid_at(&self, index: GidIndex) -> Option<Guid> {
        match index.0 {
            i if i >= self.guid_cap => None,
            0 => Some(self.guid),
            i => Some(
                self.alias_guids
                    .get(usize::from(i) - 1)
                    .copied()
                    .unwrap_or(Guid::NONE),
            ),
        }
    }

    /// The index of the entry that holds `gid`, if any entry does.
    #[must_use]
    pub fn gid_index(&self, gid: Gid) -> Option<GidIndex> {
        let guid = gid.interface_id();
        if guid.is_none()
            || (gid.prefix() != self.subnet_prefix && gid.prefix() != SubnetPrefix::DEFAULT)
        {
            return None;
        }
        if guid == self.guid {
            return Some(GidIndex(0));
        }
        let at = self.alias_guids.iter().position(|g| *g == guid)?;
        u16::try_from(at + 1).ok().map(GidIndex)
    }

    /// The P_Key at an index; `None` beyond [`PhysicalPort::pkey_cap`].
    #[must_use]
    pub fn pkey(&self, index: PKeyIndex) -> Option<PKey> {
        (index.0 < self.pkey_cap).then(|| {
            self.pkeys
                .get(usize::from(index.0))
                .copied()
                .unwrap_or(PKey::INVALID)
        })
    }

    /// The first entry that matches a packet's P_Key (IBA 10.9.3). The membership bits count: two
    /// limited members do not match.
    #[must_use]
    pub fn matching_pkey(&self, pkey: PKey) -> Option<PKeyIndex> {
        let at = self.pkeys.iter().position(|own| own.matches(pkey))?;
        u16::try_from(at).ok().map(PKeyIndex)
    }

    /// Whether a unicast LID is one of this port's 2^LMC.
    #[must_use]
    pub const fn owns_lid(&self, lid: Lid) -> bool {
        let base = self.lid.get();
        base != 0 && lid.get() & !self.lmc.mask() == base & !self.lmc.mask()
    }

    /// The LID by which a packet with these path bits is sent.
    #[must_use]
    pub const fn source_lid(&self, path_bits: u8) -> Lid {
        Lid::new(self.lid.get() | (path_bits as u16 & self.lmc.mask()))
    }

    /// The virtual lane for a service level: as the SM mapped it, else spread over the operational
    /// lanes.
    #[must_use]
    pub fn vl_for_sl(&self, sl: Sl) -> Vl {
        self.sl2vl.as_ref().map_or_else(
            || Vl::from_low_bits(sl.get() % data_vls(self.operational_vls)),
            |table| table[usize::from(sl.get())],
        )
    }

    /// Notes a change for the device to take.
    pub fn note(&mut self, change: PortChange) {
        self.pending |= change;
    }
}

/// The data lanes that a VLCap or OperationalVLs code stands for.
pub(crate) const fn data_vls(code: u8) -> u8 {
    match code {
        2 => 2,
        3 => 4,
        4 => 8,
        5 => 15,
        _ => 1,
    }
}
