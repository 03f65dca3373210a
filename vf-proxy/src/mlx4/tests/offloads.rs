//! Checksums and segmentation for IPoIB, in work requests of the guest.

use mlx4_defs::cqe::{Cqe, Syndrome};
use mlx4_defs::qp::QpState;
use mlx4_defs::wqe::{SegmentationHeader, WqeOpcode};

use super::super::capability::{LOG_MAX_GSO, RESERVED_LKEY};
use super::queue_scene::*;
use super::*;

const OUT: u64 = 40;
const IN: u64 = 44;
const MSS: u16 = 1000;

/// Headers of IPoIB, IPv4 and TCP, lengths and checksums left open.
fn headers() -> Vec<u8> {
    let mut headers = vec![0; 44];
    (headers[0], headers[4], headers[13]) = (8, 0x45, 6);
    headers[16..24].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2]);
    headers[36] = 5 << 4;
    headers
}

/// A queue pair as ipoib makes it.
fn make_qp(guest: &mut Guest, page: u64, cq: &DriverCq) -> DriverQp {
    let qpn = guest.reserve_qpn();
    guest.make_qp_with(page, cq, qpn, |context| {
        context.set_log_max_message(LOG_MAX_GSO);
    })
}

/// The segments behind the control segment of a message that is to be cut.
fn lso(to: u32, mss: u16, header_length: u16, headers: &[u8], payload: (u64, u32, u32)) -> Vec<u8> {
    let header = SegmentationHeader {
        mss: U16::new(mss),
        header_length: U16::new(header_length),
    };
    let mut segments = [datagram(to).as_bytes(), header.as_bytes(), headers].concat();
    segments.resize(segments.len().next_multiple_of(16), 0);
    let (addr, len, lkey) = payload;
    segments.extend(data(addr, len, lkey).as_bytes());
    segments
}

#[test]
fn a_message_is_cut_into_packets_whose_checksums_the_peer_finds_right() {
    let mut guest = Guest::online();
    let mut cq = guest.make_cq(10);
    let mut left = make_qp(&mut guest, 12, &cq);
    let mut right = make_qp(&mut guest, 16, &cq);
    let message: Vec<u8> = (0..4500_u32).map(|place| place.to_le_bytes()[0]).collect();
    let (out, into) = (guest.page(OUT), guest.page(IN));
    guest.write(out, &message);
    for place in 0..5 {
        guest.receive(&mut right, into + place * 2048, 2048);
    }
    let request = lso(right.qpn, MSS, 44, &headers(), (out, 4500, RESERVED_LKEY));
    guest.post_send(&mut left, control(WqeOpcode::LSO), &request);
    guest.ring(&left);
    guest.settle();
    let (sent, received): (Vec<_>, Vec<_>) = guest
        .poll_all(&mut cq)
        .into_iter()
        .partition(|cqe| cqe.qpn.get() == left.qpn);
    let opcodes: Vec<_> = sent.iter().map(|cqe| cqe.owner_opcode.opcode()).collect();
    assert_eq!(opcodes, [WqeOpcode::LSO.get()]);
    let mut got = Vec::new();
    for (place, cqe) in (0..).zip(&received) {
        assert_eq!(cqe.status.get(), Cqe::IPV4 | Cqe::TCP | Cqe::IP_OK);
        assert_eq!(cqe.checksum.get(), Cqe::CHECKSUM_OK);
        let packet: [u8; 2048] = guest.read(into + place * 2048);
        let length = cqe.byte_count.get() as usize;
        got.extend(&packet[GRH + 44..length]);
    }
    assert_eq!((received.len(), got), (5, message));
}

