//! How packets move.

use hca_api::{PortChange, PortState};
use ib_wire::{PortNum, Vl};

use super::whole::Passed;
use super::{Arrival, Body, COPIES, Fabric, MAX_TAPPED, NodeId, Timer};
use crate::gateway::Crossing;
use crate::link::layer::{self, Arrival as Received};
use crate::link::{DirectionId, Held, LinkId, Place, Verdict};
use crate::smi::{self, Outcome};
use crate::tap::Passing;
use crate::{DropReason, EndNode, Endpoint, Frame, Lanes, TapId, TapPoint, Tapped};

impl LinkId {
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl<D: EndNode> Fabric<D> {
    /// Takes a packet off a wire and hands it to the node there. Gives how much work that was.
    pub(super) fn arrive(&mut self, arrival: Arrival) -> u32 {
        let work = work(&arrival.frame);
        let place = arrival.place;
        if !self.hand_over(arrival) {
            self.free_place(place);
        }
        work
    }

    /// Hands a packet to the node at the end of its wire. Returns `true` if it waits there, and keeps its place.
    fn hand_over(&mut self, arrival: Arrival) -> bool {
        let Arrival {
            place,
            epoch,
            mut frame,
        } = arrival;
        let id = place.direction;
        let link = &self.links[id.link.index()];
        let end = link.ends[1 - usize::from(id.side)];
        let current = link.epoch == epoch && link.up;
        let now = self.now;
        let slot = &mut self.slots[end.node.index()];
        if !current {
            slot.count_drop(now, end.port, DropReason::LinkDown);
            return false;
        }
        if let Body::Gateway(gateway) = &mut slot.body {
            gateway.arrive(place, Crossing::Packet(frame));
            return true;
        }
        let node = slot.node_mut();
        node.set_now(now);
        let Some(port) = node.port_mut(end.port) else {
            return false;
        };
        match layer::receive(port, &mut frame) {
            Received::Refused(reason) => node.count_drop(end.port, None, reason),
            Received::Management => {
                if let Body::Switch(switch) = &mut slot.body
                    && !switch.admit_smp(end.port, &mut frame)
                {
                    return false;
                }
                let outcome = smi::receive(slot.node_mut(), end.port, frame);
                self.follow(end, outcome);
                self.activate(end.node);
            }
            Received::Data => {
                // Data turns an armed port active (IBA 7.2.7).
                if port.state == PortState::Armed {
                    node.set_port_state(end.port, PortState::Active);
                }
                return self.deliver(end, frame, Some(place));
            }
        }
        false
    }

    /// Frees a packet's place, and has its sender served if that waits for one.
    pub(super) fn free_place(&mut self, place: Place) {
        let Place { direction, lane } = place;
        let link = &mut self.links[direction.link.index()];
        let side = usize::from(direction.side);
        if link.free_place(side, lane) {
            let sender = link.ends[side].node;
            self.activate(sender);
        }
    }

    /// Hands a data packet to a node. Returns `true` if it waits there, and keeps the place by which it came.
    pub(super) fn deliver(&mut self, end: Endpoint, frame: Frame, place: Option<Place>) -> bool {
        let now = self.now;
        let mut kept = None;
        match &mut self.slots[end.node.index()].body {
            Body::EndNode(device) => {
                device.receive(now, end.port, frame);
                self.activate(end.node);
            }
            Body::Switch(switch) => {
                let mut outputs = core::mem::take(&mut self.outputs);
                switch.forward(end.port, frame, &mut outputs);
                let wants_service = switch.node.wants_service();
                for output in outputs.drain(..) {
                    self.relay(end, output, place, &mut kept);
                }
                self.outputs = outputs;
                if wants_service {
                    self.activate(end.node);
                }
                self.note_port0(end.node);
            }
            Body::Gateway(_) => {}
        }
        kept.is_some()
    }

    /// Does with an SMP at a node what the interface there decided.
    pub(super) fn follow(&mut self, at: Endpoint, outcome: Outcome) {
        match outcome {
            Outcome::Done => {}
            Outcome::Drop(reason) => {
                let slot = &mut self.slots[at.node.index()];
                slot.count_drop(self.now, at.port, reason);
            }
            Outcome::Send(port, frame) => {
                self.transmit(at.node, port, frame);
            }
            Outcome::Deliver(frame) => {
                let now = self.now;
                match &mut self.slots[at.node.index()].body {
                    Body::EndNode(device) => {
                        device.receive(now, at.port, frame);
                        self.activate(at.node);
                    }
                    Body::Switch(switch) => {
                        switch.deliver_smp(frame);
                        self.note_port0(at.node);
                    }
                    Body::Gateway(_) => {}
                }
            }
            Outcome::Route(in_port, frame) => {
                if let Body::Switch(switch) = &mut self.slots[at.node.index()].body {
                    let mut outputs = core::mem::take(&mut self.outputs);
                    switch.route_smp(in_port, frame, &mut outputs);
                    for (port, frame) in outputs.drain(..) {
                        self.transmit(at.node, port, frame);
                    }
                    self.outputs = outputs;
                }
            }
        }
    }

    /// Lets a node send what it has, tells it what changed, and sets its timer. Gives how much work that was.
    pub(super) fn serve(&mut self, id: NodeId) -> u32 {
        let now = self.now;
        let slot = &mut self.slots[id.index()];
        slot.queued = false;
        slot.node_mut().set_now(now);
        slot.node_mut().begin_turn(self.pace);
        slot.node_mut().advance_samples();
        self.grant_requests(id);
        if let Body::EndNode(device) = &mut self.slots[id.index()].body
            && device.poll_timeout().is_some_and(|at| at <= now)
        {
            device.handle_timeout(now);
        }
        while let Some((port, mad)) = self.slots[id.index()].node_mut().poll_trap() {
            self.send_trap(Endpoint { node: id, port }, &mad);
        }
        self.tap_tunnels(id);
        let mut work = 1 + self.pull(id);
        if let Body::EndNode(device) = &mut self.slots[id.index()].body {
            work += device.take_delivered();
        }
        self.pull_port0(id);
        // SMPs of the node's own software may be for itself.
        self.grant_requests(id);
        self.tell_changes(id);
        self.set_timer(id);
        let slot = &mut self.slots[id.index()];
        if matches!(slot.body, Body::EndNode(_)) && !core::mem::replace(&mut slot.is_told, true) {
            self.served.push_back(id);
        }
        work
    }

    /// Does what the node's SMA asked of its links.
    fn grant_requests(&mut self, id: NodeId) {
        while let Some((port, request)) = self.slots[id.index()].node_mut().take_link_request() {
            self.grant(Endpoint { node: id, port }, request);
        }
    }

    fn send_trap(&mut self, from: Endpoint, mad: &ib_wire::mad::Mad) {
        let node = self.slots[from.node.index()].node_mut();
        let Some(port) = node.port(from.port) else {
            return;
        };
        if let Some(frame) = Frame::of_smp(mad, port.lid, port.sm_lid, port.sm_sl) {
            let outcome = smi::send(node, from.port, frame);
            self.follow(from, outcome);
        }
    }

    /// Takes what a device wants to send, as long as lanes of its links have places. After much of it other nodes are served
    /// before it goes on. Gives how much work that was.
    fn pull(&mut self, id: NodeId) -> u32 {
        if matches!(self.slots[id.index()].body, Body::Switch(_)) {
            return self.send_waiting(id);
        }
        let mut done = 0;
        let budget = self.budget();
        let ports = self.slots[id.index()].links.len();
        for port in (1..ports).filter_map(|port| u8::try_from(port).ok()) {
            let from = id.port(port);
            let waited = self.direction_from(from).map(|direction| {
                let direction = self.direction_mut(direction);
                core::mem::take(&mut direction.waits)
            });
            self.pull_port(from, budget, &mut done);
            self.end_waits(from, waited.unwrap_or_default());
            if done >= budget {
                self.activate(id);
                return done;
            }
        }
        done
    }

    /// Takes packets and runs of a device that leave by one port, until `done` is as much work as `budget`.
    fn pull_port(&mut self, from: Endpoint, budget: u32, done: &mut u32) {
        let id = from.node;
        // Lanes on which the next run waits for a gateway.
        let mut waiting = Lanes::default();
        while *done < budget {
            let lanes = self.open_lanes(from);
            match self.pass_run(from) {
                Passed::Whole(packets) => {
                    *done += packets;
                    continue;
                }
                Passed::Waits(lane) => waiting.set(lane, true),
                Passed::Apart => {}
            }
            let lanes = lanes.without(waiting);
            let now = self.now;
            let device = match &mut self.slots[id.index()].body {
                Body::EndNode(device) => device,
                Body::Switch(_) => return,
                Body::Gateway(gateway) => {
                    let Some(next) = gateway.next_leaving(lanes) else {
                        return;
                    };
                    *done += 1;
                    match next {
                        Crossing::Packet(frame) => self.launch_from(from, frame),
                        Crossing::Run(run) => match self.pass_from_gateway(from, run) {
                            Passed::Whole(packets) => *done += packets - 1,
                            Passed::Waits(lane) => waiting.set(lane, true),
                            Passed::Apart => {}
                        },
                    }
                    continue;
                }
            };
            let Some(frame) = device.poll_transmit_on(now, from.port, lanes) else {
                return;
            };
            *done += work(&frame);
            if frame.lane() == Vl::MANAGEMENT {
                let outcome = smi::send(device.node_mut(), from.port, frame);
                self.follow(from, outcome);
            } else if self.transmit(id, from.port, frame).is_some() {
                self.discard(from, DropReason::LinkFull);
            }
        }
    }

    /// Returns the lanes of the link at a port that take another packet. When one of the others does, the node is served
    /// again. A port without a link takes everything, and loses it.
    fn open_lanes(&mut self, from: Endpoint) -> Lanes {
        let Some(id) = self.direction_from(from) else {
            return Lanes::ALL;
        };
        let direction = self.direction_mut(id);
        let open = direction.open();
        direction.awaited = open.others();
        open
    }

    fn tell_changes(&mut self, id: NodeId) {
        let now = self.now;
        match &mut self.slots[id.index()].body {
            Body::EndNode(device) => {
                if device.node().has_port_changes() {
                    device.ports_changed(now);
                }
            }
            // A switch has no functions to be told, nor has a gateway.
            Body::Switch(_) | Body::Gateway(_) => {
                let node = self.slots[id.index()].node_mut();
                while node.take_port_change().is_some() {}
            }
        }
    }

    fn set_timer(&mut self, id: NodeId) {
        let slot = &mut self.slots[id.index()];
        let device = match &slot.body {
            Body::EndNode(device) => device.poll_timeout(),
            Body::Switch(_) | Body::Gateway(_) => None,
        };
        let node = slot.node_mut();
        (node.traps.fresh, node.samples.fresh) = (false, false);
        let samples = node.samples.poll_timeout();
        let has_more = device.is_some_and(|at| at <= self.now);
        let at = device
            .filter(|_| !has_more)
            .into_iter()
            .chain(node.traps.poll_timeout())
            .chain(samples)
            .min();
        if slot.timer.map(|key| key.deadline()) != at {
            if let Some(key) = slot.timer.take() {
                self.timers.cancel(key);
            }
            slot.timer = at.map(|at| self.timers.set(at, Timer::Node(id)));
        }
        if has_more {
            // After all else that is due, and in turn with nodes that the caller has touched.
            self.touch(id);
        }
    }

    /// Puts a packet on the wire behind a port, if the port can send it. Returns a data packet for which there is no place.
    pub(super) fn transmit(&mut self, node: NodeId, port: PortNum, frame: Frame) -> Option<Frame> {
        let now = self.now;
        let slot = &mut self.slots[node.index()];
        let link = slot.links.get(port.index()).copied().flatten();
        let number = port;
        let port = slot.node_mut().port_mut(number)?;
        if let Err(reason) = layer::may_send(port, &frame) {
            slot.count_drop(now, number, reason);
            return None;
        }
        let Some(id) = link else {
            port.counters.xmit_discards += 1;
            slot.count_drop(now, number, DropReason::NoLink);
            return None;
        };
        let link = &self.links[id.link.index()];
        let lane = frame.lane();
        let full = !link.directions[usize::from(id.side)].open().contains(lane);
        if full && lane != Vl::MANAGEMENT {
            return Some(frame);
        }
        layer::count_sent(port, &frame);
        if full {
            // No credits hold VL15 back: it is sent, and the far port has no room for it.
            let far = link.ends[1 - usize::from(id.side)];
            let slot = &mut self.slots[far.node.index()];
            if let Some(port) = slot.node_mut().port_mut(far.port) {
                port.counters.vl15_dropped += 1;
            }
            slot.count_drop(now, far.port, DropReason::LinkFull);
            return None;
        }
        self.launch(id, frame);
        None
    }

    /// Puts a gateway's packet on its link, if that is up: no port layer looks at it.
    pub(super) fn launch_from(&mut self, from: Endpoint, frame: Frame) {
        match self.direction_from(from) {
            Some(id) if self.links[id.link.index()].up => self.launch(id, frame),
            _ => {
                let slot = &mut self.slots[from.node.index()];
                slot.count_drop(self.now, from.port, DropReason::NoLink);
            }
        }
    }

    /// Puts a packet on a link that has room.
    fn launch(&mut self, id: DirectionId, frame: Frame) {
        if !self.taps.is_empty() {
            self.tap(id, &frame);
        }
        if self.direction(id).faults.is_some() {
            self.launch_with_faults(id, frame);
        } else {
            let place = self.take_place(id, frame.lane());
            self.depart(place, frame, core::time::Duration::ZERO);
        }
    }

    pub(super) fn take_place(&mut self, direction: DirectionId, lane: Vl) -> Place {
        self.links[direction.link.index()].take_place(usize::from(direction.side), lane);
        Place { direction, lane }
    }

    /// Hands to the taps what passed a device's tunnels.
    fn tap_tunnels(&mut self, id: NodeId) {
        loop {
            let Body::EndNode(device) = &mut self.slots[id.index()].body else {
                return;
            };
            let Some((port, frame)) = device.poll_tunnelled() else {
                return;
            };
            let end = Endpoint { node: id, port };
            for at in 0..self.taps.len() {
                let (tap, point) = self.taps[at];
                if point == TapPoint::Tunnels(id) {
                    self.keep_tapped(tap, end, end, &frame);
                }
            }
        }
    }

    fn tap(&mut self, id: DirectionId, frame: &Frame) {
        let ends = self.links[id.link.index()].ends;
        let passing = Passing {
            link: id.link,
            from: ends[usize::from(id.side)],
            to: ends[1 - usize::from(id.side)],
            frame,
        };
        for at in 0..self.taps.len() {
            let (tap, point) = self.taps[at];
            if point.sees(&passing) {
                self.keep_tapped(tap, passing.from, passing.to, frame);
            }
        }
    }

    fn keep_tapped(&mut self, tap: TapId, from: Endpoint, to: Endpoint, frame: &Frame) {
        if self.tapped.len() >= MAX_TAPPED {
            self.taps_missed += 1;
            return;
        }
        self.tapped.push_back(Tapped {
            at: self.now,
            tap,
            from,
            to,
            frame: frame.clone(),
        });
    }

    fn launch_with_faults(&mut self, id: DirectionId, mut frame: Frame) {
        let zero = core::time::Duration::ZERO;
        let lane = frame.lane();
        let verdict = match &mut self.direction_mut(id).faults {
            Some(faults) => faults.judge(&mut frame),
            None => Verdict::Pass,
        };
        match verdict {
            Verdict::Lost => return self.count_fault(id),
            Verdict::Hold { behind, at_latest } if behind > 0 => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                self.take_place(id, lane);
                self.direction_mut(id).held.push(Held {
                    frame,
                    lane,
                    behind,
                    ticket,
                });
                let at = self.now + at_latest;
                self.timers.set(at, Timer::Release(id, ticket));
                return;
            }
            Verdict::Late(delay) => {
                let place = self.take_place(id, lane);
                self.depart(place, frame, delay);
            }
            Verdict::Twice => {
                for frame in [frame.clone(), frame] {
                    let place = self.take_place(id, lane);
                    self.depart(place, frame, zero);
                }
            }
            Verdict::Pass | Verdict::Hold { .. } => {
                let place = self.take_place(id, lane);
                self.depart(place, frame, zero);
            }
        }
        self.overtake(id);
    }

