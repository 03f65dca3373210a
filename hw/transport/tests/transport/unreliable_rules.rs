//! Rules of unreliable connections, each by its number in RULES.md.

use ib_transport::{
    AtomicOp, Ending, Event, Operation, RemoteRange, RemoteStart, Request, ResponderState, Run,
    RunOperation, Status, UcReceiver, UcReceiverConfig, UcSender, UcSenderConfig, UcSenderState,
};
use ib_wire::{Psn, RKey};

use crate::host::{Buffer, Host, QueueFault, Receive, Region};
use crate::network::pmtu;
use crate::packets::{first, last, middle, only, psn, send, write};
use crate::random::{ALL, READ_ONLY, UNKNOWN, host};

/// Both ends of a connection whose first PSN is 10.
struct Rig {
    host: Host,
    sender: UcSender<Buffer>,
    receiver: UcReceiver<Region, Receive>,
}

impl Rig {
    /// Returns a connection with so many receives of 1000 bytes.
    fn new(receives: u64) -> Self {
        let mut host = host(0);
        for id in 0..receives {
            let at = 8192 + 1000 * usize::try_from(id).expect("small");
            host.receives.push_back(Receive { id, at, len: 1000 });
        }
        let mut sender = UcSender::new(UcSenderConfig {
            pmtu: pmtu(),
            first_psn: psn(10),
            max_message: 1 << 20,
        });
        sender.start();
        let receiver = UcReceiver::new(UcReceiverConfig {
            pmtu: pmtu(),
            first_psn: psn(10),
            write: true,
            shared_receives: false,
        });
        Self {
            host,
            sender,
            receiver,
        }
    }

    fn post(&mut self, id: u64, operation: Operation, len: u32) {
        let request = Request {
            operation,
            buffer: Buffer { id, at: 4096 },
            len,
            fence: false,
            solicited: true,
        };
        self.sender.post(request, &mut self.host);
    }

    fn packets(&mut self) -> Vec<Run> {
        std::iter::from_fn(|| self.sender.poll_transmit(1, &mut self.host)).collect()
    }

    fn give(&mut self, run: Run) -> &mut Self {
        self.host.arriving = (0..=u8::MAX).cycle().take(run.len as usize).collect();
        self.receiver.handle(&run, &mut self.host);
        self
    }

    /// Returns receive and length of the messages that arrived.
    fn arrived(&self) -> Vec<(u64, u32)> {
        let received = self.host.received.iter();
        received
            .map(|received| (received.receive.id, received.len))
            .collect()
    }
}

#[test]
fn t046_reads_atomics_and_invalidating_sends_stop_the_send_queue() {
    let remote = RemoteStart { addr: 0, rkey: ALL };
    let add = AtomicOp::FetchAdd { add: 1 };
    for operation in [
        Operation::Read(remote),
        Operation::Atomic(remote, add),
        Operation::SendInvalidate(ALL),
    ] {
        let mut rig = Rig::new(1);
        rig.post(0, operation, 8);
        rig.post(1, Operation::Send, 8);
        assert_eq!(rig.packets(), []);
        let ended = [(0, Status::LocalQpOperation), (1, Status::Flushed)];
        assert_eq!(rig.host.sends, ended);
        assert_eq!(rig.sender.state(), UcSenderState::SendError);
    }
    for operation in [
        RunOperation::Read(RemoteRange {
            addr: 0,
            rkey: ALL,
            len: 0,
        }),
        RunOperation::Atomic(remote, add),
        RunOperation::Reserved,
    ] {
        let mut rig = Rig::new(1);
        rig.give(only(10, operation, 0));
        assert_eq!((rig.receiver.dropped(), rig.host.events.len()), (1, 0));
        assert_eq!(rig.receiver.state(), ResponderState::Listening);
    }
}

#[test]
fn t047_a_request_completes_when_its_last_packet_has_left() {
    let mut rig = Rig::new(0);
    rig.post(0, Operation::Send, 300);
    rig.post(1, Operation::Write(RemoteStart { addr: 0, rkey: ALL }), 0);
    let packet = rig
        .sender
        .poll_transmit(1, &mut rig.host)
        .expect("a packet");
    assert_eq!(
        (packet.psn, packet.len, packet.ack_request),
        (psn(10), 256, false)
    );
    assert_eq!(rig.host.sends, []);
    let packet = rig
        .sender
        .poll_transmit(9, &mut rig.host)
        .expect("a packet");
    assert_eq!(
        (packet.psn, packet.len, packet.solicited),
        (psn(11), 44, true)
    );
    assert_eq!(rig.host.sends, [(0, Status::Success)]);
    assert_eq!(rig.packets().len(), 1);
    assert_eq!(rig.sender.next_psn(), psn(13));
    assert!(rig.sender.is_empty());
}

#[test]
fn t048_a_lost_packet_drops_the_rest_of_its_message_and_no_other() {
    let mut rig = Rig::new(9);
    rig.give(first(send(10, 0)))
        .give(middle(send(12, 0)))
        .give(last(send(13, 5)));
    rig.give(send(14, 5));
    assert_eq!(rig.arrived(), [(0, 5)]);
    // A message that begins inside of another, at the expected PSN and elsewhere.
    rig.give(first(send(15, 0)))
        .give(send(16, 6))
        .give(first(send(17, 0)))
        .give(send(30, 7));
    assert_eq!(rig.arrived()[1..], [(1, 6), (2, 7)]);
    rig.give(last(send(31, 5)))
        .give(middle(send(32, 0)))
        .give(send(33, 8));
    assert_eq!(rig.arrived()[3..], [(3, 8)]);
    // Another kind inside of a message.
    rig.give(first(send(34, 0)))
        .give(last(write(35, ALL, 0, 5)))
        .give(last(send(36, 5)));
    assert_eq!(rig.arrived().len(), 4);
    assert_eq!(rig.receiver.expected_psn(), psn(37));
}

