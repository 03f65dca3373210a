use hca_api::LKey;
use ib_wire::{Gid, Lid, PortNum, QKey, Qpn, Sl};
use proptest::prelude::*;
use zerocopy::IntoBytes;
use zerocopy::network_endian::{U32, U64};

use super::*;

const WHOLE: LKey = LKey(0x8000_0300);

fn keys() -> LocalKeys {
    LocalKeys {
        whole_space: Some(WHOLE),
    }
}

fn control(opcode: WqeOpcode, bytes: usize) -> ControlSegment {
    let mut control = ControlSegment::default();
    control.set_opcode(opcode);
    control.set_size(u8::try_from(bytes.div_ceil(16)).unwrap());
    control
}

fn segment(addr: u64, len: u32, lkey: u32) -> DataSegment {
    DataSegment {
        byte_count: U32::new(len),
        lkey: U32::new(lkey),
        address: U64::new(addr),
    }
}

/// A request with these segments behind the two that each datagram has, in a slot of 256 bytes.
fn wqe(opcode: WqeOpcode, datagram: &DatagramSegment, segments: &[u8]) -> Vec<u8> {
    let body = [datagram.as_bytes(), segments].concat();
    let mut bytes = control(opcode, 16 + body.len()).as_bytes().to_vec();
    bytes.extend(body);
    bytes.resize(256, 0xa5);
    bytes
}

fn parse(wqe: &[u8]) -> (Result<WorkRequest, BadWqe>, SendData) {
    parse_for(Transport::Datagram, wqe)
}

fn parse_for(transport: Transport, wqe: &[u8]) -> (Result<WorkRequest, BadWqe>, SendData) {
    let mut data = SendData::default();
    let request = WorkRequest::parse(wqe, transport, keys(), &mut data);
    (request, data)
}

/// A request with these segments, in a slot of so many bytes.
fn plain(opcode: WqeOpcode, segments: &[u8], slot: usize) -> Vec<u8> {
    let mut bytes = control(opcode, 16 + segments.len()).as_bytes().to_vec();
    bytes.extend(segments);
    bytes.resize(slot, 0);
    bytes
}

#[test]
fn a_connection_reaches_the_peers_memory_as_far_as_its_transport_goes() {
    let remote = RemoteAddressSegment {
        address: U64::new(0x1_2345_6789),
        rkey: U32::new(0x7701),
        ..RemoteAddressSegment::default()
    };
    let operands = AtomicSegment {
        swap_add: U64::new(5),
        compare: U64::new(7),
    };
    let there = RemoteAddress {
        addr: 0x1_2345_6789,
        rkey: RKey(0x7701),
    };
    let memory = segment(6, 8, 1 << 8);
    let reaches = [remote.as_bytes(), memory.as_bytes()].concat();
    let atomic = [remote.as_bytes(), operands.as_bytes(), memory.as_bytes()].concat();
    let swap = SendOp::CompareSwap {
        remote: there,
        compare: 7,
        swap: 5,
    };
    let add = SendOp::FetchAdd {
        remote: there,
        add: 5,
    };
    let masked_add = SendOp::MaskedFetchAdd {
        remote: there,
        add: 5,
        boundary: 7,
    };
    let operands = MaskedAtomicSegment {
        swap_add: U64::new(1),
        compare: U64::new(2),
        swap_add_mask: U64::new(3),
        compare_mask: U64::new(4),
    };
    let masked = [remote.as_bytes(), operands.as_bytes(), memory.as_bytes()].concat();
    let masked_swap = SendOp::MaskedCompareSwap {
        remote: there,
        compare: 2,
        compare_mask: 4,
        swap: 1,
        swap_mask: 3,
    };
    let immediate = SendOp::RdmaWriteImmediate(there, 0);
    for (opcode, segments, op, on_uc) in [
        (WqeOpcode::SEND, memory.as_bytes(), SendOp::Send, true),
        (
            WqeOpcode::RDMA_WRITE,
            &reaches,
            SendOp::RdmaWrite(there),
            true,
        ),
        (WqeOpcode::RDMA_WRITE_IMM, &reaches, immediate, true),
        (
            WqeOpcode::RDMA_READ,
            &reaches,
            SendOp::RdmaRead(there),
            false,
        ),
        (WqeOpcode::ATOMIC_CS, &atomic, swap, false),
        (WqeOpcode::ATOMIC_FA, &atomic, add, false),
        (WqeOpcode::MASKED_ATOMIC_CS, &masked, masked_swap, false),
        (WqeOpcode::MASKED_ATOMIC_FA, &atomic, masked_add, false),
    ] {
        let bytes = plain(opcode, segments, 128);
        let (request, data) = parse_for(Transport::Rc, &bytes);
        let request = request.unwrap();
        assert_eq!(request.op, op);
        let posted = request.request(1, &data);
        assert_eq!(posted.destination, None);
        assert!(matches!(posted.payload, Payload::Gather([sge]) if sge.len == 8));
        let (on, _) = parse_for(Transport::Uc, &bytes);
        assert_eq!(on.is_ok(), on_uc, "{opcode}");
        if op != SendOp::Send {
            let (short, _) = parse_for(Transport::Rc, &plain(opcode, &[], 128));
            assert_eq!(short, Err(BadWqe), "{opcode}");
        }
    }
    for opcode in [WqeOpcode::BIND_MW, WqeOpcode::NOP] {
        let (request, _) = parse_for(Transport::Rc, &plain(opcode, &atomic, 128));
        assert_eq!(request, Err(BadWqe), "{opcode}");
    }
}

