use proptest::prelude::*;
use rustix::io::Errno;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::*;

fn header(command: Command, size: usize) -> Header {
    Header {
        id: U16::new(0x1234),
        command: U16::new(command.0),
        size: U32::new(u32::try_from(size).unwrap()),
        ..Header::default()
    }
}

/// Gives an assembler bytes in pieces of such lengths, and descriptor `n` with the `n`th piece.
fn assemble(bytes: &[u8], pieces: &[usize]) -> Result<Vec<Message<usize>>, ProtocolError> {
    let mut assembler = Assembler::new(bytes.len());
    let mut messages = Vec::new();
    let mut pieces = pieces.iter().copied().cycle();
    let mut rest = bytes;
    for nth in 0.. {
        if rest.is_empty() {
            break;
        }
        let space = assembler.space();
        let count = pieces.next().unwrap().clamp(1, space.len()).min(rest.len());
        let (now, later) = rest.split_at(count);
        space[..count].copy_from_slice(now);
        messages.extend(assembler.filled(count, [nth])?);
        rest = later;
    }
    Ok(messages)
}

#[test]
fn a_messages_bytes_are_those_of_the_specification() {
    let map = DmaMap {
        argsz: U32::new(32),
        flags: U32::new(3),
        offset: U64::new(0x1000),
        address: U64::new(0x1_0000_0000),
        size: U64::new(0x2000),
    };
    let golden = [
        0x34, 0x12, 2, 0, 48, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // header
        32, 0, 0, 0, 3, 0, 0, 0, // argsz, flags
        0, 0x10, 0, 0, 0, 0, 0, 0, // offset
        0, 0, 0, 0, 1, 0, 0, 0, // address
        0, 0x20, 0, 0, 0, 0, 0, 0, // size
    ];
    let header = header(Command::DMA_MAP, golden.len());
    assert_eq!([header.as_bytes(), map.as_bytes()].concat(), golden);
    let request = Request::parse(&header, &golden[16..], 1);
    assert_eq!(request, Ok(Request::DmaMap(map)));
    let mut expected = header.as_bytes().to_vec();
    (expected[4], expected[8]) = (16, 1);
    assert_eq!(reply(&header, &[]), expected);
    (expected[8], expected[12]) = (0x21, 17);
    assert_eq!(error_reply(&header, Errno::EXIST), expected);
}

#[test]
fn qemus_proposal_is_answered_with_what_both_can_do() {
    let text = br#"{"capabilities": {"max_dma_maps": 65535, "max_msg_fds": 16, "migration": {"max_bitmap_size": 268435456, "pgsize": 4096}, "max_data_xfer_size": 1048576, "pgsizes": 4096, "write_multiple": true}}"#;
    let payload = [&[0, 0, 0, 0], &text[..], &[0]].concat();
    let header = header(Command::VERSION, 16 + payload.len());
    let Ok(Request::Version(version)) = Request::parse(&header, &payload, 0) else {
        panic!("a proposal");
    };
    let capabilities = Capabilities {
        max_data_xfer_size: 1 << 20,
        write_multiple: true,
        max_msg_fds: 16,
    };
    assert_eq!(version.capabilities, capabilities);
    let reply = version.negotiate(&header, 100).unwrap();
    assert_eq!(reply[16..20], [0; 4], "version 0.0");
    let (text, end) = reply[20..].split_at(reply.len() - 21);
    assert_eq!(end, [0]);
    let said: serde_json::Value = serde_json::from_slice(text).unwrap();
    let expected = serde_json::json!({"capabilities": {
        "max_msg_fds": 16, "max_data_xfer_size": 65536, "max_dma_maps": 100, "pgsizes": 4096,
        "write_multiple": true,
    }});
    assert_eq!(said, expected);
}

#[test]
fn a_proposal_may_say_nothing_and_must_say_no_nonsense() {
    let parse = Version::parse;
    for silent in [&[0; 4][..], &[0; 5], b"\0\0\x07\0{}\0", b"\0\0\0\0{}"] {
        let version = parse(silent).unwrap();
        assert_eq!(version.capabilities, Capabilities::default());
    }
    let deep = [&[0; 4][..], &[b'['; 4000]].concat();
    let long = [&[0; 4][..], &[b' '; 5000]].concat();
    for wrong in [&[][..], &[0; 3], b"\0\0\0\0{", &deep, &long, &[0xff; 40]] {
        assert_eq!(parse(wrong), Err(Errno::INVAL));
    }
}

