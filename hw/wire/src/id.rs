//! Addresses, keys and numbers: one type for each quantity of the architecture.

use core::fmt;
use core::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

be_newtype! {
    /// A local identifier (IBA 4.1.3): the 16-bit address of a port within its subnet.
    Lid(u16, 2), "0x{:04x}"
}

impl Lid {
    /// "No LID": the value of an unassigned port.
    pub const NONE: Self = Self::new(0);
    /// The permissive LID, which every port accepts on QP0 (IBA 4.1.3).
    pub const PERMISSIVE: Self = Self::new(0xffff);
    /// The first multicast LID.
    pub const FIRST_MULTICAST: Self = Self::new(0xc000);
    /// The last multicast LID.
    pub const LAST_MULTICAST: Self = Self::new(0xfffe);

    /// Whether one port (or one port's LMC range) owns this LID: 0x0001 to 0xBFFF.
    #[must_use]
    pub const fn is_unicast(self) -> bool {
        let v = self.get();
        v != 0 && v < 0xc000
    }

    /// Whether the LID names a multicast group: 0xC000 to 0xFFFE.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        let v = self.get();
        v >= 0xc000 && v != 0xffff
    }

    /// The LID's distance from the first LID, as an index into forwarding tables.
    #[must_use]
    pub const fn index(self) -> usize {
        self.get() as usize
    }
}

be_newtype! {
    /// A globally unique identifier in EUI-64 form: of a node, a port, a system image, or an alias.
    Guid(u64, 8), "0x{:016x}"
}

impl Guid {
    /// "No GUID".
    pub const NONE: Self = Self::new(0);

    /// Whether this is the all-zero GUID.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.get() == 0
    }
}

be_newtype! {
    /// The upper 64 bits of a unicast GID: the subnet's identity.
    SubnetPrefix(u64, 8), "0x{:016x}"
}

impl SubnetPrefix {
    /// The default (link-local) prefix, fe80::/64 (IBA 4.1.1).
    pub const DEFAULT: Self = Self::new(0xfe80_0000_0000_0000);
}

/// A global identifier (IBA 4.1.1): an IPv6-shaped address of a port or, starting with 0xFF, of a
/// multicast group.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The all-zero GID.
    pub const NONE: Self = Self([0; 16]);

    /// The unicast GID of a port GUID within a subnet.
    #[must_use]
    pub const fn from_parts(prefix: SubnetPrefix, guid: Guid) -> Self {
        Self((((prefix.get() as u128) << 64) | guid.get() as u128).to_be_bytes())
    }

    /// The upper 64 bits.
    #[must_use]
    pub const fn prefix(self) -> SubnetPrefix {
        SubnetPrefix::new((self.bits() >> 64) as u64)
    }

    /// The lower 64 bits: the port GUID of a unicast GID.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower half is what is asked for"
    )]
    pub const fn interface_id(self) -> Guid {
        Guid::new(self.bits() as u64)
    }

    /// Whether the GID names a multicast group.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] == 0xff
    }

    /// Whether all 128 bits are zero.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.bits() == 0
    }

    const fn bits(self) -> u128 {
        u128::from_be_bytes(self.0)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(addr: Ipv6Addr) -> Self {
        Self(addr.octets())
    }
}

be_newtype! {
    /// A partition key (IBA 10.9): 15 bits of partition, the top bit set for full members.
    PKey(u16, 2), "0x{:04x}"
}

impl PKey {
    /// The default partition with full membership.
    pub const DEFAULT_FULL: Self = Self::new(0xffff);
    /// The default partition with limited membership.
    pub const DEFAULT_LIMITED: Self = Self::new(0x7fff);
    /// The invalid key that empty table entries hold.
    pub const INVALID: Self = Self::new(0);

    /// The partition without the membership bit.
    #[must_use]
    pub const fn base(self) -> u16 {
        self.get() & 0x7fff
    }

    /// Whether the holder is a full member.
    #[must_use]
    pub const fn is_full(self) -> bool {
        self.get() & 0x8000 != 0
    }

    /// The key of a full member of the partition.
    #[must_use]
    pub const fn full(self) -> Self {
        Self::new(self.get() | 0x8000)
    }

    /// Whether the key can match anything: its partition bits are not all zero (IBA 10.9.1.1).
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.base() != 0
    }

    /// The matching rule of IBA 10.9.3: same valid partition, and at least one full member.
    #[must_use]
    pub const fn matches(self, other: Self) -> bool {
        self.is_valid() && self.base() == other.base() && (self.is_full() || other.is_full())
    }
}

