//! The rate of each VF and of the port, and the frames that wait for them.
//!
//! A frame of a VF goes on at once if the VF's token bucket and the port's let it and no other
//! VF is waiting for the port. Else it waits in the VF's queue. A VF whose own bucket is empty waits for
//! the time at which it is not; then for the port, in which VFs take turns by their weights.

use std::collections::VecDeque;

use ib_vtime::{Instant, Rate, TimerKey, TimerQueue, TokenBucket};
use vf_tunnel::{DropReason, SpecialQp, ToPf, VfId};

use crate::config::{EgressLimit, WireLimit};
use crate::fair_queue::FairQueue;
use crate::output::Cause;

/// A frame that waits.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// When it came.
    pub(crate) since: Instant,
    pub(crate) cause: Cause,
    pub(crate) qp: SpecialQp,
    pub(crate) frame: ToPf,
}

/// How a VF's queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueView {
    pub(crate) len: usize,
    pub(crate) limit: usize,
    /// When the frame came that has waited longest.
    pub(crate) since: Option<Instant>,
}

/// What becomes of a frame that a VF offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It goes on.
    Now,
    /// It goes on later.
    Held,
    /// There is no place for it.
    Refused(DropReason),
}

/// A VF's bucket and queue.
#[derive(Clone, Debug)]
struct Lane {
    rate: Rate,
    bucket: TokenBucket,
    depth: usize,
    queue: VecDeque<Held>,
    /// While the VF waits for its own bucket.
    timer: Option<TimerKey>,
}

impl Lane {
    fn is_ready(&self, now: Instant) -> bool {
        self.bucket.ready_at(&self.rate) <= now
    }
}

/// What all VFs together may send.
#[derive(Clone, Debug)]
struct Wire {
    rate: Rate,
    bucket: TokenBucket,
    /// Frames that the send ring behind the mux still takes; `None` if nobody counts.
    room: Option<usize>,
}

impl Wire {
    /// When a frame may go; `None` if that is not a matter of time.
    fn opens_at(&self) -> Option<Instant> {
        (self.room != Some(0)).then(|| self.bucket.ready_at(&self.rate))
    }

    fn is_open(&self, now: Instant) -> bool {
        self.opens_at().is_some_and(|at| at <= now)
    }

    /// Takes what a frame costs. The wire must be open.
    fn take(&mut self, now: Instant) {
        self.bucket.take(now, &self.rate);
        if let Some(room) = &mut self.room {
            *room = room.saturating_sub(1);
        }
    }
}

/// The lanes of a port's VFs.
///
/// Offering a frame, taking the next one, and telling when that will be take O(log n) for n VFs.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    lanes: Vec<Option<Box<Lane>>>,
    /// The VFs with frames that wait for their own buckets.
    limited: TimerQueue<VfId>,
    /// The VFs with frames that wait for the port.
    fair: FairQueue,
    wire: Wire,
    queued: usize,
}

impl Limiter {
    pub(crate) fn new(limit: WireLimit) -> Self {
        Self {
            lanes: Vec::new(),
            limited: TimerQueue::new(),
            fair: FairQueue::default(),
            wire: Wire {
                rate: limit.rate(),
                bucket: TokenBucket::full(),
                room: None,
            },
            queued: 0,
        }
    }

    fn lane(&mut self, vf: VfId) -> Option<&mut Lane> {
        self.lanes.get_mut(vf.index())?.as_deref_mut()
    }

    /// Adds a VF.
    pub(crate) fn add(&mut self, vf: VfId, limit: EgressLimit) {
        let at = vf.index();
        if at >= self.lanes.len() {
            self.lanes.resize(at + 1, None);
        }
        self.lanes[at] = Some(Box::new(Lane {
            rate: limit.rate(),
            bucket: TokenBucket::full(),
            depth: limit.queue,
            queue: VecDeque::new(),
            timer: None,
        }));
        self.fair.set_weight(vf, limit.weight);
    }

    /// Forgets a VF, which has nothing waiting.
    pub(crate) fn remove(&mut self, vf: VfId) {
        if let Some(lane) = self.lanes.get_mut(vf.index()) {
            *lane = None;
        }
    }

    /// Gives a VF another limit. What it has used up counts on; what waits goes on waiting.
    pub(crate) fn change(&mut self, now: Instant, vf: VfId, limit: EgressLimit) {
        let Some(lane) = self.lane(vf) else { return };
        let rate = limit.rate();
        lane.bucket.change_rate(now, &lane.rate, &rate);
        lane.rate = rate;
        lane.depth = limit.queue;
        self.fair.set_weight(vf, limit.weight);
        self.leave(vf);
        self.enter(now, vf);
    }

