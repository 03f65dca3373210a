//! A sequence of operations on the notice subscriptions of a port.

use std::collections::{BTreeMap, BTreeSet};

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::notice::{
    GidDetails, InformInfo, Notice, NoticeReport, NoticeType, ProducerType, TrapNumber,
};
use ib_wire::sa::SaMad;
use ib_wire::{Gid, Lid, Tid};
use mcast_agg::notices::{Config, NoticeAgg, Output, Sizes};
use mcast_agg::{MemberId, MemberUse, Outcome, Token};
use zerocopy::{FromBytes, IntoBytes};

use super::hostile::{Input, pass_time, remember};
use super::sa_side::{self, Sa, members, requester, some_vf};

const CONFIG: Config = Config {
    subscriptions_per_member: 4,
    waiting_per_member: 3,
    max_in_flight: 2,
    max_deliveries: 8,
    give_up_status: Some(MadStatus::BUSY),
};

/// An SA that keeps to its word: the traps that the port subscribed to.
#[derive(Default)]
struct Table {
    held: BTreeSet<u16>,
    /// The messages that are lost next, by bits.
    losses: u8,
    /// The subscriptions that are refused next, by bits; and by the bit after it, for good.
    refusals: u8,
    /// How many about a trap were lost since one of its answers arrived.
    lost: BTreeMap<u16, u8>,
}

/// Messages about a trap that an honest world loses in a row: fewer than the attempts to unsubscribe.
const MOST_LOST: u8 = 6;

fn take_bit(bits: &mut u8) -> bool {
    let bit = *bits & 1 != 0;
    *bits >>= 1;
    bit
}

impl Table {
    /// The answer, if it arrives.
    fn handle(&mut self, request: &SaMad) -> Option<SaMad> {
        let info: InformInfo = request.record();
        let trap = info.trap_number.get();
        if !self.passes(trap) {
            return None;
        }
        let mut answer = *request;
        answer.header.method = request.header.method.response();
        answer.header.status = if info.subscribe == 1 && take_bit(&mut self.refusals) {
            if take_bit(&mut self.refusals) {
                MadStatus::SA_REQ_INVALID
            } else {
                MadStatus::SA_NO_RESOURCES
            }
        } else if info.subscribe == 1 {
            self.held.insert(trap);
            MadStatus::OK
        } else if self.held.remove(&trap) {
            MadStatus::OK
        } else {
            MadStatus::SA_REQ_INVALID
        };
        if !self.passes(trap) {
            return None;
        }
        self.lost.remove(&trap);
        Some(answer)
    }

    fn passes(&mut self, trap: u16) -> bool {
        let lost = self.lost.entry(trap).or_default();
        let is_lost = take_bit(&mut self.losses) && *lost < MOST_LOST;
        *lost += u8::from(is_lost);
        !is_lost
    }
}

struct Scene {
    now: Instant,
    agg: NoticeAgg,
    config: Config,
    sa: Sa,
    /// The SA of an honest world, in place of the one that says what the input says.
    table: Option<Table>,
    /// Subscriptions that members learned of, in an honest world.
    held: BTreeSet<(MemberId, u16)>,
    reports: u64,
    copies: Vec<(MemberId, SaMad)>,
    absorbed: usize,
    answered: usize,
    delivered: usize,
    resets: bool,
    requests: u64,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.byte() % 16 {
            0..4 => self.ask(input),
            4..8 => match &mut self.table {
                Some(table) if input.flag() => table.losses = input.byte(),
                Some(table) => table.refusals = input.byte(),
                None => {
                    if let Some((token, answer)) = self.sa.answer(input) {
                        self.agg.handle_response(now, token, &answer);
                    }
                }
            },
            8 => {
                let end = now + input.time();
                self.wait(end);
            }
            9..11 if self.table.is_some() => self.check_report(input),
            9..11 => self.report(input),
            11..13 => self.respond(input),
            13 => self.sa.lose(input),
            14 => self.reset(some_vf(input).into()),
            _ if input.flag() => {
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
        let mut mad = sa_side::inform(input);
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
            Outcome::Absorbed => self.absorbed += 1,
            Outcome::Pass => {
                assert_eq!(mad, asked);
                assert!(self.table.is_none(), "a whole request passes");
            }
            Outcome::Dropped(_) => {}
        }
    }