#[test]
fn t069_a_registration_is_the_drivers_segment_and_has_no_message() {
    let mut segment = RegisterSegment {
        key: U32::new(0x0012_3456),
        page_list: U64::new(0x1_0000_3000),
        start: U64::new(0x7777_0000_0010),
        length: U64::new(0x2000),
        log_page_size: U32::new(12),
        ..RegisterSegment::default()
    };
    segment.set_local_read(true);
    let mut expected = FastRegister {
        key: RKey(0x0012_3456),
        iova: 0x7777_0000_0010,
        len: 0x2000,
        pages: PageList::InMemory(0x1_0000_3000),
        page_shift: 12,
        access: AccessFlags::empty(),
    };
    type Set = fn(&mut RegisterSegment);
    let rights: [(Set, AccessFlags); 5] = [
        (|_| (), AccessFlags::empty()),
        (|s| s.set_local_write(true), AccessFlags::LOCAL_WRITE),
        (|s| s.set_remote_read(true), AccessFlags::REMOTE_READ),
        (|s| s.set_remote_write(true), AccessFlags::REMOTE_WRITE),
        (|s| s.set_atomic(true), AccessFlags::REMOTE_ATOMIC),
    ];
    let parse_segment = |transport, segment: &RegisterSegment| {
        parse_for(transport, &plain(WqeOpcode::FMR, segment.as_bytes(), 64))
    };
    for (set, right) in rights {
        set(&mut segment);
        expected.access |= right;
        let (request, data) = parse_segment(Transport::Rc, &segment);
        let request = request.unwrap();
        assert!(request.registers());
        assert_eq!(request.op, SendOp::FastRegister(expected));
        assert_eq!(request.request(1, &data).payload, Payload::Gather(&[]));
    }
    for transport in [Transport::Uc, Transport::Datagram, Transport::Tunnel] {
        assert_eq!(parse_segment(transport, &segment).0, Err(BadWqe));
    }
    let short = plain(WqeOpcode::FMR, &segment.as_bytes()[..32], 64);
    assert_eq!(parse_for(Transport::Rc, &short).0, Err(BadWqe));
    // A size beyond a byte is no small one.
    segment.log_page_size.set(0x10c);
    expected.page_shift = u8::MAX;
    let large = parse_segment(Transport::Rc, &segment).0.unwrap();
    assert_eq!(large.op, SendOp::FastRegister(expected));
    segment.offset.set(8);
    assert_eq!(parse_segment(Transport::Rc, &segment).0, Err(BadWqe));
}

