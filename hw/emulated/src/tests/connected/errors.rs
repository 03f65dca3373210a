//! How connections fail.

use hca_api::AsyncEvent;

use super::*;

/// Runs a request that the peer refuses.
fn refused(
    prepare: impl FnOnce(&mut Rig, &End, &End) -> (SendOp<'static>, u32),
) -> CompletionStatus {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let (op, len) = prepare(&mut rig, &a, &b);
    rig.post(&a, 1, op, a.sge(0, len)).unwrap();
    rig.post(&a, 2, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8))
        .unwrap();
    rig.run(100);
    let done = rig.outcomes(&a);
    assert_eq!(done[1..], [(2, CompletionStatus::Flushed)]);
    assert_eq!(rig.state(&a), QpState::Error);
    assert_eq!(rig.state(&b), QpState::Error);
    assert_eq!(rig.read(&b, 0, 64), [0; 64], "nothing was placed");
    done[0].1
}

#[test]
fn a_key_that_is_wrong_stale_or_of_another_domain_is_refused() {
    const ACCESS: CompletionStatus = CompletionStatus::RemoteAccess;

    let wrong = |_: &mut Rig, _: &End, b: &End| {
        let RKey(key) = b.keys.rkey;
        let rkey = RKey(key ^ 1);
        let remote = RemoteAddress {
            rkey,
            ..b.remote(0)
        };
        (SendOp::RdmaWrite(remote), 8)
    };
    assert_eq!(refused(wrong), ACCESS);
    let beyond = |_: &mut Rig, _: &End, b: &End| (SendOp::RdmaRead(b.remote(REGION - 4)), 8);
    assert_eq!(refused(beyond), ACCESS);
    let wraps = |_: &mut Rig, _: &End, b: &End| {
        let remote = RemoteAddress {
            addr: u64::MAX - 3,
            ..b.remote(0)
        };
        (SendOp::RdmaWrite(remote), 8)
    };
    assert_eq!(refused(wraps), ACCESS);
    let stale = |rig: &mut Rig, _: &End, b: &End| {
        rig.hca(1).deregister_mr(b.keys.handle).unwrap();
        (SendOp::RdmaWrite(b.remote(0)), 8)
    };
    assert_eq!(refused(stale), ACCESS);
    let foreign = |rig: &mut Rig, _: &End, _: &End| {
        let other = rig.end(1, QpKind::Rc);
        (SendOp::RdmaWrite(other.remote(0)), 8)
    };
    assert_eq!(refused(foreign), ACCESS);
}

#[test]
fn an_access_that_region_or_queue_pair_does_not_allow_is_refused() {
    let region = |rig: &mut Rig, _: &End, b: &End| {
        let keys = rig.hca(1).register_mr(&MrSpec {
            pd: b.pd,
            kind: MrKind::Virtual {
                addr: b.memory.addr,
                len: 64,
            },
            access: AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ,
            key: None,
        });
        let remote = RemoteAddress {
            rkey: keys.unwrap().rkey,
            ..b.remote(0)
        };
        (SendOp::RdmaWrite(remote), 8)
    };
    assert_eq!(refused(region), CompletionStatus::RemoteAccess);
    let queue_pair = |rig: &mut Rig, _: &End, b: &End| {
        let change = QpModify {
            access: Some(AccessFlags::REMOTE_READ),
            ..to_state(QpState::ReadyToSend)
        };
        rig.modify(b, &change).unwrap();
        (SendOp::RdmaWrite(b.remote(0)), 8)
    };
    assert_eq!(refused(queue_pair), CompletionStatus::RemoteInvalidRequest);
    let unaligned = |_: &mut Rig, _: &End, b: &End| {
        let remote = b.remote(4);
        (SendOp::FetchAdd { remote, add: 1 }, 8)
    };
    assert_eq!(refused(unaligned), CompletionStatus::RemoteInvalidRequest);
}

