//! Sessions by themselves: two ends whose bytes the test carries.

use hca_api::FunctionId;
use ib_fabric::{Crossing, Frame, FrameWriter, PacketRun, PacketSource};
use ib_vtime::{Duration, Instant};
use ib_wire::packet::{Bth, BthOpcode, Lrh, UdFrame};
use ib_wire::{Guid, Lid, Mtu, PKey, Psn, QKey, Qpn, Sl, Vl};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    CloseReason, Hello, MANAGEMENT_DEPTH, MAX_BODY, Session, SessionConfig, SessionEvent, WINDOW,
};

mod ways;

const TIMEOUT: Duration = Duration::from_secs(1);

fn config(site: &str) -> SessionConfig {
    SessionConfig {
        hello: Hello {
            site: site.parse().unwrap(),
            node_guid: Guid::new(0x0002_c903_0000_0100),
            port: 8,
        },
        timeout: TIMEOUT,
    }
}

fn frame(lane: Vl, payload: &[u8]) -> Frame {
    let mut buffer = [0; 4500];
    let length = UdFrame {
        vl: lane,
        sl: Sl::default(),
        slid: Lid::new(1),
        dlid: Lid::new(2),
        grh: None,
        pkey: PKey::DEFAULT_FULL,
        dest_qp: Qpn::GSI,
        src_qp: Qpn::GSI,
        qkey: QKey::GSI,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload,
    }
    .write(&mut buffer)
    .unwrap();
    Frame::new(&buffer[..length])
}

/// Builds the body of a run's record with this opcode: its headers, and the bytes behind them.
fn run_body(opcode: BthOpcode, behind: &[u8]) -> Vec<u8> {
    let [lrh, bth] = run_headers(opcode);
    [lrh, bth, behind.to_vec()].concat()
}

fn run_headers(opcode: BthOpcode) -> [Vec<u8>; 2] {
    let mut lrh = Lrh {
        dlid: Lid::new(0x0102),
        slid: Lid::new(0x0304),
        ..Lrh::default()
    };
    lrh.set_vl(lane(2));
    lrh.set_sl(Sl::from_low_bits(5));
    lrh.set_lnh(ib_wire::packet::Lnh::IbaLocal);
    let mut bth = Bth {
        opcode,
        pkey: PKey::DEFAULT_FULL,
        dest_qp: Qpn::from_low_bits(0x00_0607),
        psn: Psn::from_low_bits(0xff_fffe),
        ..Bth::default()
    };
    bth.set_migrated(true);
    bth.set_ack_request(!opcode.is_response());
    [lrh.as_bytes().to_vec(), bth.as_bytes().to_vec()]
}

/// Returns a run with this opcode, by a path MTU of 1024.
fn run(opcode: BthOpcode, behind: &[u8]) -> PacketRun {
    let [lrh, bth] = run_headers(opcode);
    let (lrh, bth) = (
        Lrh::read_from_bytes(&lrh).unwrap(),
        Bth::read_from_bytes(&bth).unwrap(),
    );
    PacketRun::from_headers(Mtu::MTU_1024, (lrh, None), &bth, behind.to_vec(), 0).unwrap()
}

fn lane(number: u8) -> Vl {
    Vl::new(number).unwrap()
}

/// The two ends of a trunk.
struct Pair {
    now: Instant,
    ends: [Session; 2],
}

impl Pair {
    fn new(sites: [&str; 2]) -> Self {
        let now = Instant::ZERO;
        let ends = sites.map(|site| Session::new(now, config(site)));
        Self { now, ends }
    }

    fn open() -> Self {
        let mut pair = Self::new(["a", "b"]);
        pair.run();
        for (end, peer) in pair.ends.iter_mut().zip(["b", "a"]) {
            let opened = SessionEvent::Opened(config(peer).hello);
            assert_eq!(end.poll_event(), Some(opened));
        }
        pair
    }

    /// Carries bytes until no end has any.
    fn run(&mut self) {
        while self.carry(0, usize::MAX) | self.carry(1, usize::MAX) {}
    }

