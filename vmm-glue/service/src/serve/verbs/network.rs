//! The IPv4 network from which VFs of programs have their addresses for the RDMA CM.

use core::fmt;
use core::str::FromStr;
use std::net::Ipv4Addr;

use serde::Deserialize;
use thiserror::Error;
use verbs_link::Network;
use vf_tunnel::VfId;

/// An IPv4 network that holds an address for each VF: the VF's number in the lowest byte, the number of its host, from 1 on,
/// above it. Bits of the text behind the length are added to each address, so that several services have parts of one network.
///
/// All of the default's addresses are the host itself, so that programs find a VF by the RDMA CM and its host by TCP at the
/// same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct VerbsNetwork(
    /// Its base is the address to which the numbers of hosts and VFs are added.
    Network,
);

/// Text that is no network of at least 65,536 addresses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no network for VFs: say ADDRESS/LENGTH with a length of 8 to 16 and 0 as the lowest byte, such as 127.77.0.0/16"
)]
pub struct NoVerbsNetwork(String);

impl Default for VerbsNetwork {
    fn default() -> Self {
        Self(Network {
            base: Ipv4Addr::new(127, 77, 0, 0),
            prefix: 16,
        })
    }
}

impl VerbsNetwork {
    /// Returns the address of a VF of the host of this index. `None` if the network has none left for the host.
    pub(super) fn address(self, host: usize, vf: VfId) -> Option<Ipv4Addr> {
        let (base, host_bits) = (self.0.base.to_bits(), self.0.host_bits());
        let host = u32::try_from(host).ok()?.checked_add(1)?;
        let vf = u32::from(u8::try_from(vf.get()).ok()?);
        let offset = host.checked_mul(256)?.checked_add(vf)?;
        let offset = (base & host_bits).checked_add(offset)?;
        (offset <= host_bits).then(|| Ipv4Addr::from_bits(base & !host_bits | offset))
    }

    /// Returns the network if nodes outside of the service can have addresses of it: guests and other services. Of loopback they
    /// cannot, since Linux refuses such addresses on a network (`validate_ipv4_net_dev`).
    pub(super) fn beyond(self) -> Option<Network> {
        (!self.0.base.is_loopback()).then_some(self.0)
    }
}

impl fmt::Display for VerbsNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.base, self.0.prefix)
    }
}

impl FromStr for VerbsNetwork {
    type Err = NoVerbsNetwork;

    fn from_str(text: &str) -> Result<Self, NoVerbsNetwork> {
        let network = || {
            let (base, prefix) = text.split_once('/')?;
            let base: Ipv4Addr = base.parse().ok()?;
            let prefix = prefix
                .parse()
                .ok()
                .filter(|prefix| (8..=16).contains(prefix))?;
            let [.., lowest] = base.octets();
            (lowest == 0).then_some(Self(Network { base, prefix }))
        };
        network().ok_or_else(|| NoVerbsNetwork(text.to_owned()))
    }
}

impl TryFrom<String> for VerbsNetwork {
    type Error = NoVerbsNetwork;

    fn try_from(text: String) -> Result<Self, NoVerbsNetwork> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vf_of_each_host_has_an_address() {
        let vf = |number| VfId::new(number).unwrap();
        let network = VerbsNetwork::default();
        let at = |host, number| network.address(host, vf(number));
        assert_eq!(at(0, 1), Some(Ipv4Addr::new(127, 77, 1, 1)));
        assert_eq!(at(254, 254), Some(Ipv4Addr::new(127, 77, 255, 254)));
        assert_eq!(at(255, 1), None);
        assert_eq!(at(usize::MAX, 1), None);
        let network: VerbsNetwork = "10.77.100.0/16".parse().unwrap();
        let at = |host, number| network.address(host, vf(number));
        assert_eq!(at(0, 1), Some(Ipv4Addr::new(10, 77, 101, 1)));
        assert_eq!(at(154, 1), Some(Ipv4Addr::new(10, 77, 255, 1)));
        assert_eq!(at(155, 1), None);
        let network: VerbsNetwork = "10.0.0.0/8".parse().unwrap();
        let at = |host, number| network.address(host, vf(number));
        assert_eq!(at(255, 1), Some(Ipv4Addr::new(10, 1, 0, 1)));
        assert_eq!(at(65_535, 1), None);
    }

    #[test]
    fn no_other_node_has_addresses_of_loopback() {
        assert_eq!(VerbsNetwork::default().beyond(), None);
        let network: VerbsNetwork = "10.77.100.0/16".parse().unwrap();
        let beyond = network.beyond().unwrap();
        assert!(beyond.contains(Ipv4Addr::new(10, 77, 1, 1)));
    }

    #[test]
    fn text_that_is_no_network_is_refused_with_an_example() {
        for text in [
            "",
            "127.77.0.0",
            "127.77.0.0/17",
            "127.77.0.0/7",
            "127.77.0.1/16",
            "a/16",
            "::/8",
        ] {
            let error = text.parse::<VerbsNetwork>().unwrap_err().to_string();
            assert!(error.contains("127.77.0.0/16"), "{error}");
        }
        let text = "127.76.0.0/15";
        assert_eq!(text.parse::<VerbsNetwork>().unwrap().to_string(), text);
    }
}
