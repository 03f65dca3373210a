//! What a VF's software is made from.

use ib_endpoint::EndPortConfig;
use ib_vtime::Secret;
use ib_wire::PortNum;

/// What a [`VirtualHca`](super::VirtualHca) is made from. Each value is that of every port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualHcaConfig {
    /// Communication and transaction ids follow from it.
    pub secret: Secret,
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
    /// Defaults, with this secret, or the secret of a seed.
    #[must_use]
    pub fn new(secret: impl Into<Secret>) -> Self {
        Self {
            secret: secret.into(),
            depth: 128,
            budget: 256,
            max_pending: 4096,
        }
    }

    /// What the software of one port is made from.
    pub(super) fn end_port(&self, port: PortNum, secret: Secret, smi: bool) -> EndPortConfig {
        let mut config = EndPortConfig {
            depth: self.depth,
            budget: self.budget,
            max_pending: self.max_pending,
            ..EndPortConfig::manager(port, secret)
        };
        config.smi = config.smi.filter(|_| smi);
        config
    }
}