#[test]
fn checksums_are_written_where_the_driver_asks_and_wrong_ones_are_not_vouched_for() {
    let mut guest = Guest::online();
    let mut cq = guest.make_cq(10);
    let mut left = make_qp(&mut guest, 12, &cq);
    let mut right = make_qp(&mut guest, 16, &cq);
    let (out, into) = (guest.page(OUT), guest.page(IN));
    let mut packet = headers();
    packet[7] = 40 + 60;
    packet.extend([0xa5; 60]);
    guest.write(out, &packet);
    for asked in [true, false] {
        guest.receive(&mut right, into, 2048);
        let mut head = control(WqeOpcode::SEND);
        head.set_ip_checksum(asked);
        head.set_l4_checksum(asked);
        // The headers are split, too.
        let mut segments = datagram(right.qpn).as_bytes().to_vec();
        segments.extend(data(out, 30, RESERVED_LKEY).as_bytes());
        segments.extend(data(out + 30, 74, RESERVED_LKEY).as_bytes());
        guest.post_send(&mut left, head, &segments);
        guest.ring(&left);
        guest.settle();
        let told: Vec<_> = guest
            .poll_all(&mut cq)
            .iter()
            .map(|cqe| cqe.checksum.get())
            .collect();
        assert_eq!(told.contains(&Cqe::CHECKSUM_OK), asked, "{told:?}");
        let got: [u8; 104] = guest.read(into + GRH as u64);
        assert_eq!(got[44..], packet[44..]);
    }
}

#[test]
fn requests_that_lie_about_their_headers_end_the_send_queue_and_nothing_else() {
    let mut guest = Guest::online();
    let mut cq = guest.make_cq(10);
    let qpn = guest.reserve_qpn();
    // Slots of 256 bytes.
    let mut left = guest.make_qp_with(12, &cq, qpn, |context| {
        context.set_log_sq_entries(4);
        context.set_log_sq_stride(4);
    });
    (left.log_sends, left.log_send) = (4, 8);
    let right = make_qp(&mut guest, 16, &cq);
    let out = guest.page(OUT);
    let memory = |len| (out, len, RESERVED_LKEY);
    let mut six = headers();
    six[4] = 0x60;
    let requests = [
        ("no MSS", lso(right.qpn, 0, 44, &headers(), memory(9))),
        ("no headers", lso(right.qpn, MSS, 0, &[], memory(9))),
        (
            "headers beyond the request",
            lso(right.qpn, MSS, 4000, &headers(), memory(9)),
        ),
        (
            "half the headers",
            lso(right.qpn, MSS, 40, &headers(), memory(9)),
        ),
        ("IPv6", lso(right.qpn, MSS, 44, &six, memory(9))),
        (
            "long headers without BLH",
            lso(right.qpn, MSS, 61, &[0; 61], memory(9)),
        ),
        (
            "packets beyond the MTU",
            lso(right.qpn, 5000, 44, &headers(), memory(8000)),
        ),
        (
            "too much",
            lso(right.qpn, MSS, 44, &headers(), memory(1 << 16 | 1)),
        ),
        ("no payload", lso(right.qpn, MSS, 44, &headers(), memory(0))),
        (
            "a key of a region",
            lso(right.qpn, MSS, 44, &headers(), (out, 9, 0x4000)),
        ),
        (
            "memory that is not there",
            lso(
                right.qpn,
                MSS,
                44,
                &headers(),
                (u64::MAX - 99, 9, RESERVED_LKEY),
            ),
        ),
    ];
    for (name, request) in requests {
        guest.post_send(&mut left, control(WqeOpcode::LSO), &request);
        guest.ring(&left);
        guest.settle();
        let cqe = guest.poll_one(&mut cq);
        let expected = if name == "packets beyond the MTU" {
            Syndrome::LOCAL_LENGTH
        } else {
            Syndrome::LOCAL_QP_OP
        };
        assert_eq!(syndrome(&cqe), Some(expected), "{name}");
        assert_eq!(guest.state(&left), QpState::SQER, "{name}");
        assert_eq!(guest.state(&right), QpState::RTS, "{name}");
        guest.change_state(Opcode::SQERR2RTS_QP, &left);
    }
}
