//! Gateways: where a fabric ends and something else goes on.

use std::collections::VecDeque;

use ib_vtime::Instant;
use ib_wire::{Guid, PortNum, Vl};

use crate::link::{LANES, Place};
use crate::{
    DropReason, Endpoint, Frame, FrameWriter, HcaConfig, Lanes, Node, PacketRun, PortConfig,
};

/// Bytes of payload of a run that a gateway takes whole, at most.
pub const MAX_GATEWAY_RUN: u32 = 1 << 16;

/// Packets that may wait for the link of a gateway; more are lost, and counted.
const GATEWAY_DEPTH: usize = 4096;

/// A packet that leaves or enters a fabric by a gateway, or consecutive packets of one message.
#[derive(Debug)]
pub enum Crossing {
    /// A packet.
    Packet(Frame),
    /// A run.
    Run(PacketRun),
}

impl From<Frame> for Crossing {
    fn from(frame: Frame) -> Self {
        Self::Packet(frame)
    }
}

impl Crossing {
    /// Returns the number of packets.
    #[must_use]
    pub const fn packets(&self) -> u32 {
        match self {
            Self::Packet(_) => 1,
            Self::Run(run) => run.transfer().packets(),
        }
    }

    /// Returns the lane that the headers name.
    #[must_use]
    pub fn lane(&self) -> Vl {
        match self {
            Self::Packet(frame) => frame.lane(),
            Self::Run(run) => run.template().lrh.vl(),
        }
    }
}

/// The far end of one link that leaves the fabric ([`Fabric::add_gateway`](crate::Fabric::add_gateway)).
#[derive(Debug)]
pub(crate) struct Gateway {
    /// The port that the link's training works on.
    pub(crate) node: Node,
    /// Packets and runs that left the fabric. Each packet, in a run as well, keeps a place on the link.
    arrived: VecDeque<(Place, Crossing)>,
    /// Places that they keep.
    kept: u32,
    leaving: VecDeque<Crossing>,
    /// By lane, packets that wait for the link: an end of a trunk asks with each packet that it enters.
    waiting: [usize; LANES],
    frames: FrameWriter,
    pub(crate) line: Line,
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
            kept: 0,
            leaving: VecDeque::new(),
            waiting: [0; LANES],
            frames: FrameWriter::default(),
            line: Line::default(),
        }
    }

    /// Returns the places that packets keep here.
    pub(crate) const fn kept(&self) -> u32 {
        self.kept
    }

    /// Takes the oldest packet or run that left the fabric here on some lanes.
    pub(crate) fn take(&mut self, lanes: Lanes) -> Option<(Place, Crossing)> {
        let mut arrived = self.arrived.iter();
        let next = arrived.position(|(place, _)| lanes.contains(place.lane))?;
        let taken = self.arrived.remove(next)?;
        self.kept -= taken.1.packets();
        Some(taken)
    }

    /// Takes the oldest packet on some lanes, cut from its run if it is of one. It is `None` if it cannot be written.
    pub(crate) fn take_packet(&mut self, lanes: Lanes) -> Option<(Place, Option<Frame>)> {
        let (place, mut run) = match self.take(lanes)? {
            (place, Crossing::Packet(frame)) => return Some((place, Some(frame))),
            (place, Crossing::Run(run)) => (place, run),
        };
        let frame = run.frame(&mut self.frames);
        if run.advance() {
            self.kept += run.transfer().packets();
            self.arrived.push_front((place, Crossing::Run(run)));
        }
        Some((place, frame))
    }

    /// Forgets the packets that wait for the link.
    pub(crate) fn forget_leaving(&mut self) {
        self.leaving.clear();
        self.waiting = [0; LANES];
    }

    /// Returns the packets of a lane that wait for the link.
    pub(crate) fn leaving(&self, lane: Vl) -> usize {
        let waiting = self.waiting.get(usize::from(lane.get()));
        waiting.copied().unwrap_or_default()
    }

    /// Adds the packets of a crossing to the count of its lane, or takes them off.
    fn note_waiting(&mut self, crossing: &Crossing, begin: bool) {
        let packets = crossing.packets() as usize;
        if let Some(waiting) = self.waiting.get_mut(usize::from(crossing.lane().get())) {
            *waiting = if begin {
                *waiting + packets
            } else {
                *waiting - packets
            };
        }
    }

    pub(crate) fn arrive(&mut self, place: Place, crossing: Crossing) {
        self.kept += crossing.packets();
        self.arrived.push_back((place, crossing));
    }

    /// Queues a packet or a run for the link.
    pub(crate) fn leave(&mut self, now: Instant, crossing: Crossing) {
        let packets = crossing.packets();
        if self.waiting.iter().sum::<usize>() < GATEWAY_DEPTH {
            self.note_waiting(&crossing, true);
            self.leaving.push_back(crossing);
        } else {
            self.node.set_now(now);
            for _ in 0..packets {
                self.node.count_drop(PortNum(1), None, DropReason::LinkFull);
            }
        }
    }

    /// Takes the next packet or run for some lanes of the link.
    pub(crate) fn next_leaving(&mut self, lanes: Lanes) -> Option<Crossing> {
        let mut leaving = self.leaving.iter();
        let next = leaving.position(|next| lanes.contains(next.lane()))?;
        let next = self.leaving.remove(next)?;
        self.note_waiting(&next, false);
        Some(next)
    }

    /// Puts back a run that waits.
    pub(crate) fn put_back(&mut self, run: PacketRun) {
        let crossing = Crossing::Run(run);
        self.note_waiting(&crossing, true);
        self.leaving.push_front(crossing);
    }

    /// Cuts the first packet of a run, and puts the rest back.
    pub(crate) fn cut(&mut self, mut run: PacketRun) -> Option<Frame> {
        let frame = run.frame(&mut self.frames);
        if run.advance() {
            self.put_back(run);
        }
        frame
    }
}

