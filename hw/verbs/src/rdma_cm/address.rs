//! Addresses of the RDMA CM: IP addresses that stand for GIDs, and their layouts.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use ib_wire::Gid;

use crate::Errno;
use crate::abi::rdma_cm::{ADDRESS_SIZE, PS_IB, PS_TCP, PS_UDP};
use crate::namespace::is_of_a_node;

/// Families (`AF_*`).
const INET: u16 = 2;
const INET6: u16 = 10;
const IB: u16 = 27;

/// IP addresses of VFs, which stand for their GIDs. The IPv6 address of a VF is its GID itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressBook {
    /// Address of the VF that asks.
    pub own: Ipv4Addr,
    /// Further addresses by which other nodes find that VF.
    pub aliases: Vec<Ipv4Addr>,
    /// GIDs of the VFs that have one.
    pub gids: BTreeMap<Ipv4Addr, Gid>,
    /// Network of the VFs' addresses, if the owner of the ids finds others, of this network or not: see
    /// [`RdmaCm::poll_lookup`](super::RdmaCm::poll_lookup).
    pub network: Option<Network>,
}

/// An IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// An address of the network.
    pub base: Ipv4Addr,
    /// Leading bits that all addresses of the network have in common, 32 at most.
    pub prefix: u8,
}

impl Network {
    /// Returns `true` if an address is of the network.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        (self.base.to_bits() ^ address.to_bits()) & !self.host_bits() == 0
    }

    /// Returns `true` if an address can be that of a node: of the network neither the first nor the last one.
    #[must_use]
    pub fn may_be_a_node(&self, address: Ipv4Addr) -> bool {
        let ends = [0, self.host_bits()];
        let is_end =
            self.contains(address) && ends.contains(&(address.to_bits() & self.host_bits()));
        is_of_a_node(address) && !is_end
    }

    /// Returns the bits of an address that distinguish nodes.
    #[must_use]
    pub fn host_bits(&self) -> u32 {
        u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0)
    }
}

impl Default for AddressBook {
    fn default() -> Self {
        Self {
            own: Ipv4Addr::UNSPECIFIED,
            aliases: Vec::new(),
            gids: BTreeMap::new(),
            network: None,
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

    /// Returns the IPv4 address that the owner of the ids has to look up for an address without a GID, if it can.
    pub(super) fn to_look_up(&self, address: IpAddr) -> Option<Ipv4Addr> {
        let IpAddr::V4(address) = address.to_canonical() else {
            return None;
        };
        let network = self
            .network
            .filter(|network| network.may_be_a_node(address));
        network.map(|_| address)
    }

    fn is_own_v4(&self, address: Ipv4Addr) -> bool {
        [self.own, Ipv4Addr::LOCALHOST].contains(&address) || self.aliases.contains(&address)
    }

    /// Returns the address by which others find the VF, for one of the host itself.
    ///
    /// Programs ask for the address that they are bound to, and pass it on.
    fn public(&self, address: Address, own: Gid) -> Address {
        let ip = match address.ip {
            IpAddr::V4(Ipv4Addr::LOCALHOST) if !self.own.is_unspecified() => self.own.into(),
            IpAddr::V6(Ipv6Addr::LOCALHOST) => Ipv6Addr::from(own.0).into(),
            ip => ip,
        };
        Address { ip, ..address }
    }

    /// Returns an address of the VF as others know it, to be bound to. `own` is the VF's GID, if it has one.
    pub(super) fn bindable(
        &self,
        address: SocketAddress,
        own: Option<Gid>,
    ) -> Result<SocketAddress, Errno> {
        match address {
            any if any.is_any() => Ok(any),
            SocketAddress::Ip(ip) => {
                let own = own.ok_or(Errno::ENODEV)?;
                if self.gid(ip.ip, own) != Some(own) {
                    return Err(Errno::EADDRNOTAVAIL);
                }
                Ok(SocketAddress::Ip(self.public(ip, own)))
            }
            SocketAddress::Ib(ib) if Some(ib.gid) == own => Ok(address),
            SocketAddress::Ib(_) => Err(Errno::ENODEV),
        }
    }
}

/// An IP address with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) ip: IpAddr,
    pub(super) port: u16,
}

/// An address of the family of InfiniBand (`struct sockaddr_ib`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IbAddress {
    pub(super) pkey: u16,
    pub(super) flow_info: u32,
    pub(super) gid: Gid,
    /// Service id, whose low 16 bits are the port.
    pub(super) service: u64,
    /// Bits of the service id that count.
    pub(super) mask: u64,
    pub(super) scope: u64,
}

