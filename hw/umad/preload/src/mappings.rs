//! The functions of the C library that map files and unmap memory.

use libc::{c_int, c_void, off_t, size_t};
use rustix::io::Errno;

use crate::interpose::ours;
use crate::real::{fail, guarded};
use crate::ring_mapping::{is_part, map};

/// `mmap` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: size_t,
    rights: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let of_file = (fd >= 0 && flags & libc::MAP_ANONYMOUS == 0).then(|| ours(fd));
    let Some((file, borrowed)) = of_file
        .flatten()
        .filter(|(file, _)| file.uverbs().is_some())
    else {
        // SAFETY: as the caller's.
        return unsafe { map(address, len, rights, flags, fd, offset) };
    };
    let part = guarded(|| file.uverbs().ok_or(Errno::BADF)?.map(borrowed, offset, len));
    match part {
        Ok(start) => std::ptr::with_exposed_provenance_mut(start),
        Err(error) => fail(error.raw_os_error(), libc::MAP_FAILED),
    }
}

/// `mmap64` of the C library, whose offsets are as long.
///
/// # Safety
/// As of [`mmap`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: size_t,
    rights: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: as the caller's.
    unsafe { mmap(address, len, rights, flags, fd, offset) }
}

/// `munmap` of the C library. A part of the rings' mapping stays mapped.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    if is_part(address.addr(), len) {
        return 0;
    }
    // SAFETY: as the caller's.
    let result = unsafe { libc::syscall(libc::SYS_munmap, address, len) };
    if result == 0 { 0 } else { -1 }
}
