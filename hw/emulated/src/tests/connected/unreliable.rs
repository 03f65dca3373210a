//! Delivery by unreliable connections.

use hca_api::{FastRegister, LKey, MwBind, PageList};

use super::*;

#[test]
fn messages_arrive_whole_and_complete_when_they_left() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Uc);
    let message = pattern(5000, 2);
    rig.write(&a, 0, &message);
    rig.receive(&b, 5, b.sge(10_000, 5000));
    rig.post(&a, 1, SendOp::SendImmediate(3), a.sge(0, 5000))
        .unwrap();
    rig.post(&a, 2, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 5000))
        .unwrap();
    rig.run(1);
    let success = CompletionStatus::Success;
    assert_eq!(rig.outcomes(&a), [(1, success), (2, success)]);
    let received = rig.done(&b)[0];
    assert_eq!((received.wr_id, received.byte_len), (5, 5000));
    assert_eq!(received.immediate, 3);
    assert_eq!(rig.read(&b, 10_000, 5000), message);
    assert_eq!(rig.read(&b, 0, 5000), message);
    let sent = rig.fabric.node(rig.hosts[1]).unwrap().port(PORT).unwrap();
    assert_eq!(sent.counters.xmit_packets, 0, "nothing is acknowledged");
}

#[test]
fn a_message_that_loses_a_packet_is_lost_and_the_next_one_arrives() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Uc);
    rig.faults(When::Nth(2), Fault::Drop);
    rig.receive(&b, 5, b.sge(0, 5000));
    for wr_id in [1, 2] {
        rig.write(&a, 0, &pattern(4000, u8::try_from(wr_id).unwrap()));
        rig.post(&a, wr_id, SendOp::Send, a.sge(0, 4000)).unwrap();
        rig.run(1);
    }
    let success = CompletionStatus::Success;
    assert_eq!(rig.outcomes(&a), [(1, success), (2, success)]);
    assert_eq!(rig.outcomes(&b), [(5, success)]);
    assert_eq!(rig.read(&b, 0, 4000), pattern(4000, 2));
}

#[test]
fn a_local_error_stops_the_send_queue_until_it_is_started_again() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Uc);
    rig.receive(&b, 5, b.sge(0, 64));
    rig.post(&a, 1, SendOp::Send, b.sge(0, 8)).unwrap();
    rig.post(&a, 2, SendOp::Send, a.sge(0, 8)).unwrap();
    rig.run(1);
    let expect = [
        (1, CompletionStatus::LocalProtection),
        (2, CompletionStatus::Flushed),
    ];
    assert_eq!(rig.outcomes(&a), expect);
    assert_eq!(rig.state(&a), QpState::SendQueueError);
    rig.modify(&a, &to_state(QpState::ReadyToSend)).unwrap();
    rig.post(&a, 3, SendOp::Send, a.sge(0, 8)).unwrap();
    rig.run(1);
    assert_eq!(rig.outcomes(&a), [(3, CompletionStatus::Success)]);
    assert_eq!(rig.outcomes(&b), [(5, CompletionStatus::Success)]);
}

#[test]
fn t023_t046_t065_t069_t070_t071_an_operation_of_reliable_connections_stops_the_send_queue_and_receives_go_on()
 {
    let remote = RemoteAddress {
        addr: 0,
        rkey: RKey(0),
    };
    let register = FastRegister {
        key: RKey(0),
        iova: 0,
        len: 64,
        pages: PageList::InMemory(0),
        page_shift: 12,
        access: AccessFlags::empty(),
    };
    let bind = MwBind {
        window: RKey(0),
        variant: 0,
        region: LKey(0),
        addr: 0,
        len: 64,
        access: AccessFlags::empty(),
    };
    for op in [
        SendOp::RdmaRead(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::AtomicWrite(remote),
        SendOp::Flush {
            remote,
            len: Some(8),
            placement: FlushPlacement::GLOBAL,
        },
        SendOp::SendInvalidate(RKey(0)),
        SendOp::LocalInvalidate(RKey(0)),
        SendOp::FastRegister(register),
        SendOp::BindWindow(bind),
    ] {
        let mut rig = Rig::new();
        let [a, b] = rig.pair(QpKind::Uc);
        rig.receive(&a, 5, a.sge(0, 64));
        rig.receive(&b, 6, b.sge(0, 64));
        for (wr_id, op) in [(1, SendOp::Send), (2, op), (3, SendOp::Send)] {
            rig.post(&a, wr_id, op, a.sge(0, 8)).unwrap();
        }
        rig.run(1);
        let expect = [
            (1, CompletionStatus::Success),
            (2, CompletionStatus::LocalQpOperation),
            (3, CompletionStatus::Flushed),
        ];
        assert_eq!(rig.outcomes(&a), expect, "{op:?}");
        assert_eq!(rig.state(&a), QpState::SendQueueError);
        rig.post(&b, 7, SendOp::Send, b.sge(0, 8)).unwrap();
        rig.run(1);
        assert_eq!(rig.outcomes(&a), [(5, CompletionStatus::Success)]);
        assert_eq!(rig.events(&a), []);
    }
}
