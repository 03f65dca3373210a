//! What the SA's answers, and its silence, do to the groups.

use alloc::vec::Vec;

use ib_vtime::Instant;
use ib_wire::Gid;
use ib_wire::mad::MadStatus;
use ib_wire::sa::{JoinState, McMemberRecord, SaMad};

use super::McastAgg;
use crate::aim::{GroupAim, Purpose};
use crate::answer::{failure, refuse};
use crate::api::Output;
use crate::group::Group;
use crate::members::Members;
use crate::transaction::{Token, Transaction, Waiting};
use crate::{MemberId, request};

impl McastAgg {
    pub(super) fn joined(&mut self, transaction: Transaction<GroupAim>, answer: &SaMad) {
        let GroupAim { mgid, state, .. } = transaction.aim;
        let granted = answer.header.status == MadStatus::OK;
        if let Some(group) = self.group_mut(mgid) {
            if granted {
                let record = answer.record::<McMemberRecord>();
                group.record = record;
                group.granted(state | record.join_state());
            } else if transaction.repeated {
                // An earlier transmission may have been granted, and that answer lost.
                group.doubtful = group.doubtful | state;
            }
        }
        let index = self.by_mgid.get(&mgid).copied();
        let Some(waiting) = transaction.waiting else {
            return;
        };
        self.answer(waiting, |agg, waiting, mad| match index {
            Some(index) if granted => agg.admit(index, waiting.member, &waiting.pkeys, mad),
            _ => refuse(mad, failure(answer.header.status)),
        });
    }

    pub(super) fn created(&mut self, state: JoinState, waiting: Option<Waiting>, answer: &SaMad) {
        let mut record = answer.record::<McMemberRecord>();
        let granted = answer.header.status == MadStatus::OK && record.mgid.is_multicast();
        let index = granted.then(|| {
            let known = self.by_mgid.get(&record.mgid).copied();
            let index = known.unwrap_or_else(|| self.insert(record.mgid, Group::default()));
            let group = &mut self.groups[index];
            group.at_sa = group.at_sa | state;
            record.set_join_state(JoinState::NONE);
            group.record = record;
            index
        });
        let Some(waiting) = waiting else { return };
        self.answer(waiting, |agg, waiting, mad| match index {
            Some(index) => agg.admit(index, waiting.member, &waiting.pkeys, mad),
            None => refuse(mad, failure(answer.header.status)),
        });
    }

    pub(super) fn rejoined(&mut self, mgid: Gid, state: JoinState, full: bool, answer: &SaMad) {
        let record = answer.record::<McMemberRecord>();
        let Some(group) = self.group_mut(mgid) else {
            return;
        };
        if answer.header.status == MadStatus::OK {
            let changed = !request::same_group(&record, &group.record);
            group.record = record;
            group.at_sa = state | record.join_state();
            let members = group.members.ids().collect();
            if changed {
                self.outputs.push_back(Output::Changed { mgid, members });
            }
        } else if full && !group.rejoin_due {
            self.begin_rejoin(mgid, false);
        } else if !group.rejoin_due {
            self.lose(mgid);
        }
    }

    /// The SA does not take the port back: its members are told, and nobody holds anything.
    fn lose(&mut self, mgid: Gid) {
        let Some(group) = self.group_mut(mgid) else {
            return;
        };
        let members: Vec<MemberId> = group.members.ids().collect();
        group.members = Members::default();
        group.at_sa = JoinState::NONE;
        for &member in &members {
            self.usage.release(member);
        }
        self.outputs.push_back(Output::Lost { mgid, members });
    }

    pub(super) fn left(
        &mut self,
        now: Instant,
        token: Token,
        leave: Transaction<GroupAim>,
        status: MadStatus,
    ) {
        let GroupAim { mgid, state, .. } = leave.aim;
        let invalid = status == MadStatus::SA_REQ_INVALID;
        let done = invalid || status == MadStatus::OK;
        let wanted = self
            .group(mgid)
            .is_some_and(|group| !group.waiting.is_empty());
        if let Some(wait) = leave.next_wait().filter(|_| !done && !wanted) {
            if let Some(group) = self.group_mut(mgid) {
                group.in_flight = Some(token);
            }
            self.exchange.retry(now + wait, token, leave);
            return;
        }
        // Invalid is a Delete of what the port does not hold. That is what was wanted, unless the SA
        // refused several kinds for the sake of one.
        let several = state.get().count_ones() > 1;
        if let Some(group) = self
            .group_mut(mgid)
            .filter(|_| wanted && !done || invalid && several)
        {
            group.doubtful = group.doubtful | state;
        }
        self.advance(mgid);
    }

    /// An answer came after all to a join that was given up: the membership is given back. Nobody may
    /// count on it, since a Delete for it may be under way.
    pub(super) fn take_back(&mut self, now: Instant, record: &McMemberRecord, state: JoinState) {
        let known = self.by_mgid.get(&record.mgid).copied();
        let index = known.unwrap_or_else(|| self.insert(record.mgid, Group::default()));
        let group = &mut self.groups[index];
        group.doubtful = group.doubtful | state;
        self.advance(record.mgid);
        self.pump(now);
    }

    /// The SA does not answer.
    pub(super) fn gave_up(&mut self, transaction: Transaction<GroupAim>) {
        let GroupAim {
            purpose,
            mgid,
            state,
        } = transaction.aim;
        if let Some(group) = self.group_mut(mgid) {
            group.in_flight = None;
            if matches!(purpose, Purpose::Join) {
                group.doubtful = group.doubtful | state;
            }
        }
        if let Some(waiting) = transaction.waiting {
            match self.config.give_up_status {
                Some(status) => self.answer(waiting, |_, _, mad| refuse(mad, status)),
                None => self.usage.stop_waiting(waiting.member),
            }
        }
        self.advance(mgid);
    }
}
