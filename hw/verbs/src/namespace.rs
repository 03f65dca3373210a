//! IPv4 addresses of the network namespace of a program.

use core::net::Ipv4Addr;

use zerocopy::native_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

/// Addresses of a program that count at most: the rest is left out.
pub const MAX_NAMESPACE_ADDRESSES: usize = 8;

/// The network namespace of a program, and its IPv4 addresses: body of [`Verb::OpenCm`](crate::Verb::OpenCm).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Number of the namespace (inode of `/proc/self/ns/net`), or 0 if the program cannot read it.
    pub number: u64,
    /// Addresses of its interfaces.
    pub addresses: Vec<Ipv4Addr>,
}

impl Namespace {
    /// Returns the bytes: the number, then four for each address.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = U64::new(self.number).as_bytes().to_vec();
        let addresses = self.addresses.iter().take(MAX_NAMESPACE_ADDRESSES);
        bytes.extend(addresses.flat_map(Ipv4Addr::octets));
        bytes
    }

    /// Reads a body. One without a number has no addresses. Addresses that no node of a network can have are left out.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let Ok((number, rest)) = U64::read_from_prefix(bytes) else {
            return Self::default();
        };
        let addresses = rest.as_chunks::<4>().0.iter().copied().map(Ipv4Addr::from);
        Self {
            number: number.get(),
            addresses: addresses
                .filter(|ip| is_of_a_node(*ip))
                .take(MAX_NAMESPACE_ADDRESSES)
                .collect(),
        }
    }
}

/// Returns `true` for an address that a node can have on a network.
pub(crate) const fn is_of_a_node(ip: Ipv4Addr) -> bool {
    let is_of_many = ip.is_multicast() || ip.is_broadcast();
    !is_of_many && !ip.is_loopback() && ip.octets()[0] != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_the_number_and_the_first_eight_addresses() {
        let addresses: Vec<Ipv4Addr> = (1..=10).map(|n| Ipv4Addr::new(10, 1, 0, n)).collect();
        let namespace = Namespace {
            number: 4_026_531_840,
            addresses: addresses.clone(),
        };
        let bytes = namespace.encode();
        assert_eq!(bytes.len(), 8 + 8 * 4);
        let read = Namespace::decode(&bytes);
        assert_eq!(read.number, namespace.number);
        assert_eq!(read.addresses, addresses[..8]);
    }

    #[test]
    fn bytes_that_are_no_addresses_of_nodes_are_left_out() {
        assert_eq!(Namespace::decode(b""), Namespace::default());
        assert_eq!(Namespace::decode(b"1234567"), Namespace::default());
        let body = |ips: &[[u8; 4]]| [&[1; 8][..], ips.concat().as_slice(), &[9; 3]].concat();
        for strange in [[127, 0, 0, 1], [0, 1, 2, 3], [224, 0, 0, 1], [255; 4]] {
            let read = Namespace::decode(&body(&[strange, [10, 0, 0, 2]]));
            assert_eq!(read.addresses, [Ipv4Addr::new(10, 0, 0, 2)], "{strange:?}");
        }
    }
}
