//! Errors, each with the next step.

use thiserror::Error;

/// Why a function cannot be driven from here, and the next step.
#[derive(Debug, Error)]
pub enum VfioError {
    /// The words are no address of PCI.
    #[error(
        "{0:?} is no PCI address such as 0000:01:00.0: lspci -D -d 15b3: lists the functions of ConnectX adapters"
    )]
    Address(String),
    /// There is no such function.
    #[error(
        "there is no PCI function {0}: lspci -D -d 15b3: lists the functions of ConnectX adapters"
    )]
    Missing(String),
    /// The function is none that the driver knows.
    #[error(
        "{address} is {id} and no VF of a ConnectX-3 (15b3:1004): lspci -D -d 15b3:1004 lists those"
    )]
    Other {
        /// Its address.
        address: String,
        /// Vendor and device, with a colon between them.
        id: String,
    },
    /// The function is in no IOMMU group.
    #[error(
        "{0} has no IOMMU, without which VFIO gives no function to programs: switch it on in the firmware (VT-d, AMD-Vi) and boot with intel_iommu=on"
    )]
    NoIommu(String),
    /// The function has another driver, or none.
    #[error(
        "{address} is bound to {}, not to vfio-pci: as root, {}",
        driver.as_deref().unwrap_or("no driver"), bind(address, driver.as_deref())
    )]
    Bound {
        /// Its address.
        address: String,
        /// The driver, if there is one.
        driver: Option<String>,
    },
    /// A function of its group has a driver of the kernel.
    #[error(
        "IOMMU group {group} of {address} is not viable, since it also has {other}, which is bound to {driver}: as root, {}",
        bind(other, Some(driver))
    )]
    NotViable {
        /// The group.
        group: u32,
        /// The function's address.
        address: String,
        /// Address of the other function.
        other: String,
        /// The other function's driver.
        driver: String,
    },
    /// The kernel has no VFIO.
    #[error("there is no /dev/vfio/vfio: as root, modprobe vfio_iommu_type1")]
    NoVfio,
    /// The user may not open VFIO's files.
    #[error("{0} may be opened by root only: as root, chown it to the user of this program")]
    Denied(String),
    /// Another process has the function.
    #[error("IOMMU group {0} is in use by another process: fuser /dev/vfio/{0} names it")]
    InUse(u32),
    /// The IOMMU does not remap interrupts.
    #[error(
        "the IOMMU does not remap interrupts, without which VFIO gives no function to programs: switch that on in the firmware, or in QEMU by -device intel-iommu,intremap=on"
    )]
    NoRemapping,
    /// The user may not lock that much memory.
    #[error(
        "this program may not lock {0} KiB of memory for the function: ulimit -l {0}, or more, or run it as root"
    )]
    Locked(usize),
    /// The kernel refuses something else.
    #[error("VFIO refuses {address}: {why}; dmesg may say more")]
    Kernel {
        /// The function's address.
        address: String,
        /// Its words.
        why: String,
    },
}

/// Returns the command that binds a function to vfio-pci.
fn bind(address: &str, driver: Option<&str>) -> String {
    let device = format!("/sys/bus/pci/devices/{address}");
    let unbind = driver.map(|_| format!(" && echo {address} >{device}/driver/unbind"));
    format!(
        "modprobe vfio-pci && echo vfio-pci >{device}/driver_override{} && echo {address} >/sys/bus/pci/drivers_probe",
        unbind.unwrap_or_default()
    )
}
