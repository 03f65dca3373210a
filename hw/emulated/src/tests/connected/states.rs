//! Transitions of connected queue pairs, and what a query shows.

use hca_api::{AsyncEvent, SrqSpec};
use ib_wire::PKey;

use super::*;

#[test]
fn a_query_shows_what_the_transitions_brought() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 5000))
        .unwrap();
    rig.run(1);
    let seen = rig.hca(0).query_qp(a.qp).unwrap();
    assert_eq!(seen.state, QpState::ReadyToSend);
    assert_eq!(seen.primary, to_rtr(&b, true).primary);
    assert_eq!((seen.dest_qpn, seen.dest_lid), (b.qpn, Lid::new(2)));
    assert_eq!(seen.sq_psn, first_psn(a.qpn).wrapping_add(5));
    assert_eq!(seen.rq_psn, first_psn(b.qpn));
    assert_eq!((seen.path_mtu, seen.access), (MTU, everything()));
    assert_eq!((seen.timeout, seen.min_rnr_timer), (8, 12));
    assert_eq!((seen.retry_count, seen.rnr_retry), (7, 7));
    assert_eq!((seen.max_rd_atomic, seen.max_dest_rd_atomic), (4, 4));
    let peer = rig.hca(1).query_qp(b.qp).unwrap();
    assert_eq!(peer.rq_psn, seen.sq_psn);
    rig.modify(&a, &to_state(QpState::Reset)).unwrap();
    let seen = rig.hca(0).query_qp(a.qp).unwrap();
    assert_eq!((seen.primary, seen.sq_psn), (None, Psn::default()));
}

#[test]
fn values_outside_their_range_are_refused_and_change_nothing() {
    let mut rig = Rig::new();
    let [a, b] = [rig.end(0, QpKind::Rc), rig.end(1, QpKind::Rc)];
    let good = to_rtr(&b, true);
    let mut bad = [good; 4];
    bad[0].path_mtu = Some(Mtu::new(0));
    bad[1].path_mtu = Some(Mtu::new(9));
    bad[2].max_dest_rd_atomic = Some(200);
    bad[3].min_rnr_timer = Some(32);
    for change in bad {
        assert_eq!(rig.modify(&a, &change), Err(HcaError::InvalidParameter));
    }
    let mut elsewhere = good;
    elsewhere.primary.as_mut().unwrap().port = PortNum(2);
    assert_eq!(rig.modify(&a, &elsewhere), Err(HcaError::InvalidPort));
    assert_eq!(rig.state(&a), QpState::Init);
    rig.modify(&a, &good).unwrap();
}

#[test]
fn the_first_request_in_ready_to_receive_says_that_the_peer_is_there() {
    let mut rig = Rig::new();
    let [a, b] = [rig.end(0, QpKind::Rc), rig.end(1, QpKind::Rc)];
    rig.modify(&b, &to_rtr(&a, true)).unwrap();
    rig.open(&a, &b, true);
    assert_eq!(
        rig.post(&b, 1, SendOp::Send, b.sge(0, 1)),
        Err(HcaError::InvalidQpState)
    );
    for wr_id in [1, 2] {
        rig.post(&a, wr_id, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8))
            .unwrap();
        rig.run(1);
    }
    assert_eq!(rig.outcomes(&a).len(), 2);
    let event = HcaEvent::Async(AsyncEvent::CommunicationEstablished(b.qp));
    assert_eq!(rig.events(&b), [event]);
}

#[test]
fn a_queue_that_drains_ends_what_it_began_and_says_so() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 200_000))
        .unwrap();
    rig.fabric.poll(rig.now);
    let drain = QpModify {
        drain_event: true,
        ..to_state(QpState::SendQueueDrain)
    };
    rig.modify(&a, &drain).unwrap();
    assert!(rig.hca(0).query_qp(a.qp).unwrap().draining);
    rig.post(&a, 2, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8))
        .unwrap();
    rig.run(10);
    assert!(!rig.hca(0).query_qp(a.qp).unwrap().draining);
    assert_eq!(rig.outcomes(&a), [(1, CompletionStatus::Success)]);
    let event = HcaEvent::Async(AsyncEvent::SendQueueDrained(a.qp));
    assert_eq!(rig.events(&a), [event]);
    let change = QpModify {
        timeout: Some(20),
        ..to_state(QpState::SendQueueDrain)
    };
    rig.modify(&a, &change).unwrap();
    rig.modify(&a, &to_state(QpState::ReadyToSend)).unwrap();
    rig.run(10);
    assert_eq!(rig.outcomes(&a), [(2, CompletionStatus::Success)]);
    assert_eq!(rig.hca(0).query_qp(a.qp).unwrap().timeout, 20);
}

