//! The fields of the layouts of IP over InfiniBand.

use ib_wire::ipoib::{Arp, ArpPacket, Encapsulation, HardwareAddress};

fields! {
    Encapsulation {
        fields: ether_type, reserved;
    }
    HardwareAddress {
        fields: flags, qpn, gid;
    }
    Arp {
        fields: hardware_type, protocol_type, hardware_size, protocol_size, operation, sender, sender_ip, target, target_ip;
    }
    ArpPacket {
        fields: encapsulation, arp;
    }
}
