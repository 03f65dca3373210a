//! Queue pairs that have something to send by a port, served by bytes.
//!
//! Start-time fair queueing on two levels: functions by their weights, and the queue pairs of a function alike. Each is
//! served at the time, counted in bytes, at which its former packets would have left had it had its share alone; who was idle
//! gains nothing by that. Idle queue pairs are in no list.

use core::cmp::Ordering;
use core::num::NonZeroU16;
use std::collections::{BTreeMap, BinaryHeap};

use hca_api::FunctionId;

use super::qpn::QpRef;

/// Bytes that a packet costs besides its payload, so that empty ones cost something.
pub(super) const PACKET_COST: u64 = 64;

/// Units of a byte in the times of functions, so that weights divide them.
const SCALE: u64 = 64;

/// One that waits. Those whose packets start earlier are served first, and of the same start those that came first.
#[derive(Debug)]
struct Waiting<T> {
    start: u64,
    came: u64,
    value: T,
}

impl<T> Ord for Waiting<T> {
    /// The greatest is served first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.start, other.came).cmp(&(self.start, self.came))
    }
}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Waiting<T> {}

/// Those that wait, in the order in which they are served.
#[derive(Debug)]
struct Line<T> {
    waiting: BinaryHeap<Waiting<T>>,
    /// Start of the latest that was served.
    now: u64,
    came: u64,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            waiting: BinaryHeap::new(),
            now: 0,
            came: 0,
        }
    }
}

impl<T> Line<T> {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds one whose former packets end at `end`.
    fn push(&mut self, end: u64, value: T) {
        self.came += 1;
        self.waiting.push(Waiting {
            start: self.now.max(end),
            came: self.came,
            value,
        });
    }

    /// Takes the next one, and the start of its packets.
    fn pop(&mut self) -> Option<(u64, T)> {
        let Waiting { start, value, .. } = self.waiting.pop()?;
        self.now = start;
        Some((start, value))
    }
}

/// A function's part of a backlog.
#[derive(Debug)]
struct Share {
    weight: NonZeroU16,
    /// End of its packets that left.
    end: u64,
    /// Cost of its work outside of turns, which its next turn pays.
    owed: u64,
    /// The function waits, or has its turn.
    is_busy: bool,
    queue_pairs: Line<QpRef>,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            weight: NonZeroU16::MIN,
            end: 0,
            owed: 0,
            is_busy: false,
            queue_pairs: Line::default(),
        }
    }
}

/// The turn of a queue pair, to be ended by [`Backlog::end`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Turn {
    pub(super) at: QpRef,
    function_start: u64,
    start: u64,
}

