//! Transfers as frames with checksums.

use std::collections::BTreeSet;

use ib_transport::{AtomicOp, Ending, RemoteRange, RemoteStart, Run, RunOperation, Transfer};
use ib_vtime::SplitMix64;
use ib_wire::packet::{Bth, Lrh, Packet, TransportFrame, TransportService};
use ib_wire::{Lid, PKey};

use crate::packets::{
    ACK, ack, add, atomic_write, data, first, flush, last, middle, of_region, only, psn, read,
    response, write,
};
use crate::random::{ALL, pick};
use crate::splitting::{any_response, any_run};

const RANGE: RemoteRange = RemoteRange {
    addr: 0x1122_3344_5566_7788,
    rkey: ALL,
    len: 9,
};

const MASKED_SWAP: AtomicOp = AtomicOp::MaskedCompareSwap {
    compare: 1,
    compare_mask: 2,
    swap: 3,
    swap_mask: 4,
};
const MASKED_ADD: AtomicOp = AtomicOp::MaskedFetchAdd {
    add: 5,
    boundary: 6,
};

fn masked(op: AtomicOp) -> Run {
    let start = RemoteStart { addr: 8, rkey: ALL };
    only(10, RunOperation::Atomic(start, op), 0)
}

/// Writes a transfer of one packet as a frame.
pub(crate) fn encode(service: TransportService, transfer: &Transfer, payload: &[u8]) -> Vec<u8> {
    let headers = transfer
        .headers(service)
        .expect("one packet of a known opcode");
    let mut bth = Bth {
        opcode: headers.opcode,
        pkey: PKey::DEFAULT_FULL,
        psn: headers.psn,
        ..Bth::default()
    };
    bth.set_ack_request(headers.ack_request);
    bth.set_solicited(headers.solicited);
    let frame = TransportFrame {
        lrh: Lrh {
            dlid: Lid::new(1),
            ..Lrh::default()
        },
        grh: None,
        bth,
        extended: headers.extended(),
        payload,
    };
    let mut buffer = vec![0; frame.frame_bytes()];
    frame.write(&mut buffer).expect("it fits");
    buffer
}

/// Reads a frame, or returns `None` if it is damaged.
pub(crate) fn decode(frame: &[u8]) -> Option<(Transfer, Vec<u8>)> {
    let packet = Packet::parse(frame).ok()?;
    packet.check_crcs().ok()?;
    let transport = packet.transport()?;
    let len = u32::try_from(transport.payload.len()).ok()?;
    let transfer = Transfer::from_packet(transport.bth, &transport.extended, len);
    Some((transfer, transport.payload.to_vec()))
}

#[test]
fn t005_frames_have_the_opcodes_and_headers_of_the_standard() {
    let write = write(10, ALL, 64, 5);
    for (transfer, opcode, len) in [
        (Transfer::Request(write), 0x0a, 16),
        (Transfer::Request(first(write)), 0x06, 16),
        (Transfer::Request(middle(write)), 0x07, 0),
        (Transfer::Request(last(write)), 0x08, 0),
        (Transfer::Request(read(10, ALL, 0, 5)), 0x0c, 16),
        (Transfer::Request(add(10, ALL, 0, 5)), 0x14, 28),
        (Transfer::Request(atomic_write(10, ALL, 0, 8)), 0x1d, 16),
        (Transfer::Request(flush(10, 1, RANGE)), 0x1c, 20),
        (Transfer::Request(masked(MASKED_SWAP)), 0xd3, 44),
        (Transfer::Request(masked(MASKED_ADD)), 0xd4, 28),
        (Transfer::Response(ack(10)), 0x11, 4),
        (Transfer::Response(data(10, true, false, 256)), 0x0d, 4),
        (Transfer::Response(data(10, false, false, 256)), 0x0e, 0),
        (Transfer::Response(data(10, false, true, 1)), 0x0f, 4),
        (Transfer::Response(data(10, true, true, 1)), 0x10, 4),
    ] {
        let headers = transfer.headers(TransportService::Rc).expect("an opcode");
        assert_eq!(
            (headers.opcode.get(), headers.extended().len()),
            (opcode, len)
        );
        let expected = headers.opcode.extended_headers().expect("a known opcode");
        assert_eq!(expected.aeth, matches!(opcode, 0x0d | 0x0f..=0x12));
    }
    let original = 7;
    let atomic = ib_transport::Answer::Atomic {
        syndrome: ACK,
        original,
    };
    let answer = Transfer::Response(response(10, atomic));
    let headers = answer.headers(TransportService::Rc).expect("an opcode");
    assert_eq!((headers.opcode.get(), headers.extended().len()), (0x12, 12));
    assert_eq!(headers.psn, psn(10));
    let immediate = RunOperation::Send(Ending::Immediate([1; 4]));
    let unreliable = Transfer::Request(only(10, immediate, 5));
    let headers = unreliable.headers(TransportService::Uc).expect("an opcode");
    assert_eq!(
        (headers.opcode.get(), headers.extended()),
        (0x25, &[1; 4][..])
    );
    let reserved = Transfer::Request(only(10, RunOperation::Reserved, 0));
    assert_eq!(reserved.headers(TransportService::Rc), None);
}