    /// Records the subscription that an answer grants to a member.
    fn learn(&mut self, member: MemberId, answer: &SaMad) {
        let info: InformInfo = answer.record();
        let held = (member, info.trap_number.get());
        if answer.header.status != MadStatus::OK {
            return;
        }
        if info.subscribe == 1 {
            self.held.insert(held);
        } else {
            self.held.remove(&held);
        }
    }

    fn reset(&mut self, member: MemberId) {
        self.agg.reset(self.now, member);
        self.held.retain(|(id, _)| *id != member);
        self.resets = true;
    }

    fn transmit(&mut self, token: Token, request: SaMad) {
        match &mut self.table {
            None => self.sa.ask(token, request),
            Some(table) => {
                if let Some(answer) = table.handle(&request) {
                    self.agg.handle_response(self.now, token, &answer);
                }
            }
        }
    }

    /// A report reaches the subscribers and no other VF, or the PF.
    fn check_report(&mut self, input: &mut Input<'_>) {
        self.reports += 1;
        let mut report = report(input);
        report.header.tid = Tid::new(self.reports);
        let (said, _) = NoticeReport::ref_from_prefix(&report.data).expect("the report is whole");
        let trap = said.notice.trap_number.get();
        let holders = self.held.iter().filter(|(_, held)| *held == trap);
        let mut expected: Vec<MemberId> = holders.map(|&(member, _)| member).collect();
        if expected.is_empty() {
            expected.push(MemberId::PF);
        }
        assert!(self.agg.report(self.now, &report, |_| true).is_some());
        let former = std::mem::take(&mut self.copies);
        self.serve();
        let heard = self.copies.iter().map(|(member, _)| *member);
        assert_eq!(heard.collect::<Vec<_>>(), expected);
        for copy in former {
            remember(&mut self.copies, copy);
        }
    }

    /// The SA reports, and gets its answer; some members are not to hear of it.
    fn report(&mut self, input: &mut Input<'_>) {
        let mut report = report(input);
        if input.byte().is_multiple_of(8) {
            input.damage(report.as_mut_bytes());
        }
        let deaf = input.byte();
        let hears = |member: MemberId| member.vf().is_none_or(|vf| deaf >> vf.get() & 1 == 0);
        let answer = self.agg.report(self.now, &report, hears);
        let is_report = report.header.method == Method::REPORT;
        assert!(answer.is_none() || is_report);
        if let Some(answer) = answer {
            assert_eq!(answer.header.method, Method::REPORT_RESP);
            assert_eq!(answer.header.tid, report.header.tid);
        }
    }

    /// A member answers a copy: its own or another's, once or again.
    fn respond(&mut self, input: &mut Input<'_>) {
        let Some((member, mut mad)) = input.pick(&self.copies) else {
            return;
        };
        mad.header.method = Method::REPORT_RESP;
        let from = if input.byte().is_multiple_of(4) {
            some_vf(input).into()
        } else {
            member
        };
        let before = self.agg.sizes().deliveries;
        let outcome = self.agg.report_response(from, &mad);
        let ended = before - self.agg.sizes().deliveries;
        assert_eq!(ended, usize::from(outcome == Outcome::Absorbed));
        assert_ne!(outcome, Outcome::Pass);
    }

    fn serve(&mut self) {
        while let Some(output) = self.agg.poll_output() {
            match output {
                Output::SaRequest { token, request } => {
                    assert!(request.record::<InformInfo>().subscribe <= 1);
                    self.transmit(token, request);
                }
                Output::Answer { member, answer, .. } => {
                    assert!(answer.header.method.is_response());
                    self.answered += 1;
                    self.learn(member, &answer);
                }
                Output::Deliver { member, report } => {
                    self.delivered += 1;
                    remember(&mut self.copies, (member, report));
                }
                Output::Lost {
                    subscription,
                    members,
                } => {
                    assert!(!members.is_empty());
                    let lost = subscription.trap_number.get();
                    self.held.retain(|&(_, trap)| trap != lost);
                }
            }
        }
        assert!(self.answered <= self.absorbed, "answers without a question");
    }

    fn wait(&mut self, end: Instant) {
        let mut now = self.now;
        pass_time(&mut now, end, |at| {
            self.agg.handle_timeout(at);
            self.serve();
            self.agg.poll_timeout()
        });
        self.now = now;
    }