/// An address of any family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketAddress {
    /// An IP address.
    Ip(Address),
    /// A GID with a service id.
    Ib(IbAddress),
}

/// Bits of a service id that name the port space (`RDMA_IB_IP_PS_MASK`).
const PORT_SPACE: u64 = !0xffff;

/// GID of loopback.
const LOOPBACK: Gid = Gid(Ipv6Addr::LOCALHOST.octets());

impl SocketAddress {
    /// Reads an address.
    pub(super) fn read(bytes: &[u8; ADDRESS_SIZE]) -> Result<Self, Errno> {
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let ip = match family(bytes) {
            INET => Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).into(),
            INET6 => Ipv6Addr::from(chunk(bytes, 8)).into(),
            IB => {
                return Ok(Self::Ib(IbAddress {
                    pkey: port,
                    flow_info: u32::from_be_bytes(chunk(bytes, 4)),
                    gid: Gid(chunk(bytes, 8)),
                    service: u64::from_be_bytes(chunk(bytes, 24)),
                    mask: u64::from_be_bytes(chunk(bytes, 32)),
                    scope: u64::from_ne_bytes(chunk(bytes, 40)),
                }));
            }
            _ => return Err(Errno::EINVAL),
        };
        Ok(Self::Ip(Address { ip, port }))
    }

    /// Reads an address of which a command gives the size, too.
    pub(super) fn read_sized(bytes: &[u8; ADDRESS_SIZE], size: u16) -> Result<Self, Errno> {
        let address = Self::read(bytes)?;
        let fits = address.size() == size;
        fits.then_some(address).ok_or(Errno::EINVAL)
    }

    /// Returns `true` unless a program gives no address.
    pub(super) const fn is_given(bytes: &[u8; ADDRESS_SIZE]) -> bool {
        family(bytes) != 0
    }

    /// Lays an address out. Returns its size, too.
    pub(super) fn write(&self) -> ([u8; ADDRESS_SIZE], u16) {
        let mut bytes = [0; ADDRESS_SIZE];
        bytes[..2].copy_from_slice(&self.family().to_ne_bytes());
        match self {
            Self::Ip(Address { ip, port }) => {
                bytes[2..4].copy_from_slice(&port.to_be_bytes());
                match ip {
                    IpAddr::V4(ip) => bytes[4..8].copy_from_slice(&ip.octets()),
                    IpAddr::V6(ip) => bytes[8..24].copy_from_slice(&ip.octets()),
                }
            }
            Self::Ib(ib) => {
                bytes[2..4].copy_from_slice(&ib.pkey.to_be_bytes());
                bytes[4..8].copy_from_slice(&ib.flow_info.to_be_bytes());
                bytes[8..24].copy_from_slice(&ib.gid.0);
                bytes[24..32].copy_from_slice(&ib.service.to_be_bytes());
                bytes[32..40].copy_from_slice(&ib.mask.to_be_bytes());
                bytes[40..48].copy_from_slice(&ib.scope.to_ne_bytes());
            }
        }
        (bytes, self.size())
    }

    /// Returns the bytes of an address of its family.
    pub(super) const fn size(&self) -> u16 {
        match self {
            Self::Ip(address) if address.ip.is_ipv4() => 16,
            Self::Ip(_) => 28,
            Self::Ib(_) => 48,
        }
    }

    const fn family(&self) -> u16 {
        match self {
            Self::Ip(address) if address.ip.is_ipv4() => INET,
            Self::Ip(_) => INET6,
            Self::Ib(_) => IB,
        }
    }

    /// Returns `true` if two addresses are of one family.
    pub(super) const fn is_like(&self, other: &Self) -> bool {
        self.family() == other.family()
    }

    /// Returns `true` for an address of IPv4.
    pub(super) const fn is_v4(&self) -> bool {
        self.family() == INET
    }

    /// Returns `true` if two addresses are the same but for the port.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ip(one), Self::Ip(other)) => one.ip == other.ip,
            (Self::Ib(one), Self::Ib(other)) => one.gid == other.gid,
            _ => false,
        }
    }

    /// Returns `true` for an address that stands for all of its family.
    pub(super) fn is_any(&self) -> bool {
        match self {
            Self::Ip(address) => address.ip.is_unspecified(),
            Self::Ib(ib) => ib.gid.is_none() || ib.gid == LOOPBACK,
        }
    }

    /// Returns the address that stands for all of the family, without a port and of the same partition.
    pub(super) const fn any(&self) -> Self {
        match self {
            Self::Ip(Address { ip, .. }) => Self::Ip(Address {
                ip: match ip {
                    IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                    IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                },
                port: 0,
            }),
            Self::Ib(ib) => Self::Ib(IbAddress {
                pkey: ib.pkey,
                flow_info: 0,
                gid: Gid::NONE,
                service: 0,
                mask: 0,
                scope: 0,
            }),
        }
    }

    /// Returns the port.
    pub(super) const fn port(&self) -> u16 {
        match self {
            Self::Ip(address) => address.port,
            Self::Ib(ib) => {
                let [.., high, low] = (ib.service & ib.mask).to_be_bytes();
                u16::from_be_bytes([high, low])
            }
        }
    }

    /// Returns the address with a port, which may be another one.
    pub(super) fn with_port(self, port: u16) -> Self {
        match self {
            Self::Ip(address) => Self::Ip(Address { port, ..address }),
            Self::Ib(ib) => Self::Ib(IbAddress {
                service: (ib.service & ib.mask & PORT_SPACE) | u64::from(port),
                mask: u64::MAX,
                ..ib
            }),
        }
    }

    /// Returns the port space in which an id of a port space has its port, and the address with the service id of that. Of
    /// InfiniBand's family the service id decides, as far as its mask goes.
    pub(super) fn in_port_space(self, port_space: u16) -> Option<(u16, Self)> {
        let Self::Ib(ib) = self else {
            return Some((port_space, self));
        };
        let mask = ib.mask & PORT_SPACE;
        let allowed: &[u16] = match port_space {
            PS_IB => &[PS_IB, PS_TCP, PS_UDP],
            PS_TCP => &[PS_TCP],
            PS_UDP => &[PS_UDP],
            _ => &[],
        };
        let mut allowed = allowed.iter().copied();
        let space = allowed.find(|space| ib.service & mask == u64::from(*space) << 16 & mask)?;
        let service = u64::from(space) << 16 | u64::from(self.port());
        let mask = ib.mask | PORT_SPACE;
        Some((
            space,
            Self::Ib(IbAddress {
                service,
                mask,
                ..ib
            }),
        ))
    }
}