#[test]
fn a_flush_to_a_placement_that_region_or_queue_pair_does_not_allow_is_refused() {
    const INVALID: CompletionStatus = CompletionStatus::RemoteInvalidRequest;
    const ACCESS: CompletionStatus = CompletionStatus::RemoteAccess;

    let (none, global) = (FlushPlacement::NONE, FlushPlacement::GLOBAL);
    let persistent = FlushPlacement::PERSISTENT;
    let reserved = FlushPlacement::from_low_bits(4);
    let both = AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT;
    let no_right = AccessFlags::empty();
    let region = everything() - AccessFlags::FLUSH_GLOBAL;
    for (rights, of_region, placement, len, status) in [
        (everything(), everything(), none, Some(8), INVALID),
        (everything(), everything(), persistent, Some(8), INVALID),
        (everything(), everything(), reserved, None, INVALID),
        (no_right, everything(), global, Some(8), INVALID),
        (both, everything(), persistent, Some(8), ACCESS),
        (both, everything(), global.union(persistent), None, ACCESS),
        (both, region, global, Some(0), ACCESS),
        (both, region, global, None, ACCESS),
        (both, everything(), global, Some(65), ACCESS),
    ] {
        let flush = |rig: &mut Rig, _: &End, b: &End| {
            let change = QpModify {
                access: Some(rights),
                ..to_state(QpState::ReadyToSend)
            };
            rig.modify(b, &change).unwrap();
            let keys = rig.hca(1).register_mr(&MrSpec {
                pd: b.pd,
                kind: MrKind::Virtual {
                    addr: b.memory.addr,
                    len: 64,
                },
                access: of_region,
                key: None,
            });
            let remote = RemoteAddress {
                rkey: keys.unwrap().rkey,
                ..b.remote(0)
            };
            let flush = SendOp::Flush {
                remote,
                len,
                placement,
            };
            (flush, 8)
        };
        assert_eq!(refused(flush), status, "{placement:?} {len:?}");
    }
}

#[test]
fn no_region_can_be_registered_for_flushes_to_persistent_memory() {
    let mut rig = Rig::new();
    let end = rig.end(0, QpKind::Rc);
    for kind in [
        MrKind::Virtual {
            addr: end.memory.addr,
            len: 64,
        },
        MrKind::FastRegister { max_pages: 1 },
    ] {
        let refused = rig.hca(0).register_mr(&MrSpec {
            pd: end.pd,
            kind,
            access: everything() | AccessFlags::FLUSH_PERSISTENT,
            key: None,
        });
        assert_eq!(refused, Err(HcaError::Unsupported));
    }
}

#[test]
fn a_region_that_goes_in_the_middle_of_a_write_is_touched_no_more() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.write(&a, 0, &[7; REGION]);
    let len = u32::try_from(REGION).unwrap();
    rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, len))
        .unwrap();
    while rig.read(&b, 0, 1) != [7] {
        assert!(rig.fabric.poll(rig.now));
    }
    rig.hca(1).deregister_mr(b.keys.handle).unwrap();
    // The next region takes the slot and even the key.
    let keys = rig.hca(1).register_mr(&MrSpec {
        pd: b.pd,
        kind: MrKind::Virtual {
            addr: b.memory.addr,
            len: REGION as u64,
        },
        access: everything(),
        key: Some(b.keys.rkey.0),
    });
    assert_eq!(keys.unwrap().handle, b.keys.handle);
    rig.write(&b, 0, &[0; REGION]);
    rig.run(10);
    assert_eq!(rig.outcomes(&a), [(1, CompletionStatus::RemoteAccess)]);
    assert_eq!(rig.read(&b, 0, REGION), vec![0; REGION]);
}

