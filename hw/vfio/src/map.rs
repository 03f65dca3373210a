//! Memory that the function reaches, and its registers: the mappings of the process, and all `unsafe` of the crate.
#![expect(
    unsafe_code,
    reason = "a mapping of memory that a device changes cannot be made by safe calls"
)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use vfio_ioctls::{VfioContainer, VfioDevice};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

/// Bytes of a page that the IOMMU and the processor translate as one, where they can.
const LARGE_PAGE: usize = 2 << 20;

/// Address of the memory, as the function has it. Interrupts and firmware have reserved addresses below.
pub(crate) const DMA_START: u64 = 4 << 30;

/// Anonymous memory that the function reaches.
pub(crate) struct DmaRegion {
    memory: MmapRegion,
    /// Offset of the first byte that the function reaches, at the start of a large page.
    first: usize,
    len: usize,
    container: Arc<VfioContainer>,
}

/// Why there is no memory.
pub(crate) enum DmaError {
    Process(String),
    Iommu(vfio_ioctls::VfioError),
}

impl DmaRegion {
    /// Allocates memory, and shows it to the function at [`DMA_START`].
    pub(crate) fn new(container: Arc<VfioContainer>, len: usize) -> Result<Self, DmaError> {
        let of_process = |why: &dyn ToString| DmaError::Process(why.to_string());
        let memory = MmapRegion::new(len + LARGE_PAGE).map_err(|error| of_process(&error))?;
        let first = memory.as_ptr().align_offset(LARGE_PAGE);
        let start = memory.as_ptr().wrapping_add(first);
        // SAFETY: the range is within the mapping that was just made, which nothing refers to. Advice about the size of
        // pages changes no byte. Where the kernel has none that large, small ones do.
        let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
        // SAFETY: the range is within the mapping, which outlives that of the IOMMU: `drop` ends the latter first. Until
        // then nothing makes a reference to these bytes; `slice` is the only way to them, and its accesses are volatile.
        unsafe { container.vfio_dma_map(DMA_START, len, start) }.map_err(DmaError::Iommu)?;
        Ok(Self {
            memory,
            first,
            len,
            container,
        })
    }

    /// The memory, from [`DMA_START`] on.
    pub(crate) fn slice(&self) -> VolatileSlice<'_> {
        let slice = self.memory.get_slice(self.first, self.len);
        slice.expect("the range was within the mapping when that was made")
    }
}

impl Drop for DmaRegion {
    fn drop(&mut self) {
        // If it fails, the pages stay pinned until the process ends, and the function writes to memory that has no other use.
        let _ = self.container.vfio_dma_unmap(DMA_START, self.len);
    }
}

/// Registers of the function, mapped into the process.
pub(crate) struct MappedBar {
    registers: MmapRegion,
}

impl MappedBar {
    /// Maps the registers behind a base address register.
    pub(crate) fn new(device: &VfioDevice, bar: u32) -> Result<Self, Errno> {
        let (offset, size) = (device.get_region_offset(bar), device.get_region_size(bar));
        let size = usize::try_from(size).map_err(|_| Errno::OVERFLOW)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the device has its descriptor as long as it is borrowed.
        let file = unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) };
        // SAFETY: the kernel chooses a range that nothing else has.
        let start = unsafe { mmap(ptr::null_mut(), size, prot, MapFlags::SHARED, file, offset) }?;
        let (prot, flags) = (
            prot.bits().cast_signed(),
            MapFlags::SHARED.bits().cast_signed(),
        );
        // SAFETY: the range is mapped with these rights, until `drop` ends that.
        let registers = unsafe { MmapRegion::build_raw(start.cast(), size, prot, flags) };
        let registers = registers.map_err(|_| Errno::INVAL)?;
        Ok(Self { registers })
    }

    pub(crate) fn slice(&self) -> VolatileSlice<'_> {
        self.registers.as_volatile_slice()
    }
}

impl Drop for MappedBar {
    fn drop(&mut self) {
        // SAFETY: the range is the one that `new` mapped, and all that refers to it borrows `self`. If it fails, it stays
        // mapped.
        let _ = unsafe { munmap(self.registers.as_ptr().cast(), self.registers.size()) };
    }
}