/// The ports whose next run waits for a place at a gateway. Of one lane they enter in turn, with a run each.
#[derive(Debug, Default)]
pub(crate) struct Line {
    waiting: VecDeque<(Vl, Endpoint)>,
    /// By lane, when a place was free last, or the first one began to wait.
    since: [Instant; LANES],
    /// Lanes for which a timer is set.
    timed: Lanes,
}

impl Line {
    /// Returns the port that is next on a lane.
    pub(crate) fn next(&self, lane: Vl) -> Option<Endpoint> {
        let mut waiting = self.waiting.iter();
        waiting.find_map(|(of, from)| (*of == lane).then_some(*from))
    }

    /// Returns the ports that wait on a lane.
    pub(crate) fn all(&self, lane: Vl) -> Vec<Endpoint> {
        let on_lane = self.waiting.iter().filter(|(of, _)| *of == lane);
        on_lane.map(|(_, from)| *from).collect()
    }

    /// Returns the time since which no place of a lane has been free.
    pub(crate) fn since(&self, lane: Vl) -> Instant {
        let since = self.since.get(usize::from(lane.get()));
        since.copied().unwrap_or_default()
    }

    /// Notes that a place of a lane is free.
    pub(crate) fn note_free(&mut self, lane: Vl, now: Instant) {
        if let Some(since) = self.since.get_mut(usize::from(lane.get())) {
            *since = now;
        }
    }

    /// Puts a port in line on a lane.
    pub(crate) fn join(&mut self, lane: Vl, from: Endpoint, now: Instant) {
        if self.next(lane).is_none() {
            self.note_free(lane, now);
        }
        if !self.waiting.contains(&(lane, from)) {
            self.waiting.push_back((lane, from));
        }
    }

    /// Notes whether a timer is set for a lane. Returns `true` if that is new.
    pub(crate) fn set_timed(&mut self, lane: Vl, is_timed: bool) -> bool {
        let was_timed = self.timed.contains(lane);
        self.timed.set(lane, is_timed);
        was_timed != is_timed
    }

    /// Ends the wait of a port.
    pub(crate) fn quit(&mut self, lane: Vl, from: Endpoint) {
        self.waiting.retain(|waits| *waits != (lane, from));
    }
}
