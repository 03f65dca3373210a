//! Memory that another process has, too.
//!
//! The driver and the device look at the same bytes at any time, so order matters: what says that an entry is
//! valid must be read first and written last. In completions and events that is the last byte, which the device
//! writes at once with the seven before it, after all others; in requests it is in the first eight. So both
//! reading and writing go backwards, eight bytes at once.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::mlx4_driver::words_backwards;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Bytes of what is read or written at once.
const WORD: usize = 8;

/// Pages of a memory file.
#[derive(Debug)]
pub(super) struct SharedBytes(MmapRegion);

impl SharedBytes {
    /// A new file of so many bytes, all zero, that can be given to others.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let file = memfd_create("guest", flags)?;
        ftruncate(&file, len as u64)?;
        let offset = FileOffset::new(File::from(file), 0);
        let region = MmapRegion::from_file(offset, len).map_err(io::Error::other)?;
        Ok(Self(region))
    }

    /// The file.
    pub(super) fn file(&self) -> Option<Arc<File>> {
        self.0.file_offset().map(|offset| offset.arc().clone())
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.0.size()
    }

    /// Copies bytes out.
    pub(super) fn read(&self, start: usize, out: &mut [u8]) {
        for part in words_backwards(start as u64, out.len()) {
            let slice = self.slice(start + part.start, part.len());
            let out = &mut out[part];
            match <[u8; WORD]>::try_from(&*out) {
                Ok(_) => out.copy_from_slice(&load(&slice).to_ne_bytes()),
                Err(_) => {
                    slice.copy_to(out);
                }
            }
        }
    }

    /// Copies bytes in.
    pub(super) fn write(&self, start: usize, bytes: &[u8]) {
        for part in words_backwards(start as u64, bytes.len()) {
            let slice = self.slice(start + part.start, part.len());
            let bytes = &bytes[part];
            match bytes.try_into() {
                Ok(word) => store(&slice, u64::from_ne_bytes(word)),
                Err(_) => slice.copy_from(bytes),
            }
        }
    }

    fn slice(&self, start: usize, len: usize) -> VolatileSlice<'_> {
        self.0.get_slice(start, len).expect("an address in RAM")
    }
}

fn load(slice: &VolatileSlice<'_>) -> u64 {
    slice.load(0, Ordering::Acquire).expect("an aligned word")
}

fn store(slice: &VolatileSlice<'_>, word: u64) {
    slice
        .store(word, 0, Ordering::Release)
        .expect("an aligned word");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_wherever_it_begins() {
        let memory = SharedBytes::new(4096).unwrap();
        for start in 0..16 {
            for len in 0..40 {
                let bytes: Vec<u8> = (0..40).map(|at| at ^ 0x5a).take(len).collect();
                memory.write(start, &bytes);
                let mut read = vec![0; len];
                memory.read(start, &mut read);
                assert_eq!(read, bytes, "{len} bytes at {start}");
            }
        }
    }
}
