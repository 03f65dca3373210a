//! The memory file in which a program and its VF share rings.
//!
//! Its size is sealed from the start. Once the program has said that it has mapped it, its content is sealed against holes
//! (`fallocate(2)`, `madvise(2)`), too: an access to a page that is being punched waits. Programs whose libraries replace `mmap` do
//! not say so; the connection of one whose rings made the service wait is ended.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, pread};
use vf_uverbs::RingMemory;
use vhca_vfio_user::memory::timed;
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, VolatileMemory, VolatileSlice};

use super::memory::io_error;

/// Bytes of the file. Pages count as memory once they are touched.
const BYTES: u64 = 256 << 20;

/// A mapped memory file whose size is sealed, so that no access finds a page gone.
#[derive(Debug)]
pub(super) struct MappedRings {
    region: MmapRegion,
    file: Arc<File>,
    is_sealed: AtomicBool,
    has_waited: AtomicBool,
}

impl MappedRings {
    /// Creates and maps a file.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("vhca-rings", flags).map_err(io_error)?;
        ftruncate(&file, BYTES).map_err(io_error)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).map_err(io_error)?;
        let file = Arc::new(File::from(file));
        let len = usize::try_from(BYTES).map_err(io::Error::other)?;
        let offset = FileOffset::from_arc(file.clone(), 0);
        let region = MmapRegion::from_file(offset, len).map_err(io::Error::other)?;
        Ok(Self {
            region,
            file,
            is_sealed: AtomicBool::new(false),
            has_waited: AtomicBool::new(false),
        })
    }

    /// Seals the file for all but the mappings that exist.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn seal(&self) -> Result<(), Errno> {
        if !self.is_sealed() {
            fcntl_add_seals(&*self.file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
            self.is_sealed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns `true` if no hole can be punched any longer.
    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed.load(Ordering::Relaxed)
    }

    /// Returns a descriptor of the file for the program.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Returns `true` if an access waited for a page.
    pub(super) fn has_waited(&self) -> bool {
        self.has_waited.load(Ordering::Relaxed)
    }

    /// Makes an access of so many bytes, and notes if it waited.
    fn access<T>(&self, bytes: usize, access: impl FnOnce() -> T) -> T {
        if self.is_sealed() {
            return access();
        }
        let (done, has_waited) = timed(bytes, access);
        if has_waited {
            self.has_waited.store(true, Ordering::Relaxed);
        }
        done
    }

    fn slice(&self, offset: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let offset = usize::try_from(offset).ok()?;
        self.region.get_slice(offset, len).ok()
    }
}

impl RingMemory for MappedRings {
    fn len(&self) -> u64 {
        BYTES
    }

    fn load(&self, offset: u64) -> u32 {
        let slice = self.slice(offset, 4);
        let load = |slice: VolatileSlice<'_>| slice.load::<u32>(0, Ordering::Acquire).ok();
        let loaded = slice.and_then(|slice| self.access(4, || load(slice)));
        loaded.unwrap_or(0)
    }

    fn store(&self, offset: u64, value: u32) {
        if let Some(slice) = self.slice(offset, 4) {
            // It is aligned: rings begin at pages.
            let _ = self.access(4, || slice.store(value, 0, Ordering::Release));
        }
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) {
        match self.slice(offset, bytes.len()) {
            Some(slice) => {
                self.access(bytes.len(), || slice.copy_to(bytes));
            }
            None => bytes.fill(0),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        if let Some(slice) = self.slice(offset, bytes.len()) {
            self.access(bytes.len(), || slice.copy_from(bytes));
        }
    }

    fn resident(&self) -> u64 {
        // Blocks are of 512 bytes, whatever the file system says.
        let blocks = fstat(&*self.file).map_or(0, |status| status.st_blocks);
        u64::try_from(blocks).unwrap_or(0).saturating_mul(512)
    }

    fn clear(&self, offset: u64, len: u64) {
        const PAGE: usize = 4096;

        let end = offset.saturating_add(len).min(BYTES);
        let mut page = [0; PAGE];
        for at in (offset..end).step_by(PAGE) {
            // A page that does not exist reads as zeros, and is not made.
            let is_read = pread(&*self.file, &mut page[..], at);
            if is_read.is_err() || page.iter().any(|byte| *byte != 0) {
                self.write(at, &[0; PAGE]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;

    #[test]
    fn a_program_sees_what_is_stored_and_cannot_change_the_size() {
        let rings = MappedRings::new().unwrap();
        let theirs = rings.descriptor().unwrap();
        rings.store(4096, 7);
        rings.write(4100, b"vhca");
        let mut bytes = [0; 8];
        pread(&theirs, &mut bytes, 4096).unwrap();
        assert_eq!(bytes, [7, 0, 0, 0, b'v', b'h', b'c', b'a']);
        assert!(ftruncate(&theirs, 0).is_err());
        assert_eq!(rings.resident(), 4096);
        rustix::io::pwrite(&theirs, &[1], 3 * 4096).unwrap();
        assert_eq!(rings.resident(), 2 * 4096);
        rings.clear(3 * 4096, 1);
        rings.clear(4096, 100);
        rings.clear(64 * 4096, 1 << 20);
        assert_eq!(rings.resident(), 2 * 4096, "no page is made or released");
        assert_eq!((rings.load(4096), rings.load(3 * 4096)), (0, 0));
        assert_eq!(rings.load(BYTES), 0);
        rings.store(BYTES - 2, 1);
        let mut outside = [1; 4];
        rings.read(u64::MAX, &mut outside);
        assert_eq!(outside, [0; 4]);
    }

    #[test]
    fn a_program_that_has_mapped_the_file_punches_no_hole() {
        let rings = MappedRings::new().unwrap();
        let theirs = Arc::new(File::from(rings.descriptor().unwrap()));
        let map = || MmapRegion::<()>::from_file(FileOffset::from_arc(theirs.clone(), 0), 8192);
        let mapped = map().unwrap();
        let punch = || {
            fallocate(
                &*theirs,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                0,
                4096,
            )
        };
        punch().unwrap();
        rings.seal().unwrap();
        rings.seal().unwrap();
        assert_eq!(punch(), Err(Errno::PERM));
        assert_eq!(rustix::io::pwrite(&*theirs, &[1], 0), Err(Errno::PERM));
        assert!(map().is_err());
        // What both have mapped is shared on.
        mapped
            .get_slice(0, 4)
            .unwrap()
            .store(7_u32, 0, Ordering::Release)
            .unwrap();
        assert_eq!(rings.load(0), 7);
        rings.store(4096, 9);
        let seen = mapped.get_slice(4096, 4).unwrap();
        assert_eq!(seen.load::<u32>(0, Ordering::Acquire).unwrap(), 9);
        rings.clear(0, 4096);
        assert_eq!(rings.load(0), 0);
    }
}