be_newtype! {
    /// A queue key of the datagram services (IBA 10.2.5).
    QKey(u32, 4), "0x{:08x}"
}

impl QKey {
    /// The well-known key of QP1 (IBA 3.5.3).
    pub const GSI: Self = Self::new(0x8001_0000);
    /// SMPs carry no key.
    pub const SMI: Self = Self::new(0);

    /// Whether the top bit is set: a controlled key that only a privileged consumer may use. In a
    /// send work request it means "take the QP's own key" (IBA 10.2.5).
    #[must_use]
    pub const fn is_privileged(self) -> bool {
        self.get() & 0x8000_0000 != 0
    }
}

u24_newtype! {
    /// A queue pair number (24 bits).
    Qpn, "0x{:06x}"
}

impl Qpn {
    /// QP0, the subnet management interface.
    pub const SMI: Self = Self([0, 0, 0]);
    /// QP1, the general service interface.
    pub const GSI: Self = Self([0, 0, 1]);
    /// The destination QP of every multicast packet (IBA 9.4.1).
    pub const MULTICAST: Self = Self([0xff; 3]);
}

u24_newtype! {
    /// A packet sequence number (24 bits).
    Psn, "0x{:06x}"
}

be_newtype! {
    /// The key of a memory region or window that a remote peer presents (IBA 10.6.3).
    RKey(u32, 4), "0x{:08x}"
}

be_newtype! {
    /// A 64-bit transaction id of a MAD (IBA 13.4.2).
    Tid(u64, 8), "0x{:016x}"
}

be_newtype! {
    /// A communication id of the connection manager, or a SIDR request id (IBA 12.6).
    CommId(u32, 4), "0x{:08x}"
}

be_newtype! {
    /// A 64-bit service id (IBA A3.2).
    ServiceId(u64, 8), "0x{:016x}"
}

be_newtype! {
    /// A management key guarding a port's attributes (IBA 14.2.4).
    MKey(u64, 8), "0x{:016x}"
}

be_newtype! {
    /// The key by which the SA tells trusted requesters (IBA 15.2.1.1, "SM_Key").
    SmKey(u64, 8), "0x{:016x}"
}

bits_newtype! {
    /// A service level, 0 to 15 (IBA 7.6.5).
    Sl, 0x0f
}
bits_newtype! {
    /// A virtual lane, 0 to 15 (IBA 7.6.1).
    Vl, 0x0f
}

impl Vl {
    /// The lane of subnet management packets.
    pub const MANAGEMENT: Self = Self(15);
}

bits_newtype! {
    /// A LID mask count, 0 to 7: a port owns 2^LMC consecutive LIDs (IBA 4.1.3).
    Lmc, 0x07
}

impl Lmc {
    /// The low LID bits that are path bits rather than the port's identity.
    #[must_use]
    pub const fn mask(self) -> u16 {
        (1 << self.0) - 1
    }

    /// Returns the base LID of a port that has this LID.
    #[must_use]
    pub const fn base(self, lid: Lid) -> Lid {
        Lid::new(lid.get() & !self.mask())
    }

    /// Whether two unicast LIDs are those of one port: they differ in path bits at most.
    #[must_use]
    pub const fn is_same_port(self, one: Lid, other: Lid) -> bool {
        (one.get() ^ other.get()) & !self.mask() == 0
    }
}

/// A port number: 1 to 254 for the ports of CAs and the external ports of switches, 0 for a
/// switch's management port.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct PortNum(pub u8);

impl PortNum {
    /// A switch's management port.
    pub const SWITCH_MANAGEMENT: Self = Self(0);

    /// The number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PortNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for PortNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortNum({})", self.0)
    }
}

/// An index into a port's P_Key table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PKeyIndex(pub u16);

/// An index into a port's GID table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GidIndex(pub u16);

open_enum! {
    /// A path MTU code (IBA 14.2.5.6, PortInfo:MTUCap).
    Mtu(u8) {
        /// 256 bytes.
        MTU_256 = 1,
        /// 512 bytes.
        MTU_512 = 2,
        /// 1024 bytes.
        MTU_1024 = 3,
        /// 2048 bytes.
        MTU_2048 = 4,
        /// 4096 bytes.
        MTU_4096 = 5,
    }
}

impl Mtu {
    /// The payload size in bytes, for a legal code.
    #[must_use]
    pub const fn bytes(self) -> Option<usize> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }
}

