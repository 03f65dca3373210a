//! Peers that send anything: never a panic, bounded state, every request completed once and in order.

use ib_transport::{
    Answer, Operation, RetryCount, RnrRetryCount, Run, RunOperation, Status, Transfer, UcReceiver,
    UcReceiverConfig,
};
use ib_vtime::{Duration, Instant, SplitMix64};
use ib_wire::packet::{AethSyndrome, NakCode};

use crate::host::{QueueFault, Receive, Region};
use crate::network::{End, pmtu, responder};
use crate::packets::{nak, psn, rnr};
use crate::random::{below, generate, host, sequences};
use crate::rig::{READ, Rig, SEND};
use crate::splitting::{any_response, any_run, provided};

/// Delivers to an end a transfer with payload of any bytes.
fn give(end: &mut End, now: Instant, transfer: &Transfer) {
    let payload = vec![0x5a; transfer.payload_len() as usize];
    end.take(now, transfer, &payload);
}

/// Polls everything, and asserts that it ends.
fn drain(end: &mut End, now: Instant, random: &mut SplitMix64) {
    for _ in 0..2000 {
        if end.poll(now, 1 + below(random, 4)).is_none() {
            return;
        }
    }
    panic!("an end sends without end");
}

#[test]
fn packets_of_any_kind_leave_every_request_completed_once_and_in_order() {
    let mut random = SplitMix64::new(7);
    let templates = [host(0), host(0)];
    for case in 0..sequences() / 4 {
        let sequence = generate(&mut random, &templates, 20);
        let near = sequence.requester.first_psn.get();
        let mut host = provided(&mut random, &sequence.hosts[0]);
        if random.chance(1, 20) {
            host.queue_fault = if random.chance(1, 2) {
                QueueFault::Malformed
            } else {
                QueueFault::Unreachable
            };
        }
        let mut end = End::new(host, sequence.requester, responder(500));
        for request in &sequence.requests {
            end.rc.post(*request, &mut end.host);
        }
        let receives = end.host.receives.len();
        let mut now = Instant::ZERO;
        for _ in 0..24 {
            let transfer = match random.below(8) {
                0..4 => {
                    let at = near.wrapping_add(below(&mut random, 30)).wrapping_sub(4);
                    Transfer::Response(any_response(&mut random, at))
                }
                4..7 => {
                    let expected = end.rc.responder().expected_psn().get();
                    Transfer::Request(any_run(&mut random, expected))
                }
                _ => {
                    let anywhere = psn(random.next_u32());
                    Transfer::Request(Run {
                        psn: anywhere,
                        operation: RunOperation::Reserved,
                        ..any_run(&mut random, 0)
                    })
                }
            };
            give(&mut end, now, &transfer);
            if random.chance(1, 2) {
                drain(&mut end, now, &mut random);
            }
            if random.chance(1, 8) {
                now += Duration::from_millis(random.below(100));
                end.rc.handle_timeout(now, &mut end.host);
            }
            if random.chance(1, 40) {
                end.host.revoke(0);
            }
            if random.chance(1, 60) {
                end.rc.drain(&mut end.host);
                end.rc.start();
            }
            let outstanding = end.rc.requester().len();
            assert_eq!(outstanding + end.host.sends.len(), sequence.requests.len());
            let held = receives - end.host.receives.len() - end.host.received.len();
            assert!(held <= 1, "case {case}: {held} receives in use");
        }
        end.rc.abort(&mut end.host);
        drain(&mut end, now, &mut random);
        let order: Vec<_> = end.host.sends.iter().map(|send| send.0).collect();
        assert!(
            order.iter().copied().eq(0..sequence.requests.len() as u64),
            "case {case}"
        );
        let statuses = end.host.sends.iter().map(|send| send.1);
        let errors = statuses
            .skip_while(|status| *status == Status::Success)
            .skip(1);
        assert!(
            errors.clone().all(|status| status == Status::Flushed),
            "case {case}"
        );
        assert_eq!(receives - end.host.receives.len(), end.host.received.len());
        assert!(
            end.host.events.len() <= 4,
            "case {case}: {:?}",
            end.host.events
        );
        assert_eq!(end.rc.poll_timeout(), None);
    }
}

