//! Rules of the requester about NAKs, timeouts and lost responses, each by its number in RULES.md.

use ib_transport::{Answer, Operation, RetryCount, RnrRetryCount, RunOperation, Status};
use ib_vtime::Duration;
use ib_wire::packet::{AethSyndrome, NakCode};

use crate::packets::{ACK, ack, data, nak, psn, response, rnr};
use crate::rig::{ADD, READ, REMOTE, Rig, SEND, TIMEOUT, WRITE};

#[test]
fn t013_any_answer_acknowledges_earlier_sends_and_writes() {
    let mut rig = Rig::new();
    rig.post(SEND, 300)
        .post(WRITE, 5)
        .post(READ, 5)
        .post(SEND, 5)
        .post(SEND, 5);
    rig.psns();
    rig.reply(ack(10));
    assert_eq!(rig.done(), 0, "half of the first");
    rig.reply(data(13, true, true, 5));
    assert_eq!(rig.done(), 3);
    rig.reply(nak(15, NakCode::REMOTE_ACCESS_ERROR));
    assert_eq!(rig.done(), 4);
    assert_eq!(rig.statuses()[4], Status::RemoteAccess);
}

#[test]
fn t013_an_answer_beyond_a_missing_read_response_goes_back_once() {
    let mut rig = Rig::with(|config| config.retries = RetryCount::from_low_bits(1));
    rig.post(SEND, 1)
        .post(READ, 600)
        .post(SEND, 1)
        .post(SEND, 1);
    assert_eq!(rig.psns(), [10, 11, 14, 15]);
    rig.reply(ack(14));
    assert_eq!(rig.done(), 1, "the read is not complete");
    assert_eq!(rig.psns(), [11, 14, 15]);
    // Only the answer that was asked for counts now, or each of these would cost a retry.
    rig.reply(ack(15))
        .reply(ack(14))
        .reply(data(12, false, false, 256));
    rig.reply(rnr(14, 1))
        .reply(nak(15, NakCode::REMOTE_ACCESS_ERROR));
    assert_eq!(rig.end.rc.requester().retransmissions(), 1);
    rig.reply(data(11, true, false, 256))
        .reply(data(12, false, false, 256));
    rig.reply(data(13, false, true, 88)).reply(ack(15));
    assert_eq!(rig.done(), 4);
}

#[test]
fn t018_a_timeout_sends_one_packet_and_the_rest_once_the_peer_answers() {
    let mut rig = Rig::new();
    rig.post(SEND, 600).post(SEND, 1);
    assert_eq!(rig.psns(), [10, 11, 12, 13]);
    rig.elapse();
    let again = rig.packets();
    assert_eq!(
        (again.len(), again[0].psn, again[0].ack_request),
        (1, psn(10), true)
    );
    rig.reply(ack(10));
    assert_eq!(rig.psns(), [11, 12, 13]);
}

#[test]
fn t018_retries_run_out_and_the_oldest_request_says_so() {
    let mut rig = Rig::with(|config| config.retries = RetryCount::from_low_bits(2));
    rig.post(SEND, 1).post(SEND, 1).post(SEND, 1);
    rig.psns();
    rig.reply(ack(10));
    rig.elapse();
    assert_eq!(rig.psns(), [11]);
    rig.reply(nak(11, NakCode::PSN_SEQUENCE_ERROR));
    assert_eq!(rig.psns(), [11, 12]);
    rig.elapse();
    let statuses = [Status::Success, Status::RetryExceeded, Status::Flushed];
    assert_eq!(rig.statuses(), statuses);
    assert!(rig.end.rc.is_failed());
    assert_eq!((rig.psns(), rig.end.rc.poll_timeout()), (vec![], None));
}

#[test]
fn t018_progress_reloads_the_retries() {
    let mut rig = Rig::with(|config| config.retries = RetryCount::from_low_bits(1));
    for _ in 0..9 {
        rig.post(SEND, 1);
    }
    rig.psns();
    for at in 10..18 {
        rig.reply(nak(at, NakCode::PSN_SEQUENCE_ERROR));
        assert_eq!(rig.psns()[0], at);
        rig.reply(ack(at));
    }
    assert_eq!(rig.done(), 8);
}

