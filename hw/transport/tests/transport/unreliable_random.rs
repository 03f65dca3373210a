//! Random messages over an unreliable connection: each arrives whole, in order, or not at all.

use ib_transport::{
    Operation, RemoteStart, Request, Status, Transfer, UcReceiverConfig, UcSenderConfig,
    UcSenderState, UnreliableConnection,
};
use ib_vtime::SplitMix64;
use ib_wire::packet::TransportService;

use crate::frames::{decode, encode};
use crate::host::{Buffer, Host, QueueFault, Receive, Region};
use crate::network::pmtu;
use crate::packets::{psn, send};
use crate::random::{ALL, below, host, pick, sequences};

type Connection = UnreliableConnection<Buffer, Region, Receive>;

fn connection() -> Connection {
    let sender = UcSenderConfig {
        pmtu: pmtu(),
        first_psn: psn(0xff_fffa),
        max_message: 1 << 30,
    };
    let receiver = UcReceiverConfig {
        pmtu: pmtu(),
        first_psn: psn(0xff_fffa),
        write: true,
        shared_receives: false,
    };
    let mut connection = Connection::new(sender, receiver);
    connection.start();
    connection
}

/// Returns a host with ten receives, and its connection.
fn end() -> (Connection, Host) {
    let mut host = host(0);
    for id in 0..10 {
        let at = 8192 + 1280 * usize::try_from(id).expect("small");
        host.receives.push_back(Receive { id, at, len: 1280 });
    }
    (connection(), host)
}

#[test]
fn t048_messages_arrive_whole_and_in_order_or_not_at_all() {
    let mut random = SplitMix64::new(13);
    let mut arrived = 0;
    for case in 0..sequences() / 10 {
        let (mut a, mut source) = end();
        let (mut b, mut target) = end();
        let lose = pick(&mut random, &[0, 1, 10, 100]);
        let mut requests = Vec::new();
        for id in 0..6 {
            let data = u32::try_from(id).expect("small").to_be_bytes();
            // Each message has a range of its own, so that what is placed can be compared.
            let addr = 600 * id;
            let remote = RemoteStart { addr, rkey: ALL };
            let at = 4096 + usize::try_from(random.below(2800)).expect("small");
            let request = Request {
                operation: if random.chance(1, 2) {
                    Operation::SendImmediate(data)
                } else {
                    Operation::WriteImmediate(remote, data)
                },
                buffer: Buffer { id, at },
                len: below(&mut random, 600),
                fence: false,
                solicited: false,
            };
            a.post(request, &mut source);
            requests.push(request);
        }
        let budget = pick(&mut random, &[1, 3, 64]);
        while let Some(transfer) = a.poll_transmit(budget, &mut source) {
            let payload = std::mem::take(&mut source.staged);
            let framed = case % 16 == 0 && budget == 1;
            let carried = if framed {
                decode(&encode(TransportService::Uc, &transfer, &payload))
            } else {
                Some((transfer, payload))
            };
            let (transfer, payload) = carried.expect("an intact frame");
            if !random.chance(lose, 1000) {
                target.arriving = payload;
                b.handle(&transfer, &mut target);
            }
        }
        assert!(
            source
                .sends
                .iter()
                .all(|(_, status)| *status == Status::Success)
        );
        let mut next = 0;
        for received in &target.received {
            let immediate = received.immediate.expect("all have one");
            let id = u32::from_be_bytes(immediate) as usize;
            assert!(id >= next, "case {case}");
            next = id + 1;
            let request = requests[id];
            assert_eq!(received.len, request.len, "case {case}");
            let to = match request.operation {
                Operation::WriteImmediate(to, _) => usize::try_from(to.addr).expect("small"),
                _ => received.receive.at,
            };
            let len = request.len as usize;
            let sent = &source.memory[request.buffer.at..][..len];
            assert!(
                &target.memory[to..][..len] == sent,
                "case {case}: message {id}"
            );
        }
        assert!(lose > 0 || target.received.len() == 6, "case {case}");
        arrived += target.received.len() as u64;
    }
    assert!(arrived > sequences() / 10 * 5, "{arrived} arrived");
}

#[test]
fn t050_a_receiver_that_fails_ends_the_sender() {
    let (mut connection, mut host) = end();
    let request = Request {
        operation: Operation::Send,
        buffer: Buffer { id: 0, at: 0 },
        len: 5,
        fence: false,
        solicited: false,
    };
    connection.post(request, &mut host);
    host.queue_fault = QueueFault::Unreachable;
    connection.handle(&Transfer::Response(crate::packets::ack(10)), &mut host);
    assert!(!connection.is_failed());
    connection.handle(&Transfer::Request(send(10, 0)), &mut host);
    assert!(connection.is_failed());
    assert_eq!(host.sends, [(0, Status::Flushed)]);
    assert_eq!(connection.sender().state(), UcSenderState::Failed);
    assert_eq!(connection.poll_transmit(9, &mut host), None);
}

#[test]
fn t054_receives_work_while_sends_flush() {
    let (mut connection, mut host) = end();
    let request = |operation| Request {
        operation,
        buffer: Buffer { id: 0, at: 0 },
        len: 5,
        fence: false,
        solicited: false,
    };
    connection.post(request(Operation::SendInvalidate(ALL)), &mut host);
    assert_eq!(connection.poll_transmit(9, &mut host), None);
    assert_eq!(connection.sender().state(), UcSenderState::SendError);
    connection.post(request(Operation::Send), &mut host);
    assert_eq!(host.sends[1].1, Status::Flushed);
    host.arriving = vec![0; 5];
    connection.handle(&Transfer::Request(send(10, 5)), &mut host);
    assert_eq!(host.received[0].status, Status::Success);
    connection.drain(&mut host);
    connection.start();
    connection.post(request(Operation::Send), &mut host);
    assert!(connection.poll_transmit(9, &mut host).is_some());
    connection.abort(&mut host);
    assert!(connection.is_failed());
    assert_eq!(connection.receiver().dropped(), 0);
}
