//! What a VF's software is made from.

use ib_endpoint::{EndPortConfig, MadAgentConfig};
use ib_wire::PortNum;

/// What a [`VirtualHca`](super::VirtualHca) is made from. Each value is that of every port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualHcaConfig {
    /// Communication and transaction ids follow from it.
    pub seed: u64,
    /// Buffers of each proxy QP, each way.
    pub depth: u32,
    /// The most MADs that one call to [`VirtualHca::poll`](super::VirtualHca::poll) receives, and
    /// sends, on each proxy QP.
    pub budget: usize,
    /// Events that may wait to be pulled. While as many wait, the machines below keep theirs, each
    /// within bounds of its own.
    pub max_pending: usize,
}

impl VirtualHcaConfig {
    /// Defaults, with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            depth: 128,
            budget: 256,
            max_pending: 4096,
        }
    }

    /// What the software of one port is made from.
    pub(super) fn end_port(&self, port: PortNum, seed: u64, smi: bool) -> EndPortConfig {
        EndPortConfig {
            smi: smi.then(|| MadAgentConfig::smi(seed)),
            depth: self.depth,
            budget: self.budget,
            max_pending: self.max_pending,
            ..EndPortConfig::host(port, seed)
        }
    }
}
