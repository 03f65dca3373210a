//! The channel adapter: what lies behind the ports of an HCA.
//!
//! A [`Device`] is one adapter. Its functions are lent out by [`Device::function`]; each is an
//! [`hca_api::Hca`], and the physical one an [`hca_api::FunctionManager`]. The fabric drives the
//! device through [`EndNode`].
//!
//! Calls take effect at once: a send is built and handed to the port's egress, or delivered, within
//! [`hca_api::Hca::post_send`]. While the egress is full, sends wait in their queues. Requests of connections always do: their
//! packets leave when the device is polled, in turns with those of other queue pairs, and the completion follows the answer.
//!
//! # What the device does that is not obvious
//!
//! * The destination of a datagram that carries the sender's own LID is reached inside the device,
//!   whatever the link does; a multicast packet goes both out and to the groups' local queue pairs.
//! * A proxy queue pair's peer is its tunnel queue pair, found by function and port, never by
//!   anything in the packet. No other queue pair reaches either, whatever keys it guesses. The
//!   tunnel works in every port state and with messages of up to 4096 bytes. One that is longer than
//!   the tunnel queue pair's receive fails that receive and not the queue pair.
//! * A VF's datagrams obey its virtual port: they are discarded unless it is active, carry the
//!   VF's own GID, and P_Keys come from its virtual table.

mod address;
mod backlog;
mod connected;
mod connection_counters;
mod egress;
mod foreign_peers;
mod function;
mod held;
mod hold;
mod inbound;
mod inspect;
mod management;
mod manager;
mod memory;
mod multicast;
mod qp;
mod qpn;
mod queue_pairs;
mod receive;
mod srq;
mod transmit;
mod verbs;
mod work_queue;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use hca_api::{
    AddressSpace, AsyncEvent, FunctionId, FunctionSpec, HcaError, HostMemory, Limits, Privileges,
    ResourceCounts,
};
use ib_vtime::{Instant, Secret, SecretNumbers, TimerQueue};
use ib_wire::PortNum;

pub use self::connected::Way;
pub use self::connection_counters::ConnectionCounters;
pub use self::foreign_peers::ForeignPeer;
pub use self::inspect::QpRow;

use self::egress::Egress;
use self::foreign_peers::ForeignPeers;
use self::function::FunctionState;
use self::memory::{Arrived, Gathered};
use self::multicast::MulticastTable;
use self::qpn::{QpRef, QpnTable};
use self::work_queue::SpareBytes;
use crate::{
    ChannelAdapter, DropCounters, DropReason, EndNode, Frame, FrameWriter, HcaConfig, Lanes, Node,
    PacketRun, RunHead,
};

/// Upper bounds of every function.
const LIMITS: Limits = Limits {
    max_qp: 1 << 16,
    max_qp_wr: 1 << 14,
    max_sge: 32,
    max_inline: 1024,
    max_cq: 1 << 16,
    max_cqe: 1 << 23,
    max_srq: 1 << 14,
    max_srq_wr: 1 << 14,
    max_mr: 1 << 17,
    max_mr_size: 1 << 48,
    max_mw: 1 << 17,
    max_pd: 1 << 15,
    max_av: 1 << 20,
    max_qp_rd_atom: 16,
    max_qp_init_rd_atom: 16,
    max_mcast_grp: 1 << 13,
    max_mcast_qp_attach: 248,
    max_fast_reg_pages: 512,
};

/// What a function without a quota of its own may own.
const NO_QUOTA: ResourceCounts = ResourceCounts {
    pds: LIMITS.max_pd,
    avs: LIMITS.max_av,
    cqs: LIMITS.max_cq,
    srqs: LIMITS.max_srq,
    qps: LIMITS.max_qp,
    mrs: LIMITS.max_mr,
    mws: LIMITS.max_mw,
    attachments: LIMITS.max_mcast_grp * LIMITS.max_mcast_qp_attach,
};

/// Packets that a port's egress holds before sends wait in their queues.
const EGRESS_DEPTH: usize = 64;

/// An emulated channel adapter.
#[derive(Debug)]
pub struct Device {
    node: Node,
    secrets: SecretNumbers,
    /// Indexed by function number; the PF is always there.
    functions: Vec<Option<Box<FunctionState>>>,
    /// Functions that may have events which [`Device::poll_ready`] has not told of yet.
    stirred: VecDeque<FunctionId>,
    max_functions: u16,
    qpns: QpnTable,
    groups: MulticastTable,
    /// Tunnel queue pairs of the PF, by VF, port and special queue pair; see [`tunnel_slot`].
    tunnels: Vec<Option<u32>>,
    /// Indexed by port number less one.
    egress: Vec<Egress>,
    /// Copies of what passed the tunnels, while somebody watches.
    tunnelled: Option<VecDeque<(PortNum, Frame)>>,
    /// Where messages are gathered.
    staging: Gathered,
    /// Buffers for the payload of packets of connections.
    payloads: Vec<Vec<u8>>,
    /// Packets of connections may leave in whole runs.
    sends_runs: bool,
    /// Where the bytes of waiting sends are copied to.
    spare: SpareBytes,
    /// Packets are written into the buffers of those that came.
    frames: FrameWriter,
    /// Deadlines of connections, at most one for each queue pair.
    timers: TimerQueue<QpRef>,
    foreign_peers: ForeignPeers,
    /// Packets for the device itself, see [`EndNode::take_delivered`].
    delivered: u32,
    /// Time of work for functions, see [`Device::take_spent`].
    spent: BTreeMap<FunctionId, Duration>,
}