    /// Counts a packet that a link's faults took, at the port that sent it.
    fn count_fault(&mut self, id: DirectionId) {
        let from = self.links[id.link.index()].ends[usize::from(id.side)];
        let slot = &mut self.slots[from.node.index()];
        slot.count_drop(self.now, from.port, DropReason::LinkFault);
    }

    /// Counts a packet that overtook those that are held, and lets go those that were overtaken
    /// often enough.
    fn overtake(&mut self, direction: DirectionId) {
        let held = &mut self.direction_mut(direction).held;
        if held.is_empty() {
            return;
        }
        let mut released = Vec::new();
        held.retain_mut(|held| {
            held.behind -= 1;
            if held.behind == 0 {
                released.push((held.lane, held.frame.clone()));
            }
            held.behind > 0
        });
        for (lane, frame) in released {
            let place = Place { direction, lane };
            self.depart(place, frame, core::time::Duration::ZERO);
        }
    }

    /// Lets a held packet go that waited long enough.
    pub(super) fn release(&mut self, direction: DirectionId, ticket: u64) {
        let held = &mut self.direction_mut(direction).held;
        if let Some(at) = held.iter().position(|held| held.ticket == ticket) {
            let Held { frame, lane, .. } = held.remove(at);
            let place = Place { direction, lane };
            self.depart(place, frame, core::time::Duration::ZERO);
        }
    }

    /// Sends a packet that has its place already.
    fn depart(&mut self, place: Place, frame: Frame, extra: core::time::Duration) {
        let id = place.direction;
        let link = &mut self.links[id.link.index()];
        let epoch = link.epoch;
        let wire_time = link.wire_time(frame.len());
        let direction = &mut link.directions[usize::from(id.side)];
        let sent = direction.free_at.max(self.now) + wire_time;
        direction.free_at = sent;
        let at = sent + link.config.latency + extra;
        let arrival = Arrival {
            place,
            epoch,
            frame,
        };
        if at > self.now {
            self.timers.set(at, Timer::Arrive(arrival));
        } else {
            self.arrivals.push_back(arrival);
        }
    }
}

/// How much work it is to move a packet.
fn work(frame: &Frame) -> u32 {
    if frame.lrh().is_some_and(|lrh| lrh.dlid.is_multicast()) {
        COPIES
    } else {
        1
    }
}

/// What a change of the link means for a port.
pub(super) fn lost_link(port: &mut crate::PhysicalPort) {
    if port.state == PortState::Active {
        port.note(PortChange::DOWN);
    }
    port.state = PortState::Down;
    port.counters.link_downed += 1;
}
