//! Addresses of the RDMA CM: IP addresses that stand for GIDs, and their layouts.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use ib_wire::Gid;

use crate::Errno;
use crate::abi::rdma_cm::ADDRESS_SIZE;

/// Families (`AF_*`).
const INET: u16 = 2;
const INET6: u16 = 10;
const IB: u16 = 27;

/// Bytes of `struct sockaddr_ib`.
pub(super) const SOCKADDR_IB: u16 = 48;

/// IP addresses of VFs, which stand for their GIDs. The IPv6 address of a VF is its GID itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressBook {
    /// Address of the VF that asks.
    pub own: Ipv4Addr,
    /// GIDs of the VFs that have one.
    pub gids: BTreeMap<Ipv4Addr, Gid>,
}

impl Default for AddressBook {
    fn default() -> Self {
        Self {
            own: Ipv4Addr::UNSPECIFIED,
            gids: BTreeMap::new(),
        }
    }
}

impl AddressBook {
    /// Returns the GID that an address stands for, if it is known. Of the host's own address it is that of the VF that asks.
    pub(super) fn gid(&self, address: IpAddr, own: Gid) -> Option<Gid> {
        match address {
            IpAddr::V4(address) if self.is_own_v4(address) => Some(own),
            IpAddr::V4(address) => self.gids.get(&address).copied(),
            IpAddr::V6(address) if address.is_loopback() => Some(own),
            IpAddr::V6(address) => match address.to_ipv4_mapped() {
                Some(mapped) => self.gid(mapped.into(), own),
                None => Some(address.into()),
            },
        }
    }

    const fn is_own_v4(&self, address: Ipv4Addr) -> bool {
        address.to_bits() == self.own.to_bits()
            || address.to_bits() == Ipv4Addr::LOCALHOST.to_bits()
    }

    /// Returns the address by which others find the VF, for one of the host itself.
    ///
    /// Programs ask for the address that they are bound to, and pass it on.
    pub(super) fn public(&self, address: Address, own: Gid) -> Address {
        let ip = match address.ip {
            IpAddr::V4(Ipv4Addr::LOCALHOST) if !self.own.is_unspecified() => self.own.into(),
            IpAddr::V6(Ipv6Addr::LOCALHOST) => Ipv6Addr::from(own.0).into(),
            ip => ip,
        };
        Address { ip, ..address }
    }

    /// Returns `true` if a program may listen at an address.
    pub(super) fn is_own(&self, address: IpAddr, own: Gid) -> bool {
        address.is_unspecified() || self.gid(address, own) == Some(own)
    }
}

/// An address with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) ip: IpAddr,
    pub(super) port: u16,
}

/// Address as a program gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// An IP address.
    Ip(Address),
    /// A GID.
    Ib(Gid),
}

impl Address {
    /// Reads an address.
    pub(super) fn read(bytes: &[u8; ADDRESS_SIZE]) -> Result<Given, Errno> {
        let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let v6 = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[at..at + 16]);
            octets
        };
        let ip = match family {
            INET => Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).into(),
            INET6 => Ipv6Addr::from(v6(8)).into(),
            IB => return Ok(Given::Ib(Gid(v6(8)))),
            _ => return Err(Errno::EINVAL),
        };
        Ok(Given::Ip(Self { ip, port }))
    }

    /// Lays an address out. Returns its bytes, too.
    pub(super) fn write(&self) -> ([u8; ADDRESS_SIZE], u16) {
        let mut bytes = [0; ADDRESS_SIZE];
        bytes[2..4].copy_from_slice(&self.port.to_be_bytes());
        let (family, size) = match self.ip {
            IpAddr::V4(ip) => {
                bytes[4..8].copy_from_slice(&ip.octets());
                (INET, 16)
            }
            IpAddr::V6(ip) => {
                bytes[8..24].copy_from_slice(&ip.octets());
                (INET6, 28)
            }
        };
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        (bytes, size)
    }
}

