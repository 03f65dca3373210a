//! The memory behind a queue.

use super::memory::{GuestMemory, PAGE};

/// How a queue's memory is allocated.
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
    memory: GuestMemory,
    blocks: Vec<u64>,
    shift: u32,
}

impl Buffer {
    /// Allocates memory for `bytes`, all zero.
    pub(super) fn new(memory: &GuestMemory, bytes: usize, kind: BufferKind) -> Self {
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

    /// Gives the memory back.
    pub(super) fn free(self) {
        let pages = (1_usize << self.shift) / PAGE;
        for block in &self.blocks {
            self.memory.free(*block, pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_buffer_has_its_own_address() {
        let memory = GuestMemory::new(64);
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
        assert_eq!(memory.allocated_pages(), 0);
    }
}