#[test]
fn packets_of_any_kind_at_an_unreliable_connection_leave_receives_in_order() {
    let mut random = SplitMix64::new(8);
    let template = host(0);
    for case in 0..sequences() / 4 {
        let mut receiver = UcReceiver::<Region, Receive>::new(UcReceiverConfig {
            pmtu: pmtu(),
            first_psn: psn(0),
            write: true,
            shared_receives: false,
        });
        let mut host = provided(&mut random, &template);
        let receives = host.receives.len();
        for _ in 0..12 {
            let run = any_run(&mut random, receiver.expected_psn().get());
            host.arriving = vec![1; run.len as usize];
            receiver.handle(&run, &mut host);
        }
        receiver.abort(&mut host);
        assert_eq!(
            receives - host.receives.len(),
            host.received.len(),
            "case {case}"
        );
        let order = host.received.iter().map(|received| received.receive.id);
        assert!(order.eq(0..host.received.len() as u64), "case {case}");
    }
}

#[test]
fn every_nak_at_every_moment_ends_or_goes_on() {
    for byte in 0..=u8::MAX {
        for at in 8..18 {
            for answered in 0..3 {
                let mut rig = Rig::new();
                rig.post(SEND, 300)
                    .post(READ, 600)
                    .post(SEND, 1)
                    .post(SEND, 1);
                rig.psns();
                if answered > 0 {
                    rig.reply(crate::packets::data(12, true, false, 256));
                }
                let aeth = ib_wire::packet::Aeth {
                    syndrome_byte: byte,
                    msn: psn(1),
                };
                let answer = Answer::Acknowledge(aeth.syndrome());
                rig.reply(crate::packets::response(at, answer));
                if answered > 1 {
                    rig.reply(crate::packets::response(at, answer));
                }
                let done = rig.end.host.sends.len();
                assert_eq!(done + rig.end.rc.requester().len(), 4);
                rig.psns();
            }
        }
    }
}

#[test]
fn a_peer_that_answers_nothing_ends_the_connection_after_its_retries() {
    for retries in 0..8 {
        let mut rig = Rig::with(|config| config.retries = RetryCount::from_low_bits(retries));
        rig.post(SEND, 9000).post(READ, 9000);
        let mut sent = rig.psns().len();
        let mut timeouts = 0;
        while rig.end.rc.poll_timeout().is_some() {
            rig.elapse();
            timeouts += 1;
            sent += rig.psns().len();
        }
        assert_eq!(timeouts, u32::from(retries) + 1);
        assert_eq!(sent, 37 + usize::from(retries));
        assert_eq!(rig.statuses(), [Status::RetryExceeded, Status::Flushed]);
    }
}

#[test]
fn a_peer_that_is_never_ready_is_asked_at_its_pace() {
    let mut rig = Rig::with(|config| config.rnr_retries = RnrRetryCount::INFINITE);
    rig.post(SEND, 600);
    for _ in 0..1000 {
        assert_eq!(rig.psns(), [10, 11, 12]);
        rig.reply(rnr(10, 1));
        rig.elapse();
    }
    assert_eq!(rig.now, Instant::ZERO + Duration::from_millis(10));
    assert_eq!(rig.statuses(), []);
    rig.reply(nak(10, NakCode::INVALID_REQUEST));
    assert_eq!(rig.statuses(), [Status::RemoteInvalidRequest]);
}

#[test]
fn a_flood_of_duplicates_owes_no_more_than_one_acknowledgement_and_each_read_once() {
    let mut random = SplitMix64::new(9);
    let mut end = End::new(host(0), crate::network::requester(0), responder(10));
    let read = crate::packets::read(10, crate::random::ALL, 0, 600);
    let write = crate::packets::write(13, crate::random::ALL, 0, 5);
    for _ in 0..10_000 {
        give(&mut end, Instant::ZERO, &Transfer::Request(read));
        give(&mut end, Instant::ZERO, &Transfer::Request(write));
    }
    assert_eq!(end.rc.responder().duplicates(), 19_998);
    let mut left = 0;
    while end.poll(Instant::ZERO, 1 + below(&mut random, 1)).is_some() {
        left += 1;
    }
    assert!(left <= 5, "{left} packets");
}

#[test]
fn t005_the_syndrome_of_a_middle_response_is_not_looked_at() {
    let mut rig = Rig::new();
    rig.post(Operation::Read(crate::rig::REMOTE), 700);
    rig.psns();
    let middle = Answer::Read {
        first: false,
        last: false,
        len: 256,
        syndrome: AethSyndrome::Reserved(0xff),
    };
    rig.reply(crate::packets::data(10, true, false, 256));
    rig.reply(crate::packets::response(11, middle));
    rig.reply(crate::packets::data(12, false, true, 188));
    assert_eq!(
        rig.statuses(),
        [Status::Success],
        "middle packets carry no syndrome"
    );
}
