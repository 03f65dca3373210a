//! How links come up and go down (IBA 5.3, 7.2).

use hca_api::{PhysicalState, PortState};
use ib_wire::PortNum;

use super::traffic::lost_link;
use super::{Fabric, NodeId, Timer};
use crate::link::{DirectionId, FaultInjector, LinkRate, data_rate, negotiate};
use crate::node::LinkRequest;
use crate::{
    DropReason, EndNode, Endpoint, FaultPlan, LinkConfig, LinkId, LinkState, Node, NodeKind,
    PhysicalPort, PortConfig,
};

impl<D: EndNode> Fabric<D> {
    fn ends(&self, link: LinkId) -> [Endpoint; 2] {
        self.links[link.index()].ends
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        let now = self.now;
        let node = self.slots[id.index()].node_mut();
        node.set_now(now);
        node
    }

    fn port_mut(&mut self, at: Endpoint) -> Option<&mut PhysicalPort> {
        self.node_mut(at.node).port_mut(at.port)
    }

    /// Sets what a port supports before it gets a link.
    pub(crate) fn set_supported(&mut self, at: Endpoint, config: &PortConfig) {
        if self.slots.get(at.node.index()).is_some()
            && let Some(port) = self.port_mut(at)
        {
            port.support(config);
        }
    }

    /// Starts training a link that is down, if the cable is plugged in and one port looks for the
    /// other, which is not disabled.
    pub(super) fn start_training(&mut self, link: LinkId) {
        let entry = &self.links[link.index()];
        if entry.up || entry.cable == LinkState::Down {
            return;
        }
        let (training, epoch) = (entry.config.training, entry.epoch);
        let ends = self.ends(link);
        let state = |end| self.port(end).map(|port| port.physical_state);
        let looks = |end| {
            matches!(
                state(end),
                Some(PhysicalState::Polling | PhysicalState::Training)
            )
        };
        // A sleeping port wakes when its partner looks for it (IBA volume 2, link training).
        let wakes = |end| looks(end) || state(end) == Some(PhysicalState::Sleep);
        if !ends.iter().any(|end| looks(*end)) || !ends.iter().all(|end| wakes(*end)) {
            return;
        }
        for end in ends {
            if let Some(port) = self.port_mut(end) {
                port.physical_state = PhysicalState::Training;
            }
        }
        if training.is_zero() {
            self.trained(link, epoch);
        } else {
            let at = self.now + training;
            self.timers.set(at, Timer::Trained(link, epoch));
        }
    }

    /// Brings a link up that has been trained since the given epoch.
    pub(super) fn trained(&mut self, link: LinkId, epoch: u32) {
        let entry = &self.links[link.index()];
        if entry.up || entry.epoch != epoch || entry.cable == LinkState::Down {
            return;
        }
        let [a, b] = entry.ends;
        let Some((width, speed, extended)) = self.common_rate(link) else {
            // Nothing in common: both keep looking.
            for end in [a, b] {
                if let Some(port) = self.port_mut(end) {
                    port.physical_state = PhysicalState::Polling;
                }
            }
            return;
        };
        let entry = &mut self.links[link.index()];
        entry.up = true;
        entry.epoch = entry.epoch.wrapping_add(1);
        entry.rate = data_rate(width, speed, extended);
        for end in [a, b] {
            if let Some(port) = self.port_mut(end) {
                port.physical_state = PhysicalState::LinkUp;
                port.state = PortState::Init;
                port.width_active = width;
                port.speed_active = speed;
                port.extended_speed_active = extended;
            }
            self.link_state_changed(end, None);
        }
    }

    fn common_rate(&self, link: LinkId) -> Option<LinkRate> {
        let entry = &self.links[link.index()];
        let [a, b] = entry.ends.map(|end| self.port(end));
        negotiate(a?, b?, &entry.config)
    }

    /// Returns what a link is made from.
    #[must_use]
    pub fn link_config(&self, link: LinkId) -> Option<LinkConfig> {
        self.links.get(link.index()).map(|link| link.config)
    }

