//! A queue in pages of the guest's memory.

use core::ops::Range;
use std::sync::Arc;

use hca_api::{DmaFault, Hca};

/// Base-2 logarithm of the smallest page: 4096 bytes.
pub const MIN_PAGE_SHIFT: u8 = 12;
/// Base-2 logarithm of the largest page: 2 GiB.
pub const MAX_PAGE_SHIFT: u8 = 31;

/// Bytes that are filled at once.
const BLOCK: usize = 4096;
/// Blocks of a queue that [`Fill`] looks at, or fills, before others have their turn.
const BLOCKS_PER_STEP: usize = 32;

/// The memory of a work, completion or event queue: pages of equal size that stand one behind the other in
/// the queue's count of bytes, wherever they are in the guest's memory.
///
/// The list is what the translation table held when the queue was made. A clone shares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedBuffer {
    pages: Arc<[u64]>,
    shift: u8,
}

impl PagedBuffer {
    /// A queue of pages of 2^`shift` bytes; the bits of a page's address below its size are flags and not
    /// looked at. `None` unless the size is between 2^12 and 2^31 bytes.
    pub fn new(mut pages: Vec<u64>, shift: u8) -> Option<Self> {
        if !(MIN_PAGE_SHIFT..=MAX_PAGE_SHIFT).contains(&shift) {
            return None;
        }
        for page in &mut pages {
            *page &= !((1 << shift) - 1);
        }
        Some(Self {
            pages: pages.into(),
            shift,
        })
    }

    /// Reads at an offset.
    ///
    /// # Errors
    /// [`DmaFault`] beyond the queue, or where the guest has no memory.
    pub fn read(&self, hca: &dyn Hca, offset: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.read_with(offset, buf, |addr, piece| hca.dma_read(addr, piece))
    }

