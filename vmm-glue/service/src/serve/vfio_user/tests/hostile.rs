//! Clients that do not keep to the protocol, or to anything.

use super::*;

#[test]
fn a_vf_is_as_new_for_the_next_client_wherever_the_one_before_stopped() {
    let served = Served::new();
    let whole = message(
        9,
        Command::REGION_WRITE,
        &[access(2, 16, 4).as_bytes(), &[5; 4]].concat(),
    );
    let file = memfd(0x2000);
    let map = DmaMap {
        argsz: U32::new(32),
        flags: U32::new(3),
        size: U64::new(0x2000),
        ..DmaMap::default()
    };
    for (nth, stop) in [1, 15, 16, 17, whole.len() - 1, whole.len()]
        .into_iter()
        .enumerate()
    {
        let mut raw = Raw::greeted(&served);
        raw.send_with(&message(1, Command::DMA_MAP, map.as_bytes()), &[&file]);
        assert_eq!(raw.receive().unwrap().0.error.get(), 0);
        raw.send(&whole[..stop]);
        drop(raw);
        served.wait_for(|row| row.pid.is_none() && row.shared == 0);
        let mut next = Raw::greeted(&served);
        let (_, reply) = next
            .call(Command::REGION_READ, access(2, 16, 8).as_bytes())
            .unwrap();
        assert_eq!(reply[16..], [0; 8]);
        drop(next);
        served.wait_for(|row| row.pid.is_none() && row.vmms == 2 * (nth as u64 + 1));
    }
    let resets = served.row().resets;
    assert!(resets >= 12, "{resets}");
}

#[test]
fn what_does_not_begin_with_a_version_or_is_no_message_is_cut_off() {
    let served = Served::new();
    let long = header(1, Command::VERSION, 1 << 30);
    let short = header(1, Command::VERSION, 3);
    let odd = Header {
        flags: U32::new(7),
        ..header(1, Command::VERSION, 16)
    };
    for bytes in [
        long.as_bytes(),
        short.as_bytes(),
        odd.as_bytes(),
        b"GET / HTTP/1.1\r\nHost: vhca\r\n\r\n",
        &[0xff; 64],
    ] {
        let mut raw = served.raw();
        raw.send(bytes);
        assert!(raw.is_cut_off(), "{bytes:x?}");
    }
    let first = message(1, Command::DEVICE_RESET, &[]);
    let other_version = message(1, Command::VERSION, b"\x07\0\0\0{}\0");
    let no_json = message(1, Command::VERSION, b"\0\0\0\0{\"capabilities\":\0");
    let too_short = message(1, Command::VERSION, &[0; 3]);
    let small = br#"{"capabilities":{"max_data_xfer_size":4095}}"#;
    let small = message(1, Command::VERSION, &[&[0; 4], &small[..], &[0]].concat());
    for bytes in [first, other_version, no_json, too_short, small] {
        let mut raw = served.raw();
        raw.send(&bytes);
        let (reply, _) = raw.receive().unwrap();
        assert!(reply.flags().contains(HeaderFlags::ERROR), "{bytes:x?}");
        assert!(raw.is_cut_off());
    }
    Raw::greeted(&served);
}

#[test]
fn commands_that_make_no_sense_fail_and_the_client_stays() {
    const INVAL: i32 = 22;
    const UNSUPPORTED: i32 = 95;
    const NO_SUCH: i32 = 38;
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    assert_eq!(raw.fails(Command::VERSION, HELLO), INVAL);
    assert_eq!(raw.fails(Command::DMA_MAP, &[0; 31]), INVAL);
    assert_eq!(
        raw.fails(Command::DEVICE_GET_INFO, &[0; 16]),
        INVAL,
        "argsz"
    );
    let read = |raw: &mut Raw, region, offset, count| {
        raw.fails(
            Command::REGION_READ,
            access(region, offset, count).as_bytes(),
        )
    };
    assert_eq!(read(&mut raw, 2, 0xfffd, 4), INVAL);
    assert_eq!(read(&mut raw, 2, u64::MAX, 4), INVAL);
    assert_eq!(read(&mut raw, 2, 0, u32::MAX), INVAL);
    assert_eq!(read(&mut raw, 0, 0, 1), INVAL);
    assert_eq!(read(&mut raw, 9, 0, 1), INVAL);
    let lying = [access(2, 16, 400).as_bytes(), &[1; 4]].concat();
    assert_eq!(raw.fails(Command::REGION_WRITE, &lying), INVAL);
    let many = u64::MAX.to_le_bytes();
    assert_eq!(raw.fails(Command::REGION_WRITE_MULTI, &many), INVAL);
    let set = IrqSet {
        flags: U32::new(0x3f),
        ..IrqSet::default()
    };
    assert_eq!(raw.fails(Command::DEVICE_SET_IRQS, set.as_bytes()), INVAL);
    let feature = [0; 8];
    assert_eq!(raw.fails(Command::DEVICE_FEATURE, &feature), UNSUPPORTED);
    assert_eq!(raw.fails(Command::MIG_DATA_READ, &feature), UNSUPPORTED);
    assert_eq!(raw.fails(Command::DIRTY_PAGES, &feature), UNSUPPORTED);
    for odd in [
        [15_u32, 0, 2, 0],
        [16, 1, 2, 0],
        [16, 0, 2, 1],
        [16, 0, 9, 0],
    ] {
        let io_fds = odd.map(U32::new);
        let refused = raw.fails(Command::DEVICE_GET_REGION_IO_FDS, io_fds.as_bytes());
        assert_eq!(refused, INVAL, "{odd:?}");
    }
    assert_eq!(raw.fails(Command::DMA_READ, &feature), NO_SUCH);
    assert_eq!(raw.fails(Command(4711), &feature), NO_SUCH);
    raw.send_with(&message(99, Command::DEVICE_RESET, &[]), &[&memfd(4096)]);
    assert_eq!(
        raw.receive().unwrap().0.error.get(),
        22,
        "a descriptor too many"
    );
    let (ok, _) = raw.call(Command::DEVICE_RESET, &[]).unwrap();
    assert_eq!(ok.error.get(), 0);
}

