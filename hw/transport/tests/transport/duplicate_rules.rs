//! Rules of the responder about duplicates and answers, each by its number in RULES.md.

use ib_transport::{Answer, AtomicOp, RemoteRange, RemoteStart, Run, RunOperation, Transfer};
use ib_vtime::Instant;
use ib_wire::packet::NakCode;

use crate::network;
use crate::packets::{
    ack, add, atomic_write, data, first, flush, give, last, nak, only, psn, read, responses, send,
    serve, write,
};
use crate::random::{ALL, READ_ONLY};
use crate::responder_rules::{answers, assert_invalid, end, end_with};

#[test]
fn t027_a_duplicate_is_acknowledged_up_to_the_next_read_and_not_executed() {
    let mut end = end(3);
    serve(&mut end, write(10, ALL, 0, 5));
    serve(&mut end, read(11, ALL, 0, 1000));
    serve(&mut end, write(15, ALL, 0, 5));
    serve(&mut end, send(16, 5));
    let memory = end.host.memory.clone();
    let msn = end.rc.responder().msn();
    assert_eq!(answers(&mut end, write(10, ALL, 0, 6)), [ack(10)]);
    assert_eq!(answers(&mut end, write(15, ALL, 0, 6)), [ack(16)]);
    let silent = Run {
        ack_request: false,
        ..write(15, ALL, 0, 6)
    };
    assert_eq!(answers(&mut end, silent), []);
    assert!(end.host.memory == memory);
    assert_eq!(end.host.received.len(), 1);
    assert_eq!(end.rc.responder().msn(), msn);
}

#[test]
fn t027_a_duplicate_leaves_the_message_in_progress_alone() {
    let mut end = end(2);
    serve(&mut end, send(10, 5));
    serve(&mut end, first(send(11, 0)));
    assert_eq!(answers(&mut end, send(10, 5)), [ack(11)]);
    serve(&mut end, last(send(12, 4)));
    assert_eq!(end.host.received[1].len, 260);
}

#[test]
fn t028_a_duplicate_read_is_served_again_from_memory_as_it_is_now() {
    let mut end = end(0);
    serve(&mut end, read(10, ALL, 64, 600));
    end.host.memory[64 + 256] ^= 0xff;
    give(
        &mut end,
        Instant::ZERO,
        Transfer::Request(read(11, ALL, 64 + 256, 344)),
    );
    let (answer, payload) = end.poll(Instant::ZERO, 9).expect("an answer");
    let Transfer::Response(answer) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (answer.psn, answer.packets, answer.msn),
        (psn(11), 2, psn(1))
    );
    let first = matches!(
        answer.answer,
        Answer::Read {
            first: true,
            last: true,
            ..
        }
    );
    assert!(first && payload == end.host.memory[320..664]);
}

#[test]
fn t028_a_read_that_is_not_remembered_is_dropped() {
    let mut end = end(0);
    serve(&mut end, read(10, ALL, 64, 600));
    for wrong in [
        read(11, ALL, 64 + 255, 344),
        read(11, ALL, 64 + 256, 345),
        read(11, ALL, 64 + 256, 300),
        read(11, READ_ONLY, 64 + 256, 344),
        read(9, ALL, 64, 600),
        add(10, ALL, 64, 1),
    ] {
        assert_eq!(answers(&mut end, wrong), [], "{wrong:?}");
    }
    serve(&mut end, read(12, ALL, 64 + 512, 88));
    assert_eq!(answers(&mut end, read(10, ALL, 64, 600)), [], "it went on");
    end.host.revoke(0);
    assert_eq!(answers(&mut end, read(12, ALL, 64 + 512, 88)), []);
    assert!(!end.rc.is_failed());
}

#[test]
fn t029_a_duplicate_atomic_returns_the_value_that_is_remembered() {
    let mut end = end(0);
    let once = answers(&mut end, add(10, ALL, 8, 5));
    serve(&mut end, add(11, ALL, 8, 5));
    let memory = end.host.memory.clone();
    assert_eq!(answers(&mut end, add(10, ALL, 8, 5)), once);
    assert!(end.host.memory == memory);
    let start = RemoteStart { addr: 8, rkey: ALL };
    let swap = AtomicOp::CompareSwap {
        compare: 0,
        swap: 0,
    };
    let other = only(10, RunOperation::Atomic(start, swap), 0);
    assert_eq!(answers(&mut end, other), []);
    assert_eq!(end.host.atomics, 2);
}

#[test]
fn t029_a_duplicate_atomic_write_is_answered_and_not_executed() {
    let mut end = end(0);
    let write = atomic_write(10, ALL, 8, 8);
    let once = answers(&mut end, write);
    assert_eq!(answers(&mut end, write), once);
    assert_eq!(answers(&mut end, read(10, ALL, 8, 0)), []);
    assert_eq!(answers(&mut end, add(10, ALL, 8, 0)), []);
    assert_eq!((once.len(), end.host.atomics), (1, 1));
}

#[test]
fn a_duplicate_flush_is_answered_and_not_executed() {
    let mut end = end(0);
    let range = RemoteRange {
        addr: 8,
        rkey: ALL,
        len: 8,
    };
    let flush = flush(10, 1, range);
    let once = answers(&mut end, flush);
    serve(&mut end, write(11, ALL, 8, 8));
    end.host.revoke(0);
    assert_eq!(answers(&mut end, flush), once);
    assert_eq!(answers(&mut end, read(10, ALL, 8, 0)), []);
    assert_eq!(answers(&mut end, atomic_write(10, ALL, 8, 8)), []);
    assert_eq!((once.len(), end.host.flushes), (1, 1));
}

