//! Any interleaving against a simple model: maps of who showed which wire id to whom.

use std::collections::{BTreeMap, BTreeSet};

use cm_paravirt::{ResetPolicy, State};
use ib_vtime::SplitMix64;
use ib_wire::PortNum;
use ib_wire::cm::{CmMessage, CmReq, RejReason};
use ib_wire::mad::{AttributeId, Mad};
use proptest::prelude::*;

use crate::harness::*;

const VFS: u16 = 4;
const LIDS: [u16; 2] = [PEER_LID, STRANGER_LID];

/// What a wire id stood for when a message showed it first.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Owner {
    vf: u16,
    guest: u32,
    sidr: bool,
    lid: u16,
}

#[derive(Default)]
struct World {
    pf: Pf,
    owners: BTreeMap<u32, Owner>,
    /// The ids of the owners' peers, as their REPs and MRAs told, or as their REQs did.
    remotes: BTreeMap<u32, u32>,
    /// Wire ids of VFs that were reset.
    dead: BTreeSet<u32>,
    /// Peers' requests that VFs got: VF, LID, id.
    asked: BTreeSet<(u16, u16, u32)>,
    delivered: u64,
}

fn is_sidr(mad: &Mad) -> bool {
    [AttributeId::CM_SIDR_REQ, AttributeId::CM_SIDR_REP].contains(&mad.header.attribute_id)
}

/// The message with both ids cleared.
fn without_ids(mad: &Mad) -> Mad {
    let mut mad = *mad;
    mad.data[..4].fill(0);
    if !is_sidr(&mad) {
        mad.data[4..8].fill(0);
    }
    mad
}

impl World {
    /// A VF sends; what goes out must show a wire id that is this VF's and this id's alone.
    fn tx(&mut self, vf: u16, mad: Mad, lid: u16) -> Option<u32> {
        let sent = self.pf.tx(vf, mad, at(lid)).ok()?;
        assert_eq!(without_ids(&sent), without_ids(&mad));
        if !is_sidr(&mad) {
            assert_eq!(remote_id(&sent), remote_id(&mad));
        }
        let (wire, guest) = (local_id(&sent), local_id(&mad));
        let shows_none = mad.header.attribute_id == AttributeId::CM_SIDR_REP
            || (mad.header.attribute_id == AttributeId::CM_REJ && wire == guest);
        if shows_none {
            return None;
        }
        assert!(wire != 0 && wire != u32::MAX);
        assert!(
            !self.dead.contains(&wire),
            "a wire id of a VF that was reset"
        );
        let owner = Owner {
            vf,
            guest,
            sidr: is_sidr(&mad),
            lid,
        };
        if mad.header.attribute_id == AttributeId::CM_REJ {
            // A REJ of a REQ shows the wire id that is reserved, whatever the VF says, and binds
            // it to nothing.
            assert!(self.owners.get(&wire).is_none_or(|known| known.vf == vf));
            return Some(wire);
        }
        let known = *self.owners.entry(wire).or_insert(owner);
        assert_eq!((known.vf, known.sidr, known.guest), (vf, owner.sidr, guest));
        let remote = remote_id(&mad);
        if !is_sidr(&mad) && remote != 0 {
            assert_eq!(*self.remotes.entry(wire).or_insert(remote), remote);
        }
        Some(wire)
    }

    /// A peer sends; what is delivered must be for the VF that is party to it.
    fn rx(&mut self, mad: Mad, lid: u16) -> bool {
        let to = mad.header.attribute_id;
        let dgid = (to == AttributeId::CM_SIDR_REQ).then(|| vf_gid(1));
        let Rx::Vf(vf, got) = self.pf.rx_to(mad, at(lid), dgid) else {
            return false;
        };
        self.delivered += 1;
        assert_eq!(without_ids(&got), without_ids(&mad));
        match to {
            AttributeId::CM_REQ => {
                assert_eq!(got, mad);
                assert_eq!(vf_gid(vf), mad.view::<CmReq>().primary.remote_gid);
                self.asked.insert((vf, lid, local_id(&mad)));
            }
            AttributeId::CM_SIDR_REQ => {
                assert_eq!((vf, got), (1, mad));
            }
            AttributeId::CM_SIDR_REP => {
                self.check_party(local_id(&mad), vf, local_id(&got), lid, true);
            }
            AttributeId::CM_REJ if remote_id(&mad) == 0 => {
                assert_eq!(got, mad);
                assert!(self.asked.contains(&(vf, lid, local_id(&mad))));
            }
            _ => {
                let wire = remote_id(&mad);
                assert_eq!(local_id(&got), local_id(&mad));
                self.check_party(wire, vf, remote_id(&got), lid, false);
                let local = local_id(&mad);
                if [AttributeId::CM_REP, AttributeId::CM_MRA].contains(&to) {
                    self.remotes.entry(wire).or_insert(local);
                }
                if to != AttributeId::CM_REJ {
                    assert_eq!(self.remotes.get(&wire), Some(&local), "a stranger's id");
                }
            }
        }
        true
    }

