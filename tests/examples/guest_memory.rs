//! How long a device takes to reach the memory of a VMM's guest:
//! `cargo run --release -p vhca-tests --example guest_memory`.
//!
//! Each kind of file that a VMM can share its memory by has its row; huge pages only if there are enough.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use hca_api::AddressSpace;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhca_vfio_user::GuestMemory;
use vhca_vfio_user::codec::DmaMap;

/// Runs of each case; the table has the median.
const RUNS: usize = 9;

/// Accesses of one run.
const ACCESSES: u64 = 200_000;

/// Bytes of the memory, of which each was written: few, so that what is measured is not the machine's own memory.
const MEMORY: u64 = 1 << 20;

/// Bytes between one access and the next.
const STRIDE: u64 = 4096 + 64;

/// Memory in a file of a kind, all of which was written; `None` if there are no such pages.
fn memory(flags: MemfdFlags) -> Result<Option<GuestMemory>, Box<dyn Error>> {
    let file = memfd_create("guest", flags | MemfdFlags::CLOEXEC)?;
    ftruncate(&file, MEMORY)?;
    let mut memory = GuestMemory::default();
    let map = DmaMap {
        argsz: 32.into(),
        flags: 3.into(),
        size: MEMORY.into(),
        ..DmaMap::default()
    };
    memory.map(&map, Some(file.into()))?;
    let written = memory.write(0, &vec![1; usize::try_from(MEMORY)?]);
    Ok(written.is_ok().then_some(memory))
}

/// The median of what an access takes, in nanoseconds.
fn measure(mut access: impl FnMut(u64)) -> f64 {
    let mut run = || {
        let begun = Instant::now();
        for nth in 0..ACCESSES {
            access((nth * STRIDE % (MEMORY - STRIDE)) & !7);
        }
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(ACCESSES).unwrap_or(u32::MAX))
    };
    // Once to have all pages.
    run();
    let mut runs: Vec<f64> = (0..RUNS).map(|_| run()).collect();
    runs.sort_by(f64::total_cmp);
    runs[RUNS / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("| file | read 64 | read 2048 | write 64 | write 2048 | update 8 |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let kinds = [
        ("sealed", MemfdFlags::ALLOW_SEALING),
        ("can shrink", MemfdFlags::empty()),
        (
            "huge pages",
            MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB,
        ),
    ];
    for (name, flags) in kinds {
        let Some(mut memory) = memory(flags)? else {
            println!("| {name} | there are none | | | | |");
            continue;
        };
        let mut row = Vec::new();
        for len in [64, 2048] {
            let mut bytes = vec![0; len];
            row.push(measure(|at| {
                assert!(memory.read(at, black_box(&mut bytes)).is_ok());
            }));
        }
        for len in [64, 2048] {
            let bytes = vec![2; len];
            row.push(measure(|at| {
                assert!(memory.write(at, black_box(&bytes)).is_ok());
            }));
        }
        row.push(measure(|at| {
            assert!(memory.update_u64(at, &mut |old| old + 1).is_ok());
        }));
        let cells: Vec<String> = row.iter().map(|nanos| format!("{nanos:.0}")).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
    Ok(())
}
