//! Very many conversations, against the model.

use ib_vtime::SplitMix64;
use ib_wire::cm::{CmMessage, CmRej, CmSidrRep, RejReason};

use super::*;

/// The initiator of a conversation, and the messages that follow.
#[derive(Clone, Copy)]
struct Conversation {
    vf: VfId,
    guest: u32,
    peer: u32,
    lid: u16,
    by_vf: bool,
    is_sidr: bool,
    /// Progress of a conversation.
    step: u8,
    /// The step at which one side gives up.
    abort: u8,
    wire: u32,
}

fn rep(local: u32, remote: u32, ca: Guid) -> Mad {
    let mut mad = message(AttributeId::CM_REP, local, remote);
    set_ca(&mut mad, ca);
    mad
}

fn rej(local: u32, remote: u32, reason: RejReason, ca: Guid) -> Mad {
    let mut mad = message(AttributeId::CM_REJ, local, remote);
    let rej: &mut CmRej = mad.view_mut();
    rej.set_message_rejected(CmMessage::OTHER);
    rej.reason = reason;
    if reason == RejReason::TIMEOUT {
        set_ca(&mut mad, ca);
    }
    mad
}

impl Scene {
    fn tx(&mut self, talk: &Conversation, mad: Mad) -> Option<u32> {
        let sent = self.egress(talk.vf, mad, &at(talk.lid))?;
        Some(ids(&sent).0)
    }

    fn rx(&mut self, talk: &Conversation, mad: Mad) -> bool {
        self.ingress(mad, &at(talk.lid), None, (false, false))
    }

    /// Makes the conversation's next step. `false` when it is over.
    fn converse(&mut self, talk: &mut Conversation) -> bool {
        let Conversation {
            vf,
            guest,
            peer,
            by_vf,
            step,
            wire,
            ..
        } = *talk;
        let (vf_ca, peer_ca) = (ca_of(vf), Guid::new(talk.lid.into()));
        let begins = |mad| (mad, true);
        let to_peer = |attribute| message(attribute, guest, peer);
        let to_vf = |attribute| message(attribute, peer, wire);
        talk.step += 1;
        let now = *talk;
        if talk.is_sidr {
            if step == 0 {
                let shown = self.tx(&now, message(AttributeId::CM_SIDR_REQ, guest, 0));
                talk.wire = shown.unwrap_or(wire);
                return shown.is_some();
            }
            let mut mad = message(AttributeId::CM_SIDR_REP, wire, 0);
            mad.view_mut::<CmSidrRep>().qpn = Qpn::from_low_bits(0x1234);
            self.rx(&now, mad);
            return false;
        }
        if step == talk.abort {
            match (by_vf, step) {
                (true, 1) => self
                    .tx(&now, rej(guest, 0, RejReason::TIMEOUT, vf_ca))
                    .is_some(),
                (false, 1) => self.rx(&now, rej(peer, 0, RejReason::TIMEOUT, peer_ca)),
                _ => self
                    .tx(&now, rej(guest, peer, RejReason::CONSUMER, vf_ca))
                    .is_some(),
            };
            return false;
        }
        let peer_gid = Gid([7; 16]);
        let (mad, shows) = match (step, by_vf) {
            (0, true) => begins(request(guest, vf_ca, gid_of(vf), peer_gid)),
            (1, false) => begins(rep(guest, peer, vf_ca)),
            (2, true) => (to_peer(AttributeId::CM_RTU), false),
            (3, true) => (to_peer(AttributeId::CM_DREQ), false),
            (4.., false) => {
                self.tx(&now, to_peer(AttributeId::CM_DREP));
                return false;
            }
            (0, false) => return self.rx(&now, request(peer, peer_ca, peer_gid, gid_of(vf))),
            (1, true) => return self.rx(&now, rep(peer, wire, peer_ca)),
            (2, false) => return self.rx(&now, to_vf(AttributeId::CM_RTU)),
            (3, false) => return self.rx(&now, to_vf(AttributeId::CM_DREQ)),
            (4.., true) => {
                self.rx(&now, to_vf(AttributeId::CM_DREP));
                return false;
            }
        };
        let shown = self.tx(&now, mad);
        if shows {
            talk.wire = shown.unwrap_or(wire);
        }
        shown.is_some()
    }
}

fn below(random: &mut SplitMix64, bound: u16) -> u16 {
    u16::try_from(random.below(u64::from(bound))).expect("below the bound")
}

#[test]
fn a_hundred_thousand_conversations_with_losses_aborts_and_resets_leave_nothing() {
    let mut scene = scene(Config::default(), Some(Model::default()));
    let mut random = SplitMix64::new(11);
    let mut begun = 0;
    let mut talks: Vec<Conversation> = Vec::new();
    while begun < 100_000 || !talks.is_empty() {
        if talks.len() < 200 && begun < 100_000 {
            begun += 1;
            let roll = random.next_u32();
            talks.push(Conversation {
                vf: vf(below(&mut random, VFS) + 1),
                // Guests use a few ids again and again; peers count.
                guest: roll >> 8 & 0xfff,
                peer: 0x0100_0000 + begun,
                lid: LIDS[usize::from(roll >> 31 == 0)],
                by_vf: roll & 0x0800_0000 != 0,
                is_sidr: roll & 0x0700_0000 == 0,
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
                scene.converse(&mut again);
                scene.converse(&mut talk)
            }
            _ => scene.converse(&mut talk),
        };
        if goes_on {
            talks[place] = talk;
        } else {
            talks.swap_remove(place);
        }
        if random.chance(1, 20) {
            scene.now += Duration::from_millis(random.below(400));
        }
        if random.chance(1, 20_000) {
            scene.reset(vf(below(&mut random, VFS) + 1), false);
        }
    }
    assert!(scene.deliveries > 100_000, "{}", scene.deliveries);
    let shown = scene.model.iter().flat_map(Model::wires).count();
    assert!(shown > 50_000, "{shown}");
    scene.wind_down();
}
