//! Rules of the responder, each by its number in RULES.md.

use ib_transport::{
    Answer, Ending, Event, Flush, RemoteRange, RemoteRights, ResponderConfig, Response, RnrTimer,
    Run, RunOperation, Status, Transfer,
};
use ib_vtime::Instant;
use ib_wire::packet::{FlushPlacement, FlushSelectivity, NakCode};

use crate::host::{QueueFault, Receive};
use crate::network::{End, requester, responder};
use crate::packets::{
    ack, add, atomic_write, data, first, flush, give, last, middle, nak, of_region, only, psn,
    read, responses, rnr, send, serve, write,
};
use crate::random::{ALL, READ_ONLY, UNKNOWN, WRITE_ONLY, host};

/// Returns an end that expects PSN 10 and has so many receives of 1000 bytes.
pub(crate) fn end(receives: u64) -> End {
    end_with(receives, |_| ())
}

pub(crate) fn end_with(receives: u64, change: impl FnOnce(&mut ResponderConfig)) -> End {
    let mut host = host(0);
    for id in 0..receives {
        let at = 8192 + 1000 * usize::try_from(id).expect("small");
        host.receives.push_back(Receive { id, at, len: 1000 });
    }
    let mut config = responder(10);
    change(&mut config);
    End::new(host, requester(0), config)
}

/// Serves a request and returns its responses with an MSN of 0.
pub(crate) fn answers(end: &mut End, run: Run) -> Vec<Response> {
    let with = serve(end, run).into_iter();
    with.map(|response| Response {
        msn: psn(0),
        ..response
    })
    .collect()
}

/// Asserts that an end refuses a packet at PSN 10 with a NAK, an event and nothing else.
pub(crate) fn assert_refused(mut end: End, run: Run, code: NakCode, event: Event) {
    let before = end.host.memory.clone();
    assert_eq!(answers(&mut end, run), [nak(10, code)], "{run:?}");
    assert_eq!(end.host.events, [event], "{run:?}");
    assert_eq!(end.host.received, [], "{run:?}");
    assert!(end.host.memory == before, "{run:?}");
    assert!(end.rc.is_failed(), "{run:?}");
    assert_eq!(
        serve(&mut end, send(10, 1)),
        [],
        "an end in error is silent"
    );
}

pub(crate) fn assert_invalid(end: End, run: Run) {
    assert_refused(end, run, NakCode::INVALID_REQUEST, Event::RequestError);
}

pub(crate) fn assert_access(end: End, run: Run) {
    assert_refused(end, run, NakCode::REMOTE_ACCESS_ERROR, Event::AccessError);
}

#[test]
fn t001_a_read_of_half_the_psns_is_invalid() {
    assert_invalid(end(0), read(10, ALL, 0, 1 << 31));
}

#[test]
fn t002_a_read_takes_as_many_psns_as_its_response_has_packets() {
    let mut end = end(0);
    serve(&mut end, read(10, ALL, 0, 600));
    assert_eq!(end.rc.responder().expected_psn(), psn(13));
    serve(&mut end, read(13, ALL, 0, 0));
    serve(&mut end, add(14, ALL, 0, 1));
    assert_eq!(end.rc.responder().expected_psn(), psn(15));
}

#[test]
fn t003_responses_carry_the_psns_of_what_they_answer() {
    let mut end = end(2);
    assert_eq!(answers(&mut end, send(10, 5)), [ack(10)]);
    let parts = [
        data(11, true, false, 256),
        data(12, false, false, 256),
        data(13, false, true, 88),
    ];
    assert_eq!(answers(&mut end, read(11, ALL, 0, 600)), parts);
    let answer = answers(&mut end, add(14, ALL, 0, 1));
    assert_eq!(answer[0].psn, psn(14));
    assert!(matches!(answer[0].answer, Answer::Atomic { .. }));
}

