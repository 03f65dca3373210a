//! Options of vhca's own subnet manager: partitions, LIDs of a port, and what switches check.

use std::collections::BTreeMap;

use ib_wire::{Guid, Lmc, PKey};
use serde::{Deserialize, Deserializer};
use subnet_lite::{Membership, Partition, PartitionEnforcement, Partitions, SubnetConfig};
use thiserror::Error;

/// The member that stands for all ports that are not listed.
const ALL: &str = "ALL";
/// The member that stands for the subnet manager's own port.
const SELF: &str = "SELF";

/// Why the subnet manager cannot be configured.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SubnetError {
    /// Another subnet manager decides that.
    #[error(
        "{0} is of vhca's own subnet manager, which does not run: leave it out, or use sm = \"lite\""
    )]
    NoManager(&'static str),
    /// A member is none of the fabric.
    #[error(
        "partition {pkey}: no adapter is called {member:?}; members are adapters ({known}), port GUIDs (0x...), ALL and SELF"
    )]
    NoSuchMember {
        /// The partition.
        pkey: PKey,
        /// The member.
        member: String,
        /// Names of adapters.
        known: String,
    },
    /// Two partitions have one key.
    #[error(
        "two partitions have the P_Key {0}: give one of them another, or all members to one of them"
    )]
    Doubled(PKey),
}

/// A partition, as `[[partition]]` describes it. The words are those of OpenSM's `partitions.conf`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionSpec {
    /// P_Key; its membership bit is ignored.
    #[serde(deserialize_with = "partition_key")]
    pub pkey: PKey,
    /// Whether the SA creates the partition's IPoIB broadcast group.
    #[serde(default)]
    pub ipoib: bool,
    /// Membership of adapters by name, of ports by GUID, and of `ALL` and `SELF`.
    #[serde(default)]
    pub members: BTreeMap<String, MemberKind>,
}

/// Membership of a port in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberKind {
    /// Talks to full members only.
    Limited,
    /// Talks to all members.
    Full,
}

impl From<MemberKind> for Membership {
    fn from(kind: MemberKind) -> Self {
        match kind {
            MemberKind::Limited => Self::Limited,
            MemberKind::Full => Self::Full,
        }
    }
}

/// Directions in which the switch ports in front of hosts check P_Keys; OpenSM's `part_enforce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartEnforce {
    /// Packets from and to hosts.
    Both,
    /// Packets from hosts.
    In,
    /// Packets to hosts.
    Out,
    /// None.
    Off,
}

/// Options of the subnet manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetOptions {
    /// Partitions besides the default one, or in its place.
    pub partitions: Vec<PartitionSpec>,
    /// LIDs of each host's port, as a power of two; 0 by default.
    pub lmc: Option<Lmc>,
    /// Directions in which leaf switches check P_Keys; none by default.
    pub part_enforce: Option<PartEnforce>,
}

impl SubnetOptions {
    /// Checks that nothing is set, because another subnet manager runs.
    pub(super) fn check_unused(&self) -> Result<(), SubnetError> {
        for (is_given, name) in [
            (!self.partitions.is_empty(), "[[partition]]"),
            (self.lmc.is_some(), "lmc"),
            (self.part_enforce.is_some(), "part_enforce"),
        ] {
            if is_given {
                return Err(SubnetError::NoManager(name));
            }
        }
        Ok(())
    }

    /// Returns the configuration of the manager on a port, given the port GUIDs of each adapter by name.
    pub(super) fn config(
        &self,
        manager: Guid,
        adapters: &BTreeMap<&str, Vec<Guid>>,
    ) -> Result<SubnetConfig, SubnetError> {
        let mut partitions: Vec<Partition> = Vec::new();
        for spec in &self.partitions {
            let partition = spec.partition(manager, adapters)?;
            let base = partition.pkey.base();
            if partitions.iter().any(|other| other.pkey.base() == base) {
                return Err(SubnetError::Doubled(spec.pkey));
            }
            partitions.push(partition);
        }
        let is_default = |partition: &Partition| partition.pkey.base() == PKey::DEFAULT_FULL.base();
        if !partitions.iter().any(is_default) {
            partitions.insert(0, Partition::default_full());
        }
        let enforcement = match self.part_enforce.unwrap_or(PartEnforce::Off) {
            PartEnforce::Both => PartitionEnforcement::BOTH,
            PartEnforce::In => PartitionEnforcement::INBOUND,
            PartEnforce::Out => PartitionEnforcement::OUTBOUND,
            PartEnforce::Off => PartitionEnforcement::OFF,
        };
        Ok(SubnetConfig {
            partitions: Partitions::new(partitions),
            lmc: self.lmc.unwrap_or_default(),
            partition_enforcement: enforcement,
            ..SubnetConfig::default()
        })
    }
}

