//! Bytes that a client has not read yet.
//!
//! `unsafe`: the call, which no crate in use wraps.
#![expect(unsafe_code, reason = "the kernel is given the address of a number")]

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Returns how many bytes that were sent on a socket its peer has not read (`SIOCOUTQ`, unix(7)), counted as the kernel's memory for
/// them.
pub(super) fn unread(socket: &impl AsFd) -> Result<usize, Errno> {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes one `int` to the address, where there is one.
    let done = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done < 0 {
        let error = std::io::Error::last_os_error().raw_os_error();
        return Err(Errno::from_raw_os_error(error.unwrap_or_default()));
    }
    Ok(usize::try_from(bytes).unwrap_or_default())
}
