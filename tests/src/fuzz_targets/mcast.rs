//! A sequence of operations on the multicast memberships of a port.

use std::collections::{BTreeMap, BTreeSet};

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, PKey, SubnetPrefix, Tid};
use mcast_agg::{Config, JoinAs, McastAgg, MemberId, MemberUse, Outcome, Output, Sizes, Token};

use super::hostile::{Input, pass_time};
use super::sa_side::{self, Sa, guid_of, members, requester, some_vf};

fn config(join_as: JoinAs) -> Config {
    Config {
        join_as,
        groups_per_member: 4,
        waiting_per_member: 3,
        max_in_flight: 2,
        give_up_status: Some(MadStatus::BUSY),
    }
}

const PORT: Guid = Guid::new(1);

/// An SA without faults: its memberships, by group and by the GUID under which the port joined.
#[derive(Default)]
struct Table {
    held: BTreeMap<(Gid, Guid), JoinState>,
    created: u8,
    /// The messages that are lost next, by bits.
    losses: u8,
    /// How many about a group were lost since one of its answers arrived.
    lost: BTreeMap<(Gid, Guid), u8>,
}

/// Messages of a group that an honest world loses in a row: fewer than the attempts to leave it.
const MOST_LOST: u8 = 6;

impl Table {
    fn passes(&mut self, group: (Gid, Guid)) -> bool {
        let lost = self.lost.entry(group).or_default();
        let is_lost = self.losses & 1 != 0 && *lost < MOST_LOST;
        self.losses >>= 1;
        *lost += u8::from(is_lost);
        !is_lost
    }

    /// The answer, if it arrives.
    fn exchange(&mut self, request: &SaMad) -> Option<SaMad> {
        let record: McMemberRecord = request.record();
        let group = (record.mgid, record.port_gid.interface_id());
        if !self.passes(group) {
            return None;
        }
        let answer = self.handle(request);
        // A creation whose answer is lost leaves a group that no member knows of.
        if !record.mgid.is_none() && !self.passes(group) {
            return None;
        }
        self.lost.remove(&group);
        Some(answer)
    }

    fn handle(&mut self, request: &SaMad) -> SaMad {
        let mut record: McMemberRecord = request.record();
        let state = record.join_state();
        let status = if request.header.method == Method::SET {
            if record.mgid.is_none() {
                self.created = self.created.wrapping_add(1);
                record.mgid.0[..2].copy_from_slice(&[0xff, self.created]);
            }
            let key = (record.mgid, record.port_gid.interface_id());
            let held = self.held.entry(key).or_default();
            *held = *held | state;
            record.set_join_state(*held);
            MadStatus::OK
        } else {
            let key = (record.mgid, record.port_gid.interface_id());
            let held = self.held.get(&key).copied().unwrap_or_default();
            if !state.is_empty() && held.contains(state) {
                self.held.insert(key, held.difference(state));
                self.held.retain(|_, held| !held.is_empty());
                MadStatus::OK
            } else {
                MadStatus::SA_REQ_INVALID
            }
        };
        record.pkey = PKey::DEFAULT_FULL;
        record.mlid = Lid::new(0xc000);
        let method = request.header.method.response();
        let mut answer = SaMad::new(method, ComponentMask::NONE, &record);
        answer.header.status = status;
        answer
    }
}

/// A leave that waits for the SA.
struct Left {
    since: Instant,
    mgid: Gid,
    /// The kinds of membership of which the leave was the last.
    state: JoinState,
}