/// IBA annex A19.
#[test]
fn the_reth_of_a_flush_follows_placement_and_selectivity() {
    let [a, b, c, d] = ALL.get().to_be_bytes();
    for (run, feth) in [
        (flush(10, 1, RANGE), 0x01),
        (of_region(flush(10, 3, RANGE)), 0x13),
    ] {
        let flush = Transfer::Request(run);
        let frame = encode(TransportService::Rc, &flush, &[]);
        let bytes = [
            0x1c, 0, 0xff, 0xff, 0, 0, 0, 0, 0x80, 0, 0, 10, // BTH
            0, 0, 0, feth, // FETH
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, a, b, c, d, 0, 0, 0, 9, // RETH
        ];
        assert_eq!(frame[size_of::<Lrh>()..][..bytes.len()], bytes);
        assert_eq!(decode(&frame), Some((flush, Vec::new())));
    }
}

/// IBA 1.6, ATOMIC WRITE.
#[test]
fn t005_the_value_of_an_atomic_write_follows_its_reth() {
    let write = Transfer::Request(atomic_write(10, ALL, 0x1122_3344_5566_7788, 8));
    let frame = encode(TransportService::Rc, &write, b"8 bytes!");
    let [a, b, c, d] = ALL.get().to_be_bytes();
    let bytes = [
        0x1d, 0, 0xff, 0xff, 0, 0, 0, 0, 0x80, 0, 0, 10, // BTH
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, a, b, c, d, 0, 0, 0, 8, // RETH
        b'8', b' ', b'b', b'y', b't', b'e', b's', b'!',
    ];
    assert_eq!(frame[size_of::<Lrh>()..][..bytes.len()], bytes);
    assert_eq!(decode(&frame), Some((write, b"8 bytes!".to_vec())));
}

