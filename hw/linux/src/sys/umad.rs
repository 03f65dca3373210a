//! The `ioctl` of umad.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::from_mut;

use umad_link::{RegisterRequest2, ioctl};

/// Registers an agent with a umad file (`IB_USER_MAD_REGISTER_AGENT2`).
///
/// # Errors
/// As `ib_umad_reg_agent2`: EINVAL also if another agent of the port takes one of the methods.
pub(crate) fn register(file: &File, mut request: RegisterRequest2) -> io::Result<()> {
    let number = libc::c_ulong::from(ioctl::REGISTER_AGENT2);
    // SAFETY: the argument of this request is a structure of this layout, which the kernel reads and writes during the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), number, from_mut(&mut request)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