open_enum! {
    /// A static or path rate code (IBA 15.2.5.16, PathRecord:Rate). The codes are not in order of
    /// speed; compare with [`Rate::megabits`].
    Rate(u8) {
        /// 2.5 Gb/s.
        GBPS_2_5 = 2,
        /// 10 Gb/s.
        GBPS_10 = 3,
        /// 30 Gb/s.
        GBPS_30 = 4,
        /// 5 Gb/s.
        GBPS_5 = 5,
        /// 20 Gb/s.
        GBPS_20 = 6,
        /// 40 Gb/s.
        GBPS_40 = 7,
        /// 60 Gb/s.
        GBPS_60 = 8,
        /// 80 Gb/s.
        GBPS_80 = 9,
        /// 120 Gb/s.
        GBPS_120 = 10,
        /// 14 Gb/s (1x FDR).
        GBPS_14 = 11,
        /// 56 Gb/s (4x FDR).
        GBPS_56 = 12,
        /// 112 Gb/s (8x FDR).
        GBPS_112 = 13,
        /// 168 Gb/s (12x FDR).
        GBPS_168 = 14,
        /// 25 Gb/s (1x EDR).
        GBPS_25 = 15,
        /// 100 Gb/s (4x EDR).
        GBPS_100 = 16,
        /// 200 Gb/s (8x EDR).
        GBPS_200 = 17,
        /// 300 Gb/s (12x EDR).
        GBPS_300 = 18,
        /// 28 Gb/s (2x FDR).
        GBPS_28 = 19,
        /// 50 Gb/s (2x EDR).
        GBPS_50 = 20,
        /// 400 Gb/s (8x HDR).
        GBPS_400 = 21,
        /// 600 Gb/s (12x HDR).
        GBPS_600 = 22,
    }
}

impl Rate {
    /// The rate in Mb/s, for a legal code.
    #[must_use]
    pub const fn megabits(self) -> Option<u32> {
        Some(match self.0 {
            2 => 2_500,
            3 => 10_000,
            4 => 30_000,
            5 => 5_000,
            6 => 20_000,
            7 => 40_000,
            8 => 60_000,
            9 => 80_000,
            10 => 120_000,
            11 => 14_000,
            12 => 56_000,
            13 => 112_000,
            14 => 168_000,
            15 => 25_000,
            16 => 100_000,
            17 => 200_000,
            18 => 300_000,
            19 => 28_000,
            20 => 50_000,
            21 => 400_000,
            22 => 600_000,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn lids_are_sorted_into_unicast_and_multicast() {
        for (lid, unicast, multicast) in [
            (0x0000, false, false),
            (0x0001, true, false),
            (0xbfff, true, false),
            (0xc000, false, true),
            (0xfffe, false, true),
            (0xffff, false, false),
        ] {
            let lid = Lid::new(lid);
            assert_eq!(
                (lid.is_unicast(), lid.is_multicast()),
                (unicast, multicast),
                "{lid}"
            );
        }
    }

    #[test]
    fn limited_members_of_a_partition_do_not_match_each_other() {
        assert!(PKey::DEFAULT_FULL.matches(PKey::DEFAULT_LIMITED));
        assert!(!PKey::DEFAULT_LIMITED.matches(PKey::DEFAULT_LIMITED));
        assert!(
            !PKey::new(0x8000).matches(PKey::new(0x8000)),
            "partition 0 is invalid"
        );
    }

    #[test]
    fn gid_parts_and_display_are_those_of_ipv6() {
        let gid = Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(0x0002_c903_0000_0001));
        assert_eq!(format!("{gid}"), "fe80::2:c903:0:1");
        assert_eq!(gid.prefix(), SubnetPrefix::DEFAULT);
        assert_eq!(gid.interface_id(), Guid::new(0x0002_c903_0000_0001));
    }

    #[test]
    fn order_of_a_newtype_is_numeric() {
        assert!(Lid::new(0x0100) > Lid::new(0x00ff));
        assert!(Qpn::from_low_bits(0x01_0000) > Qpn::from_low_bits(0x00_ffff));
    }

    #[test]
    fn qpn_takes_24_bits() {
        assert_eq!(Qpn::new(0x100_0000), None);
        assert_eq!(Qpn::MAX.wrapping_add(1), Qpn::SMI);
    }

    #[test]
    fn mtu_codes_give_bytes() {
        assert_eq!(Mtu::MTU_256.bytes(), Some(256));
        assert_eq!(Mtu::MTU_4096.bytes(), Some(4096));
        assert_eq!(Mtu(0).bytes(), None);
        assert_eq!(Mtu(6).bytes(), None);
    }
}
