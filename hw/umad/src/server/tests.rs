//! Connections, from the first datagram to the last.

use ib_endpoint::MadAddress;
use ib_wire::mad::{Method, MgmtClass};
use zerocopy::IntoBytes;

use super::*;
use crate::protocol::{LONG_HEAD, PART_MAX, frames};
use crate::testing::{OnePort, PEERS, Peer, at, exchange, request, sa_mad, written};

fn hello(adapters: &str, purpose: Purpose<'_>) -> Vec<u8> {
    let hello = Hello {
        adapters,
        device: "",
        purpose,
    };
    hello.encode().unwrap()
}

fn replied(verdict: &Verdict) -> Result<&[u8], Errno> {
    let (Verdict::Replied(reply) | Verdict::Opened(reply)) = verdict else {
        panic!("{verdict:?}");
    };
    HelloReply::decode(reply).unwrap().result
}

/// A server with one connection.
struct Bench {
    port: OnePort,
    server: UmadServer,
    session: SessionId,
}

impl Bench {
    fn new() -> Self {
        let mut server = UmadServer::new(ServerLimits::default());
        let session = server.connect(at(0), UserId(0)).unwrap();
        Self {
            port: OnePort::new(),
            server,
            session,
        }
    }

    /// With an umad file that has an agent for the SA's class.
    fn opened(methods: &[Method]) -> Self {
        let mut bench = Self::new();
        let verdict = bench.receive(&hello("", Purpose::Umad(0)));
        assert_eq!(replied(&verdict), Ok(&[][..]));
        let request = request(MgmtClass::SUBN_ADM, methods, true);
        let (error, argument) = bench.call(ioctl::REGISTER_AGENT2, request.as_bytes());
        assert_eq!(error, None);
        assert_eq!(argument[..4], [0; 4]);
        bench
    }

    fn receive(&mut self, datagram: &[u8]) -> Verdict {
        self.server
            .receive(at(0), &mut self.port, self.session, datagram)
    }

    fn send(&mut self, frame: &Frame<'_>) -> Verdict {
        self.receive(&[&frame.header().unwrap()[..], frame.body].concat())
    }

    fn answer(&mut self, call: Call, body: &[u8]) -> Answer {
        let kind = FrameKind::Call(call);
        match self.send(&Frame { kind, body }) {
            Verdict::Answered(answer) => answer,
            verdict => panic!("{verdict:?}"),
        }
    }

    fn call(&mut self, request: u32, body: &[u8]) -> (Option<Errno>, Vec<u8>) {
        let answer = self.answer(Call::Ioctl(request), body);
        assert!(answer.attachment.is_none());
        let reply = CallReply::decode(&answer.datagram).unwrap();
        (reply.error, reply.body.to_vec())
    }

    fn write(&mut self, message: &[u8]) {
        for frame in frames(message) {
            assert_eq!(self.send(&frame), Verdict::Nothing);
        }
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        self.server.poll(at(0), &mut self.port);
        let datagram = self.server.next_datagram(self.session)?.to_vec();
        self.server.sent(self.session);
        Some(datagram)
    }
}

#[test]
fn attributes_and_the_tree_are_given_by_connections_of_their_own() {
    let mut bench = Bench::new();
    let path = "sys/devices/pci7ca0:00/7ca0:00:00.0/infiniband/vhca0/ports/1/lid";
    let verdict = bench.receive(&hello("H-1", Purpose::Attribute(path)));
    assert_eq!(replied(&verdict), Ok(&b"0x1\n"[..]));
    assert_eq!(bench.receive(b"more"), Verdict::Close);
    bench.session = bench.server.connect(at(0), UserId(0)).unwrap();
    let verdict = bench.receive(&hello("H-1", Purpose::Tree));
    let Verdict::Tree(tree) = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!(tree.id.to_string(), "0");
    assert!(tree.view.entries().iter().any(|entry| entry.path == path));
}

#[test]
fn ports_that_are_not_active_yet_are_named() {
    let mut bench = Bench::new();
    let verdict = bench.receive(&hello("H-1, H-1", Purpose::PendingPorts));
    assert_eq!(replied(&verdict), Ok(&b"H-1/1,H-1/1"[..]));
}

#[test]
fn what_is_not_there_is_said_with_a_number() {
    for (adapters, purpose, errno) in [
        ("H-2", Purpose::Tree, Errno::ENODEV),
        ("H-1,H-2", Purpose::Umad(0), Errno::ENODEV),
        ("H-1", Purpose::Umad(1), Errno::ENOENT),
        ("H-1", Purpose::IsSm(1), Errno::ENOENT),
        (
            "H-1",
            Purpose::Attribute("sys/class/infiniband/mlx4_0"),
            Errno::ENOENT,
        ),
        (",,,,,,,,", Purpose::Tree, Errno::ENODEV),
    ] {
        let mut bench = Bench::new();
        let verdict = bench.receive(&hello(adapters, purpose));
        assert_eq!(replied(&verdict), Err(errno), "{adapters} {purpose:?}");
    }
}

