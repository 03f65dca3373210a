//! The machine: requests in, answers and SA transactions out.

mod aliases;
mod leaves;
mod outcome;

use std::collections::{BTreeMap, VecDeque};

use ib_vtime::{Instant, TimerQueue};
use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{JoinState, McMemberRecord, SaMad};
use ib_wire::{Gid, Guid, PKey, SubnetPrefix};
use vf_tunnel::DropReason;

use crate::aim::{GroupAim, GroupKey, Purpose};
use crate::answer::{grant, refuse};
use crate::api::{Config, JoinAs, Outcome, Output, Requester, Sizes};
use crate::compare::{fits, may_join};
use crate::exchange::{Exchange, Step};
use crate::group::{Group, GroupView};
use crate::groups::Groups;
use crate::transaction::{Token, Transaction, Waiting};
use crate::usage::{MemberUse, Usage};
use crate::{MemberId, request};

/// The multicast memberships of one port.
#[derive(Clone, Debug)]
pub struct McastAgg {
    config: Config,
    prefix: SubnetPrefix,
    port_guid: Guid,
    /// Aliases whose memberships are being given up, with their member.
    leaving: BTreeMap<Guid, MemberId>,
    groups: Groups,
    usage: Usage,
    exchange: Exchange<GroupAim>,
    /// Ends of the times that leaves wait, by their groups.
    leave_timers: TimerQueue<GroupKey>,
    outputs: VecDeque<Output>,
}

impl McastAgg {
    /// A port without memberships. The seed keeps members from choosing groups that collide.
    #[must_use]
    pub fn new(config: Config, prefix: SubnetPrefix, port_guid: Guid, seed: u64) -> Self {
        Self {
            config,
            prefix,
            port_guid,
            leaving: BTreeMap::new(),
            groups: Groups::new(seed),
            usage: Usage::default(),
            exchange: Exchange::new(config.max_in_flight),
            leave_timers: TimerQueue::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Takes over the subnet's new prefix.
    pub const fn set_prefix(&mut self, prefix: SubnetPrefix) {
        self.prefix = prefix;
    }

    /// Takes an MCMemberRecord MAD of a member. On [`Outcome::Answered`] `mad` has become the answer.
    ///
    /// Work is bounded: one group is touched, whatever the number of others.
    pub fn request(&mut self, now: Instant, from: &Requester<'_>, mad: &mut SaMad) -> Outcome {
        match mad.header.method {
            Method::SET | Method::DELETE => {}
            Method::GET => return self.get(from, mad),
            _ => return Outcome::Pass,
        }
        let record = mad.record::<McMemberRecord>();
        if let Err(status) = request::check(mad.component_mask, &record, from, self.prefix) {
            refuse(mad, status);
            return Outcome::Answered;
        }
        if mad.header.method == Method::DELETE {
            return self.leave(now, from, mad, &record);
        }
        self.join(now, from, mad, &record)
    }

    /// Takes the SA's answer to a transaction. The caller has made sure that it comes from the SA and
    /// answers a transmission of this token. Gives whether a transaction took it.
    pub fn handle_response(&mut self, now: Instant, token: Token, answer: &SaMad) -> bool {
        let record = answer.record::<McMemberRecord>();
        let granted = answer.header.status == MadStatus::OK;
        if let Some(aim) = self.exchange.take_given_up(token) {
            if granted && record.mgid.is_multicast() {
                self.take_back(now, aim.key.of_group(record.mgid), aim.state);
            }
            return true;
        }
        let Some(&Transaction { aim, .. }) = self.exchange.sent(token) else {
            return false;
        };
        let names_another = !aim.key.mgid.is_none() && record.mgid != aim.key.mgid;
        if granted && names_another {
            return false;
        }
        let Some(transaction) = self.end(token) else {
            return false;
        };
        let GroupAim { key, state, .. } = aim;
        match aim.purpose {
            Purpose::Join => {
                self.joined(transaction, answer);
                self.advance(key);
            }
            Purpose::Create => {
                let key = key.of_group(record.mgid);
                self.created(key, state, transaction.waiting, answer);
                self.advance(key);
            }
            Purpose::Rejoin { full } => {
                self.rejoined(now, token, transaction, full, answer);
                self.advance(key);
            }
            Purpose::Leave => self.left(now, token, transaction, answer.header.status),
        }
        self.pump(now);
        true
    }

    /// The SM asks for re-registration, or another SM has taken over: the port joins again whatever
    /// its members hold, and what was under way is asked anew.
    pub fn client_reregister(&mut self, now: Instant) {
        for group in self.groups.iter_mut() {
            // A rejoin that is under way is asked again anyhow.
            let under_way = group.in_flight.and_then(|token| self.exchange.get(token));
            if !under_way.is_some_and(|t| matches!(t.aim.purpose, Purpose::Rejoin { full: true })) {
                group.forgotten();
            }
        }
        self.exchange.ask_again();
        for key in self.keys() {
            self.advance(key);
        }
        self.pump(now);
    }

    /// The SM's address changed without anything being forgotten: what was under way is asked anew.
    pub fn sm_changed(&mut self, now: Instant) {
        self.exchange.ask_again();
        self.pump(now);
    }

    /// A member is gone: its requests vanish and what only it held is given up.
    pub fn reset(&mut self, now: Instant, member: MemberId) {
        self.exchange.forget_member(member);
        for key in self.keys() {
            self.forget_leaves(key, member);
            if let Some(group) = self.group_mut(key) {
                group.waiting.retain(|waiting| waiting.member != member);
                let held = group.members.state(member);
                group.members.remove(member, held);
                self.advance(key);
            }
        }
        self.usage.clear(member);
        self.pump(now);
    }

    /// Fires what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.exchange.fire(now);
        self.pump(now);
        self.answer_late_leaves(now);
    }

    /// When [`McastAgg::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let leaves = self.leave_timers.next_deadline();
        [self.exchange.next_deadline(), leaves]
            .into_iter()
            .flatten()
            .min()
    }