#[test]
fn frames_that_make_no_sense_are_told_apart() {
    let of = |size: u32, flags: u32| {
        let header = Header {
            size: U32::new(size),
            flags: U32::new(flags),
            ..Header::default()
        };
        assemble(header.as_bytes(), &[16]).unwrap_err()
    };
    assert_eq!(of(15, 0), ProtocolError::Short(15));
    assert_eq!(of(u32::MAX, 0), ProtocolError::Long(u32::MAX));
    let most = u32::try_from(MAX_MESSAGE).unwrap();
    assert_eq!(of(most + 1, 0), ProtocolError::Long(most + 1));
    assert_eq!(of(16, 2), ProtocolError::Type(2));
    let mut assembler = Assembler::new(2);
    assembler.space()[0] = 0;
    assert_eq!(assembler.filled(1, [1, 2]), Ok(None));
    assembler.space()[0] = 0;
    assert_eq!(assembler.filled(1, [3]), Err(ProtocolError::Descriptors(2)));
}

#[test]
fn several_writes_are_read_if_their_number_is_theirs() {
    let write = MultiWrite {
        access: RegionAccess {
            count: U32::new(8),
            ..RegionAccess::default()
        },
        data: [1; 8],
    };
    let parse = |count: u64, writes: &[MultiWrite]| {
        let payload = [&count.to_le_bytes(), writes.as_bytes()].concat();
        let header = header(Command::REGION_WRITE_MULTI, 16 + payload.len());
        Request::parse(&header, &payload, 0).map(|request| match request {
            Request::RegionWriteMulti(writes) => writes.len(),
            _ => 0,
        })
    };
    assert_eq!(parse(2, &[write, write]), Ok(2));
    assert_eq!(parse(0, &[]), Ok(0));
    assert_eq!(parse(3, &[write, write]), Err(Errno::INVAL));
    let mut long = write;
    long.access.count = U32::new(9);
    assert_eq!(parse(1, &[long]), Err(Errno::INVAL));
}

#[test]
fn memory_is_asked_for_and_answers_are_read() {
    let read = dma_read(7, 0x1000, 64);
    let messages = assemble(&read, &[100]).unwrap();
    assert_eq!(messages[0].header.command(), Command::DMA_READ);
    assert_eq!(
        messages[0].payload,
        [0x1000_u64, 64].map(u64::to_le_bytes).concat()
    );
    let write = dma_write(8, 0x2000, b"bytes");
    let messages = assemble(&write, &[100]).unwrap();
    assert_eq!(&messages[0].payload[16..], b"bytes");
    let answer = |command, payload: &[u8], flags| Message::<()> {
        header: Header {
            flags: U32::new(flags),
            ..header(command, 16 + payload.len())
        },
        payload: payload.to_vec(),
        fds: Vec::new(),
    };
    let bytes = [0; 20];
    let good = answer(Command::DMA_READ, &bytes, 1);
    assert_eq!(parse_dma_reply(&good), Some(&[0; 4][..]));
    let short = answer(Command::DMA_READ, &bytes[..15], 1);
    assert_eq!(parse_dma_reply(&short), None);
    let failed = answer(Command::DMA_READ, &bytes, 0x21);
    assert_eq!(parse_dma_reply(&failed), None);
    let other = answer(Command::DMA_MAP, &bytes, 1);
    assert_eq!(parse_dma_reply(&other), None);
    let written = answer(Command::DMA_WRITE, &bytes[..12], 1);
    assert_eq!(parse_dma_reply(&written), Some(&[][..]));
}

/// A reply to a command under its number, with such flags.
fn answer(to: &[u8], flags: u32, payload: &[u8]) -> Message<()> {
    let (header, _) = assembler::head::<Header>(to).unwrap();
    let header = Header {
        flags: U32::new(flags),
        error: U32::new(16),
        ..header
    };
    Message {
        header,
        payload: payload.to_vec(),
        fds: Vec::new(),
    }
}

