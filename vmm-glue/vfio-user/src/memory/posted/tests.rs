use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use hca_api::AddressSpace;
use proptest::prelude::*;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use zerocopy::little_endian::{U32, U64};

use super::super::{GuardNotice, GuestMemory, MemoryLimit};
use super::*;
use vhca_vfio_user_codec::{DmaMap, DmaMapFlags};

const LIMIT: Duration = Duration::from_secs(60);

/// Memory of so many bytes in a file.
fn memory(len: u64, limit: MemoryLimit) -> (GuestMemory, OwnedFd) {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, len).unwrap();
    let memory = GuestMemory::new(limit);
    map(&memory, &file, len);
    (memory, file)
}

fn map(memory: &GuestMemory, file: &OwnedFd, len: u64) {
    let map = DmaMap {
        argsz: U32::new(32),
        flags: U32::new((DmaMapFlags::READ | DmaMapFlags::WRITE).bits()),
        offset: U64::new(0),
        address: U64::new(0),
        size: U64::new(len),
    };
    memory
        .map(&map, Some(file.try_clone().unwrap().into()))
        .unwrap();
}

fn guarded(len: u64) -> (GuestMemory, OwnedFd) {
    let (memory, file) = memory(len, MemoryLimit::Unlimited);
    memory.guard();
    (memory, file)
}

fn bytes_of(file: &OwnedFd, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rustix::io::pread(file, &mut bytes, offset).unwrap();
    bytes
}

/// Waits until nothing is posted.
fn drain(memory: &GuestMemory) {
    let begun = Instant::now();
    while memory.posted().is_some() {
        assert!(begun.elapsed() < LIMIT);
        thread::yield_now();
    }
}

/// Makes the thread wait until the sender goes: for an interrupt, as it would for a page.
fn block(memory: &mut GuestMemory) -> Sender<()> {
    let (go_on, wait) = channel::<()>();
    let mut interrupt = Some(move || assert!(wait.recv().is_err()));
    while let Some(not_posted) = interrupt.take() {
        memory.write(0, &[0]).unwrap();
        interrupt = memory.signal(not_posted);
    }
    go_on
}

#[derive(Clone, Debug)]
enum Step {
    Read(u64, usize),
    Write(u64, Vec<u8>),
    Add(u64, u64),
    Drain,
}

const LEN: u64 = 3 * 4096;

