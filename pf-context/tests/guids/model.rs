//! The manager against an SA that declines, forgets and loses answers, and a port that comes and goes.

use std::collections::{BTreeMap, BTreeSet};

use ib_vtime::Duration;
use ib_wire::Guid;
use ib_wire::mad::MadStatus;
use pf_context::guids::{GuidConfig, GuidManager, GuidOutput, GuidState, GuidWish};
use proptest::prelude::*;

use crate::bench::{Answer, Asked, Bench, LID, block, class_port_info, refusal, timed_out, vf};

/// VFs that the steps name, some of them beyond the table.
const VFS: u16 = 21;
const TABLE: u16 = 20;
/// GUIDs that an administrator asks for.
const GUIDS: u64 = 12;
/// The SA's own choices start here.
const CHOSEN: u64 = 0x1000;

#[derive(Clone, Debug)]
enum Step {
    Want(u16, GuidWish),
    Withdraw(u16),
    Answer(usize),
    /// The SA does it, or not, and the answer is lost.
    Lose(usize, bool),
    WrongBlock(usize),
    Refuse(usize),
    WriteHardware,
    ClearHardware(u16),
    Reregister,
    /// Another SM that knows nothing takes over.
    Failover,
    PortActive(bool),
    Wait(u64),
    /// Somebody elsewhere takes a GUID, or gives it back.
    Foreign(u64, bool),
    /// A VF's alias becomes a member of a group.
    Join(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let number = 1..=VFS;
    let wish = prop_oneof![
        Just(GuidWish::None),
        Just(GuidWish::SmAssigned),
        (1..=GUIDS).prop_map(|guid| GuidWish::Admin(Guid::new(guid))),
        (1..=GUIDS).prop_map(|guid| GuidWish::Admin(Guid::new(guid))),
    ];
    prop_oneof![
        6 => (number.clone(), wish).prop_map(|(vf, wish)| Step::Want(vf, wish)),
        2 => number.clone().prop_map(Step::Withdraw),
        10 => (0_usize..4).prop_map(Step::Answer),
        3 => (0_usize..4, any::<bool>()).prop_map(|(at, done)| Step::Lose(at, done)),
        1 => (0_usize..4).prop_map(Step::WrongBlock),
        1 => (0_usize..4).prop_map(Step::Refuse),
        4 => Just(Step::WriteHardware),
        1 => number.clone().prop_map(Step::ClearHardware),
        1 => Just(Step::Reregister),
        1 => Just(Step::Failover),
        2 => any::<bool>().prop_map(Step::PortActive),
        4 => (1_u64..70_000).prop_map(Step::Wait),
        2 => (1..=GUIDS, any::<bool>()).prop_map(|(guid, taken)| Step::Foreign(guid, taken)),
        2 => number.prop_map(Step::Join),
    ]
}

/// The SA and the SM behind it, as OpenSM does it.
#[derive(Default)]
struct Sa {
    table: BTreeMap<u16, u64>,
    foreign: BTreeSet<u64>,
    in_groups: BTreeSet<u64>,
    choices: u64,
}

impl Sa {
    /// Does what is asked and answers with the whole block.
    fn take(&mut self, asked: &Asked) -> Answer {
        if asked.is_about_support() {
            return class_port_info(true);
        }
        let entries = asked.entries();
        if asked.is_set() {
            for (index, guid) in entries {
                self.set(index, guid);
            }
        } else {
            let held = |(index, _): &(u16, u64)| self.table.get(index);
            if entries
                .iter()
                .filter_map(held)
                .any(|guid| self.in_groups.contains(guid))
            {
                return refusal(MadStatus::SA_DENIED);
            }
            for (index, _) in entries {
                self.table.remove(&index);
            }
        }
        let number = asked.record().block;
        let first = u16::from(number) * 8;
        let guid = |at: usize| first + u16::try_from(at).unwrap();
        block(
            number,
            std::array::from_fn(|at| self.table.get(&guid(at)).copied().unwrap_or(0)),
        )
    }

