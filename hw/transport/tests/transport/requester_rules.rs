//! Rules of the requester, each by its number in RULES.md.

use ib_transport::{
    AckTimeout, Answer, Ending, Event, MAX_MESSAGE, RequesterState, Response, RetryCount,
    RunOperation, Status, Transfer,
};
use ib_vtime::Instant;
use ib_wire::packet::{AethSyndrome, NakCode};

use crate::network::{requester, responder};
use crate::packets::{ACK, ack, data, nak, psn, response};
use crate::rig::{ADD, ATOMIC_WRITE, FLUSH, READ, Rig, SEND, TIMEOUT, WRITE};

#[test]
fn t001_no_more_than_half_the_psns_are_ever_unacknowledged() {
    let mut rig = Rig::with(|config| {
        config.window = u32::MAX;
        config.max_message = 1 << 31;
    });
    let most = 256 * ((1 << 23) - 1);
    rig.post(READ, most).post(SEND, 1);
    assert_eq!(rig.psns(), [10], "the send waits");
    assert_eq!(rig.end.rc.requester().next_psn(), psn(10 + (1 << 23) - 1));
    let mut rig = Rig::with(|config| config.max_message = 1 << 31);
    rig.post(READ, most + 1);
    assert_eq!(rig.psns(), []);
    assert_eq!(rig.statuses(), [Status::LocalLength]);
}

#[test]
fn t002_requests_take_the_psns_of_their_packets_or_of_their_answers() {
    let mut rig = Rig::new();
    rig.post(SEND, 0)
        .post(WRITE, 513)
        .post(READ, 600)
        .post(ADD, 8)
        .post(READ, 0)
        .post(SEND, 1);
    assert_eq!(rig.psns(), [10, 11, 12, 13, 14, 17, 18, 19]);
}

#[test]
fn t006_the_last_packet_asks_for_an_acknowledgement_and_each_so_many_inside() {
    let mut rig = Rig::with(|config| config.ack_interval = 2);
    rig.post(SEND, 256 * 4 + 1);
    let asks: Vec<_> = rig.packets().iter().map(|run| run.ack_request).collect();
    assert_eq!(asks, [false, true, false, true, true]);
    let mut rig = Rig::new();
    rig.post(SEND, 256 * 4 + 1).post(WRITE, 5);
    let solicits: Vec<_> = rig.packets().iter().map(|run| run.solicited).collect();
    assert_eq!(solicits, [false, false, false, false, true, false]);
}

#[test]
fn t007_a_message_beyond_the_limit_fails_and_nothing_is_sent() {
    let mut rig = Rig::with(|config| config.max_message = 1000);
    rig.post(WRITE, 1001).post(SEND, 1);
    assert_eq!(rig.psns(), []);
    assert_eq!(rig.statuses(), [Status::LocalLength, Status::Flushed]);
}

#[test]
fn t011_packets_of_one_message_are_contiguous_and_in_posting_order() {
    let mut rig = Rig::new();
    rig.post(SEND, 600).post(WRITE, 300).post(SEND, 1);
    let sends: Vec<_> = rig
        .packets()
        .iter()
        .map(|run| matches!(run.operation, RunOperation::Send(Ending::Plain)))
        .collect();
    assert_eq!(sends, [true, true, true, false, false, true]);
}