    /// Carries the bytes of one end in pieces.
    fn carry(&mut self, from: usize, piece: usize) -> bool {
        let mut bytes = Vec::new();
        self.ends[from].poll_transmit(&mut bytes, usize::MAX);
        for piece in bytes.chunks(piece.min(bytes.len().max(1))) {
            self.ends[1 - from].handle_bytes(self.now, piece);
        }
        !bytes.is_empty()
    }

    /// Takes a packet that came to one end.
    fn take(&mut self, end: usize, has_place: impl Fn(Vl) -> bool) -> Option<Frame> {
        match self.ends[end].poll_crossing(has_place)? {
            Crossing::Packet(frame) => Some(frame),
            Crossing::Run(run) => panic!("{run:?}"),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for end in &mut self.ends {
            if end.poll_timeout().is_some_and(|due| due <= self.now) {
                end.handle_timeout(self.now);
            }
        }
    }

    fn closed(&mut self, end: usize) -> Option<CloseReason> {
        let mut events = core::iter::from_fn(|| self.ends[end].poll_event());
        match events.by_ref().last()? {
            SessionEvent::Closed(reason) => Some(reason),
            _ => None,
        }
    }
}

fn header(kind: u8, flags: u8, lane: u8, length: u32) -> Vec<u8> {
    let mut header = vec![kind, flags, lane, 0];
    header.extend(length.to_be_bytes());
    header
}

#[test]
fn records_have_the_bytes_that_the_protocol_says() {
    let mut end = Session::new(Instant::ZERO, config("leaf-1"));
    let mut hello = Vec::new();
    assert!(end.poll_transmit(&mut hello, usize::MAX));
    let mut expected = header(0, 0, 0, 96);
    expected.extend(b"VHCATRNK\x00\x01\x00\x03\x00\x01\x08\x00");
    expected.extend(0x0002_c903_0000_0100_u64.to_be_bytes());
    expected.extend([8, 6]);
    expected.extend(b"leaf-1");
    expected.resize(8 + 96, 0);
    assert_eq!(hello, expected);

    let mut pair = Pair::open();
    let packet = frame(lane(3), &[9; 20]);
    pair.ends[0].send(packet.clone());
    pair.ends[0].report_port(false);
    let mut sent = Vec::new();
    pair.ends[0].poll_transmit(&mut sent, usize::MAX);
    let mut expected = header(4, 0, 0, 4);
    expected.extend([0; 4]);
    let carried = packet.len() - 2;
    expected.extend(header(1, 0, 3, u32::try_from(carried).unwrap()));
    expected.extend(&packet.bytes()[..carried]);
    assert_eq!(sent, expected);
    pair.ends[1].close(CloseReason::Stopping);
    let mut sent = Vec::new();
    pair.ends[1].poll_transmit(&mut sent, usize::MAX);
    assert_eq!(sent, [header(7, 0, 0, 4), vec![0, 7, 0, 0]].concat());
}

#[test]
fn a_run_has_one_header_and_one_payload_and_arrives_as_it_left() {
    // An RDMA write in three packets: RETH, then the payload.
    let reth = [&[0; 8][..], &[0, 0, 0, 9], &3000_u32.to_be_bytes()].concat();
    let behind = [reth, vec![7; 3000]].concat();
    let opcode = BthOpcode::RC_RDMA_WRITE_ONLY;
    let mut pair = Pair::open();
    assert!(pair.ends[0].carries_runs());
    pair.ends[0].send(Crossing::Run(run(opcode, &behind)));
    let mut sent = Vec::new();
    pair.ends[0].poll_transmit(&mut sent, usize::MAX);
    let mut expected = header(2, 3, 2, 8 + 12 + 16 + 3000);
    expected.extend(b"\x20\x52\x01\x02\x00\x00\x03\x04");
    expected.extend(b"\x0a\x40\xff\xff\x00\x00\x06\x07\x80\xff\xff\xfe");
    expected.extend(&behind);
    assert_eq!(sent, expected);

    pair.ends[1].handle_bytes(pair.now, &sent);
    let Some(Crossing::Run(arrived)) = pair.ends[1].poll_crossing(|_| true) else {
        panic!("no run");
    };
    let left = run(opcode, &behind);
    assert_eq!(
        (arrived.transfer(), arrived.payload()),
        (left.transfer(), left.payload())
    );
    assert_eq!(
        (arrived.head(), arrived.transfer().packets()),
        (left.head(), 3)
    );
    let [sent, received] = [0, 1].map(|end| *pair.ends[end].statistics());
    let words = left.head().unwrap().words;
    assert_eq!((sent.sent_packets, sent.sent_bytes), (3, words * 4));
    assert_eq!(
        (received.received_packets, received.received_bytes),
        (3, words * 4)
    );
}

#[test]
fn a_packet_of_a_connection_crosses_with_its_sender_in_front_of_it() {
    let source = PacketSource {
        function: FunctionId(3),
        qpn: Qpn::from_low_bits(0x0a_0b0c),
    };
    let behind = b"\x00\x03\x00\x00\x00\x0a\x0b\x0c";
    let mut pair = Pair::open();
    pair.ends[0].send(frame(lane(3), &[9; 20]).sent_by(source));
    pair.ends[0].send(Crossing::Run(
        run(BthOpcode::RC_SEND_ONLY, &[7; 60]).sent_by(source),
    ));
    let mut sent = Vec::new();
    pair.ends[0].poll_transmit(&mut sent, usize::MAX);
    // Lanes take turns, from VL0 on.
    assert_eq!(sent[..8], header(2, 0x83, 2, 8 + 8 + 12 + 60)[..]);
    assert_eq!(sent[8..16], behind[..]);
    let packet = 8 + 8 + 8 + 12 + 60;
    let carried = u32::try_from(sent.len() - packet - 8).unwrap();
    assert_eq!(sent[packet..packet + 8], header(1, 0x80, 3, carried)[..]);
    assert_eq!(sent[packet + 8..packet + 16], behind[..]);
    pair.ends[1].handle_bytes(pair.now, &sent);
    let Some(Crossing::Run(arrived)) = pair.ends[1].poll_crossing(|_| true) else {
        panic!("no run");
    };
    assert_eq!(arrived.template().source, Some(source));
    assert_eq!(pair.take(1, |_| true).unwrap().source(), Some(source));
    // All credits are given back.
    assert_eq!([0, 1].map(|end| pair.closed(end)), [None, None]);
}

#[test]
fn a_run_takes_credits_of_its_lane_by_its_bytes() {
    let mut pair = Pair::open();
    let full = vec![0; 60 * 1024];
    for _ in 0..WINDOW / full.len() as u64 + 4 {
        pair.ends[0].send(Crossing::Run(run(BthOpcode::RC_SEND_MIDDLE, &full)));
        pair.run();
    }
    let packets = |pair: &Pair| pair.ends[1].statistics().received_packets;
    assert_eq!(packets(&pair), 60 * (WINDOW / (full.len() as u64 + 20)));
    assert!(!pair.ends[0].has_place(lane(2)) && pair.ends[0].has_place(lane(3)));
    while pair.ends[1].poll_crossing(|_| true).is_some() {
        pair.run();
    }
    assert_eq!(packets(&pair), pair.ends[0].statistics().sent_packets);
    assert!(pair.ends[0].has_place(lane(2)));
    assert_eq!([0, 1].map(|end| pair.closed(end)), [None, None]);
}

#[test]
fn packets_arrive_as_they_left_whatever_pieces_the_stream_has() {
    for piece in [1, 2, 7, 9, 1000] {
        let mut pair = Pair::open();
        let mut damaged = frame(lane(1), &[5; 300]);
        damaged.damage(|bytes| bytes[60] ^= 1);
        let sent = [
            frame(Vl::MANAGEMENT, &[1; 256]),
            damaged,
            frame(lane(2), &[]),
        ];
        sent.iter()
            .for_each(|frame| pair.ends[0].send(frame.clone()));
        pair.carry(0, piece);
        let arrived = core::iter::from_fn(|| pair.take(1, |_| true));
        let arrived: Vec<_> = arrived.map(|frame| frame.bytes().to_vec()).collect();
        assert_eq!(arrived, sent.map(|frame| frame.bytes().to_vec()));
    }
}

#[test]
fn a_lane_without_credits_holds_up_no_other_lane() {
    let mut pair = Pair::open();
    let (slow, quick) = (lane(0), lane(1));
    let mut sent = 0;
    while pair.ends[0].has_place(slow) && sent < 1000 {
        pair.ends[0].send(frame(slow, &[0; 4096]));
        pair.run();
        sent += 1;
    }
    let arrived = pair.ends[1].statistics().received_bytes;
    assert!((WINDOW - 5000..=WINDOW).contains(&arrived), "{arrived}");
    pair.ends[0].send(frame(quick, &[7; 64]));
    pair.ends[0].send(frame(Vl::MANAGEMENT, &[8; 256]));
    pair.run();
    for expected in [Vl::MANAGEMENT, quick] {
        let frame = pair.take(1, |lane| lane != slow).unwrap();
        assert_eq!(frame.lane(), expected);
    }
    // All go on once there is room, none is lost.
    let mut arrived = 0;
    while pair.take(1, |_| true).is_some() {
        arrived += 1;
        pair.run();
    }
    assert_eq!(arrived, sent);
    assert_eq!(pair.closed(0), None);
}

#[test]
fn packets_on_vl15_are_discarded_where_too_many_wait() {
    let mut pair = Pair::open();
    for _ in 0..MANAGEMENT_DEPTH + 3 {
        pair.ends[0].send(frame(Vl::MANAGEMENT, &[0; 256]));
    }
    assert_eq!(pair.ends[0].statistics().discarded, 3);
    pair.run();
    pair.ends[0].send(frame(Vl::MANAGEMENT, &[0; 256]));
    pair.run();
    assert_eq!(pair.ends[1].statistics().discarded, 1);
}

#[test]
fn a_silent_end_is_given_up_and_a_live_one_is_not() {
    let mut pair = Pair::open();
    for _ in 0..10 {
        pair.pass(TIMEOUT / 3);
        pair.carry(0, usize::MAX);
        pair.pass(Duration::from_millis(2));
        pair.carry(1, usize::MAX);
        pair.carry(0, usize::MAX);
    }
    let round_trip = pair.ends[0].statistics().round_trip;
    assert_eq!(round_trip, Some(Duration::from_millis(2)));
    pair.pass(TIMEOUT);
    assert_eq!(pair.closed(0), Some(CloseReason::Timeout));
    assert_eq!(pair.ends[0].poll_timeout(), None);
    // The other end gets the reason, if it is there after all.
    let mut pair = Pair::open();
    pair.ends[0].handle_timeout(Instant::ZERO + TIMEOUT);
    pair.run();
    assert_eq!(pair.closed(1), Some(CloseReason::Timeout));
}

#[test]
fn ends_of_one_site_are_refused_with_the_remedy() {
    let mut pair = Pair::new(["leaf", "leaf"]);
    pair.run();
    for end in [0, 1] {
        let reason = pair.closed(end).unwrap();
        assert_eq!(reason, CloseReason::SameSite);
        assert!(reason.to_string().contains("--site"));
    }
}

#[test]
fn the_port_of_the_other_end_is_told_by_its_latest_state() {
    let mut pair = Pair::open();
    for enabled in [true, false, true, false] {
        pair.ends[0].report_port(enabled);
    }
    pair.run();
    let told = core::iter::from_fn(|| pair.ends[1].poll_event());
    let told: Vec<_> = told.collect();
    assert_eq!(told, [SessionEvent::PeerPort { enabled: false }]);
}

#[test]
fn a_peer_that_breaks_the_rules_is_let_go_with_the_reason() {
    let credit = |limit: u64| {
        let mut record = header(3, 0, 0, 120);
        (0..15).for_each(|_| record.extend(limit.to_be_bytes()));
        record
    };
    let packet = frame(lane(4), &[0; 64]);
    let packet = &packet.bytes()[..packet.len() - 2];
    let length = u32::try_from(packet.len()).unwrap();
    let on_lane = |lane| [&header(1, 0, lane, length)[..], packet].concat();
    let too_long = u32::try_from(MAX_BODY + 1).unwrap();
    let with_mtu = |mtu, lane, body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap();
        [&header(2, mtu, lane, length)[..], body].concat()
    };
    let run = |opcode, behind: &[u8]| with_mtu(3, 2, &run_body(opcode, behind));
    let changed = |at: usize, bits: u8| {
        let mut bytes = run(BthOpcode::RC_SEND_ONLY, &[1; 40]);
        bytes[at] ^= bits;
        bytes
    };
    let too_many = |lane| on_lane(lane).repeat(1 << 14);
    for (bytes, reason) in [
        (header(1, 0, 0, too_long), CloseReason::Garbage),
        (header(1, 0, 0, u32::MAX), CloseReason::Garbage),
        (header(1, 0, 0, 0), CloseReason::Garbage),
        (header(2, 3, 2, 0), CloseReason::Garbage),
        (
            [&header(1, 0x80, 0, 7)[..], &[0; 7]].concat(),
            CloseReason::Garbage,
        ),
        (
            [&header(2, 0x83, 2, 8)[..], &[0, 0, 0, 0, 1, 0, 0, 0]].concat(),
            CloseReason::Garbage,
        ),
        (
            run(BthOpcode::RC_SEND_ONLY, &[0; 5000]).repeat(1 << 10),
            CloseReason::Overrun,
        ),
        (
            run(BthOpcode::RC_SEND_ONLY, &[0; 65_537]),
            CloseReason::Garbage,
        ),
        // Packets before the last one are full, and the last one has a byte.
        (
            run(BthOpcode::RC_SEND_FIRST, &[0; 1025]),
            CloseReason::Garbage,
        ),
        (run(BthOpcode::RC_SEND_MIDDLE, &[]), CloseReason::Garbage),
        (run(BthOpcode::RC_SEND_LAST, &[]), CloseReason::Garbage),
        // Neither acknowledgements nor requests to read have a payload, and no such requests go by UC.
        (
            run(BthOpcode::RC_ACKNOWLEDGE, &[0; 5]),
            CloseReason::Garbage,
        ),
        (
            run(BthOpcode::RC_RDMA_READ_REQUEST, &[0; 17]),
            CloseReason::Garbage,
        ),
        (run(BthOpcode::new(0x2c), &[0; 16]), CloseReason::Garbage),
        (
            run(BthOpcode::RC_RDMA_WRITE_ONLY, &[0; 15]),
            CloseReason::Garbage,
        ),
        (run(BthOpcode::UD_SEND_ONLY, &[0; 8]), CloseReason::Garbage),
        (run(BthOpcode::new(0x1f), &[]), CloseReason::Garbage),
        (
            with_mtu(0, 2, &run_body(BthOpcode::RC_SEND_ONLY, &[])),
            CloseReason::Garbage,
        ),
        (
            with_mtu(6, 2, &run_body(BthOpcode::RC_SEND_ONLY, &[])),
            CloseReason::Garbage,
        ),
        (
            with_mtu(3, 3, &run_body(BthOpcode::RC_SEND_ONLY, &[])),
            CloseReason::Garbage,
        ),
        // Versions of LRH and BTH, a raw packet, a GRH that is none, pad bytes, VL15.
        (changed(8, 1), CloseReason::Garbage),
        (changed(9, 2), CloseReason::Garbage),
        (changed(9, 1), CloseReason::Garbage),
        (changed(17, 1), CloseReason::Garbage),
        (changed(17, 0x10), CloseReason::Garbage),
        (changed(8, 0xd0), CloseReason::Garbage),
        (header(9, 0, 0, 0), CloseReason::Garbage),
        (header(5, 0, 0, 3), CloseReason::Garbage),
        (on_lane(5), CloseReason::Garbage),
        (on_lane(16), CloseReason::Garbage),
        (too_many(4), CloseReason::Overrun),
        (credit(u64::MAX), CloseReason::Garbage),
        ([credit(1 << 20), credit(0)].concat(), CloseReason::Garbage),
        (header(0, 0, 0, 0), CloseReason::Garbage),
        // A pong of the future.
        (
            [header(6, 0, 0, 8), vec![0xff; 8]].concat(),
            CloseReason::Garbage,
        ),
        (
            header(7, 0, 0, 4).into_iter().chain([9; 4]).collect(),
            CloseReason::Other,
        ),
    ] {
        let mut pair = Pair::open();
        let mut bytes = bytes;
        bytes.resize(bytes.len().max(16), 0);
        pair.ends[0].handle_bytes(pair.now, &bytes);
        assert_eq!(pair.closed(0), Some(reason), "{:x?}", &bytes[..16]);
        pair.ends[0].handle_bytes(pair.now, &bytes);
        assert_eq!(pair.ends[0].poll_event(), None);
    }
}