struct Scene {
    now: Instant,
    agg: McastAgg,
    sa: Sa,
    /// The SA of an honest world, in place of the one that says what the input says.
    table: Option<Table>,
    /// Memberships that members learned of, in an honest world.
    held: BTreeMap<(MemberId, Gid), JoinState>,
    /// Leaves that wait for the SA; a join of the group that waits as well takes them out.
    left: BTreeMap<(MemberId, Tid), Left>,
    /// Members that leave with their alias and have not left yet.
    leaving: BTreeSet<MemberId>,
    absorbed: usize,
    answered: usize,
    resets: bool,
    requests: u64,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.byte() % 16 {
            0..5 => self.ask(input),
            5..9 => match &mut self.table {
                Some(table) => table.losses = input.byte(),
                None => {
                    if let Some((token, answer)) = self.sa.answer(input) {
                        self.agg.handle_response(now, token, &answer);
                    }
                }
            },
            9..11 => {
                let end = now + input.time();
                self.wait(end);
            }
            11 => self.sa.lose(input),
            12 => self.reset(some_vf(input).into()),
            13 => {
                let vf = some_vf(input);
                self.agg.leave_alias(now, vf.into(), guid_of(vf));
                self.leaving.insert(vf.into());
            }
            14 => {
                if let Some(table) = &mut self.table
                    && input.flag()
                {
                    table.held.clear();
                }
                self.agg.client_reregister(now);
            }
            _ => self.agg.sm_changed(now),
        }
        self.serve();
        self.check();
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        let vf = some_vf(input);
        let mut mad = sa_side::membership(vf, input);
        if self.table.is_some() {
            // A repetition of a request under way has one answer with it.
            self.requests += 1;
            mad.header.tid = Tid::new(self.requests);
        }
        let asked = mad;
        match self.agg.request(self.now, &requester(vf), &mut mad) {
            Outcome::Answered => {
                assert_eq!(mad.header.tid, asked.header.tid);
                assert!(mad.header.method.is_response());
                self.learn(vf.into(), &mad);
            }
            Outcome::Absorbed => {
                self.absorbed += 1;
                let record: McMemberRecord = asked.record();
                if asked.header.method == Method::DELETE {
                    let mut groups = self.agg.groups();
                    if !groups.any(|group| group.mgid() == record.mgid && group.waiting() > 0) {
                        let wanted = self.wanted(vf.into(), record.mgid);
                        let leave = Left {
                            since: self.now,
                            mgid: record.mgid,
                            state: record.join_state().difference(wanted),
                        };
                        self.left.insert((vf.into(), asked.header.tid), leave);
                    }
                } else {
                    self.left.retain(|_, left| left.mgid != record.mgid);
                }
            }
            Outcome::Pass => {
                assert_eq!(mad, asked);
                assert!(self.table.is_none(), "a whole request passes");
            }
            Outcome::Dropped(_) => {}
        }
    }

    /// When a leave that waited is answered, an SA that loses messages holds no kind of it that no member
    /// holds, unless the leave waited long, or a join waited for it.
    fn check_left(&mut self, member: MemberId, answer: &SaMad) {
        if answer.header.method != Method::DELETE_RESP {
            return;
        }
        let left = self.left.remove(&(member, answer.header.tid));
        let Some(table) = &self.table else { return };
        let late = Duration::from_secs(3);
        let Some(left) = left.filter(|left| self.now < left.since + late) else {
            return;
        };
        let held = table.held.get(&(left.mgid, self.guid(member)));
        let wanted = self.wanted(member, left.mgid);
        let kept = held.copied().unwrap_or_default().difference(wanted);
        assert_eq!(
            kept,
            kept.difference(left.state),
            "a leave is answered too early"
        );
    }

    /// Returns the GUID by which a member is in its groups at the SA.
    fn guid(&self, member: MemberId) -> Guid {
        let is_alias = self.agg.config().join_as == JoinAs::Alias;
        member.vf().filter(|_| is_alias).map_or(PORT, guid_of)
    }

    /// Returns what all members that join with this member's GUID hold of a group.
    fn wanted(&self, member: MemberId, mgid: Gid) -> JoinState {
        let groups = self.agg.groups();
        groups
            .filter(|group| (group.mgid(), group.port_guid()) == (mgid, self.guid(member)))
            .flat_map(|group| group.members().collect::<Vec<_>>())
            .fold(JoinState::NONE, |wanted, (_, state)| wanted | state)
    }

    /// Records the membership that an answer grants to a member.
    fn learn(&mut self, member: MemberId, answer: &SaMad) {
        let record: McMemberRecord = answer.record();
        if answer.header.status == MadStatus::OK {
            self.held.insert((member, record.mgid), record.join_state());
            self.held.retain(|_, state| !state.is_empty());
        }
    }

    fn reset(&mut self, member: MemberId) {
        self.agg.reset(self.now, member);
        self.held.retain(|(id, _), _| *id != member);
        self.resets = true;
    }

    fn transmit(&mut self, token: Token, request: SaMad) {
        let Some(table) = &mut self.table else {
            self.sa.ask(token, request);
            return;
        };
        if let Some(answer) = table.exchange(&request) {
            self.agg.handle_response(self.now, token, &answer);
        }
    }

    fn serve(&mut self) {
        while let Some(output) = self.agg.poll_output() {
            match output {
                Output::SaRequest { token, request } => {
                    let record: McMemberRecord = request.record();
                    assert!(!record.join_state().is_empty(), "asks the SA for nothing");
                    assert!([Method::SET, Method::DELETE].contains(&request.header.method));
                    self.transmit(token, request);
                }
                Output::Answer { member, answer, .. } => {
                    assert!(answer.header.method.is_response());
                    self.answered += 1;
                    self.check_left(member, &answer);
                    self.learn(member, &answer);
                }
                Output::Changed { members, .. } => assert!(!members.is_empty()),
                Output::Lost { mgid, members } => {
                    assert!(!members.is_empty());
                    let lost = |id: &MemberId, group: &Gid| *group == mgid && members.contains(id);
                    self.held.retain(|(id, group), _| !lost(id, group));
                }
                Output::Left { member } => assert!(self.leaving.remove(&member)),
            }
        }
        assert!(self.answered <= self.absorbed, "answers without a question");
    }

    fn wait(&mut self, end: Instant) {
        let mut now = self.now;
        pass_time(&mut now, end, |at| {
            self.now = at;
            self.agg.handle_timeout(at);
            self.serve();
            self.agg.poll_timeout()
        });
        self.now = now;
    }

    fn check(&self) {
        let (sizes, config) = (self.agg.sizes(), self.agg.config());
        let groups = || self.agg.groups();
        let under_way = groups().filter(|group| group.under_way().is_some()).count();
        assert_eq!(groups().count(), sizes.groups);
        // Those who create groups wait outside of any.
        assert!(groups().map(|g| g.waiting()).sum::<usize>() <= sizes.waiting);
        assert_eq!(
            groups().map(|g| g.members().count()).sum::<usize>(),
            sizes.members
        );
        assert!(under_way <= sizes.transactions);
        let mut all = (0, 0, 0);
        for member in members() {
            let usage = self.agg.usage(member);
            let MemberUse {
                held,
                waiting,
                leaving,
            } = usage;
            assert!(held <= config.groups_per_member);
            assert!(waiting.max(leaving) <= config.waiting_per_member);
            all.0 += usize::from(held);
            all.1 += usize::from(waiting);
            all.2 += usize::from(leaving);
        }
        assert_eq!(all, (sizes.members, sizes.waiting, sizes.leaving));
    }

    /// When all is quiet, the port holds at the SA what its members hold together.
    fn check_union(&mut self) {
        let Some(table) = &mut self.table else {
            return;
        };
        table.losses = 0;
        self.wait(self.now + Duration::from_secs(700));
        let mut union: BTreeMap<(Gid, Guid), JoinState> = BTreeMap::new();
        for ((member, group), state) in &self.held {
            let held = union.entry((*group, self.guid(*member))).or_default();
            *held = *held | *state;
        }
        assert_eq!(self.table.as_ref().map(|table| &table.held), Some(&union));
        assert_eq!(self.agg.sizes().members, self.held.len());
        for group in self.agg.groups() {
            assert_eq!((group.waiting(), group.under_way()), (0, None));
            for (member, state) in group.members() {
                assert_eq!(self.held.get(&(member, group.mgid())), Some(&state));
            }
        }
        for member in members() {
            let held = self.held.keys().filter(|(id, _)| *id == member).count();
            let usage = self.agg.usage(member);
            assert_eq!(usize::from(usage.held), held);
            assert_eq!((usage.waiting, usage.leaving), (0, 0));
        }
        assert!(self.resets || self.absorbed == self.answered);
    }

    /// Removes all members; the machine gives up releases that a silent SA does not answer.
    fn wind_down(mut self) {
        self.check_union();
        for member in members() {
            self.reset(member);
        }
        self.serve();
        self.check();
        self.wait(self.now + Duration::from_secs(24 * 3_600));
        self.check();
        assert_eq!(self.agg.sizes(), Sizes::default());
        assert_eq!(self.agg.poll_timeout(), None);
        assert!(self.leaving.is_empty());
        assert!(self.table.is_none_or(|table| table.held.is_empty()));
    }
}

