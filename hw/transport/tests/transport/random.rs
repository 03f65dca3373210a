//! Random sequences of requests against the model.
//!
//! `IB_TRANSPORT_SEQUENCES` sets how many are run in place of 10^5.

use std::collections::VecDeque;

use ib_transport::{
    AtomicOp, Flush, Operation, RemoteRights, RemoteStart, Request, RequesterConfig,
    ResponderConfig, RetryCount, RnrRetryCount, Status,
};
use ib_vtime::SplitMix64;
use ib_wire::RKey;
use ib_wire::packet::{FlushPlacement, FlushSelectivity};

use crate::host::{Buffer, Host, Key, Receive};
use crate::model::{self, Unknown};
use crate::network::{End, Faults, Network, requester, responder};

/// Memory that the peer's keys cover.
const SHARED: u64 = 4096;
/// Memory that requests are gathered from, behind that.
const GATHERED: usize = 4096;
/// Bytes of each list that something is stored in, behind that.
const LIST: usize = 1280;
const LISTS: usize = 8;

pub(crate) const ALL: RKey = RKey::new(0x100);
pub(crate) const READ_ONLY: RKey = RKey::new(0x201);
pub(crate) const WRITE_ONLY: RKey = RKey::new(0x302);
pub(crate) const UNKNOWN: RKey = RKey::new(0x103);

pub(crate) fn sequences() -> u64 {
    let set = std::env::var("IB_TRANSPORT_SEQUENCES").ok();
    set.and_then(|value| value.parse().ok()).unwrap_or(100_000)
}

pub(crate) fn below(random: &mut SplitMix64, bound: u64) -> u32 {
    u32::try_from(random.below(bound)).expect("a small bound")
}

pub(crate) fn pick<T: Copy>(random: &mut SplitMix64, of: &[T]) -> T {
    of[below(random, of.len() as u64) as usize]
}

/// Returns a host whose memory is full of a pattern.
pub(crate) fn host(salt: u8) -> Host {
    let key = |rkey, read, write, atomic, flush| Key {
        rkey,
        range: (0, SHARED),
        read,
        write,
        atomic,
        flush,
        generation: 0,
    };
    let size = 4096 + GATHERED + 2 * LIST * LISTS;
    Host {
        memory: (0..size)
            .map(|at| u8::try_from(at * 7 % 251).expect("a byte") ^ salt)
            .collect(),
        keys: vec![
            key(ALL, true, true, true, FlushPlacement::GLOBAL),
            key(READ_ONLY, true, false, false, FlushPlacement::NONE),
            key(WRITE_ONLY, false, true, false, FlushPlacement::NONE),
        ],
        ..Host::default()
    }
}

fn list(at: u64, received: bool) -> usize {
    let at = usize::try_from(at).expect("small") % LISTS;
    4096 + GATHERED + LIST * (at + if received { LISTS } else { 0 })
}

/// One sequence: configurations and requests of end 0, receives of end 1.
pub(crate) struct Sequence {
    pub(crate) hosts: [Host; 2],
    pub(crate) requester: RequesterConfig,
    pub(crate) responder: ResponderConfig,
    pub(crate) requests: Vec<Request<Buffer>>,
    /// Receives that are posted only while the requester waits after an RNR NAK.
    pub(crate) late: VecDeque<Receive>,
    pub(crate) budget: u32,
}