#[test]
fn a_message_waits_for_a_receive_and_fails_when_none_comes() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.post(&a, 1, SendOp::Send, a.sge(0, 8)).unwrap();
    rig.run(50);
    assert_eq!(rig.outcomes(&a), []);
    rig.receive(&b, 5, b.sge(0, 64));
    rig.run(50);
    assert_eq!(rig.outcomes(&a), [(1, CompletionStatus::Success)]);
    assert_eq!(rig.outcomes(&b), [(5, CompletionStatus::Success)]);
    let [c, d] = [rig.end(0, QpKind::Rc), rig.end(1, QpKind::Rc)];
    rig.open(&d, &c, true);
    rig.modify(&c, &to_rtr(&d, true)).unwrap();
    let few = QpModify {
        rnr_retry: Some(2),
        ..to_rts(&c, true)
    };
    rig.modify(&c, &few).unwrap();
    rig.post(&c, 1, SendOp::Send, c.sge(0, 8)).unwrap();
    rig.run(50);
    assert_eq!(rig.outcomes(&c), [(1, CompletionStatus::RnrRetryExceeded)]);
    assert_eq!(rig.state(&d), QpState::ReadyToSend);
}

#[test]
fn t020_a_message_that_was_refused_a_thousand_times_is_sent_ten_times_a_millisecond_at_most() {
    let mut rig = Rig::new();
    let [a, b] = [rig.end(0, QpKind::Rc), rig.end(1, QpKind::Rc)];
    rig.open(&a, &b, true);
    let eager = QpModify {
        // 10 us.
        min_rnr_timer: Some(1),
        ..to_rtr(&a, true)
    };
    rig.modify(&b, &eager).unwrap();
    rig.modify(&b, &to_rts(&b, true)).unwrap();
    let naks = |rig: &Rig| {
        let rows: Vec<_> = (rig.fabric.device(rig.hosts[0]).unwrap().queue_pairs()).collect();
        rows[0].counters.unwrap().rnr_naks
    };
    rig.post(&a, 1, SendOp::Send, a.sge(0, 8)).unwrap();
    rig.run(9);
    let at_first = naks(&rig);
    assert!((800..=1000).contains(&at_first), "{at_first}");
    rig.run(10);
    let before = naks(&rig);
    rig.run(10);
    let later = naks(&rig) - before;
    assert!((90..=100).contains(&later), "{later}");
    // A request behind the refused one changes nothing; the refused one's completion ends the row.
    rig.post(&a, 2, SendOp::Send, a.sge(0, 8)).unwrap();
    let before = naks(&rig);
    rig.run(10);
    assert!(naks(&rig) - before <= 100);
    rig.receive(&b, 5, b.sge(0, 64));
    rig.run(1);
    assert_eq!(rig.outcomes(&a), [(1, CompletionStatus::Success)]);
    let before = naks(&rig);
    rig.run(8);
    assert!(naks(&rig) - before > 700);
}

#[test]
fn a_message_longer_than_its_receive_fails_both_ends() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.receive(&b, 5, b.sge(0, 64));
    rig.receive(&b, 6, b.sge(0, 64));
    rig.post(&a, 1, SendOp::Send, a.sge(0, 65)).unwrap();
    rig.run(10);
    let invalid = CompletionStatus::RemoteInvalidRequest;
    assert_eq!(rig.outcomes(&a), [(1, invalid)]);
    let expect = [
        (5, CompletionStatus::LocalLength),
        (6, CompletionStatus::Flushed),
    ];
    assert_eq!(rig.outcomes(&b), expect);
}

#[test]
fn a_queue_pair_that_is_destroyed_under_a_write_leaves_its_peer_without_answers() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let len = u32::try_from(REGION).unwrap();
    rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, len))
        .unwrap();
    rig.receive(&a, 2, a.sge(0, 64));
    rig.write(&a, 0, &[7]);
    while rig.read(&b, 0, 1) != [7] {
        assert!(rig.fabric.poll(rig.now));
    }
    rig.hca(1).destroy_qp(b.qp).unwrap();
    rig.run(1000);
    let expect = [
        (1, CompletionStatus::RetryExceeded),
        (2, CompletionStatus::Flushed),
    ];
    assert_eq!(rig.outcomes(&a), expect);
    assert_eq!(rig.state(&a), QpState::Error);
    rig.hca(0).destroy_qp(a.qp).unwrap();
    rig.run(1000);
    assert_eq!(rig.fabric.poll_timeout(), None, "no timer is left");
}