    fn check_party(&self, wire: u32, vf: u16, guest: u32, lid: u16, sidr: bool) {
        assert!(!self.dead.contains(&wire), "delivered after a reset");
        let owner = Owner {
            vf,
            guest,
            sidr,
            lid,
        };
        assert_eq!(self.owners.get(&wire), Some(&owner));
    }

    fn reset(&mut self, vf: u16, policy: ResetPolicy) {
        self.pf
            .machine
            .vf_reset(self.pf.now, crate::harness::vf(vf), policy);
        let own = self.owners.iter().filter(|(_, owner)| owner.vf == vf);
        self.dead.extend(own.map(|(wire, _)| *wire));
        self.asked.retain(|(asked, _, _)| *asked != vf);
        while let Some(transmit) = self.pf.machine.poll_transmit(PortNum(1)) {
            assert_eq!(transmit.vf.get(), vf);
            let local = local_id(&transmit.mad);
            assert!(local == 0 || self.dead.contains(&local));
        }
    }

    /// The counters agree with the ids there are.
    fn check_counters(&self) {
        let machine = &self.pf.machine;
        let mut states: BTreeMap<(u16, State), u32> = BTreeMap::new();
        for connection in machine.connections(self.pf.now) {
            let is_up = connection.state == State::Established;
            let is_quiet = connection.state == State::Quiet;
            assert_eq!(connection.idle.is_none(), is_up || is_quiet);
            assert_eq!(connection.remaining.is_none(), is_up);
            *states
                .entry((connection.vf.get(), connection.state))
                .or_default() += 1;
        }
        let known = (1..=VFS).filter_map(|n| Some((n, machine.vf_statistics(vf(n))?)));
        let mut total = 0;
        for (number, statistics) in known {
            for state in State::ALL {
                let live = states.get(&(number, state)).copied().unwrap_or(0);
                assert_eq!(statistics.live(state), live);
            }
            assert_eq!(
                machine.connections_of(self.pf.now, vf(number)).count(),
                (statistics.ids + statistics.pending) as usize
            );
            total += statistics.ids + statistics.pending;
        }
        assert_eq!(machine.len(), total as usize);
    }

    /// Everything but connections that are up ends by itself, and those with their VFs.
    fn check_drain(&mut self) {
        self.check_counters();
        self.pf.drain();
        let up = |state: &State| *state == State::Established;
        assert!(self.pf.states().iter().all(up));
        for vf in 1..=VFS {
            self.reset(vf, ResetPolicy::Silent);
        }
        assert!(self.pf.machine.is_empty());
        self.check_counters();
    }
}

/// A move in the chaos. Ids are few, so that they meet.
#[derive(Clone, Debug)]
enum Move {
    Vf {
        vf: u16,
        message: usize,
        id: u32,
        remote: u32,
        lid: usize,
    },
    Peer {
        message: usize,
        id: u32,
        wire: usize,
        lid: usize,
        vf: u16,
        /// Take id and LID from what the wire id's peer said before.
        honest: bool,
    },
    Wait(u64),
    Reset(u16),
}

const MESSAGES: [AttributeId; 11] = [
    AttributeId::CM_REQ,
    AttributeId::CM_MRA,
    AttributeId::CM_REJ,
    AttributeId::CM_REP,
    AttributeId::CM_RTU,
    AttributeId::CM_DREQ,
    AttributeId::CM_DREP,
    AttributeId::CM_SIDR_REQ,
    AttributeId::CM_SIDR_REP,
    AttributeId::CM_LAP,
    AttributeId::CM_APR,
];

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        10 => (1..=VFS, 0..MESSAGES.len(), 0_u32..4, 100_u32..104, 0..LIDS.len()).prop_map(
            |(vf, message, id, remote, lid)| Move::Vf { vf, message, id, remote, lid }
        ),
        10 => (0..MESSAGES.len(), 100_u32..104, any::<usize>(), 0..LIDS.len(), 1..=VFS, any::<bool>())
            .prop_map(|(message, id, wire, lid, vf, honest)| Move::Peer {
                message, id, wire, lid, vf, honest
            }),
        2 => (0_u64..70).prop_map(Move::Wait),
        1 => (1..=VFS).prop_map(Move::Reset),
    ]
}