    /// As [`PagedBuffer::read`], with the function that reads the guest's memory.
    ///
    /// # Errors
    /// As [`PagedBuffer::read`].
    pub fn read_with(
        &self,
        mut offset: u64,
        mut buf: &mut [u8],
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), DmaFault>,
    ) -> Result<(), DmaFault> {
        while !buf.is_empty() {
            let (addr, room) = self.piece(offset, buf.len())?;
            let (now, later) = buf.split_at_mut(room);
            read(addr, now)?;
            offset += room as u64;
            buf = later;
        }
        Ok(())
    }

    /// Writes at an offset, in increasing order of addresses.
    ///
    /// # Errors
    /// As [`PagedBuffer::read`]; then a part may have been written.
    pub fn write(
        &self,
        hca: &mut dyn Hca,
        mut offset: u64,
        mut bytes: &[u8],
    ) -> Result<(), DmaFault> {
        while !bytes.is_empty() {
            let (addr, room) = self.piece(offset, bytes.len())?;
            let (now, later) = bytes.split_at(room);
            hca.dma_write(addr, now)?;
            offset += room as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Sets a range of bytes to `byte`.
    ///
    /// # Errors
    /// As [`PagedBuffer::write`].
    pub fn fill(&self, hca: &mut dyn Hca, range: Range<u64>, byte: u8) -> Result<(), DmaFault> {
        let block = [byte; BLOCK];
        let mut offset = range.start;
        while offset < range.end {
            let rest = usize::try_from(range.end - offset);
            let now = rest.map_or(block.len(), |rest| rest.min(block.len()));
            self.write(hca, offset, &block[..now])?;
            offset += now as u64;
        }
        Ok(())
    }

    /// Where the byte at `offset` is, and how many of `len` bytes follow it there.
    fn piece(&self, offset: u64, len: usize) -> Result<(u64, usize), DmaFault> {
        let page = usize::try_from(offset >> self.shift)
            .ok()
            .and_then(|index| self.pages.get(index))
            .ok_or(DmaFault { addr: offset, len })?;
        let within = offset & ((1 << self.shift) - 1);
        let room = usize::try_from((1_u64 << self.shift) - within).unwrap_or(usize::MAX);
        Ok((page.wrapping_add(within), len.min(room)))
    }
}

/// The entries of a new queue, on their way to the device: each of them gets the byte that says so.
///
/// A guest makes queues of megabytes where it wants, as often as it wants, so this goes step by step. Nothing is
/// written before all of the queue was found to be memory.
#[derive(Debug)]
pub struct Fill {
    buffer: PagedBuffer,
    /// Bytes up to the turn, and all.
    turn: u64,
    end: u64,
    /// What goes before the turn and behind it.
    bytes: [u8; 2],
    looked_at: u64,
    filled: u64,
}

impl Fill {
    /// Fills the first `end` bytes of a queue: `bytes[0]` up to `turn`, `bytes[1]` from there on.
    pub const fn new(buffer: PagedBuffer, turn: u64, end: u64, bytes: [u8; 2]) -> Self {
        Self {
            buffer,
            turn,
            end,
            bytes,
            looked_at: 0,
            filled: 0,
        }
    }

    /// Does the next step. Whether it was the last.
    ///
    /// # Errors
    /// [`DmaFault`] where the guest has no memory.
    pub fn step(&mut self, hca: &mut dyn Hca) -> Result<bool, DmaFault> {
        const STEP: u64 = (BLOCK * BLOCKS_PER_STEP) as u64;

        if self.looked_at < self.end {
            let end = (self.looked_at + STEP).min(self.end);
            while self.looked_at < end {
                self.buffer.read(hca, self.looked_at, &mut [0])?;
                self.looked_at += BLOCK as u64;
            }
            // One that is no longer than a step is done in one.
            if self.end > STEP {
                return Ok(false);
            }
        }
        let end = (self.filled + STEP).min(self.end);
        let [before, behind] = self.bytes;
        self.buffer
            .fill(hca, self.filled..end.min(self.turn), before)?;
        self.buffer
            .fill(hca, self.filled.max(self.turn)..end, behind)?;
        self.filled = end;
        Ok(end == self.end)
    }
}

#[cfg(test)]
mod tests {
    use emulated_hca::{Adapters, Fabric, HcaConfig};
    use hca_api::{AddressSpace, FunctionId, HostMemory};
    use ib_wire::Guid;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pages_of_sizes_that_no_table_has_are_refused() {
        assert!(PagedBuffer::new(vec![0], 11).is_none());
        assert!(PagedBuffer::new(vec![0], 32).is_none());
        assert!(PagedBuffer::new(vec![0; 2], 31).is_some());
    }

    #[test]
    fn flags_in_the_low_bits_of_an_entry_do_not_move_the_page() {
        let flagged = PagedBuffer::new(vec![0x7001, 0x5007], 12);
        assert_eq!(flagged, PagedBuffer::new(vec![0x7000, 0x5000], 12));
    }

    #[test]
    fn an_access_across_the_end_of_a_queue_faults() {
        let mut memory = HostMemory::new();
        let base = memory.allocate(0x4000).unwrap().addr.next_multiple_of(4096);
        let buffer = PagedBuffer::new(vec![base, base + 4096], 12).unwrap();
        let read = |offset, buf: &mut [u8]| {
            buffer.read_with(offset, buf, |addr, piece| memory.read(addr, piece))
        };
        assert!(read(8190, &mut [0; 2]).is_ok());
        assert!(read(8190, &mut [0; 3]).is_err());
        assert!(read(u64::MAX, &mut [0; 2]).is_err());
    }

    proptest! {
        /// Whatever the order of its pages, a queue is one piece of memory.
        #[test]
        fn a_queue_is_one_piece_of_memory(
            order in Just((0..4_u64).collect::<Vec<_>>()).prop_shuffle(),
            fill in 0_u64..16384,
            writes in prop::collection::vec((0_u64..16384, prop::collection::vec(any::<u8>(), 0..6000)), 0..8),
        ) {
            let mut fabric = Fabric::new(1);
            let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
            let mut hca = fabric.hca(node, FunctionId::PF).unwrap();
            let base = hca.allocate_dma(5 * 4096).unwrap().addr.next_multiple_of(4096);
            let pages = order.iter().map(|page| base + page * 4096).collect();
            let buffer = PagedBuffer::new(pages, 12).unwrap();
            let mut model = vec![0; 16384];
            buffer.fill(&mut hca, 0..fill, 0xcc).unwrap();
            model[..usize::try_from(fill).unwrap()].fill(0xcc);
            for (offset, bytes) in writes {
                let start = usize::try_from(offset).unwrap();
                let room = bytes.len().min(model.len() - start);
                model[start..start + room].copy_from_slice(&bytes[..room]);
                prop_assert_eq!(buffer.write(&mut hca, offset, &bytes).is_ok(), room == bytes.len());
            }
            let mut all = vec![0; 16384];
            buffer.read(&hca, 0, &mut all).unwrap();
            prop_assert!(all == model);
        }
    }
}
