//! The memory that a program and its device share, and which parts of it are rings.

use core::fmt;
use std::collections::BTreeMap;

/// Memory that another process writes at any time.
///
/// Accesses lie within [`RingMemory::len`]; others read as zero and write nothing.
pub trait RingMemory: fmt::Debug + Send + Sync {
    /// Bytes.
    #[must_use]
    fn len(&self) -> u64;

    /// Returns `true` if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Loads an index; what its writer wrote before is visible afterwards.
    #[must_use]
    fn load(&self, offset: u64) -> u32;

    /// Stores an index; what was written before is visible to whoever loads it.
    fn store(&self, offset: u64, value: u32);

    /// Copies bytes out, each once.
    fn read(&self, offset: u64, bytes: &mut [u8]);

    /// Copies bytes in.
    fn write(&self, offset: u64, bytes: &[u8]);

    /// Returns the bytes of the pages that exist, which may be fewer than [`Self::len`].
    #[must_use]
    fn resident(&self) -> u64;

    /// Clears bytes to zero. Their pages may stay.
    fn clear(&self, offset: u64, len: u64);
}

/// Granularity of parts, which a program maps one by one.
pub(crate) const PAGE: u64 = 4096;

/// Parts of a memory file that are free.
#[derive(Debug)]
pub(crate) struct Extents {
    /// Offset and bytes, neither empty nor adjacent.
    free: BTreeMap<u64, u64>,
}

impl Extents {
    /// Returns the extents of a file of which everything is free.
    pub(crate) fn new(len: u64) -> Self {
        let len = len - len % PAGE;
        let whole = (len > 0).then_some((0, len));
        Self {
            free: whole.into_iter().collect(),
        }
    }

    /// Takes the first part that is large enough. Returns `None` if there is none.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let len = bytes.checked_next_multiple_of(PAGE)?.max(PAGE);
        let (offset, found) = self.free.iter().find(|(_, free)| **free >= len)?;
        let (offset, found) = (*offset, *found);
        self.free.remove(&offset);
        if found > len {
            self.free.insert(offset + len, found - len);
        }
        Some(offset)
    }

    /// Frees a part that was taken.
    pub(crate) fn give_back(&mut self, offset: u64, bytes: u64) {
        let mut len = bytes.next_multiple_of(PAGE).max(PAGE);
        let mut start = offset;
        if let Some((before, free)) = self.free.range(..offset).next_back()
            && before + free == offset
        {
            start = *before;
            len += free;
        }
        if let Some(behind) = self.free.remove(&(start + len)) {
            len += behind;
        }
        self.free.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_taken_in_pages_and_merge_when_they_come_back() {
        let mut extents = Extents::new(4 * PAGE);
        let parts: Vec<u64> = [1, PAGE, PAGE + 1]
            .iter()
            .map(|bytes| extents.take(*bytes).unwrap())
            .collect();
        assert_eq!(parts, [0, PAGE, 2 * PAGE]);
        assert_eq!(extents.take(1), None);
        extents.give_back(0, 1);
        extents.give_back(2 * PAGE, PAGE + 1);
        assert_eq!(extents.take(2 * PAGE), Some(2 * PAGE));
        extents.give_back(2 * PAGE, 2 * PAGE);
        extents.give_back(PAGE, PAGE);
        assert_eq!(extents.take(4 * PAGE), Some(0));
        assert_eq!(extents.take(u64::MAX), None);
    }
}