/// Lays a GID out as an address of the family of InfiniBand.
pub(super) fn gid_address(gid: Gid) -> [u8; ADDRESS_SIZE] {
    let mut bytes = [0; ADDRESS_SIZE];
    bytes[..2].copy_from_slice(&IB.to_ne_bytes());
    bytes[2..4].copy_from_slice(&u16::MAX.to_be_bytes());
    bytes[8..24].copy_from_slice(&gid.0);
    bytes
}

/// Bytes of the header that stands before private data of a request (IBA, annex A11: RDMA IP CM service).
pub(super) const IP_HEADER: usize = 36;

/// Lays the header of a request out.
pub(super) fn ip_header(from: &Address, to: &Address) -> [u8; IP_HEADER] {
    let mut bytes = [0; IP_HEADER];
    bytes[1] = match to.ip {
        IpAddr::V4(_) => 4 << 4,
        IpAddr::V6(_) => 6 << 4,
    };
    bytes[2..4].copy_from_slice(&from.port.to_be_bytes());
    for (at, ip) in [(4, from.ip), (20, to.ip)] {
        match ip {
            IpAddr::V4(ip) => bytes[at + 12..at + 16].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    bytes
}

/// Reads the header of a request: the peer's address, and the own one without its port.
pub(super) fn read_ip_header(bytes: &[u8]) -> Option<(Address, IpAddr)> {
    let header: &[u8; IP_HEADER] = bytes.first_chunk()?;
    let port = u16::from_be_bytes([header[2], header[3]]);
    let v6 = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        octets
    };
    let v4 = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    let (from, to) = match header[1] >> 4 {
        4 => (IpAddr::V4(v4(16)), IpAddr::V4(v4(32))),
        6 => (
            IpAddr::V6(Ipv6Addr::from(v6(4))),
            IpAddr::V6(Ipv6Addr::from(v6(20))),
        ),
        _ => return None,
    };
    Some((Address { ip: from, port }, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were_laid_out() {
        for ip in [
            IpAddr::V4(Ipv4Addr::new(127, 77, 1, 2)),
            IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0x14, 0x500, 0, 1)),
        ] {
            let address = Address { ip, port: 7174 };
            assert_eq!(Address::read(&address.write().0), Ok(Given::Ip(address)));
            let to = Address { ip, port: 9 };
            assert_eq!(
                read_ip_header(&ip_header(&address, &to)),
                Some((address, ip))
            );
        }
        let gid = Gid([7; 16]);
        assert_eq!(Address::read(&gid_address(gid)), Ok(Given::Ib(gid)));
        assert_eq!(Address::read(&[0; ADDRESS_SIZE]), Err(Errno::EINVAL));
        assert_eq!(read_ip_header(&[0; 40]), None);
    }

    #[test]
    fn own_addresses_are_the_vfs_the_hosts_and_its_gid() {
        let own = Gid([1; 16]);
        let peer = Gid([2; 16]);
        let addresses = [(Ipv4Addr::new(127, 77, 1, 2), peer)];
        let book = AddressBook {
            own: Ipv4Addr::new(127, 77, 1, 1),
            gids: addresses.into_iter().collect(),
        };
        let gid = |text: &str| book.gid(text.parse().unwrap(), own);
        assert_eq!(gid("127.77.1.1"), Some(own));
        assert_eq!(gid("127.0.0.1"), Some(own));
        assert_eq!(gid("::1"), Some(own));
        assert_eq!(gid("127.77.1.2"), Some(peer));
        assert_eq!(gid("::ffff:127.77.1.2"), Some(peer));
        assert_eq!(gid("127.77.1.3"), None);
        assert!(book.is_own("0.0.0.0".parse().unwrap(), own));
        assert!(!book.is_own("127.77.1.2".parse().unwrap(), own));
        let public = |text: &str| {
            let ip = text.parse().unwrap();
            book.public(Address { ip, port: 9 }, own).ip.to_string()
        };
        assert_eq!(public("127.0.0.1"), "127.77.1.1");
        assert_eq!(public("::1"), Ipv6Addr::from(own.0).to_string());
        assert_eq!(public("0.0.0.0"), "0.0.0.0");
    }
}
