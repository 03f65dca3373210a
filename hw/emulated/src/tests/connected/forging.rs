//! Siblings that know everything of a connection and send any packets in its ends' names.

use hca_api::QpAttributes;
use ib_transport::{
    Answer, AtomicOp, Ending, RemoteRange, RemoteStart, Response, Run, RunOperation, Transfer,
};
use ib_vtime::SplitMix64;
use ib_wire::packet::{AethSyndrome, NakCode};

use super::*;
use crate::hca::ConnectionCounters;

/// Packets that the tests here forge together.
const FORGED: u64 = 1_000_000;
const VICTIMS: [FunctionId; 2] = [FunctionId(1), FunctionId(2)];
const SPIES: [FunctionId; 2] = [FunctionId(3), FunctionId(4)];
const LEN: u32 = 5000;
const PART: usize = 1 << 14;

/// Everything that the victims' programs and their operator see.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    done: [Vec<Completion>; 2],
    events: [Vec<HcaEvent>; 2],
    attributes: [Option<QpAttributes>; 2],
    counters: Vec<ConnectionCounters>,
    memory: [Vec<u8>; 2],
}

/// A connection, and queue pairs of siblings of both its ends that are set to either end.
struct Attack {
    rig: Rig,
    victims: [End; 2],
    spies: Vec<(End, usize)>,
    random: SplitMix64,
    forged: u64,
}

impl Attack {
    fn new(host: usize, whole: bool) -> Self {
        // Where runs go whole, links take no time; where packets do, answers are under way while others are forged.
        let latency = Duration::from_micros(u64::from(!whole));
        let mut rig = Rig::with_latency(latency);
        rig.fabric.set_whole_runs(whole);
        let hosts = [0, host];
        for (host, own) in hosts.into_iter().zip([0, 1]) {
            rig.add_vf(host, VICTIMS[own]);
            rig.add_vf(host, SPIES[own]);
        }
        let victims = [0, 1].map(|own| rig.end_of(hosts[own], VICTIMS[own], QpKind::Rc));
        rig.join(&victims, QpKind::Rc);
        let mut spies = Vec::new();
        for (own, at) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let spy = rig.end_of(hosts[own], SPIES[own], QpKind::Rc);
            rig.modify(&spy, &to_rtr(&victims[at], true)).unwrap();
            spies.push((spy, at));
        }
        Self {
            rig,
            victims,
            spies,
            random: SplitMix64::new(3),
            forged: 0,
        }
    }

    fn attributes(&mut self, at: usize) -> QpAttributes {
        let victim = self.victims[at];
        self.rig.owner(&victim).query_qp(victim.qp).unwrap()
    }

    /// Returns packets of any kind at a PSN that the victim may wait for.
    fn forgery(&mut self, at: usize) -> Transfer {
        let victim = self.victims[at];
        let attributes = self.attributes(at);
        let random = &mut self.random;
        let mut below = |bound: u32| u32::try_from(random.below(bound.into())).unwrap();
        let packets = 1 + below(4);
        let len = packets * 1024 - below(1024);
        let remote = victim.remote(4 * PART);
        let rkey = ib_wire::RKey::new(remote.rkey.0);
        let range = RemoteRange {
            addr: remote.addr,
            rkey,
            len,
        };
        let start = RemoteStart {
            addr: remote.addr,
            rkey,
        };
        let syndrome = match below(4) {
            0 => AethSyndrome::RnrNak { timer: 31 },
            1 => AethSyndrome::Nak(NakCode::new(u8::try_from(below(5)).unwrap())),
            _ => AethSyndrome::Ack { credits: 31 },
        };
        let (first, last) = (below(4) != 0, below(4) != 0);
        let operation = match below(10) {
            0 => RunOperation::Send(Ending::Plain),
            1 => RunOperation::Send(Ending::Immediate([5; 4])),
            2 | 3 => RunOperation::Write(Some(range), Ending::Plain),
            4 => RunOperation::Read(range),
            5 => RunOperation::Atomic(start, AtomicOp::FetchAdd { add: 1 }),
            other => {
                let psn = attributes
                    .sq_psn
                    .wrapping_add(below(14))
                    .wrapping_add(0xff_fff4);
                let (packets, answer) = match other {
                    6 | 7 => (1, Answer::Acknowledge(syndrome)),
                    8 => (
                        1,
                        Answer::Atomic {
                            syndrome,
                            original: 9,
                        },
                    ),
                    _ => {
                        let read = Answer::Read {
                            first,
                            last,
                            len,
                            syndrome: AethSyndrome::Ack { credits: 31 },
                        };
                        (packets, read)
                    }
                };
                return Transfer::Response(Response {
                    psn,
                    packets,
                    answer,
                    msn: Psn::from_low_bits(below(1 << 24)),
                });
            }
        };
        let is_single = matches!(operation, RunOperation::Read(_) | RunOperation::Atomic(..));
        Transfer::Request(Run {
            psn: attributes
                .rq_psn
                .wrapping_add(below(5))
                .wrapping_add(0xff_fffe),
            packets: if is_single { 1 } else { packets },
            operation,
            first: is_single || first,
            last: is_single || last,
            len: if is_single { 0 } else { len },
            ack_request: below(2) == 0,
            solicited: false,
        })
    }

    fn forge(&mut self) {
        for (spy, at) in self.spies.clone() {
            for _ in 0..8 {
                let forged = self.forgery(at);
                let payload = vec![0xee; forged.payload_len() as usize];
                self.forged += u64::from(forged.packets());
                let device = self.rig.device(spy.host);
                device.forge((spy.function, spy.qp), forged, payload);
            }
        }
    }

    /// Posts writes, reads and sends at both ends; the receives follow later.
    fn round(&mut self, round: usize, forges: bool, seen: &mut Seen) {
        for own in [0, 1] {
            let [from, to] = [self.victims[own], self.victims[1 - own]];
            let seed = (2 * round + own).to_le_bytes()[0];
            let rig = &mut self.rig;
            rig.write(&from, 0, &pattern(LEN as usize, seed));
            for (wr_id, op, offset) in [
                (1, SendOp::RdmaWrite(to.remote(PART)), 0),
                (2, SendOp::RdmaRead(to.remote(0)), 2 * PART),
                (3, SendOp::Send, 0),
            ] {
                rig.post(&from, wr_id, op, from.sge(offset, LEN)).unwrap();
            }
        }
        for _ in 0..4 {
            self.rig.fabric.poll(self.rig.now);
            if forges {
                self.forge();
            }
            self.rig.now += Duration::from_micros(1);
            while self.rig.fabric.poll(self.rig.now) {}
        }
        for own in [0, 1] {
            let end = self.victims[own];
            self.rig.receive(&end, 4, end.sge(3 * PART, LEN));
        }
        self.rig.run(10);
        for own in [0, 1] {
            let end = self.victims[own];
            let done = self.rig.done(&end);
            let (received, sent): (Vec<_>, Vec<_>) = done
                .into_iter()
                .partition(|done| done.op == CompletionOp::Recv);
            seen.done[own].extend(received);
            seen.done[own].extend(sent);
            seen.events[own].extend(self.rig.events(&end));
        }
    }

    fn end(mut self, mut seen: Seen) -> Seen {
        for own in [0, 1] {
            let end = self.victims[own];
            seen.attributes[own] = Some(self.attributes(own));
            seen.memory[own] = self.rig.read(&end, 0, REGION);
            let functions = self.rig.device(end.host).connection_counters();
            let counters = functions.filter(|(function, _)| *function == end.function);
            seen.counters.extend(counters.map(|(_, counters)| counters));
        }
        seen
    }
}