#[test]
fn runs_pass_only_if_both_ends_take_them() {
    let mut pair = Pair::new(["a", "b"]);
    let mut hello = Vec::new();
    pair.ends[1].poll_transmit(&mut hello, usize::MAX);
    // An end of an earlier version has no features.
    hello[8 + 11] = 0;
    pair.ends[0].handle_bytes(pair.now, &hello);
    assert!(!pair.ends[0].carries_runs());
    let body = run_body(BthOpcode::RC_SEND_ONLY, &[]);
    let record = header(2, 3, 2, u32::try_from(body.len()).unwrap());
    pair.ends[0].handle_bytes(pair.now, &[record, body].concat());
    assert_eq!(pair.closed(0), Some(CloseReason::Garbage));
}

#[test]
fn what_is_not_a_trunk_is_let_go_at_its_first_record() {
    let hello = {
        let mut end = Session::new(Instant::ZERO, config("b"));
        let mut bytes = Vec::new();
        end.poll_transmit(&mut bytes, usize::MAX);
        bytes
    };
    let changed = |at: usize| {
        let mut bytes = hello.clone();
        bytes[at] ^= 0x40;
        bytes
    };
    for (bytes, reason) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), CloseReason::Garbage),
        (changed(8), CloseReason::Version),
        (changed(17), CloseReason::Version),
        (changed(33), CloseReason::Garbage),
        (changed(34), CloseReason::Garbage),
        (header(1, 0, 0, 20).repeat(4), CloseReason::Version),
        (header(0, 0, 0, 1 << 16), CloseReason::Garbage),
    ] {
        let mut end = Session::new(Instant::ZERO, config("a"));
        end.handle_bytes(Instant::ZERO, &bytes);
        let event = end.poll_event();
        assert_eq!(event, Some(SessionEvent::Closed(reason)), "{bytes:x?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_session_panic_or_grow(
        records in proptest::collection::vec((0_u8..10, any::<u8>(), 0_u8..17, 0_u32..200), 0..30),
        noise in any::<u64>(),
    ) {
        let mut pair = Pair::open();
        let mut noise = noise;
        let mut bytes = Vec::new();
        for (kind, flags, lane, length) in records {
            bytes.extend(header(kind, flags, lane, length));
            for _ in 0..length {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                bytes.push((noise >> 56) as u8);
            }
        }
        pair.ends[0].handle_bytes(pair.now, &bytes);
        let mut out = Vec::new();
        pair.ends[0].poll_transmit(&mut out, usize::MAX);
        prop_assert!(out.len() <= MAX_BODY + 16);
        while pair.ends[0].poll_crossing(|_| true).is_some() {}
    }

    #[test]
    fn a_run_of_any_bytes_closes_the_session_or_is_all_there(
        opcode in any::<u8>(),
        mtu in 0_u8..8,
        flips in proptest::collection::vec((0_usize..20, any::<u8>()), 0..3),
        behind in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut body = run_body(BthOpcode::new(opcode), &behind);
        for (at, bits) in flips {
            body[at] ^= bits;
        }
        let vl = body[0] >> 4;
        let record = header(2, mtu, vl, u32::try_from(body.len()).unwrap());
        let mut pair = Pair::open();
        pair.ends[0].handle_bytes(pair.now, &[record, body].concat());
        match pair.ends[0].poll_crossing(|_| true) {
            Some(Crossing::Run(mut run)) => {
                let mut payload = 0;
                loop {
                    let (_, first) = run.first().unwrap();
                    payload += first.len();
                    prop_assert!(run.frame(&mut FrameWriter::default()).is_some());
                    if !run.advance() {
                        break;
                    }
                }
                prop_assert!(payload <= behind.len());
                prop_assert!(behind.len() - payload <= 44);
            }
            Some(Crossing::Packet(frame)) => prop_assert!(false, "{frame:?}"),
            None => prop_assert_eq!(pair.closed(0), Some(CloseReason::Garbage)),
        }
    }
}