#[test]
fn t070_t071_keys_to_invalidate_stand_in_a_segment_of_their_own_and_in_a_sends_control() {
    let gone = LocalInvalidateSegment {
        key: U32::new(0x4001),
        ..LocalInvalidateSegment::default()
    };
    let local = plain(WqeOpcode::LOCAL_INVAL, gone.as_bytes(), 64);
    let (request, data) = parse_for(Transport::Rc, &local);
    let request = request.unwrap();
    assert_eq!(request.op, SendOp::LocalInvalidate(RKey(0x4001)));
    assert!(!request.registers());
    assert_eq!(request.request(1, &data).payload, Payload::Gather(&[]));
    let short = plain(WqeOpcode::LOCAL_INVAL, &gone.as_bytes()[..16], 64);
    assert_eq!(parse_for(Transport::Rc, &short).0, Err(BadWqe));
    let memory = segment(6, 8, 1 << 8);
    let mut remote = plain(WqeOpcode::SEND_INVAL, memory.as_bytes(), 64);
    remote[12..16].copy_from_slice(&[0, 0, 0x40, 2]);
    let (request, data) = parse_for(Transport::Rc, &remote);
    let request = request.unwrap();
    assert_eq!(request.op, SendOp::SendInvalidate(RKey(0x4002)));
    let payload = request.request(1, &data).payload;
    assert!(matches!(payload, Payload::Gather([sge]) if sge.len == 8));
    for transport in [Transport::Uc, Transport::Datagram, Transport::Tunnel] {
        for bytes in [&local, &remote] {
            assert_eq!(parse_for(transport, bytes).0, Err(BadWqe));
        }
    }
}

/// The size field has six bits, and a slot of 1024 bytes holds 64 units: then it is zero.
#[test]
fn a_request_that_fills_the_largest_slot_has_a_size_of_zero() {
    let list: Vec<u8> = (0..63)
        .flat_map(|n| segment(n, 4, 1 << 8).as_bytes().to_vec())
        .collect();
    let mut bytes = plain(WqeOpcode::SEND, &list, 1 << 10);
    let mut zero = control(WqeOpcode::SEND, 0);
    zero.set_fence(true);
    bytes[..16].copy_from_slice(zero.as_bytes());
    let (request, data) = parse_for(Transport::Rc, &bytes);
    let request = request.unwrap().request(1, &data);
    assert!(matches!(request.payload, Payload::Gather(list) if list.len() == 63));
    let (other, _) = parse_for(Transport::Rc, &bytes[..512]);
    assert_eq!(other, Err(BadWqe));
}

#[test]
fn a_destination_has_all_that_the_driver_gives() {
    let mut datagram = DatagramSegment {
        remote_qpn: Qpn::from_low_bits(0x4a1),
        qkey: QKey::new(0x8000_0000),
        ..DatagramSegment::default()
    };
    let av = &mut datagram.av;
    av.set_port_number(2);
    av.dlid = Lid::new(0xc001);
    av.set_sl(Sl::from_low_bits(3));
    av.set_path_bits(1);
    av.static_rate = 7;
    av.set_grh(true);
    av.dgid = Gid([7; 16]);
    av.hop_limit = 9;
    av.set_flow_label(0x1_2345);
    av.set_traffic_class(0xab);
    let mut bytes = wqe(WqeOpcode::SEND_IMM, &datagram, &[]);
    let mut flags = control(WqeOpcode::SEND_IMM, 64);
    flags.set_completion(ControlSegment::SIGNALED);
    flags.set_solicited(true);
    flags.immediate = [1, 2, 3, 4];
    bytes[..16].copy_from_slice(flags.as_bytes());
    let (send, data) = parse(&bytes);
    let send = send.unwrap();
    assert!(send.signaled);
    let request = send.request(77, &data);
    assert_eq!(request.op, SendOp::SendImmediate(0x0102_0304));
    assert_eq!(request.flags, SendFlags::SIGNALED | SendFlags::SOLICITED);
    let to = request.destination.unwrap();
    assert_eq!((to.qpn, to.qkey), (datagram.remote_qpn, datagram.qkey));
    let UdAddress::Vector(vector) = to.address else {
        panic!("a handle");
    };
    assert_eq!(vector.port, PortNum(2));
    assert_eq!((vector.dlid, vector.path_bits), (Lid::new(0xc001), 1));
    assert_eq!(vector.sl, Sl::from_low_bits(3));
    assert_eq!(vector.static_rate, Some(Rate::new(2)));
    let route = vector.grh.unwrap();
    assert_eq!((route.remote_gid, route.hop_limit), (Gid([7; 16]), 9));
    assert_eq!((route.flow_label, route.traffic_class), (0x1_2345, 0xab));
}