impl World {
    fn make(&mut self, step: &Move) {
        match *step {
            Move::Vf {
                vf,
                message: number,
                id,
                remote,
                lid,
            } => {
                let lid = LIDS[lid];
                let mad = match MESSAGES[number] {
                    AttributeId::CM_REQ => vf_req(vf, id, lid),
                    AttributeId::CM_REP => rep(id, remote, vf_ca(vf)),
                    AttributeId::CM_SIDR_REQ => sidr_req(id, 1),
                    AttributeId::CM_SIDR_REP => sidr_rep(remote),
                    AttributeId::CM_REJ if id == 0 => rej_timeout(1, 0, vf_ca(vf)),
                    other => message(other, id, remote),
                };
                self.tx(vf, mad, lid);
            }
            Move::Peer {
                message: number,
                id,
                wire,
                lid,
                vf,
                honest,
            } => {
                let (mut id, mut lid) = (id, LIDS[lid]);
                let place = wire.checked_rem(self.owners.len()).unwrap_or(0);
                let wire = self.owners.keys().nth(place).copied().unwrap_or(7);
                if honest {
                    lid = self.owners.get(&wire).map_or(lid, |owner| owner.lid);
                    id = self.remotes.get(&wire).copied().unwrap_or(id);
                }
                let mad = match MESSAGES[number] {
                    AttributeId::CM_REQ => peer_req(lid, id, vf),
                    AttributeId::CM_REP => rep(id, wire, peer_ca(lid)),
                    AttributeId::CM_SIDR_REQ => sidr_req(id, 1),
                    AttributeId::CM_SIDR_REP => sidr_rep(wire),
                    AttributeId::CM_REJ if !honest => rej_timeout(id, 0, peer_ca(lid)),
                    other => message(other, id, wire),
                };
                self.rx(mad, lid);
            }
            Move::Wait(seconds) => {
                self.pf.wait(seconds);
                self.pf.machine.handle_timeout(self.pf.now);
            }
            Move::Reset(vf) => self.reset(vf, ResetPolicy::Signal { ca_guid: vf_ca(vf) }),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_interleaving_misleads_a_message_or_leaves_state(
        steps in prop::collection::vec(moves(), 0..250)
    ) {
        let mut world = World::default();
        for step in &steps {
            world.make(step);
        }
        world.check_drain();
    }

    #[test]
    fn the_same_seed_and_input_give_the_same_output(
        steps in prop::collection::vec(moves(), 0..100)
    ) {
        let run = || {
            let mut world = World::default();
            for step in &steps {
                world.make(step);
            }
            let ids: Vec<_> = world.pf.machine.connections(world.pf.now).collect();
            (ids, world.owners.keys().copied().collect::<Vec<_>>())
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn any_bytes_get_a_verdict(
        bytes in prop::collection::vec(any::<u8>(), 256),
        attribute in 0_u16..0x20,
        ids in prop::array::uniform2(prop_oneof![Just(0_u32), Just(u32::MAX), 0..8_u32]),
    ) {
        let mut pf = Pf::default();
        pf.connect(1, 5, PEER_LID, 6);
        let mut mad = Mad::from_bytes(&bytes).expect("256 bytes");
        if attribute < 0x1c {
            let shaped = message(AttributeId::new(attribute), ids[0], ids[1]);
            mad.header = shaped.header;
            mad.data[..8].copy_from_slice(&shaped.data[..8]);
        }
        let _ = pf.tx(1, mad, at(PEER_LID));
        let _ = pf.rx(mad, at(PEER_LID));
        let _ = pf.rx_to(mad, at(PEER_LID), Some(vf_gid(1)));
        pf.drain();
    }
}

/// Who begins a conversation, and how it goes on.
#[derive(Clone, Copy)]
struct Conversation {
    vf: u16,
    guest: u32,
    peer: u32,
    lid: u16,
    by_vf: bool,
    sidr: bool,
    /// What has happened.
    step: u8,
    /// The step at which one side gives up.
    abort: u8,
    wire: u32,
}

impl World {
    /// Makes the conversation's next step. `false` when it is over.
    fn converse(&mut self, talk: &mut Conversation) -> bool {
        let Conversation {
            vf,
            guest,
            peer,
            lid,
            by_vf,
            step,
            wire,
            ..
        } = *talk;
        talk.step += 1;
        if talk.sidr {
            return match step {
                0 => self.tx(vf, sidr_req(guest, 1), lid).is_some_and(|shown| {
                    talk.wire = shown;
                    true
                }),
                _ => {
                    self.rx(sidr_rep(wire), lid);
                    false
                }
            };
        }
        if step == talk.abort {
            match (by_vf, step) {
                (true, 1) => self.tx(vf, rej_timeout(guest, 0, vf_ca(vf)), lid).is_some(),
                (false, 1) => self.rx(rej_timeout(peer, 0, peer_ca(lid)), lid),
                _ => self
                    .tx(
                        vf,
                        rej(guest, peer, CmMessage::OTHER, RejReason::CONSUMER),
                        lid,
                    )
                    .is_some(),
            };
            return false;
        }
        match (step, by_vf) {
            (0, true) => self
                .tx(vf, vf_req(vf, guest, lid), lid)
                .is_some_and(|shown| {
                    talk.wire = shown;
                    true
                }),
            (0, false) => self.rx(peer_req(lid, peer, vf), lid),
            (1, true) => self.rx(rep(peer, wire, peer_ca(lid)), lid),
            (1, false) => self
                .tx(vf, rep(guest, peer, vf_ca(vf)), lid)
                .is_some_and(|shown| {
                    talk.wire = shown;
                    true
                }),
            (2, true) => self
                .tx(vf, message(AttributeId::CM_RTU, guest, peer), lid)
                .is_some(),
            (2, false) => self.rx(message(AttributeId::CM_RTU, peer, wire), lid),
            (3, true) => self
                .tx(vf, message(AttributeId::CM_DREQ, guest, peer), lid)
                .is_some(),
            (3, false) => self.rx(message(AttributeId::CM_DREQ, peer, wire), lid),
            (4, true) => {
                self.rx(message(AttributeId::CM_DREP, peer, wire), lid);
                false
            }
            _ => {
                self.tx(vf, message(AttributeId::CM_DREP, guest, peer), lid);
                false
            }
        }
    }
}

fn below(random: &mut SplitMix64, bound: u16) -> u16 {
    u16::try_from(random.below(u64::from(bound))).expect("below the bound")
}

#[test]
fn a_hundred_thousand_conversations_with_losses_aborts_and_resets_leave_nothing() {
    let mut world = World::default();
    let mut random = SplitMix64::new(11);
    let mut begun = 0;
    let mut talks: Vec<Conversation> = Vec::new();
    while begun < 100_000 || !talks.is_empty() {
        if talks.len() < 200 && begun < 100_000 {
            begun += 1;
            let roll = random.next_u32();
            talks.push(Conversation {
                vf: below(&mut random, VFS) + 1,
                // Guests use a few ids again and again; peers count.
                guest: roll >> 8 & 0xfff,
                peer: 0x0100_0000 + begun,
                lid: LIDS[usize::from(roll >> 31 == 0)],
                by_vf: roll & 0x0800_0000 != 0,
                sidr: roll & 0x0700_0000 == 0,
                step: 0,
                abort: roll.to_be_bytes()[1] & 7,
                wire: 0,
            });
        }
        let count = u16::try_from(talks.len()).expect("few");
        let place = usize::from(below(&mut random, count));
        let mut talk = talks[place];
        // A message in ten is lost, one in ten comes twice.
        let goes_on = match random.below(10) {
            0 => {
                talk.step += 1;
                talk.step < 5
            }
            1 => {
                let mut again = talk;
                world.converse(&mut again);
                world.converse(&mut talk)
            }
            _ => world.converse(&mut talk),
        };
        if goes_on {
            talks[place] = talk;
        } else {
            talks.swap_remove(place);
        }
        if random.chance(1, 20) {
            world.pf.now += ib_vtime::Duration::from_millis(random.below(400));
        }
        if random.chance(1, 20_000) {
            world.reset(below(&mut random, VFS) + 1, ResetPolicy::Silent);
        }
    }
    assert!(world.delivered > 100_000, "{}", world.delivered);
    world.check_drain();
    assert!(world.owners.len() > 50_000, "{}", world.owners.len());
}
