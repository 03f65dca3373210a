//! The IP interface of a VF for programs, as the answer to [`Verb::Interface`](crate::Verb::Interface) carries it.

use core::net::Ipv4Addr;

use linux_abi::abi_layout;
use zerocopy::native_endian::U32;

use crate::Network;

abi_layout! {
    /// An interface of IP over InfiniBand.
    pub InterfaceLayout, 32 {
        /// IPv4 address, as it is sent.
        pub address: [u8; 4],
        /// Leading bits of the address that name its network.
        pub prefix: u8,
        /// Not 0 if the port is in its broadcast group, and answers ARP.
        pub is_running: u8,
        /// Reserved.
        pub reserved: [u8; 2],
        /// Bytes of the longest IP packet.
        pub mtu: U32,
        /// Hardware address (RFC 4391, 9.1.1); 0 while the interface does not run.
        pub hardware: [u8; 20],
    }
}

impl InterfaceLayout {
    fn network(&self) -> Network {
        Network {
            base: self.address.into(),
            prefix: self.prefix,
        }
    }

    /// Returns the mask of the network.
    #[must_use]
    pub fn netmask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(!self.network().host_bits())
    }

    /// Returns the broadcast address of the network.
    #[must_use]
    pub fn broadcast(&self) -> Ipv4Addr {
        let network = self.network();
        Ipv4Addr::from_bits(network.base.to_bits() | network.host_bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_the_network_makes_mask_and_broadcast_address() {
        for (prefix, netmask, broadcast) in [
            (16, "255.255.0.0", "10.77.255.255"),
            (8, "255.0.0.0", "10.255.255.255"),
            (32, "255.255.255.255", "10.77.3.2"),
            (0, "0.0.0.0", "255.255.255.255"),
        ] {
            let interface = InterfaceLayout {
                address: [10, 77, 3, 2],
                prefix,
                ..InterfaceLayout::default()
            };
            assert_eq!(interface.netmask().to_string(), netmask);
            assert_eq!(interface.broadcast().to_string(), broadcast);
        }
    }
}