#[test]
fn a_clients_commands_are_the_requests_that_a_server_reads() {
    let access = Access {
        region: 2,
        offset: 0x1000,
        count: 4,
    };
    let map = DmaMap {
        argsz: U32::new(32),
        flags: U32::new(3),
        address: U64::new(0x1000),
        size: U64::new(0x2000),
        ..DmaMap::default()
    };
    let unmap = DmaUnmap {
        argsz: U32::new(24),
        address: U64::new(0x1000),
        size: U64::new(0x2000),
        ..DmaUnmap::default()
    };
    let masks = SetIrqs {
        action: IrqAction::Mask,
        data: IrqData::Bool(&[1, 0]),
        ..signal_by_eventfds(2, 3, 2)
    };
    let set = signal_by_eventfds(2, 0, 4);
    let commands = [
        (ClientCommand::DmaMap(map), Request::DmaMap(map)),
        (ClientCommand::DmaUnmap(unmap), Request::DmaUnmap(unmap)),
        (ClientCommand::DeviceInfo, Request::DeviceInfo),
        (
            ClientCommand::RegionInfo { index: 7 },
            Request::RegionInfo { index: 7 },
        ),
        (
            ClientCommand::IrqInfo { index: 2 },
            Request::IrqInfo { index: 2 },
        ),
        (ClientCommand::SetIrqs(set), Request::SetIrqs(set)),
        (ClientCommand::SetIrqs(masks), Request::SetIrqs(masks)),
        (
            ClientCommand::RegionRead(access),
            Request::RegionRead(access.into()),
        ),
        (
            ClientCommand::RegionWrite(access, b"word"),
            Request::RegionWrite(access.into(), b"word"),
        ),
        (ClientCommand::Reset, Request::Reset),
    ];
    for (command, request) in commands {
        let bytes = command.message(9);
        let message = &assemble(&bytes, &[100]).unwrap()[0];
        assert_eq!(message.header.flags(), HeaderFlags::empty());
        assert_eq!(message.header.id.get(), 9);
        assert_eq!(
            Request::parse(&message.header, &message.payload, 0),
            Ok(request)
        );
        let posted = assemble(&command.posted(9), &[100]).unwrap();
        assert_eq!(posted[0].header.flags(), HeaderFlags::NO_REPLY);
        assert_eq!(posted[0].payload, message.payload);
    }
}

#[test]
fn a_client_and_a_server_agree_on_a_version() {
    let proposal = ClientCommand::Version.message(1);
    let message = &assemble(&proposal, &[100]).unwrap()[0];
    let Ok(Request::Version(version)) = Request::parse(&message.header, &message.payload, 0) else {
        panic!("a proposal");
    };
    let reply = version.negotiate(&message.header, 100).unwrap();
    let reply = &assemble(&reply, &[1000]).unwrap()[0];
    let limits = ServerLimits {
        max_data: MAX_DATA,
        max_fds: ANNOUNCED_FDS,
    };
    assert_eq!(parse_version(reply), Ok(limits));
    let silent = answer(&proposal, 1, &[0; 5]);
    assert_eq!(parse_version(&silent).map(|limits| limits.max_fds), Ok(1));
    let other = answer(&proposal, 1, b"\x01\0\0\0{}");
    assert_eq!(parse_version(&other), Err(ReplyError::Malformed));
    let busy = answer(&proposal, 0x21, &[]);
    assert_eq!(parse_version(&busy), Err(ReplyError::Refused(Errno::BUSY)));
}