    /// Gives the port another limit.
    pub(crate) fn change_wire(&mut self, now: Instant, limit: WireLimit) {
        let rate = limit.rate();
        self.wire.bucket.change_rate(now, &self.wire.rate, &rate);
        self.wire.rate = rate;
    }

    /// Says how many frames the send ring behind the mux takes.
    pub(crate) const fn set_wire_room(&mut self, room: Option<usize>) {
        self.wire.room = room;
    }

    /// Takes a frame; only when it is to be held does it cost more than the buckets.
    pub(crate) fn offer(
        &mut self,
        now: Instant,
        vf: VfId,
        held: impl FnOnce() -> Held,
    ) -> Admission {
        let open = self.fair.is_empty() && self.wire.is_open(now);
        let Some(lane) = self.lane(vf) else {
            return Admission::Refused(DropReason::VfInReset);
        };
        if open && lane.queue.is_empty() && lane.bucket.take(now, &lane.rate) {
            self.wire.take(now);
            return Admission::Now;
        }
        if lane.queue.len() >= lane.depth {
            return Admission::Refused(if lane.is_ready(now) {
                DropReason::Backpressure
            } else {
                DropReason::RateLimited
            });
        }
        lane.queue.push_back(held());
        let is_first = lane.queue.len() == 1;
        self.queued += 1;
        if is_first {
            self.enter(now, vf);
        }
        Admission::Held
    }

    /// Lets a VF wait for what its first frame lacks, if it has any.
    fn enter(&mut self, now: Instant, vf: VfId) {
        let Some(lane) = self.lane(vf).filter(|lane| !lane.queue.is_empty()) else {
            return;
        };
        if lane.is_ready(now) {
            self.fair.insert(vf);
        } else {
            let at = lane.bucket.ready_at(&lane.rate);
            let key = self.limited.set(at, vf);
            if let Some(lane) = self.lane(vf) {
                lane.timer = Some(key);
            }
        }
    }

    /// Lets a VF wait for nothing.
    fn leave(&mut self, vf: VfId) {
        if let Some(key) = self.lane(vf).and_then(|lane| lane.timer.take()) {
            self.limited.cancel(key);
        }
        self.fair.remove(vf);
    }

    /// The next frame whose time has come.
    pub(crate) fn pop_ready(&mut self, now: Instant) -> Option<(VfId, Held)> {
        while let Some((_, vf)) = self.limited.pop_due(now) {
            if let Some(lane) = self.lane(vf) {
                lane.timer = None;
            }
            self.fair.insert(vf);
        }
        if !self.wire.is_open(now) {
            return None;
        }
        let vf = self.fair.pop()?;
        let lane = self.lane(vf)?;
        lane.bucket.take(now, &lane.rate);
        let held = lane.queue.pop_front()?;
        self.wire.take(now);
        self.queued -= 1;
        self.enter(now, vf);
        self.fair.settle();
        Some((vf, held))
    }

    /// When [`Limiter::pop_ready`] has something to give; `None` if that is not a matter of time.
    pub(crate) fn next_ready(&self) -> Option<Instant> {
        let someone = if self.fair.is_empty() {
            self.limited.next_deadline()?
        } else {
            Instant::ZERO
        };
        self.wire.opens_at().map(|at| at.max(someone))
    }

    /// Empties a VF's queue.
    pub(crate) fn clear(&mut self, vf: VfId) -> VecDeque<Held> {
        self.leave(vf);
        let lane = self.lane(vf);
        let cleared = lane.map_or_else(VecDeque::new, |lane| core::mem::take(&mut lane.queue));
        self.queued -= cleared.len();
        cleared
    }

    /// A VF's queue, seen from outside.
    pub(crate) fn queue(&self, vf: VfId) -> QueueView {
        let lane = self.lanes.get(vf.index()).and_then(Option::as_ref);
        lane.map_or_else(QueueView::default, |lane| QueueView {
            len: lane.queue.len(),
            limit: lane.depth,
            since: lane.queue.front().map(|held| held.since),
        })
    }

    /// Frames that wait.
    pub(crate) const fn queued(&self) -> usize {
        self.queued
    }
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU16;
    use core::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const VFS: u16 = 4;

    #[derive(Clone, Debug)]
    enum Op {
        Offer { vf: u16 },
        Change { vf: u16, rate: u32, weight: u16 },
        ChangeWire { rate: u32 },
        Room(Option<usize>),
        Clear { vf: u16 },
        Wait { micros: u64 },
    }

