//! A sequence of operations on the transactions of a port.

use std::collections::BTreeMap;

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::rmpp::{RmppFlags, RmppMad, RmppType};
use ib_wire::{Gid, Lid, Qpn, Tid};
use mad_mux::steering::Owner;
use mad_mux::tid::{Peer, TidConfig, TidMap, TidUse, TransactionState};
use vf_tunnel::{VfId, WireTid};
use zerocopy::IntoBytes;

use super::hostile::{Input, pass_time};

const CONFIG: TidConfig = TidConfig {
    per_vf: 6,
    sa_per_vf: 3,
};

/// Requests whose answers may come.
const SENT: usize = 64;

fn owners() -> [Owner; 4] {
    [0, 1, 2, 3].map(|number| match VfId::new(number) {
        Some(vf) if number != 0 => Owner::Vf(vf),
        _ => Owner::Pf,
    })
}

fn peer(input: &mut Input<'_>) -> Peer {
    let which = input.byte() % 4;
    Peer {
        lid: Lid::new(1 + u16::from(which / 2)),
        qpn: Qpn::GSI,
        gid: Gid([which % 2; 16]),
    }
}

/// What a transaction is about.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Question {
    owner: Owner,
    tid: Tid,
    class: MgmtClass,
    peer: Peer,
}

struct Scene {
    now: Instant,
    map: TidMap,
    /// What each wire TID that was given out stands for.
    questions: BTreeMap<u64, Question>,
    sent: Vec<(Mad, Peer)>,
    answered: usize,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0..3 => self.request(input),
            3..5 => self.answer(input),
            5 => {
                let mut mad = input.mad();
                let from = peer(input);
                self.receive(&mut mad, &from);
            }
            6 => self.now += input.time(),
            _ => self.reset(input),
        }
        self.check();
    }

    fn request(&mut self, input: &mut Input<'_>) {
        let owner = owners()[input.index(4)];
        let class = [MgmtClass::SUBN_ADM, MgmtClass::PERF][input.index(2)];
        let method = [Method::GET, Method::SET, Method::GET_TABLE][input.index(3)];
        let attribute = [AttributeId::PATH_RECORD, AttributeId::NODE_RECORD][input.index(2)];
        let mut mad = Mad::new(MadHeader::new(class, method, attribute));
        mad.header.tid = Tid::new(u64::from(input.byte() % 8) << 40);
        play_rmpp(&mut mad, input.byte());
        let to = peer(input);
        self.map.expire(self.now);
        let (known, live) = (self.map.is_known(owner, &mad.header, &to), self.map.len());
        let before = mad;
        let Ok(wire) = self.map.egress(self.now, owner, &mut mad, &to) else {
            assert_eq!((mad, self.map.len()), (before, live), "refused and changed");
            return;
        };
        assert_eq!(self.map.len(), live + usize::from(!known));
        assert_eq!(mad.header.tid, wire.0);
        assert!(wire.0.get() <= u64::from(u32::MAX));
        let question = Question {
            owner,
            tid: before.header.tid,
            class,
            peer: to,
        };
        mad.header.tid = before.header.tid;
        assert_eq!(mad, before, "more than the TID changed");
        mad.header.tid = wire.0;
        let former = self.questions.insert(wire.0.get(), question);
        assert!(!known || former == Some(question));
        if self.sent.len() < SENT {
            self.sent.push((mad, to));
        }
    }

    /// An answer, which may be late, from elsewhere or damaged; the same one may come again.
    fn answer(&mut self, input: &mut Input<'_>) {
        let Some((mut mad, mut from)) = input.pick(&self.sent) else {
            return;
        };
        mad.header.method = mad.header.method.response();
        match input.byte() % 8 {
            0 => input.damage(mad.as_mut_bytes()),
            1 => from = peer(input),
            what => play_rmpp(&mut mad, what - 2),
        }
        self.receive(&mut mad, &from);
    }

    fn receive(&mut self, mad: &mut Mad, from: &Peer) {
        self.map.expire(self.now);
        let before = *mad;
        let wire = mad.header.tid;
        let named = self.map.named(WireTid(wire));
        match self.map.ingress(self.now, mad, from) {
            Ok(owner) => {
                let question = self.questions[&wire.get()];
                let answer = (owner, mad.header.tid, mad.header.mgmt_class);
                assert_eq!((question.owner, question.tid, question.class), answer);
                assert!(question.peer.lid == from.lid || question.peer.gid == from.gid);
                assert_eq!(named.map(|named| named.owner), Some(owner));
                self.answered += 1;
            }
            Err(_) => assert_eq!(*mad, before),
        }
    }

    fn reset(&mut self, input: &mut Input<'_>) {
        if let Owner::Vf(vf) = owners()[input.index(4)] {
            let transfers = |map: &TidMap| {
                let all = map.transactions(self.now);
                let own = all.filter(|transaction| transaction.owner == Owner::Vf(vf));
                own.filter(|transaction| transaction.state == TransactionState::Transfer)
                    .count()
            };
            let under_way = transfers(&self.map);
            assert_eq!(self.map.reset(self.now, vf).len(), under_way);
            assert_eq!(self.map.usage(Owner::Vf(vf)), TidUse::default());
        }
    }

    fn check(&self) {
        let mut live: BTreeMap<Owner, TidUse> = BTreeMap::new();
        for transaction in self.map.transactions(self.now) {
            let waits = transaction.class == MgmtClass::SUBN_ADM
                && transaction.state == TransactionState::Open;
            let usage = live.entry(transaction.owner).or_default();
            usage.live += 1;
            usage.waiting_for_sa += u32::from(waits);
            let question = Question {
                owner: transaction.owner,
                tid: transaction.tid.0,
                class: transaction.class,
                peer: transaction.peer,
            };
            let wire = transaction.wire_tid.0.get();
            assert_eq!(self.questions.get(&wire), Some(&question));
        }
        for owner in owners() {
            let usage = self.map.usage(owner);
            assert_eq!(usage, live.get(&owner).copied().unwrap_or_default());
            if owner != Owner::Pf {
                assert!(usage.live <= CONFIG.per_vf);
                assert!(usage.waiting_for_sa <= CONFIG.sa_per_vf);
            }
        }
        let all: u32 = live.values().map(|usage| usage.live).sum();
        assert_eq!(u32::try_from(self.map.len()), Ok(all));
        assert_eq!(self.map.is_empty(), self.map.poll_timeout().is_none());
    }

    /// Nothing lives for ten minutes without a MAD.
    fn wind_down(mut self) {
        let end = self.now + Duration::from_secs(600);
        pass_time(&mut self.now, end, |now| {
            self.map.expire(now);
            self.map.poll_timeout()
        });
        assert!(self.map.is_empty());
        self.check();
    }
}

