//! A sequence of operations on the multicast memberships of a port.

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::McMemberRecord;
use ib_wire::{Guid, SubnetPrefix};
use mcast_agg::{Config, JoinAs, McastAgg, MemberUse, Outcome, Output, Sizes};

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

struct Scene {
    now: Instant,
    agg: McastAgg,
    sa: Sa,
    absorbed: usize,
    answered: usize,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.byte() % 16 {
            0..5 => self.ask(input),
            5..9 => {
                if let Some((token, answer)) = self.sa.answer(input) {
                    self.agg.handle_response(now, token, &answer);
                }
            }
            9..11 => {
                let end = now + input.time();
                self.wait(end);
            }
            11 => self.sa.lose(input),
            12 => self.agg.reset(now, some_vf(input).into()),
            13 => {
                let vf = some_vf(input);
                self.agg.leave_alias(now, vf.into(), guid_of(vf));
            }
            14 => self.agg.client_reregister(now),
            _ => self.agg.sm_changed(now),
        }
        self.serve();
        self.check();
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        let vf = some_vf(input);
        let mut mad = sa_side::membership(vf, input);
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

    fn serve(&mut self) {
        while let Some(output) = self.agg.poll_output() {
            match output {
                Output::SaRequest { token, request } => {
                    let record: McMemberRecord = request.record();
                    assert!(!record.join_state().is_empty(), "asks the SA for nothing");
                    assert!([Method::SET, Method::DELETE].contains(&request.header.method));
                    self.sa.ask(token, request);
                }
                Output::Answer { answer, .. } => {
                    assert!(answer.header.method.is_response());
                    self.answered += 1;
                }
                Output::Changed { members, .. } | Output::Lost { members, .. } => {
                    assert!(!members.is_empty());
                }
                Output::Left { .. } => {}
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
        let mut all = (0, 0);
        for member in members() {
            let MemberUse { held, waiting } = self.agg.usage(member);
            assert!(held <= config.groups_per_member);
            assert!(waiting <= config.waiting_per_member);
            all = (all.0 + usize::from(held), all.1 + usize::from(waiting));
        }
        assert_eq!(all, (sizes.members, sizes.waiting));
    }

    /// All members go, and the SA is silent: what it cannot be told is given up.
    fn wind_down(mut self) {
        for member in members() {
            self.agg.reset(self.now, member);
        }
        self.serve();
        self.check();
        self.wait(self.now + Duration::from_secs(24 * 3_600));
        self.check();
        assert_eq!(self.agg.sizes(), Sizes::default());
        assert_eq!(self.agg.poll_timeout(), None);
    }
}

/// Four members of a few groups, and an SA that answers, refuses, loses and lies. No input exceeds a
/// quota, answers what nobody asked, or keeps a group that nobody is in.
pub(super) fn mcast(data: &[u8]) {
    play(data).wind_down();
}

fn play(data: &[u8]) -> Scene {
    let mut input = Input::new(data);
    let join_as = [JoinAs::Port, JoinAs::Alias][input.index(2)];
    let mut scene = Scene {
        now: Instant::from_millis(1),
        agg: McastAgg::new(config(join_as), SubnetPrefix::DEFAULT, Guid::new(1), 1),
        sa: Sa::default(),
        absorbed: 0,
        answered: 0,
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
        let port = play(include_bytes!("../../fuzz/corpus/mcast/join-and-leave"));
        assert_eq!((port.answered, port.agg.sizes()), (1, Sizes::default()));
        let alias = play(include_bytes!("../../fuzz/corpus/mcast/alias"));
        assert_eq!((alias.answered, alias.agg.sizes().members), (2, 1));
    }
}