    fn op() -> impl Strategy<Value = Op> {
        let rate = || prop_oneof![Just(0_u32), 100_u32..10_000];
        prop_oneof![
            8 => (1..=VFS).prop_map(|vf| Op::Offer { vf }),
            1 => (1..=VFS, rate(), 1_u16..9)
                .prop_map(|(vf, rate, weight)| Op::Change { vf, rate, weight }),
            1 => rate().prop_map(|rate| Op::ChangeWire { rate }),
            1 => prop::option::of(0_usize..4).prop_map(Op::Room),
            1 => (1..=VFS).prop_map(|vf| Op::Clear { vf }),
            4 => (0_u64..3_000).prop_map(|micros| Op::Wait { micros }),
        ]
    }

    fn vf(number: u16) -> VfId {
        VfId::new(number).unwrap()
    }

    fn limit(mads_per_second: u32, weight: u16) -> EgressLimit {
        EgressLimit {
            mads_per_second,
            burst: 2,
            queue: 3,
            weight: NonZeroU16::new(weight).unwrap(),
        }
    }

    fn wire(mads_per_second: u32) -> WireLimit {
        WireLimit {
            mads_per_second,
            burst: 2,
        }
    }

    fn held(number: u64) -> Held {
        Held {
            since: Instant::ZERO,
            cause: Cause(number),
            qp: SpecialQp::Gsi,
            frame: ToPf::zeroed(),
        }
    }

    /// The queues as they must be.
    #[derive(Default)]
    struct Model {
        queues: [VecDeque<u64>; VFS as usize],
        room: Option<usize>,
    }

    impl Model {
        fn queue(&mut self, vf: VfId) -> &mut VecDeque<u64> {
            &mut self.queues[vf.index() % usize::from(VFS)]
        }

        fn queued(&self) -> usize {
            self.queues.iter().map(VecDeque::len).sum()
        }

        fn spend(&mut self) {
            if let Some(room) = &mut self.room {
                assert!(*room > 0, "a frame went where there is no room");
                *room -= 1;
            }
        }
    }

    /// Takes what is ready: never before it was said to be, and each VF's in its order.
    fn drain(limiter: &mut Limiter, model: &mut Model, now: Instant) {
        loop {
            let due = limiter.next_ready().is_some_and(|at| at <= now);
            let Some((vf, held)) = limiter.pop_ready(now) else {
                assert!(!due, "what is due is there");
                return;
            };
            assert!(due, "what is there was due");
            assert_eq!(model.queue(vf).pop_front(), Some(held.cause.0));
            model.spend();
        }
    }

    fn step(limiter: &mut Limiter, model: &mut Model, now: Instant, number: u64, op: Op) {
        match op {
            Op::Offer { vf: of } => match limiter.offer(now, vf(of), || held(number)) {
                Admission::Now => {
                    assert!(model.queue(vf(of)).is_empty(), "overtaken");
                    model.spend();
                }
                Admission::Held => model.queue(vf(of)).push_back(number),
                Admission::Refused(_) => assert_eq!(model.queue(vf(of)).len(), 3),
            },
            Op::Change {
                vf: of,
                rate,
                weight,
            } => limiter.change(now, vf(of), limit(rate, weight)),
            Op::ChangeWire { rate } => limiter.change_wire(now, wire(rate)),
            Op::Room(room) => {
                limiter.set_wire_room(room);
                model.room = room;
            }
            Op::Clear { vf: of } => {
                let cleared = limiter.clear(vf(of)).into_iter().map(|held| held.cause.0);
                assert!(cleared.eq(model.queue(vf(of)).drain(..)));
            }
            Op::Wait { .. } => {}
        }
    }

    proptest! {
        #[test]
        fn whatever_happens_each_queue_keeps_its_order_and_comes_out_when_said(
            ops in prop::collection::vec(op(), 0..120),
        ) {
            let mut limiter = Limiter::new(wire(1_000));
            (1..=VFS).for_each(|number| limiter.add(vf(number), limit(500, 1)));
            let (mut model, mut now) = (Model::default(), Instant::ZERO);
            for (number, op) in (0..).zip(ops) {
                if let Op::Wait { micros } = op {
                    now += Duration::from_micros(micros);
                }
                step(&mut limiter, &mut model, now, number, op);
                drain(&mut limiter, &mut model, now);
                prop_assert_eq!(limiter.queued(), model.queued());
            }
            limiter.set_wire_room(None);
            model.room = None;
            now += Duration::from_secs(10);
            while let Some(at) = limiter.next_ready() {
                now = now.max(at);
                drain(&mut limiter, &mut model, now);
            }
            prop_assert_eq!((limiter.queued(), model.queued()), (0, 0));
        }
    }
}