impl Device {
    /// An adapter with only its physical function, whose memory is this process's heap. Ports are
    /// down. Keys and queue pair numbers follow from the secret: the same seed gives the same ones.
    #[must_use]
    pub fn new(config: &HcaConfig, secret: impl Into<Secret>) -> Self {
        Self::with_memory(config, secret, Box::new(HostMemory::new()))
    }

    /// Replaces the physical function's memory, while it is not used.
    ///
    /// # Errors
    /// [`HcaError::InUse`] if a region is registered there.
    pub fn set_memory(&mut self, memory: Box<dyn AddressSpace>) -> Result<(), HcaError> {
        let pf = self.functions.first_mut().and_then(Option::as_mut);
        let pf = pf.filter(|pf| pf.memory.region_count() == 0);
        pf.ok_or(HcaError::InUse)?.memory.set_space(memory);
        Ok(())
    }

    /// As [`Device::new`], with the physical function's memory given.
    #[must_use]
    pub fn with_memory(
        config: &HcaConfig,
        secret: impl Into<Secret>,
        memory: Box<dyn AddressSpace>,
    ) -> Self {
        let node = Node::channel_adapter(config);
        let mut secrets = secret.into().numbers();
        let ports = node.port_count();
        let pf = FunctionSpec {
            id: FunctionId::PF,
            node_guid: node.node_guid,
            memory,
            quota: NO_QUOTA,
        };
        let mut pf = FunctionState::new(pf, Privileges::all(), ports, secrets.secret());
        let qpns = QpnTable::new(config.max_functions, secrets.secret());
        for port in node.ports() {
            if let Some(own) = pf.port_mut(port.number) {
                own.capabilities = port.capabilities.get();
            }
        }
        Self {
            node,
            secrets,
            functions: vec![Some(Box::new(pf))],
            stirred: VecDeque::new(),
            max_functions: config.max_functions,
            qpns,
            groups: MulticastTable::default(),
            tunnels: Vec::new(),
            egress: (0..ports).map(|_| Egress::default()).collect(),
            tunnelled: None,
            staging: Gathered::default(),
            payloads: Vec::new(),
            sends_runs: true,
            spare: SpareBytes::default(),
            frames: FrameWriter::default(),
            timers: TimerQueue::new(),
            foreign_peers: ForeignPeers::default(),
            delivered: 0,
            spent: BTreeMap::new(),
        }
    }

    /// One of the adapter's functions.
    pub fn function(&mut self, id: FunctionId) -> Option<Function<'_>> {
        self.state(id).ok()?;
        Some(Function { device: self, id })
    }

    /// The next function whose event queue has something, so that who drives many functions need
    /// not look at each. A function that is given and left with events is given again when it was
    /// used, or when something happened to it.
    pub fn poll_ready(&mut self) -> Option<FunctionId> {
        while let Some(id) = self.stirred.pop_front() {
            let state = self.functions.get_mut(usize::from(id.0));
            let Some(state) = state.and_then(Option::as_deref_mut) else {
                continue;
            };
            state.stirred = false;
            if !state.events.is_empty() {
                return Some(id);
            }
        }
        None
    }

    /// Takes the time that the device has spent since the last call for packets and timers of each function, the work of the peers
    /// that took runs included. None in virtual time ([`Pace::VIRTUAL`](crate::Pace::VIRTUAL)).
    pub fn take_spent(&mut self) -> impl Iterator<Item = (FunctionId, Duration)> + use<> {
        core::mem::take(&mut self.spent).into_iter()
    }

    /// Allows or forbids that packets of connections leave in whole runs, which is allowed at first. A program cannot tell
    /// the difference.
    pub const fn set_whole_runs(&mut self, allowed: bool) {
        self.sends_runs = allowed;
    }

    /// What the device dropped, and why.
    #[must_use]
    pub const fn drops(&self) -> &DropCounters {
        self.node.drops()
    }

    fn state(&self, id: FunctionId) -> Result<&FunctionState, HcaError> {
        self.functions
            .get(usize::from(id.0))
            .and_then(Option::as_deref)
            .ok_or(HcaError::InvalidHandle)
    }

    /// A function to be changed. Whatever raises an event comes this way.
    fn state_mut(&mut self, id: FunctionId) -> Result<&mut FunctionState, HcaError> {
        let state = self
            .functions
            .get_mut(usize::from(id.0))
            .and_then(Option::as_deref_mut)
            .ok_or(HcaError::InvalidHandle)?;
        if !core::mem::replace(&mut state.stirred, true) {
            self.stirred.push_back(id);
        }
        Ok(state)
    }

    fn egress_mut(&mut self, port: PortNum) -> Option<&mut Egress> {
        self.egress.get_mut(port.index().checked_sub(1)?)
    }
}