    fn check(&self) {
        let sizes = self.agg.sizes();
        let all = || self.agg.subscriptions();
        let under_way = all().filter(|one| one.under_way().is_some()).count();
        assert_eq!(all().count(), sizes.subscriptions);
        assert_eq!(
            all().map(|one| one.members().count()).sum::<usize>(),
            sizes.held
        );
        assert_eq!(all().map(|one| one.waiting()).sum::<usize>(), sizes.waiting);
        assert!(under_way <= sizes.transactions);
        assert!(sizes.deliveries <= self.config.max_deliveries);
        let mut sum = (0, 0);
        for member in members() {
            let MemberUse { held, waiting, .. } = self.agg.usage(member);
            assert!(held <= self.config.subscriptions_per_member);
            assert!(waiting <= self.config.waiting_per_member);
            sum = (sum.0 + usize::from(held), sum.1 + usize::from(waiting));
        }
        assert_eq!(sum, (sizes.held, sizes.waiting));
    }

    /// When all is quiet, the port holds at the SA what its members hold together.
    fn check_union(&mut self) {
        let Some(table) = &mut self.table else {
            return;
        };
        (table.losses, table.refusals) = (0, 0);
        self.wait(self.now + Duration::from_secs(700));
        let union: BTreeSet<u16> = self.held.iter().map(|&(_, trap)| trap).collect();
        assert_eq!(self.table.as_ref().map(|table| &table.held), Some(&union));
        assert_eq!(self.agg.sizes().held, self.held.len());
        for member in members() {
            let held = self.held.iter().filter(|(id, _)| *id == member).count();
            let usage = self.agg.usage(member);
            assert_eq!((usize::from(usage.held), usage.waiting), (held, 0));
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
        assert_eq!(self.agg.sizes(), Sizes::default());
        assert_eq!(self.agg.poll_timeout(), None);
        assert!(self.table.is_none_or(|table| table.held.is_empty()));
    }
}

/// A report of one of a few events.
pub(super) fn report(input: &mut Input<'_>) -> SaMad {
    let details = GidDetails {
        gid: Gid([input.byte() % 4; 16]),
        ..GidDetails::default()
    };
    let trap = TrapNumber::new(64 + u16::from(input.byte() % 6));
    let notice = Notice::generic(
        NoticeType::SUBNET_MANAGEMENT,
        ProducerType::CLASS_MANAGER,
        trap,
        Lid::new(1),
        &details,
    );
    let report = NoticeReport {
        notice,
        issuer_gid: Gid([7; 16]),
    };
    let mut mad = SaMad {
        header: MadHeader::new(MgmtClass::SUBN_ADM, Method::REPORT, AttributeId::NOTICE),
        ..SaMad::default()
    };
    mad.header.tid = Tid::new(u64::from(input.byte() % 8));
    mad.data[..size_of::<NoticeReport>()].copy_from_slice(report.as_bytes());
    mad
}

/// Four members who subscribe to a few traps, an SA that answers, refuses, loses, lies and reports,
/// and members who answer or do not. No input exceeds a quota or leaves state behind. An SA that
/// only loses and refuses holds in the end what the members hold together, and each hears of that.
pub(super) fn notices(data: &[u8]) {
    play(Input::honest(data)).wind_down();
    play(Input::new(data)).wind_down();
}

fn play(mut input: Input<'_>) -> Scene {
    let mut config = CONFIG;
    if input.has_default_quotas() {
        config = Config::default();
    } else if input.is_honest() {
        config.max_deliveries = Config::default().max_deliveries;
    }
    let mut scene = Scene {
        now: Instant::from_millis(1),
        agg: NoticeAgg::new(config),
        config,
        sa: Sa::default(),
        table: input.is_honest().then(Table::default),
        held: BTreeSet::new(),
        reports: 0,
        copies: Vec::new(),
        absorbed: 0,
        answered: 0,
        delivered: 0,
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
    fn the_seeds_hear_a_report_and_nothing() {
        let report = play(Input::new(include_bytes!(
            "../../fuzz/corpus/notices/report"
        )));
        assert_eq!((report.answered, report.delivered), (1, 1));
        assert_eq!(report.agg.sizes().held, 0);
        let silent = play(Input::new(include_bytes!(
            "../../fuzz/corpus/notices/silent-sa"
        )));
        assert_eq!((silent.answered, silent.agg.sizes().held), (2, 0));
    }
}