#[test]
fn t019_a_read_is_asked_for_again_from_the_first_byte_that_is_missing() {
    let mut rig = Rig::new();
    rig.post(READ, 600);
    rig.psns();
    rig.reply(data(10, true, false, 256));
    rig.elapse();
    let again = rig.packets();
    let RunOperation::Read(range) = again[0].operation else {
        panic!("{again:?}");
    };
    assert_eq!(
        (again[0].psn, range.addr, range.len),
        (psn(11), 64 + 256, 344)
    );
    rig.reply(data(11, true, false, 256))
        .reply(data(12, false, true, 88));
    assert_eq!(rig.done(), 1);
    assert_eq!(
        rig.end.host.memory[8192 + 512..8192 + 600],
        (0..88).collect::<Vec<u8>>()
    );
}

#[test]
fn t019_packets_are_sent_again_as_they_were() {
    let mut rig = Rig::new();
    rig.post(Operation::WriteImmediate(REMOTE, [9; 4]), 600)
        .post(ADD, 8);
    let once = rig.packets();
    rig.reply(nak(10, NakCode::PSN_SEQUENCE_ERROR));
    assert_eq!(rig.packets(), once);
}

#[test]
fn t020_an_rnr_nak_waits_its_time_and_costs_no_transport_retry() {
    let mut rig = Rig::with(|config| {
        config.retries = RetryCount::from_low_bits(0);
        config.rnr_retries = RnrRetryCount::from_low_bits(2);
    });
    rig.post(SEND, 1).post(SEND, 1);
    rig.psns();
    for _ in 0..2 {
        rig.reply(rnr(10, 12));
        rig.reply(rnr(10, 1))
            .reply(rnr(10, 1))
            .reply(nak(10, NakCode::PSN_SEQUENCE_ERROR));
        let until = rig.now + Duration::from_micros(640);
        assert_eq!(rig.end.rc.poll_timeout(), Some(until));
        assert_eq!(rig.psns(), []);
        rig.elapse();
        assert_eq!(rig.psns(), [10, 11]);
    }
    rig.reply(rnr(10, 12));
    assert_eq!(rig.statuses(), [Status::RnrRetryExceeded, Status::Flushed]);
}

#[test]
fn t020_an_rnr_nak_acknowledges_what_came_before_and_reloads() {
    let mut rig = Rig::with(|config| config.rnr_retries = RnrRetryCount::from_low_bits(1));
    rig.post(SEND, 1).post(SEND, 1).post(SEND, 1);
    rig.psns();
    for at in 11..13 {
        rig.reply(rnr(at, 1));
        assert_eq!(rig.done(), at as usize - 10);
        rig.elapse();
        assert_eq!(rig.psns()[0], at);
    }
    let mut first = Rig::with(|config| config.rnr_retries = RnrRetryCount::from_low_bits(0));
    first.post(SEND, 1);
    first.psns();
    first.reply(rnr(10, 1));
    assert_eq!(first.statuses(), [Status::RnrRetryExceeded]);
}

#[test]
fn t021_answers_that_do_not_fit_the_request_end_the_connection() {
    let bad_ack = Answer::Read {
        first: true,
        last: true,
        len: 5,
        syndrome: AethSyndrome::Nak(NakCode::INVALID_REQUEST),
    };
    let value = Answer::Atomic {
        syndrome: ACK,
        original: 0,
    };
    for (operation, len, answer) in [
        (READ, 600, data(10, false, false, 256)),
        (READ, 600, data(10, false, true, 88)),
        (READ, 5, response(10, bad_ack)),
        (READ, 5, response(10, value)),
        (ADD, 8, data(10, true, true, 8)),
        (SEND, 8, data(10, true, true, 8)),
        (SEND, 8, response(10, value)),
    ] {
        let mut rig = Rig::new();
        rig.post(operation, len);
        rig.psns();
        rig.reply(answer);
        assert_eq!(rig.statuses(), [Status::BadResponse], "{answer:?}");
        assert!(rig.end.rc.is_failed());
    }
    let mut rig = Rig::new();
    rig.post(READ, 600);
    rig.psns();
    rig.reply(data(10, true, false, 256))
        .reply(data(11, true, false, 256));
    assert_eq!(rig.statuses(), [Status::BadResponse]);
}