#[test]
fn t003_a_read_that_fails_half_way_ends_in_a_nak_in_place_of_the_next_response() {
    let mut end = end(0);
    give(
        &mut end,
        Instant::ZERO,
        Transfer::Request(read(10, ALL, 0, 600)),
    );
    assert!(end.poll(Instant::ZERO, 1).is_some());
    end.host.revoke(0);
    let rest = responses(&mut end);
    let refusal = Response {
        msn: psn(1),
        ..nak(11, NakCode::REMOTE_ACCESS_ERROR)
    };
    assert_eq!(rest, [refusal]);
    assert_eq!(end.host.events, [Event::AccessError]);
}

#[test]
fn t004_packets_of_wrong_sizes_are_invalid() {
    for len in [0, 255, 257] {
        assert_invalid(
            end(0),
            Run {
                len,
                ..first(write(10, ALL, 0, 600))
            },
        );
    }
    let mut end = end(0);
    serve(&mut end, first(write(10, ALL, 0, 256)));
    assert!(
        end.rc.is_failed(),
        "a first packet that leaves nothing for the last"
    );
}

#[test]
fn t008_the_length_of_a_send_is_known_with_its_last_packet() {
    let mut end = end(1);
    for run in [first(send(10, 0)), middle(send(11, 0)), last(send(12, 7))] {
        assert_eq!(end.host.received, []);
        serve(&mut end, run);
    }
    assert_eq!(end.host.received[0].len, 519);
}

#[test]
fn t009_requests_of_no_bytes_check_no_key() {
    let mut end = end(3);
    let nowhere = u64::MAX - 3;
    assert_eq!(answers(&mut end, write(10, UNKNOWN, nowhere, 0)), [ack(10)]);
    let empty = [data(11, true, true, 0)];
    assert_eq!(answers(&mut end, read(11, UNKNOWN, nowhere, 0)), empty);
    let range = RemoteRange {
        addr: nowhere,
        rkey: UNKNOWN,
        len: 0,
    };
    let immediate = RunOperation::Write(Some(range), Ending::Immediate([1; 4]));
    assert_eq!(answers(&mut end, only(12, immediate, 0)), [ack(12)]);
    assert_eq!(answers(&mut end, send(13, 0)), [ack(13)]);
    assert_eq!(end.host.received.len(), 2);
    // The rights of the queue pair hold for them, too.
    let closed = end_with(0, |config| config.rights.write = false);
    assert_invalid(closed, write(10, ALL, 0, 0));
}