#[test]
fn t012_requests_complete_in_posting_order() {
    let mut rig = Rig::new();
    rig.post(READ, 5).post(SEND, 5).post(ADD, 8);
    assert_eq!(rig.psns(), [10, 11, 12]);
    rig.reply(data(10, true, true, 5));
    assert_eq!(rig.done(), 1);
    rig.reply(response(
        12,
        Answer::Atomic {
            syndrome: ACK,
            original: 77,
        },
    ));
    assert_eq!(
        rig.end
            .host
            .sends
            .iter()
            .map(|send| send.0)
            .collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(rig.end.host.memory[8192..8200], 77_u64.to_le_bytes());
}

#[test]
fn t014_answers_outside_of_what_is_outstanding_are_dropped() {
    let mut rig = Rig::new();
    rig.post(SEND, 1).post(SEND, 1).post(READ, 1);
    assert_eq!(rig.psns(), [10, 11, 12]);
    rig.reply(ack(13))
        .reply(ack(14))
        .reply(ack(9))
        .reply(ack(0x80_0009));
    rig.reply(nak(9, NakCode::REMOTE_ACCESS_ERROR))
        .reply(nak(13, NakCode::INVALID_REQUEST));
    rig.reply(data(9, true, true, 1))
        .reply(data(13, true, true, 1));
    assert_eq!(rig.statuses(), []);
    rig.reply(ack(11))
        .reply(ack(10))
        .reply(nak(10, NakCode::PSN_SEQUENCE_ERROR));
    assert_eq!((rig.done(), rig.psns()), (2, vec![]));
    assert_eq!(rig.end.rc.requester().state(), RequesterState::Sending);
}

#[test]
fn t015_no_more_reads_and_atomics_start_than_the_depth() {
    let mut rig = Rig::with(|config| config.max_reads = 2);
    rig.post(READ, 1).post(ADD, 8).post(READ, 1).post(SEND, 1);
    assert_eq!(rig.psns(), [10, 11]);
    assert_eq!(rig.end.rc.requester().unstarted(), 2);
    rig.reply(data(10, true, true, 1));
    assert_eq!(rig.psns(), [12, 13]);
    let mut rig = Rig::with(|config| config.max_reads = 0);
    rig.post(READ, 1);
    assert_eq!(
        (rig.psns(), rig.statuses()),
        (vec![], vec![Status::NoReads])
    );
}

#[test]
fn an_atomic_write_counts_among_the_reads_and_ends_with_a_read_response_without_data() {
    let mut rig = Rig::with(|config| config.max_reads = 1);
    rig.post(ATOMIC_WRITE, 8)
        .post(ATOMIC_WRITE, 8)
        .post(SEND, 1);
    assert_eq!(rig.psns(), [10]);
    // An acknowledgement of what follows shows that the answer is lost.
    rig.reply(data(10, true, true, 0));
    assert_eq!((rig.done(), rig.psns()), (1, vec![11, 12]));
    rig.reply(ack(12));
    assert_eq!((rig.done(), rig.psns()), (1, vec![11, 12]));
    rig.reply(data(11, true, true, 8));
    assert_eq!(rig.statuses()[1..], [Status::AnswerLength, Status::Flushed]);
    for len in [0, 7, 9] {
        let mut rig = Rig::new();
        rig.post(ATOMIC_WRITE, len);
        assert_eq!(
            (rig.psns(), rig.statuses()),
            (vec![], vec![Status::LocalLength])
        );
    }
}

#[test]
fn a_flush_counts_among_the_reads_and_ends_with_a_read_response_without_data() {
    let mut rig = Rig::with(|config| config.max_reads = 1);
    rig.post(FLUSH, 5000).post(FLUSH, 0).post(SEND, 1);
    let sent = rig.packets();
    let [flush] = sent[..] else {
        panic!("{sent:?}")
    };
    let RunOperation::Flush(range, _) = flush.operation else {
        panic!("{flush:?}");
    };
    assert_eq!((flush.packets, flush.len, range.len), (1, 0, 5000));
    rig.reply(data(10, true, true, 0));
    assert_eq!((rig.done(), rig.psns()), (1, vec![11, 12]));
    // An acknowledgement of what follows shows that the answer is lost.
    rig.reply(ack(12));
    assert_eq!((rig.done(), rig.psns()), (1, vec![11, 12]));
    rig.reply(data(11, true, true, 1));
    assert_eq!(rig.statuses()[1..], [Status::AnswerLength, Status::Flushed]);
}

#[test]
fn a_flush_uses_no_list_and_is_no_longer_than_a_reth_may_announce() {
    let mut rig = Rig::with(|config| config.max_message = 1);
    rig.post(FLUSH, MAX_MESSAGE).post(FLUSH, MAX_MESSAGE + 1);
    assert_eq!(rig.psns(), [10]);
    rig.reply(data(10, true, true, 0));
    assert_eq!(rig.statuses(), [Status::Success, Status::LocalLength]);
    let mut rig = Rig::with(|config| config.max_reads = 0);
    rig.post(FLUSH, 8);
    assert_eq!(
        (rig.psns(), rig.statuses()),
        (vec![], vec![Status::NoReads])
    );
}

#[test]
fn t016_a_fenced_request_waits_for_earlier_reads_and_atomics() {
    let mut rig = Rig::new();
    rig.post(READ, 1)
        .post(SEND, 1)
        .post_fenced(SEND, 1, true)
        .post(SEND, 1);
    assert_eq!(
        rig.psns(),
        [10, 11],
        "a send without a fence overtakes the completion"
    );
    rig.reply(data(10, true, true, 1));
    assert_eq!(rig.psns(), [12, 13], "a fence does not wait for sends");
}

#[test]
fn t017_the_timer_runs_while_something_is_unacknowledged_and_restarts_with_progress() {
    let mut rig = Rig::new();
    assert_eq!(rig.end.rc.poll_timeout(), None);
    rig.post(SEND, 1).post(SEND, 1);
    rig.psns();
    assert_eq!(rig.end.rc.poll_timeout(), Some(Instant::ZERO + TIMEOUT));
    rig.now = Instant::from_nanos(1000);
    rig.reply(ack(10));
    assert_eq!(rig.end.rc.poll_timeout(), Some(rig.now + TIMEOUT));
    rig.reply(ack(10));
    rig.reply(ack(11));
    assert_eq!(rig.end.rc.poll_timeout(), None);
    let mut rig = Rig::with(|config| config.ack_timeout = AckTimeout::from_low_bits(0));
    rig.post(SEND, 1);
    rig.psns();
    assert_eq!(rig.end.rc.poll_timeout(), None);
}

#[test]
fn t022_local_faults_are_found_before_the_first_packet() {
    for operation in [SEND, WRITE, READ, ADD] {
        let mut rig = Rig::new();
        rig.end.host.bad_buffers.insert(0);
        rig.post(operation, 8);
        assert_eq!(rig.psns(), []);
        assert_eq!(rig.statuses(), [Status::LocalProtection]);
        assert!(rig.end.rc.is_failed());
    }
    let mut rig = Rig::new();
    rig.post(READ, 8);
    rig.psns();
    rig.end.host.bad_buffers.insert(0);
    rig.reply(data(10, true, true, 8));
    assert_eq!(rig.statuses(), [Status::LocalProtection]);
    let mut short = Rig::new();
    short.post(ADD, 7);
    assert_eq!(
        (short.psns(), short.statuses()),
        (vec![], vec![Status::LocalLength])
    );
    let mut long = Rig::new();
    long.post(ADD, 9);
    assert_eq!(
        long.psns(),
        [10],
        "the first 8 bytes of a longer list are used"
    );
}

#[test]
fn t023_requests_before_one_with_a_local_error_complete_first() {
    let mut rig = Rig::new();
    rig.end.host.bad_buffers.insert(2);
    rig.post(SEND, 1).post(READ, 1).post(SEND, 1).post(SEND, 1);
    assert_eq!(rig.psns(), [10, 11]);
    rig.elapse();
    assert_eq!(rig.psns(), [10]);
    rig.reply(ack(10));
    assert_eq!(rig.psns(), [11]);
    assert_eq!(rig.statuses(), [Status::Success]);
    rig.reply(data(11, true, true, 1));
    let after = [
        Status::Success,
        Status::Success,
        Status::LocalProtection,
        Status::Flushed,
    ];
    assert_eq!(rig.statuses(), after);
}

#[test]
fn t023_a_list_that_goes_half_way_fails_its_request() {
    let mut rig = Rig::new();
    rig.post(SEND, 1).post(SEND, 600).post(SEND, 1);
    assert!(rig.end.poll(rig.now, 1).is_some() && rig.end.poll(rig.now, 1).is_some());
    rig.end.host.bad_buffers.insert(1);
    assert_eq!(rig.psns(), []);
    assert_eq!(rig.statuses(), []);
    rig.reply(ack(11));
    assert_eq!(
        rig.statuses(),
        [Status::Success, Status::LocalProtection, Status::Flushed]
    );
}

#[test]
fn t042_sends_beyond_the_credits_wait_but_for_one() {
    let credits = |at, credits, msn| Response {
        msn: psn(msn),
        ..response(at, Answer::Acknowledge(AethSyndrome::Ack { credits }))
    };
    let mut rig = Rig::counting_credits(|_| ());
    for _ in 0..4 {
        rig.post(SEND, 1);
    }
    rig.post(WRITE, 1);
    assert_eq!(rig.psns(), [10], "one finds out");
    rig.reply(credits(10, 1, 1));
    assert_eq!(rig.psns(), [11, 12]);
    rig.reply(credits(12, 0, 3));
    assert_eq!(rig.psns(), [13, 14], "plain writes need no credit");
    rig.reply(credits(14, 31, 5));
    for _ in 0..9 {
        rig.post(SEND, 1);
    }
    assert_eq!(rig.psns().len(), 9, "this responder does not count");
}

#[test]
fn t052_a_drain_lets_what_has_begun_complete_and_is_announced_once() {
    let mut rig = Rig::new();
    rig.post(SEND, 600);
    assert!(rig.end.poll(rig.now, 1).is_some());
    rig.post(SEND, 1);
    rig.end.rc.drain(&mut rig.end.host);
    rig.end.rc.drain(&mut rig.end.host);
    assert_eq!(rig.end.rc.requester().state(), RequesterState::Draining);
    assert_eq!(rig.psns(), [11, 12]);
    rig.elapse();
    assert_eq!(rig.psns(), [10]);
    assert_eq!(rig.end.host.events, []);
    rig.reply(ack(12));
    assert_eq!(rig.end.host.events, [Event::SendQueueDrained]);
    assert_eq!(rig.end.rc.requester().state(), RequesterState::Drained);
    rig.post(SEND, 1);
    assert_eq!(rig.psns(), []);
    rig.end.rc.start();
    assert_eq!(rig.psns(), [13, 14]);
}

#[test]
fn t051_requests_posted_before_rts_wait() {
    let mut rig = Rig::new();
    rig.end.rc = crate::network::Connection::new(requester(10), responder(0));
    rig.post(SEND, 1);
    assert_eq!(rig.psns(), []);
    rig.end.rc.start();
    assert_eq!(rig.psns(), [10]);
}

#[test]
fn t051_the_first_psn_may_come_with_the_transition_to_rts() {
    let mut rig = Rig::new();
    rig.end.rc = crate::network::Connection::new(requester(10), responder(0));
    rig.post(SEND, 1);
    rig.end.rc.requester_mut().configure(requester(77));
    rig.end.rc.start();
    assert_eq!(rig.psns(), [77]);
    rig.reply(ack(77));
    rig.end.rc.requester_mut().configure(requester(10));
    rig.post(SEND, 1);
    assert_eq!(rig.psns(), [78], "not once requests may start");
}

#[test]
fn t053_an_abort_flushes_in_posting_order_and_so_do_later_posts() {
    let mut rig = Rig::new();
    rig.post(SEND, 1).post(READ, 1).post(SEND, 600);
    rig.psns();
    rig.end.rc.abort(&mut rig.end.host);
    rig.post(SEND, 1);
    let flushed: Vec<_> = (0..4).map(|id| (id, Status::Flushed)).collect();
    assert_eq!(rig.end.host.sends, flushed);
    rig.reply(ack(10));
    assert_eq!((rig.psns(), rig.end.rc.poll_timeout()), (vec![], None));
}

#[test]
fn t006_the_window_closes_with_a_packet_that_asks() {
    let mut rig = Rig::with(|config| config.window = 2);
    rig.post(SEND, 1000);
    let packets = rig.packets();
    assert_eq!(packets.len(), 2);
    assert!(packets[1].ack_request);
    rig.reply(ack(10));
    assert_eq!(rig.psns(), [12]);
}

#[test]
fn t006_nothing_starts_beyond_the_window() {
    let mut rig = Rig::with(|config| config.window = 1);
    rig.post(SEND, 1).post(READ, 1).post(SEND, 1);
    assert_eq!(rig.psns(), [10]);
    rig.reply(ack(10));
    assert_eq!(rig.psns(), [11]);
    rig.reply(data(11, true, true, 1));
    assert_eq!(rig.psns(), [12]);
}

#[test]
fn t023_a_local_error_outweighs_a_nak_of_what_was_sent() {
    let mut rig = Rig::new();
    rig.post(SEND, 1).post(SEND, 600);
    assert!(rig.end.poll(rig.now, 1).is_some() && rig.end.poll(rig.now, 1).is_some());
    rig.end.host.bad_buffers.insert(1);
    assert_eq!(rig.psns(), []);
    rig.reply(nak(11, NakCode::REMOTE_ACCESS_ERROR));
    assert_eq!(rig.statuses(), [Status::Success, Status::LocalProtection]);
}

#[test]
fn t052_attributes_change_while_drained_but_for_the_path_mtu() {
    let mut rig = Rig::new();
    rig.end.rc.drain(&mut rig.end.host);
    rig.end.rc.requester_mut().modify(|config| {
        config.pmtu = ib_transport::PathMtu::new(ib_wire::Mtu::MTU_4096).expect("a legal code");
        config.retries = RetryCount::from_low_bits(0);
        config.ack_timeout = AckTimeout::from_low_bits(1);
        config.window = 0;
    });
    rig.end.rc.start();
    rig.post(SEND, 300);
    assert_eq!(rig.psns(), [10], "a window of 0 is one of 1");
    let timeout = ib_vtime::Duration::from_nanos(8192);
    assert_eq!(rig.end.rc.poll_timeout(), Some(Instant::ZERO + timeout));
    rig.reply(ack(10));
    assert_eq!(rig.psns(), [11]);
    rig.elapse();
    assert_eq!(rig.statuses(), [Status::RetryExceeded]);
}

#[test]
fn responses_and_requests_leave_in_turns() {
    let mut rig = Rig::new();
    rig.post(SEND, 700);
    let read = crate::packets::read(0, crate::random::ALL, 0, 700);
    crate::packets::give(&mut rig.end, rig.now, Transfer::Request(read));
    let kinds = std::iter::from_fn(|| rig.end.poll(rig.now, 1))
        .map(|(transfer, _)| matches!(transfer, Transfer::Request(_)))
        .collect::<Vec<_>>();
    assert_eq!(kinds, [false, true, false, true, false, true]);
}

#[test]
fn t053_a_refused_request_of_the_peer_flushes_the_send_queue() {
    let mut rig = Rig::new();
    rig.post(SEND, 1).post(READ, 1);
    assert_eq!(rig.psns(), [10, 11]);
    let unknown = crate::packets::write(0, crate::random::UNKNOWN, 0, 5);
    crate::packets::give(&mut rig.end, rig.now, Transfer::Request(unknown));
    assert_eq!(rig.statuses(), [Status::Flushed, Status::Flushed]);
    let refusal = crate::packets::responses(&mut rig.end);
    assert_eq!(refusal, [nak(0, NakCode::REMOTE_ACCESS_ERROR)]);
    assert_eq!(rig.end.rc.poll_timeout(), None);
}

#[test]
fn t053_a_failed_request_drops_the_answers_that_are_owed_to_the_peer() {
    let mut rig = Rig::new();
    rig.post(SEND, 1);
    rig.psns();
    let read = crate::packets::read(0, crate::random::ALL, 0, 600);
    crate::packets::give(&mut rig.end, rig.now, Transfer::Request(read));
    rig.reply(nak(10, NakCode::REMOTE_OPERATIONAL_ERROR));
    assert_eq!(rig.statuses(), [Status::RemoteOperation]);
    assert_eq!(crate::packets::responses(&mut rig.end), []);
}
