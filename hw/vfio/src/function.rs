//! A function in sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::VfioError;

/// Vendor and device of the VFs that the driver knows.
const VF: &str = "15b3:1004";

/// Drivers beside which a group is viable: VFIO's, that of bridges, and the one that does nothing.
const HARMLESS: [&str; 3] = ["vfio-pci", "pcieport", "pci-stub"];

/// A function that VFIO may give to a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    address: String,
    path: PathBuf,
    group: u32,
}

impl Function {
    /// Finds a function by its PCI address, whose domain may be missing, in the sysfs at `sysfs`.
    ///
    /// # Errors
    /// [`VfioError::Address`], [`VfioError::Missing`], [`VfioError::Other`], [`VfioError::NoIommu`], [`VfioError::Bound`] and
    /// [`VfioError::NotViable`].
    pub fn find(sysfs: &Path, address: &str) -> Result<Self, VfioError> {
        let address = full(address).ok_or_else(|| VfioError::Address(address.to_owned()))?;
        let path = sysfs.join("bus/pci/devices").join(&address);
        if !path.exists() {
            return Err(VfioError::Missing(address));
        }
        let [vendor, device] = ["vendor", "device"].map(|name| {
            let text = fs::read_to_string(path.join(name)).unwrap_or_default();
            text.trim().trim_start_matches("0x").to_owned()
        });
        let id = format!("{vendor}:{device}");
        if id != VF {
            return Err(VfioError::Other { address, id });
        }
        let group = target(&path.join("iommu_group")).and_then(|group| group.parse().ok());
        let Some(group) = group else {
            return Err(VfioError::NoIommu(address));
        };
        let driver = target(&path.join("driver"));
        if driver.as_deref() != Some("vfio-pci") {
            return Err(VfioError::Bound { address, driver });
        }
        // What cannot be read is the kernel's to judge.
        let members = fs::read_dir(path.join("iommu_group/devices"));
        for member in members.into_iter().flatten().flatten() {
            let driver = target(&member.path().join("driver"));
            if let Some(driver) = driver.filter(|driver| !HARMLESS.contains(&driver.as_str())) {
                return Err(VfioError::NotViable {
                    group,
                    address,
                    other: member.file_name().to_string_lossy().into_owned(),
                    driver,
                });
            }
        }
        Ok(Self {
            address,
            path,
            group,
        })
    }

    /// The address, with its domain.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The folder in sysfs.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The IOMMU group.
    #[must_use]
    pub const fn group(&self) -> u32 {
        self.group
    }
}

/// Returns an address with its domain, as sysfs names folders. Returns `None` for other words.
fn full(address: &str) -> Option<String> {
    let address = address.to_ascii_lowercase();
    let (rest, function) = address.rsplit_once('.')?;
    let parts: Vec<_> = rest.split(':').collect();
    let (domain, bus, device) = match parts[..] {
        [bus, device] => ("0000", bus, device),
        [domain, bus, device] => (domain, bus, device),
        _ => return None,
    };
    let number = |word: &str, digits, limit| {
        let value = u32::from_str_radix(word, 16).ok()?;
        (word.len() == digits && value < limit).then_some(value)
    };
    number(bus, 2, 256)?;
    number(device, 2, 32)?;
    number(function, 1, 8)?;
    // A domain may have more digits than four.
    number(domain, domain.len().max(4), u32::MAX)?;
    Some(format!("{domain}:{bus}:{device}.{function}"))
}

/// Returns the last part of the path that a link names.
fn target(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    const ADDRESS: &str = "0000:01:00.0";

    /// Makes a sysfs with one function, on this driver if any, and without a group if `group` is `None`.
    fn sysfs(device: &str, driver: Option<&str>, group: Option<u32>) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        add(dir.path(), ADDRESS, device, driver, group);
        dir
    }

    fn add(root: &Path, address: &str, device: &str, driver: Option<&str>, group: Option<u32>) {
        let path = root.join("bus/pci/devices").join(address);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("vendor"), "0x15b3\n").unwrap();
        fs::write(path.join("device"), format!("0x{device}\n")).unwrap();
        if let Some(driver) = driver {
            symlink(
                root.join("bus/pci/drivers").join(driver),
                path.join("driver"),
            )
            .unwrap();
        }
        if let Some(group) = group {
            let group = root.join("kernel/iommu_groups").join(group.to_string());
            fs::create_dir_all(group.join("devices")).unwrap();
            symlink(&group, path.join("iommu_group")).unwrap();
            symlink(&path, group.join("devices").join(address)).unwrap();
        }
    }

    #[test]
    fn a_vf_on_vfio_pci_is_found_with_and_without_its_domain() {
        let dir = sysfs("1004", Some("vfio-pci"), Some(7));
        // A bridge in the group does no harm.
        add(
            dir.path(),
            "0000:00:1c.0",
            "1004",
            Some("pcieport"),
            Some(7),
        );
        for address in [ADDRESS, "01:00.0"] {
            let function = Function::find(dir.path(), address).unwrap();
            assert_eq!((function.address(), function.group()), (ADDRESS, 7));
            assert!(function.path().join("vendor").exists());
        }
    }

    /// Each message is one line, and says what to do.
    #[test]
    fn what_is_in_the_way_is_named_with_the_next_step() {
        let shared = sysfs("1004", Some("vfio-pci"), Some(7));
        add(
            shared.path(),
            "0000:01:00.1",
            "1003",
            Some("mlx4_core"),
            Some(7),
        );
        let bound = || sysfs("1004", Some("mlx4_core"), Some(7));
        let cases = [
            (bound(), "1:0", "is no PCI address such as 0000:01:00.0"),
            (bound(), "0000:01:20.0", "is no PCI address"),
            (
                bound(),
                "0000:02:00.0",
                "there is no PCI function 0000:02:00.0: lspci",
            ),
            (
                sysfs("1003", Some("vfio-pci"), Some(7)),
                ADDRESS,
                "0000:01:00.0 is 15b3:1003 and no VF of a ConnectX-3 (15b3:1004)",
            ),
            (sysfs("1004", None, None), ADDRESS, "has no IOMMU"),
            (
                bound(),
                ADDRESS,
                "0000:01:00.0 is bound to mlx4_core, not to vfio-pci: as root, modprobe vfio-pci && echo vfio-pci \
                 >/sys/bus/pci/devices/0000:01:00.0/driver_override && echo 0000:01:00.0 \
                 >/sys/bus/pci/devices/0000:01:00.0/driver/unbind && echo 0000:01:00.0 >/sys/bus/pci/drivers_probe",
            ),
            (
                sysfs("1004", None, Some(7)),
                ADDRESS,
                "is bound to no driver, not to vfio-pci: as root, modprobe vfio-pci && echo vfio-pci \
                 >/sys/bus/pci/devices/0000:01:00.0/driver_override && echo 0000:01:00.0 >/sys/bus/pci/drivers_probe",
            ),
            (
                shared,
                ADDRESS,
                "IOMMU group 7 of 0000:01:00.0 is not viable, since it also has 0000:01:00.1, which is bound to mlx4_core",
            ),
        ];
        for (dir, address, part) in cases {
            let message = Function::find(dir.path(), address).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
