//! Taking two runs one after the other and as one leaves the same behind.

use ib_transport::{
    Answer, Ending, Flush, ReliableConnection, RemoteRange, RemoteStart, ResponderState, Response,
    Run, RunOperation, Transfer, UcReceiver, UcReceiverConfig,
};
use ib_vtime::{Instant, SplitMix64};
use ib_wire::packet::{AethSyndrome, FlushPlacement, FlushSelectivity, NakCode};

use crate::host::{Host, Receive, Region};
use crate::network::{End, pmtu, requester, responder};
use crate::packets::psn;
use crate::random::{ALL, READ_ONLY, UNKNOWN, below, generate, host, pick, sequences};

/// Returns a run that may be anything, near the expected PSN.
pub(crate) fn any_run(random: &mut SplitMix64, near: u32) -> Run {
    let rkey = pick(random, &[ALL, ALL, ALL, READ_ONLY, UNKNOWN]);
    let addr = pick(random, &[0, 8, 1001, 4096 - 600, u64::MAX - 100]);
    let packets = pick(random, &[1, 1, 2, 3, 7]);
    let (first, last) = (random.chance(1, 2), random.chance(1, 2));
    let full = packets * 256;
    let len = match random.below(8) {
        0 => pick(random, &[0, 1, 255, 257, 4096]),
        1 | 2 if last => full,
        _ if last => full - below(random, 256),
        _ => full,
    };
    let total = if random.chance(1, 4) { len + 256 } else { len };
    let range = RemoteRange {
        addr,
        rkey,
        len: total,
    };
    let immediate = Ending::Immediate([7; 4]);
    let ending = if last {
        pick(random, &[Ending::Plain, immediate])
    } else {
        Ending::Plain
    };
    let operation = match random.below(10) {
        9 => {
            let flush = Flush {
                placement: FlushPlacement::from_low_bits(pick(random, &[0, 1, 1, 2, 9])),
                selectivity: FlushSelectivity::from_low_bits(pick(random, &[0, 0, 1, 3])),
            };
            RunOperation::Flush(range, flush)
        }
        0..4 => RunOperation::Send(ending),
        4..7 => RunOperation::Write(first.then_some(range), ending),
        7 => RunOperation::Read(range),
        _ => RunOperation::Atomic(
            RemoteStart { addr, rkey },
            ib_transport::AtomicOp::FetchAdd { add: 3 },
        ),
    };
    let single = matches!(
        operation,
        RunOperation::Read(_) | RunOperation::Atomic(..) | RunOperation::Flush(..)
    );
    let run = Run {
        psn: psn(near),
        packets: if single { 1 } else { packets },
        operation,
        first: first || single,
        last: last || single,
        len: if single { 0 } else { len },
        ack_request: random.chance(1, 2),
        solicited: last && random.chance(1, 2),
    };
    let ahead = random.chance(1, 10);
    let shift = if ahead { below(random, 3) } else { 0 };
    let back = if random.chance(1, 5) {
        below(random, 5)
    } else {
        0
    };
    Run {
        psn: psn(near.wrapping_add(shift).wrapping_sub(back)),
        ..run
    }
}

fn payload(random: &mut SplitMix64, len: u32) -> Vec<u8> {
    let from = random.next();
    (0..len)
        .map(|at| u8::try_from((u64::from(at) ^ from) % 256).expect("a byte"))
        .collect()
}

/// Returns a host with a few receives.
pub(crate) fn provided(random: &mut SplitMix64, template: &Host) -> Host {
    let mut host = template.clone();
    for id in 0..random.below(5) {
        let at = 8192 + 2048 * usize::try_from(id).expect("small");
        let len = pick(random, &[0, 100, 600, 2048]);
        host.receives.push_back(Receive { id, at, len });
        if random.chance(1, 20) {
            host.bad_receives.insert(id);
        }
    }
    host
}

