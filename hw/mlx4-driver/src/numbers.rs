//! Numbers that the driver hands out itself: protection domains, UAR pages, doorbell records.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::memory::{Memory, PAGE};

/// A round-robin allocator of numbers (`mlx4_bitmap`): a number that was given back is not given out
/// again before all others were.
#[derive(Debug)]
pub(super) struct Numbers {
    first: u32,
    end: u32,
    next: u32,
    taken: BTreeSet<u32>,
    /// Added to each number, and changed with each wrap, within `mask` (`mlx4_bitmap_alloc`): so a
    /// stale protection domain is not taken for the next one.
    top: u32,
    mask: u32,
}

impl Numbers {
    /// The numbers of a range. Those that are given out have bits above the range's size within
    /// `mask`, which change.
    #[must_use]
    pub(super) const fn new(first: u32, end: u32, mask: u32) -> Self {
        Self {
            first,
            end,
            next: first,
            taken: BTreeSet::new(),
            top: 0,
            mask,
        }
    }

    /// Takes a number, if one is left.
    pub(super) fn take(&mut self) -> Option<u32> {
        for _ in self.first..self.end {
            let (number, top) = (self.next, self.top);
            self.next += 1;
            if self.next == self.end {
                self.next = self.first;
                self.top = self.top.wrapping_add(self.end) & self.mask & !(self.end - 1);
            }
            if self.taken.insert(number) {
                return Some(number | top);
            }
        }
        None
    }

    /// Returns a number to those that are free.
    pub(super) fn give_back(&mut self, number: u32) {
        self.taken.remove(&(number & (self.end - 1)));
    }
}

/// The doorbell records of a driver: eight bytes each, many to a page (`mlx4_db_alloc`).
#[derive(Debug, Default)]
pub(super) struct DoorbellRecords {
    pages: Vec<u64>,
    free: Vec<u64>,
}

impl DoorbellRecords {
    const BYTES: usize = 8;

    /// Allocates a record, which is zero.
    #[must_use]
    pub(super) fn allocate(&mut self, memory: &Memory) -> u64 {
        if self.free.is_empty() {
            let page = memory.allocate_page();
            self.pages.push(page);
            let records = (0..PAGE as u64).step_by(Self::BYTES);
            self.free.extend(records.map(|offset| page + offset));
        }
        let record = self.free.remove(0);
        memory.write(record, &[0; Self::BYTES]);
        record
    }

    /// Frees a record.
    pub(super) fn free(&mut self, record: u64) {
        self.free.push(record);
    }

    /// Frees all pages.
    pub(super) fn release(&mut self, memory: &Memory) {
        for page in self.pages.drain(..) {
            memory.free(page, 1);
        }
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_changes_its_upper_bits_when_the_range_wraps() {
        let mut numbers = Numbers::new(2, 8, 0x3f);
        let first: Vec<u32> = (0..6).map(|_| numbers.take().unwrap()).collect();
        assert_eq!(first, [2, 3, 4, 5, 6, 7]);
        assert_eq!(numbers.take(), None);
        numbers.give_back(4);
        numbers.give_back(5);
        // Wrapped twice: by the last one, and by the search for one more.
        assert_eq!(numbers.take(), Some(16 | 4));
        numbers.give_back(16 | 4);
        assert_eq!(numbers.take(), Some(16 | 5));
    }
}
