//! The memory of a guest.

use core::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use mlx4_driver::{DmaMemory, PAGE, words_backwards};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

/// Bytes that are read or written at once.
const WORD: usize = size_of::<u64>();

/// A guest's memory: pages that its driver allocates, as vm-memory has them for the VF. A clone is the same memory.
#[derive(Clone)]
pub struct Ram {
    memory: Arc<GuestMemoryMmap>,
    /// `true` for each page that is allocated.
    taken: Arc<Mutex<Vec<bool>>>,
}

impl Ram {
    /// Returns memory of so many pages, all zero.
    ///
    /// # Errors
    /// That of the host, if it has no such memory.
    pub fn new(pages: usize) -> Result<Self, vm_memory::mmap::FromRangesError> {
        let range = [(GuestAddress(0), pages * PAGE)];
        Ok(Self {
            memory: Arc::new(GuestMemoryMmap::from_ranges(&range)?),
            taken: Arc::new(Mutex::new(vec![false; pages])),
        })
    }

    /// Returns the memory as a VF reaches it.
    #[must_use]
    pub fn map(&self) -> Arc<GuestMemoryMmap> {
        Arc::clone(&self.memory)
    }
}

impl fmt::Debug for Ram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ram").finish_non_exhaustive()
    }
}

fn read(memory: &GuestMemoryMmap, addr: u64, out: &mut [u8]) -> Result<(), GuestMemoryError> {
    for part in words_backwards(addr, out.len()) {
        let at = GuestAddress(addr + part.start as u64);
        let out = &mut out[part];
        if out.len() == WORD {
            let word: u64 = memory.load(at, Ordering::Acquire)?;
            out.copy_from_slice(&word.to_ne_bytes());
        } else {
            memory.read_slice(out, at)?;
        }
    }
    Ok(())
}

fn write(memory: &GuestMemoryMmap, addr: u64, bytes: &[u8]) -> Result<(), GuestMemoryError> {
    for part in words_backwards(addr, bytes.len()) {
        let at = GuestAddress(addr + part.start as u64);
        match bytes[part.clone()].try_into().map(u64::from_ne_bytes) {
            Ok(word) => memory.store(word, at, Ordering::Release)?,
            Err(_) => memory.write_slice(&bytes[part], at)?,
        }
    }
    Ok(())
}

impl DmaMemory for Ram {
    fn allocate_contiguous(&self, count: usize, align: usize) -> u64 {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let last = taken.len().saturating_sub(count);
        let mut starts = (0..=last).step_by(align);
        let start = starts.find(|&start| !taken[start..start + count].contains(&true));
        let start = start.expect("the guest has memory left");
        taken[start..start + count].fill(true);
        let addr = (start * PAGE) as u64;
        self.write(addr, &vec![0; count * PAGE]);
        addr
    }

    fn free(&self, addr: u64, count: usize) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let first = usize::try_from(addr).expect("an address in RAM") / PAGE;
        for page in &mut taken[first..first + count] {
            assert!(core::mem::take(page), "freed twice");
        }
    }

    fn read(&self, addr: u64, out: &mut [u8]) {
        read(&self.memory, addr, out).expect("an address in RAM");
    }

    fn write(&self, addr: u64, bytes: &[u8]) {
        write(&self.memory, addr, bytes).expect("an address in RAM");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_wherever_it_begins() {
        let ram = Ram::new(1).unwrap();
        let page = ram.allocate_page();
        for start in 0..16 {
            for len in 0..40 {
                let bytes: Vec<u8> = (0..40).map(|at| at ^ 0x5a).take(len).collect();
                DmaMemory::write(&ram, page + start, &bytes);
                let mut read = vec![0; len];
                DmaMemory::read(&ram, page + start, &mut read);
                assert_eq!(read, bytes, "{len} bytes at {start}");
            }
        }
    }

    #[test]
    fn pages_are_zero_aligned_and_given_once() {
        let ram = Ram::new(8).unwrap();
        let first = ram.allocate_page();
        DmaMemory::write(&ram, first, &[7; PAGE]);
        let four = ram.allocate_contiguous(4, 4);
        assert_eq!((first, four), (0, 4 * PAGE as u64));
        ram.free(first, 1);
        assert_eq!(ram.allocate_page(), first);
        let mut page = [7; PAGE];
        DmaMemory::read(&ram, first, &mut page);
        assert_eq!(page, [0; PAGE]);
    }
}
