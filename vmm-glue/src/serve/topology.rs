//! Which fabric is served.

use core::fmt;
use core::str::FromStr;

use emulated_hca::{PlannedPort, Topology};
use thiserror::Error;

/// A fabric by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TopologySpec {
    /// `single`: `mgmt` and four hosts, `host-1` to `host-4`, at one switch, `S1`.
    Single,
    /// `two-switch`: [`Topology::two_switches`] with two hosts at each switch, and `mgmt` at the first.
    #[default]
    TwoSwitch,
    /// `three-switch`: [`Topology::three_switches`].
    ThreeSwitch,
    /// `fat-tree:K:HOSTS`: [`Topology::fat_tree`].
    FatTree {
        /// Ports of a switch.
        k: u8,
        /// Hosts.
        hosts: usize,
    },
}

/// Why there is no such fabric.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// No topology has that name.
    #[error(
        "there is no topology {0:?}; there are single, two-switch, three-switch, and fat-tree:K:HOSTS"
    )]
    Unknown(String),
    /// A fat tree has no such size.
    #[error("fat-tree:K:HOSTS needs an even K from 2 to 64 and 1 to K*K*K/4 hosts")]
    FatTree,
}

impl TopologySpec {
    /// The plan of the fabric.
    #[must_use]
    pub fn plan(&self) -> Topology {
        match self {
            Self::Single => single(),
            Self::TwoSwitch => two_switch(),
            Self::ThreeSwitch => Topology::three_switches(),
            Self::FatTree { k, hosts } => Topology::fat_tree(*k, *hosts),
        }
    }
}

fn single() -> Topology {
    let mut plan = Topology::default();
    let switch = plan.add_switch("S1", 8);
    let names = ["mgmt", "host-1", "host-2", "host-3", "host-4"];
    for (port, name) in (1..).zip(names) {
        let host = plan.add_hca(name, 1);
        plan.connect(PlannedPort::Hca(host, 1), PlannedPort::Switch(switch, port));
    }
    plan
}

fn two_switch() -> Topology {
    const MGMT_PORT: u8 = 6;
    let mut plan = Topology::two_switches(2);
    let mgmt = plan.add_hca("mgmt", 1);
    plan.connect(PlannedPort::Hca(mgmt, 1), PlannedPort::Switch(0, MGMT_PORT));
    plan
}

impl FromStr for TopologySpec {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, TopologyError> {
        match text {
            "single" => Ok(Self::Single),
            "two-switch" => Ok(Self::TwoSwitch),
            "three-switch" => Ok(Self::ThreeSwitch),
            _ => match text.strip_prefix("fat-tree:") {
                Some(size) => fat_tree(size).ok_or(TopologyError::FatTree),
                None => Err(TopologyError::Unknown(text.to_owned())),
            },
        }
    }
}

fn fat_tree(size: &str) -> Option<TopologySpec> {
    let (k, hosts) = size.split_once(':')?;
    let (k, hosts): (u8, usize) = (k.parse().ok()?, hosts.parse().ok()?);
    let room = usize::from(k).pow(3) / 4;
    let exists = k.is_multiple_of(2) && (2..=64).contains(&k) && (1..=room).contains(&hosts);
    exists.then_some(TopologySpec::FatTree { k, hosts })
}

impl fmt::Display for TopologySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.write_str("single"),
            Self::TwoSwitch => f.write_str("two-switch"),
            Self::ThreeSwitch => f.write_str("three-switch"),
            Self::FatTree { k, hosts } => write!(f, "fat-tree:{k}:{hosts}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_makes_its_fabric_with_every_link() {
        for (name, hcas, switches) in [
            ("single", 5, 1),
            ("two-switch", 5, 2),
            ("three-switch", 3, 3),
            ("fat-tree:4:16", 16, 20),
        ] {
            let spec: TopologySpec = name.parse().unwrap();
            assert_eq!(spec.to_string(), name);
            let plan = spec.plan();
            assert_eq!((plan.hcas.len(), plan.switches.len()), (hcas, switches));
            assert_eq!(plan.build(1).1.links.len(), plan.links.len(), "{name}");
        }
    }

    #[test]
    fn names_and_sizes_that_do_not_exist_are_refused() {
        let parse = str::parse::<TopologySpec>;
        assert_eq!(parse("ring"), Err(TopologyError::Unknown("ring".into())));
        for size in ["3:1", "4:17", "4:0", "66:1", "4", "x:y", "0:0"] {
            let name = format!("fat-tree:{size}");
            assert_eq!(parse(&name), Err(TopologyError::FatTree), "{name}");
        }
    }
}
