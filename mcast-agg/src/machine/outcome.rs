//! What the SA's answers, and its silence, do to the groups.

use ib_vtime::Instant;
use ib_wire::mad::MadStatus;
use ib_wire::sa::{JoinState, McMemberRecord, SaMad};

use super::McastAgg;
use crate::aim::{GroupAim, GroupKey, Purpose};
use crate::answer::{failure, refuse};
use crate::api::Output;
use crate::members::Members;
use crate::transaction::{Token, Transaction, Waiting};
use crate::{MemberId, request};

impl McastAgg {
    pub(super) fn joined(&mut self, transaction: Transaction<GroupAim>, answer: &SaMad) {
        let GroupAim { key, state, .. } = transaction.aim;
        let granted = answer.header.status == MadStatus::OK;
        if let Some(group) = self.group_mut(key) {
            if granted {
                let record = answer.record::<McMemberRecord>();
                group.record = record;
                group.granted(state | record.join_state());
            } else if transaction.repeated {
                // An earlier transmission may have been granted, and that answer lost.
                group.doubtful = group.doubtful | state;
            }
        }
        let index = self.groups.find(key);
        let Some(waiting) = transaction.waiting else {
            return;
        };
        self.answer(waiting, |agg, waiting, mad| match index {
            Some(index) if granted => agg.admit_waiting(index, waiting, mad),
            _ => refuse(mad, failure(answer.header.status)),
        });
    }

    pub(super) fn created(
        &mut self,
        key: GroupKey,
        state: JoinState,
        waiting: Option<Waiting>,
        answer: &SaMad,
    ) {
        let mut record = answer.record::<McMemberRecord>();
        let granted = answer.header.status == MadStatus::OK && record.mgid.is_multicast();
        let index = granted.then(|| {
            let index = self.groups.find_or_insert(key);
            let group = &mut self.groups[index];
            group.at_sa = group.at_sa | state;
            // The request named no group.
            group.sa_joins += 1;
            record.set_join_state(JoinState::NONE);
            group.record = record;
            index
        });
        let Some(waiting) = waiting else { return };
        self.answer(waiting, |agg, waiting, mad| match index {
            Some(index) => agg.admit_waiting(index, waiting, mad),
            None => refuse(mad, failure(answer.header.status)),
        });
    }

    pub(super) fn rejoined(
        &mut self,
        now: Instant,
        token: Token,
        rejoin: Transaction<GroupAim>,
        full: bool,
        answer: &SaMad,
    ) {
        let GroupAim { key, state, .. } = rejoin.aim;
        let record = answer.record::<McMemberRecord>();
        let Some(group) = self.group_mut(key) else {
            return;
        };
        if answer.header.status == MadStatus::OK {
            let changed = !request::same_group(&record, &group.record);
            group.record = record;
            group.at_sa = state | record.join_state();
            let members = group.members.ids().collect();
            if changed {
                let mgid = key.mgid;
                self.outputs.push_back(Output::Changed { mgid, members });
            }
        } else if full && !group.rejoin_due {
            self.begin_rejoin(key, false);
        } else if !group.rejoin_due && !self.ask_again_for_alias(now, token, rejoin) {
            self.lose(key);
        }
    }

    /// The SA does not take the port back: its members are told, and nobody holds anything.
    fn lose(&mut self, key: GroupKey) {
        let Some(group) = self.group_mut(key) else {
            return;
        };
        let members: Vec<MemberId> = group.members.ids().collect();
        group.members = Members::default();
        group.at_sa = JoinState::NONE;
        for &member in &members {
            self.usage.release(member);
        }
        let mgid = key.mgid;
        self.outputs.push_back(Output::Lost { mgid, members });
    }

    pub(super) fn left(
        &mut self,
        now: Instant,
        token: Token,
        leave: Transaction<GroupAim>,
        status: MadStatus,
    ) {
        let GroupAim { key, state, .. } = leave.aim;
        let invalid = status == MadStatus::SA_REQ_INVALID;
        let done = invalid || status == MadStatus::OK;
        let wanted = self
            .group(key)
            .is_some_and(|group| !group.waiting.is_empty());
        if let Some(wait) = leave.next_wait().filter(|_| !done && !wanted) {
            if let Some(group) = self.group_mut(key) {
                group.in_flight = Some(token);
            }
            self.exchange.retry(now + wait, token, leave);
            return;
        }
        // Invalid is a Delete of what the port does not hold. That is what was wanted, unless the SA
        // refused several kinds for the sake of one.
        let several = state.get().count_ones() > 1;
        if let Some(group) = self
            .group_mut(key)
            .filter(|_| wanted && !done || invalid && several)
        {
            group.doubtful = group.doubtful | state;
        }
        self.advance(key);
    }

    /// An answer came after all to a join that was given up: the membership is given back. Nobody may
    /// count on it, since a Delete for it may be under way.
    pub(super) fn take_back(&mut self, now: Instant, key: GroupKey, state: JoinState) {
        let index = self.groups.find_or_insert(key);
        let group = &mut self.groups[index];
        group.doubtful = group.doubtful | state;
        self.advance(key);
        self.pump(now);
    }

    /// The SA does not answer.
    pub(super) fn gave_up(&mut self, transaction: Transaction<GroupAim>) {
        let GroupAim {
            purpose,
            key,
            state,
        } = transaction.aim;
        if let Some(group) = self.group_mut(key) {
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
        self.advance(key);
    }
}