#[test]
fn the_error_state_flushes_both_queues_in_every_state_from_init_on() {
    let mut rig = Rig::new();
    for state in [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend] {
        let [a, b] = [rig.end(0, QpKind::Rc), rig.end(1, QpKind::Rc)];
        rig.receive(&a, 1, a.sge(0, 8));
        rig.receive(&a, 2, a.sge(0, 8));
        if state != QpState::Init {
            rig.modify(&a, &to_rtr(&b, true)).unwrap();
        }
        if state == QpState::ReadyToSend {
            rig.modify(&a, &to_rts(&a, true)).unwrap();
            rig.post(&a, 3, SendOp::Send, a.sge(0, 8)).unwrap();
        }
        rig.modify(&a, &to_state(QpState::Error)).unwrap();
        rig.modify(&a, &to_state(QpState::Error)).unwrap();
        rig.post(&a, 4, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8))
            .unwrap();
        let mut done: Vec<_> = rig.outcomes(&a);
        done.sort_by_key(|done| done.0);
        assert!(done.iter().all(|done| done.1 == CompletionStatus::Flushed));
        let names: Vec<_> = done.iter().map(|done| done.0).collect();
        let expect: &[u64] = if state == QpState::ReadyToSend {
            &[1, 2, 3, 4]
        } else {
            &[1, 2, 4]
        };
        assert_eq!(names, expect, "{state:?}");
        rig.hca(0).destroy_qp(a.qp).unwrap();
    }
}

#[test]
fn a_queue_pair_with_a_shared_receive_queue_tells_once_that_it_takes_no_more() {
    let mut rig = Rig::new();
    let [plain, peer] = [rig.end(0, QpKind::Rc), rig.end(1, QpKind::Rc)];
    let srq = rig.hca(0).create_srq(SrqSpec {
        pd: plain.pd,
        max_wr: 8,
        max_sge: 1,
        limit: 0,
        receives: ReceiveMode::Posted,
    });
    let srq = srq.unwrap();
    let with_srq = QpSpec {
        srq: Some(srq),
        ..spec(QpKind::Rc, plain.pd, plain.cq)
    };
    let (qp, numbers) = rig.hca(0).create_qp(with_srq).unwrap();
    let shared = End {
        qp,
        qpn: numbers.external,
        ..plain
    };
    rig.modify(&shared, &init()).unwrap();
    rig.open(&shared, &peer, true);
    rig.open(&peer, &shared, true);
    let receive = RecvRequest {
        wr_id: 5,
        scatter: &[plain.sge(0, 64)],
    };
    rig.hca(0).post_srq_recv(srq, &receive).unwrap();
    rig.post(&peer, 1, SendOp::Send, peer.sge(0, 8)).unwrap();
    rig.run(1);
    assert_eq!(rig.outcomes(&shared), [(5, CompletionStatus::Success)]);
    for _ in 0..2 {
        rig.modify(&shared, &to_state(QpState::Error)).unwrap();
    }
    let event = HcaEvent::Async(AsyncEvent::LastWqeReached(qp));
    assert_eq!(rig.events(&shared), [event]);
}

#[test]
fn a_queue_pair_is_used_again_after_a_reset() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.post(&a, 1, SendOp::Send, a.sge(0, 8)).unwrap();
    rig.run(1);
    for end in [&a, &b] {
        rig.modify(end, &to_state(QpState::Reset)).unwrap();
        rig.modify(end, &init()).unwrap();
    }
    rig.run(1000);
    assert_eq!(rig.outcomes(&a), []);
    rig.open(&a, &b, true);
    rig.open(&b, &a, true);
    rig.receive(&b, 5, b.sge(0, 64));
    rig.post(&a, 2, SendOp::Send, a.sge(0, 8)).unwrap();
    rig.run(10);
    assert_eq!(rig.outcomes(&a), [(2, CompletionStatus::Success)]);
    assert_eq!(rig.outcomes(&b), [(5, CompletionStatus::Success)]);
}

