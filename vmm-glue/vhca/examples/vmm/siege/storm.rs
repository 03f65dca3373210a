//! A guest that masks and unmasks its vectors without end, and whose VMM takes long for each update: as with `KVM_IRQFD` and
//! `KVM_SET_GSI_ROUTING`. A neighbour's reads are timed meanwhile.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use vhca::device::{Device, Interrupts, MsixMessage, TrappedDoorbells};
use vhca::emulated::VfOptions;

use super::bus::Signals;
use super::{part, settle};
use crate::vm::MEMORY;
use crate::{Host, memory, vf};

/// Numbers of the two VFs; drivers have them later.
const STORMY: u16 = 3;
const NEIGHBOUR: u16 = 4;
/// Time of an update, between two writes to the table, and between two reads.
const UPDATE: Duration = Duration::from_millis(5);
const APART: Duration = Duration::from_millis(1);
const BETWEEN: Duration = Duration::from_micros(100);
const READS: usize = 2000;
/// The 99th percentile that the reads may have. Behind an update each would take milliseconds.
const LIMIT: Duration = Duration::from_millis(2);
/// Measurements before the limit counts as missed: other programs may have the processors.
const TRIES: u32 = 5;
/// The register with the MSI-X table, and the length and the control word of its entries.
const TABLE: u8 = 4;
const ENTRY: u64 = 16;
const CONTROL: u64 = 12;

/// Takes its time for each update.
struct Slow {
    takes: Duration,
    updates: AtomicU64,
}

impl Interrupts for Slow {
    fn update(&self, _: &[(u16, Option<MsixMessage>)]) {
        thread::sleep(self.takes);
        self.updates.fetch_add(1, Ordering::Relaxed);
    }

    fn trigger(&self, _: u16, _: MsixMessage) {}
}

fn attach(
    host: &Host,
    number: u16,
    interrupts: Arc<dyn Interrupts>,
) -> Result<Device, Box<dyn Error>> {
    let ram = memory(MEMORY)?;
    let at = host
        .backend
        .with(|world| world.add_vf_for_vmm(host.at[0], vf(number), ram, &VfOptions::default()))??;
    let device = host
        .backend
        .attach(at, interrupts, Arc::new(TrappedDoorbells))?;
    // Memory space and bus master, then MSI-X.
    let _ = device.config_write(4, &[6, 0]);
    let _ = device.config_write(0x9e, &[0, 0x80]);
    Ok(device)
}

/// Masks and unmasks each vector in turn.
fn rage(device: &Device, is_over: &AtomicBool) {
    for control in [0, 1].into_iter().cycle() {
        for vector in 0..device.vectors() {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            let at = u64::from(vector) * ENTRY + CONTROL;
            device.bar_write(TABLE, at, &[control, 0, 0, 0]);
            thread::sleep(APART);
        }
    }
}

/// Returns the times of a neighbour's reads in order, and how many updates there were meanwhile.
fn measure(host: &Host, takes: Duration) -> Result<(Vec<Duration>, u64), Box<dyn Error>> {
    let slow = Arc::new(Slow {
        takes,
        updates: AtomicU64::new(0),
    });
    let stormy = attach(host, STORMY, slow.clone())?;
    let neighbour = attach(host, NEIGHBOUR, Arc::<Signals>::default())?;
    let (is_over, before) = (AtomicBool::new(false), slow.updates.load(Ordering::Relaxed));
    let mut times: Vec<_> = thread::scope(|scope| {
        scope.spawn(|| rage(&stormy, &is_over));
        let reads = (0..READS).map(|_| {
            thread::sleep(BETWEEN);
            let begun = Instant::now();
            neighbour.bar_read(2, 0, &mut [0; 4]);
            begun.elapsed()
        });
        let times = reads.collect();
        is_over.store(true, Ordering::Relaxed);
        times
    });
    let updates = slow.updates.load(Ordering::Relaxed) - before;
    settle([stormy, neighbour])?;
    times.sort_unstable();
    Ok((times, updates))
}

/// Prints how long a neighbour's reads take beside updates that take no time, and beside updates that take some. An error if they
/// wait for the updates.
pub(super) fn storm(host: &Host) -> Result<(), Box<dyn Error>> {
    for takes in [Duration::ZERO, UPDATE] {
        for tried in 1.. {
            let (times, updates) = measure(host, takes)?;
            let [p50, p99, max] = [50, 99, 100].map(|percent| part(&times, percent));
            println!("beside a storm of masks, {updates} updates of {takes:?} each:");
            println!("    {READS} reads: p50 {p50:.1?}, p99 {p99:.1?}, maximum {max:.1?}");
            if takes.is_zero() || p99 < LIMIT {
                break;
            }
            if tried == TRIES {
                return Err(format!("reads wait for a neighbour's updates: p99 {p99:.1?}").into());
            }
        }
    }
    Ok(())
}
