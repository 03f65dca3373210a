//! Memory that the driver and the device reach.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Pages that a driver allocates and its device reaches by DMA.
///
/// Driver and device may look at the same bytes at any time. An entry of a queue is valid by its last eight bytes, which the
/// device writes last, and a request by its first eight, which the driver has to write last. So `read` and `write` go
/// backwards, eight aligned bytes at once, and the four of a doorbell record, unless the device has its turns between the
/// driver's.
pub trait DmaMemory: fmt::Debug + Send + Sync {
    /// Allocates `count` zeroed pages that follow each other. Returns the address of the first, a multiple of `align` pages.
    ///
    /// # Panics
    /// If there are none left.
    fn allocate_contiguous(&self, count: usize, align: usize) -> u64;

    /// Allocates a zeroed page that lies anywhere. Returns its address.
    ///
    /// # Panics
    /// If there is none left.
    fn allocate_page(&self) -> u64 {
        self.allocate_contiguous(1, 1)
    }

    /// Frees pages that follow each other.
    ///
    /// # Panics
    /// If they are not allocated.
    fn free(&self, addr: u64, count: usize);

    /// Reads as the processor.
    ///
    /// # Panics
    /// If there is no such memory.
    fn read(&self, addr: u64, out: &mut [u8]);

    /// Writes as the processor.
    ///
    /// # Panics
    /// If there is no such memory.
    fn write(&self, addr: u64, bytes: &[u8]);
}

/// The memory of a driver, shared by its parts.
#[derive(Clone, Debug)]
pub(crate) struct Memory(Arc<dyn DmaMemory>);

impl Memory {
    pub(crate) fn new(memory: impl DmaMemory + 'static) -> Self {
        Self(Arc::new(memory))
    }

    pub(crate) fn allocate_page(&self) -> u64 {
        self.0.allocate_page()
    }

    /// Allocates zeroed pages that lie anywhere.
    pub(crate) fn allocate_pages(&self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.allocate_page()).collect()
    }

    pub(crate) fn allocate_contiguous(&self, count: usize, align: usize) -> u64 {
        self.0.allocate_contiguous(count, align)
    }

    pub(crate) fn free(&self, addr: u64, count: usize) {
        self.0.free(addr, count);
    }

    pub(crate) fn read(&self, addr: u64, out: &mut [u8]) {
        self.0.read(addr, out);
    }

    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) {
        self.0.write(addr, bytes);
    }
}

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// Returns the parts of `len` bytes at an address, relative to it: aligned words of 8 bytes, and what is left at both ends; the
/// last one first.
///
/// The driver and the device look at the same bytes at any time: what says that an entry is valid has to be read first and
/// written last. In completions and events that is the last byte, which goes with the seven before it; in requests it is in
/// the first eight.
pub fn words_backwards(addr: u64, len: usize) -> impl Iterator<Item = Range<usize>> {
    let [low, ..] = addr.to_le_bytes();
    let first = usize::from(low) % WORD;
    let mut end = len;
    core::iter::from_fn(move || {
        let last = end.checked_sub(1)?;
        let begin = ((first + last) & !(WORD - 1)).saturating_sub(first);
        let part = begin..end;
        end = begin;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn parts_are_aligned_words_from_the_last_to_the_first() {
        let parts = |addr, len| words_backwards(addr, len).collect::<Vec<_>>();
        assert_eq!(parts(16, 16), [8..16, 0..8]);
        assert_eq!(parts(13, 16), [11..16, 3..11, 0..3]);
        assert_eq!(parts(12, 8), [4..8, 0..4]);
        assert_eq!(parts(12, 0), []);
    }
}