/// One function of a [`Device`], lent to its consumer for a call or more.
///
/// It implements [`hca_api::Hca`] and [`hca_api::FunctionManager`].
#[derive(Debug)]
pub struct Function<'d> {
    device: &'d mut Device,
    id: FunctionId,
}

impl EndNode for Device {
    fn node(&self) -> &Node {
        &self.node
    }

    fn node_mut(&mut self) -> &mut Node {
        &mut self.node
    }

    fn receive(&mut self, now: Instant, port: PortNum, frame: Frame) {
        self.node.set_now(now);
        self.receive_frame(port, frame);
    }

    fn poll_transmit_on(&mut self, now: Instant, port: PortNum, lanes: Lanes) -> Option<Frame> {
        self.node.set_now(now);
        // A connection that has something to send waits for this call, whether or not packets wait, too.
        self.serve_backlog(port);
        let frame = self.next_frame(port, lanes);
        self.serve_backlog(port);
        frame
    }

    fn poll_run(&mut self, now: Instant, port: PortNum) -> Option<RunHead> {
        if !self.sends_runs {
            return None;
        }
        self.node.set_now(now);
        self.serve_backlog(port);
        let egress = self.egress.get(port.index().checked_sub(1)?)?;
        egress.front_run()?.1.head()
    }

    fn run_arrived(&mut self, port: PortNum, taken: Duration) {
        let sender = self.forget_front_run(port);
        if let Some(sender) = sender.filter(|_| self.node.pace().is_timed()) {
            self.owe(sender.function, port, taken);
        }
        self.serve_backlog(port);
    }

    fn receive_run(&mut self, now: Instant, port: PortNum, from: (&Self, PortNum)) -> bool {
        self.node.set_now(now);
        let (sender, leaves_by) = from;
        let egress = leaves_by.index().checked_sub(1);
        let egress = egress.and_then(|index| sender.egress.get(index));
        let Some((from, run, pieces)) = egress.and_then(Egress::front_run) else {
            return false;
        };
        let arrived = if pieces.is_empty() {
            Some(Arrived::Bytes(run.payload()))
        } else {
            let state = sender.state(from.function).ok();
            state.and_then(|state| state.memory.in_place(pieces))
        };
        arrived.is_some_and(|arrived| self.take_run(port, run, arrived))
    }

    fn take_front_run(&mut self, now: Instant, port: PortNum) -> Option<PacketRun> {
        self.node.set_now(now);
        let run = self.take_out_run(port);
        self.serve_backlog(port);
        run
    }

    fn receive_whole(&mut self, now: Instant, port: PortNum, run: &PacketRun) -> bool {
        self.node.set_now(now);
        self.sends_runs && self.take_run(port, run, Arrived::Bytes(run.payload()))
    }

    fn ports_changed(&mut self, now: Instant) {
        self.node.set_now(now);
        self.report_port_changes();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.egress.iter().any(|egress| egress.interrupted) {
            return Some(self.node.now());
        }
        self.timers.next_deadline()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.node.set_now(now);
        self.fire_timers(now);
        for port in 1..=self.node.port_count() {
            self.serve_backlog(PortNum(port));
        }
    }

    fn take_delivered(&mut self) -> u32 {
        core::mem::take(&mut self.delivered)
    }

    fn watch_tunnels(&mut self, watch: bool) {
        self.tunnelled = watch.then(|| self.tunnelled.take().unwrap_or_default());
    }

    fn poll_tunnelled(&mut self) -> Option<(PortNum, Frame)> {
        self.tunnelled.as_mut()?.pop_front()
    }
}

impl ChannelAdapter for Device {
    fn from_config(config: &HcaConfig, secret: Secret) -> Self {
        Self::new(config, secret)
    }
}

impl Device {
    /// Tells the physical function what changed on the ports. What its VFs are told is its decision.
    fn report_port_changes(&mut self) {
        while let Some((port, change)) = self.node.take_port_change() {
            if let Ok(pf) = self.state_mut(FunctionId::PF) {
                pf.events.raise(AsyncEvent::Port { port, change });
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