#[test]
fn a_reply_that_nobody_asked_for_ends_the_connection() {
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    let stray = Header {
        flags: U32::new(HeaderFlags::REPLY.bits()),
        ..header(5, Command::DMA_READ, 16)
    };
    raw.send(stray.as_bytes());
    assert!(raw.is_cut_off());
}

#[test]
fn descriptors_belong_to_the_message_that_they_came_with_however_it_is_cut() {
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    let (first, second) = (memfd(0x2000), memfd(0x2000));
    rustix::io::pwrite(&first, &[1; 64], 0).unwrap();
    rustix::io::pwrite(&second, &[2; 64], 0).unwrap();
    let map = |address: u64| {
        let map = DmaMap {
            argsz: U32::new(32),
            flags: U32::new(3),
            address: U64::new(address),
            size: U64::new(0x2000),
            ..DmaMap::default()
        };
        message(1, Command::DMA_MAP, map.as_bytes())
    };
    // Both wait in the socket: the second's first byte comes right behind the first's last one.
    let bytes = map(0x10_0000);
    raw.send(&bytes[..20]);
    raw.send_with(&bytes[20..], &[&first]);
    raw.send_with(&map(0x20_0000), &[&second]);
    for _ in 0..2 {
        assert_eq!(raw.receive().unwrap().0.error.get(), 0);
    }
    for address in [0x10_0000_u64, 0x20_0000] {
        let payload = [access(2, 8, 8).as_bytes(), &address.to_le_bytes()].concat();
        raw.call(Command::REGION_WRITE, &payload).unwrap();
    }
    assert_eq!(pread(&first, 4096), [1; 64]);
    assert_eq!(pread(&second, 4096), [2; 64]);
}

#[test]
fn more_descriptors_than_the_protocol_has_end_the_connection() {
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    let file = memfd(4096);
    let bytes = message(1, Command::DEVICE_SET_IRQS, &[0; 200]);
    raw.send_with(&bytes[..100], &[&file; 100]);
    // The service need not wait for the rest to have enough.
    let _ = raw.try_send_with(&bytes[100..], &[&file; 100]);
    assert!(raw.is_cut_off());
    let mut raw = Raw::greeted(&served);
    raw.send_with(&bytes[..10], &[&file; 250]);
    assert!(raw.is_cut_off());
}

#[test]
fn a_client_that_takes_no_replies_is_heard_no_more_and_others_are() {
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    raw.socket.set_nonblocking(true).unwrap();
    let ask = message(1, Command::REGION_READ, access(7, 0, 4096).as_bytes());
    let mut sent: usize = 0;
    let begun = std::time::Instant::now();
    let mut quiet_since = begun;
    while quiet_since.elapsed().as_millis() < 300 {
        match raw.socket.write(&ask) {
            Ok(count) => {
                sent += count;
                quiet_since = std::time::Instant::now();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(begun.elapsed().as_secs() < 60, "{sent} bytes were taken");
    }
    // The service lives, and this VF's socket answers.
    let mut second = served.raw();
    assert_eq!(second.fails(Command::VERSION, HELLO), 16);
    raw.socket.set_nonblocking(false).unwrap();
    let mut replies = 0;
    while replies < sent / ask.len() {
        let (header, payload) = raw.receive().unwrap();
        assert_eq!((header.error.get(), payload.len()), (0, 16 + 4096));
        replies += 1;
    }
}
