//! Which fabric is served.

use core::fmt;
use core::str::FromStr;
use std::io;
use std::path::{Path, PathBuf};

use emulated_hca::{PlannedNode, PlannedPort, SourceText, Topology, TopologyError, TopologyFile};
use thiserror::Error;

/// A fabric by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TopologySpec {
    /// `single`: `mgmt` and four hosts, `host-1` to `host-4`, at one switch, `S1`.
    Single,
    /// `two-switch`: [`Topology::two_switches_with_management`], whose first management host is called
    /// `mgmt`, and `mgmt-1` too.
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
    /// A path with a slash or a dot: a file as [`emulated_hca::TopologyFile`] reads it.
    File(PathBuf),
}

/// Why there is no such fabric.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// No topology has that name.
    #[error(
        "there is no topology {0:?}; there are single, two-switch, three-switch, fat-tree:K:HOSTS, and \
         files by a path with a slash or a dot"
    )]
    Unknown(String),
    /// A fat tree has no such size.
    #[error("fat-tree:K:HOSTS needs an even K from 2 to 64 and 1 to K*K*K/4 hosts")]
    FatTree,
}

/// Why a topology file cannot be used.
#[derive(Debug, Error)]
pub enum PlanError {
    /// It cannot be read.
    #[error("{}: cannot read the topology", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// A line of it is wrong.
    #[error(transparent)]
    Line(#[from] TopologyError),
}

/// A fabric to be built.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The plan.
    pub topology: Topology,
    /// Names of nodes besides their descriptions.
    pub names: Vec<(String, PlannedNode)>,
}

impl From<Topology> for Plan {
    fn from(topology: Topology) -> Self {
        Self {
            topology,
            names: Vec::new(),
        }
    }
}

impl TopologySpec {
    /// The plan of the fabric.
    ///
    /// # Errors
    /// [`PlanError`] with file, line and reason; only files have any.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        Ok(match self {
            Self::Single => single().into(),
            Self::TwoSwitch => two_switch(),
            Self::ThreeSwitch => Topology::three_switches().into(),
            Self::FatTree { k, hosts } => Topology::fat_tree(*k, *hosts).into(),
            Self::File(path) => return read(path),
        })
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

fn two_switch() -> Plan {
    let mut topology = Topology::two_switches_with_management();
    let first = topology
        .hcas
        .iter()
        .position(|hca| hca.description == "mgmt-1");
    let names = first.map(|place| {
        topology.hcas[place].description = "mgmt".to_owned();
        ("mgmt-1".to_owned(), PlannedNode::Hca(place))
    });
    Plan {
        topology,
        names: names.into_iter().collect(),
    }
}

fn read(path: &Path) -> Result<Plan, PlanError> {
    let unreadable = |error| PlanError::Unreadable(path.to_owned(), error);
    let source = load(path).map_err(unreadable)?;
    let file = TopologyFile::parse_with(source, |name, from| {
        let directory = Path::new(from).parent().unwrap_or_else(|| Path::new(""));
        load(&directory.join(name)).map_err(|error| error.to_string())
    })?;
    Ok(Plan {
        topology: file.topology,
        names: file.nodes,
    })
}

fn load(path: &Path) -> io::Result<SourceText> {
    Ok(SourceText {
        name: path.display().to_string(),
        text: std::fs::read_to_string(path)?,
    })
}

impl FromStr for TopologySpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "single" => Ok(Self::Single),
            "two-switch" => Ok(Self::TwoSwitch),
            "three-switch" => Ok(Self::ThreeSwitch),
            _ => match text.strip_prefix("fat-tree:") {
                Some(size) => fat_tree(size).ok_or(SpecError::FatTree),
                None if text.contains(['/', '.']) => Ok(Self::File(text.into())),
                None => Err(SpecError::Unknown(text.to_owned())),
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
            Self::File(path) => path.display().fmt(f),
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
            ("two-switch", 6, 2),
            ("three-switch", 3, 3),
            ("fat-tree:4:16", 16, 20),
        ] {
            let spec: TopologySpec = name.parse().unwrap();
            assert_eq!(spec.to_string(), name);
            let plan = spec.plan().unwrap().topology;
            assert_eq!((plan.hcas.len(), plan.switches.len()), (hcas, switches));
            let (_, built) = plan.build::<emulated_hca::hca::Device>(1);
            assert_eq!(built.links.len(), plan.links.len(), "{name}");
        }
    }

    #[test]
    fn names_and_sizes_that_do_not_exist_are_refused() {
        let parse = str::parse::<TopologySpec>;
        assert_eq!(parse("ring"), Err(SpecError::Unknown("ring".into())));
        for size in ["3:1", "4:17", "4:0", "66:1", "4", "x:y", "0:0"] {
            let name = format!("fat-tree:{size}");
            assert_eq!(parse(&name), Err(SpecError::FatTree), "{name}");
        }
    }

    #[test]
    fn a_file_is_read_with_what_it_includes_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net");
        let switch = "Switch 8 \"s\" # \"the switch\"\n[1] \"a\"[1]\n";
        std::fs::write(directory.path().join("switch"), switch).unwrap();
        std::fs::write(&path, "include \"switch\"\n\nHca 1 \"a\"\n[1] \"s\"[1]\n").unwrap();
        let spec: TopologySpec = path.to_str().unwrap().parse().unwrap();
        let plan = spec.plan().unwrap();
        assert_eq!(plan.topology.links.len(), 1);
        assert_eq!(plan.names.len(), 2);
        std::fs::write(&path, "Hca 1 \"a\"\n[9] \"s\"[1]\n").unwrap();
        let error = spec.plan().unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{}:2: ", path.display())),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let spec: TopologySpec = "/nonexistent/net".parse().unwrap();
        let error = spec.plan().unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/net: "), "{error}");
    }
}
