//! Clients that do not share the memory of their guests.

use super::*;

/// A client whose memory is not shared, with a range of it from 0 on.
fn unsharing(served: &Served) -> Raw {
    let mut raw = Raw::greeted(served);
    let map = DmaMap {
        argsz: U32::new(32),
        flags: U32::new(3),
        size: U64::new(0x1_0000),
        ..DmaMap::default()
    };
    raw.call(Command::DMA_MAP, map.as_bytes()).unwrap();
    raw
}

fn answer(to: &Header, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = message(to.id.get(), to.command(), &parts.concat());
    bytes[8] = 1;
    bytes
}

#[test]
fn memory_that_is_not_shared_is_reached_by_messages_between_others() {
    // A VMM that answers at once does so late on a busy machine.
    let longest = Duration::from_secs(240);
    let patience = Patience::new(std::time::Instant::now(), longest);
    let served = Served::with_patience(patience);
    let mut raw = unsharing(&served);
    let copy = [access(2, 8, 8).as_bytes(), &0x1000_u64.to_le_bytes()].concat();
    raw.send(&message(70, Command::REGION_WRITE, &copy));
    let (read, asked) = raw.receive().unwrap();
    assert_eq!(read.command(), Command::DMA_READ);
    assert_eq!(asked, [0x1000_u64, 64].map(u64::to_le_bytes).concat());
    // Another command comes first, as from another vCPU.
    let look = message(71, Command::REGION_READ, access(7, 0, 2).as_bytes());
    raw.send(&look);
    raw.send(&answer(&read, &[&asked, &[9; 64]]));
    let (write, asked) = raw.receive().unwrap();
    assert_eq!(write.command(), Command::DMA_WRITE);
    assert_eq!(asked[..16], [0x2000_u64, 64].map(u64::to_le_bytes).concat());
    assert_eq!(asked[16..], [9; 64]);
    raw.send(&answer(&write, &[&asked[..12]]));
    let (done, _) = raw.receive().unwrap();
    assert_eq!((done.id.get(), done.error.get()), (70, 0));
    let (looked, bytes) = raw.receive().unwrap();
    assert_eq!((looked.id.get(), &bytes[16..]), (71, &[0, 1][..]));
    let (_, copied) = raw
        .call(Command::REGION_READ, access(2, 32, 1).as_bytes())
        .unwrap();
    assert_eq!(copied[16..], [1]);
}

#[test]
fn a_client_that_does_not_answer_for_its_memory_fails_accesses_and_stays() {
    let served = Served::new();
    let mut raw = unsharing(&served);
    let copy = [access(2, 8, 8).as_bytes(), &0x1000_u64.to_le_bytes()].concat();
    raw.send(&message(70, Command::REGION_WRITE, &copy));
    let (read, asked) = raw.receive().unwrap();
    let (done, _) = raw.receive().unwrap();
    assert_eq!(done.id.get(), 70);
    raw.send(&answer(&read, &[&asked, &[9; 64]]));
    let (_, copied) = raw
        .call(Command::REGION_READ, access(2, 32, 1).as_bytes())
        .unwrap();
    assert_eq!(copied[16..], [0]);
    let refused = Header {
        error: U32::new(14),
        flags: U32::new(0x21),
        ..header(0, Command::DMA_READ, 16)
    };
    raw.send(&message(72, Command::REGION_WRITE, &copy));
    let (read, _) = raw.receive().unwrap();
    let refused = Header {
        id: read.id,
        ..refused
    };
    raw.send(refused.as_bytes());
    let (done, _) = raw.receive().unwrap();
    assert_eq!((done.id.get(), done.error.get()), (72, 0));
}

#[test]
fn a_client_that_goes_while_it_is_asked_for_memory_leaves_the_vf_free() {
    let served = Served::new();
    let mut raw = unsharing(&served);
    let copy = [access(2, 8, 8).as_bytes(), &0x1000_u64.to_le_bytes()].concat();
    raw.send(&message(70, Command::REGION_WRITE, &copy));
    raw.receive().unwrap();
    drop(raw);
    served.wait_for(|row| row.pid.is_none());
    Raw::greeted(&served);
}
