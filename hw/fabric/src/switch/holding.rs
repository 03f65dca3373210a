//! Packets that wait in a switch until the link behind their output has a place (IBA 18.2.5.4).

use core::ops::Bound;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ib_vtime::{Duration, Instant, TimerKey};
use ib_wire::{PortNum, Vl};

use crate::Frame;
use crate::link::Place;

/// VLStalled lasts this many times HOQLife.
const STALL_LIVES: u32 = 8;

/// A port by which packets leave, and their lane there.
pub(crate) type Output = (PortNum, Vl);

/// A packet that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) frame: Frame,
    /// The place that it keeps on the link by which it came, as do all copies of a multicast packet. What the switch itself
    /// sends has none.
    pub(crate) place: Option<Arc<Place>>,
}

/// Verdict of a switch on a packet for an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// It leaves if there is a place.
    Free,
    /// It waits behind others.
    Behind,
    /// It is discarded: the lane is in state VLStalled.
    Stalled,
}

/// The packets that wait for one output.
#[derive(Debug, Default)]
struct Queue {
    /// In order, by the port by which they came.
    inputs: BTreeMap<PortNum, VecDeque<Waiting>>,
    /// The input whose oldest packet is at the head of the queue.
    turn: PortNum,
    /// Time at which that packet came to the head.
    head_since: Instant,
    /// The timer that watches the head.
    timer: Option<TimerKey>,
    /// Packets that were discarded at the head, without one that left between them.
    expired: u8,
    stalled_until: Instant,
}

impl Queue {
    fn pop(&mut self, now: Instant) -> Option<Waiting> {
        let of_turn = self.inputs.get_mut(&self.turn)?;
        let waiting = of_turn.pop_front();
        if of_turn.is_empty() {
            self.inputs.remove(&self.turn);
        }
        let behind = (Bound::Excluded(self.turn), Bound::Unbounded);
        let mut next = self.inputs.range(behind).chain(&self.inputs);
        self.turn = next.next().map_or(self.turn, |(input, _)| *input);
        self.head_since = now;
        waiting
    }
}

/// The packets that wait in a switch, in a queue for each output and lane.
///
/// An output takes one packet of each input in turn, by port number, and the packets of one input in order.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    /// Outputs with packets, and outputs that discarded a packet after which none has left.
    queues: BTreeMap<Output, Queue>,
}

impl Holding {
    pub(crate) fn passage(&self, output: Output, now: Instant) -> Passage {
        match self.queues.get(&output) {
            Some(queue) if now < queue.stalled_until => Passage::Stalled,
            Some(queue) if !queue.inputs.is_empty() => Passage::Behind,
            Some(_) | None => Passage::Free,
        }
    }

    /// Returns `true` if packets for all outputs leave as if none had ever waited.
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns `true` if packets for an output leave as if none had ever waited.
    pub(crate) fn is_clear(&self, output: Output) -> bool {
        !self.queues.contains_key(&output)
    }

    /// Returns `true` if a packet waits that came by a port.
    pub(crate) fn has_from(&self, input: PortNum) -> bool {
        let mut queues = self.queues.values();
        queues.any(|queue| queue.inputs.contains_key(&input))
    }

    /// Returns the outputs for which packets wait, from one on.
    pub(crate) fn next_output(&self, after: Option<Output>) -> Option<Output> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.queues.range((after, Bound::Unbounded));
        let next = behind.find(|(_, queue)| !queue.inputs.is_empty())?;
        Some(*next.0)
    }

    /// Adds a packet that came by `input`. Returns `true` if it is at the head of the queue.
    pub(crate) fn push(
        &mut self,
        output: Output,
        input: PortNum,
        waiting: Waiting,
        now: Instant,
    ) -> bool {
        let queue = self.queues.entry(output).or_default();
        let is_head = queue.inputs.is_empty();
        if is_head {
            (queue.turn, queue.head_since) = (input, now);
        }
        queue.inputs.entry(input).or_default().push_back(waiting);
        is_head
    }

    /// Takes the packet at the head. Returns it with the time at which it came there.
    pub(crate) fn pop(&mut self, output: Output, now: Instant) -> Option<(Instant, Waiting)> {
        let queue = self.queues.get_mut(&output)?;
        let since = queue.head_since;
        queue.pop(now).map(|waiting| (since, waiting))
    }

    /// Returns the time since which the packet at the head has been there, or `None` if none waits.
    pub(crate) fn head_since(&self, output: Output) -> Option<Instant> {
        let queue = self.queues.get(&output)?;
        (!queue.inputs.is_empty()).then_some(queue.head_since)
    }

    /// Exchanges the timer that watches the head.
    pub(crate) fn set_timer(
        &mut self,
        output: Output,
        timer: Option<TimerKey>,
    ) -> Option<TimerKey> {
        let queue = self.queues.get_mut(&output)?;
        core::mem::replace(&mut queue.timer, timer)
    }

    /// Notes that a packet left by an output. Returns the timer that has nothing left to watch.
    pub(crate) fn sent(&mut self, output: Output) -> Option<TimerKey> {
        let queue = self.queues.get_mut(&output)?;
        queue.expired = 0;
        if queue.inputs.is_empty() {
            return self.queues.remove(&output)?.timer;
        }
        None
    }

    /// Notes that a packet was discarded at the head, where packets live for `life`. Returns `true` if the lane is stalled by it:
    /// after `stall_count` of them, of which 0 is none.
    pub(crate) fn expired(
        &mut self,
        output: Output,
        life: Duration,
        stall_count: u8,
        now: Instant,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(&output) else {
            return false;
        };
        queue.expired = queue.expired.saturating_add(1);
        let is_stalled = stall_count != 0 && queue.expired >= stall_count;
        if is_stalled {
            queue.expired = 0;
            queue.stalled_until = now + life * STALL_LIVES;
        }
        is_stalled
    }
}
