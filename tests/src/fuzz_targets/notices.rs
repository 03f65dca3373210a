//! A sequence of operations on the notice subscriptions of a port.

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::notice::{
    GidDetails, InformInfo, Notice, NoticeReport, NoticeType, ProducerType, TrapNumber,
};
use ib_wire::sa::SaMad;
use ib_wire::{Gid, Lid, Tid};
use mcast_agg::notices::{Config, NoticeAgg, Output, Sizes};
use mcast_agg::{MemberId, MemberUse, Outcome};
use zerocopy::IntoBytes;

use super::hostile::{Input, pass_time, remember};
use super::sa_side::{self, Sa, members, requester, some_vf};

const CONFIG: Config = Config {
    subscriptions_per_member: 4,
    waiting_per_member: 3,
    max_in_flight: 2,
    max_deliveries: 8,
    give_up_status: Some(MadStatus::BUSY),
};

struct Scene {
    now: Instant,
    agg: NoticeAgg,
    sa: Sa,
    copies: Vec<(MemberId, SaMad)>,
    absorbed: usize,
    answered: usize,
    delivered: usize,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.byte() % 16 {
            0..4 => self.ask(input),
            4..8 => {
                if let Some((token, answer)) = self.sa.answer(input) {
                    self.agg.handle_response(now, token, &answer);
                }
            }
            8 => {
                let end = now + input.time();
                self.wait(end);
            }
            9..11 => self.report(input),
            11..13 => self.respond(input),
            13 => self.sa.lose(input),
            14 => self.agg.reset(now, some_vf(input).into()),
            _ if input.flag() => self.agg.client_reregister(now),
            _ => self.agg.sm_changed(now),
        }
        self.serve();
        self.check();
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        let vf = some_vf(input);
        let mut mad = sa_side::inform(input);
        let asked = mad;
        match self.agg.request(self.now, &requester(vf), &mut mad) {
            Outcome::Answered => {
                assert_eq!(mad.header.tid, asked.header.tid);
                assert!(mad.header.method.is_response());
            }
            Outcome::Absorbed => self.absorbed += 1,
            Outcome::Pass => assert_eq!(mad, asked),
            Outcome::Dropped(_) => {}
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
                    self.sa.ask(token, request);
                }
                Output::Answer { answer, .. } => {
                    assert!(answer.header.method.is_response());
                    self.answered += 1;
                }
                Output::Deliver { member, report } => {
                    self.delivered += 1;
                    remember(&mut self.copies, (member, report));
                }
                Output::Lost { members, .. } => assert!(!members.is_empty()),
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
        assert!(sizes.deliveries <= CONFIG.max_deliveries);
        let mut sum = (0, 0);
        for member in members() {
            let MemberUse { held, waiting } = self.agg.usage(member);
            assert!(held <= CONFIG.subscriptions_per_member);
            assert!(waiting <= CONFIG.waiting_per_member);
            sum = (sum.0 + usize::from(held), sum.1 + usize::from(waiting));
        }
        assert_eq!(sum, (sizes.held, sizes.waiting));
    }

    /// All members go, and the SA is silent.
    fn wind_down(mut self) {
        for member in members() {
            self.agg.reset(self.now, member);
        }
        self.serve();
        self.check();
        self.wait(self.now + Duration::from_secs(24 * 3_600));
        assert_eq!(self.agg.sizes(), Sizes::default());
        assert_eq!(self.agg.poll_timeout(), None);
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
/// and members who answer or do not. No input exceeds a quota or keeps anything for ever.
pub(super) fn notices(data: &[u8]) {
    play(data).wind_down();
}

fn play(data: &[u8]) -> Scene {
    let mut input = Input::new(data);
    let mut scene = Scene {
        now: Instant::from_millis(1),
        agg: NoticeAgg::new(CONFIG),
        sa: Sa::default(),
        copies: Vec::new(),
        absorbed: 0,
        answered: 0,
        delivered: 0,
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
        let report = play(include_bytes!("../../fuzz/corpus/notices/report"));
        assert_eq!((report.answered, report.delivered), (1, 1));
        assert_eq!(report.agg.sizes().held, 0);
        let silent = play(include_bytes!("../../fuzz/corpus/notices/silent-sa"));
        assert_eq!((silent.answered, silent.agg.sizes().held), (2, 0));
    }
}
