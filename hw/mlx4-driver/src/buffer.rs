//! The memory behind a queue, and its place in the translation table.

use alloc::vec;
use alloc::vec::Vec;

use mlx4_defs::MttIndex;
use mlx4_defs::mtt::MttBase;

use super::memory::{Memory, PAGE};

/// Layout of a queue's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// As `mlx4_buf_alloc` does for the kernel: up to two pages in one piece, more page by page.
    Kernel,
    /// As a program's buffer that happens to lie in blocks of `1 << shift` bytes.
    User {
        /// Log2 of a block, at least 12.
        shift: u32,
    },
}

/// The memory behind a queue, in blocks that lie anywhere.
#[derive(Debug)]
pub(super) struct Buffer {
    memory: Memory,
    blocks: Vec<u64>,
    shift: u32,
}

impl Buffer {
    /// Allocates memory for `bytes`, all zero.
    pub(super) fn new(memory: &Memory, bytes: usize, kind: BufferKind) -> Self {
        let pages = bytes.div_ceil(PAGE).max(1);
        let (blocks, shift) = match kind {
            BufferKind::Kernel if pages <= 2 => {
                let pages = pages.next_power_of_two();
                let addr = memory.allocate_contiguous(pages, 1);
                let in_one = addr.is_multiple_of((pages * PAGE) as u64);
                if in_one {
                    (vec![addr], (pages * PAGE).ilog2())
                } else {
                    let pages = (0..pages).map(|page| addr + (page * PAGE) as u64);
                    (pages.collect(), PAGE.ilog2())
                }
            }
            BufferKind::Kernel => (memory.allocate_pages(pages), PAGE.ilog2()),
            BufferKind::User { shift } => {
                let per_block = (1_usize << shift) / PAGE;
                let blocks = pages.div_ceil(per_block);
                let blocks = (0..blocks).map(|_| memory.allocate_contiguous(per_block, per_block));
                (blocks.collect(), shift)
            }
        };
        Self {
            memory: memory.clone(),
            blocks,
            shift,
        }
    }

    /// Addresses of the blocks.
    pub(super) fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// Log2 of the bytes of a block.
    pub(super) const fn shift(&self) -> u32 {
        self.shift
    }

    /// The address of a byte.
    pub(super) fn addr(&self, offset: usize) -> u64 {
        let in_block = offset & ((1 << self.shift) - 1);
        self.blocks[offset >> self.shift] + in_block as u64
    }

    /// The bytes at an offset that lie in one block.
    pub(super) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read(self.addr(offset), &mut bytes);
        bytes
    }

    /// Writes bytes that lie in one block.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        self.memory.write(self.addr(offset), bytes);
    }

    /// Frees the memory.
    pub(super) fn free(self) {
        let pages = (1_usize << self.shift) / PAGE;
        for block in &self.blocks {
            self.memory.free(*block, pages);
        }
    }
}

/// Entries of the table that belong to a queue or a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MttRange {
    pub(super) first: MttIndex,
    pub(super) order: u32,
}

impl MttRange {
    /// Returns the start of the pages, as contexts have it.
    pub(super) const fn base(self) -> MttBase {
        MttBase::from_entry(self.first)
    }
}

/// A queue's memory, and its pages in the table.
#[derive(Debug)]
pub(super) struct MappedBuffer {
    pub(super) buffer: Buffer,
    pub(super) mtt: MttRange,
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::super::DmaMemory;
    use super::*;

    /// Pages without bytes, none of them given out twice.
    #[derive(Clone, Debug, Default)]
    struct Pages {
        next: Arc<AtomicUsize>,
        allocated: Arc<AtomicUsize>,
    }

    impl DmaMemory for Pages {
        fn allocate_contiguous(&self, count: usize, align: usize) -> u64 {
            let first = self.next.load(Ordering::Relaxed).next_multiple_of(align);
            // One page lies between any two pieces.
            self.next.store(first + count + 1, Ordering::Relaxed);
            self.allocated.fetch_add(count, Ordering::Relaxed);
            (first * PAGE) as u64
        }

        fn free(&self, _: u64, count: usize) {
            self.allocated.fetch_sub(count, Ordering::Relaxed);
        }

        fn read(&self, _: u64, _: &mut [u8]) {}

        fn write(&self, _: u64, _: &[u8]) {}
    }

    #[test]
    fn every_byte_of_a_buffer_has_its_own_address() {
        let pages = Pages::default();
        let memory = Memory::new(pages.clone());
        let kinds = [
            BufferKind::Kernel,
            BufferKind::User { shift: 12 },
            BufferKind::User { shift: 14 },
        ];
        for kind in kinds {
            for bytes in [32, 4096, 8192, 20_000] {
                let buffer = Buffer::new(&memory, bytes, kind);
                let mut addrs: Vec<u64> = (0..bytes).map(|at| buffer.addr(at)).collect();
                addrs.sort_unstable();
                addrs.dedup();
                assert_eq!(addrs.len(), bytes);
                buffer.free();
            }
        }
        assert_eq!(pages.allocated.load(Ordering::Relaxed), 0);
    }
}