/// Parts of 100 in which something about a request is wrong.
pub(crate) fn generate(random: &mut SplitMix64, templates: &[Host; 2], wrong: u64) -> Sequence {
    let mut hosts = templates.clone();
    let psn = pick(random, &[0, 5, 0x7f_fffe, 0x80_0000, 0xff_fff0, 0xff_ffff]);
    let mut requester = requester(psn);
    let mut responder = responder(psn);
    requester.window = pick(random, &[1, 2, 5, 128]);
    requester.ack_interval = pick(random, &[1, 2, 16]);
    requester.max_reads = pick(random, &[1, 2, 4]);
    responder.max_reads = requester.max_reads;
    if random.chance(wrong, 1000) {
        let right = |random: &mut SplitMix64| random.chance(1, 2);
        responder.rights = RemoteRights {
            read: right(random),
            write: right(random),
            atomic: right(random),
            flush: pick(random, &[FlushPlacement::NONE, FlushPlacement::GLOBAL]),
        };
    }
    let count = 1 + random.below(7);
    let mut requests = Vec::new();
    let mut unfenced_read = false;
    for id in 0..count {
        let request = request(random, id, wrong, &mut unfenced_read);
        if random.chance(wrong, 1500) {
            hosts[0].bad_buffers.insert(id);
        }
        requests.push(request);
    }
    let mut late = VecDeque::new();
    let starved = random.chance(wrong, 1000);
    let takers = requests.iter().filter(|r| r.operation.takes_receive());
    for id in 0..takers.count() as u64 {
        if starved && random.chance(1, 3) {
            continue;
        }
        let receive = Receive {
            id,
            at: list(id, true),
            len: if random.chance(wrong, 1000) {
                300
            } else {
                1200
            },
        };
        if random.chance(wrong, 1500) {
            hosts[1].bad_receives.insert(id);
        }
        if !starved && (!late.is_empty() || random.chance(1, 10)) {
            late.push_back(receive);
        } else {
            hosts[1].receives.push_back(receive);
        }
    }
    if starved {
        requester.rnr_retries = RnrRetryCount::from_low_bits(pick(random, &[0, 1, 3]));
    }
    Sequence {
        hosts,
        requester,
        responder,
        requests,
        late,
        budget: pick(random, &[1, 1, 2, 3, 64]),
    }
}

fn request(
    random: &mut SplitMix64,
    id: u64,
    wrong: u64,
    unfenced_read: &mut bool,
) -> Request<Buffer> {
    let len = match random.below(8) {
        0 => 0,
        1 => pick(random, &[1, 3, 8, 255, 256, 257, 511, 512, 513, 768, 1024]),
        2..5 => below(random, 64),
        _ => below(random, 1200),
    };
    let key = if random.chance(wrong, 600) {
        pick(random, &[READ_ONLY, WRITE_ONLY, UNKNOWN])
    } else {
        ALL
    };
    let addr = if random.chance(wrong, 1000) {
        pick(random, &[SHARED - 3, u64::MAX - 7, SHARED])
    } else {
        random.below(SHARED - 1200)
    };
    let remote = RemoteStart { addr, rkey: key };
    let data = below(random, 1 << 32).to_be_bytes();
    let gather = 4096 + usize::try_from(random.below(GATHERED as u64 - 1200)).expect("small");
    let store = list(id, false);
    let (operation, at, len) = match random.below(12) {
        11 => {
            let wrong = random.chance(wrong, 1000);
            let flush = Flush {
                placement: FlushPlacement::from_low_bits(if wrong {
                    below(random, 16).to_le_bytes()[0]
                } else {
                    1
                }),
                selectivity: FlushSelectivity::from_low_bits(below(random, 2).to_le_bytes()[0]),
            };
            (Operation::Flush(remote, flush), gather, len)
        }
        10 => {
            let after_all = random.chance(1, 2);
            (Operation::Local { after_all }, gather, 0)
        }
        0 | 1 => (Operation::Send, gather, len),
        2 => (Operation::SendImmediate(data), gather, len),
        3 | 4 => (Operation::Write(remote), gather, len),
        5 => (Operation::WriteImmediate(remote, data), gather, len),
        6 | 7 => (Operation::Read(remote), store, len),
        _ => {
            let aligned = if random.chance(wrong, 1000) {
                addr | 1
            } else {
                addr & !7
            };
            let remote = RemoteStart {
                addr: aligned,
                ..remote
            };
            let op = if random.chance(1, 2) {
                AtomicOp::FetchAdd { add: random.next() }
            } else {
                AtomicOp::CompareSwap {
                    compare: random.next(),
                    swap: random.next(),
                }
            };
            let len = if random.chance(wrong, 1000) { 7 } else { 8 };
            if random.chance(1, 3) {
                (Operation::AtomicWrite(remote), gather, len)
            } else {
                (Operation::Atomic(remote, op), store, len)
            }
        }
    };
    // A read may return what a later write or atomic operation stored, unless that is fenced.
    let stores = matches!(
        operation,
        Operation::Write(_)
            | Operation::WriteImmediate(..)
            | Operation::Atomic(..)
            | Operation::AtomicWrite(_)
    );
    let fence = (stores && *unfenced_read) || random.chance(1, 10);
    *unfenced_read = (*unfenced_read && !fence) || matches!(operation, Operation::Read(_));
    Request {
        operation,
        buffer: Buffer { id, at },
        len,
        fence,
        solicited: random.chance(1, 2),
    }
}

