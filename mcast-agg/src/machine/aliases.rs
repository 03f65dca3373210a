//! Memberships under the members' own aliases: leaving with an alias, coming back with one.

use ib_vtime::Instant;
use ib_wire::Guid;
use ib_wire::mad::MadStatus;

use super::McastAgg;
use crate::MemberId;
use crate::aim::{GroupAim, GroupKey};
use crate::answer::refuse;
use crate::api::{JoinAs, Output};
use crate::transaction::{Token, Transaction, Waiting};

/// How often the SA is asked to take an alias back into a group. After a failover it refuses until it
/// knows the alias again, which [`JoinAs::Alias`] cannot wait for.
const ALIAS_REJOINS: u32 = 6;

impl McastAgg {
    /// A member's alias is about to go: it leaves its groups ([`Output::Lost`] names them), and what
    /// it waits for is refused. [`Output::Left`] follows once the SA holds nothing under the alias, or
    /// was asked in vain long enough; at once if members are joined as the port.
    pub fn leave_alias(&mut self, now: Instant, member: MemberId, alias: Guid) {
        if self.config.join_as == JoinAs::Alias {
            let is_its = |key: &GroupKey| key.port_guid == alias;
            for waiting in self
                .exchange
                .take_waiting(|aim: &GroupAim| is_its(&aim.key))
            {
                self.refuse_waiting(waiting);
            }
            for key in self.keys().into_iter().filter(is_its) {
                self.leave_with_alias(key);
            }
        }
        self.leaving.insert(alias, member);
        self.pump(now);
    }

    fn leave_with_alias(&mut self, key: GroupKey) {
        let Some(group) = self.group_mut(key) else {
            return;
        };
        let waiting = std::mem::take(&mut group.waiting);
        let members = std::mem::take(&mut group.members);
        let ids: Vec<MemberId> = members.ids().collect();
        for waiting in waiting {
            self.refuse_waiting(waiting);
        }
        for &member in &ids {
            self.usage.release(member);
        }
        if !ids.is_empty() {
            self.outputs.push_back(Output::Lost {
                mgid: key.mgid,
                members: ids,
            });
        }
        self.advance(key);
    }

    /// As the SA refuses a join under a GUID that it does not know.
    fn refuse_waiting(&mut self, waiting: Waiting) {
        self.answer(waiting, |_, _, mad| refuse(mad, MadStatus::SA_REQ_INVALID));
    }

    /// Tells of aliases that have left all groups.
    pub(super) fn tell_left(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|&alias, &mut member| {
            let stays = self.is_member(alias);
            if !stays {
                self.outputs.push_back(Output::Left { member });
            }
            stays
        });
        self.leaving = leaving;
    }

    /// Whether the SA may hold a membership under an alias.
    fn is_member(&self, alias: Guid) -> bool {
        let alone = self.config.join_as == JoinAs::Alias;
        alone
            && (self.groups.iter().any(|(key, _)| key.port_guid == alias)
                || self.exchange.aims().any(|aim| aim.key.port_guid == alias))
    }

    /// Puts a rejoin that was refused off, if it was under an alias that the SA may come to know.
    pub(super) fn ask_again_for_alias(
        &mut self,
        now: Instant,
        token: Token,
        rejoin: Transaction<GroupAim>,
    ) -> bool {
        let alias = self.config.join_as == JoinAs::Alias;
        let wait = rejoin.next_wait();
        let Some(wait) = wait.filter(|_| alias && rejoin.attempts < ALIAS_REJOINS) else {
            return false;
        };
        if let Some(group) = self.group_mut(rejoin.aim.key) {
            group.in_flight = Some(token);
        }
        self.exchange.retry(now + wait, token, rejoin);
        true
    }
}
