//! Random members, a simple SA that loses messages, and the one invariant: when all is quiet, the
//! port holds at the SA what its members hold together.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, PKey, PKeyIndex, SubnetPrefix, Tid};
use mcast_agg::{Config, JoinAs, McastAgg, MemberId, Outcome, Output, Requester, Token};
use proptest::prelude::*;
use vf_tunnel::{VfId, VirtualPKeyIndex};

const PREFIX: SubnetPrefix = SubnetPrefix::DEFAULT;

#[derive(Clone, Copy, Debug)]
enum Step {
    Join {
        member: u16,
        group: u8,
        state: u8,
    },
    Leave {
        member: u16,
        group: u8,
        state: u8,
    },
    Reset {
        member: u16,
    },
    LeaveAlias {
        member: u16,
    },
    Reregister {
        forget: bool,
    },
    Wait {
        millis: u16,
    },
    /// What the SA does with the next messages: bit set, message lost.
    Losses(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_u16..5, 0_u8..4, 0_u8..16).prop_map(|(member, group, state)| Step::Join { member, group, state }),
        4 => (1_u16..5, 1_u8..4, 0_u8..16).prop_map(|(member, group, state)| Step::Leave { member, group, state }),
        1 => (1_u16..5).prop_map(|member| Step::Reset { member }),
        1 => (1_u16..5).prop_map(|member| Step::LeaveAlias { member }),
        1 => any::<bool>().prop_map(|forget| Step::Reregister { forget }),
        3 => (0_u16..5_000).prop_map(|millis| Step::Wait { millis }),
        2 => any::<u8>().prop_map(Step::Losses),
    ]
}

/// The SA's memory of one port: by group, and by the GUID under which the port joined.
#[derive(Default)]
struct Sa {
    held: BTreeMap<(Gid, Guid), JoinState>,
    created: u8,
    losses: u8,
}