    /// Takes the oldest output. Poll after every other call.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The groups, in the order of their addresses.
    pub fn groups(&self) -> impl Iterator<Item = GroupView<'_>> {
        self.keys().into_iter().filter_map(|key| {
            let group = self.group(key)?;
            Some(GroupView {
                key,
                group,
                transaction: group.in_flight.and_then(|token| self.exchange.get(token)),
            })
        })
    }

    /// What a member takes of the machine.
    #[must_use]
    pub fn usage(&self, member: MemberId) -> MemberUse {
        self.usage.get(member)
    }

    /// Limits and policy.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Live objects.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let groups = || self.groups.iter().map(|(_, group)| group);
        Sizes {
            groups: self.groups.len(),
            members: groups().map(|group| group.members.len()).sum(),
            waiting: groups().map(|group| group.waiting.len()).sum::<usize>()
                + self.exchange.waiting().count(),
            transactions: self.exchange.len(),
            leaving: groups().map(|group| group.leaves.len()).sum(),
            timers: self.exchange.timers() + self.leave_timers.len(),
        }
    }

    /// Bytes of the groups, with what they have room for.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.groups.bytes()
    }

    fn get(&self, from: &Requester<'_>, mad: &mut SaMad) -> Outcome {
        let record = mad.record::<McMemberRecord>();
        let names_group = mad.component_mask.contains(McMemberRecord::MGID);
        let key = self.key(record.mgid, from.guid);
        let Some(group) = self.group(key).filter(|group| {
            names_group && !group.at_sa.is_empty() && may_join(from.pkeys, group.record.pkey)
        }) else {
            return Outcome::Pass;
        };
        let port_gid = Gid::from_parts(self.prefix, from.guid);
        grant(mad, &group.record, port_gid, group.members.state(from.id));
        Outcome::Answered
    }

    fn leave(
        &mut self,
        now: Instant,
        from: &Requester<'_>,
        mad: &mut SaMad,
        record: &McMemberRecord,
    ) -> Outcome {
        let less = record.join_state();
        let key = self.key(record.mgid, from.guid);
        let Some(index) = self.groups.find(key) else {
            refuse(mad, MadStatus::SA_REQ_INVALID);
            return Outcome::Answered;
        };
        if self.awaits_leave(index, from.id, mad) {
            return Outcome::Absorbed;
        }
        let group = &mut self.groups[index];
        if !group.members.state(from.id).contains(less) {
            refuse(mad, MadStatus::SA_REQ_INVALID);
            return Outcome::Answered;
        }
        group.members.remove(from.id, less);
        let left = group.members.state(from.id);
        grant(mad, &group.record, record.port_gid, left);
        if left.is_empty() {
            self.usage.release(from.id);
        }
        let outcome = self.keep_leave(now, index, from, less, mad);
        self.advance(key);
        self.pump(now);
        outcome
    }

    fn join(
        &mut self,
        now: Instant,
        from: &Requester<'_>,
        mad: &mut SaMad,
        record: &McMemberRecord,
    ) -> Outcome {
        let state = record.join_state();
        let key = self.key(record.mgid, from.guid);
        let known = self.groups.find(key);
        if let Some(index) = known
            && self.groups[index].covers(state)
            && !self.is_behind_leave(index, state)
        {
            self.decide(index, from.id, from.pkeys, mad, record);
            return Outcome::Answered;
        }
        if self.awaits(from.id, key, mad) {
            return Outcome::Absorbed;
        }
        if self.usage.waiting(from.id) >= self.config.waiting_of(from.id) {
            return Outcome::Dropped(DropReason::GroupBusy);
        }
        let member = known.is_some_and(|i| !self.groups[i].members.state(from.id).is_empty());
        if !member && self.usage.claims(from.id) >= self.config.groups_of(from.id) {
            refuse(mad, MadStatus::SA_NO_RESOURCES);
            return Outcome::Answered;
        }
        if mad.component_mask.contains(McMemberRecord::PKEY) && !may_join(from.pkeys, record.pkey) {
            refuse(mad, MadStatus::SA_REQ_INVALID);
            return Outcome::Answered;
        }
        let waiting = Waiting::new(from, mad);
        self.usage.wait(from.id);
        if record.mgid.is_none() {
            let request = self.request_for_join(key, &waiting);
            let aim = GroupAim {
                purpose: Purpose::Create,
                key,
                state,
            };
            self.begin(aim, Some(waiting), request);
        } else {
            let index = self.groups.find_or_insert(key);
            self.groups[index].waiting.push_back(waiting);
            self.advance(key);
        }
        self.pump(now);
        Outcome::Absorbed
    }

    /// Whether the very same request waits already: the member has only sent it again.
    fn awaits(&self, member: MemberId, key: GroupKey, mad: &SaMad) -> bool {
        let again = |waiting: &Waiting| waiting.is_retransmitted_by(member, mad);
        let queued = self
            .group(key)
            .is_some_and(|group| group.waiting.iter().any(again));
        queued || self.usage.waiting(member) > 0 && self.exchange.waiting().any(again)
    }

    /// Decides on a join that the port's membership covers; `mad` becomes the answer.
    fn decide(
        &mut self,
        index: usize,
        member: MemberId,
        pkeys: &[PKey],
        mad: &mut SaMad,
        wanted: &McMemberRecord,
    ) {
        if fits(mad.component_mask, wanted, &self.groups[index].record) {
            self.admit(index, member, pkeys, mad, wanted);
        } else {
            refuse(mad, MadStatus::SA_REQ_INVALID);
        }
    }

    /// Makes a member of one who waited, and `mad`, its request, the answer.
    fn admit_waiting(&mut self, index: usize, waiting: &Waiting, mad: &mut SaMad) {
        let wanted = mad.record();
        self.admit(index, waiting.member, &waiting.pkeys, mad, &wanted);
    }

    /// Makes a member of whoever the SA would take, and `mad` the answer. The SA sees only the port's
    /// partitions, so the member's are looked at here.
    fn admit(
        &mut self,
        index: usize,
        member: MemberId,
        pkeys: &[PKey],
        mad: &mut SaMad,
        wanted: &McMemberRecord,
    ) {
        let group = &mut self.groups[index];
        if !may_join(pkeys, group.record.pkey) {
            return refuse(mad, MadStatus::SA_REQ_INVALID);
        }
        let held = group.members.state(member);
        if held.contains(wanted.join_state()) {
            return grant(mad, &group.record, wanted.port_gid, held);
        }
        if held.is_empty() {
            if self.usage.held(member) >= self.config.groups_of(member) {
                return refuse(mad, MadStatus::SA_NO_RESOURCES);
            }
            self.usage.hold(member);
        }
        let state = group.members.add(member, wanted.join_state());
        grant(mad, &group.record, wanted.port_gid, state);
    }

    /// Starts whatever the group needs next, if nothing is under way.
    fn advance(&mut self, key: GroupKey) {
        while let Some(index) = self.groups.find(key) {
            self.drop_obsolete(index);
            self.answer_leaves(index);
            let group = &mut self.groups[index];
            if group.in_flight.is_some() {
                return;
            }
            if std::mem::take(&mut group.rejoin_due) {
                group.keep_wanted();
                if !group.at_sa.is_empty() {
                    return self.begin_rejoin(key, true);
                }
            } else if let Some(surplus) = group.take_surplus_of_leaves() {
                return self.begin_leave(key, surplus);
            } else if let Some(waiting) = group.take_waiting() {
                let state = waiting.record::<McMemberRecord>().join_state();
                if !group.covers(state) {
                    let request = self.request_for_join(key, &waiting);
                    let aim = GroupAim {
                        purpose: Purpose::Join,
                        key,
                        state,
                    };
                    return self.begin(aim, Some(waiting), request);
                }
                self.answer(waiting, |agg, waiting, mad| {
                    let record = mad.record();
                    agg.decide(index, waiting.member, &waiting.pkeys, mad, &record);
                });
            } else if let Some(surplus) = group.take_surplus() {
                return self.begin_leave(key, surplus);
            } else {
                // No request waits, and the SA holds only what members hold.
                if group.members.is_empty() {
                    self.groups.remove(index);
                }
                return;
            }
        }
    }

    /// A leave that the SA has not granted at once must not block those who want to join, and a
    /// rejoin that nobody needs any more must not go on.
    fn drop_obsolete(&mut self, index: usize) {
        let group = &self.groups[index];
        let Some(token) = group.in_flight else {
            return;
        };
        let wanted_by_none = group.members.is_empty();
        let waited_for = !group.waiting.is_empty();
        let obsolete = |transaction: &Transaction<GroupAim>| match transaction.aim.purpose {
            Purpose::Rejoin { .. } => wanted_by_none,
            _ => waited_for && transaction.is_slow_release(),
        };
        if self.exchange.get(token).is_some_and(obsolete) {
            self.doubt(token);
        }
    }

    /// Ends a transaction without knowing what it did at the SA.
    fn doubt(&mut self, token: Token) {
        if let Some(Transaction { aim, .. }) = self.end(token)
            && let Some(group) = self.group_mut(aim.key)
        {
            group.at_sa = group.at_sa.difference(aim.state);
            group.doubtful = group.doubtful | aim.state;
        }
    }

    fn request_for_join(&self, key: GroupKey, waiting: &Waiting) -> SaMad {
        request::join(&waiting.request, self.port_gid(key))
    }

    fn begin_leave(&mut self, key: GroupKey, state: JoinState) {
        let request = request::leave(key.mgid, self.port_gid(key), state);
        let aim = GroupAim {
            purpose: Purpose::Leave,
            key,
            state,
        };
        self.begin(aim, None, request);
    }

    fn begin_rejoin(&mut self, key: GroupKey, full: bool) {
        let Some(group) = self.group(key) else {
            return;
        };
        let state = group.at_sa;
        let request = request::rejoin(&group.record, self.port_gid(key), state, full);
        let aim = GroupAim {
            purpose: Purpose::Rejoin { full },
            key,
            state,
        };
        self.begin(aim, None, request);
    }

    /// The GID under which the SA knows the port in a group.
    fn port_gid(&self, key: GroupKey) -> Gid {
        Gid::from_parts(self.prefix, key.port_guid)
    }

    /// The membership of the port that a member's in a group is part of.
    const fn key(&self, mgid: Gid, member: Guid) -> GroupKey {
        let port_guid = match self.config.join_as {
            JoinAs::Port => self.port_guid,
            JoinAs::Alias => member,
        };
        GroupKey { mgid, port_guid }
    }

    fn keys(&self) -> Vec<GroupKey> {
        self.groups.keys()
    }

    fn begin(&mut self, aim: GroupAim, waiting: Option<Waiting>, request: SaMad) {
        let token = self.exchange.begin(aim, waiting, request);
        if let Some(group) = self.group_mut(aim.key) {
            group.in_flight = Some(token);
            group.sa_joins += u64::from(aim.purpose.is_join());
        }
    }

    /// Ends the group's transaction.
    fn end(&mut self, token: Token) -> Option<Transaction<GroupAim>> {
        let transaction = self.exchange.end(token)?;
        if let Some(group) = self.group_mut(transaction.aim.key) {
            group.in_flight = None;
        }
        Some(transaction)
    }

    /// Sends what may be sent, and ends what the SA will not answer.
    fn pump(&mut self, now: Instant) {
        while let Some(step) = self.exchange.next(now) {
            match step {
                Step::Send(token) => self.send(token),
                Step::GaveUp(transaction) => self.gave_up(*transaction),
            }
        }
        self.tell_left();
    }

    fn send(&mut self, token: Token) {
        let Some(transaction) = self.exchange.get(token) else {
            return;
        };
        let &Transaction { aim, request, .. } = transaction;
        let slow_leave = transaction.is_slow_release();
        if slow_leave
            && self
                .group(aim.key)
                .is_some_and(|group| !group.waiting.is_empty())
        {
            return self.advance(aim.key);
        }
        self.outputs.push_back(Output::SaRequest { token, request });
    }

    fn answer(&mut self, waiting: Waiting, decide: impl FnOnce(&mut Self, &Waiting, &mut SaMad)) {
        self.usage.stop_waiting(waiting.member);
        let mut answer = waiting.request;
        decide(self, &waiting, &mut answer);
        self.outputs.push_back(Output::Answer {
            member: waiting.member,
            pkey_index: waiting.pkey_index,
            answer,
        });
    }

    fn group(&self, key: GroupKey) -> Option<&Group> {
        self.groups.find(key).map(|index| &self.groups[index])
    }

    fn group_mut(&mut self, key: GroupKey) -> Option<&mut Group> {
        let index = self.groups.find(key)?;
        Some(&mut self.groups[index])
    }
}