/// Plays rounds without forged packets and the same with them.
fn assert_forges_nothing(host: usize, whole: bool) {
    let mut attack = Attack::new(host, whole);
    let mut seen = Seen::default();
    let mut rounds = 0;
    while attack.forged < FORGED / 4 {
        rounds += 1;
        attack.round(rounds, true, &mut seen);
        let count = seen.done.each_ref().map(Vec::len);
        assert_eq!(count, [4 * rounds; 2]);
    }
    let mut refused = 0;
    let mut named = Vec::new();
    for own in [0, 1] {
        let end = attack.victims[own];
        let device = attack.rig.device(end.host);
        refused += foreign(device, end.function);
        let peers = device
            .foreign_peers()
            .filter(|peer| peer.to == end.function);
        named.extend(peers.map(|peer| (peer.to, peer.slid.get(), peer.function)));
    }
    assert_eq!(refused, attack.forged, "packets that were not refused");
    let lids = [1, if host == 0 { 1 } else { 2 }];
    let spies = [0, 1].map(|own| (lids[own], SPIES[own]));
    let expect = VICTIMS.map(|to| spies.map(|(lid, spy)| (to, lid, spy)));
    named.sort_unstable();
    assert_eq!(named, expect.concat());
    let seen = attack.end(seen);
    let mut undisturbed = Attack::new(host, whole);
    let mut expect = Seen::default();
    for round in 1..=rounds {
        undisturbed.round(round, false, &mut expect);
    }
    let expect = undisturbed.end(expect);
    let ok = |done: &Completion| done.status == CompletionStatus::Success;
    assert!(expect.done.iter().flatten().all(ok));
    assert!(seen == expect, "the victims notice");
}

#[test]
fn t025a_forged_runs_within_an_adapter_change_nothing() {
    assert_forges_nothing(0, true);
}

#[test]
fn t025a_forged_packets_within_an_adapter_change_nothing() {
    assert_forges_nothing(0, false);
}

#[test]
fn t025a_forged_runs_over_two_switches_change_nothing() {
    assert_forges_nothing(1, true);
}

#[test]
fn t025a_forged_packets_over_two_switches_change_nothing() {
    assert_forges_nothing(1, false);
}
