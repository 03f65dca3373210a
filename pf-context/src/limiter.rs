//! The rate of each VF, and the frames that wait for it.

use core::time::Duration;
use std::collections::VecDeque;

use ib_vtime::Instant;
use vf_tunnel::{SpecialQp, ToPf, VfId};

use crate::config::EgressLimit;
use crate::output::Cause;

/// A frame that waits.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) cause: Cause,
    pub(crate) qp: SpecialQp,
    pub(crate) frame: ToPf,
}

/// What becomes of a frame that a VF offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It goes on.
    Now,
    /// It goes on later.
    Held,
    /// There is no place for it.
    Refused,
}

/// A VF's token bucket, kept as the one time at which it will be full again: the "theoretical arrival
/// time" of the generic cell rate algorithm (ITU-T I.371). And the VF's queue.
#[derive(Clone, Debug)]
struct Lane {
    limit: EgressLimit,
    full_at: Instant,
    queue: VecDeque<Held>,
}

impl Lane {
    fn interval(&self) -> Duration {
        match self.limit.mads_per_second {
            0 => Duration::ZERO,
            rate => Duration::from_nanos(1_000_000_000 / u64::from(rate)),
        }
    }

    /// Frames that the bucket lacks.
    fn used(&self, now: Instant) -> u32 {
        let interval = self.interval().as_nanos().max(1);
        let missing = self.full_at.saturating_duration_since(now).as_nanos();
        u32::try_from(missing.div_ceil(interval)).unwrap_or(u32::MAX)
    }

    /// When the next frame may go.
    fn ready_at(&self) -> Instant {
        let ahead = self.interval() * self.limit.burst.saturating_sub(1);
        let nanos = u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(self.full_at.as_nanos().saturating_sub(nanos))
    }

    fn take(&mut self, now: Instant) -> bool {
        let ready = self.ready_at() <= now;
        if ready {
            self.full_at = self.full_at.max(now) + self.interval();
        }
        ready
    }
}

/// The lanes of a port's VFs, served in turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limiter {
    lanes: Vec<Option<Box<Lane>>>,
    /// The VFs that have frames waiting, the next to be served first.
    turn: VecDeque<VfId>,
    queued: usize,
}

impl Limiter {
    /// Adds a VF.
    pub(crate) fn add(&mut self, vf: VfId, limit: EgressLimit) {
        let at = vf.index();
        if at >= self.lanes.len() {
            self.lanes.resize(at + 1, None);
        }
        self.lanes[at] = Some(Box::new(Lane {
            limit,
            full_at: Instant::ZERO,
            queue: VecDeque::new(),
        }));
    }

    /// Gives a VF another limit. What it has used up counts on; what waits goes on waiting.
    pub(crate) fn change(&mut self, now: Instant, vf: VfId, limit: EgressLimit) {
        if let Some(lane) = self.lanes.get_mut(vf.index()).and_then(Option::as_mut) {
            let used = lane.used(now);
            lane.limit = limit;
            lane.full_at = now + lane.interval() * used;
        }
    }

    /// Takes a frame; only when it is to be held does it cost more than the bucket.
    pub(crate) fn offer(
        &mut self,
        now: Instant,
        vf: VfId,
        held: impl FnOnce() -> Held,
    ) -> Admission {
        let Some(lane) = self.lanes.get_mut(vf.index()).and_then(Option::as_mut) else {
            return Admission::Refused;
        };
        if lane.queue.is_empty() && lane.take(now) {
            return Admission::Now;
        }
        if lane.queue.len() >= lane.limit.queue {
            return Admission::Refused;
        }
        if lane.queue.is_empty() {
            self.turn.push_back(vf);
        }
        lane.queue.push_back(held());
        self.queued += 1;
        Admission::Held
    }

    /// The next frame whose time has come: one of each VF in turn.
    pub(crate) fn pop_ready(&mut self, now: Instant) -> Option<(VfId, Held)> {
        for _ in 0..self.turn.len() {
            let vf = self.turn.pop_front()?;
            let lane = self.lanes.get_mut(vf.index())?.as_mut()?;
            if !lane.take(now) {
                self.turn.push_back(vf);
                continue;
            }
            let held = lane.queue.pop_front()?;
            if !lane.queue.is_empty() {
                self.turn.push_back(vf);
            }
            self.queued -= 1;
            return Some((vf, held));
        }
        None
    }

    /// When [`Limiter::pop_ready`] has something to give.
    pub(crate) fn next_ready(&self) -> Option<Instant> {
        let waiting = self.turn.iter();
        waiting
            .filter_map(|vf| Some(self.lanes.get(vf.index())?.as_ref()?.ready_at()))
            .min()
    }

    /// Empties a VF's queue.
    pub(crate) fn clear(&mut self, vf: VfId) -> VecDeque<Held> {
        self.turn.retain(|&other| other != vf);
        let lane = self.lanes.get_mut(vf.index()).and_then(Option::as_mut);
        let cleared = lane.map_or_else(VecDeque::new, |lane| core::mem::take(&mut lane.queue));
        self.queued -= cleared.len();
        cleared
    }

    /// Frames that wait.
    pub(crate) const fn queued(&self) -> usize {
        self.queued
    }
}