/// State that both ways leave the same: everything but the number of acknowledgements and failed buffers.
fn assert_same(case: u64, whole: &End, parts: &End) {
    let [a, b] = [whole, parts].map(|end| {
        let responder = end.rc.responder();
        let failed = end.rc.is_failed();
        let host = &end.host;
        (
            (failed, responder.state(), responder.duplicates()),
            (!failed).then(|| (responder.expected_psn(), responder.msn())),
            (
                host.received.clone(),
                host.events.clone(),
                (host.atomics, host.flushes),
            ),
            (host.sends.clone(), host.receives.clone()),
            end.rc.requester().state(),
            (!failed).then(|| end.rc.requester().next_psn()),
            end.rc.poll_timeout(),
        )
    });
    assert_eq!(a, b, "case {case}");
    if !whole.rc.is_failed() {
        assert!(
            whole.host.memory == parts.host.memory,
            "case {case}: memory"
        );
    }
}

/// Returns the last refusal among what an end sends, and how many answers carry data.
fn told(end: &mut End) -> (Option<AethSyndrome>, Vec<(u32, u32)>) {
    let mut refusal = None;
    let mut data = Vec::new();
    while let Some((transfer, payload)) = end.poll(Instant::ZERO, 3) {
        if let Transfer::Response(response) = transfer {
            match response.answer {
                Answer::Acknowledge(AethSyndrome::Ack { .. }) => {}
                Answer::Acknowledge(syndrome) => refusal = Some(syndrome),
                _ => data.push((
                    response.psn.get(),
                    u32::try_from(payload.len()).expect("small"),
                )),
            }
        }
    }
    (refusal, data)
}

#[test]
fn requests_taken_whole_and_in_parts_leave_the_same() {
    let mut random = SplitMix64::new(3);
    let template = host(0);
    let mut split = 0;
    for case in 0..sequences() / 4 {
        let start = pick(&mut random, &[0, 100, 0xff_fffe]);
        let mut config = responder(start);
        config.rights.write = random.chance(9, 10);
        config.shared_receives = random.chance(1, 2);
        let host = provided(&mut random, &template);
        let mut whole = End::new(host, requester(0), config);
        if random.chance(1, 2) {
            whole.rc = ReliableConnection::new(requester(0), config);
        }
        let mut parts = whole.clone();
        for _ in 0..8 {
            let near = whole.rc.responder().expected_psn().get();
            let run = any_run(&mut random, near);
            let bytes = payload(&mut random, run.len);
            whole.take(Instant::ZERO, &Transfer::Request(run), &bytes);
            let mut rest = run;
            let mut at = 0;
            while let Some((front, back)) =
                rest.split(1 + below(&mut random, u64::from(rest.packets)), pmtu())
            {
                let end = at + front.len as usize;
                parts.take(Instant::ZERO, &Transfer::Request(front), &bytes[at..end]);
                (rest, at) = (back, end);
                split += 1;
            }
            parts.take(Instant::ZERO, &Transfer::Request(rest), &bytes[at..]);
            assert_same(case, &whole, &parts);
            if random.chance(1, 2) {
                assert_eq!(told(&mut whole), told(&mut parts), "case {case}");
            }
        }
        assert_eq!(told(&mut whole), told(&mut parts), "case {case}");
    }
    assert!(split > sequences() / 4, "{split} splits");
}

