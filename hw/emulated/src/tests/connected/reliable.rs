//! Delivery by reliable connections.

use super::*;

const OK: CompletionStatus = CompletionStatus::Success;

#[test]
fn messages_go_back_and_forth_in_order() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    for round in 0..100 {
        for (from, to) in [(&a, &b), (&b, &a)] {
            let message = pattern(3000, u8::try_from(round).unwrap());
            rig.write(from, 0, &message);
            rig.receive(to, round, to.sge(8192, 4096));
            let op = SendOp::SendImmediate(0x0102_0304);
            rig.post(from, 1000 + round, op, from.sge(0, 3000)).unwrap();
            rig.run(1);
            let sent = rig.done(from);
            let [sent] = sent[..] else { panic!("{sent:?}") };
            assert_eq!((sent.wr_id, sent.status), (1000 + round, OK));
            assert_eq!((sent.op, sent.qpn), (CompletionOp::Send, from.qpn));
            let received = rig.done(to);
            let [received] = received[..] else {
                panic!("{received:?}")
            };
            assert_eq!((received.wr_id, received.status), (round, OK));
            assert_eq!((received.op, received.byte_len), (CompletionOp::Recv, 3000));
            assert_eq!(received.immediate, 0x0102_0304);
            assert_eq!(received.flags, CompletionFlags::IMMEDIATE);
            assert_eq!(rig.read(to, 8192, 3000), message);
        }
    }
    assert_eq!(rig.events(&a), []);
}

#[test]
fn a_write_lands_where_it_was_addressed_and_only_one_with_immediate_data_takes_a_receive() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let message = pattern(100_000, 1);
    rig.write(&a, 0, &message);
    rig.receive(&b, 9, b.sge(0, 0));
    let to = b.remote(70_000);
    rig.post(&a, 1, SendOp::RdmaWrite(to), a.sge(0, 100_000))
        .unwrap();
    rig.run(1);
    assert_eq!(rig.outcomes(&a), [(1, OK)]);
    assert_eq!(rig.outcomes(&b), []);
    assert_eq!(rig.read(&b, 70_000, 100_000), message);
    assert_eq!(rig.read(&b, 0, 70_000), vec![0; 70_000]);
    let op = SendOp::RdmaWriteImmediate(b.remote(5), 7);
    rig.post(&a, 2, op, a.sge(3, 1)).unwrap();
    rig.run(1);
    assert_eq!(rig.outcomes(&a), [(2, OK)]);
    let received = rig.done(&b)[0];
    assert_eq!(received.op, CompletionOp::RecvRdmaImm);
    assert_eq!((received.byte_len, received.immediate), (1, 7));
    assert_eq!(rig.read(&b, 4, 3), [0, message[3], 0]);
}

#[test]
fn a_write_is_counted_by_the_ports_that_it_passes() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 10_240))
        .unwrap();
    rig.run(1);
    let port = |host: NodeId| &rig.fabric.node(host).unwrap().port(PORT).unwrap().counters;
    assert_eq!(port(rig.hosts[0]).xmit_packets, 10);
    assert_eq!(port(rig.hosts[1]).rcv_packets, 10);
    assert_eq!(rig.fabric.node(rig.hosts[1]).unwrap().drops().total(), 0);
}

#[test]
fn reads_and_writes_survive_a_link_that_loses_doubles_and_damages_packets() {
    for (seed, fault) in [
        Fault::Drop,
        Fault::Duplicate,
        Fault::CorruptOnWire { bits: 3 },
        Fault::CorruptInside { bits: 3 },
        Fault::Reorder {
            behind: 3,
            at_latest: Duration::from_micros(50),
        },
    ]
    .into_iter()
    .enumerate()
    {
        let mut rig = Rig::new();
        let [a, b] = rig.pair(QpKind::Rc);
        rig.faults(When::PerMillion(50_000), fault);
        let message = pattern(60_000, u8::try_from(seed).unwrap());
        rig.write(&a, 0, &message);
        for part in 0..6_u32 {
            let at = part as usize * 10_000;
            let op = SendOp::RdmaWrite(b.remote(at));
            rig.post(&a, u64::from(part), op, a.sge(at, 10_000))
                .unwrap();
        }
        let op = SendOp::RdmaRead(b.remote(0));
        rig.post(&a, 6, op, a.sge(100_000, 60_000)).unwrap();
        rig.run(2000);
        let all: Vec<_> = (0..7).map(|wr_id| (wr_id, OK)).collect();
        assert_eq!(rig.outcomes(&a), all, "{fault:?}");
        assert_eq!(rig.read(&b, 0, 60_000), message, "{fault:?}");
        assert_eq!(rig.read(&a, 100_000, 60_000), message, "{fault:?}");
        assert_eq!(rig.state(&a), QpState::ReadyToSend);
    }
}

