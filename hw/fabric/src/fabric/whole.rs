//! Runs of packets that are handed over whole.
//!
//! That is so where no packet of a run could be treated unlike the others, and none would take time: every link on the way is
//! up and at rest in this direction, has no latency, no rate, no faults and no tap, and every port and switch lets the packets
//! pass. The way is looked up for each run, so that any change counts from the next one on.
//!
//! A run that leaves by a gateway keeps a place on the last link for each of its packets. While none is free the next run waits where
//! it is: as packets it would fill the switches on the way.

use hca_api::PortState;
use ib_wire::{PortNum, Vl};

use super::{Body, Fabric};
use crate::link::layer;
use crate::{EndNode, Endpoint, MAX_GATEWAY_RUN, PacketRun, RunHead};

/// A link on the way: the port that sends, and the one that receives.
pub(super) type Hop = [Endpoint; 2];

/// Outcome for a run that a port was to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// It arrived whole, with this number of packets.
    Whole(u32),
    /// It waits, and with it the lane on which it would leave.
    Waits(Vl),
    /// There is none, or its packets have to cross the links one by one.
    Apart,
}

/// The end of a run's way.
enum End {
    EndNode(Endpoint),
    /// A gateway, with the last link and its lane.
    Gateway(Hop, Vl),
}

impl<D: EndNode> Fabric<D> {
    /// Hands the run that leaves next by a port to the adapter or the gateway at the end of its way, and counts its packets at each
    /// port on the way.
    pub(super) fn pass_run(&mut self, from: Endpoint) -> Passed {
        let now = self.now;
        let Some(device) = self.end_node_mut(from) else {
            return Passed::Apart;
        };
        let Some(head) = device.poll_run(now, from.port) else {
            return Passed::Apart;
        };
        let mut way = core::mem::take(&mut self.way);
        let passed = match self.follow_run(from, &head, &mut way) {
            None => Passed::Apart,
            Some(End::EndNode(to)) => match self.hand_run(from, to) {
                true => self.note_passed(&head, &way, Some(to)),
                false => Passed::Apart,
            },
            Some(End::Gateway(hop, lane)) => match self.may_enter(from, hop, lane) {
                None => Passed::Apart,
                Some(false) => Passed::Waits(head.vl),
                Some(true) => {
                    let device = self.end_node_mut(from);
                    match device.and_then(|device| device.take_front_run(now, from.port)) {
                        Some(run) => {
                            self.enter(hop, lane, run);
                            self.note_passed(&head, &way, None)
                        }
                        None => Passed::Whole(head.packets),
                    }
                }
            },
        };
        self.way = way;
        passed
    }

    /// Sends on a run that a gateway was given, as [`Self::pass_run`]; its first packet alone, if the packets have to cross the links
    /// one by one.
    pub(super) fn pass_from_gateway(&mut self, from: Endpoint, run: PacketRun) -> Passed {
        let now = self.now;
        let mut way = core::mem::take(&mut self.way);
        let head = run.head();
        let end = head.and_then(|head| Some((head, self.follow_run(from, &head, &mut way)?)));
        let passed = match end {
            None => Passed::Apart,
            Some((head, End::EndNode(to))) => {
                let device = self.end_node_mut(to);
                match device.is_some_and(|device| device.receive_whole(now, to.port, &run)) {
                    true => self.note_passed(&head, &way, Some(to)),
                    false => Passed::Apart,
                }
            }
            Some((head, End::Gateway(hop, lane))) => match self.may_enter(from, hop, lane) {
                None => Passed::Apart,
                Some(false) => Passed::Waits(head.vl),
                Some(true) => {
                    let passed = self.note_passed(&head, &way, None);
                    self.way = way;
                    self.enter(hop, lane, run);
                    return passed;
                }
            },
        };
        self.way = way;
        let Some(gateway) = self.gateway_mut(from.node) else {
            return passed;
        };
        match passed {
            Passed::Whole(_) => {}
            Passed::Waits(_) => gateway.put_back(run),
            Passed::Apart => {
                if let Some(frame) = gateway.cut(run) {
                    self.launch_from(from, frame);
                }
            }
        }
        passed
    }

