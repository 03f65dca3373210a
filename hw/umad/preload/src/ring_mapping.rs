//! The memory file of rings, which a process maps once and whole: afterwards it is sealed, so that no process punches holes into
//! pages that the service reads. Programs map rings one by one; they get places in that mapping.
//!
//! A library that replaces `mmap` itself (UCX) maps rings of its own; their file stays unsealed.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use libc::{c_int, c_void, off_t, size_t};
use rustix::io::Errno;

/// The mapping of this process: unmapping a part of it leaves it mapped.
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);

/// The whole file, mapped as long as the process lives: a ring may be in use in any thread.
#[derive(Debug)]
pub(crate) struct RingMapping {
    start: usize,
    len: usize,
    /// The service was asked to seal the file.
    pub(crate) is_sealed: bool,
}

impl RingMapping {
    /// Maps a file.
    pub(crate) fn new(file: BorrowedFd<'_>) -> Result<Self, Errno> {
        let len = usize::try_from(rustix::fs::fstat(file)?.st_size).map_err(|_| Errno::NOMEM)?;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping replaces none.
        let mapped = unsafe { map(null, len, rights, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            return Err(Errno::NOMEM);
        }
        let start = mapped.expose_provenance();
        LEN.store(0, Ordering::Release);
        START.store(start, Ordering::Release);
        LEN.store(len, Ordering::Release);
        Ok(Self {
            start,
            len,
            is_sealed: false,
        })
    }

    /// Returns the address of a part.
    pub(crate) fn part(&self, offset: off_t, len: size_t) -> Result<usize, Errno> {
        let offset = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        match end {
            Some(_) if len > 0 => Ok(self.start + offset),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns a number that the service stores there. `None` for a place outside of the file.
    pub(crate) fn load(&self, offset: off_t) -> Option<u32> {
        let place = self.part(offset, size_of::<u32>()).ok()?;
        let place = place.is_multiple_of(align_of::<u32>()).then_some(place)?;
        let place = std::ptr::with_exposed_provenance_mut(place);
        // SAFETY: the bytes are in the mapping, which stays, aligned, and every process accesses them as one.
        let number = unsafe { AtomicU32::from_ptr(place) };
        Some(number.load(Ordering::Acquire))
    }
}

/// Returns `true` if bytes are a part of this process's mapping.
pub(crate) fn is_part(address: usize, len: usize) -> bool {
    let whole = LEN.load(Ordering::Acquire);
    let offset = address.wrapping_sub(START.load(Ordering::Acquire));
    len > 0 && offset.checked_add(len).is_some_and(|end| end <= whole)
}

/// Maps memory as the kernel does, without the C library, whose function this library replaces.
///
/// # Safety
/// As of mmap(2).
pub(crate) unsafe fn map(
    address: *mut c_void,
    len: size_t,
    rights: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: by this function's contract.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, address, len, rights, flags, fd, offset) };
    // The numbers of addresses and of MAP_FAILED fit.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an address"
    )]
    let mapped = mapped as usize;
    std::ptr::with_exposed_provenance_mut(mapped)
}