#[test]
fn several_adapters_are_seen_in_their_order() {
    let mut bench = Bench::new();
    let path = "sys/devices/pci7ca0:00/7ca0:00:01.0/infiniband_mad/umad1/ibdev";
    let verdict = bench.receive(&hello("H-1, H-1", Purpose::Attribute(path)));
    assert_eq!(replied(&verdict), Ok(&b"vhca1\n"[..]));
}

#[test]
fn is_sm_stays_with_one_connection_and_goes_with_it() {
    let mut bench = Bench::new();
    bench.receive(&hello("", Purpose::IsSm(0)));
    assert!(bench.port.is_sm);
    let first = bench.session;
    bench.session = bench.server.connect(at(0), UserId(0)).unwrap();
    let verdict = bench.receive(&hello("", Purpose::IsSm(0)));
    assert_eq!(replied(&verdict), Err(Errno::EAGAIN));
    bench.server.disconnect(&mut bench.port, bench.session);
    assert!(bench.port.is_sm);
    bench.server.disconnect(&mut bench.port, first);
    assert!(!bench.port.is_sm);
    assert!(bench.server.is_empty());
}

#[test]
fn the_calls_of_umad_answer_as_the_kernel_does() {
    let mut bench = Bench::new();
    bench.receive(&hello("", Purpose::Umad(0)));
    assert_eq!(bench.call(ioctl::ENABLE_PKEY, &[]), (None, Vec::new()));
    let old = RegisterRequest {
        qpn: 1,
        mgmt_class: 4,
        mgmt_class_version: 1,
        ..RegisterRequest::default()
    };
    let (error, argument) = bench.call(ioctl::REGISTER_AGENT, old.as_bytes());
    assert_eq!((error, argument.len()), (None, 28));
    let (error, _) = bench.call(ioctl::ENABLE_PKEY, &[]);
    assert_eq!(error, Some(Errno::EINVAL), "an agent was registered");
    let mut unknown = request(MgmtClass::PERF, &[], false);
    unknown.flags = 6.into();
    let (error, argument) = bench.call(ioctl::REGISTER_AGENT2, unknown.as_bytes());
    assert_eq!(error, Some(Errno::EINVAL));
    let argument = RegisterRequest2::read_from_bytes(&argument).unwrap();
    assert_eq!(argument.flags.get(), 1, "the flags that there are");
    let known = request(MgmtClass::PERF, &[], false);
    let (error, argument) = bench.call(ioctl::REGISTER_AGENT2, known.as_bytes());
    assert_eq!((error, argument[0]), (None, 1));
    let id = 1_u32.to_ne_bytes();
    assert_eq!(bench.call(ioctl::UNREGISTER_AGENT, &id).0, None);
    let (error, _) = bench.call(ioctl::UNREGISTER_AGENT, &id);
    assert_eq!(error, Some(Errno::EINVAL));
    for (request, body, errno) in [
        (ioctl::REGISTER_AGENT, &[0; 27][..], Errno::EINVAL),
        (ioctl::REGISTER_AGENT2, &[0; 41], Errno::EINVAL),
        (ioctl::UNREGISTER_AGENT, &[0; 3], Errno::EINVAL),
        (0x5401, &[], Errno::ENOTTY),
    ] {
        assert_eq!(bench.call(request, body).0, Some(errno), "{request:#x}");
    }
}

#[test]
fn a_long_message_is_announced_with_its_head_and_fetched() {
    let mut bench = Bench::opened(&[]);
    let mut peer = Peer::new();
    let mad = sa_mad(Method::GET_TABLE, 5);
    bench.write(&written(0, 1000, mad.as_bytes()));
    exchange(0, &mut bench.port, &mut peer);
    let data: Vec<u8> = (0_u8..251).cycle().take(100_000).collect();
    peer.answer(at(0), Some(data.clone()));
    exchange(0, &mut bench.port, &mut peer);
    let datagram = bench.next().unwrap();
    let delivery = Delivery::decode(&datagram).unwrap();
    assert_eq!(delivery.total, 64 + 56 + data.len());
    assert_eq!(delivery.body.len(), LONG_HEAD);
    let serial = delivery.serial.unwrap();
    let answer = bench.answer(Call::Fetch(serial), &[]);
    let whole = answer.attachment.unwrap();
    assert_eq!(whole[..LONG_HEAD], *delivery.body);
    assert_eq!(whole[64 + 56..], data);
    let again = bench.answer(Call::Fetch(serial), &[]);
    assert_eq!(again.attachment, None);
    let reply = CallReply::decode(&again.datagram).unwrap();
    assert_eq!(reply.error, Some(Errno::ENOENT));
}