/// Posts everything and runs until nothing happens any more. Receives that come late are posted at the next
/// timeout.
pub(crate) fn run(sequence: &Sequence, faults: Faults, framed: bool, seed: u64) -> Network {
    let [a, b] = sequence.hosts.clone();
    let a = End::new(a, sequence.requester, responder(0));
    let b = End::new(b, requester(0), sequence.responder);
    let mut network = Network::new([a, b], sequence.budget, seed);
    network.faults = faults;
    network.framed = framed;
    let mut late = sequence.late.clone();
    for request in &sequence.requests {
        let end = &mut network.ends[0];
        end.rc.post(*request, &mut end.host);
        if network.random.chance(1, 4) {
            network.settle();
        }
    }
    network.settle();
    for _ in 0..10_000 {
        if network.random.chance(1, 2)
            && let Some(receive) = late.pop_front()
        {
            network.ends[1].host.receives.push_back(receive);
        }
        if !network.elapse() {
            break;
        }
        network.settle();
    }
    network
}

/// Asserts that both hosts are as the model says, but for the memory of a failed message.
fn assert_as_model(seed: u64, sequence: &Sequence, network: &Network) -> Status {
    let [mut a, mut b] = sequence.hosts.clone();
    b.receives.extend(sequence.late.iter().copied());
    let rights = sequence.responder.rights;
    let unknown = model::execute(&mut a, &mut b, &sequence.requests, rights);
    let [real_a, real_b] = [0, 1].map(|end| &network.ends[end].host);
    assert_eq!(real_a.sends, a.sends, "seed {seed}");
    let mut local = sequence.requests.iter().zip(&a.sends);
    assert!(
        real_a.executed.is_sorted_by(|before, next| before < next)
            && local.all(|(request, (id, status))| {
                !request.operation.is_local()
                    || *status != Status::Success
                    || real_a.executed.contains(id)
            }),
        "seed {seed}: each local request once"
    );
    assert_eq!(real_b.received, b.received, "seed {seed}");
    assert_eq!(real_b.events, b.events, "seed {seed}");
    assert_eq!(real_a.events, [], "seed {seed}");
    assert_eq!(real_b.atomics, b.atomics, "seed {seed}");
    let mut memory = [real_a.memory.clone(), real_b.memory.clone()];
    if let Some(Unknown { at, len }) = unknown {
        memory[1][at..at + len].copy_from_slice(&b.memory[at..at + len]);
    }
    let failed = sequence.requests.iter().zip(&a.sends);
    for (request, (_, status)) in failed {
        if *status != Status::Success && request.operation.is_read_or_atomic() {
            let list = request.buffer.at..request.buffer.at + LIST;
            memory[0][list.clone()].copy_from_slice(&a.memory[list]);
        }
    }
    assert!(
        memory[0] == a.memory,
        "seed {seed}: memory of the requester"
    );
    assert!(
        memory[1] == b.memory,
        "seed {seed}: memory of the responder"
    );
    if a.sends.iter().all(|(_, status)| *status == Status::Success) {
        let [requester, responder] = &network.ends;
        let at_rest = requester.rc.requester().next_psn();
        assert_eq!(
            responder.rc.responder().expected_psn(),
            at_rest,
            "seed {seed}"
        );
    }
    let worst = a.sends.iter().map(|(_, status)| *status);
    worst
        .max_by_key(|&status| status != Status::Success)
        .unwrap_or(Status::Success)
}