#[test]
fn t049_the_receive_of_a_message_given_up_serves_the_next() {
    let mut rig = Rig::new(2);
    rig.give(first(send(10, 0))).give(last(send(12, 5)));
    rig.give(write(13, ALL, 0, 5)).give(send(14, 9));
    assert_eq!(rig.arrived(), [(0, 9)]);
    rig.give(first(send(15, 0)));
    rig.receiver.abort(&mut rig.host);
    assert_eq!(rig.host.received[1].status, Status::Flushed);
    assert_eq!(rig.host.receives.len(), 0);
}

#[test]
fn t050_a_message_without_receive_or_right_is_dropped_and_nothing_is_told() {
    let mut rig = Rig::new(0);
    rig.give(send(10, 5));
    let range = RemoteRange {
        addr: 0,
        rkey: ALL,
        len: 300,
    };
    let immediate = RunOperation::Write(Some(range), Ending::Immediate([0; 4]));
    rig.give(Run {
        packets: 2,
        ..only(11, immediate, 300)
    });
    assert_eq!(rig.host.memory[255], 255, "the first packet was placed");
    let memory = rig.host.memory.clone();
    for run in [
        write(13, UNKNOWN, 0, 5),
        write(14, READ_ONLY, 0, 5),
        write(15, ALL, 4093, 5),
        Run {
            len: 6,
            ..write(16, ALL, 0, 5)
        },
        first(write(17, ALL, 0, 200)),
    ] {
        rig.give(run);
    }
    rig.host.receives.push_back(Receive {
        id: 0,
        at: 8192,
        len: 4,
    });
    rig.give(send(18, 5));
    assert!(rig.host.memory == memory);
    assert_eq!(rig.host.events, [Event::CommunicationEstablished]);
    assert_eq!(rig.host.received, []);
    assert_eq!(rig.receiver.dropped(), 8);
    rig.give(send(19, 4));
    assert_eq!(rig.arrived(), [(0, 4)]);
}

#[test]
fn t050_a_receive_without_memory_ends_the_connection() {
    let mut rig = Rig::new(2);
    rig.host.bad_receives.insert(0);
    rig.give(send(10, 5)).give(send(11, 5));
    assert_eq!(rig.host.received[0].status, Status::LocalProtection);
    assert_eq!(
        (rig.host.received.len(), rig.receiver.state()),
        (1, ResponderState::Failed)
    );
    let mut rig = Rig::new(2);
    rig.host.queue_fault = QueueFault::Malformed;
    rig.give(send(10, 5));
    assert_eq!(rig.host.received[0].status, Status::LocalQpOperation);
    let mut rig = Rig::new(2);
    rig.host.queue_fault = QueueFault::Unreachable;
    rig.give(send(10, 5));
    assert_eq!(rig.host.events[1..], [Event::Fatal]);
}

#[test]
fn t023_a_local_error_stops_the_send_queue_until_it_is_started() {
    let mut rig = Rig::new(0);
    rig.host.bad_buffers.insert(1);
    for id in 0..3 {
        rig.post(id, Operation::Send, 300);
    }
    assert_eq!(rig.packets().len(), 2);
    rig.post(3, Operation::Send, 1);
    let statuses: Vec<_> = rig.host.sends.iter().map(|send| send.1).collect();
    let flushed = Status::Flushed;
    assert_eq!(
        statuses,
        [Status::Success, Status::LocalProtection, flushed, flushed]
    );
    rig.sender.start();
    rig.post(4, Operation::Send, 1);
    assert_eq!(rig.packets()[0].psn, psn(12));
    rig.post(5, Operation::Send, (1 << 20) + 1);
    assert_eq!(rig.packets(), []);
    assert_eq!(rig.host.sends[5], (5, Status::LocalLength));
}

#[test]
fn t052_a_drain_sends_the_message_under_way_to_its_end() {
    let mut rig = Rig::new(0);
    rig.post(0, Operation::Send, 300);
    rig.post(1, Operation::Send, 300);
    assert!(rig.sender.poll_transmit(1, &mut rig.host).is_some());
    rig.sender.drain(&mut rig.host);
    assert_eq!(rig.host.events, []);
    assert_eq!(rig.packets().len(), 1);
    assert_eq!(rig.host.events, [Event::SendQueueDrained]);
    assert_eq!(
        (rig.sender.state(), rig.sender.len()),
        (UcSenderState::Drained, 1)
    );
    rig.sender.start();
    assert_eq!(rig.packets().len(), 2);
    rig.post(2, Operation::Send, 1);
    rig.sender.abort(&mut rig.host);
    rig.sender.start();
    assert_eq!(rig.sender.state(), UcSenderState::Failed);
}

#[test]
fn t043_the_first_message_in_rtr_is_announced() {
    let mut rig = Rig::new(0);
    rig.give(last(send(10, 5)));
    assert_eq!(rig.host.events, []);
    rig.give(send(11, 5)).give(send(12, 5));
    assert_eq!(rig.host.events, [Event::CommunicationEstablished]);
    let mut rig = Rig::new(0);
    rig.receiver.establish();
    rig.give(write(10, RKey::new(0), 0, 0));
    assert_eq!(rig.host.events, []);
    assert_eq!(rig.receiver.expected_psn(), Psn::from_low_bits(11));
}