/// Four members of a few groups, and an SA that answers, refuses, loses and lies. No input exceeds a
/// quota, answers without a request, or keeps a group without members. An SA that only loses holds in
/// the end what the members hold together.
pub(super) fn mcast(data: &[u8]) {
    play(Input::honest(data)).wind_down();
    play(Input::new(data)).wind_down();
}

fn play(mut input: Input<'_>) -> Scene {
    let join_as = [JoinAs::Port, JoinAs::Alias][input.index(2)];
    let config = if input.has_default_quotas() {
        Config {
            join_as,
            ..Config::default()
        }
    } else {
        config(join_as)
    };
    let mut scene = Scene {
        now: Instant::from_millis(1),
        agg: McastAgg::new(config, SubnetPrefix::DEFAULT, PORT, 1),
        sa: Sa::default(),
        table: input.is_honest().then(Table::default),
        held: BTreeMap::new(),
        left: BTreeMap::new(),
        leaving: BTreeSet::new(),
        absorbed: 0,
        answered: 0,
        resets: false,
        requests: 0,
    };
    while input.has_operation() {
        scene.step(&mut input);
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_join_and_leave() {
        let port = play(Input::new(include_bytes!(
            "../../fuzz/corpus/mcast/join-and-leave"
        )));
        assert_eq!((port.answered, port.agg.sizes()), (2, Sizes::default()));
        let alias = play(Input::new(include_bytes!("../../fuzz/corpus/mcast/alias")));
        assert_eq!((alias.answered, alias.agg.sizes().members), (2, 1));
    }
}
