//! Answers of `stat` and its kin about character devices that do not exist.

use libc::{S_IFCHR, dev_t, mode_t};
use verbs_link::sysfs::{FIRST_MINOR, MAJOR};

/// Mode of the device: everybody may open it who reaches the service.
pub(crate) const MODE: mode_t = S_IFCHR | 0o666;

/// Returns the number of `uverbsN`.
pub(crate) fn device_number(uverbs: u32) -> dev_t {
    libc::makedev(MAJOR, FIRST_MINOR + uverbs)
}

/// Returns the status of `uverbsN`.
pub(crate) fn of_uverbs(uverbs: u32) -> libc::stat {
    // SAFETY: the structure is integers only, for which zero is a value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    status.st_mode = MODE;
    status.st_nlink = 1;
    status.st_ino = u64::from(uverbs) + 1;
    status.st_rdev = device_number(uverbs);
    status
}