impl PartitionSpec {
    fn partition(
        &self,
        manager: Guid,
        adapters: &BTreeMap<&str, Vec<Guid>>,
    ) -> Result<Partition, SubnetError> {
        let mut members = BTreeMap::new();
        if self.pkey.base() == PKey::DEFAULT_FULL.base() {
            // By the default partition the SA is reached, and of limited members only full ones take answers.
            members.insert(manager, Membership::Full);
        }
        // Ports by GUID come last: they are said more exactly than adapters by name.
        let (by_guid, by_name): (Vec<_>, Vec<_>) =
            (self.members.iter()).partition(|(member, _)| member.starts_with("0x"));
        for (member, kind) in by_name.into_iter().chain(by_guid) {
            let membership = Membership::from(*kind);
            let ports = match member.as_str() {
                ALL => continue,
                SELF => vec![manager],
                name => match (guid(name), adapters.get(name)) {
                    (Some(guid), _) => vec![guid],
                    (None, Some(ports)) => ports.clone(),
                    (None, None) => return Err(self.no_such_member(name, adapters)),
                },
            };
            members.extend(ports.into_iter().map(|port| (port, membership)));
        }
        let plain = Partition::default_full();
        Ok(Partition {
            pkey: self.pkey,
            others: self.members.get(ALL).copied().map(Membership::from),
            members,
            ipoib: plain.ipoib.filter(|_| self.ipoib),
            ..plain
        })
    }

    fn no_such_member(&self, member: &str, adapters: &BTreeMap<&str, Vec<Guid>>) -> SubnetError {
        let known: Vec<&str> = adapters.keys().copied().collect();
        SubnetError::NoSuchMember {
            pkey: self.pkey,
            member: member.to_owned(),
            known: known.join(", "),
        }
    }
}

fn guid(text: &str) -> Option<Guid> {
    let digits = text.strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok().map(Guid::new)
}

fn partition_key<'de, D: Deserializer<'de>>(from: D) -> Result<PKey, D::Error> {
    let number = u16::deserialize(from)?;
    let pkey = PKey::new(number);
    if pkey.is_valid() {
        Ok(pkey)
    } else {
        let why = format!(
            "{number:#06x} is no P_Key: they go from 0x0001 to 0x7fff, with or without the highest bit"
        );
        Err(serde::de::Error::custom(why))
    }
}

fn lmc_of(number: u8) -> Result<Lmc, String> {
    let why = || format!("{number} is no LMC: a port has 2^LMC LIDs, and LMC goes from 0 to 7");
    Lmc::new(number).ok_or_else(why)
}

/// Reads an LMC from a flag.
///
/// # Errors
/// The reason why the text is none.
pub fn parse_lmc(text: &str) -> Result<Lmc, String> {
    let number = text.parse::<u8>();
    lmc_of(number.map_err(|error| error.to_string())?)
}

/// Reads an LMC from a file.
pub(super) fn lmc<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Lmc>, D::Error> {
    let number = u8::deserialize(from)?;
    lmc_of(number).map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANAGER: Guid = Guid::new(1);

    fn spec(text: &str) -> PartitionSpec {
        toml::from_str(text).unwrap()
    }

    fn config(specs: &[&str]) -> Result<SubnetConfig, SubnetError> {
        let adapters = [
            ("mgmt", vec![MANAGER]),
            ("H1", vec![Guid::new(2), Guid::new(3)]),
        ];
        let options = SubnetOptions {
            partitions: specs.iter().map(|text| spec(text)).collect(),
            ..SubnetOptions::default()
        };
        options.config(MANAGER, &adapters.into())
    }

    #[test]
    fn members_are_named_by_adapter_by_guid_and_by_the_words_of_opensm() {
        let tenant = "pkey = 1\nmembers = { H1 = \"limited\", 0x3 = \"full\" }";
        let closed = "pkey = 0x7fff\nipoib = true\nmembers = { ALL = \"limited\" }";
        for (specs, port, keys) in [
            (&[][..], 2, &[0xffff][..]),
            (&[tenant], 2, &[0xffff, 0x0001]),
            (&[tenant], 3, &[0xffff, 0x8001]),
            (&[tenant], 1, &[0xffff]),
            (&[tenant, closed], 2, &[0x7fff, 0x0001]),
            (&[tenant, closed], 1, &[0xffff]),
            (
                &["pkey = 0x8002\nmembers = { SELF = \"full\" }"],
                1,
                &[0xffff, 0x8002],
            ),
        ] {
            let partitions = config(specs).unwrap().partitions;
            let held = partitions.table(Guid::new(port), &[PKey::INVALID; 3]);
            let held: Vec<u16> = held
                .iter()
                .map(|key| key.get())
                .filter(|key| *key != 0)
                .collect();
            assert_eq!(held, keys, "{specs:?} {port}");
        }
    }

    #[test]
    fn what_is_no_partition_is_refused_with_the_reason() {
        let unknown = config(&["pkey = 1\nmembers = { H7 = \"full\" }"]).unwrap_err();
        assert!(unknown.to_string().contains("(H1, mgmt)"), "{unknown}");
        let doubled = config(&["pkey = 1", "pkey = 0x8001"]).unwrap_err();
        assert_eq!(doubled, SubnetError::Doubled(PKey::new(0x8001)));
        for (text, why) in [
            ("pkey = 0x8000", "0x8000 is no P_Key"),
            ("pkey = 65536", "invalid value"),
            (
                "pkey = 1\nmembers = { ALL = \"half\" }",
                "unknown variant `half`",
            ),
            ("members = {}", "missing field `pkey`"),
        ] {
            let error = toml::from_str::<PartitionSpec>(text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn options_of_a_manager_that_does_not_run_are_refused() {
        let lmc = SubnetOptions {
            lmc: Lmc::new(1),
            ..SubnetOptions::default()
        };
        assert_eq!(lmc.check_unused(), Err(SubnetError::NoManager("lmc")));
        assert_eq!(SubnetOptions::default().check_unused(), Ok(()));
    }
}
