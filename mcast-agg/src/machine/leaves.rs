//! Leaves that wait until the SA has taken a membership back.
//!
//! A member that was the last to hold a kind of membership is answered when the SA has answered the
//! Delete that follows: a join of the same host or of another that comes after finds the group as the
//! SA has it then. A guest does not wait longer than [`PATIENCE`]; the Delete goes on without it.

use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::sa::{JoinState, McMemberRecord, SaMad};

use super::McastAgg;
use crate::aim::{GroupKey, Purpose};
use crate::api::{Output, Requester};
use crate::group::Group;
use crate::transaction::Leave;
use crate::{MemberId, Outcome};

/// Time that a leave waits for the SA: as long as Linux's guests wait for its answer.
const PATIENCE: Duration = Duration::from_secs(3);

impl McastAgg {
    /// Returns `true` if the member has sent a leave again that waits.
    pub(super) fn awaits_leave(&self, index: usize, member: MemberId, mad: &SaMad) -> bool {
        let mut leaves = self.groups[index].leaves.iter();
        leaves.any(|leave| leave.member == member && leave.answer.header.tid == mad.header.tid)
    }

    /// Keeps the answer to a leave after which the port gives up a kind of membership. A member with
    /// too many of them is answered at once.
    pub(super) fn keep_leave(
        &mut self,
        now: Instant,
        index: usize,
        from: &Requester<'_>,
        less: JoinState,
        mad: &SaMad,
    ) -> Outcome {
        let (key, group) = self.groups.entry(index);
        let state = both(less, surplus(group));
        let has_room = self.usage.leaving(from.id) < self.config.waiting_of(from.id);
        if state.is_empty() || !has_room {
            return Outcome::Answered;
        }
        let until = now + PATIENCE;
        group.leaves.push(Leave {
            member: from.id,
            pkey_index: from.pkey_index,
            state,
            answer: *mad,
            until,
            timer: self.leave_timers.set(until, key),
        });
        self.usage.leave(from.id);
        Outcome::Absorbed
    }

    /// Returns `true` if a join must not be answered before a leave that waits.
    pub(super) fn is_behind_leave(&self, index: usize, state: JoinState) -> bool {
        let mut leaves = self.groups[index].leaves.iter();
        leaves.any(|leave| !both(leave.state, state).is_empty())
    }

    /// Answers the leaves for which the SA has nothing left to do.
    pub(super) fn answer_leaves(&mut self, index: usize) {
        let group = &self.groups[index];
        if group.leaves.is_empty() {
            return;
        }
        let under_way = group.in_flight.and_then(|token| self.exchange.get(token));
        let given_up = under_way.filter(|t| matches!(t.aim.purpose, Purpose::Leave));
        let mut pending = surplus(group) | given_up.map_or(JoinState::NONE, |t| t.aim.state);
        if group.waiting.is_empty() {
            // No join comes first: these are given up next.
            let known = group.members.aggregate() | group.at_sa;
            pending = pending | group.doubtful.difference(known);
        }
        self.answer_leaves_if(index, |leave| both(leave.state, pending).is_empty());
    }

    /// Answers the leaves that have waited long enough.
    pub(super) fn answer_late_leaves(&mut self, now: Instant) {
        while let Some((_, key)) = self.leave_timers.pop_due(now) {
            if let Some(index) = self.groups.find(key) {
                self.answer_leaves_if(index, |leave| leave.until <= now);
            }
        }
    }

    /// Forgets the leaves of a member that is gone.
    pub(super) fn forget_leaves(&mut self, key: GroupKey, member: MemberId) {
        if let Some(index) = self.groups.find(key) {
            self.take_leaves(index, |leave| leave.member == member);
        }
    }

    fn answer_leaves_if(&mut self, index: usize, is_due: impl Fn(&Leave) -> bool) {
        for leave in self.take_leaves(index, is_due) {
            let held = self.groups[index].members.state(leave.member);
            let mut answer = leave.answer;
            answer.record_mut::<McMemberRecord>().set_join_state(held);
            self.outputs.push_back(Output::Answer {
                member: leave.member,
                pkey_index: leave.pkey_index,
                answer,
            });
        }
    }

    fn take_leaves(&mut self, index: usize, is_taken: impl Fn(&Leave) -> bool) -> Vec<Leave> {
        let (_, group) = self.groups.entry(index);
        let all = std::mem::take(&mut group.leaves);
        let (taken, left): (Vec<Leave>, Vec<Leave>) = all.into_iter().partition(is_taken);
        group.leaves = left;
        for leave in &taken {
            self.leave_timers.cancel(leave.timer);
            self.usage.has_left(leave.member);
        }
        taken
    }
}

/// The kinds of membership that the port holds and no member does.
fn surplus(group: &Group) -> JoinState {
    group.at_sa.difference(group.members.aggregate())
}

fn both(a: JoinState, b: JoinState) -> JoinState {
    a.difference(a.difference(b))
}