#[test]
fn t026_one_nak_leaves_for_packets_that_are_ahead() {
    let mut end = end(9);
    let sequence = nak(10, NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(answers(&mut end, send(12, 5)), [sequence]);
    assert_eq!(answers(&mut end, send(13, 5)), []);
    assert_eq!(answers(&mut end, send(10, 5)), [ack(10)]);
    let again = nak(11, NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(answers(&mut end, send(13, 5)), [again]);
    // A duplicate shows that the requester went back: the NAK may have been lost.
    assert_eq!(answers(&mut end, send(13, 5)), []);
    assert_eq!(answers(&mut end, send(10, 5)), [ack(10)]);
    assert_eq!(answers(&mut end, send(13, 5)), [again]);
}

#[test]
fn t026_no_sequence_nak_leaves_after_an_rnr_nak() {
    let mut end = end(0);
    assert_eq!(answers(&mut end, send(10, 5)), [rnr(10, 12)]);
    assert_eq!(answers(&mut end, send(11, 5)), []);
    assert_eq!(answers(&mut end, send(10, 5)), [rnr(10, 12)]);
}

#[test]
fn t031_opcodes_out_of_sequence_are_invalid() {
    assert_invalid(end(1), middle(send(10, 0)));
    assert_invalid(end(1), last(send(10, 3)));
    assert_invalid(end(1), last(write(10, ALL, 0, 3)));
    let within = [
        send(11, 5),
        first(send(11, 0)),
        last(write(11, ALL, 0, 3)),
        read(11, ALL, 0, 1),
        add(11, ALL, 0, 1),
        only(11, RunOperation::Reserved, 0),
    ];
    for run in within {
        let mut end = end(2);
        serve(&mut end, first(send(10, 0)));
        assert_eq!(answers(&mut end, run), [nak(11, NakCode::INVALID_REQUEST)]);
        assert_eq!(end.host.received[0].status, Status::RemoteInvalidRequest);
        assert_eq!(end.host.events, [], "the receive says it");
    }
}

#[test]
fn t032_requests_without_the_right_of_the_queue_pair_are_invalid() {
    let closed = || end_with(1, |config| config.rights = Default::default());
    assert_invalid(closed(), write(10, ALL, 0, 3));
    assert_invalid(closed(), read(10, ALL, 0, 3));
    assert_invalid(closed(), add(10, ALL, 0, 3));
    assert_invalid(end(1), only(10, RunOperation::Reserved, 0));
}

#[test]
fn t032_rights_and_timer_change_while_requests_are_served() {
    let mut end = end_with(0, |config| config.rights = Default::default());
    let rights = RemoteRights {
        write: true,
        ..RemoteRights::default()
    };
    let timer = RnrTimer::from_low_bits(3);
    end.rc.responder_mut().modify(rights, 4, timer);
    assert_eq!(answers(&mut end, write(10, ALL, 0, 5)), [ack(10)]);
    assert_eq!(answers(&mut end, send(11, 5)), [rnr(11, 3)]);
    assert_eq!(answers(&mut end, read(11, ALL, 0, 5))[0].psn, psn(11));
    assert!(end.rc.is_failed());
}

#[test]
fn t033_a_missing_receive_is_asked_for_again_and_the_psn_stays() {
    let mut end = end(0);
    assert_eq!(answers(&mut end, send(10, 5)), [rnr(10, 12)]);
    assert_eq!(end.rc.responder().expected_psn(), psn(10));
    end.host.receives.push_back(Receive {
        id: 0,
        at: 8192,
        len: 9,
    });
    assert_eq!(answers(&mut end, send(10, 5)), [ack(10)]);
}

#[test]
fn t033_a_write_with_immediate_takes_its_receive_with_the_last_packet_and_after_the_key() {
    let mut end = end(0);
    let range = RemoteRange {
        addr: 0,
        rkey: ALL,
        len: 300,
    };
    let immediate = RunOperation::Write(Some(range), Ending::Immediate([1; 4]));
    let whole = Run {
        packets: 2,
        ..only(10, immediate, 300)
    };
    assert_eq!(answers(&mut end, whole), [rnr(11, 12)]);
    assert_eq!(end.rc.responder().expected_psn(), psn(11));
    assert_eq!(end.host.memory[255], 255, "the first packet is placed");
    let range = RemoteRange {
        rkey: READ_ONLY,
        ..range
    };
    let wrong = RunOperation::Write(Some(range), Ending::Immediate([1; 4]));
    assert_access(
        end_with(0, |_| ()),
        Run {
            packets: 2,
            ..only(10, wrong, 300)
        },
    );
}

#[test]
fn t034_payloads_other_than_announced_are_invalid() {
    let range = RemoteRange {
        addr: 0,
        rkey: ALL,
        len: 9,
    };
    let operation = RunOperation::Write(Some(range), Ending::Plain);
    for len in [0, 8, 10] {
        assert_invalid(end(0), only(10, operation, len));
    }
    let long = RemoteRange {
        len: (1 << 31) + 1,
        ..range
    };
    let operation = RunOperation::Write(Some(long), Ending::Plain);
    assert_invalid(end(0), first(only(10, operation, 0)));
    assert_invalid(end(0), only(10, RunOperation::Read(long), 0));
    for run in [read(10, ALL, 0, 4), add(10, ALL, 0, 4)] {
        assert_invalid(end(0), Run { len: 4, ..run });
    }
}

#[test]
fn t034_a_send_longer_than_its_receive_is_invalid_and_completes_it() {
    let mut end = end(1);
    let whole = Run {
        packets: 5,
        ..send(10, 1100)
    };
    assert_eq!(
        answers(&mut end, whole),
        [nak(13, NakCode::INVALID_REQUEST)]
    );
    assert_eq!(end.host.received[0].status, Status::LocalLength);
    assert_eq!(end.host.events, []);
}

#[test]
fn t035_an_unaligned_atomic_is_invalid() {
    assert_invalid(end(0), add(10, ALL, 4, 1));
    assert_invalid(end(0), add(10, UNKNOWN, 1, 1));
    assert_invalid(end(0), atomic_write(10, ALL, 4, 8));
}

#[test]
fn a_flush_is_to_a_placement_that_queue_pair_and_region_allow() {
    let range = |rkey, addr, len| RemoteRange { addr, rkey, len };
    let all = |len| range(ALL, 8, len);
    let mut served = end(0);
    for (at, run) in [
        flush(10, 1, all(4088)),
        flush(11, 1, all(0)),
        of_region(flush(12, 1, range(ALL, u64::MAX, u32::MAX))),
    ]
    .into_iter()
    .enumerate()
    {
        let at = 10 + u32::try_from(at).expect("small");
        assert_eq!(answers(&mut served, run), [data(at, true, true, 0)]);
    }
    assert_eq!(
        (served.host.flushes, served.rc.responder().msn()),
        (3, psn(3))
    );
    // No placement, one without the right, one right of two, and reserved ones.
    for placement in [0, 2, 3, 4, 5, 15] {
        assert_invalid(end(0), flush(10, placement, all(8)));
        assert_invalid(end(0), of_region(flush(10, placement, all(8))));
    }
    let closed = || end_with(0, |config| config.rights.flush = FlushPlacement::NONE);
    assert_invalid(closed(), flush(10, 1, all(8)));
    assert_invalid(
        end_with(0, |config| config.max_reads = 0),
        flush(10, 1, all(8)),
    );
    assert_invalid(end(0), flush(10, 1, all((1 << 31) + 1)));
    assert_invalid(
        end(0),
        Run {
            len: 4,
            ..flush(10, 1, all(8))
        },
    );
    for wrong in [
        range(WRITE_ONLY, 8, 8),
        range(UNKNOWN, 8, 0),
        range(ALL, 8, 4089),
        range(ALL, u64::MAX, 8),
    ] {
        assert_access(end(0), flush(10, 1, wrong));
    }
    for rkey in [WRITE_ONLY, UNKNOWN] {
        assert_access(end(0), of_region(flush(10, 1, range(rkey, 8, 8))));
    }
    // A queue pair may allow what no region does.
    let open = || {
        end_with(0, |config| {
            config.rights.flush = FlushPlacement::from_low_bits(3)
        })
    };
    for placement in [2, 3] {
        assert_access(open(), flush(10, placement, all(8)));
    }
}

#[test]
fn a_flush_of_a_reserved_selectivity_is_invalid() {
    for selectivity in [2, 3] {
        let run = flush(
            10,
            1,
            RemoteRange {
                addr: 8,
                rkey: ALL,
                len: 8,
            },
        );
        let RunOperation::Flush(range, kind) = run.operation else {
            panic!("{run:?}");
        };
        let kind = Flush {
            selectivity: FlushSelectivity::from_low_bits(selectivity),
            ..kind
        };
        let operation = RunOperation::Flush(range, kind);
        assert_invalid(end(0), Run { operation, ..run });
    }
}

#[test]
fn an_atomic_write_is_of_8_bytes_and_a_write_by_its_rights() {
    let mut served = end(0);
    assert_eq!(
        answers(&mut served, atomic_write(10, WRITE_ONLY, 8, 8)),
        [data(10, true, true, 0)]
    );
    assert_eq!(
        (served.host.atomics, served.rc.responder().msn()),
        (1, psn(1))
    );
    for len in [0, 4, 7, 9, 16] {
        assert_invalid(end(0), atomic_write(10, ALL, 8, len));
    }
    let short = Run {
        len: 4,
        ..atomic_write(10, ALL, 8, 8)
    };
    assert_invalid(end(0), short);
    assert_access(end(0), atomic_write(10, READ_ONLY, 8, 8));
    assert_access(end(0), atomic_write(10, ALL, 4096, 8));
}

#[test]
fn t036_a_key_that_does_not_allow_the_whole_message_refuses_its_first_packet() {
    assert_access(end(0), write(10, READ_ONLY, 0, 5));
    assert_access(end(0), write(10, UNKNOWN, 0, 5));
    assert_access(end(0), write(10, ALL, u64::MAX, 5));
    assert_access(end(0), first(write(10, ALL, 4096 - 300, 301)));
    assert_access(end(0), read(10, WRITE_ONLY, 0, 5));
    assert_access(end(0), add(10, READ_ONLY, 0, 5));
}

#[test]
fn t036_a_region_that_goes_during_a_write_refuses_the_next_packet() {
    let mut end = end(0);
    assert_eq!(answers(&mut end, first(write(10, ALL, 0, 300))), []);
    end.host.revoke(0);
    let refusal = nak(11, NakCode::REMOTE_ACCESS_ERROR);
    assert_eq!(answers(&mut end, last(write(11, ALL, 0, 44))), [refusal]);
    assert_eq!(end.host.events, [Event::AccessError]);
}

#[test]
fn t037_a_receive_without_memory_is_an_operational_error() {
    let mut end = end(1);
    end.host.bad_receives.insert(0);
    let refusal = nak(10, NakCode::REMOTE_OPERATIONAL_ERROR);
    assert_eq!(answers(&mut end, send(10, 5)), [refusal]);
    assert_eq!(end.host.received[0].status, Status::LocalProtection);
    assert_eq!(end.host.events, []);
}

#[test]
fn t037_a_malformed_receive_is_an_operational_error() {
    let mut end = end(2);
    end.host.queue_fault = QueueFault::Malformed;
    let refusal = nak(10, NakCode::REMOTE_OPERATIONAL_ERROR);
    assert_eq!(answers(&mut end, send(10, 5)), [refusal]);
    assert_eq!(end.host.received[0].status, Status::LocalQpOperation);
    assert_eq!(end.host.events, []);
    assert!(end.rc.is_failed());
}

#[test]
fn t038_a_send_invalidates_its_key_before_the_receive_completes() {
    let invalidate = |rkey| RunOperation::Send(Ending::Invalidate(rkey));
    let mut good = end(1);
    assert_eq!(answers(&mut good, only(10, invalidate(ALL), 5)), [ack(10)]);
    assert_eq!(good.host.received[0].invalidated, Some(ALL));
    assert_eq!(good.host.keys[0].generation, 1);
    let mut bad = end(1);
    let refusal = nak(10, NakCode::REMOTE_ACCESS_ERROR);
    assert_eq!(
        answers(&mut bad, only(10, invalidate(UNKNOWN), 5)),
        [refusal]
    );
    assert_eq!(bad.host.received[0].status, Status::LocalAccess);
    assert_eq!(bad.host.events, []);
}

#[test]
fn t039_a_receive_queue_out_of_reach_is_fatal_and_answered_by_nothing() {
    let mut end = end(2);
    end.host.queue_fault = QueueFault::Unreachable;
    assert_eq!(serve(&mut end, send(10, 5)), []);
    assert_eq!(end.host.received, []);
    assert_eq!(end.host.events, [Event::Fatal]);
    assert!(end.rc.is_failed());
}

#[test]
fn t040_no_acknowledgement_passes_an_unsent_read_response() {
    let mut end = end(3);
    for run in [
        send(10, 5),
        read(11, ALL, 0, 600),
        send(14, 5),
        add(15, ALL, 0, 1),
        send(16, 5),
        send(17, 5),
    ] {
        give(&mut end, Instant::ZERO, Transfer::Request(run));
    }
    let psns: Vec<_> = responses(&mut end).iter().map(|r| r.psn.get()).collect();
    assert_eq!(
        psns,
        [11, 12, 13, 15, 16, 17],
        "the fourth send has no receive"
    );
}

#[test]
fn t041_the_msn_counts_completed_requests() {
    let mut end = end(3);
    let mut msn = |run| serve(&mut end, run).last().map(|r| r.msn.get());
    assert_eq!(msn(send(10, 5)), Some(1));
    assert_eq!(msn(first(write(11, ALL, 0, 300))), None);
    assert_eq!(msn(last(write(12, ALL, 0, 44))), Some(2));
    assert_eq!(msn(read(13, ALL, 0, 5)), Some(3));
    assert_eq!(msn(add(14, ALL, 0, 5)), Some(4));
    assert_eq!(msn(send(10, 5)), Some(4), "a duplicate counts for nothing");
}

#[test]
fn t043_the_first_request_in_rtr_is_announced_once_and_before_it_is_served() {
    let mut end = end(0);
    end.rc = crate::network::Connection::new(requester(0), responder(10));
    serve(&mut end, send(12, 5));
    serve(&mut end, last(send(10, 5)));
    assert_eq!(
        end.host.events,
        [Event::RequestError],
        "neither passed the checks"
    );
    end.rc = crate::network::Connection::new(requester(0), responder(10));
    end.host.events.clear();
    assert_eq!(answers(&mut end, send(10, 5)), [rnr(10, 12)]);
    assert_eq!(end.host.events, [Event::CommunicationEstablished]);
    serve(&mut end, send(10, 5));
    assert_eq!(end.host.events.len(), 1);
    end.rc = crate::network::Connection::new(requester(0), responder(10));
    end.rc.start();
    serve(&mut end, write(10, ALL, 0, 5));
    assert_eq!(end.host.events.len(), 1, "in RTS nothing is announced");
}

#[test]
fn t053_answers_owed_before_a_refused_request_leave_and_then_the_refusal() {
    let mut end = end(0);
    give(
        &mut end,
        Instant::ZERO,
        Transfer::Request(read(10, ALL, 0, 300)),
    );
    give(
        &mut end,
        Instant::ZERO,
        Transfer::Request(write(12, UNKNOWN, 0, 3)),
    );
    assert!(end.rc.is_failed());
    let psns: Vec<_> = responses(&mut end).iter().map(|r| r.psn.get()).collect();
    assert_eq!(psns, [10, 11, 12]);
}

#[test]
fn t053_an_abort_drops_the_answers_and_flushes_the_receive_in_use() {
    let mut end = end(1);
    give(
        &mut end,
        Instant::ZERO,
        Transfer::Request(read(10, ALL, 0, 300)),
    );
    give(
        &mut end,
        Instant::ZERO,
        Transfer::Request(first(send(12, 3))),
    );
    end.rc.abort(&mut end.host);
    assert_eq!(responses(&mut end), []);
    assert_eq!(end.host.received[0].status, Status::Flushed);
    assert_eq!(end.host.events, []);
}

#[test]
fn t055_the_last_receive_of_a_shared_queue_is_announced_once_behind_its_completion() {
    let mut end = end_with(1, |config| config.shared_receives = true);
    serve(&mut end, first(send(10, 3)));
    end.rc.abort(&mut end.host);
    end.rc.abort(&mut end.host);
    assert_eq!(end.host.received.len(), 1);
    assert_eq!(end.host.events, [Event::LastReceiveReached]);
}