fn step() -> impl Strategy<Value = Step> {
    // Addresses near each other, so that accesses meet.
    let at = || prop_oneof![4090..4110_u64, 0..LEN - 200];
    prop_oneof![
        3 => (at(), 1..200_usize).prop_map(|(at, len)| Step::Read(at, len)),
        4 => (at(), prop::collection::vec(any::<u8>(), 1..200))
            .prop_map(|(at, bytes)| Step::Write(at, bytes)),
        1 => (at(), any::<u64>()).prop_map(|(at, more)| Step::Add(at & !7, more)),
        1 => Just(Step::Drain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_read_sees_what_was_posted_and_the_file_has_it_in_the_end(
        steps in prop::collection::vec(step(), 1..60),
        is_blocked in any::<bool>(),
    ) {
        let (mut memory, file) = guarded(LEN);
        let mut blocked = is_blocked.then(|| block(&mut memory));
        let mut model = vec![0; usize::try_from(LEN).unwrap()];
        for step in steps {
            match step {
                Step::Read(at, len) => {
                    let mut read = vec![0; len];
                    memory.read(at, &mut read).unwrap();
                    let at = usize::try_from(at).unwrap();
                    prop_assert_eq!(&read, &model[at..at + len]);
                }
                Step::Write(at, bytes) => {
                    memory.write(at, &bytes).unwrap();
                    let at = usize::try_from(at).unwrap();
                    model[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                Step::Add(at, more) => {
                    let old = memory.update_u64(at, &mut |old| old.wrapping_add(more)).unwrap();
                    let at = usize::try_from(at).unwrap();
                    let word = <&mut [u8; 8]>::try_from(&mut model[at..at + 8]).unwrap();
                    prop_assert_eq!(old, u64::from_ne_bytes(*word));
                    *word = old.wrapping_add(more).to_ne_bytes();
                }
                Step::Drain => {
                    blocked = None;
                    drain(&memory);
                }
            }
        }
        drop(blocked);
        drain(&memory);
        prop_assert_eq!(bytes_of(&file, 0, model.len()), model);
    }
}

#[test]
fn an_interrupt_comes_behind_the_writes_before_it() {
    let (mut memory, file) = guarded(1 << 20);
    let blocked = block(&mut memory);
    let (seen, sees): (_, Receiver<Vec<u8>>) = channel();
    memory.write(4096, &[7; 64]).unwrap();
    let looked_at = file.try_clone().unwrap();
    let interrupt = move || seen.send(bytes_of(&looked_at, 4096, 64)).unwrap();
    assert!(memory.signal(interrupt).is_none());
    memory.write(4096, &[8; 64]).unwrap();
    assert_eq!(bytes_of(&file, 4096, 64), [0; 64]);
    drop(blocked);
    assert_eq!(sees.recv_timeout(LIMIT).unwrap(), [7; 64]);
    drain(&memory);
    assert_eq!(bytes_of(&file, 4096, 64), [8; 64]);
    // With nothing before it the caller makes it.
    assert!(memory.signal(|| ()).is_some());
}

#[test]
fn a_queue_says_that_it_is_full_and_refuses_what_no_turn_writes() {
    let (mut memory, file) = guarded(1 << 20);
    let blocked = block(&mut memory);
    let is_full = |memory: &GuestMemory| memory.posted().unwrap().is_full;
    for _ in 0..15 {
        memory.write(0, &[1; 1 << 16]).unwrap();
    }
    assert!(!is_full(&memory));
    memory.write(0, &[1; 1 << 16]).unwrap();
    assert!(is_full(&memory));
    let mut written = 16;
    while memory.write(0, &[1; 1 << 16]).is_ok() {
        written += 1;
    }
    // The byte that was written before may wait, too.
    assert!(
        (16 * BEYOND - 1..=16 * BEYOND).contains(&written),
        "{written}"
    );
    // Its next VMM finds nothing of it.
    memory.clear();
    assert_eq!(memory.posted(), None);
    assert!(memory.is_guarded());
    map(&memory, &file, 1 << 20);
    for _ in 0..FULL {
        memory.write(8, &[2; 8]).unwrap();
    }
    assert!(is_full(&memory));
    drop(blocked);
    drain(&memory);
    assert_eq!(bytes_of(&file, 0, 17)[8..], [2, 2, 2, 2, 2, 2, 2, 2, 0]);
}

#[test]
fn a_posted_write_beyond_the_file_or_the_limit_fails_at_once() {
    let (mut memory, file) = memory(8 * 4096, MemoryLimit::Bytes(2 * 4096));
    memory.guard();
    memory.write(0, &[1; 2 * 4096]).unwrap();
    assert!(memory.write(3 * 4096, &[1]).is_err());
    memory.read(3 * 4096, &mut [0; 8]).unwrap();
    drain(&memory);
    ftruncate(&file, 4096).unwrap();
    assert!(memory.write(4090, &[1; 8]).is_err());
    assert!(memory.read(4090, &mut [0; 8]).is_err());
    memory.write(4088, &[1; 8]).unwrap();
}

#[test]
fn memory_is_guarded_when_an_access_waited_for_a_hole() {
    const LARGE: u64 = 256 << 20;
    let notice = GuardNotice::default();
    let (memory, file) = memory(LARGE, MemoryLimit::Unlimited);
    let mut memory = memory.with_notice(notice.clone());
    memory.write(0, &[1; 64]).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                fallocate(&file, FallocateFlags::empty(), 0, LARGE).unwrap();
                fallocate(&file, hole, 0, LARGE).unwrap();
            }
        });
        let begun = Instant::now();
        let mut at = 0;
        while !memory.is_guarded() && begun.elapsed() < LIMIT {
            at = (at + 4096 * 4097) % LARGE;
            memory.write(at, &[2; 64]).unwrap();
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(memory.is_guarded() && notice.take() && !notice.take());
    memory.write(4096, &[3; 64]).unwrap();
    drain(&memory);
    assert_eq!(bytes_of(&file, 4096, 64), [3; 64]);
}

#[test]
fn a_guard_ends_when_nothing_has_waited_for_its_time_and_is_twice_as_long_the_next_time() {
    let (mut memory, file) = memory(4096, MemoryLimit::Unlimited);
    memory.lock().guard = Duration::from_millis(1);
    for guard in [1, 2, 4] {
        assert_eq!(memory.lock().guard, Duration::from_millis(guard));
        memory.guard();
        assert!(memory.is_guarded());
        let go_on = block(&mut memory);
        let bytes = [u8::try_from(guard).unwrap(); 64];
        memory.write(64, &bytes).unwrap();
        let is_remembered = || {
            let map = memory.lock();
            map.posted.as_ref().is_some_and(PostedWrites::is_remembered)
        };
        while is_remembered() {
            thread::yield_now();
        }
        memory.read(0, &mut [0; 8]).unwrap();
        assert!(memory.is_guarded(), "a write is posted");
        drop(go_on);
        drain(&memory);
        let mut read = [0; 64];
        memory.read(64, &mut read).unwrap();
        assert_eq!(read, bytes);
        assert!(!memory.is_guarded());
        assert_eq!(bytes_of(&file, 64, 64), bytes);
    }
    memory.lock().guard = next_guard(Duration::from_secs(3000));
    memory.guard();
    assert_eq!(memory.lock().guard, Duration::from_secs(3600));
    memory.clear();
    assert!(memory.is_guarded(), "for the next VMM, too");
}