#[test]
fn announcements_that_nobody_fetches_hold_up_their_own_file_only() {
    let mut bench = Bench::opened(&[]);
    let mut peer = Peer::new();
    let announced = ServerLimits::default().announced;
    for tid in 0..=announced {
        let mad = sa_mad(Method::GET_TABLE, tid as u64);
        bench.write(&written(0, 1000, mad.as_bytes()));
        exchange(0, &mut bench.port, &mut peer);
        peer.answer(at(0), Some(vec![1; 2 * PART_MAX]));
        exchange(0, &mut bench.port, &mut peer);
    }
    for _ in 0..announced {
        assert!(bench.next().is_some());
    }
    assert!(bench.next().is_none());
    bench.answer(Call::Fetch(0), &[]);
    assert!(bench.next().is_some());
}

#[test]
fn a_datagram_stays_until_it_was_sent() {
    let mut bench = Bench::opened(&[Method::GET]);
    for tid in 0..2 {
        let from = MadAddress::gsi(PEERS);
        let mad = sa_mad(Method::GET, tid);
        bench.port.gsi.handle_mad(at(0), &from, &mad);
    }
    bench.server.poll(at(0), &mut bench.port);
    let first = bench.server.next_datagram(bench.session).unwrap().to_vec();
    let again = bench.server.next_datagram(bench.session).unwrap().to_vec();
    assert_eq!(first, again);
    bench.server.sent(bench.session);
    let second = bench.server.next_datagram(bench.session).unwrap().to_vec();
    assert_ne!(first, second);
}

#[test]
fn a_message_in_parts_is_written_when_it_is_whole() {
    let mut bench = Bench::opened(&[]);
    let message = written(0, 100, sa_mad(Method::GET, 3).as_bytes());
    let part = |range: core::ops::Range<usize>| Frame {
        kind: FrameKind::Part {
            total: message.len(),
            offset: range.start,
        },
        body: &message[range],
    };
    assert_eq!(bench.send(&part(0..100)), Verdict::Nothing);
    assert_eq!(bench.send(&part(0..50)), Verdict::Nothing, "from the start");
    assert!(!bench.port.gsi.has_transmit());
    assert_eq!(bench.send(&part(50..320)), Verdict::Nothing);
    assert!(bench.port.gsi.has_transmit());
    assert_eq!(bench.send(&part(0..50)), Verdict::Nothing);
    assert_eq!(bench.send(&part(60..320)), Verdict::Close, "a gap");
}

#[test]
fn what_a_client_should_not_have_written_is_counted_and_goes_nowhere() {
    let mut bench = Bench::opened(&[]);
    bench.write(&[0; 64]);
    bench.write(&written(7, 100, sa_mad(Method::GET, 3).as_bytes()));
    assert!(!bench.port.gsi.has_transmit());
    let (_, malformed) = bench.server.counters(bench.session).unwrap();
    assert_eq!(malformed, 2);
}

#[test]
fn a_client_that_speaks_otherwise_is_cut_off() {
    let mut bench = Bench::new();
    assert_eq!(bench.receive(b"GET / HTTP/1.1"), Verdict::Close);
    let mut bench = Bench::opened(&[]);
    assert_eq!(bench.receive(&[9; 40]), Verdict::Close);
    let mut bench = Bench::new();
    bench.receive(&hello("", Purpose::IsSm(0)));
    assert_eq!(bench.receive(&[1; 16]), Verdict::Close);
}

#[test]
fn who_says_nothing_is_cut_off_after_a_while_and_others_are_not() {
    let mut bench = Bench::opened(&[]);
    let silent = bench.server.connect(at(100), UserId(0)).unwrap();
    let until = bench.server.poll_timeout().unwrap();
    assert_eq!(until, at(5100));
    assert_eq!(bench.server.poll_expired(at(5099)), None);
    assert_eq!(bench.server.poll_expired(until), Some(silent));
    bench.server.disconnect(&mut bench.port, silent);
    assert_eq!(bench.server.poll_timeout(), None);
}

#[test]
fn a_request_may_be_written_once_the_one_like_it_has_ended() {
    let mut bench = Bench::opened(&[]);
    let request = written(0, 100, sa_mad(Method::GET, 7).as_bytes());
    let other = written(0, 100, sa_mad(Method::GET, 8).as_bytes());
    let response = written(0, 100, sa_mad(Method::GET_RESP, 7).as_bytes());
    let may_write = |bench: &mut Bench, message: &[u8]| {
        let head = &message[..HEADER_SIZE + crate::MAD_HEADER_SIZE];
        let answer = bench.answer(Call::MayWrite, head);
        CallReply::decode(&answer.datagram).unwrap().error
    };
    assert_eq!(may_write(&mut bench, &request), None);
    bench.write(&request);
    assert_eq!(may_write(&mut bench, &request), Some(Errno::EINVAL));
    assert_eq!(may_write(&mut bench, &other), None);
    assert_eq!(
        may_write(&mut bench, &response),
        Some(Errno::EINVAL),
        "none"
    );
    assert_eq!(bench.answer(Call::MayWrite, &[]).datagram[0], 22);
}

