//! Hostile guests beside well-behaved ones.

use hca_api::ResourceCounts;
use ib_endpoint::{SaEvent, SaRequest};
use ib_vtime::Duration;
use ib_wire::PortNum;
use pf_context::inspect::Inspect;
use vf_pci::PciFunction;
use vhca::world::vf_spec;

use super::super::{Destination, DriverError, Guest, GuestId, Lab, LabPlan, Talker, TalkerSpec};
use super::{Choices, Depth, HostileGuest};

const PORT: PortNum = PortNum(1);

/// Rounds between two questions of a victim to the SA.
const ROUNDS_PER_QUERY: u64 = 32;

/// What a siege is made of.
#[derive(Clone, Copy, Debug)]
pub struct SiegePlan {
    /// Well-behaved guests on each of the two hosts.
    pub victims: u16,
    /// Hostile guests on each of them.
    pub attackers: u16,
    /// The seed of everything.
    pub seed: u64,
}

/// A well-behaved guest: it says something to the next one in a circle, again and again.
#[derive(Debug)]
struct Victim {
    guest: GuestId,
    talker: Talker,
    way: Option<Destination>,
}

/// A hostile guest at its place.
#[derive(Debug)]
struct Attacker {
    guest: GuestId,
    hostile: HostileGuest,
    choices: Choices<'static>,
}

/// Two hosts with well-behaved guests, which must not notice that hostile ones share their adapters.
#[derive(Debug)]
pub struct Siege {
    lab: Lab,
    victims: Vec<Victim>,
    attackers: Vec<Attacker>,
    rounds: u64,
}

impl Siege {
    /// Brings the well-behaved guests up. `function` makes each guest's device.
    ///
    /// # Errors
    /// The fault that a driver finds.
    ///
    /// # Panics
    /// If the ports do not become active.
    pub fn new(
        plan: &SiegePlan,
        function: impl FnMut(u64) -> Box<dyn PciFunction>,
    ) -> Result<Self, DriverError> {
        let per_host = usize::from(plan.victims + plan.attackers);
        let lab_plan = LabPlan {
            seed: plan.seed,
            ..LabPlan::new(2, plan.victims + plan.attackers)
        };
        let mut lab = Lab::new(lab_plan, function);
        let is_victim = |guest: &GuestId| guest.0 % per_host < usize::from(plan.victims);
        let (good, bad): (Vec<_>, Vec<_>) = lab.guest_ids().partition(is_victim);
        for guest in &good {
            lab.boot(*guest)?;
        }
        let up = lab.run_until(|lab| Ok(good.iter().all(|guest| lab.is_up(*guest))))?;
        assert!(up, "the ports become active");
        let mut victims = Vec::new();
        for guest in good {
            let spec = TalkerSpec {
                shared: guest.0.is_multiple_of(2),
                ..TalkerSpec::default()
            };
            let talker = lab.on(guest, |driver, bus| Talker::open(driver, bus, &spec))?;
            victims.push(Victim {
                guest,
                talker,
                way: None,
            });
        }
        let attackers = (plan.seed..).zip(bad);
        let attackers = attackers
            .map(|(seed, guest)| Attacker {
                guest,
                hostile: HostileGuest::new(lab.guest(guest).memory.clone()),
                choices: Choices::seeded(seed),
            })
            .collect();
        let mut this = Self {
            lab,
            victims,
            attackers,
            rounds: 0,
        };
        this.introduce();
        Ok(this)
    }

    /// Tells each well-behaved guest where the next one is.
    fn introduce(&mut self) {
        let addresses: Vec<_> = self
            .victims
            .iter()
            .map(|victim| {
                let lid = self
                    .lab
                    .on(victim.guest, |driver, _| driver.port(PORT).info.lid);
                victim.talker.address(lid)
            })
            .collect();
        let next = addresses.iter().cycle().skip(1);
        for (victim, address) in self.victims.iter_mut().zip(next) {
            victim.way = Some(victim.talker.way_to(*address));
        }
    }

    /// Each hostile guest does so many things, and each well-behaved one says something.
    ///
    /// # Errors
    /// What a well-behaved guest's driver finds wrong.
    ///
    /// # Panics
    /// If a well-behaved guest notices, or a hostile one has more than it may.
    pub fn round(&mut self, steps: usize) -> Result<(), DriverError> {
        self.acquaint();
        for attacker in &mut self.attackers {
            let mut bus = self.lab.bus(attacker.guest);
            for _ in 0..steps {
                attacker.hostile.step(&mut bus, &mut attacker.choices);
            }
        }
        self.exchange()?;
        if self.rounds.is_multiple_of(ROUNDS_PER_QUERY) {
            self.query()?;
        }
        let quota = vf_spec(ib_wire::Guid::NONE).quota;
        for attacker in &self.attackers {
            let owned = self.lab.owned(attacker.guest);
            assert!(HostileGuest::is_within(&owned, &quota), "{owned:?}");
        }
        self.rounds += 1;
        Ok(())
    }

