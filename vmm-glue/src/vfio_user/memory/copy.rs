//! Copies that find pages gone, where loads and stores would end the process.
//!
//! `unsafe`: the one call is of the C library's `process_vm_readv` and `process_vm_writev`, which no crate in use
//! wraps.
#![expect(
    unsafe_code,
    reason = "the kernel is told addresses of a mapping, which it checks itself"
)]

use vm_memory::VolatileSlice;

/// Copies all of a part of a mapping. Whether all its pages are there.
pub(super) fn from_mapping(from: &VolatileSlice<'_>, buf: &mut [u8]) -> bool {
    let len = buf.len();
    let here = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: len,
    };
    let there = libc::iovec {
        iov_base: from.ptr_guard_mut().as_ptr().cast(),
        iov_len: from.len(),
    };
    // SAFETY: both vectors live through the call. The kernel writes at most `buf.len()` bytes to `buf`, which is
    // borrowed for that, and reads the mapping, which lives as long as the slice, as it would another process's
    // memory: addresses without pages make the call fail.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &here, 1, &there, 1, 0) };
    usize::try_from(copied) == Ok(len)
}

/// Copies bytes to all of a part of a mapping. Whether all its pages are there.
pub(super) fn to_mapping(bytes: &[u8], to: &VolatileSlice<'_>) -> bool {
    let here = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let there = libc::iovec {
        iov_base: to.ptr_guard_mut().as_ptr().cast(),
        iov_len: to.len(),
    };
    // SAFETY: both vectors live through the call. The kernel only reads `bytes`. It writes at most `to.len()` bytes
    // to the mapping, which others write at any time, too, and to which nobody has references.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), &here, 1, &there, 1, 0) };
    usize::try_from(copied) == Ok(bytes.len())
}