    /// Exchanges what a link is made from. If its ends agree on another width or speed then, it goes down and is trained
    /// anew. Packets that are on the wire arrive before those that are sent later.
    pub fn set_link_config(&mut self, link: LinkId, config: LinkConfig) {
        if self.links.get(link.index()).is_none() {
            return;
        }
        let before = self.common_rate(link);
        let arrived = self.now + self.links[link.index()].config.latency;
        let entry = &mut self.links[link.index()];
        entry.set_config(config);
        for direction in &mut entry.directions {
            if !direction.is_empty() {
                let not_before = arrived.saturating_duration_since(self.now + config.latency);
                direction.free_at = direction.free_at.max(self.now + not_before);
            }
        }
        if self.common_rate(link) != before {
            self.take_down(link, None);
            self.start_training(link);
        }
    }

    /// Counts symbol errors at a port, as minor faults of the wire do.
    pub fn count_symbol_errors(&mut self, at: Endpoint, errors: u32) {
        let node = self.slots.get_mut(at.node.index());
        if let Some(port) = node.and_then(|slot| slot.node_mut().port_mut(at.port)) {
            port.counters.symbol_errors += u64::from(errors);
        }
    }

    /// Takes a link down: what is on the wire is lost, and both ports fall to their default states. If a manager ordered it
    /// of one of them, `by` is that one.
    pub(super) fn take_down(&mut self, link: LinkId, by: Option<Endpoint>) {
        let entry = &mut self.links[link.index()];
        let was_up = core::mem::replace(&mut entry.up, false);
        entry.epoch = entry.epoch.wrapping_add(1);
        for side in [0, 1] {
            entry.directions[side].free_at = self.now;
            for held in core::mem::take(&mut entry.directions[side].held) {
                entry.free_place(side, held.lane);
            }
        }
        for end in self.ends(link) {
            self.discard_output(end, DropReason::LinkDown);
            let Some(port) = self.port_mut(end) else {
                continue;
            };
            if port.physical_state != PhysicalState::Disabled {
                port.physical_state = port.link_down_default;
            }
            if was_up {
                lost_link(port);
                if self.node_mut(end.node).kind() == NodeKind::ChannelAdapter {
                    self.node_mut(end.node).forget_traps(end.port);
                }
                self.link_state_changed(end, by);
            }
        }
    }

    /// Tells the node that the state of one of its ports changed, unless its manager ordered just that: then it is no
    /// change to tell of (IBA 14.2.5.4, PortStateChange).
    fn link_state_changed(&mut self, at: Endpoint, by: Option<Endpoint>) {
        if by != Some(at) {
            self.node_mut(at.node).port_state_changed();
        }
        self.activate(at.node);
    }

    /// Does what the SMA of a port asked of its link.
    pub(super) fn grant(&mut self, at: Endpoint, request: LinkRequest) {
        let link = self.link_at(at);
        let state = match request {
            LinkRequest::Reset => {
                if let Some(link) = link.filter(|link| self.links[link.index()].up) {
                    self.reset(link, at);
                }
                return;
            }
            LinkRequest::Poll => PhysicalState::Polling,
            LinkRequest::Sleep => PhysicalState::Sleep,
            LinkRequest::Disable => PhysicalState::Disabled,
        };
        if at.port == PortNum(0) {
            return;
        }
        if let Some(link) = link {
            self.take_down(link, Some(at));
        }
        if let Some(port) = self.port_mut(at) {
            port.physical_state = state;
        }
        if let Some(link) = link {
            self.start_training(link);
        }
    }

    /// Takes both ends of a link to initialize. What the other end is follows from this one.
    fn reset(&mut self, link: LinkId, by: Endpoint) {
        for end in self.ends(link) {
            self.node_mut(end.node)
                .set_port_state(end.port, PortState::Init);
            self.link_state_changed(end, Some(by));
        }
    }

    pub(super) fn plan_faults(&mut self, id: DirectionId, plan: Option<&FaultPlan>) {
        self.direction_mut(id).faults = plan.map(|plan| Box::new(FaultInjector::new(plan)));
    }
}
