//! Packets and runs that leave or enter the fabric by gateways.

use ib_wire::smp::NodeDescription;
use ib_wire::{PortNum, Vl};

use super::{Body, Fabric, NodeId, Timer};
use crate::gateway::{Crossing, Gateway};
use crate::link::Place;
use crate::{EndNode, Endpoint, Frame, Lanes, PacketRun, PhysicalPort, PortConfig};

impl<D: EndNode> Fabric<D> {
    /// Adds a gateway: the far end of a link that leaves the fabric.
    ///
    /// A gateway is the simplest of nodes: it has one port, which trains as any other, and no agent, no state of its own and
    /// no checks. Whatever arrives at it, SMPs on VL15 with their directed routes included, waits to be taken as it was on the
    /// wire ([`Fabric::take_from`]), and a packet that it is given goes onto the wire as it is ([`Fabric::send_from`]). So its owner
    /// can play any part towards the port at the near end: its peers, and its subnet manager.
    pub fn add_gateway(&mut self, description: &str, port: PortConfig) -> NodeId {
        self.add(Body::Gateway(Box::new(Gateway::new(description, port))))
    }

    /// Renames a gateway; nothing happens if the node is none.
    pub fn rename_gateway(&mut self, gateway: NodeId, description: &str) {
        if let Some(gateway) = self.gateway_mut(gateway) {
            gateway.node.description = NodeDescription::new(description);
        }
    }

    pub(super) fn gateway_mut(&mut self, node: NodeId) -> Option<&mut Gateway> {
        match &mut self.slots.get_mut(node.index())?.body {
            Body::Gateway(gateway) => Some(gateway),
            Body::EndNode(_) | Body::Switch(_) => None,
        }
    }

    /// Sets whether a port of a switch has a host behind it that is not trusted. Of its packets the switch takes those whose sender's LID
    /// is behind the port by its own table, in the partitions of the port's P_Key table, and of SMPs responses and traps. It counts all
    /// others, as [`DropReason::ForeignSlid`](crate::DropReason::ForeignSlid), [`DropReason::BadPKey`](crate::DropReason::BadPKey) and
    /// [`DropReason::ForeignSmp`](crate::DropReason::ForeignSmp). Returns `false` if there is no such port.
    pub fn set_guarded(&mut self, at: Endpoint, is_guarded: bool) -> bool {
        let is_external = self.port(at).is_some() && at.port != PortNum::SWITCH_MANAGEMENT;
        match self.switch_mut(at.node).filter(|_| is_external) {
            Some(switch) => {
                switch.guard.set(at.port, is_guarded);
                true
            }
            None => false,
        }
    }

    /// Returns `true` if a node is a gateway.
    #[must_use]
    pub fn is_gateway(&self, node: NodeId) -> bool {
        let slot = self.slots.get(node.index());
        slot.is_some_and(|slot| matches!(slot.body, Body::Gateway(_)))
    }

    /// Takes the oldest packet on some lanes that left the fabric at a gateway; `None` if there is none, or the node is no gateway.
    /// Until then the packet keeps its place on the link, so that its senders wait.
    pub fn take_from(&mut self, gateway: NodeId, lanes: Lanes) -> Option<Frame> {
        loop {
            let (place, frame) = self.gateway_mut(gateway)?.take_packet(lanes)?;
            self.free_places(gateway, place, 1);
            if frame.is_some() {
                return frame;
            }
        }
    }

    /// Takes what [`Fabric::take_from`] would take, or the whole run of which that is a packet.
    pub fn take_whole_from(&mut self, gateway: NodeId, lanes: Lanes) -> Option<Crossing> {
        let (place, crossing) = self.gateway_mut(gateway)?.take(lanes)?;
        self.free_places(gateway, place, crossing.packets());
        Some(crossing)
    }

    fn free_places(&mut self, gateway: NodeId, place: Place, packets: u32) {
        for _ in 0..packets {
            self.free_place(place);
        }
        let now = self.now;
        if let Some(gateway) = self.gateway_mut(gateway) {
            gateway.line.note_free(place.lane, now);
        }
        self.call_next(gateway, place.lane);
    }

    /// Forgets all packets at a gateway, of both ways.
    pub fn clear_gateway(&mut self, gateway: NodeId) {
        while self.take_whole_from(gateway, Lanes::ALL).is_some() {}
        if let Some(gateway) = self.gateway_mut(gateway) {
            gateway.forget_leaving();
        }
    }

