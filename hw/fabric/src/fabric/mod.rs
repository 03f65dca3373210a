//! The fabric: nodes, links, and the packets between them.

mod gateways;
mod hold;
mod links;
mod port0;
mod route;
mod taps;
mod traffic;
mod whole;

use std::collections::VecDeque;

use ib_vtime::{Instant, Secret, SecretNumbers, TimerKey, TimerQueue};
use ib_wire::notice::TrapNumber;
use ib_wire::{PortNum, Vl};
use thiserror::Error;

pub use route::Travelling;

use self::whole::Hop;
use crate::gateway::Gateway;
use crate::link::{Direction, DirectionId, Link, Place};
use crate::switch::{Output, Outputs, Switch};

use crate::{
    ChannelAdapter, DropReason, EndNode, Endpoint, FaultCounters, FaultPlan, Frame, HcaConfig,
    LinkConfig, LinkId, LinkState, Node, NodeKind, Pace, PhysicalPort, SwitchConfig, TapId,
    TapPoint, Tapped,
};

/// Work that one call to [`Fabric::poll`] does at most: a packet that moves is 1, one for a group [`COPIES`].
const POLL_BUDGET: u32 = 64;

/// Turns of nodes after which timers that are due by the clock fire though nodes have more to do. Fewer would let a requester's timer
/// fire, after a pause of the host, before an acknowledgement that is on its way.
const SETTLING: u32 = 64;

/// What a packet for a group counts, which a device may copy to hundreds of queue pairs.
const COPIES: u32 = 16;

/// Packets that wait to be taken from the taps at most; what passes beyond that is not seen, and
/// counted.
const MAX_TAPPED: usize = 1 << 16;

/// Names a node of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) u32);

impl NodeId {
    const fn index(self) -> usize {
        self.0 as usize
    }

    /// A port of the node.
    #[must_use]
    pub const fn port(self, port: u8) -> Endpoint {
        Endpoint {
            node: self,
            port: PortNum(port),
        }
    }
}

/// Why two ports cannot be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FabricError {
    /// There is no such node or port; a switch's port 0 has no cable.
    #[error("no port {port} on node {}", node.0)]
    NoSuchPort {
        /// The node.
        node: NodeId,
        /// The port.
        port: PortNum,
    },
    /// The port has a cable.
    #[error("port {port} of node {} has a link already", node.0)]
    PortTaken {
        /// The node.
        node: NodeId,
        /// The port.
        port: PortNum,
    },
}

/// Trouble that a port's link layer notices (IBA 7.12.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkTrouble {
    /// More local physical errors than the threshold allows: trap 129.
    LocalLinkIntegrity,
    /// Buffers overran in consecutive flow control periods: trap 130.
    BufferOverrun,
    /// The flow control watchdog ran out: trap 131.
    FlowControl,
}

#[derive(Debug)]
enum Body<D> {
    EndNode(Box<D>),
    Switch(Box<Switch>),
    Gateway(Box<Gateway>),
}

#[derive(Debug)]
struct Slot<D> {
    body: Body<D>,
    /// By port number, the direction in which the port sends.
    links: Vec<Option<DirectionId>>,
    /// The node's own timer.
    timer: Option<TimerKey>,
    /// The node is among [`Fabric::active`].
    queued: bool,
    /// The node is among [`Fabric::touched`]. What arrives for it meanwhile is another matter: it is served for that before
    /// time goes on, however far behind the caller's clock that is.
    touched: bool,
    /// Whether the node is among [`Fabric::served`].
    is_told: bool,
}

impl<D: EndNode> Slot<D> {
    /// Counts a packet that was dropped at a port.
    fn count_drop(&mut self, now: Instant, port: PortNum, reason: DropReason) {
        let node = self.node_mut();
        node.set_now(now);
        node.count_drop(port, None, reason);
    }

    fn node(&self) -> &Node {
        match &self.body {
            Body::EndNode(device) => device.node(),
            Body::Switch(switch) => &switch.node,
            Body::Gateway(gateway) => &gateway.node,
        }
    }

    fn node_mut(&mut self) -> &mut Node {
        match &mut self.body {
            Body::EndNode(device) => device.node_mut(),
            Body::Switch(switch) => &mut switch.node,
            Body::Gateway(gateway) => &mut gateway.node,
        }
    }
}

/// A packet at the end of its wire.
#[derive(Debug)]
struct Arrival {
    place: Place,
    /// The link's epoch when the packet was sent.
    epoch: u32,
    frame: Frame,
}

#[derive(Debug)]
enum Timer {
    Arrive(Arrival),
    /// A held packet has waited long enough.
    Release(DirectionId, u64),
    Trained(LinkId, u32),
    Node(NodeId),
    /// The packet at the head of a switch's queue may have waited too long.
    Head(NodeId, Output),
    /// Runs may have waited too long for a place of a lane at the gateway behind a port.
    Line(Endpoint, Vl),
}

