//! A port's state: what the SMA reads and writes, the transport obeys and the link drives.

use hca_api::{PhysicalState, PortChange, PortState};
use ib_vtime::{Duration, Instant};
use ib_wire::smp::{CapabilityMask, CapabilityMask2, LinkSpeed, LinkSpeedExt, LinkWidth};
use ib_wire::{
    Gid, GidIndex, Guid, Lid, Lmc, MKey, Mtu, PKey, PKeyIndex, PortNum, Sl, SubnetPrefix, Vl,
};

use crate::link::widest;
use crate::{PortConfig, PortCounters};

/// Largest HOQLife that ends, 2.1 s: with a larger one packets wait without end.
const LONGEST_HOQ_LIFE: u8 = 19;

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
    /// PortInfo:CapabilityMask2.
    pub capabilities2: CapabilityMask2,
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
    pub extended_speed_enabled: LinkSpeedExt,
    /// Extended speeds: supported.
    pub extended_speed_supported: LinkSpeedExt,
    /// Extended speed in use; empty when an ordinary speed is.
    pub extended_speed_active: LinkSpeedExt,
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
    /// PortInfo:MulticastPKeyTrapSuppressionEnabled, 2 bits.
    pub multicast_pkey_trap_suppression: u8,
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
    /// The counters when PortCounters was last cleared.
    pub(crate) cleared: PortCounters,
    /// When the M_Key's lease ends, while it runs.
    pub(crate) m_key_lease_end: Option<Instant>,
    /// Whether the identification light is on.
    pub(crate) led_on: bool,
    /// Changes that the device has not taken yet.
    pub pending: PortChange,
    /// GUIDs behind entry 0; as long as the highest entry ever set.
    pub(crate) alias_guids: Vec<Guid>,
    /// P_Keys; as long as the highest entry ever set.
    pub(crate) pkeys: Vec<PKey>,
    /// SLtoVL of a channel adapter, or of a switch for packets from port 0; `None` is the default.
    pub(crate) sl2vl: Option<Box<[Vl; 16]>>,
    /// VLArbitration tables, 4 blocks of 64 bytes; `None` until the SM writes one.
    pub(crate) vl_arbitration: Option<Box<[[u8; 64]; 4]>>,
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

    /// Whether a switch that enforces partitions at this port lets a packet pass: one of the port's
    /// keys is of the same partition, whoever is a full member.
    ///
    /// That two limited members do not hear each other is for the end node that receives (IBA 10.9.3).
    /// OpenSM tells a switch of a partition once, with the membership of the host behind the port, the
    /// full one if the host has both (`osm_pkey_mgr.c`); and with its default of enforcement both ways
    /// a limited host's packets must pass by that.
    #[must_use]
    pub fn admits_partition(&self, pkey: PKey) -> bool {
        let mut own = self.pkeys.iter();
        pkey.is_valid() && own.any(|own| own.base() == pkey.base())
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

    /// Returns the time for which packets wait at most at the head of a queue of a switch's port (PortInfo:HOQLife, IBA
    /// 18.2.5.4), or `None` if that has no bound.
    #[must_use]
    pub fn head_of_queue_life(&self) -> Option<Duration> {
        let units = 1_u64 << self.hoq_life;
        (self.hoq_life <= LONGEST_HOQ_LIFE).then(|| Duration::from_nanos(4096 * units))
    }

    /// Writes an alias GUID. Returns `true` if that changed the table: the entry at index 0 is the port's own and stays.
    pub fn set_alias_guid(&mut self, index: GidIndex, guid: Guid) -> bool {
        let Some(at) = usize::from(index.0).checked_sub(1) else {
            return false;
        };
        set_entry(&mut self.alias_guids, at, guid, Guid::NONE)
    }

    /// Writes an entry of the P_Key table. Returns `true` if that changed it.
    pub fn set_pkey(&mut self, index: PKeyIndex, pkey: PKey) -> bool {
        set_entry(&mut self.pkeys, usize::from(index.0), pkey, PKey::INVALID)
    }

    /// Writes the table from service levels to virtual lanes, by service level.
    pub fn set_sl2vl(&mut self, lanes: [Vl; 16]) {
        self.sl2vl = Some(Box::new(lanes));
    }

    /// Sets what the port supports, and enables all of it.
    pub(crate) fn support(&mut self, config: &PortConfig) {
        self.width_supported = config.widths;
        self.width_enabled = config.widths;
        self.width_active = widest(config.widths).unwrap_or(config.widths);
        self.speed_supported = config.speeds;
        self.speed_enabled = config.speeds;
        self.extended_speed_supported = config.extended_speeds;
        self.extended_speed_enabled = config.extended_speeds;
        self.mtu_cap = config.mtu;
        self.neighbor_mtu = config.mtu;
        self.vl_cap = config.vl_cap;
        self.operational_vls = config.vl_cap;
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

/// Writes an entry of a table that ends with its last entry in use; whether that changed it.
fn set_entry<T: Copy + PartialEq>(table: &mut Vec<T>, at: usize, value: T, unused: T) -> bool {
    if at >= table.len() {
        if value == unused {
            return false;
        }
        table.resize(at + 1, unused);
    }
    core::mem::replace(&mut table[at], value) != value
}
