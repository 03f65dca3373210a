//! Gateways: where a fabric ends and something else goes on.

use std::collections::VecDeque;

use ib_vtime::Instant;
use ib_wire::{Guid, PortNum, Vl};

use crate::link::Place;
use crate::{DropReason, Frame, HcaConfig, Lanes, Node, PortConfig};

/// Packets that may wait for the link of a gateway; more are lost, and counted.
const GATEWAY_DEPTH: usize = 4096;

/// The far end of one link that leaves the fabric ([`Fabric::add_gateway`](crate::Fabric::add_gateway)).
#[derive(Debug)]
pub(crate) struct Gateway {
    /// The port that the link's training works on.
    pub(crate) node: Node,
    /// What left the fabric, with the places that it keeps on the link.
    arrived: VecDeque<(Place, Frame)>,
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

    /// Takes the oldest packet that left the fabric here on some lanes.
    pub(crate) fn take(&mut self, lanes: Lanes) -> Option<(Place, Frame)> {
        let mut arrived = self.arrived.iter();
        let next = arrived.position(|(_, frame)| lanes.contains(frame.lane()))?;
        self.arrived.remove(next)
    }

    /// Forgets the packets that wait for the link.
    pub(crate) fn forget_leaving(&mut self) {
        self.leaving.clear();
    }

    /// Returns the packets of a lane that wait for the link.
    pub(crate) fn leaving(&self, lane: Vl) -> usize {
        let on_lane = self.leaving.iter().filter(|frame| frame.lane() == lane);
        on_lane.count()
    }

    pub(crate) fn arrive(&mut self, place: Place, frame: Frame) {
        self.arrived.push_back((place, frame));
    }

    pub(crate) fn leave(&mut self, now: Instant, frame: Frame) {
        if self.leaving.len() < GATEWAY_DEPTH {
            self.leaving.push_back(frame.without_source());
        } else {
            self.node.set_now(now);
            self.node.count_drop(PortNum(1), None, DropReason::LinkFull);
        }
    }

    /// The next packet for some lanes of the link.
    pub(crate) fn next_leaving(&mut self, lanes: Lanes) -> Option<Frame> {
        let mut leaving = self.leaving.iter();
        let next = leaving.position(|frame| lanes.contains(frame.lane()))?;
        self.leaving.remove(next)
    }
}
