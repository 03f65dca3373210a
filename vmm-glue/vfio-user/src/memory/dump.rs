//! Keeps guests' memory out of core files of the service: they are for whoever mends it, not for guests' secrets.
//!
//! `unsafe`: the call for it, which changes nothing that the program can see.
#![expect(unsafe_code, reason = "no crate in use wraps this call safely")]

use rustix::io::Errno;
use vm_memory::mmap::MmapRegion;

/// Leaves a mapping out of core files; all of it, however much of that is new.
pub(super) fn leave_out(mapping: &MmapRegion) -> Result<(), Errno> {
    // SAFETY: The range is that of a mapping that lives through the call, whose bytes and rights stay as they are.
    let result =
        unsafe { libc::madvise(mapping.as_ptr().cast(), mapping.size(), libc::MADV_DONTDUMP) };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