/// A change in SQD, at end 0 or 1, and the status of the last request with it; `None` if none completes within half a second.
type Change = (usize, fn(&mut QpModify), Option<CompletionStatus>);

/// Makes requests at the first end.
type Probe = fn(&mut Rig, &[End; 2]);

fn write(rig: &mut Rig, [a, b]: &[End; 2]) {
    rig.post(a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8))
        .unwrap();
}

/// A write whose first packet is lost.
fn lossy_write(rig: &mut Rig, ends: &[End; 2]) {
    rig.faults(When::Nth(1), Fault::Drop);
    write(rig, ends);
}

/// A send whose receive comes a while later.
fn early_send(rig: &mut Rig, [a, b]: &[End; 2]) {
    rig.post(a, 1, SendOp::Send, a.sge(0, 8)).unwrap();
    rig.run(10);
    rig.receive(b, 2, b.sge(0, 8));
}

/// Reads, the answer to the first of which is long under way when the next arrives.
fn reads(rig: &mut Rig, [a, b]: &[End; 2]) {
    for wr_id in 1..=4 {
        let read = SendOp::RdmaRead(b.remote(0));
        rig.post(a, wr_id, read, a.sge(0, 60_000)).unwrap();
    }
}

/// IBA 11.2.4.2: each attribute that SQD to SQD allows but those of path migration, and the port, of which the adapter has one.
#[test]
fn t052_each_attribute_that_is_changed_in_sqd_acts() {
    const OK: Option<CompletionStatus> = Some(CompletionStatus::Success);
    const LOST: Option<CompletionStatus> = Some(CompletionStatus::RetryExceeded);
    const REFUSED: Option<CompletionStatus> = Some(CompletionStatus::RemoteInvalidRequest);
    const NOT_READY: Option<CompletionStatus> = Some(CompletionStatus::RnrRetryExceeded);

    let scenes: [(Probe, &[Change]); 6] = [
        (
            write,
            &[(0, |change| change.pkey_index = Some(PKeyIndex(1)), LOST)],
        ),
        (
            write,
            &[(
                0,
                |change| change.primary.as_mut().unwrap().dlid = Lid::new(9),
                LOST,
            )],
        ),
        (
            write,
            &[(
                1,
                |change| change.access = Some(AccessFlags::REMOTE_READ),
                REFUSED,
            )],
        ),
        (
            lossy_write,
            &[
                (0, |change| change.timeout = Some(20), None),
                (0, |change| change.retry_count = Some(0), None),
                (0, |change| change.timeout = Some(8), LOST),
            ],
        ),
        (
            early_send,
            &[
                (1, |change| change.min_rnr_timer = Some(0), None),
                (0, |change| change.rnr_retry = Some(0), NOT_READY),
            ],
        ),
        (
            reads,
            &[
                (1, |change| change.max_dest_rd_atomic = Some(1), REFUSED),
                (0, |change| change.max_rd_atomic = Some(1), OK),
            ],
        ),
    ];
    for (number, (probe, changes)) in scenes.iter().enumerate() {
        for count in 0..=changes.len() {
            let mut rig = Rig::new();
            let port = rig.device(0).node_mut().port_mut(PORT).unwrap();
            port.set_pkey(PKeyIndex(1), PKey::new(0x8005));
            let ends = rig.pair(QpKind::Rc);
            let mut expected = OK;
            for (end, change, then) in &changes[..count] {
                let (end, peer) = (&ends[*end], &ends[1 - end]);
                rig.modify(end, &to_state(QpState::SendQueueDrain)).unwrap();
                let mut given = to_state(QpState::SendQueueDrain);
                given.primary = to_rtr(peer, true).primary;
                change(&mut given);
                rig.modify(end, &given).unwrap();
                rig.modify(end, &to_state(QpState::ReadyToSend)).unwrap();
                expected = *then;
            }
            probe(&mut rig, &ends);
            rig.run(500);
            let done = rig.outcomes(&ends[0]);
            let failed = done.iter().find(|done| Some(done.1) != OK);
            let last = failed.or_else(|| done.last()).map(|done| done.1);
            assert_eq!(last, expected, "scene {number}, {count} changes");
        }
    }
}