/// A fabric of channel adapters and switches, connected by links.
///
/// The devices behind its adapters are [`EndNode`]s of one type.
///
/// Sans-I/O: [`Fabric::poll`] does what is due at the time that the caller gives, [`Fabric::poll_timeout`]
/// tells when to call it again. Everything happens in an order that depends on nothing but the
/// calls: the same calls, the same packets.
#[derive(Debug)]
pub struct Fabric<D> {
    now: Instant,
    pace: Pace,
    /// Turns of nodes since all were done, or all timers that were due.
    turns: u32,
    /// Secrets of adapters.
    secrets: SecretNumbers,
    slots: Vec<Slot<D>>,
    links: Vec<Link>,
    /// Packets that arrive now.
    arrivals: VecDeque<Arrival>,
    /// Nodes that have something to send or to be told.
    active: VecDeque<NodeId>,
    /// Nodes that the caller touched, or that have more to do at once: served when the time of the next poll is reached.
    touched: Vec<NodeId>,
    timers: TimerQueue<Timer>,
    /// Channel adapters that were served and that [`Fabric::poll_served`] has not told of yet.
    served: VecDeque<NodeId>,
    /// Reused by every packet that a switch forwards.
    outputs: Outputs,
    /// Reused by every run that goes whole.
    way: Vec<Hop>,
    taps: Vec<(TapId, TapPoint)>,
    next_tap: u32,
    tapped: VecDeque<Tapped>,
    taps_missed: u64,
    next_ticket: u64,
    /// Switches whose software on port 0 has something to receive.
    port0_ready: VecDeque<NodeId>,
}

impl<D: ChannelAdapter> Fabric<D> {
    /// Adds a channel adapter with a secret of its own.
    pub fn add_hca(&mut self, config: &HcaConfig) -> NodeId {
        let secret = self.secrets.secret();
        self.add_end_node(D::from_config(config, secret))
    }
}

impl<D: EndNode> Fabric<D> {
    /// Makes a fabric without nodes, at the origin of time. The secrets of the adapters that [`Fabric::add_hca`] adds follow
    /// from the secret.
    #[must_use]
    pub fn new(secret: impl Into<Secret>) -> Self {
        Self {
            now: Instant::ZERO,
            pace: Pace::VIRTUAL,
            turns: 0,
            secrets: secret.into().of(b"adapters").numbers(),
            slots: Vec::new(),
            links: Vec::new(),
            arrivals: VecDeque::new(),
            active: VecDeque::new(),
            touched: Vec::new(),
            timers: TimerQueue::new(),
            served: VecDeque::new(),
            outputs: Vec::new(),
            way: Vec::new(),
            taps: Vec::new(),
            next_tap: 0,
            tapped: VecDeque::new(),
            taps_missed: 0,
            next_ticket: 0,
            port0_ready: VecDeque::new(),
        }
    }

    /// Adds a device with its ports.
    pub fn add_end_node(&mut self, device: D) -> NodeId {
        self.add(Body::EndNode(Box::new(device)))
    }

    /// Adds a switch.
    pub fn add_switch(&mut self, config: &SwitchConfig) -> NodeId {
        self.add(Body::Switch(Box::new(Switch::new(config))))
    }

    fn add(&mut self, body: Body<D>) -> NodeId {
        let id = NodeId(u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
        let mut slot = Slot {
            body,
            links: Vec::new(),
            timer: None,
            queued: false,
            touched: false,
            is_told: false,
        };
        slot.links
            .resize(usize::from(slot.node().port_count()) + 1, None);
        slot.node_mut().set_now(self.now);
        self.slots.push(slot);
        id
    }

    /// Connects two ports with a cable that is plugged in; the link trains at once.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn connect(
        &mut self,
        a: Endpoint,
        b: Endpoint,
        config: LinkConfig,
    ) -> Result<LinkId, FabricError> {
        self.check_free(a)?;
        self.check_free(b)?;
        if a == b {
            return Err(FabricError::PortTaken {
                node: b.node,
                port: b.port,
            });
        }
        let link = LinkId(u32::try_from(self.links.len()).unwrap_or(u32::MAX));
        self.links.push(Link {
            ends: [a, b],
            config,
            cable: LinkState::Up,
            up: false,
            epoch: 0,
            rate: 0,
            directions: [Direction::default(), Direction::default()],
        });
        for (side, end) in (0..).zip([a, b]) {
            self.slots[end.node.index()].links[end.port.index()] = Some(DirectionId { link, side });
        }
        self.start_training(link);
        Ok(link)
    }

