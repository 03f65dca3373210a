//! Words as arguments, with the help of each, for values that go over the control socket or stand in the options file.
//!
//! The values are of crates that know no command line: their names are the ones in JSON and TOML.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error;
use vhca_control::Subject;

/// A word and its help.
type Word = (&'static str, &'static str);

/// Subjects of `vhca show`.
const SUBJECTS: &[Word] = &[
    (
        "vfs",
        "VFs: reasons of their ports' states, usage and quotas; and the VMMs that have them",
    ),
    (
        "ports",
        "Ports of all nodes: addresses, states, width and speed; and table sizes of shared ports",
    ),
    ("tids", "Transactions of MADs"),
    ("cm", "Communication ids"),
    ("mcast", "Multicast groups, and subscriptions to notices"),
    ("guids", "GUIDs of VFs"),
    ("pkeys", "P_Key tables"),
    ("counters", "MADs by verdict"),
    (
        "drops",
        "Packets that switches, adapters and VFs dropped, by reason",
    ),
    (
        "qps",
        "Queue pairs: services, states, peers, PSNs, retransmissions and bytes",
    ),
    (
        "programs",
        "VFs that are offered to programs on libibverbs: addresses for the RDMA CM, and the processes that have them",
    ),
    (
        "fabric",
        "Nodes, and links with their states, width and speed",
    ),
    (
        "sm",
        "Subnet managers: states, priorities and sweeps; and partitions of the embedded one",
    ),
];

/// Grains of metrics.
pub(super) const GRAINS: &[Word] = &[
    ("total", "One sum over everything for each metric"),
    (
        "host",
        "Sums over the VFs of each port that they share, and the ports of all nodes",
    ),
    ("vf", "Every VF, every group and every port"),
];

/// Rights of VFs.
pub(super) const RIGHTS: &[Word] = &[
    (
        "perf_mgt",
        "Ask for performance counters, also of its own port",
    ),
    (
        "vendor",
        "Ask and answer in the vendors' classes, as ibping does",
    ),
    (
        "smi",
        "Send SMPs, from the VF's next start on. Only where some VF had the right when the service began: the PF context then has QP0 of its ports, and programs have not",
    ),
    (
        "serve",
        "Answer requests of the SA's and the device management's class",
    ),
    ("trap", "Send traps"),
];

/// States of a VF's port that an administrator can set.
pub(super) const STATES: &[Word] = &[("auto", "Up whenever it can be"), ("disable", "Down")];

/// Subnet managers.
pub(super) const MANAGERS: &[Word] = &[
    (
        "lite",
        "The subnet manager of this project, on the management host",
    ),
    ("none", "None: a subnet manager attaches by a socket"),
];

/// Origins of VFs' GUIDs.
pub(super) const GUIDS: &[Word] = &[
    ("sm", "The SA gives each VF one"),
    (
        "hardware",
        "The subnet manager writes them to the ports' tables unasked",
    ),
    ("none", "VFs have none until an administrator sets one"),
];

/// Directions in which switches check P_Keys.
pub(super) const DIRECTIONS: &[Word] = &[
    ("both", "Packets from and to hosts"),
    ("in", "Packets from hosts"),
    ("out", "Packets to hosts"),
    ("off", "None"),
];

/// Returns a parser of words, each of which is the name of a value.
pub(super) fn words<T>(words: &'static [Word]) -> impl TypedValueParser<Value = T>
where
    T: for<'n> Deserialize<'n> + Clone + Send + Sync + 'static,
{
    values(words.iter().map(value))
}

/// Returns a parser of the subjects of `vhca show`.
pub(super) fn subjects() -> impl TypedValueParser<Value = Subject> {
    values(SUBJECTS.iter().map(|word| match word.0 {
        // The subject's name in former versions.
        "programs" => value(word).alias("addresses"),
        _ => value(word),
    }))
}

fn value((word, help): &Word) -> PossibleValue {
    PossibleValue::new(*word).help(*help)
}

fn values<T>(values: impl Iterator<Item = PossibleValue>) -> impl TypedValueParser<Value = T>
where
    T: for<'n> Deserialize<'n> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(values)
        .try_map(|word| T::deserialize(IntoDeserializer::<Error>::into_deserializer(word.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_has_a_word() {
        let named = SUBJECTS.iter().map(|(word, _)| {
            Subject::deserialize(IntoDeserializer::<Error>::into_deserializer(*word))
        });
        assert!(named.eq(Subject::ALL.map(Ok)));
    }
}
