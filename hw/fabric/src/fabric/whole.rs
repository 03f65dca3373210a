//! Runs of packets that are handed over whole.
//!
//! That is so where no packet of a run could be treated unlike the others, and none would take time: every link on the way is
//! up and at rest in this direction, has no latency, no rate, no faults and no tap, and every port and switch lets the packets
//! pass. The way is looked up for each run, so that any change counts from the next one on.

use hca_api::PortState;
use ib_wire::PortNum;

use super::{Body, Fabric};
use crate::link::layer;
use crate::{EndNode, Endpoint, RunHead};

/// A link on the way: the port that sends, and the one that receives.
pub(super) type Hop = [Endpoint; 2];

impl<D: EndNode> Fabric<D> {
    /// Hands the run that leaves next by a port to the adapter that it is for, and counts its packets at each port on the
    /// way. Returns how many there were, or `None` if the packets have to cross the links one by one.
    pub(super) fn pass_run(&mut self, from: Endpoint) -> Option<u32> {
        let (now, pace) = (self.now, self.pace);
        let Body::EndNode(device) = &mut self.slots[from.node.index()].body else {
            return None;
        };
        let head = device.poll_run(now, from.port)?;
        let mut way = core::mem::take(&mut self.way);
        let passed = self.follow_run(from, &head, &mut way).filter(|to| {
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
        });
        if let Some(to) = passed {
            for [sender, receiver] in &way {
                for (at, count) in [
                    (sender, layer::count_run_sent as fn(&mut _, &_)),
                    (receiver, layer::count_run_received),
                ] {
                    let node = self.slots[at.node.index()].node_mut();
                    if let Some(port) = node.port_mut(at.port) {
                        count(port, &head);
                    }
                }
            }
            self.activate(to.node);
        }
        self.way = way;
        passed.map(|_| head.packets)
    }

    /// Follows a run to the port at which it arrives. Returns `None` if its packets have to cross the links one by one.
    fn follow_run(&self, from: Endpoint, head: &RunHead, way: &mut Vec<Hop>) -> Option<Endpoint> {
        way.clear();
        let mut at = from;
        // No route without a loop is longer.
        for _ in 0..self.slots.len() {
            let there = self.cross_whole(at, head)?;
            way.push([at, there]);
            match &self.slots[there.node.index()].body {
                Body::EndNode(_) => return Some(there),
                Body::Switch(switch) => {
                    let port = switch.passes(there.port, head)?;
                    at = Endpoint { port, ..there };
                }
                Body::Gateway(_) => return None,
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
        if is_watched || !link.is_at_rest(usize::from(id.side), self.now) {
            return None;
        }
        let open = |at: Endpoint, sends| {
            let port = self.port(at)?;
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
