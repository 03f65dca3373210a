//! MGIDs of the addresses of multicast groups.

use core::net::IpAddr;

use ib_wire::ipoib::{LINK_LOCAL, SIGNATURE_IPV4, SIGNATURE_IPV6};
use ib_wire::{Gid, PKey};

use super::address::SocketAddress;
use crate::abi::rdma_cm::PS_UDP;

/// Low byte of the signature of groups that datagram services of the RDMA CM have to themselves.
const RDMA_CM: u8 = 0x01;

/// Returns the MGID that an address stands for; 0, with which the SA chooses one, for an address of 0.
pub(super) fn mgid(address: &SocketAddress, port_space: u16, partition: PKey) -> Gid {
    let ip = match address {
        SocketAddress::Ib(ib) => return ib.gid,
        SocketAddress::Ip(address) => address.ip,
    };
    let mut bytes = match ip {
        _ if ip.is_unspecified() => return Gid::NONE,
        IpAddr::V4(ip) => {
            let mut bytes = front(SIGNATURE_IPV4, partition);
            bytes[12..].copy_from_slice(&ip.octets());
            // 28 bits count.
            bytes[12] &= 0x0f;
            bytes
        }
        IpAddr::V6(ip) if is_from_sa(ip.octets()) => return Gid(ip.octets()),
        IpAddr::V6(ip) => {
            let mut bytes = front(SIGNATURE_IPV6, partition);
            bytes[6..].copy_from_slice(&ip.octets()[6..]);
            bytes
        }
    };
    if port_space == PS_UDP {
        bytes[3] = RDMA_CM;
    }
    Gid(bytes)
}

/// Returns the front of the MGID of an IP address, with the scope of the broadcast group.
fn front(signature: u16, partition: PKey) -> [u8; 16] {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1]) = (0xff, 0x10 | LINK_LOCAL);
    bytes[2..4].copy_from_slice(&signature.to_be_bytes());
    bytes[4..6].copy_from_slice(&partition.get().to_be_bytes());
    bytes
}

/// Returns `true` for an MGID that an SA has chosen, of any scope (IBA 4.1.1).
const fn is_from_sa(bytes: [u8; 16]) -> bool {
    matches!(bytes, [0xff, flags_and_scope, 0xa0, 0x1b, ..] if flags_and_scope >> 4 == 1)
}

#[cfg(test)]
mod tests {
    use super::super::address::{Address, IbAddress};
    use super::*;
    use crate::abi::rdma_cm::PS_IPOIB;
    use ib_wire::ipoib::broadcast_mgid;

    #[test]
    fn addresses_of_groups_are_mapped_as_ipoib_and_the_rdma_cm_do() {
        let partition = PKey::new(0x8123);
        let map = |text: &str, port_space| {
            let ip = text.parse().unwrap();
            let mgid = mgid(
                &SocketAddress::Ip(Address { ip, port: 9 }),
                port_space,
                partition,
            );
            core::net::Ipv6Addr::from(mgid.0).to_string()
        };
        for (address, ipoib, udp) in [
            (
                "239.1.2.3",
                "ff12:401b:8123::f01:203",
                "ff12:4001:8123::f01:203",
            ),
            ("ff0e::1:2", "ff12:601b:8123::1:2", "ff12:6001:8123::1:2"),
            (
                "ff15:1:2:3:4:5:6:7",
                "ff12:601b:8123:3:4:5:6:7",
                "ff12:6001:8123:3:4:5:6:7",
            ),
            ("ff1e:a01b::7", "ff1e:a01b::7", "ff1e:a01b::7"),
            ("0.0.0.0", "::", "::"),
            ("::", "::", "::"),
        ] {
            assert_eq!(map(address, PS_IPOIB), ipoib);
            assert_eq!(map(address, PS_UDP), udp);
        }
        let gid = Gid([7; 16]);
        let ib = SocketAddress::Ib(IbAddress {
            gid,
            ..IbAddress::default()
        });
        assert_eq!(mgid(&ib, PS_UDP, partition), gid);
        let broadcast = broadcast_mgid(LINK_LOCAL, PKey::DEFAULT_FULL);
        let everybody = SocketAddress::Ip(Address {
            ip: core::net::Ipv4Addr::BROADCAST.into(),
            port: 0,
        });
        let mapped = mgid(&everybody, PS_IPOIB, PKey::DEFAULT_FULL);
        assert_eq!(mapped.0[..12], broadcast.0[..12]);
        assert_eq!(broadcast.0[12..], [0xff; 4]);
    }
}