#[test]
fn t005_every_request_opcode_of_both_services_is_written() {
    let mut random = SplitMix64::new(14);
    let mut seen = [BTreeSet::new(), BTreeSet::new()];
    for _ in 0..4000 {
        let run = Run {
            packets: 1,
            ..any_run(&mut random, 1)
        };
        let invalidates = matches!(run.operation, RunOperation::Send(_)) && random.chance(1, 4);
        let operation = match run.operation {
            RunOperation::Send(_) if invalidates => RunOperation::Send(Ending::Invalidate(ALL)),
            RunOperation::Atomic(at, _) if random.chance(1, 2) => {
                let swap = AtomicOp::CompareSwap {
                    compare: 1,
                    swap: 2,
                };
                let ops = [swap, MASKED_SWAP, MASKED_ADD];
                RunOperation::Atomic(at, pick(&mut random, &ops))
            }
            other => other,
        };
        let run = Run { operation, ..run };
        for (seen, service) in seen
            .iter_mut()
            .zip([TransportService::Rc, TransportService::Uc])
        {
            let headers = Transfer::Request(run).headers(service).expect("one packet");
            let opcode = headers.opcode;
            if opcode.name().is_none() || opcode.service() != Some(service) {
                continue;
            }
            seen.insert(opcode.get());
            assert_eq!(
                (opcode.is_first_or_only(), opcode.is_last_or_only()),
                (run.first, run.last)
            );
            let is_send = matches!(run.operation, RunOperation::Send(_));
            assert_eq!(opcode.is_send(), is_send);
            let set = opcode.extended_headers().expect("a known opcode");
            let ending = match run.operation {
                RunOperation::Send(ending) | RunOperation::Write(_, ending) if run.last => ending,
                _ => Ending::Plain,
            };
            assert_eq!(set.immediate, matches!(ending, Ending::Immediate(_)));
            assert_eq!(set.ieth, matches!(ending, Ending::Invalidate(_)));
        }
    }
    let [rc, uc] = seen.map(|seen| seen.len());
    assert_eq!(
        (rc, uc),
        (20, 12),
        "sends and writes, a read, four atomic operations and a flush"
    );
}

#[test]
fn transfers_survive_frames() {
    let mut random = SplitMix64::new(6);
    for case in 0..20_000 {
        let transfer = if random.chance(1, 2) {
            let run = any_run(&mut random, 1000);
            Transfer::Request(Run { packets: 1, ..run })
        } else {
            let response = any_response(&mut random, 1000);
            Transfer::Response(ib_transport::Response {
                packets: 1,
                ..response
            })
        };
        if transfer.payload_len() > 4096 {
            continue;
        }
        let payload = vec![0xa5; transfer.payload_len() as usize];
        let mut frame = encode(TransportService::Rc, &transfer, &payload);
        let (back, bytes) = decode(&frame).expect("an intact frame");
        // A middle response has no AETH, hence no MSN.
        let back = match (back, transfer) {
            (Transfer::Response(back), Transfer::Response(sent)) => {
                Transfer::Response(ib_transport::Response {
                    msn: sent.msn,
                    ..back
                })
            }
            (back, _) => back,
        };
        assert_eq!((back, bytes), (transfer, payload), "case {case}");
        let at = usize::try_from(random.below(frame.len() as u64)).expect("small");
        frame[at] ^= 1 << random.below(8);
        assert_eq!(decode(&frame), None, "case {case}: byte {at} is damaged");
    }
}

#[test]
fn t005_masked_atomic_operations_are_read_as_they_were_written() {
    for op in [MASKED_SWAP, MASKED_ADD] {
        let request = Transfer::Request(masked(op));
        let frame = encode(TransportService::Rc, &request, &[]);
        assert_eq!(decode(&frame), Some((request, Vec::new())));
    }
}

#[test]
fn masked_atomic_operations_act_on_some_bits() {
    let swap = |compare, compare_mask| AtomicOp::MaskedCompareSwap {
        compare,
        compare_mask,
        swap: 0xaaaa,
        swap_mask: 0x0ff0,
    };
    let add = |add, boundary| AtomicOp::MaskedFetchAdd { add, boundary };
    const TOP: u64 = 1 << 63;
    for (op, original, then) in [
        (swap(0x1234, 0x00ff), 0x5634, 0x5aa4),
        (swap(0x1234, 0x0fff), 0x5634, 0x5634),
        (swap(7, 0), 0x5634, 0x5aa4),
        (add(1, 0), u64::MAX, 0),
        (add(1, TOP), u64::MAX, 0),
        (add(1, 0x80), 0x12ff, 0x1200),
        (add(0x0101, 0x8080), 0x01_ffff, 0x01_0000),
        (add(0x80, 0x80), 0x80, 0),
        (add(0x7f, 0x80), 0x7f, 0xfe),
        (add(u64::MAX, u64::MAX), 5, !5),
    ] {
        assert_eq!(op.apply(original), then, "{op:?} {original:#x}");
    }
}
