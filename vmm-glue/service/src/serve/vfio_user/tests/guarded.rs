//! A VMM whose memory waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hca_api::AddressSpace;
use rustix::fs::{FallocateFlags, fallocate};
use vhca_vfio_user::GuestMemory;

use super::*;

const BASE: u64 = 0x8000_0000;

/// Makes the device copy 64 bytes at a place of the memory to the next page, and returns once it has answered a read.
fn copy(peer: &mut Peer, at: u64) {
    peer.region_write(2, 8, &(BASE + at).to_le_bytes()).unwrap();
    let mut copied = [0];
    peer.region_read(2, 32, &mut copied).unwrap();
    assert_eq!(copied, [1]);
}

#[test]
fn a_vf_that_waited_for_a_hole_serves_its_vmm_in_order() {
    const LARGE: u64 = 256 << 20;
    let served = Served::new();
    let mut peer = served.peer();
    let file = memfd(LARGE);
    peer.dma_map(0, BASE, LARGE, file.as_raw_fd()).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            while !is_over.load(Ordering::Relaxed) {
                fallocate(&file, FallocateFlags::empty(), 0, LARGE).unwrap();
                fallocate(&file, hole, 0, LARGE).unwrap();
            }
        });
        let begun = Instant::now();
        let mut at = 0;
        while !served.row().guarded && begun.elapsed().as_secs() < 60 {
            at = (at + 4096 * 4097) % (LARGE - 8192);
            copy(&mut peer, at);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(served.row().guarded);
    for number in 0..100_u8 {
        let at = u64::from(number) * 8192;
        rustix::io::pwrite(&file, &[number; 64], at).unwrap();
        copy(&mut peer, at);
        assert_eq!(pread(&file, at + 4096), [number; 64]);
    }
    peer.dma_unmap(BASE, LARGE).unwrap();
    // The next VMM's memory is guarded from the start.
    drop(peer);
    served.wait_for(|row| row.since.is_none());
    let mut next = served.peer();
    assert!(served.row().guarded);
    next.dma_map(0, BASE, LARGE, file.as_raw_fd()).unwrap();
    copy(&mut next, 99 * 8192);
}

/// Returns what maps so many bytes of a file.
fn map(size: u64) -> DmaMap {
    DmaMap {
        argsz: U32::new(32),
        flags: U32::new(3),
        address: U64::new(BASE),
        size: U64::new(size),
        ..DmaMap::default()
    }
}

/// Makes the thread of a VF's memory wait until the sender goes, as a page would.
fn block(served: &Served) -> Sender<()> {
    let (go_on, wait) = channel::<()>();
    served.ask(move |service| {
        let seat = service.lab().seats().next().unwrap();
        let mut memory: GuestMemory = seat.memory.clone();
        memory.guard();
        let mut interrupt = Some(move || assert!(wait.recv().is_err()));
        while let Some(not_posted) = interrupt.take() {
            memory.write(BASE, &[0]).unwrap();
            interrupt = memory.signal(not_posted);
        }
    });
    go_on
}

/// Connects a VMM, and has it share 16 KiB.
fn with_memory(served: &Served) -> (Raw, OwnedFd) {
    let mut peer = served.raw();
    peer.call(Command::VERSION, HELLO).unwrap();
    let file = memfd(0x4000);
    let shared = map(0x4000);
    peer.send_with(&message(1, Command::DMA_MAP, shared.as_bytes()), &[&file]);
    assert_eq!(peer.receive().unwrap().0.error.get(), 0);
    (peer, file)
}

#[test]
fn a_vmm_whose_memory_takes_no_writes_is_let_go_and_stops_nobody() {
    let served = Served::new();
    let (mut peer, file) = with_memory(&served);
    let begun = Instant::now();
    let blocked = block(&served);
    // This question has no answer: it would overtake a write.
    peer.send(&message(
        2,
        Command::REGION_READ,
        access(2, 16, 4).as_bytes(),
    ));
    served.wait_for(|row| row.guarded);
    assert!(peer.is_cut_off());
    assert!(begun.elapsed().as_secs() >= 1);
    served.wait_for(|row| row.since.is_none());
    drop(blocked);
    let mut next = served.peer();
    next.dma_map(0, BASE, 0x4000, file.as_raw_fd()).unwrap();
    rustix::io::pwrite(&file, &[5; 64], 0).unwrap();
    copy(&mut next, 0);
    assert_eq!(pread(&file, 4096), [5; 64]);
}

#[test]
fn a_reply_waits_for_the_writes_before_it_and_not_for_later_ones() {
    let served = Served::new();
    let (mut peer, _file) = with_memory(&served);
    let first = block(&served);
    let read = access(2, 16, 4);
    peer.send(&message(2, Command::REGION_READ, read.as_bytes()));
    served.wait_for(|row| row.commands.0 == 3);
    let second = block(&served);
    drop(first);
    assert_eq!(peer.receive().unwrap().0.id.get(), 2);
    drop(second);
}

#[test]
fn a_vf_whose_queue_of_writes_is_full_is_held_until_it_is_not() {
    let served = Served::new();
    let mut peer = served.peer();
    let file = memfd(0x20_0000);
    peer.dma_map(0, BASE, 0x20_0000, file.as_raw_fd()).unwrap();
    let blocked = block(&served);
    served.ask(|service| {
        let seat = service.lab().seats().next().unwrap();
        let mut memory = seat.memory.clone();
        memory.write(BASE, &[1; 1 << 20]).unwrap();
    });
    let is_held = || {
        served.ask(|service| {
            let at = service.lab().seats().next().unwrap().at;
            service.lab().world().is_held(at)
        })
    };
    let wait_until = |held| {
        let begun = Instant::now();
        while is_held() != held {
            assert!(begun.elapsed().as_secs() < 20);
        }
    };
    wait_until(true);
    drop(blocked);
    wait_until(false);
    copy(&mut peer, 0x10_0000);
    assert_eq!(pread(&file, 0), [1; 64]);
}