    fn end_node_mut(&mut self, at: Endpoint) -> Option<&mut D> {
        match &mut self.slots[at.node.index()].body {
            Body::EndNode(device) => Some(device),
            Body::Switch(_) | Body::Gateway(_) => None,
        }
    }

    /// Hands the run that leaves next by a port to another adapter, if that takes it.
    fn hand_run(&mut self, from: Endpoint, to: Endpoint) -> bool {
        let (now, pace) = (self.now, self.pace);
        let ends = [from.node.index(), to.node.index()];
        let Ok([sender, receiver]) = self.slots.get_disjoint_mut(ends) else {
            return false;
        };
        let (Body::EndNode(sender), Body::EndNode(receiver)) =
            (&mut sender.body, &mut receiver.body)
        else {
            return false;
        };
        let begun = pace.time();
        let is_taken = receiver.receive_run(now, to.port, (sender, from.port));
        if is_taken {
            sender.run_arrived(from.port, pace.since(begun));
        }
        is_taken
    }

    /// Counts a run that arrived at each port on its way that is not of a gateway, and has the adapter at the end served.
    fn note_passed(&mut self, head: &RunHead, way: &[Hop], to: Option<Endpoint>) -> Passed {
        for [sender, receiver] in way {
            for (at, count) in [
                (sender, layer::count_run_sent as fn(&mut _, &_)),
                (receiver, layer::count_run_received),
            ] {
                let slot = &mut self.slots[at.node.index()];
                if !matches!(slot.body, Body::Gateway(_))
                    && let Some(port) = slot.node_mut().port_mut(at.port)
                {
                    count(port, head);
                }
            }
        }
        if let Some(to) = to {
            self.activate(to.node);
        }
        Passed::Whole(head.packets)
    }

    /// Follows a run to the end of its way. Returns `None` if its packets have to cross the links one by one.
    fn follow_run(&self, from: Endpoint, head: &RunHead, way: &mut Vec<Hop>) -> Option<End> {
        way.clear();
        let (mut at, mut lane) = (from, head.vl);
        // No route without a loop is longer.
        for _ in 0..self.slots.len() {
            let there = self.cross_whole(at, head)?;
            way.push([at, there]);
            match &self.slots[there.node.index()].body {
                Body::EndNode(_) => return Some(End::EndNode(there)),
                Body::Switch(switch) => {
                    let port;
                    (port, lane) = switch.passes(there.port, head)?;
                    at = Endpoint { port, ..there };
                }
                Body::Gateway(_) => {
                    let is_taken = head.payload <= MAX_GATEWAY_RUN;
                    return is_taken.then_some(End::Gateway([at, there], lane));
                }
            }
        }
        None
    }

    /// Returns the port at the other end of a link that a run crosses whole.
    fn cross_whole(&self, here: Endpoint, head: &RunHead) -> Option<Endpoint> {
        let id = self.direction_from(here)?;
        let link = &self.links[id.link.index()];
        let there = link.ends[1 - usize::from(id.side)];
        let is_watched = self
            .taps
            .iter()
            .any(|(_, point)| point.watches(id.link, [here, there]));
        let kept = match &self.slots[there.node.index()].body {
            Body::Gateway(gateway) => gateway.kept(),
            Body::EndNode(_) | Body::Switch(_) => 0,
        };
        if is_watched || !link.is_at_rest(usize::from(id.side), self.now, kept) {
            return None;
        }
        let open = |at: Endpoint, sends| {
            let slot = &self.slots[at.node.index()];
            if matches!(slot.body, Body::Gateway(_)) {
                return Some(());
            }
            let port = slot.node().port(at.port)?;
            let mtu = if sends {
                port.neighbor_mtu
            } else {
                port.mtu_cap
            };
            let is_end = at.port != PortNum::SWITCH_MANAGEMENT;
            (is_end && port.state == PortState::Active && layer::run_fits(head, mtu)).then_some(())
        };
        open(here, true)?;
        open(there, false)?;
        Some(there)
    }
}