    fn set(&mut self, index: u16, guid: u64) {
        if guid == 0 {
            self.choices += 1;
            let choice = CHOSEN + self.choices;
            self.table.entry(index).or_insert(choice);
        } else if !self.foreign.contains(&guid) && !self.table.values().any(|held| *held == guid) {
            self.table.insert(index, guid);
        }
    }
}

struct World {
    bench: Bench,
    sa: Sa,
    hardware: BTreeMap<u16, u64>,
    active: bool,
    wishes: BTreeMap<u16, GuidWish>,
    outstanding: Vec<Asked>,
    /// What VFs were told.
    guids: BTreeMap<u16, u64>,
    requests: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut bench = Bench::down(GuidConfig {
            seed,
            table_len: TABLE,
            alias_members: seed.is_multiple_of(2),
        });
        bench.manager.set_lid(bench.now, LID);
        Self {
            bench,
            sa: Sa::default(),
            hardware: BTreeMap::new(),
            active: false,
            wishes: BTreeMap::new(),
            outstanding: Vec::new(),
            guids: BTreeMap::new(),
            requests: 0,
        }
    }

    fn step(&mut self, step: Step) {
        let now = self.bench.now;
        match step {
            Step::Want(number, wish) => {
                if self.bench.manager.want(now, vf(number), wish).is_ok() {
                    self.wishes.insert(number, wish);
                }
            }
            Step::Withdraw(number) => {
                self.bench.withdraw(number);
                self.wishes.insert(number, GuidWish::None);
            }
            Step::Answer(at) => self.respond(at, |sa, asked| sa.take(asked)),
            Step::Lose(at, done) => self.respond(at, |sa, asked| {
                let _unheard = done.then(|| sa.take(asked));
                timed_out()
            }),
            Step::WrongBlock(at) => self.respond(at, |sa, asked| match sa.take(asked) {
                Ok(_) => block(31, [0; 8]),
                refused => refused,
            }),
            Step::Refuse(at) => self.respond(at, |_, _| refusal(MadStatus::SA_NO_RESOURCES)),
            Step::WriteHardware => self.write_hardware(),
            Step::ClearHardware(index) => self.show(index, 0),
            Step::Reregister => self.bench.manager.client_reregister(now),
            Step::Failover => {
                self.sa.table.clear();
                self.sa.in_groups.clear();
                self.bench.manager.sm_changed(now);
            }
            Step::PortActive(active) => {
                self.active = active;
                self.bench.manager.port_active(now, active);
            }
            Step::Wait(millis) => self.wait(Duration::from_millis(millis)),
            Step::Foreign(guid, taken) => {
                self.sa.foreign.remove(&guid);
                if taken && !self.sa.table.values().any(|held| *held == guid) {
                    self.sa.foreign.insert(guid);
                }
            }
            Step::Join(number) => {
                self.sa.in_groups.extend(self.guids.get(&number));
            }
        }
        self.pull();
    }

    fn respond(&mut self, at: usize, answer: impl FnOnce(&mut Sa, &Asked) -> Answer) {
        if at < self.outstanding.len() {
            let asked = self.outstanding.remove(at);
            let answer = answer(&mut self.sa, &asked);
            self.bench.answer(&asked, answer);
        }
    }

    fn show(&mut self, index: u16, guid: u64) {
        self.hardware.insert(index, guid);
        self.bench.hardware(index, guid);
    }