    fn check_free(&self, end: Endpoint) -> Result<(), FabricError> {
        let slot = self.slots.get(end.node.index());
        match slot.and_then(|slot| slot.links.get(end.port.index())) {
            Some(None) if end.port.0 != 0 => Ok(()),
            Some(Some(_)) => Err(FabricError::PortTaken {
                node: end.node,
                port: end.port,
            }),
            _ => Err(FabricError::NoSuchPort {
                node: end.node,
                port: end.port,
            }),
        }
    }

    /// Plugs a link's cable in or out.
    pub fn set_link(&mut self, link: LinkId, state: LinkState) {
        let Some(entry) = self.links.get_mut(link.index()) else {
            return;
        };
        entry.cable = state;
        match state {
            LinkState::Up => self.start_training(link),
            LinkState::Down => self.take_down(link, None),
        }
    }

    /// Plans the faults of the direction that starts at `from`; `None` ends them.
    pub fn set_faults(&mut self, from: Endpoint, plan: Option<&FaultPlan>) {
        if let Some(direction) = self.direction_from(from) {
            self.plan_faults(direction, plan);
        }
    }

    /// What the current plan of a direction has done so far; zero without one.
    #[must_use]
    pub fn fault_counters(&self, from: Endpoint) -> FaultCounters {
        self.direction_from(from)
            .and_then(|id| self.direction(id).faults.as_ref())
            .map(|faults| faults.counters())
            .unwrap_or_default()
    }

    /// Counts trouble of a port's link layer, and reports it to the SM by a trap.
    pub fn raise_link_trouble(&mut self, at: Endpoint, trouble: LinkTrouble) {
        let Some(slot) = self.slots.get_mut(at.node.index()) else {
            return;
        };
        let node = slot.node_mut();
        let Some(port) = node.port_mut(at.port) else {
            return;
        };
        let number = match trouble {
            LinkTrouble::LocalLinkIntegrity => {
                port.counters.local_link_integrity_errors += 1;
                TrapNumber::LOCAL_LINK_INTEGRITY
            }
            LinkTrouble::BufferOverrun => {
                port.counters.excessive_buffer_overruns += 1;
                TrapNumber::EXCESSIVE_BUFFER_OVERRUN
            }
            LinkTrouble::FlowControl => TrapNumber::FLOW_CONTROL_UPDATE,
        };
        node.trap_link_error(at.port, number);
        self.touch(at.node);
    }

    /// The device behind a node; `None` for switches and gateways.
    #[must_use]
    pub fn device(&self, node: NodeId) -> Option<&D> {
        match &self.slots.get(node.index())?.body {
            Body::EndNode(device) => Some(device),
            Body::Switch(_) | Body::Gateway(_) => None,
        }
    }

    /// The device behind a node, to be used; what it sends leaves with the next poll.
    pub fn device_mut(&mut self, node: NodeId) -> Option<&mut D> {
        let now = self.now;
        self.touch(node);
        match &mut self.slots.get_mut(node.index())?.body {
            Body::EndNode(device) => {
                device.node_mut().set_now(now);
                Some(device)
            }
            Body::Switch(_) | Body::Gateway(_) => None,
        }
    }

    /// Returns the device behind a node as [`Fabric::device_mut`] does, for questions and settings on which it sends nothing: the
    /// fabric does not serve the node for them.
    pub fn unserved_device_mut(&mut self, node: NodeId) -> Option<&mut D> {
        match &mut self.slots.get_mut(node.index())?.body {
            Body::EndNode(device) => Some(device),
            Body::Switch(_) | Body::Gateway(_) => None,
        }
    }

