//! A file of memory, mapped so that adapters and other processes share it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// A mapped file of memory. Its bytes are copied in and out: no reference to one exists, since an adapter writes them meanwhile.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    file: File,
}

// SAFETY: the mapping is of the process, not of a thread.
unsafe impl Send for Mapping {}
// SAFETY: bytes are copied through raw pointers alone, whoever else writes them.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes a file of zeroes, and maps it. Pages take memory once they are written.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        // SAFETY: the name ends with a zero byte.
        let fd = unsafe { libc::memfd_create(c"vhca-memory".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made the descriptor, and nothing else has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(len as u64)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses the place of a new mapping.
        let base = unsafe { libc::mmap(null_mut(), len, rights, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len, file })
    }

    /// Returns the place of bytes. `None` if they are not all in the file.
    pub(super) fn at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        // SAFETY: the place is within the mapping, or its end.
        (end <= self.len).then(|| unsafe { self.base.add(offset) })
    }

    /// Copies bytes out. Returns `None` if they are not all in the file.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> Option<()> {
        let len = to.len();
        let from = self.at(offset, len)?;
        // SAFETY: `at` checked the range, and `to` is no part of the mapping, to which there are no references.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(to).cast(), len) };
        Some(())
    }

    /// Copies bytes in. Returns `None` if not all of the places are in the file.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Option<()> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: as for reading.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Some(())
    }

    /// Replaces an aligned number at once, and returns the old one. Returns `None` if it is not in the file, or not aligned.
    pub(crate) fn update(&self, offset: u64, update: &mut dyn FnMut(u64) -> u64) -> Option<u64> {
        let place = self.at(offset, size_of::<u64>())?.cast::<u64>();
        if !place.is_aligned() {
            return None;
        }
        // SAFETY: it is aligned and in the mapping, and who shares the number changes it atomically.
        let number = unsafe { AtomicU64::from_ptr(place.as_ptr()) };
        number
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(update(old)))
            .ok()
    }

    /// Gives pages back, which then are zero again.
    pub(crate) fn discard(&self, offset: u64, len: usize) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let range = (libc::off_t::try_from(offset), libc::off_t::try_from(len));
        if let (Ok(offset), Ok(len)) = range {
            // SAFETY: the call changes the file alone; pages of a mapping stay readable.
            let done = unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) };
            debug_assert_eq!(done, 0, "a file of memory can have holes");
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and there are no references to its bytes.
        let done = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(done, 0, "it is mapped");
    }
}
