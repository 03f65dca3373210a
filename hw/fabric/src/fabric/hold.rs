//! Packets that wait in switches for places on the links behind their outputs.

use std::sync::Arc;

use ib_wire::{PortNum, Vl};

use super::{Fabric, NodeId, Timer};
use crate::link::Place;
use crate::pma::TICK;
use crate::switch::{Output, Passage, Waiting};
use crate::{DropReason, EndNode, Endpoint, Frame};

impl<D: EndNode> Fabric<D> {
    /// Sends on a packet that came to a switch by `from`, or has it wait there for a place. Then it keeps `place`, its own on
    /// the link by which it came, which its copies have in common in `kept`.
    pub(super) fn relay(
        &mut self,
        from: Endpoint,
        (port, frame): (PortNum, Frame),
        place: Option<Place>,
        kept: &mut Option<Arc<Place>>,
    ) {
        let now = self.now;
        let output = (port, frame.lane());
        let out = from.node.port(port.0);
        let Some(switch) = self.switch_mut(from.node) else {
            return;
        };
        let is_idle = switch.holding.is_idle();
        let passage = if is_idle {
            Passage::Free
        } else {
            switch.holding.passage(output, now)
        };
        let frame = match passage {
            Passage::Stalled => return self.discard(out, DropReason::HeadOfQueue),
            Passage::Behind => frame,
            Passage::Free => match self.transmit(from.node, port, frame) {
                Some(frame) => frame,
                None if is_idle => return,
                None => return self.note_sent(from.node, output),
            },
        };
        let place = place.map(|place| Arc::clone(kept.get_or_insert_with(|| Arc::new(place))));
        let waiting = Waiting { frame, place };
        let Some(switch) = self.switch_mut(from.node) else {
            return;
        };
        if switch.holding.push(output, from.port, waiting, now) {
            self.watch_head(from.node, output);
        }
        self.await_place(out, output.1);
    }

    /// Sends the packets that wait in a switch, as far as there are places. Returns the amount of that work.
    pub(super) fn send_waiting(&mut self, node: NodeId) -> u32 {
        let mut done = 0;
        let (now, budget) = (self.now, self.budget());
        let mut last = None;
        while let Some(output) = self.next_output(node, last) {
            last = Some(output);
            let (port, lane) = output;
            let out = node.port(port.0);
            while self.has_place(out, lane) {
                if done >= budget {
                    self.activate(node);
                    return done;
                }
                let Some(switch) = self.switch_mut(node) else {
                    return done;
                };
                let Some((since, Waiting { frame, place })) = switch.holding.pop(output, now)
                else {
                    break;
                };
                done += 1;
                self.count_wait(out, since);
                self.transmit(node, port, frame);
                self.note_sent(node, output);
                self.give_back(place);
            }
            self.await_place(out, lane);
        }
        done
    }

    /// Discards the packet at the head of a queue if it has been there for HOQLife, and all others as well if the lane is
    /// stalled by that (VLStallCount).
    pub(super) fn check_head(&mut self, node: NodeId, output: Output) {
        let now = self.now;
        let out = node.port(output.0.0);
        let Some(port) = self.port(out) else {
            return;
        };
        let (life, stall_count) = (port.head_of_queue_life(), port.vl_stall_count);
        let Some(switch) = self.switch_mut(node) else {
            return;
        };
        switch.holding.set_timer(output, None);
        let since = switch.holding.head_since(output);
        if let (Some(life), Some(since)) = (life, since)
            && now >= since + life
        {
            let stalls = switch.holding.expired(output, life, stall_count, now);
            let most = if stalls { usize::MAX } else { 1 };
            self.discard_waiting(node, output, most, DropReason::HeadOfQueue);
        }
        self.watch_head(node, output);
    }

    /// Discards all that waits for an output.
    pub(super) fn discard_output(&mut self, out: Endpoint, reason: DropReason) {
        let mut last = None;
        while let Some(output) = self.next_output(out.node, last) {
            last = Some(output);
            if output.0 == out.port {
                self.discard_waiting(out.node, output, usize::MAX, reason);
                self.note_sent(out.node, output);
            }
        }
    }

    fn discard_waiting(&mut self, node: NodeId, output: Output, most: usize, reason: DropReason) {
        let now = self.now;
        let out = node.port(output.0.0);
        for _ in 0..most {
            let switch = self.switch_mut(node);
            let Some((since, waiting)) = switch.and_then(|s| s.holding.pop(output, now)) else {
                return;
            };
            self.count_wait(out, since);
            self.discard(out, reason);
            self.give_back(waiting.place);
        }
    }

    fn next_output(&mut self, node: NodeId, last: Option<Output>) -> Option<Output> {
        self.switch_mut(node)?.holding.next_output(last)
    }

    /// Sets the timer that watches the head of a queue, if there is one and HOQLife ends.
    fn watch_head(&mut self, node: NodeId, output: Output) {
        let life = self
            .port(node.port(output.0.0))
            .and_then(crate::PhysicalPort::head_of_queue_life);
        let Some(life) = life else {
            return;
        };
        let since = self
            .switch_mut(node)
            .and_then(|s| s.holding.head_since(output));
        let Some(since) = since else {
            return;
        };
        let timer = self.timers.set(since + life, Timer::Head(node, output));
        if let Some(switch) = self.switch_mut(node) {
            switch.holding.set_timer(output, Some(timer));
        }
    }

    fn note_sent(&mut self, node: NodeId, output: Output) {
        let timer = self.switch_mut(node).and_then(|s| s.holding.sent(output));
        if let Some(timer) = timer {
            self.timers.cancel(timer);
        }
    }

    /// Frees a place with the last packet that keeps it.
    fn give_back(&mut self, place: Option<Arc<Place>>) {
        if let Some(place) = place.and_then(Arc::into_inner) {
            self.free_place(place);
        }
    }

    fn has_place(&self, out: Endpoint, lane: Vl) -> bool {
        let direction = self.direction_from(out);
        direction.is_some_and(|id| self.direction(id).open().contains(lane))
    }

    /// Serves a switch when a lane of an output has a place, if packets wait for one.
    fn await_place(&mut self, out: Endpoint, lane: Vl) {
        let switch = self.switch_mut(out.node);
        let waits = switch.is_some_and(|s| s.holding.head_since((out.port, lane)).is_some());
        if let Some(id) = self.direction_from(out) {
            self.direction_mut(id).awaited.set(lane, waits);
        }
    }

    /// Counts the time for which a port had a packet that could not leave, and sent nothing else (PortXmitWait).
    fn count_wait(&mut self, out: Endpoint, since: ib_vtime::Instant) {
        let now = self.now;
        let Some(id) = self.direction_from(out) else {
            return;
        };
        let direction = self.direction_mut(id);
        let begun = since.max(direction.free_at).max(direction.waited_until);
        direction.waited_until = now;
        let ticks = now.saturating_duration_since(begun).as_nanos() / TICK.as_nanos();
        if let Some(port) = self.slots[out.node.index()].node_mut().port_mut(out.port) {
            port.counters.xmit_wait += u64::try_from(ticks).unwrap_or(u64::MAX);
        }
    }

    /// Counts a packet that a port could not send.
    pub(super) fn discard(&mut self, out: Endpoint, reason: DropReason) {
        let slot = &mut self.slots[out.node.index()];
        if let Some(port) = slot.node_mut().port_mut(out.port) {
            port.counters.xmit_discards += 1;
        }
        slot.count_drop(self.now, out.port, reason);
    }
}