    /// Introduces hostile guests to each other's connected queue pairs, by pairs.
    fn acquaint(&mut self) {
        for pair in self.attackers.chunks_mut(2) {
            if let [one, other] = pair {
                let (first, second) = (one.hostile.siblings(), other.hostile.siblings());
                one.hostile.meet(second);
                other.hostile.meet(first);
            }
        }
    }

    /// Every well-behaved guest says something to the next, which must hear it byte by byte.
    fn exchange(&mut self) -> Result<(), DriverError> {
        let messages: Vec<Vec<u8>> = (0..self.victims.len())
            .map(|at| message(self.rounds, at))
            .collect();
        for (victim, message) in self.victims.iter_mut().zip(&messages) {
            if let Some(way) = victim.way {
                self.lab.on(victim.guest, |driver, bus| {
                    victim.talker.say(driver, bus, &way, message)
                })?;
            }
        }
        self.lab.run_for(Duration::from_micros(100))?;
        let count = self.victims.len();
        for (at, message) in messages.iter().enumerate() {
            let sender = self.victims[at].talker.qpn;
            let receiver = &mut self.victims[(at + 1) % count];
            let heard = self
                .lab
                .on(receiver.guest, |driver, _| receiver.talker.hear(driver))?;
            let round = self.rounds;
            assert_eq!(heard.len(), 1, "round {round}, {:?}", receiver.guest);
            assert!(
                heard[0].bytes == *message && heard[0].source.qpn == sender,
                "round {round}, {:?}: the message is another one",
                receiver.guest
            );
            assert_eq!(receiver.talker.failed, [], "round {round}");
        }
        Ok(())
    }

    /// A well-behaved guest asks the SA, and must get its answer.
    fn query(&mut self) -> Result<(), DriverError> {
        let asking = usize::try_from(self.rounds / ROUNDS_PER_QUERY).unwrap_or(0);
        let guest = self.victims[asking % self.victims.len()].guest;
        let asked = self.lab.on(guest, |driver, bus| {
            let gid = driver.port(PORT).gid();
            let now = bus.now();
            let mads = driver.mads(PORT);
            let request = SaRequest::path_by_gids(gid, gid, None);
            mads.sa.query(now, &mut mads.agent, request)
        });
        let answered = self.lab.run_until(|lab| {
            lab.on(guest, |driver, _| {
                let mads = driver.mads(PORT);
                let mut events = core::iter::from_fn(|| mads.sa.poll_event());
                Ok(events.any(|event| {
                    matches!(event, SaEvent::Answered { query, result: Ok(_) } if query == asked)
                }))
            })
        })?;
        assert!(answered, "round {}: the SA answers {guest:?}", self.rounds);
        Ok(())
    }

    /// How far the hostile guests got.
    #[must_use]
    pub fn depth(&self) -> Depth {
        let mut all = Depth::default();
        for Attacker { hostile, .. } in &self.attackers {
            all += hostile.depth;
        }
        all
    }

    /// Rounds so far.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Resets the hostile guests' machines.
    ///
    /// # Errors
    /// What a well-behaved guest's driver finds wrong.
    ///
    /// # Panics
    /// If something is left of them, or a well-behaved guest notices.
    pub fn end(mut self) -> Result<(), DriverError> {
        for attacker in &self.attackers {
            super::super::Bus::reset(&mut self.lab.bus(attacker.guest));
        }
        self.lab.run_for(Duration::from_secs(30))?;
        for attacker in &self.attackers {
            let owned = self.lab.owned(attacker.guest);
            assert_eq!(owned, ResourceCounts::default());
            let Guest { at, .. } = self.lab.guest(attacker.guest);
            let context = self.lab.world().context(at.host);
            let member = |row: pf_context::inspect::GroupRow| {
                row.members.iter().any(|(vf, _)| vf.get() == at.function.0)
            };
            assert!(!Inspect::groups(context).any(member));
        }
        self.exchange()
    }
}

/// What the well-behaved guest at a place says in a round.
pub(in super::super) fn message(round: u64, at: usize) -> Vec<u8> {
    let seed = round.wrapping_mul(0x9e37_79b9).wrapping_add(at as u64);
    let len = usize::try_from(seed % 2000).unwrap_or(0);
    let mut choices = Choices::seeded(seed);
    (0..len).map(|_| choices.byte()).collect()
}