#[test]
fn what_a_connection_carried_is_counted_by_queue_pair_and_by_function() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let rows = |rig: &Rig, host: usize| -> Vec<_> {
        let device = rig.fabric.device(rig.hosts[host]).unwrap();
        device.queue_pairs().collect()
    };
    rig.post(&a, 1, SendOp::Send, a.sge(0, 10_000)).unwrap();
    assert_eq!(rows(&rig, 0)[0].outstanding, 1);
    // The peer is not ready, and then it is.
    rig.run(1);
    rig.receive(&b, 2, b.sge(0, 10_000));
    rig.run(1000);
    assert_eq!(rig.outcomes(&a), [(1, OK)]);
    let [sender] = rows(&rig, 0)[..] else {
        panic!()
    };
    let [receiver] = rows(&rig, 1)[..] else {
        panic!()
    };
    let [sent, received] = [sender, receiver].map(|row| row.counters.unwrap());
    assert!(sent.rnr_naks > 0 && sent.sent_bytes > 10_000, "{sent:?}");
    assert!(sent.retransmissions >= sent.rnr_naks, "{sent:?}");
    assert_eq!((sent.received_bytes, received.sent_bytes), (0, 0));
    assert_eq!((sender.outstanding, sender.attributes.dest_qpn), (0, b.qpn));
    // The sums outlive the queue pair.
    rig.hca(0).destroy_qp(a.qp).unwrap();
    assert!(rows(&rig, 0).is_empty());
    let device = rig.fabric.device(rig.hosts[0]).unwrap();
    assert!(device.connection_counters().eq([(PF, sent)]));
}

#[test]
fn atomic_operations_return_what_was_there_and_add_up() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.faults(When::PerMillion(20_000), Fault::Drop);
    rig.write(&b, 64, &100_u64.to_ne_bytes());
    for wr_id in 0..200_usize {
        let op = SendOp::FetchAdd {
            remote: b.remote(64),
            add: 3,
        };
        rig.post(&a, wr_id as u64, op, a.sge(wr_id * 8, 8)).unwrap();
    }
    rig.run(2000);
    let done = rig.done(&a);
    assert_eq!(done.len(), 200);
    for (at, done) in done.iter().enumerate() {
        assert_eq!((done.status, done.op), (OK, CompletionOp::FetchAdd));
        let original = u64::from_ne_bytes(rig.read(&a, at * 8, 8).try_into().unwrap());
        assert_eq!(original, 100 + 3 * at as u64);
    }
    for (compare, swap, then) in [(1, 2, 700), (700, 9, 9)] {
        let op = SendOp::CompareSwap {
            remote: b.remote(64),
            compare,
            swap,
        };
        rig.post(&a, 1, op, a.sge(0, 8)).unwrap();
        rig.run(500);
        assert_eq!(rig.outcomes(&a), [(1, OK)]);
        assert_eq!(rig.read(&a, 0, 8), 700_u64.to_ne_bytes());
        assert_eq!(rig.read(&b, 64, 8), u64::to_ne_bytes(then));
    }
}

/// Over links that lose packets.
#[test]
fn atomic_writes_are_stored_in_order_and_once() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.faults(When::PerMillion(20_000), Fault::Drop);
    for at in 0..200_usize {
        rig.write(&a, at * 8, &at.to_ne_bytes());
        let op = SendOp::AtomicWrite(b.remote(64));
        rig.post(&a, at as u64, op, a.sge(at * 8, 8)).unwrap();
    }
    rig.run(2000);
    let done = rig.done(&a);
    let expected = (OK, CompletionOp::AtomicWrite);
    assert!(done.iter().all(|done| (done.status, done.op) == expected));
    assert_eq!(done.len(), 200);
    assert_eq!(rig.read(&b, 64, 8), 199_usize.to_ne_bytes());
}

/// Over links that lose packets, and within an adapter.
#[test]
fn flushes_complete_when_the_writes_before_them_are_in_memory() {
    let mut rig = Rig::new();
    let ends = rig.pair(QpKind::Rc);
    let near = [rig.end(0, QpKind::Rc), rig.end(0, QpKind::Rc)];
    rig.join(&near, QpKind::Rc);
    rig.faults(When::PerMillion(20_000), Fault::Drop);
    for [a, b] in [ends, near] {
        for round in 0..20 {
            let message = pattern(5000, u8::try_from(round).unwrap());
            rig.write(&a, 0, &message);
            rig.post(&a, 0, SendOp::RdmaWrite(b.remote(64)), a.sge(0, 5000))
                .unwrap();
            let flush = SendOp::Flush {
                remote: b.remote(64),
                len: (round % 2 == 0).then_some(5000),
                placement: FlushPlacement::GLOBAL,
            };
            // Its list says nothing.
            rig.post(&a, 1, flush, a.sge(REGION, 8)).unwrap();
            while !rig
                .done(&a)
                .iter()
                .any(|done| (done.wr_id, done.status, done.op) == (1, OK, CompletionOp::Flush))
            {
                rig.run(1);
            }
            assert_eq!(rig.read(&b, 64, 5000), message);
        }
    }
}