/// Makes the MAD a part of a transfer; no number above 3 does.
fn play_rmpp(mad: &mut Mad, part: u8) {
    let part = match part {
        0 => RmppType::DATA,
        1 => RmppType::ACK,
        2 => RmppType::STOP,
        3 => RmppType::ABORT,
        _ => return,
    };
    let rmpp = &mut mad.view_mut::<RmppMad>().rmpp;
    rmpp.rmpp_type = part;
    rmpp.set_flags(RmppFlags::ACTIVE);
}

/// Requests of three VFs and the PF, and answers to them. No input makes an answer reach somebody
/// else, exceeds a quota, or keeps a transaction for ever.
pub(super) fn tids(data: &[u8]) {
    play(data).wind_down();
}

fn play(data: &[u8]) -> Scene {
    let mut input = Input::new(data);
    let mut scene = Scene {
        now: Instant::from_millis(1),
        map: TidMap::new(CONFIG, 7),
        questions: BTreeMap::new(),
        sent: Vec::new(),
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
    fn the_seeds_get_an_answer_and_a_transfer() {
        let single = play(include_bytes!("../../fuzz/corpus/tids/single"));
        assert_eq!(single.answered, 2);
        let transfer = play(include_bytes!("../../fuzz/corpus/tids/transfer"));
        assert_eq!((transfer.answered, transfer.map.len()), (3, 1));
    }
}
