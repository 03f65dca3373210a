//! The shared memory of a trunk: a sealed memfd with four queues and their buffers.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use thiserror::Error;
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

/// Bytes of the memory at most.
const MAX_MEMORY: u64 = 8 << 20;

/// `TMPFS_MAGIC` (`linux/magic.h`).
const TMPFS: u64 = 0x0102_1994;

/// Reason for which a descriptor is not the memory of a trunk.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// It is of another kind.
    #[error(
        "the memory of a trunk is a memfd of tmpfs without huge pages, and this is another file"
    )]
    NotTmpfs,
    /// The other end could take pages away while they are used.
    #[error("the memory of a trunk is sealed against shrinking and growing, and this one is not")]
    NotSealed,
    /// Its size.
    #[error(
        "the memory of a trunk has at most 8 MiB and all of its region, and this one has {0} bytes"
    )]
    Size(u64),
    /// An error of the system.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for MemoryError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.into())
    }
}

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

/// Checks that a descriptor of the other end is memory of so many bytes at least, none of which goes away.
///
/// # Errors
/// [`MemoryError`].
pub(crate) fn check(file: &impl AsFd, bytes: u64) -> Result<(), MemoryError> {
    let kind = u64::try_from(fstatfs(file)?.f_type).unwrap_or(0);
    if kind != TMPFS {
        return Err(MemoryError::NotTmpfs);
    }
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    // Files of tmpfs that are no memfds have the seal against seals alone.
    if !fcntl_get_seals(file)?.contains(sealed) {
        return Err(MemoryError::NotSealed);
    }
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    match (1..=size.min(MAX_MEMORY)).contains(&bytes) && size <= MAX_MEMORY {
        true => Ok(()),
        false => Err(MemoryError::Size(size)),
    }
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