#[test]
fn random_sequences_end_as_the_model_says() {
    let mut random = SplitMix64::new(1);
    let templates = [host(0), host(0x55)];
    let mut failed = 0;
    for seed in 0..sequences() {
        let wrong = if seed % 2 == 0 { 0 } else { 60 };
        let sequence = generate(&mut random, &templates, wrong);
        let network = run(&sequence, Faults::default(), seed % 32 == 0, seed);
        let status = assert_as_model(seed, &sequence, &network);
        failed += u64::from(status != Status::Success);
        assert!(wrong > 0 || status == Status::Success, "seed {seed}");
        assert!(
            wrong > 0
                || network.ends[1].rc.responder().duplicates() == 0
                || !sequence.late.is_empty()
        );
        assert_eq!(network.ends[0].rc.requester().len(), 0);
    }
    assert!(
        failed > sequences() / 10,
        "{failed} of {} failed",
        sequences()
    );
}

/// Asserts that the requester gave up for lack of answers, and that the responder executed a prefix of the requests,
/// in order and once.
fn assert_prefix(seed: u64, sequence: &Sequence, network: &Network) {
    let [real_a, real_b] = [0, 1].map(|end| &network.ends[end].host);
    let done = real_a
        .sends
        .iter()
        .take_while(|(_, status)| *status == Status::Success);
    let done = done.count();
    assert_eq!(real_a.sends[done].1, Status::RetryExceeded, "seed {seed}");
    let rest = &real_a.sends[done + 1..];
    assert!(
        rest.iter().all(|(_, status)| *status == Status::Flushed),
        "seed {seed}"
    );
    // The responder counts what reached it, and nothing reaches it of local requests.
    let mut reached = network.ends[1].rc.responder().msn().get();
    let executed = sequence.requests.iter().take_while(|request| {
        let counts = !request.operation.is_local();
        let taken = !counts || reached > 0;
        reached -= u32::from(counts && taken);
        taken
    });
    let executed = executed.count();
    assert!(
        (done..=sequence.requests.len()).contains(&executed),
        "seed {seed}"
    );
    let [mut a, mut b] = sequence.hosts.clone();
    b.receives.extend(sequence.late.iter().copied());
    let requests = &sequence.requests[..executed];
    model::execute(&mut a, &mut b, requests, sequence.responder.rights);
    assert_eq!(real_b.received, b.received, "seed {seed}");
    assert_eq!(real_b.atomics, b.atomics, "seed {seed}");
    let mut memory = real_b.memory.clone();
    if let Some(next) = sequence.requests.get(executed) {
        let open = match next.operation {
            Operation::Write(to) | Operation::WriteImmediate(to, _) => {
                let at = usize::try_from(to.addr).expect("small");
                at..at + next.len as usize
            }
            _ => {
                let receive = b.receives.front().map_or(0, |receive| receive.at);
                receive..receive + LIST
            }
        };
        memory[open.clone()].copy_from_slice(&b.memory[open]);
    }
    assert!(memory == b.memory, "seed {seed}: memory of the responder");
}

#[test]
fn lossy_networks_change_nothing_that_a_program_sees() {
    let mut random = SplitMix64::new(2);
    let templates = [host(0), host(0x55)];
    let mut given_up = 0;
    for seed in 0..sequences() / 5 {
        let rate = pick(&mut random, &[1, 10, 100]);
        let mut some = || if random.chance(1, 2) { rate } else { 0 };
        let faults = Faults {
            lose: some(),
            duplicate: some(),
            delay: some(),
            corrupt: some(),
        };
        let mut sequence = generate(&mut random, &templates, 0);
        sequence.requester.retries = RetryCount::from_low_bits(7);
        let network = run(&sequence, faults, seed % 4 == 0, seed);
        let sends = &network.ends[0].host.sends;
        if sends
            .iter()
            .any(|(_, status)| *status == Status::RetryExceeded)
        {
            given_up += 1;
            assert_prefix(seed, &sequence, &network);
        } else {
            assert_as_model(seed, &sequence, &network);
        }
    }
    // At the highest rates eight round trips in a row fail now and then.
    assert!(given_up < sequences() / 500, "{given_up} gave up");
}