/// Queue pairs with something to send by a port.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    functions: Line<FunctionId>,
    /// Of functions that sent, or were given a weight: as many as the adapter has at most.
    shares: BTreeMap<FunctionId, Share>,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Adds a queue pair whose former packets end at `end`, as [`Self::end`] returned it.
    pub(super) fn push(&mut self, at: QpRef, end: u64) {
        let share = self.shares.entry(at.function).or_default();
        share.queue_pairs.push(end, at);
        if !share.is_busy {
            share.is_busy = true;
            self.functions.push(share.end, at.function);
        }
    }

    /// Begins the turn of the next queue pair.
    pub(super) fn begin(&mut self) -> Option<Turn> {
        loop {
            let (function_start, function) = self.functions.pop()?;
            let share = self.shares.get_mut(&function)?;
            if let Some((start, at)) = share.queue_pairs.pop() {
                return Some(Turn {
                    at,
                    function_start,
                    start,
                });
            }
            // Its queue pairs are gone.
            share.is_busy = false;
        }
    }

    /// Charges a function's next turn for work that was done for the function outside of its turns.
    pub(super) fn owe(&mut self, function: FunctionId, cost: u64) {
        if let Some(share) = self.shares.get_mut(&function) {
            share.owed = share.owed.saturating_add(cost);
        }
    }

    /// Ends a turn in which so many bytes were sent, and which costs the function `cost`: as many bytes, or nanoseconds. Queue pairs
    /// of a function share by bytes alone: a turn in which the host stood still would have one wait for many turns of each other one.
    /// Returns the end of the queue pair's packets.
    pub(super) fn end(&mut self, turn: Turn, bytes: u64, cost: u64) -> u64 {
        if let Some(share) = self.shares.get_mut(&turn.at.function) {
            let cost = cost.saturating_add(core::mem::take(&mut share.owed));
            let cost = cost.saturating_mul(SCALE) / u64::from(share.weight.get());
            share.end = turn.function_start.saturating_add(cost);
            share.is_busy = !share.queue_pairs.is_empty();
            if share.is_busy {
                self.functions.push(share.end, turn.at.function);
            }
        }
        turn.start.saturating_add(bytes)
    }

    /// Sets a function's share of the port, relative to those of others.
    pub(super) fn set_weight(&mut self, function: FunctionId, weight: NonZeroU16) {
        self.shares.entry(function).or_default().weight = weight;
    }

    /// Takes a queue pair out.
    pub(super) fn remove(&mut self, at: QpRef) {
        if let Some(share) = self.shares.get_mut(&at.function) {
            let waiting = &mut share.queue_pairs.waiting;
            waiting.retain(|waiting| waiting.value != at);
        }
    }

    /// Takes all queue pairs of a function out. Its weight stays.
    pub(super) fn remove_function(&mut self, function: FunctionId) {
        if let Some(share) = self.shares.get_mut(&function) {
            share.queue_pairs = Line::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: FunctionId = FunctionId(1);
    const B: FunctionId = FunctionId(2);

    fn qp(function: FunctionId, index: u32) -> QpRef {
        QpRef { function, index }
    }

    /// Serves a backlog in which everybody always has more, and returns the bytes of each queue pair.
    fn serve(backlog: &mut Backlog, sizes: &[(QpRef, u64)], total: u64) -> Vec<u64> {
        for (at, _) in sizes {
            backlog.push(*at, 0);
        }
        let mut sent = vec![0; sizes.len()];
        while sent.iter().sum::<u64>() < total {
            let turn = backlog.begin().unwrap();
            let which = sizes.iter().position(|(at, _)| *at == turn.at).unwrap();
            sent[which] += sizes[which].1;
            let end = backlog.end(turn, sizes[which].1, sizes[which].1);
            backlog.push(turn.at, end);
        }
        sent
    }

    /// Returns the part of a whole in percent.
    fn percent(part: u64, whole: u64) -> u64 {
        (100 * part + whole / 2) / whole
    }

    #[test]
    fn functions_share_a_port_by_bytes_whatever_queue_pairs_they_have() {
        let mut backlog = Backlog::default();
        let mut sizes = vec![(qp(A, 0), 256)];
        sizes.extend((0..50).map(|index| (qp(B, index), 1 << 16)));
        let sent = serve(&mut backlog, &sizes, 100 << 20);
        assert_eq!(percent(sent[0], 100 << 20), 50);
    }

    #[test]
    fn weights_are_relative() {
        let mut backlog = Backlog::default();
        backlog.set_weight(A, NonZeroU16::new(3).unwrap());
        let sizes = [(qp(A, 0), 4096), (qp(B, 0), 1 << 16)];
        let sent = serve(&mut backlog, &sizes, 100 << 20);
        assert_eq!(percent(sent[0], 100 << 20), 75);
    }

    #[test]
    fn functions_pay_by_their_weights_for_what_turns_cost_and_for_work_outside_of_them() {
        let mut backlog = Backlog::default();
        backlog.set_weight(A, NonZeroU16::new(4).unwrap());
        for at in [qp(A, 0), qp(B, 0)] {
            backlog.push(at, 0);
        }
        let mut cost = [0_u64; 2];
        for _ in 0..10_000 {
            let turn = backlog.begin().unwrap();
            // Each of B's turns has a timer of a third as much.
            let is_b = turn.at.function == B;
            cost[usize::from(is_b)] += if is_b { 4000 } else { 500 };
            if is_b {
                backlog.owe(B, 1000);
            }
            let end = backlog.end(turn, 64, if is_b { 3000 } else { 500 });
            backlog.push(turn.at, end);
        }
        assert_eq!(percent(cost[0], cost[0] + cost[1]), 80, "{cost:?}");
    }

    #[test]
    fn queue_pairs_of_a_function_share_by_bytes() {
        let mut backlog = Backlog::default();
        let sizes = [(qp(A, 0), 100), (qp(A, 1), 1 << 16), (qp(A, 2), 5000)];
        let sent = serve(&mut backlog, &sizes, 30 << 20);
        for part in sent {
            assert_eq!(percent(part, 30 << 20), 33);
        }
    }

    #[test]
    fn like_queue_pairs_are_served_in_the_order_in_which_they_came() {
        let mut backlog = Backlog::default();
        for index in [2, 0, 1] {
            backlog.push(qp(A, index), 0);
        }
        let mut order = Vec::new();
        for _ in 0..6 {
            let turn = backlog.begin().unwrap();
            order.push(turn.at.index);
            let end = backlog.end(turn, 64, 64);
            backlog.push(turn.at, end);
        }
        assert_eq!(order, [2, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn who_was_idle_gains_nothing() {
        let mut backlog = Backlog::default();
        serve(&mut backlog, &[(qp(A, 0), 1 << 16)], 100 << 20);
        backlog.push(qp(B, 0), 0);
        let mut sent = [0_u64; 2];
        for _ in 0..1000 {
            let turn = backlog.begin().unwrap();
            sent[usize::from(turn.at.function == B)] += 1;
            let end = backlog.end(turn, 4096, 4096);
            backlog.push(turn.at, end);
        }
        assert!(sent[0].abs_diff(sent[1]) <= 32, "{sent:?}");
    }

    #[test]
    fn who_is_gone_is_not_served() {
        let mut backlog = Backlog::default();
        for (function, index) in [(A, 0), (A, 1), (B, 0)] {
            backlog.push(qp(function, index), 0);
        }
        backlog.remove(qp(A, 0));
        backlog.remove_function(B);
        let turn = backlog.begin().unwrap();
        assert_eq!(turn.at, qp(A, 1));
        backlog.end(turn, 64, 64);
        assert!(backlog.begin().is_none() && backlog.is_empty());
        backlog.push(qp(B, 1), 0);
        assert_eq!(backlog.begin().map(|turn| turn.at), Some(qp(B, 1)));
    }
}