impl Sa {
    fn handle(&mut self, request: &SaMad) -> Option<SaMad> {
        let mut record = request.record::<McMemberRecord>();
        let state = record.join_state();
        let status = if request.header.method == Method::SET {
            if record.mgid.is_none() {
                self.created += 1;
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
        let mut answer = SaMad::new(
            request.header.method.response(),
            ComponentMask::NONE,
            &record,
        );
        answer.header.status = status;
        // A creation whose answer is lost leaves a group that nobody can know of.
        let created = request.record::<McMemberRecord>().mgid.is_none();
        (created || self.passes()).then_some(answer)
    }

    fn passes(&mut self) -> bool {
        let lost = self.losses & 1 != 0;
        self.losses >>= 1;
        !lost
    }
}

const PORT: Guid = Guid::new(1);

fn guid_of(member: MemberId) -> Guid {
    Guid::new(0x100 + u64::from(member.vf().unwrap().get()))
}

struct World {
    agg: McastAgg,
    /// Members that leave with their alias and have not left yet.
    leaving: BTreeSet<MemberId>,
    sa: Sa,
    now: Instant,
    tid: u64,
    asked: usize,
    answered: usize,
    held: BTreeMap<(MemberId, Gid), JoinState>,
    resets: bool,
}

impl World {
    fn new(join_as: JoinAs) -> Self {
        let config = Config {
            join_as,
            ..Config::default()
        };
        Self {
            agg: McastAgg::new(config, PREFIX, PORT, 1),
            leaving: BTreeSet::new(),
            sa: Sa::default(),
            now: Instant::ZERO,
            tid: 0,
            asked: 0,
            answered: 0,
            held: BTreeMap::new(),
            resets: false,
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Join {
                member,
                group,
                state,
            } => self.ask(Method::SET, member, group, state),
            Step::Leave {
                member,
                group,
                state,
            } => self.ask(Method::DELETE, member, group, state),
            Step::Reset { member } => {
                let member = MemberId::from(VfId::new(member).unwrap());
                self.agg.reset(self.now, member);
                self.held.retain(|(id, _), _| *id != member);
                self.resets = true;
            }
            Step::LeaveAlias { member } => {
                let member = MemberId::from(VfId::new(member).unwrap());
                self.agg.leave_alias(self.now, member, guid_of(member));
                self.leaving.insert(member);
            }
            Step::Reregister { forget } => {
                if forget {
                    self.sa.held.clear();
                }
                self.agg.client_reregister(self.now);
            }
            Step::Wait { millis } => self.wait(Duration::from_millis(millis.into())),
            Step::Losses(losses) => self.sa.losses = losses,
        }
        self.serve();
    }

    fn ask(&mut self, method: Method, member: u16, group: u8, state: u8) {
        let vf = VfId::new(member).unwrap();
        let guid = guid_of(vf.into());
        let mut record = McMemberRecord {
            port_gid: Gid::from_parts(PREFIX, guid),
            ..McMemberRecord::default()
        };
        if group != 0 {
            record.mgid.0[0] = 0xff;
            record.mgid.0[15] = group;
        }
        record.set_join_state(JoinState::from_low_bits(state));
        type R = McMemberRecord;
        let mut mad = SaMad::new(method, R::MGID | R::PORT_GID | R::JOIN_STATE, &record);
        self.tid += 1;
        mad.header.tid = Tid::new(self.tid);
        let from = Requester {
            id: vf.into(),
            guid,
            pkeys: &[PKey::DEFAULT_FULL],
            pkey_index: VirtualPKeyIndex(PKeyIndex(0)),
        };
        match self.agg.request(self.now, &from, &mut mad) {
            Outcome::Answered => self.learn(vf.into(), &mad),
            Outcome::Absorbed => self.asked += 1,
            other => panic!("{other:?}"),
        }
    }

    /// What a member learns from an answer that grants it something.
    fn learn(&mut self, member: MemberId, answer: &SaMad) {
        let record = answer.record::<McMemberRecord>();
        if answer.header.status == MadStatus::OK {
            self.held.insert((member, record.mgid), record.join_state());
            self.held.retain(|_, state| !state.is_empty());
        }
    }

    fn serve(&mut self) {
        while let Some(output) = self.agg.poll_output() {
            match output {
                Output::SaRequest { token, request } => self.transmit(token, &request),
                Output::Answer { member, answer, .. } => {
                    self.answered += 1;
                    self.learn(member, &answer);
                }
                Output::Changed { .. } => {}
                Output::Lost { mgid, members } => {
                    let lost = |id: &MemberId, group: &Gid| *group == mgid && members.contains(id);
                    self.held.retain(|(id, group), _| !lost(id, group));
                }
                Output::Left { member } => assert!(self.leaving.remove(&member)),
            }
        }
    }

    fn transmit(&mut self, token: Token, request: &SaMad) {
        if self.sa.passes()
            && let Some(answer) = self.sa.handle(request)
        {
            self.agg.handle_response(self.now, token, &answer);
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.agg.poll_timeout().filter(|&at| at <= end) {
            self.now = at;
            self.agg.handle_timeout(at);
            self.serve();
        }
        self.now = end;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn when_all_is_quiet_the_sa_holds_the_union_of_the_members(
        aliases in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut world = World::new(if aliases { JoinAs::Alias } else { JoinAs::Port });
        for step in steps {
            world.run(step);
        }
        world.sa.losses = 0;
        world.wait(Duration::from_secs(700));

        let mut union: BTreeMap<(Gid, Guid), JoinState> = BTreeMap::new();
        for ((member, group), state) in &world.held {
            let port = if aliases { guid_of(*member) } else { PORT };
            let held = union.entry((*group, port)).or_default();
            *held = *held | *state;
        }
        prop_assert_eq!(&world.sa.held, &union);
        let members: usize = world.agg.groups().map(|group| group.members().count()).sum();
        prop_assert_eq!(members, world.held.len());
        for group in world.agg.groups() {
            prop_assert_eq!((group.waiting(), group.under_way()), (0, None));
            for (member, state) in group.members() {
                prop_assert_eq!(world.held.get(&(member, group.mgid())), Some(&state));
            }
        }
        for member in (1..5).map(|n| MemberId::from(VfId::new(n).unwrap())) {
            let held = world.held.keys().filter(|(id, _)| *id == member).count();
            let usage = world.agg.usage(member);
            prop_assert_eq!((usize::from(usage.held), usage.waiting), (held, 0));
        }
        prop_assert!(world.resets || world.asked == world.answered);

        for member in 1..5 {
            world.run(Step::Reset { member });
        }
        world.wait(Duration::from_secs(700));
        prop_assert_eq!(world.agg.sizes(), mcast_agg::Sizes::default());
        prop_assert!(world.leaving.is_empty());
        prop_assert!(world.sa.held.is_empty());
    }
}
