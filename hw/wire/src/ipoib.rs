//! IP over InfiniBand: the encapsulation, hardware addresses, ARP, and the MGID of the broadcast group (RFC 4391, RFC 826).

use zerocopy::network_endian::U16;

use crate::{Gid, PKey, Qpn};

/// EtherType of ARP (`ETH_P_ARP`).
pub const ETHER_TYPE_ARP: u16 = 0x0806;

/// EtherType of IPv4, which is the protocol type of ARP for its addresses, too (`ETH_P_IP`).
pub const ETHER_TYPE_IPV4: u16 = 0x0800;

/// Hardware type of InfiniBand in ARP (RFC 4391, section 9.1.1; `ARPHRD_INFINIBAND`).
pub const HARDWARE_INFINIBAND: u16 = 32;

/// Operation of an ARP request (RFC 826).
pub const ARP_REQUEST: u16 = 1;

/// Operation of an ARP reply (RFC 826).
pub const ARP_REPLY: u16 = 2;

/// Signature of IPv4 in an MGID (RFC 4391, section 4).
pub const SIGNATURE_IPV4: u16 = 0x401b;

/// Signature of IPv6 in an MGID (RFC 4391, section 4).
pub const SIGNATURE_IPV6: u16 = 0x601b;

/// Link-local scope of an MGID, which is that of the broadcast group unless an administrator chooses another one.
pub const LINK_LOCAL: u8 = 2;

layout! {
    /// Header before each packet of IPoIB in datagram mode (RFC 4391, section 6).
    Encapsulation, 4 {
        /// EtherType of the packet behind the header.
        pub ether_type: U16,
        /// Reserved: 0 when sent, ignored when received.
        pub reserved: U16,
    }
}

layout! {
    /// Hardware address of an IPoIB interface (RFC 4391, section 9.1.1).
    HardwareAddress, 20 {
        /// Flags: 0 in datagram mode. Linux' connected mode sets the top bit (`IPOIB_FLAGS_RC`).
        pub flags: u8,
        /// Queue pair of the interface.
        pub qpn: Qpn,
        /// GID of the interface's port.
        pub gid: Gid,
    }
}

layout! {
    /// ARP for IPv4 on InfiniBand (RFC 826 with addresses of RFC 4391, section 9.1).
    Arp, 56 {
        /// Hardware type: [`HARDWARE_INFINIBAND`].
        pub hardware_type: U16,
        /// Protocol type: [`ETHER_TYPE_IPV4`].
        pub protocol_type: U16,
        /// Bytes of a hardware address: 20.
        pub hardware_size: u8,
        /// Bytes of a protocol address: 4.
        pub protocol_size: u8,
        /// Operation: [`ARP_REQUEST`] or [`ARP_REPLY`].
        pub operation: U16,
        /// Hardware address of the sender.
        pub sender: HardwareAddress,
        /// IPv4 address of the sender; 0 in a probe (RFC 5227).
        pub sender_ip: [u8; 4],
        /// Hardware address of the target; 0 in requests.
        pub target: HardwareAddress,
        /// IPv4 address of the target.
        pub target_ip: [u8; 4],
    }
}

layout! {
    /// A whole packet of ARP on InfiniBand: the payload of a datagram.
    ArpPacket, 60 {
        /// Header of IPoIB.
        pub encapsulation: Encapsulation,
        /// ARP.
        pub arp: Arp,
    }
}

impl ArpPacket {
    /// Returns a packet of ARP for IPv4 with its types and sizes; operation and addresses are 0.
    #[must_use]
    pub fn for_ipv4() -> Self {
        let mut packet = Self::default();
        packet.encapsulation.ether_type = ETHER_TYPE_ARP.into();
        packet.arp.hardware_type = HARDWARE_INFINIBAND.into();
        packet.arp.protocol_type = ETHER_TYPE_IPV4.into();
        packet.arp.hardware_size = 20;
        packet.arp.protocol_size = 4;
        packet
    }

    /// Returns `true` if the types and sizes are as [`Self::for_ipv4`] sets them.
    #[must_use]
    pub fn is_for_ipv4(&self) -> bool {
        let arp = &self.arp;
        self.encapsulation.ether_type.get() == ETHER_TYPE_ARP
            && arp.hardware_type.get() == HARDWARE_INFINIBAND
            && arp.protocol_type.get() == ETHER_TYPE_IPV4
            && arp.hardware_size == 20
            && arp.protocol_size == 4
    }
}

/// Returns the MGID of the broadcast group of IPv4 in a partition (RFC 4391, section 4): the address 255.255.255.255 there.
/// `partition` is the P_Key of a full member, `scope` a scope of 4 bits such as [`LINK_LOCAL`].
#[must_use]
pub const fn broadcast_mgid(scope: u8, partition: PKey) -> Gid {
    let [signature_high, signature_low] = SIGNATURE_IPV4.to_be_bytes();
    let [pkey_high, pkey_low] = partition.get().to_be_bytes();
    let mut bytes = [0; 16];
    bytes[0] = 0xff;
    bytes[1] = 0x10 | (scope & 0xf);
    bytes[2] = signature_high;
    bytes[3] = signature_low;
    bytes[4] = pkey_high;
    bytes[5] = pkey_low;
    bytes[12] = 0xff;
    bytes[13] = 0xff;
    bytes[14] = 0xff;
    bytes[15] = 0xff;
    Gid(bytes)
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_request_has_the_bytes_of_the_rfcs() {
        let mut packet = ArpPacket::for_ipv4();
        packet.arp.operation = ARP_REQUEST.into();
        packet.arp.sender = HardwareAddress {
            flags: 0,
            qpn: Qpn::from_low_bits(0x12_3456),
            gid: Gid(*b"\xfe\x80\0\0\0\0\0\0\0\x02\xc9\x03\0\0\0\x07"),
        };
        packet.arp.sender_ip = [10, 77, 1, 1];
        packet.arp.target_ip = [10, 77, 3, 9];
        // RFC 4391: header of 4 bytes. RFC 826: hardware type 32, IPv4, sizes 20 and 4, request; addresses of the sender and of the
        // target, whose hardware address is not known.
        let expected = b"\x08\x06\0\0\
            \0\x20\x08\0\x14\x04\0\x01\
            \0\x12\x34\x56\xfe\x80\0\0\0\0\0\0\0\x02\xc9\x03\0\0\0\x07\
            \x0a\x4d\x01\x01\
            \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
            \x0a\x4d\x03\x09";
        assert_eq!(packet.as_bytes(), expected);
        assert!(packet.is_for_ipv4());
    }

    #[test]
    fn other_types_and_sizes_are_no_arp_for_ipv4() {
        let changes: [fn(&mut ArpPacket); 5] = [
            |packet| packet.encapsulation.ether_type = ETHER_TYPE_IPV4.into(),
            |packet| packet.arp.hardware_type = 1.into(),
            |packet| packet.arp.protocol_type = 0x86dd.into(),
            |packet| packet.arp.hardware_size = 6,
            |packet| packet.arp.protocol_size = 16,
        ];
        for change in changes {
            let mut packet = ArpPacket::for_ipv4();
            change(&mut packet);
            assert!(!packet.is_for_ipv4());
        }
    }

    #[test]
    fn the_broadcast_group_is_of_its_partition() {
        let mgid = broadcast_mgid(LINK_LOCAL, PKey::DEFAULT_FULL);
        assert_eq!(
            mgid.0,
            *b"\xff\x12\x40\x1b\xff\xff\0\0\0\0\0\0\xff\xff\xff\xff"
        );
    }
}
