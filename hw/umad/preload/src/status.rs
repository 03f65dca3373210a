//! Answers of `stat` and its kin about character devices that do not exist.

use libc::{S_IFCHR, dev_t, mode_t};
use verbs_link::sysfs::{FIRST_MINOR, MAJOR, RDMA_CM_MAJOR, RDMA_CM_MINOR};

/// Mode of the device: everybody may open it who reaches the service.
pub(crate) const MODE: mode_t = S_IFCHR | 0o666;

/// Number of `uverbs0`.
pub(crate) const UVERBS: dev_t = libc::makedev(MAJOR, FIRST_MINOR);

/// Number of `rdma_cm`.
pub(crate) const RDMA_CM: dev_t = libc::makedev(RDMA_CM_MAJOR, RDMA_CM_MINOR);

/// Returns the status of a device by its number.
pub(crate) fn of_device(number: dev_t) -> libc::stat {
    // SAFETY: the structure is integers only, for which zero is a value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    status.st_mode = MODE;
    status.st_nlink = 1;
    status.st_ino = number;
    status.st_rdev = number;
    status
}
