//! Random members, a simple SA that loses messages, and the invariant: when all is quiet, the port
//! holds at the SA what its members hold together, and each hears what it subscribed to.

use std::collections::BTreeSet;
use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::MadStatus;
use ib_wire::notice::{InformInfo, TrapNumber};
use ib_wire::sa::SaMad;
use mcast_agg::notices::{Output, Sizes};
use mcast_agg::{MemberId, Outcome, Token};
use proptest::prelude::*;

use crate::port::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Subscribe {
        member: u16,
        trap: u16,
    },
    Unsubscribe {
        member: u16,
        trap: u16,
    },
    Reset {
        member: u16,
    },
    Reregister {
        forget: bool,
    },
    SmChanged,
    Wait {
        millis: u16,
    },
    Report {
        trap: u16,
    },
    /// What the SA does with the next messages: bit set, message lost.
    Losses(u8),
    /// What the SA answers to the next subscriptions: bit set, refused; and by the bit after it,
    /// for good.
    Refusals(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let member = || 1_u16..5;
    let trap = || 64_u16..67;
    prop_oneof![
        6 => (member(), trap()).prop_map(|(member, trap)| Step::Subscribe { member, trap }),
        5 => (member(), trap()).prop_map(|(member, trap)| Step::Unsubscribe { member, trap }),
        1 => member().prop_map(|member| Step::Reset { member }),
        1 => any::<bool>().prop_map(|forget| Step::Reregister { forget }),
        1 => Just(Step::SmChanged),
        3 => (0_u16..5_000).prop_map(|millis| Step::Wait { millis }),
        2 => trap().prop_map(|trap| Step::Report { trap }),
        2 => any::<u8>().prop_map(Step::Losses),
        1 => any::<u8>().prop_map(Step::Refusals),
    ]
}

/// The SA's memory of one port.
#[derive(Default)]
struct Sa {
    held: BTreeSet<u16>,
    losses: u8,
    refusals: u8,
}

fn take_bit(bits: &mut u8) -> bool {
    let bit = *bits & 1 != 0;
    *bits >>= 1;
    bit
}

impl Sa {
    /// The answer, if it arrives.
    fn handle(&mut self, request: &SaMad) -> Option<SaMad> {
        if take_bit(&mut self.losses) {
            return None;
        }
        let info = request.record::<InformInfo>();
        let trap = info.trap_number.get();
        let status = if info.subscribe == 1 && take_bit(&mut self.refusals) {
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
        (!take_bit(&mut self.losses)).then(|| response(request, status))
    }
}

struct World {
    port: Port,
    sa: Sa,
    reports: u64,
    asked: usize,
    answered: usize,
    resets: bool,
    /// What the members know that they hold.
    held: BTreeSet<(MemberId, u16)>,
}

impl World {
    fn new() -> Self {
        Self {
            port: Port::new(),
            sa: Sa::default(),
            reports: 0,
            asked: 0,
            answered: 0,
            resets: false,
            held: BTreeSet::new(),
        }
    }

    fn run(&mut self, step: Step) {
        let now = self.port.now;
        match step {
            Step::Subscribe { member, trap } => self.ask(member, trap, true),
            Step::Unsubscribe { member, trap } => self.ask(member, trap, false),
            Step::Reset { member } => {
                self.port.agg.reset(now, vf(member));
                self.held.retain(|(id, _)| *id != vf(member));
                self.resets = true;
            }
            Step::Reregister { forget } => {
                if forget {
                    self.sa.held.clear();
                }
                self.port.agg.client_reregister(now);
            }
            Step::SmChanged => self.port.agg.sm_changed(now),
            Step::Wait { millis } => self.wait(Duration::from_millis(millis.into())),
            Step::Report { trap } => self.check_report(trap),
            Step::Losses(losses) => self.sa.losses = losses,
            Step::Refusals(refusals) => self.sa.refusals = refusals,
        }
        self.serve();
    }

    fn ask(&mut self, member: u16, trap: u16, subscribe: bool) {
        let info = to_trap(TrapNumber::new(trap));
        let info = if subscribe { info } else { end(info) };
        match self.port.inform(vf(member), &info) {
            (Outcome::Answered, answer) => self.learn(vf(member), &answer),
            (Outcome::Absorbed, _) => self.asked += 1,
            other => panic!("{other:?}"),
        }
    }

    /// What a member learns from an answer.
    fn learn(&mut self, member: MemberId, answer: &SaMad) {
        let info = answer.record::<InformInfo>();
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

    /// A report reaches exactly those who hold a subscription, or the PF.
    fn check_report(&mut self, trap: u16) {
        self.reports += 1;
        let holders = self.held.iter().filter(|(_, held)| *held == trap);
        let mut expected: Vec<MemberId> = holders.map(|&(member, _)| member).collect();
        if expected.is_empty() {
            expected.push(MemberId::PF);
        }
        let report = report(self.reports, TrapNumber::new(trap), ISSUER_GID);
        assert_eq!(self.port.heard_by(&report), expected);
    }

    fn serve(&mut self) {
        while let Some(output) = self.port.agg.poll_output() {
            match output {
                Output::SaRequest { token, request } => self.transmit(token, &request),
                Output::Answer { member, answer, .. } => {
                    self.answered += 1;
                    self.learn(member, &answer);
                }
                Output::Lost { subscription, .. } => {
                    let lost = subscription.trap_number.get();
                    self.held.retain(|&(_, trap)| trap != lost);
                }
                other @ Output::Deliver { .. } => panic!("{other:?}"),
            }
        }
    }

    fn transmit(&mut self, token: Token, request: &SaMad) {
        if let Some(answer) = self.sa.handle(request) {
            let now = self.port.now;
            self.port.agg.handle_response(now, token, &answer);
        }
    }

    fn wait(&mut self, time: Duration) {
        let until = self.port.now + time;
        while let Some(at) = self.port.agg.poll_timeout().filter(|&at| at <= until) {
            self.port.wait(at.saturating_duration_since(self.port.now));
            self.serve();
        }
        self.port.now = until;
    }

    fn come_to_rest(&mut self) {
        (self.sa.losses, self.sa.refusals) = (0, 0);
        self.wait(Duration::from_secs(700));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn when_all_is_quiet_the_sa_holds_the_union_of_the_members(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
        }
        world.come_to_rest();

        let union: BTreeSet<u16> = world.held.iter().map(|&(_, trap)| trap).collect();
        prop_assert_eq!(&world.sa.held, &union);
        prop_assert_eq!(world.port.agg.sizes().held, world.held.len());
        for member in world.held.iter().map(|&(member, _)| member) {
            let held = world.held.iter().filter(|(id, _)| *id == member).count();
            let usage = world.port.agg.usage(member);
            prop_assert_eq!((usize::from(usage.held), usage.waiting), (held, 0));
        }
        prop_assert!(world.resets || world.asked == world.answered);

        for member in 1..5 {
            world.run(Step::Reset { member });
        }
        world.come_to_rest();
        prop_assert_eq!(world.port.agg.sizes(), Sizes::default());
        prop_assert_eq!(world.port.agg.poll_timeout(), None::<Instant>);
        prop_assert!(world.sa.held.is_empty());
    }
}
