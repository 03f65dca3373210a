//! The shared memory of a trunk: a sealed memfd with four queues and their buffers.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

use super::{Buffers, Memory, QueueAddresses};

/// Places of each queue.
const PLACES: u16 = 32;

/// Bytes of a chunk of packets and runs at most: a whole record, with room for small ones in front of it.
pub(crate) const PACKET_CHUNK: u32 = 96 << 10;

/// Bytes of a chunk of other records at most.
pub(crate) const CONTROL_CHUNK: u32 = 4 << 10;

/// Address of the first byte of the memory that the front end of this crate makes. Queues have no parts at address 0.
pub(crate) const BASE: u64 = 1 << 20;

/// Number of queues: packets and runs to the device and to the driver, then all other records to the device and to the driver.
pub(crate) const QUEUES: usize = 4;

/// The queues of the driver, and the bytes of memory that they take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) queues: [(QueueAddresses, Buffers); QUEUES],
    pub(crate) bytes: u64,
}

impl Plan {
    /// Returns the queues from [`BASE`] on.
    pub(crate) fn new() -> Self {
        let mut end = BASE;
        let queues = [PACKET_CHUNK, PACKET_CHUNK, CONTROL_CHUNK, CONTROL_CHUNK].map(|size| {
            let (addresses, behind) = QueueAddresses::from(end, PLACES);
            let start = behind.next_multiple_of(4096);
            end = start + u64::from(size) * u64::from(PLACES);
            (addresses, Buffers { start, size })
        });
        let bytes = end - BASE;
        Self { queues, bytes }
    }
}

/// Makes a memfd of so many zeros, which keeps its size.
///
/// # Errors
/// Errors of the system.
pub(crate) fn create(bytes: u64) -> io::Result<OwnedFd> {
    let file = memfd_create(
        "vhca-trunk",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Maps so many bytes of memory, of which the first has this address.
///
/// # Errors
/// Errors of the system.
pub(crate) fn map(file: OwnedFd, base: u64, bytes: u64) -> io::Result<Memory> {
    let length = usize::try_from(bytes).map_err(io::Error::other)?;
    let file = FileOffset::new(File::from(file), 0);
    let range = (GuestAddress(base), length, Some(file));
    GuestMemoryMmap::from_ranges_with_files([range]).map_err(io::Error::other)
}