/// Over links and within an adapter.
#[test]
fn masked_atomic_operations_leave_the_other_bits_and_are_repeated_like_others() {
    let mut rig = Rig::new();
    let ends = rig.pair(QpKind::Rc);
    let near = [rig.end(0, QpKind::Rc), rig.end(0, QpKind::Rc)];
    rig.join(&near, QpKind::Rc);
    rig.faults(When::PerMillion(100_000), Fault::Drop);
    for [a, b] in [ends, near] {
        rig.write(&b, 64, &0xff00_u64.to_ne_bytes());
        let remote = b.remote(64);
        for wr_id in 0..50 {
            let op = SendOp::MaskedFetchAdd {
                remote,
                add: 0x0103,
                boundary: 0x8080,
            };
            rig.post(&a, wr_id, op, a.sge(0, 8)).unwrap();
        }
        let op = SendOp::MaskedCompareSwap {
            remote,
            compare: 0x3100,
            compare_mask: 0xff00,
            swap: u64::MAX,
            swap_mask: 0xf0_0000,
        };
        rig.post(&a, 50, op, a.sge(8, 8)).unwrap();
        rig.run(5000);
        assert!(rig.done(&a).iter().all(|done| done.status == OK));
        assert_eq!(rig.read(&a, 8, 8), 0x3196_u64.to_ne_bytes());
        assert_eq!(rig.read(&b, 64, 8), 0xf0_3196_u64.to_ne_bytes());
    }
}

#[test]
fn two_queue_pairs_of_one_adapter_reach_each_other_and_others_have_their_turn() {
    let mut rig = Rig::new();
    let ends = [rig.end(0, QpKind::Rc), rig.end(0, QpKind::Rc)];
    let [a, b] = ends;
    rig.open(&a, &b, true);
    rig.open(&b, &a, true);
    let message = pattern(REGION, 5);
    rig.write(&a, 0, &message);
    let len = u32::try_from(REGION).unwrap();
    rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, len))
        .unwrap();
    let mut polls = 0;
    while rig.fabric.poll(rig.now) {
        polls += 1;
        assert!(polls < 1000);
    }
    while rig.fabric.poll_timeout() == Some(rig.now) {
        rig.fabric.poll(rig.now);
        polls += 1;
        assert!(polls < 1000);
    }
    assert_eq!(rig.outcomes(&a), [(1, OK)]);
    assert_eq!(rig.read(&b, 0, REGION), message);
    let port = rig.fabric.node(rig.hosts[0]).unwrap().port(PORT).unwrap();
    assert_eq!(port.counters.xmit_packets, 0);
}

#[test]
fn a_long_write_leaves_other_queue_pairs_their_turns() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let [c, d] = rig.pair(QpKind::Rc);
    let len = u32::try_from(REGION).unwrap();
    rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, len))
        .unwrap();
    rig.post(&c, 2, SendOp::RdmaWrite(d.remote(0)), c.sge(0, 8))
        .unwrap();
    let mut polls = 0;
    while rig.outcomes(&c).is_empty() {
        rig.fabric.poll(rig.now);
        polls += 1;
        assert!(polls < 20, "the short write waits for the long one");
    }
    assert_eq!(rig.outcomes(&a), []);
    rig.run(1);
    assert_eq!(rig.outcomes(&a), [(1, OK)]);
}

#[test]
fn inline_bytes_and_lists_of_several_entries_are_one_message() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.write(&a, 0, b"abcdefgh");
    let list = [a.sge(0, 3), a.sge(6, 2)];
    for (wr_id, payload, expect) in [
        (1, Payload::Inline(b"inline"), &b"inline"[..]),
        (2, Payload::Gather(&list), b"abcgh"),
        (3, Payload::Headed(b"head", &list), b"headabcgh"),
    ] {
        let receive = RecvRequest {
            wr_id,
            scatter: &[b.sge(100, 2), b.sge(200, 20)],
        };
        rig.hca(1).post_recv(b.qp, &receive).unwrap();
        let request = SendRequest {
            wr_id,
            op: SendOp::Send,
            payload,
            flags: SendFlags::empty(),
            destination: None,
        };
        rig.hca(0).post_send(a.qp, &request).unwrap();
        rig.run(1);
        assert_eq!(rig.outcomes(&a), [], "it was not to be signalled");
        let received = rig.done(&b)[0];
        assert_eq!(received.byte_len as usize, expect.len());
        let mut bytes = rig.read(&b, 100, 2);
        bytes.extend(rig.read(&b, 200, expect.len() - 2));
        assert_eq!(bytes, expect);
    }
}

/// The peer's software does something at a time at which packets from long before are still on their way: these are
/// answered at their own time, and no timer runs out in between.
#[test]
fn a_fabric_that_lags_behind_the_clock_answers_in_its_own_time() {
    let mut rig = Rig::new();
    let [left, right] = rig.pair(QpKind::Rc);
    rig.faults(When::Always, Fault::Delay(Duration::from_millis(1)));
    rig.run(1);
    let start = rig.now;
    rig.post(
        &left,
        1,
        SendOp::RdmaWrite(right.remote(0)),
        left.sge(0, 4096),
    )
    .unwrap();
    while rig.fabric.poll(start) {}
    let _ = rig.state(&right);
    let late = start + Duration::from_secs(20);
    while rig.fabric.poll(late) {}
    assert_eq!(rig.outcomes(&left), [(1, CompletionStatus::Success)]);
}