    /// The SM writes the whole table.
    fn write_hardware(&mut self) {
        for index in 1..TABLE {
            let guid = self.sa.table.get(&index).copied().unwrap_or(0);
            self.show(index, guid);
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.bench.now + time;
        while self
            .bench
            .manager
            .poll_timeout()
            .is_some_and(|due| due <= end)
        {
            self.bench.pass();
            self.pull();
        }
        self.bench.now = end;
    }

    fn pull(&mut self) {
        let asked = self.bench.asked();
        assert!(
            self.active || asked.is_empty(),
            "asked on a port that is down"
        );
        self.requests += asked.len();
        for request in &asked {
            if !request.is_about_support() {
                let entries = request.entries();
                assert!(!entries.is_empty());
                assert!(entries.iter().all(|(index, _)| (1..TABLE).contains(index)));
            }
        }
        self.outstanding.extend(asked);
        assert!(self.outstanding.len() <= GuidManager::MAX_IN_FLIGHT);
        let blocks = self.outstanding.iter().filter(|a| !a.is_about_support());
        let blocks: Vec<u8> = blocks.map(|asked| asked.record().block).collect();
        assert!(blocks.iter().collect::<BTreeSet<_>>().len() == blocks.len());
        for told in std::mem::take(&mut self.bench.told) {
            self.told(told);
        }
    }

    fn told(&mut self, told: GuidOutput) {
        match told {
            GuidOutput::Guid {
                vf,
                guid: Some(guid),
            } => {
                let others = self.guids.values().any(|held| *held == guid.get());
                assert!(!others, "{guid} is another VF's");
                assert_eq!(self.hardware.get(&vf.get()), Some(&guid.get()));
                assert_eq!(self.guids.insert(vf.get(), guid.get()), None);
            }
            GuidOutput::Guid { vf, guid: None } => {
                assert!(self.guids.remove(&vf.get()).is_some());
            }
            GuidOutput::LeaveGroups { vf, .. } => {
                let held = self.sa.table.get(&vf.get()).copied();
                self.sa.in_groups.retain(|guid| Some(*guid) != held);
                if vf.get() % 2 == 0 {
                    self.bench.manager.groups_left(self.bench.now, vf);
                    self.pull();
                }
            }
            GuidOutput::CheckPort => assert!(!self.active),
            GuidOutput::State { .. } | GuidOutput::Request { .. } => {}
        }
    }

    /// Everything works from now on, until nothing is left to do.
    fn settle(&mut self) {
        self.sa.foreign.clear();
        self.sa.in_groups.clear();
        self.step(Step::PortActive(true));
        let before = self.requests;
        for _ in 0..1000 {
            while !self.outstanding.is_empty() {
                self.step(Step::Answer(0));
            }
            self.write_hardware();
            self.pull();
            if self.outstanding.is_empty() {
                if self.bench.manager.poll_timeout().is_none() {
                    break;
                }
                self.bench.pass();
                self.pull();
            }
        }
        assert!(
            self.requests - before < 200,
            "{} requests",
            self.requests - before
        );
        let sizes = self.bench.manager.sizes();
        assert_eq!((sizes.requests, sizes.timers), (0, 0));
    }

    fn check(&self) {
        for number in 1..=VFS {
            let held = self.sa.table.get(&number).copied();
            assert_eq!(held, self.guids.get(&number).copied(), "VF {number}");
            let wish = self.wishes.get(&number).copied().unwrap_or_default();
            let state = match (wish, held) {
                (GuidWish::None, held) => {
                    assert_eq!(held, None, "VF {number} has what nobody wants");
                    GuidState::NotRequested
                }
                (_, None) if number >= TABLE => GuidState::TableTooSmall,
                (GuidWish::SmAssigned, Some(guid)) => GuidState::InHardware(Guid::new(guid)),
                (GuidWish::Admin(guid), Some(_)) => GuidState::InHardware(guid),
                (_, None) => panic!("VF {number} has nothing of {wish:?}"),
            };
            assert_eq!(self.bench.state(number), state, "VF {number}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn at_quiet_the_sa_the_hardware_and_the_vfs_agree_with_the_wishes(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(seed);
        world.step(Step::PortActive(true));
        for step in steps {
            world.step(step);
        }
        world.settle();
        world.check();
    }

    #[test]
    fn after_a_shutdown_at_any_point_nothing_is_left_to_do(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..80),
        answers in prop::bool::ANY,
    ) {
        let mut world = World::new(seed);
        world.step(Step::PortActive(true));
        for step in steps {
            world.step(step);
        }
        world.bench.manager.withdraw_all(world.bench.now);
        world.pull();
        let before = world.requests;
        while world.bench.manager.sizes().requests + world.bench.manager.sizes().timers > 0 {
            world.step(if answers { Step::Answer(0) } else { Step::Lose(0, false) });
            world.wait(Duration::from_secs(1));
            prop_assert!(world.requests - before < 100);
        }
        if answers && world.active {
            world.sa.in_groups.clear();
            prop_assert_eq!(world.bench.manager.sizes().held, 0);
            prop_assert!(world.guids.is_empty() || !world.active);
        }
    }
}