#[test]
fn responses_taken_whole_and_in_parts_leave_the_same() {
    let mut random = SplitMix64::new(4);
    let templates = [host(0), host(1)];
    for case in 0..sequences() / 4 {
        let sequence = generate(&mut random, &templates, 10);
        let mut whole = End::new(sequence.hosts[0].clone(), sequence.requester, responder(0));
        for request in &sequence.requests {
            whole.rc.post(*request, &mut whole.host);
        }
        let mut parts = whole.clone();
        let first = sequence.requester.first_psn.get();
        for _ in 0..12 {
            for end in [&mut whole, &mut parts] {
                while end.poll(Instant::ZERO, sequence.budget).is_some() {}
            }
            let near = first.wrapping_add(below(&mut random, 12)).wrapping_sub(2);
            let response = any_response(&mut random, near);
            let bytes = payload(&mut random, response.payload_len());
            whole.take(Instant::ZERO, &Transfer::Response(response), &bytes);
            let mut rest = response;
            let mut at = 0;
            while let Some((front, back)) =
                rest.split(1 + below(&mut random, u64::from(rest.packets)), pmtu())
            {
                let end = at + front.payload_len() as usize;
                parts.take(Instant::ZERO, &Transfer::Response(front), &bytes[at..end]);
                (rest, at) = (back, end);
            }
            parts.take(Instant::ZERO, &Transfer::Response(rest), &bytes[at..]);
            assert_same(case, &whole, &parts);
        }
    }
}

/// Returns a response that may be anything.
pub(crate) fn any_response(random: &mut SplitMix64, near: u32) -> Response {
    let packets = pick(random, &[1, 1, 2, 4]);
    let last = random.chance(1, 2);
    let full = packets * 256;
    let len = match random.below(6) {
        0 => pick(random, &[0, 1, 255, 257]),
        _ if last => full - below(random, 256),
        _ => full,
    };
    let syndrome = AethSyndrome::Ack { credits: 31 };
    let timer = u8::try_from(random.below(32)).expect("small");
    let nak = NakCode::new(pick(random, &[0, 0, 0, 1, 2, 3, 4, 9]));
    let answer = match random.below(8) {
        0..4 => Answer::Read {
            first: random.chance(1, 2),
            last,
            len,
            syndrome,
        },
        4 => Answer::Atomic {
            syndrome,
            original: random.next(),
        },
        5 => Answer::Acknowledge(AethSyndrome::RnrNak { timer }),
        6 => Answer::Acknowledge(AethSyndrome::Nak(nak)),
        _ => Answer::Acknowledge(syndrome),
    };
    let is_data = matches!(answer, Answer::Read { .. });
    Response {
        psn: psn(near),
        packets: if is_data { packets } else { 1 },
        answer,
        msn: psn(below(random, 16)),
    }
}

#[test]
fn unreliable_messages_taken_whole_and_in_parts_leave_the_same() {
    let mut random = SplitMix64::new(5);
    let template = host(0);
    for case in 0..sequences() / 4 {
        let config = UcReceiverConfig {
            pmtu: pmtu(),
            first_psn: psn(0xff_fff0),
            write: random.chance(9, 10),
            shared_receives: random.chance(1, 2),
        };
        let receiver = UcReceiver::<Region, Receive>::new(config);
        let host = provided(&mut random, &template);
        let mut whole = (receiver, host);
        let mut parts = whole.clone();
        for _ in 0..8 {
            let run = any_run(&mut random, whole.0.expected_psn().get());
            let bytes = payload(&mut random, run.len);
            whole.1.arriving.clone_from(&bytes);
            whole.0.handle(&run, &mut whole.1);
            let mut rest = run;
            let mut at = 0;
            while let Some((front, back)) =
                rest.split(1 + below(&mut random, u64::from(rest.packets)), pmtu())
            {
                let end = at + front.len as usize;
                parts.1.arriving = bytes[at..end].to_vec();
                parts.0.handle(&front, &mut parts.1);
                (rest, at) = (back, end);
            }
            parts.1.arriving = bytes[at..].to_vec();
            parts.0.handle(&rest, &mut parts.1);
            let failed = whole.0.state() == ResponderState::Failed;
            let [a, b] = [&whole, &parts].map(|(receiver, host)| {
                (
                    (receiver.state(), receiver.dropped()),
                    (!failed).then(|| receiver.expected_psn()),
                    (
                        host.received.clone(),
                        host.events.clone(),
                        host.receives.clone(),
                    ),
                )
            });
            assert_eq!(a, b, "case {case}: {run:?}");
            assert!(
                failed || whole.1.memory == parts.1.memory,
                "case {case}: {run:?}"
            );
        }
    }
}