    /// The identity and the ports of a node.
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.slots.get(node.index()).map(Slot::node)
    }

    /// A port.
    #[must_use]
    pub fn port(&self, at: Endpoint) -> Option<&PhysicalPort> {
        self.node(at.node)?.port(at.port)
    }

    /// The port at the other end of a port's link.
    #[must_use]
    pub fn peer(&self, at: Endpoint) -> Option<Endpoint> {
        let id = self.direction_from(at)?;
        Some(self.links[id.link.index()].ends[1 - usize::from(id.side)])
    }

    /// The link at a port.
    #[must_use]
    pub fn link_at(&self, at: Endpoint) -> Option<LinkId> {
        self.direction_from(at).map(|id| id.link)
    }

    /// The two ends of a link.
    #[must_use]
    pub fn link_ends(&self, link: LinkId) -> Option<[Endpoint; 2]> {
        self.links.get(link.index()).map(|link| link.ends)
    }

    /// The next channel adapter that got something, or was used, since it was last told of here: its
    /// functions may have events. Others have none, so that many idle adapters cost nothing.
    pub fn poll_served(&mut self) -> Option<NodeId> {
        let node = self.served.pop_front()?;
        self.slots[node.index()].is_told = false;
        Some(node)
    }

    /// All nodes, in the order in which they were added. A gateway has the form of a channel adapter,
    /// and [`Fabric::is_gateway`] tells it from one.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, NodeKind)> + '_ {
        (0..)
            .zip(&self.slots)
            .map(|(id, slot)| (NodeId(id), slot.node().kind()))
    }

    /// All links, in the order in which they were made.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + use<D> {
        (0..u32::try_from(self.links.len()).unwrap_or(u32::MAX)).map(LinkId)
    }

    /// The time of the last poll.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Sets how much of a node's work is done at a time, and who measures it. [`Pace::VIRTUAL`] at first.
    pub const fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// Returns the work that one poll does at most, and one node of it.
    fn budget(&self) -> u32 {
        POLL_BUDGET.min(self.pace.packets())
    }

    /// Does what is due at `now`, which must not lie before the last poll's. Bounded: gives `true` if
    /// more is due and the caller should poll again with the same time.
    pub fn poll(&mut self, now: Instant) -> bool {
        let mut left = self.budget();
        let is_timed = self.pace.is_timed();
        if is_timed {
            // A node that is never done keeps neither those that the caller touched from being served, nor timers.
            self.activate_touched();
        }
        while left > 0 {
            let done = if let Some(arrival) = self.arrivals.pop_front() {
                self.arrive(arrival)
            } else if is_timed && self.turns >= SETTLING {
                match self.fire_due(now) {
                    Some(work) => work,
                    None => {
                        self.turns = 0;
                        0
                    }
                }
            } else if let Some(node) = self.active.pop_front() {
                self.turns += 1;
                self.serve(node)
            } else if let Some(work) = self.fire_due(now) {
                work
            } else {
                self.turns = 0;
                self.now = self.now.max(now);
                if self.touched.is_empty() {
                    return false;
                }
                self.activate_touched();
                1
            };
            left = left.saturating_sub(done);
        }
        true
    }

    fn activate_touched(&mut self) {
        for node in core::mem::take(&mut self.touched) {
            self.slots[node.index()].touched = false;
            self.activate(node);
        }
    }

    /// Carries out the next timer that is due. Returns how much work that was.
    fn fire_due(&mut self, now: Instant) -> Option<u32> {
        let (key, timer) = self.timers.pop_due(now)?;
        // A node with more to do than the caller's clock has time for would else keep the fabric at its own time.
        let is_node = matches!(timer, Timer::Node(_));
        let at = if is_node { now } else { key.deadline() };
        self.now = self.now.max(at);
        Some(self.fire(timer))
    }

    /// Returns `true` if more is due than to serve the nodes that the caller touched.
    #[must_use]
    pub fn is_behind(&self, now: Instant) -> bool {
        let next = self.timers.next_deadline();
        let is_due = next.is_some_and(|next| next <= now);
        is_due || !self.arrivals.is_empty() || !self.active.is_empty()
    }

    /// When [`Fabric::poll`] wants to be called next; a time that has passed means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let busy = !self.arrivals.is_empty() || !self.active.is_empty() || !self.touched.is_empty();
        if busy {
            Some(self.now)
        } else {
            self.timers.next_deadline()
        }
    }

    fn fire(&mut self, timer: Timer) -> u32 {
        match timer {
            Timer::Arrive(arrival) => return self.arrive(arrival),
            Timer::Release(direction, ticket) => self.release(direction, ticket),
            Timer::Trained(link, epoch) => self.trained(link, epoch),
            Timer::Head(node, output) => self.check_head(node, output),
            Timer::Line(near, lane) => self.check_line(near, lane),
            Timer::Node(node) => {
                self.slots[node.index()].timer = None;
                self.activate(node);
            }
        }
        1
    }

    /// Has a node served after the caller's change.
    fn touch(&mut self, node: NodeId) {
        if let Some(slot) = self.slots.get_mut(node.index())
            && !core::mem::replace(&mut slot.touched, true)
        {
            self.touched.push(node);
        }
    }

    /// Has a node served after an event.
    fn activate(&mut self, node: NodeId) {
        let slot = &mut self.slots[node.index()];
        if !core::mem::replace(&mut slot.queued, true) {
            self.active.push_back(node);
        }
    }

    fn direction_from(&self, from: Endpoint) -> Option<DirectionId> {
        *self
            .slots
            .get(from.node.index())?
            .links
            .get(from.port.index())?
    }

    fn direction(&self, id: DirectionId) -> &Direction {
        &self.links[id.link.index()].directions[usize::from(id.side)]
    }

    fn direction_mut(&mut self, id: DirectionId) -> &mut Direction {
        &mut self.links[id.link.index()].directions[usize::from(id.side)]
    }
}

#[cfg(test)]
pub(crate) mod tests;
