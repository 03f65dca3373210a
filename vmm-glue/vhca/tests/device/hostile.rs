//! Threads of a VMM, and guests behind them, that do whatever they like.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ib_vtime::SplitMix64;
use vf_proxy::mlx4::PERSONALITY;
use vhca::device::{Backend, Device, Doorbell, Interrupts, MsixMessage, TrappedDoorbells, Wake};

use crate::probe::world_with;

struct Nobody;

impl Interrupts for Nobody {
    fn trigger(&self, _: u16, _: MsixMessage) {}
}

impl Wake for Nobody {
    fn wake(&self) {}
}

/// Values that a guest may pick with a purpose, and any others.
fn offset(random: &mut SplitMix64) -> u64 {
    match random.next() % 6 {
        // The channel, the MSI-X table, the doorbells of event queues.
        0 => random.next() % 16,
        1 => 0x800 + random.next() % 32,
        // A doorbell page.
        2 => 128 * 4096 + random.next() % 64,
        3 => u64::MAX - random.next() % 16,
        4 => random.next() % (8 << 20),
        _ => random.next(),
    }
}

fn access(device: &Device, random: &mut SplitMix64) {
    const LENGTHS: [usize; 10] = [0, 1, 2, 3, 4, 4, 8, 9, 64, 4096];
    let mut bytes = [0; 4096];
    for byte in &mut bytes[..64] {
        [*byte, ..] = random.next().to_le_bytes();
    }
    let pick = |most: u64, random: &mut SplitMix64| usize::try_from(random.next() % most).unwrap();
    let bytes = &mut bytes[..LENGTHS[pick(10, random)]];
    let bar = [2, 2, 4, 0, 5, 255][pick(6, random)];
    let [low, high, ..] = random.next().to_le_bytes();
    let register = match random.next() % 2 {
        0 => [0x04, 0x10, 0x18, 0x20, 0x24, 0x9e, 0x68, 0xffe][pick(8, random)],
        _ => u16::from_le_bytes([low, high]),
    };
    let at = offset(random);
    match random.next() % 16 {
        0 | 1 => device.config_read(register, bytes),
        2 => drop(device.config_write(register, bytes)),
        3 => drop(device.config_write(4, &[6, 0])),
        4..6 => device.bar_read(bar, at, bytes),
        6 => device.ring(Doorbell {
            bar,
            offset: at,
            len: low,
        }),
        7 if low == 0 => drop(device.reset()),
        _ => device.bar_write(bar, at, bytes),
    }
}

#[test]
fn any_accesses_of_many_threads_amid_pauses_and_a_detach_end_well() {
    const THREADS: u64 = 4;
    const ACCESSES: u32 = 4000;
    let (world, at) = world_with((PERSONALITY.make)());
    let nobody = Arc::new(Nobody);
    let backend = Backend::new(world, nobody.clone());
    let device = backend.attach(at, nobody, Arc::new(TrappedDoorbells));
    let device = device.unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let vcpus: Vec<_> = (0..THREADS)
            .map(|seed| {
                let device = device.clone();
                scope.spawn(move || {
                    let mut random = SplitMix64::new(seed);
                    for _ in 0..ACCESSES {
                        access(&device, &mut random);
                    }
                })
            })
            .collect();
        let pauses = scope.spawn(|| {
            // The threads make about twice as many.
            while device.statistics().writes < u64::from(ACCESSES) {
                device.pause();
                std::thread::yield_now();
                device.resume();
            }
            assert!(device.detach().is_some());
        });
        let steps = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                backend.step().unwrap();
            }
        });
        for thread in vcpus.into_iter().chain([pauses]) {
            thread.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        steps.join().unwrap();
    });
    assert!(device.detach().is_none());
    let mut read = [0; 8];
    device.bar_read(2, 0, &mut read);
    assert_eq!(read, [0xff; 8]);
    assert!(!device.is_paused());
    device.pause();
    device.resume();
    backend.step().unwrap();
}
