//! Answers of `stat` and its kin about character devices that do not exist.

use libc::{S_IFCHR, dev_t, mode_t};
use linux_abi::sysfs::{FIRST_ISSM, FIRST_UVERBS, MAJOR, RDMA_CM};

use crate::paths::DeviceFile;

/// Mode of the device: every user may open it who reaches the service.
const MODE: mode_t = S_IFCHR | 0o666;

/// Returns the major and the minor number of a device.
const fn number(device: DeviceFile) -> (u32, u32) {
    match device {
        DeviceFile::Umad(number) => (MAJOR, number),
        DeviceFile::IsSm(number) => (MAJOR, FIRST_ISSM + number),
        DeviceFile::Uverbs(number) => (MAJOR, FIRST_UVERBS + number),
        DeviceFile::RdmaCm => RDMA_CM,
    }
}

fn encoded(device: DeviceFile) -> dev_t {
    let (major, minor) = number(device);
    libc::makedev(major, minor)
}

/// Makes the status of an empty file the status of a device.
pub(crate) fn show(status: &mut libc::stat, device: DeviceFile) {
    status.st_mode = MODE;
    status.st_rdev = encoded(device);
}

/// Makes the status of an empty file, as `statx` gives it, the status of a device.
pub(crate) fn show_extended(status: &mut libc::statx, device: DeviceFile) {
    // A mode has 16 bits.
    status.stx_mode = u16::try_from(MODE).unwrap_or_default();
    (status.stx_rdev_major, status.stx_rdev_minor) = number(device);
}