/// IBA 11.6.3.1: work queues that can report nothing do no work.
#[test]
fn an_overrun_takes_all_queue_pairs_of_the_completion_queue_to_the_error_state() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let peer = rig.end(1, QpKind::Rc);
    let receives = rig.hca(0).create_cq(8).unwrap();
    let shares = QpSpec {
        recv_cq: receives,
        ..spec(QpKind::Rc, a.pd, a.cq)
    };
    let (qp, numbers) = rig.hca(0).create_qp(shares).unwrap();
    let idle = End {
        qp,
        qpn: numbers.external,
        ..a
    };
    rig.modify(&idle, &init()).unwrap();
    rig.join(&[idle, peer], QpKind::Rc);
    rig.receive(&idle, 5, idle.sge(0, 8));
    rig.hca(0).resize_cq(a.cq, 1).unwrap();
    for wr_id in [1, 2] {
        let op = SendOp::RdmaWrite(b.remote(0));
        rig.post(&a, wr_id, op, a.sge(0, 8)).unwrap();
    }
    rig.run(1);
    let told = [
        AsyncEvent::CqError(a.cq),
        AsyncEvent::QpFatal(a.qp),
        AsyncEvent::QpFatal(qp),
    ];
    assert_eq!(rig.events(&a), told.map(HcaEvent::Async));
    for end in [&a, &idle] {
        assert_eq!(rig.state(end), QpState::Error);
    }
    assert_eq!(rig.outcomes(&a), [(1, CompletionStatus::Success)]);
    let receives = End {
        cq: receives,
        ..idle
    };
    assert_eq!(rig.outcomes(&receives), [(5, CompletionStatus::Flushed)]);
    rig.post(&peer, 6, SendOp::Send, peer.sge(0, 8)).unwrap();
    rig.run(1000);
    let unanswered = [(6, CompletionStatus::RetryExceeded)];
    assert_eq!(rig.outcomes(&peer), unanswered);
    for end in [&a, &idle] {
        rig.modify(end, &to_state(QpState::Reset)).unwrap();
        rig.hca(0).destroy_qp(end.qp).unwrap();
    }
    rig.hca(0).destroy_cq(a.cq).unwrap();
}

#[test]
fn local_errors_fail_the_request_behind_those_before_it() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8))
        .unwrap();
    let other = rig.end(0, QpKind::Rc);
    rig.post(&a, 2, SendOp::RdmaWrite(b.remote(0)), other.sge(0, 8))
        .unwrap();
    rig.run(10);
    let expect = [
        (1, CompletionStatus::Success),
        (2, CompletionStatus::LocalProtection),
    ];
    assert_eq!(rig.outcomes(&a), expect);
    // Later posts flush, and say what they were.
    rig.post(&a, 3, SendOp::RdmaRead(b.remote(0)), a.sge(0, 8))
        .unwrap();
    let flushed = rig.done(&a)[0];
    assert_eq!(flushed.status, CompletionStatus::Flushed);
    assert_eq!(flushed.op, CompletionOp::RdmaRead);
}

#[test]
fn a_packet_that_does_not_come_from_the_peer_changes_nothing() {
    let mut rig = Rig::of_twins();
    rig.end(1, QpKind::Rc);
    let [a, b] = rig.pair(QpKind::Rc);
    // It knows queue pair, PSN and key, and has the peer's number, but sends from another LID than the peer.
    let spy = rig.end(0, QpKind::Rc);
    assert_eq!(spy.qpn, b.qpn);
    rig.modify(&spy, &to_rtr(&a, true)).unwrap();
    let as_peer = QpModify {
        sq_psn: Some(first_psn(b.qpn)),
        ..to_rts(&spy, true)
    };
    rig.modify(&spy, &as_peer).unwrap();
    rig.post(&spy, 1, SendOp::RdmaWrite(a.remote(0)), spy.sge(0, 8))
        .unwrap();
    rig.run(1000);
    let foreign = rig.fabric.node(rig.hosts[0]).unwrap();
    assert!(foreign.drops().get(DropReason::ForeignPath) > 0);
    assert_eq!(rig.outcomes(&spy), [(1, CompletionStatus::RetryExceeded)]);
    assert_eq!(rig.state(&a), QpState::ReadyToSend);
}
