//! Gateways: where a fabric ends and something else goes on.

use std::collections::VecDeque;

use ib_vtime::Instant;
use ib_wire::{Guid, PortNum};

use crate::{DropReason, Frame, HcaConfig, Lanes, Node, PortConfig};

/// Packets that may wait at a gateway each way; more are lost, and counted.
const GATEWAY_DEPTH: usize = 4096;

/// The far end of one link that leaves the fabric.
///
/// A gateway is the simplest of nodes: it has one port, which trains as any other, and no agent, no
/// state of its own and no checks. Whatever arrives at it, SMPs on VL15 with their directed routes
/// included, waits to be taken as it was on the wire ([`Gateway::take`]), and what it is given goes
/// onto the wire as it is ([`Fabric::send_from`](crate::Fabric::send_from)). So whoever stands
/// behind it can play any part towards the port at the near end: its peers, and its subnet manager.
#[derive(Debug)]
pub struct Gateway {
    /// The port that the link's training works on.
    pub(crate) node: Node,
    arrived: VecDeque<Frame>,
    leaving: VecDeque<Frame>,
}

impl Gateway {
    /// A gateway whose port supports what `port` says.
    pub(crate) fn new(description: &str, port: PortConfig) -> Self {
        let config = HcaConfig {
            ports: 1,
            port,
            ..HcaConfig::new(Guid::NONE, description)
        };
        Self {
            node: Node::channel_adapter(&config),
            arrived: VecDeque::new(),
            leaving: VecDeque::new(),
        }
    }

    /// The number of a gateway's only port.
    pub const PORT: PortNum = PortNum(1);

    /// Takes the oldest packet that left the fabric here.
    pub fn take(&mut self) -> Option<Frame> {
        self.arrived.pop_front()
    }

    /// Whether packets wait to be taken.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Packets that were lost, either way, because too many waited.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.node.drops().get(DropReason::LinkFull)
    }

    pub(crate) fn arrive(&mut self, now: Instant, frame: Frame) {
        self.node.set_now(now);
        Self::keep(&mut self.node, &mut self.arrived, frame);
    }

    pub(crate) fn leave(&mut self, now: Instant, frame: Frame) {
        self.node.set_now(now);
        Self::keep(&mut self.node, &mut self.leaving, frame.without_source());
    }

    /// The next packet for some lanes of the link.
    pub(crate) fn next_leaving(&mut self, lanes: Lanes) -> Option<Frame> {
        let mut leaving = self.leaving.iter();
        let next = leaving.position(|frame| lanes.contains(frame.lane()))?;
        self.leaving.remove(next)
    }

    fn keep(node: &mut Node, queue: &mut VecDeque<Frame>, frame: Frame) {
        if queue.len() < GATEWAY_DEPTH {
            queue.push_back(frame);
        } else {
            node.count_drop(Self::PORT, None, DropReason::LinkFull);
        }
    }
}
