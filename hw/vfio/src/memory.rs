//! The memory of a driver.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use mlx4_driver::{DmaMemory, PAGE, words_backwards};
use vm_memory::Bytes;

use crate::map::{DMA_START, DmaRegion};

/// Memory of a fixed size that a function reaches, given out by pages.
pub struct VfioMemory {
    region: DmaRegion,
    pages: Mutex<Pages>,
}

impl VfioMemory {
    pub(crate) fn new(region: DmaRegion) -> Self {
        let pages = Mutex::new(Pages::new(region.slice().len() / PAGE));
        Self { region, pages }
    }

    fn offset(addr: u64) -> usize {
        let offset = addr.checked_sub(DMA_START).map(usize::try_from);
        offset
            .and_then(Result::ok)
            .expect("an address of the memory")
    }
}

impl fmt::Debug for VfioMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioMemory").finish_non_exhaustive()
    }
}

impl DmaMemory for VfioMemory {
    fn allocate_contiguous(&self, count: usize, align: usize) -> u64 {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let first = pages.take(count, align);
        let offset = first.expect("the driver's memory is of the size that its work needs") * PAGE;
        let zeroed = (self.region.slice()).write_slice(&vec![0; count * PAGE], offset);
        zeroed.expect("these pages are within the memory");
        DMA_START + offset as u64
    }

    fn free(&self, addr: u64, count: usize) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.give_back(Self::offset(addr) / PAGE, count);
    }

    fn read(&self, addr: u64, out: &mut [u8]) {
        let (memory, at) = (self.region.slice(), Self::offset(addr));
        for part in words_backwards(addr, out.len()) {
            let at = at + part.start;
            let read = match <&mut [u8; 8]>::try_from(&mut out[part.clone()]) {
                Ok(word) => (memory.load(at, Ordering::Acquire))
                    .map(|value: u64| *word = value.to_ne_bytes()),
                Err(_) => memory.read_slice(&mut out[part], at),
            };
            read.expect("it is within the memory");
        }
    }

    fn write(&self, addr: u64, bytes: &[u8]) {
        let (memory, at) = (self.region.slice(), Self::offset(addr));
        for part in words_backwards(addr, bytes.len()) {
            let at = at + part.start;
            let written = match bytes[part.clone()].try_into().map(u64::from_ne_bytes) {
                Ok(word) => memory.store(word, at, Ordering::Release),
                Err(_) => memory.write_slice(&bytes[part], at),
            };
            written.expect("it is within the memory");
        }
    }
}

/// The pages that are in use.
struct Pages(Vec<bool>);

impl Pages {
    fn new(count: usize) -> Self {
        Self(vec![false; count])
    }

    /// Takes pages that follow each other, the first of which is a multiple of `align`.
    fn take(&mut self, count: usize, align: usize) -> Option<usize> {
        let mut first = 0;
        while let Some(run) = self.0.get(first..first + count) {
            let Some(used) = run.iter().rposition(|used| *used) else {
                self.0[first..first + count].fill(true);
                return Some(first);
            };
            first = (first + used + 1).next_multiple_of(align);
        }
        None
    }

    fn give_back(&mut self, first: usize, count: usize) {
        let run = &mut self.0[first..first + count];
        assert!(run.iter().all(|used| *used), "pages are freed once");
        run.fill(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_out_once_aligned_and_again_when_they_are_back() {
        let mut pages = Pages::new(8);
        assert_eq!(pages.take(1, 1), Some(0));
        assert_eq!(pages.take(4, 4), Some(4));
        assert_eq!(pages.take(2, 2), Some(2));
        assert_eq!(pages.take(2, 1), None);
        assert_eq!(pages.take(1, 1), Some(1));
        assert_eq!(pages.take(1, 1), None);
        pages.give_back(2, 2);
        pages.give_back(4, 4);
        assert_eq!(pages.take(6, 1), Some(2));
        assert_eq!(pages.take(9, 1), None);
    }

    #[test]
    #[should_panic(expected = "pages are freed once")]
    fn pages_that_are_free_are_not_freed() {
        Pages::new(8).give_back(0, 1);
    }
}
