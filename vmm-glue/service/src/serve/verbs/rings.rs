//! The memory file in which a program and its VF share rings.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate,
    memfd_create,
};
use verbs_link::RingMemory;
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
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(io_error)?;
        let file = Arc::new(File::from(file));
        let len = usize::try_from(BYTES).map_err(io::Error::other)?;
        let offset = FileOffset::from_arc(file.clone(), 0);
        let region = MmapRegion::from_file(offset, len).map_err(io::Error::other)?;
        Ok(Self { region, file })
    }

    /// Returns a descriptor of the file for the program.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
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
        let loaded = slice.and_then(|slice| slice.load::<u32>(0, Ordering::Acquire).ok());
        loaded.unwrap_or(0)
    }

    fn store(&self, offset: u64, value: u32) {
        if let Some(slice) = self.slice(offset, 4) {
            // It is aligned: rings begin at pages.
            let _ = slice.store(value, 0, Ordering::Release);
        }
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) {
        match self.slice(offset, bytes.len()) {
            Some(slice) => {
                slice.copy_to(bytes);
            }
            None => bytes.fill(0),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        if let Some(slice) = self.slice(offset, bytes.len()) {
            slice.copy_from(bytes);
        }
    }

    fn resident(&self) -> u64 {
        // Blocks are of 512 bytes, whatever the file system says.
        let blocks = fstat(&*self.file).map_or(0, |status| status.st_blocks);
        u64::try_from(blocks).unwrap_or(0).saturating_mul(512)
    }

    fn clear(&self, offset: u64, len: u64) {
        const PAGE: u64 = 4096;

        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let whole = len.next_multiple_of(PAGE);
        if fallocate(&*self.file, flags, offset, whole).is_err() {
            let zeros = [0; 4096];
            for at in (offset..offset.saturating_add(whole)).step_by(zeros.len()) {
                self.write(at, &zeros);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_sees_what_is_stored_and_cannot_change_the_size() {
        let rings = MappedRings::new().unwrap();
        let theirs = rings.descriptor().unwrap();
        rings.store(4096, 7);
        rings.write(4100, b"vhca");
        let mut bytes = [0; 8];
        rustix::io::pread(&theirs, &mut bytes, 4096).unwrap();
        assert_eq!(bytes, [7, 0, 0, 0, b'v', b'h', b'c', b'a']);
        assert!(ftruncate(&theirs, 0).is_err());
        assert_eq!(rings.resident(), 4096);
        rustix::io::pwrite(&theirs, &[1], 3 * 4096).unwrap();
        assert_eq!(rings.resident(), 2 * 4096);
        rings.clear(3 * 4096, 1);
        rings.clear(4096, 100);
        assert_eq!(rings.resident(), 0);
        assert_eq!(rings.load(4096), 0);
        assert_eq!(rings.load(BYTES), 0);
        rings.store(BYTES - 2, 1);
        let mut outside = [1; 4];
        rings.read(u64::MAX, &mut outside);
        assert_eq!(outside, [0; 4]);
    }
}