/// Returns the family of an address as it is laid out.
const fn family(bytes: &[u8; ADDRESS_SIZE]) -> u16 {
    u16::from_ne_bytes([bytes[0], bytes[1]])
}

/// Returns the bytes of an address from an offset on.
fn chunk<const N: usize>(bytes: &[u8; ADDRESS_SIZE], at: usize) -> [u8; N] {
    let mut chunk = [0; N];
    chunk.copy_from_slice(&bytes[at..at + N]);
    chunk
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
    use crate::abi::rdma_cm::PS_IPOIB;

    #[test]
    fn addresses_come_back_as_they_were_laid_out() {
        for ip in [
            IpAddr::V4(Ipv4Addr::new(127, 77, 1, 2)),
            IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0x14, 0x500, 0, 1)),
        ] {
            let address = Address { ip, port: 7174 };
            let any = SocketAddress::Ip(address);
            let (bytes, size) = any.write();
            assert_eq!(SocketAddress::read_sized(&bytes, size), Ok(any));
            assert_eq!(
                SocketAddress::read_sized(&bytes, size - 1),
                Err(Errno::EINVAL)
            );
            let to = Address { ip, port: 9 };
            assert_eq!(
                read_ip_header(&ip_header(&address, &to)),
                Some((address, ip))
            );
        }
        let address = SocketAddress::Ib(IbAddress {
            pkey: 0x8123,
            flow_info: 5,
            gid: Gid([7; 16]),
            service: 0x0106_1c06,
            mask: u64::MAX,
            scope: 9,
        });
        let (bytes, size) = address.write();
        assert_eq!(SocketAddress::read_sized(&bytes, size), Ok(address));
        assert_eq!((size, address.port()), (48, 0x1c06));
        let nothing = [0; ADDRESS_SIZE];
        assert_eq!(SocketAddress::read(&nothing), Err(Errno::EINVAL));
        assert!(SocketAddress::is_given(&bytes) && !SocketAddress::is_given(&nothing));
        assert_eq!(read_ip_header(&[0; 40]), None);
    }

    #[test]
    fn addresses_of_the_network_that_no_vf_has_are_looked_up() {
        let network = Network {
            base: Ipv4Addr::new(10, 77, 3, 0),
            prefix: 16,
        };
        let mut book = AddressBook::default();
        let looked_up = |book: &AddressBook, text: &str| {
            let found = book.to_look_up(text.parse().unwrap());
            found.map(|ip| ip.to_string())
        };
        assert_eq!(looked_up(&book, "10.77.1.1"), None);
        book.network = Some(network);
        assert_eq!(looked_up(&book, "10.77.1.1").as_deref(), Some("10.77.1.1"));
        let mapped = looked_up(&book, "::ffff:10.77.1.1");
        assert_eq!(mapped.as_deref(), Some("10.77.1.1"));
        // Programs have addresses of other networks, too.
        assert_eq!(looked_up(&book, "10.78.0.0").as_deref(), Some("10.78.0.0"));
        for none in [
            "10.77.0.0",
            "10.77.255.255",
            "127.0.0.2",
            "224.0.0.1",
            "fe80::1",
        ] {
            assert_eq!(looked_up(&book, none), None, "{none}");
        }
    }

    #[test]
    fn own_addresses_are_the_vfs_the_hosts_and_its_gid() {
        let own = Gid([1; 16]);
        let peer = Gid([2; 16]);
        let addresses = [(Ipv4Addr::new(127, 77, 1, 2), peer)];
        let book = AddressBook {
            own: Ipv4Addr::new(127, 77, 1, 1),
            aliases: vec![Ipv4Addr::new(10, 1, 0, 5)],
            gids: addresses.into_iter().collect(),
            network: None,
        };
        let gid = |text: &str| book.gid(text.parse().unwrap(), own);
        assert_eq!(gid("127.77.1.1"), Some(own));
        assert_eq!(gid("127.0.0.1"), Some(own));
        assert_eq!(gid("10.1.0.5"), Some(own));
        assert_eq!(gid("::1"), Some(own));
        assert_eq!(gid("127.77.1.2"), Some(peer));
        assert_eq!(gid("::ffff:127.77.1.2"), Some(peer));
        assert_eq!(gid("127.77.1.3"), None);
        let bindable = |text: &str| {
            let ip = text.parse().unwrap();
            let bound = book.bindable(SocketAddress::Ip(Address { ip, port: 9 }), Some(own))?;
            match bound {
                SocketAddress::Ip(bound) => Ok(bound.ip.to_string()),
                SocketAddress::Ib(_) => Err(Errno::EPROTO),
            }
        };
        assert_eq!(bindable("127.0.0.1").as_deref(), Ok("127.77.1.1"));
        assert_eq!(bindable("::1"), Ok(Ipv6Addr::from(own.0).to_string()));
        assert_eq!(bindable("10.1.0.5").as_deref(), Ok("10.1.0.5"));
        assert_eq!(bindable("0.0.0.0").as_deref(), Ok("0.0.0.0"));
        assert_eq!(bindable("127.77.1.2"), Err(Errno::EADDRNOTAVAIL));
        let ib = |gid| {
            SocketAddress::Ib(IbAddress {
                gid,
                ..IbAddress::default()
            })
        };
        assert_eq!(book.bindable(ib(own), Some(own)), Ok(ib(own)));
        assert_eq!(book.bindable(ib(peer), Some(own)), Err(Errno::ENODEV));
        assert_eq!(book.bindable(ib(LOOPBACK), None), Ok(ib(LOOPBACK)));
    }

    #[test]
    fn the_service_id_of_an_infiniband_address_chooses_the_port_space() {
        let space = |port_space, service, mask| {
            let address = IbAddress {
                service,
                mask,
                ..IbAddress::default()
            };
            let found = SocketAddress::Ib(address).in_port_space(port_space);
            found.map(|(space, address)| (space, address.port()))
        };
        let tcp = u64::from(PS_TCP) << 16;
        assert_eq!(space(PS_IB, tcp | 7, u64::MAX), Some((PS_TCP, 7)));
        assert_eq!(space(PS_IB, tcp | 7, PORT_SPACE), Some((PS_TCP, 0)));
        assert_eq!(space(PS_IB, 7, 0xffff), Some((PS_IB, 7)));
        assert_eq!(space(PS_TCP, 0, 0), Some((PS_TCP, 0)));
        assert_eq!(space(PS_UDP, tcp, u64::MAX), None);
        assert_eq!(space(PS_IPOIB, 0, 0), None);
    }
}