#[test]
fn t021_read_responses_of_a_wrong_length_are_length_errors() {
    for answer in [
        data(10, true, true, 256),
        data(10, true, true, 88),
        data(10, true, false, 255),
        data(10, true, false, 257),
        data(10, true, false, 0),
    ] {
        let mut rig = Rig::new();
        rig.post(READ, 600);
        rig.psns();
        rig.reply(answer);
        assert_eq!(rig.statuses(), [Status::AnswerLength], "{answer:?}");
    }
    for last in [
        data(11, false, true, 87),
        data(11, false, true, 89),
        data(11, false, false, 256),
    ] {
        let mut rig = Rig::new();
        rig.post(READ, 256 + 88);
        rig.psns();
        rig.reply(data(10, true, false, 256)).reply(last);
        assert_eq!(rig.statuses(), [Status::AnswerLength], "{last:?}");
    }
}

#[test]
fn t021_a_gap_is_a_lost_response_and_a_late_stream_is_welcome() {
    let mut rig = Rig::new();
    rig.post(READ, 1024);
    rig.psns();
    rig.reply(data(10, true, false, 256))
        .reply(data(12, false, false, 256));
    assert_eq!(rig.psns(), [11]);
    // The old stream again, late and in order.
    rig.reply(data(11, false, false, 256))
        .reply(data(12, false, false, 256));
    rig.reply(data(11, true, false, 256))
        .reply(data(13, false, true, 256));
    assert_eq!(rig.statuses(), [Status::Success]);
}

#[test]
fn t021_reserved_naks_say_nothing() {
    let mut rig = Rig::new();
    rig.post(SEND, 1).post(SEND, 1);
    rig.psns();
    rig.reply(nak(11, NakCode::INVALID_RD_REQUEST))
        .reply(nak(11, NakCode::new(31)));
    rig.reply(response(
        11,
        Answer::Acknowledge(AethSyndrome::Reserved(0x41)),
    ));
    rig.reply(response(11, Answer::Reserved));
    assert_eq!(rig.statuses(), []);
}

#[test]
fn t024_a_remote_error_ends_the_request_that_it_names() {
    for (code, status) in [
        (NakCode::INVALID_REQUEST, Status::RemoteInvalidRequest),
        (NakCode::REMOTE_ACCESS_ERROR, Status::RemoteAccess),
        (NakCode::REMOTE_OPERATIONAL_ERROR, Status::RemoteOperation),
    ] {
        let mut rig = Rig::new();
        rig.post(SEND, 1).post(SEND, 600).post(SEND, 1);
        rig.psns();
        rig.reply(nak(12, code));
        assert_eq!(rig.statuses(), [Status::Success, status, Status::Flushed]);
        assert!(rig.end.rc.is_failed());
    }
}

#[test]
fn t024_a_remote_error_behind_an_unanswered_read_goes_back_to_the_read() {
    let mut rig = Rig::with(|config| config.retries = RetryCount::from_low_bits(1));
    rig.post(READ, 1).post(SEND, 1);
    rig.psns();
    rig.reply(nak(11, NakCode::REMOTE_ACCESS_ERROR));
    assert_eq!((rig.statuses(), rig.psns()), (vec![], vec![10, 11]));
    rig.elapse();
    assert_eq!(rig.statuses(), [Status::RetryExceeded, Status::Flushed]);
}

#[test]
fn t018_a_nak_restarts_the_timer_with_the_packets_that_follow() {
    let mut rig = Rig::new();
    rig.post(SEND, 1);
    rig.psns();
    rig.now += Duration::from_nanos(1000);
    rig.reply(nak(10, NakCode::PSN_SEQUENCE_ERROR));
    assert_eq!(rig.psns(), [10]);
    assert_eq!(rig.end.rc.poll_timeout(), Some(rig.now + TIMEOUT));
}

#[test]
fn t019_packets_ask_again_where_they_asked_before() {
    let mut rig = Rig::with(|config| config.ack_interval = 4);
    rig.post(SEND, 6 * 256);
    assert!(rig.end.poll(rig.now, 1).is_some() && rig.end.poll(rig.now, 1).is_some());
    rig.reply(nak(10, NakCode::PSN_SEQUENCE_ERROR));
    let asks: Vec<_> = rig.packets().iter().map(|run| run.ack_request).collect();
    assert_eq!(asks, [false, false, false, true, false, true]);
}

#[test]
fn t020_progress_ends_the_wait() {
    let mut rig = Rig::new();
    rig.post(SEND, 1).post(SEND, 1);
    rig.psns();
    rig.reply(rnr(10, 1));
    assert_eq!(rig.psns(), []);
    // A duplicate of the packet found a receive.
    rig.reply(ack(10));
    assert_eq!(rig.psns(), [11]);
}