    /// Returns the packets of a lane that a gateway was given and that still wait for its link.
    #[must_use]
    pub fn waiting_at(&self, gateway: NodeId, lane: Vl) -> usize {
        match self.slots.get(gateway.index()).map(|slot| &slot.body) {
            Some(Body::Gateway(gateway)) => gateway.leaving(lane),
            _ => 0,
        }
    }

    /// Sends a packet or a run from a gateway into the fabric: it leaves with the next poll, when the link is up and has room. A packet
    /// leaves as it is. A run goes on as one of an adapter does: whole to the adapter or the gateway that it is for, where nothing on
    /// the way treats a packet unlike the others, and elsewhere in packets.
    pub fn send_from(&mut self, gateway: NodeId, crossing: impl Into<Crossing>) {
        let now = self.now;
        if let Some(gateway) = self.gateway_mut(gateway) {
            gateway.leave(now, crossing.into());
        }
        self.touch(gateway);
    }

    /// Puts a run that arrived at a gateway behind all others that wait there.
    pub(super) fn enter(&mut self, hop: [Endpoint; 2], lane: Vl, run: PacketRun) {
        let [near, there] = hop;
        let Some(direction) = self.direction_from(near) else {
            return;
        };
        for _ in 0..run.transfer().packets() {
            self.take_place(direction, lane);
        }
        let place = Place { direction, lane };
        if let Some(gateway) = self.gateway_mut(there.node) {
            gateway.arrive(place, Crossing::Run(run.on_lane(lane)));
        }
        self.call_next(there.node, lane);
    }

    /// Returns `true` if a run may enter a gateway now, `false` if it is to wait, or `None` if it has waited long enough: no place
    /// has been free for HOQLife, and the switches on the way discard its packets.
    pub(super) fn may_enter(
        &mut self,
        from: Endpoint,
        hop: [Endpoint; 2],
        lane: Vl,
    ) -> Option<bool> {
        let now = self.now;
        let [near, there] = hop;
        let direction = self.direction_from(near)?;
        let is_open = self.direction(direction).open().contains(lane);
        let life = self.port(near).and_then(PhysicalPort::head_of_queue_life);
        let line = &mut self.gateway_mut(there.node)?.line;
        let next = line.next(lane);
        if is_open && next.is_none_or(|next| next == from) {
            line.quit(lane, from);
            return Some(true);
        }
        if let (Some(life), Some(_)) = (life, next)
            && !is_open
            && now >= line.since(lane) + life
        {
            return None;
        }
        line.join(lane, from, now);
        if let Some(life) = life
            && line.set_timed(lane, true)
        {
            self.timers.set(now + life, Timer::Line(near, lane));
        }
        let waits = self.direction_from(from)?;
        self.direction_mut(waits).waits.push((there.node, lane));
        Some(false)
    }

    /// Serves the ports whose runs have waited for HOQLife, without a place that was free.
    pub(super) fn check_line(&mut self, near: Endpoint, lane: Vl) {
        let now = self.now;
        let life = self.port(near).and_then(PhysicalPort::head_of_queue_life);
        let gateway = self.peer(near).map(|there| there.node);
        let gateway = gateway.and_then(|node| self.gateway_mut(node));
        let (Some(life), Some(gateway)) = (life, gateway) else {
            return;
        };
        let waiting = gateway.line.all(lane);
        let due = gateway.line.since(lane) + life;
        let is_timed = !waiting.is_empty() && due > now;
        gateway.line.set_timed(lane, is_timed);
        if is_timed {
            self.timers.set(due, Timer::Line(near, lane));
            return;
        }
        for from in waiting {
            self.activate(from.node);
        }
    }

    /// Ends the waits of a port that it had when it was served before, and has not now.
    pub(super) fn end_waits(&mut self, from: Endpoint, before: Vec<(NodeId, Vl)>) {
        for (gateway, lane) in before {
            let direction = self.direction_from(from).map(|id| self.direction(id));
            if direction.is_some_and(|direction| direction.waits.contains(&(gateway, lane))) {
                continue;
            }
            if let Some(gateway) = self.gateway_mut(gateway) {
                gateway.line.quit(lane, from);
            }
            self.call_next(gateway, lane);
        }
    }

    /// Serves the port whose run is the next to enter a gateway on a lane.
    fn call_next(&mut self, gateway: NodeId, lane: Vl) {
        let next = self
            .gateway_mut(gateway)
            .and_then(|gateway| gateway.line.next(lane));
        if let Some(next) = next {
            self.activate(next.node);
        }
    }
}
