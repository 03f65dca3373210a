//! All that a program sees of `/sys` and `/dev/infiniband`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::device::{Device, Entry};

/// Version of the interface of umad (`IB_USER_MAD_ABI_VERSION`).
pub const MAD_ABI_VERSION: u32 = 5;

/// Version of the interface of uverbs (`IB_USER_VERBS_ABI_VERSION`).
pub const VERBS_ABI_VERSION: u32 = 6;

/// Version of the interface of the RDMA CM (`RDMA_USER_CM_ABI_VERSION`).
pub const RDMA_CM_ABI_VERSION: u32 = 4;

/// Major number of the devices of `/dev/infiniband` (`IB_UMAD_MAJOR`, `IB_UVERBS_MAJOR`).
pub const MAJOR: u32 = 231;

/// Minor number of `issm0` (`IB_ISSM_MINOR_BASE`); that of `umad0` is 0.
pub const FIRST_ISSM: u32 = 64;

/// Minor number of `uverbs0` (`IB_UVERBS_BASE_MINOR`).
pub const FIRST_UVERBS: u32 = 192;

/// Number of `rdma_cm`, which is among the kernel's miscellaneous devices.
pub const RDMA_CM: (u32, u32) = (10, 122);

/// Folder of the device `rdma_cm`.
const RDMA_CM_FOLDER: &str = "sys/devices/virtual/misc/rdma_cm";

/// The devices of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Devices, those for libibumad first.
    pub devices: Vec<Device>,
    /// The classes of libibverbs and librdmacm are there, with or without a device.
    pub has_verbs: bool,
}

impl View {
    /// Returns the files and links. Their folders are all folders that there are.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut file = |path: &str| entries.push(Entry::file(path.to_string()));
        file("sys/class/infiniband_mad/abi_version");
        if self.has_verbs {
            file("sys/class/infiniband_verbs/abi_version");
            for name in ["abi_version", "dev", "uevent"] {
                file(&format!("{RDMA_CM_FOLDER}/{name}"));
            }
            file("dev/infiniband/rdma_cm");
            let target = "../../devices/virtual/misc/rdma_cm".to_string();
            entries.push(Entry::link("sys/class/misc/rdma_cm".to_string(), target));
        }
        for device in &self.devices {
            device.list(&mut entries);
        }
        entries
    }

    /// Returns the text of a file by its path below `/`, without links in it. `None` as [`Device::text`].
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        let of_rdma_cm = path.strip_prefix(RDMA_CM_FOLDER);
        let (major, minor) = RDMA_CM;
        Some(match (path, of_rdma_cm.filter(|_| self.has_verbs)) {
            ("sys/class/infiniband_mad/abi_version", _) => format!("{MAD_ABI_VERSION}\n"),
            ("sys/class/infiniband_verbs/abi_version", _) if self.has_verbs => {
                format!("{VERBS_ABI_VERSION}\n")
            }
            (_, Some("/abi_version")) => format!("{RDMA_CM_ABI_VERSION}\n"),
            (_, Some("/dev")) => format!("{major}:{minor}\n"),
            (_, Some("/uevent")) => {
                format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/rdma_cm\nDEVMODE=0666\n")
            }
            _ => self.devices.iter().find_map(|device| device.text(path))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_of_verbs_are_there_without_a_device_if_the_service_has_them() {
        let unread = |view: &View| {
            let entries = view.entries();
            let files = entries.iter().filter(|entry| entry.target.is_none());
            let unread = files.filter(|entry| view.text(&entry.path).is_none());
            (entries.len(), unread.count())
        };
        assert_eq!(unread(&View::default()), (1, 0));
        let with_verbs = View {
            has_verbs: true,
            ..View::default()
        };
        // The device's own file is not one of text.
        assert_eq!(unread(&with_verbs), (7, 1));
        let version = "sys/class/infiniband_verbs/abi_version";
        assert_eq!(with_verbs.text(version).as_deref(), Some("6\n"));
        assert_eq!(View::default().text(version), None);
        let number = format!("{RDMA_CM_FOLDER}/dev");
        assert_eq!(with_verbs.text(&number).as_deref(), Some("10:122\n"));
    }
}
