//! A function that is taken from the kernel.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use vfio_ioctls::{VfioContainer, VfioDevice};

use crate::bus::VfioBus;
use crate::error::VfioError;
use crate::function::Function;
use crate::map::{DmaError, DmaRegion};
use crate::memory::VfioMemory;

/// Root of sysfs.
pub const SYSFS: &str = "/sys";

/// Takes a function from the kernel, with so many bytes of memory for its driver. Returns both for
/// [`Driver::probe`](mlx4_driver::Driver::probe).
///
/// # Errors
/// As [`Function::find`]; [`VfioError::NoVfio`], [`VfioError::InUse`], [`VfioError::Denied`], [`VfioError::NoRemapping`],
/// [`VfioError::Locked`], and [`VfioError::Kernel`] for everything else that the kernel refuses.
pub fn open(address: &str, bytes: usize) -> Result<(VfioBus, VfioMemory), VfioError> {
    let function = Function::find(Path::new(SYSFS), address)?;
    let refused = |why| VfioError::Kernel {
        address: function.address().to_owned(),
        why,
    };
    let of_kernel = |error| known(&function, &error).unwrap_or_else(|| refused(error.to_string()));
    let container = Arc::new(VfioContainer::new(None).map_err(of_kernel)?);
    let device = VfioDevice::new(function.path(), container.clone(), false).map_err(of_kernel)?;
    let region = DmaRegion::new(container, bytes).map_err(|error| match error {
        DmaError::Iommu(vfio_ioctls::VfioError::IommuDmaMap(source))
            if source.errno() == Errno::NOMEM.raw_os_error() =>
        {
            VfioError::Locked(bytes / 1024)
        }
        DmaError::Iommu(error) => of_kernel(error),
        DmaError::Process(why) => refused(why),
    })?;
    let bus = VfioBus::new(device).map_err(refused)?;
    Ok((bus, VfioMemory::new(region)))
}

/// Returns the error of the kernel that has a next step of its own.
fn known(function: &Function, error: &vfio_ioctls::VfioError) -> Option<VfioError> {
    use vfio_ioctls::VfioError as Of;
    let denied = |source: &io::Error, path| {
        (source.kind() == io::ErrorKind::PermissionDenied).then_some(VfioError::Denied(path))
    };
    match error {
        Of::OpenContainer(source) if source.kind() == io::ErrorKind::NotFound => {
            Some(VfioError::NoVfio)
        }
        Of::OpenContainer(source) => denied(source, "/dev/vfio/vfio".to_owned()),
        Of::OpenGroup(source, _) if source.kind() == io::ErrorKind::ResourceBusy => {
            Some(VfioError::InUse(function.group()))
        }
        Of::OpenGroup(source, group) => denied(source, format!("/dev/vfio/{group}")),
        Of::ContainerSetIOMMU(source) if source.errno() == Errno::PERM.raw_os_error() => {
            Some(VfioError::NoRemapping)
        }
        _ => None,
    }
}