#[test]
fn what_is_kept_for_a_users_files_is_bounded_and_others_have_room() {
    const FILES: usize = 4;
    let mut port = OnePort::new();
    let limits = ServerLimits {
        user_bytes: 3 * 400,
        ..ServerLimits::default()
    };
    let mut server = UmadServer::new(limits);
    let file = |server: &mut UmadServer, port: &mut OnePort, user| {
        let id = server.connect(at(0), UserId(user)).unwrap();
        let opened = server.receive(at(0), port, id, &hello("", Purpose::Umad(0)));
        assert_eq!(replied(&opened), Ok(&[][..]));
        let request = request(MgmtClass::SUBN_ADM, &[], true);
        let call = Frame {
            kind: FrameKind::Call(Call::Ioctl(ioctl::REGISTER_AGENT2)),
            body: request.as_bytes(),
        };
        let call = [&call.header().unwrap()[..], call.body].concat();
        server.receive(at(0), port, id, &call);
        id
    };
    let ask = |server: &mut UmadServer, port: &mut OnePort, id, tid| {
        let message = written(0, 100, sa_mad(Method::GET, tid).as_bytes());
        for frame in frames(&message) {
            let frame = [&frame.header().unwrap()[..], frame.body].concat();
            server.receive(at(0), port, id, &frame);
        }
    };
    // Nobody answers, so each request comes back, whose header and common header of the MAD are kept.
    let files: Vec<_> = (0..FILES)
        .map(|_| file(&mut server, &mut port, 1))
        .collect();
    let other = file(&mut server, &mut port, 2);
    let mut tid = 0;
    while files.iter().all(|id| server.wants_input(*id)) {
        for id in &files {
            tid += 1;
            ask(&mut server, &mut port, *id, tid);
        }
        server.poll(at(0), &mut port);
    }
    assert!(
        !files.iter().any(|id| server.wants_input(*id)),
        "all files of the user wait"
    );
    assert!(server.wants_input(other));
    // What goes makes room.
    for id in files {
        server.disconnect(&mut port, id);
    }
    let next = file(&mut server, &mut port, 1);
    server.poll(at(0), &mut port);
    assert!(server.wants_input(next));
}

#[test]
fn connections_beyond_the_limit_are_refused_until_one_ends() {
    let mut server = UmadServer::new(ServerLimits {
        sessions: 2,
        ..ServerLimits::default()
    });
    let first = server.connect(at(0), UserId(0)).unwrap();
    server.connect(at(0), UserId(0)).unwrap();
    assert!(server.connect(at(0), UserId(0)).is_none());
    server.disconnect(&mut OnePort::new(), first);
    assert!(server.connect(at(0), UserId(0)).is_some());
    assert_eq!(server.len(), 2);
}

#[test]
fn a_connection_that_ends_leaves_nothing_on_the_port() {
    let mut bench = Bench::opened(&[Method::GET]);
    bench.write(&written(0, 100, sa_mad(Method::GET, 3).as_bytes()));
    bench.server.disconnect(&mut bench.port, bench.session);
    assert!(bench.port.gsi.sizes().is_empty());
    assert_eq!(bench.receive(&[]), Verdict::Close);
    let next = bench.server.connect(at(0), UserId(0)).unwrap();
    bench.session = next;
    bench.receive(&hello("", Purpose::Umad(0)));
    let same = request(MgmtClass::SUBN_ADM, &[Method::GET], true);
    let (error, _) = bench.call(ioctl::REGISTER_AGENT2, same.as_bytes());
    assert_eq!(error, None);
}

#[test]
fn a_device_with_a_name_of_its_own_has_a_tree_of_its_own_and_no_name_leaves_that() {
    for (device, adapters, is_named) in [
        ("mlx5_0", 1, true),
        ("vhca1", 1, true),
        ("vhca0", 1, false),
        ("vhca1", 2, false),
        ("", 1, false),
        ("..", 1, false),
        ("a/b", 1, false),
        ("a=b", 1, false),
    ] {
        assert_eq!(sysfs::may_be_named(device, adapters), is_named, "{device}");
    }
    let id = |name: Option<&str>| TreeId {
        adapters: vec![AdapterId(0)],
        verbs: Some(crate::Verbs::default()),
        name: name.map(str::to_owned),
    };
    assert_eq!(id(None).to_string(), "0-v");
    assert_eq!(id(Some("mlx5_0")).to_string(), "0-v=mlx5_0");
}