#[test]
fn a_reply_counts_for_the_command_that_it_answers() {
    let access = Access {
        region: 7,
        offset: 2,
        count: 4,
    };
    let read = ClientCommand::RegionRead(access).message(3);
    let payload = [RegionAccess::from(access).as_bytes(), b"word"].concat();
    let good = answer(&read, 1, &payload);
    assert_eq!(parse_registers(access, &good), Ok(&b"word"[..]));
    let elsewhere = Access {
        offset: 0,
        ..access
    };
    let wrong = Err(ReplyError::Malformed);
    assert_eq!(parse_registers(elsewhere, &good), wrong);
    for cut in 0..payload.len() {
        let short = answer(&read, 1, &payload[..cut]);
        assert_eq!(parse_registers(access, &short), wrong);
    }
    let command = answer(&read, 0, &payload);
    assert_eq!(parse_registers(access, &command), wrong);
    let reset = answer(&ClientCommand::Reset.message(3), 1, &[]);
    assert_eq!(parse_done(Command::DEVICE_RESET, &reset), Ok(()));
    assert_eq!(
        parse_done(Command::DMA_MAP, &reset),
        Err(ReplyError::Malformed)
    );
    let info = parse_reply::<DeviceInfo, ()>(Command::DEVICE_RESET, &reset);
    assert_eq!(info, Err(ReplyError::Malformed));
}

#[test]
fn a_client_takes_eventfds_that_came_and_no_others() {
    let ask = ClientCommand::RegionIoFds { index: 2, most: 64 }.message(3);
    let part = |fd_index, kind, flags| IoEventFd {
        fd_index: U32::new(fd_index),
        kind: U32::new(kind),
        flags: U32::new(flags),
        ..IoEventFd::default()
    };
    let parse = |count: u32, parts: &[IoEventFd], fds: usize| {
        let head = RegionIoFds {
            count: U32::new(count),
            ..RegionIoFds::default()
        };
        let payload = [head.as_bytes(), parts.as_bytes()].concat();
        let mut reply = answer(&ask, 1, &payload);
        reply.fds = vec![(); fds];
        let parsed = parse_io_fds(&reply);
        parsed.map(|parts| parts.iter().map(|(_, fd)| *fd).collect::<Vec<_>>())
    };
    // One that is no eventfd alone, and one that wants a value, are left out.
    let all = [part(0, 0, 0), part(1, 2, 0), part(1, 0, 1), part(1, 0, 0)];
    assert_eq!(parse(4, &all, 2), Ok(vec![0, 1]));
    assert_eq!(parse(0, &[], 0), Ok(vec![]));
    for (count, index, fds) in [(1, 2, 2), (1, u32::MAX, 64), (0, 0, 1), (1, 0, 0)] {
        let parsed = parse(count, &[part(index, 0, 0)], fds);
        assert_eq!(parsed, Err(ReplyError::Malformed), "{index} of {fds}");
    }
    let cut = answer(&ask, 1, &[0; 16 + 39]);
    assert_eq!(parse_io_fds(&cut), Err(ReplyError::Malformed));
    // A service that does not know the command has no doorbells with eventfds.
    let unknown = Message::<()> {
        header: Header {
            flags: U32::new((HeaderFlags::REPLY | HeaderFlags::ERROR).bits()),
            error: U32::new(95),
            ..answer(&ask, 1, &[]).header
        },
        payload: Vec::new(),
        fds: Vec::new(),
    };
    assert_eq!(parse_io_fds(&unknown), Ok(Vec::new()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn messages_come_out_as_they_went_in_however_the_stream_is_cut(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 1..8),
        pieces in prop::collection::vec(1..40_usize, 1..6),
    ) {
        let messages = payloads.iter().map(|payload| {
            let header = header(Command::REGION_WRITE, 16 + payload.len());
            [header.as_bytes(), payload].concat()
        });
        let bytes: Vec<u8> = messages.flatten().collect();
        let assembled = assemble(&bytes, &pieces).unwrap();
        let out: Vec<&Vec<u8>> = assembled.iter().map(|message| &message.payload).collect();
        prop_assert_eq!(out, payloads.iter().collect::<Vec<_>>());
        let fds: Vec<usize> = assembled.iter().flat_map(|message| message.fds.clone()).collect();
        prop_assert!(fds.is_sorted());
    }

    #[test]
    fn any_payload_of_any_command_is_a_request_or_an_error(
        command in 0..20_u16,
        payload in prop::collection::vec(any::<u8>(), 0..100),
        fds in 0..20_usize,
    ) {
        let header = header(Command(command), 16 + payload.len());
        if let Ok(request) = Request::parse(&header, &payload, fds) {
            let takes_fds = matches!(request, Request::DmaMap(_) | Request::SetIrqs(_));
            prop_assert!(fds == 0 || takes_fds);
        }
    }
}
