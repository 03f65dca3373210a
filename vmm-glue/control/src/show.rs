//! Subjects of tables, and grains of metrics.

use serde::{Deserialize, Serialize};

/// A subject of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// VFs, VMMs that have them, and nodes of simulators that are not attached yet.
    Vfs,
    /// Ports of all nodes, and table sizes of shared ports.
    Ports,
    /// Transactions.
    Tids,
    /// Communication ids.
    Cm,
    /// Multicast groups, and subscriptions to notices.
    Mcast,
    /// GUIDs of VFs.
    Guids,
    /// P_Key tables.
    Pkeys,
    /// Verdicts on MADs.
    Counters,
    /// Packets that nodes dropped, by reason.
    Drops,
    /// Queue pairs.
    Qps,
    /// VFs that are offered to programs on libibverbs.
    #[serde(alias = "addresses")]
    Programs,
    /// Nodes and links.
    Fabric,
    /// Subnet managers, and partitions of the embedded one.
    Sm,
}

impl Subject {
    /// All subjects.
    pub const ALL: [Self; 13] = [
        Self::Vfs,
        Self::Ports,
        Self::Tids,
        Self::Cm,
        Self::Mcast,
        Self::Guids,
        Self::Pkeys,
        Self::Counters,
        Self::Drops,
        Self::Qps,
        Self::Programs,
        Self::Fabric,
        Self::Sm,
    ];

    /// Returns true if its rows are nodes or parts of them, rather than what a PF has.
    #[must_use]
    pub const fn is_of_nodes(self) -> bool {
        matches!(self, Self::Ports | Self::Drops | Self::Qps | Self::Fabric)
    }

    /// Returns true if its rows can be a VF's.
    #[must_use]
    pub const fn is_of_vfs(self) -> bool {
        !matches!(self, Self::Ports | Self::Fabric | Self::Sm)
    }

    /// Returns true if its rows can have problems.
    #[must_use]
    pub const fn has_problems(self) -> bool {
        matches!(
            self,
            Self::Vfs | Self::Ports | Self::Guids | Self::Drops | Self::Fabric
        )
    }
}

/// Grain of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// One sum over everything for each metric.
    Total,
    /// Sums over the VFs of each port that they share, and the ports of all nodes.
    #[default]
    Host,
    /// Every VF, every group and every port.
    Vf,
}