#[test]
fn t030_the_newest_reads_and_atomics_are_remembered() {
    let mut end = end(0);
    for at in 10..15 {
        serve(&mut end, add(at, ALL, 8, 1));
    }
    assert_eq!(answers(&mut end, add(10, ALL, 8, 1)), []);
    assert_eq!(answers(&mut end, add(11, ALL, 8, 1)).len(), 1);
}

#[test]
fn t030_more_unanswered_reads_than_the_depth_are_invalid() {
    let mut end = end(0);
    for at in 10..15 {
        give(
            &mut end,
            Instant::ZERO,
            Transfer::Request(read(at, ALL, 8, 1)),
        );
    }
    assert!(end.rc.is_failed());
    let last = responses(&mut end).last().copied().expect("a refusal");
    assert_eq!(
        (last.psn, last.answer),
        (psn(14), nak(14, NakCode::INVALID_REQUEST).answer)
    );
    assert_invalid(
        end_with(0, |config| config.max_reads = 0),
        read(10, ALL, 0, 1),
    );
}

#[test]
fn t030_another_depth_acts_from_the_next_request_on_and_forgets_none_that_was_not_answered() {
    let resized = |depth, asked: u32| {
        let mut end = end_with(0, |config| config.max_reads = 2);
        let config = network::responder(10);
        serve(&mut end, read(10, ALL, 8, 1));
        let responder = end.rc.responder_mut();
        responder.modify(config.rights, depth, config.min_rnr_timer);
        for at in 11..11 + asked {
            let request = Transfer::Request(read(at, ALL, 8, 1));
            give(&mut end, Instant::ZERO, request);
        }
        let taken = end.rc.responder().msn().get() - 1;
        (taken, end.rc.is_failed())
    };
    assert_eq!(resized(1, 2), (1, true));
    assert_eq!(resized(4, 4), (4, false));
    assert_eq!(resized(4, 5), (4, true));
    assert_eq!(resized(0, 1), (0, true));
    // Both were never answered, so a depth of 1 has room for none behind them.
    let mut end = end_with(0, |config| config.max_reads = 2);
    for at in [10, 11] {
        let request = Transfer::Request(read(at, ALL, 8, 1));
        give(&mut end, Instant::ZERO, request);
    }
    let config = network::responder(10);
    let responder = end.rc.responder_mut();
    responder.modify(config.rights, 1, config.min_rnr_timer);
    assert!(end.poll(Instant::ZERO, 1).is_some());
    assert_eq!(
        answers(&mut end, read(12, ALL, 8, 1)),
        [data(11, true, true, 1), nak(12, NakCode::INVALID_REQUEST)]
    );
}

#[test]
fn t026_a_nak_that_has_not_left_is_withdrawn_when_the_packet_comes() {
    let mut end = end(2);
    give(&mut end, Instant::ZERO, Transfer::Request(send(11, 5)));
    give(&mut end, Instant::ZERO, Transfer::Request(send(10, 5)));
    assert_eq!(answers(&mut end, send(11, 5)), [ack(11)]);
}

#[test]
fn t028_a_read_asked_for_again_during_its_answer_starts_anew() {
    let mut end = end(0);
    give(
        &mut end,
        Instant::ZERO,
        Transfer::Request(read(10, ALL, 64, 600)),
    );
    assert!(end.poll(Instant::ZERO, 2).is_some());
    let again = answers(&mut end, read(10, ALL, 64, 600));
    assert_eq!(
        again.iter().map(|r| r.psn.get()).collect::<Vec<_>>(),
        [10, 11, 12]
    );
    // An answer that has not come so far brings what is asked for by itself.
    give(
        &mut end,
        Instant::ZERO,
        Transfer::Request(read(13, ALL, 64, 600)),
    );
    let once = answers(&mut end, read(14, ALL, 64 + 256, 344));
    assert_eq!(
        once.iter().map(|r| r.psn.get()).collect::<Vec<_>>(),
        [13, 14, 15]
    );
}

#[test]
fn t028_memory_that_goes_before_a_second_answer_is_no_error() {
    let mut end = end(0);
    serve(&mut end, read(10, ALL, 64, 600));
    give(
        &mut end,
        Instant::ZERO,
        Transfer::Request(read(10, ALL, 64, 600)),
    );
    end.host.revoke(0);
    assert_eq!(responses(&mut end), []);
    assert!(!end.rc.is_failed());
}

#[test]
fn t040_nothing_follows_the_refusal_of_a_read() {
    let mut end = end(1);
    give(
        &mut end,
        Instant::ZERO,
        Transfer::Request(read(10, ALL, 64, 600)),
    );
    give(&mut end, Instant::ZERO, Transfer::Request(send(13, 5)));
    end.host.revoke(0);
    let left = responses(&mut end);
    assert_eq!(left.iter().map(|r| r.psn.get()).collect::<Vec<_>>(), [10]);
    assert_eq!(left[0].answer, nak(10, NakCode::REMOTE_ACCESS_ERROR).answer);
}