#[test]
fn lines_of_inline_bytes_are_joined_and_memory_comes_behind_them() {
    let first: Vec<u8> = (0..60).collect();
    let mut segments = [InlineHeader::new(60).as_bytes(), &first].concat();
    segments.extend([InlineHeader::new(7).as_bytes(), &[9; 7], &[0xee; 5]].concat());
    segments.extend(segment(5, 0, 1 << 8).as_bytes());
    segments.extend(segment(6, 100, 1 << 8).as_bytes());
    // The driver's way to write an empty piece of memory.
    segments.extend([InlineHeader::new(0).as_bytes(), &[0; 12]].concat());
    let (send, data) = parse(&wqe(
        WqeOpcode::SEND,
        &DatagramSegment::default(),
        &segments,
    ));
    let joined = [&first[..], &[9; 7]].concat();
    let memory = [Sge {
        addr: 6,
        len: 100,
        lkey: LKey(1 << 8),
    }];
    let request = send.unwrap().request(1, &data);
    assert_eq!(request.payload, Payload::Headed(&joined, &memory));
}

#[test]
fn what_is_no_datagram_is_refused() {
    let datagram = DatagramSegment::default();
    let good = wqe(WqeOpcode::SEND, &datagram, &[]);
    assert!(parse(&good).0.is_ok());
    for opcode in [
        WqeOpcode::RDMA_WRITE,
        WqeOpcode::LSO,
        WqeOpcode::FMR,
        WqeOpcode::NOP,
    ] {
        assert_eq!(
            parse(&wqe(opcode, &datagram, &[])).0,
            Err(BadWqe),
            "{opcode}"
        );
    }
    let resized = |size| {
        let mut bytes = good.clone();
        bytes[7] = size;
        parse(&bytes).0
    };
    // Shorter than its own segments, nothing at all, longer than its slot.
    assert_eq!(resized(3), Err(BadWqe));
    assert_eq!(resized(0), Err(BadWqe));
    assert_eq!(resized(17), Err(BadWqe));
    // Inline bytes beyond the end, and behind memory.
    let beyond = [InlineHeader::new(13).as_bytes(), &[0; 12]].concat();
    assert_eq!(
        parse(&wqe(WqeOpcode::SEND, &datagram, &beyond)).0,
        Err(BadWqe)
    );
    let mut behind = segment(6, 1, 0).as_bytes().to_vec();
    behind.extend([InlineHeader::new(1).as_bytes(), &[0; 12]].concat());
    assert_eq!(
        parse(&wqe(WqeOpcode::SEND, &datagram, &behind)).0,
        Err(BadWqe)
    );
}

proptest! {
    /// Nothing that a guest writes makes more work than its bytes, or names a key that it cannot have.
    #[test]
    fn any_bytes_are_a_request_or_not(bytes in prop::collection::vec(any::<u8>(), 0..256), opcode in 9..13_u8, size in 0..17_u8) {
        let mut bytes = bytes;
        for (at, value) in [(3, opcode), (7, size)] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        let (send, data) = parse(&bytes);
        prop_assert!(data.inline.len() + data.gather.len() * 16 <= bytes.len());
        prop_assert!(data.gather.iter().all(|sge| sge.lkey == WHOLE || sge.lkey.0 < WHOLE.0));
        if let Ok(send) = send {
            prop_assert!(matches!(send.opcode, WqeOpcode::SEND | WqeOpcode::SEND_IMM));
        }
    }
}
