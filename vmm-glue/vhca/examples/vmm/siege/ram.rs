//! A guest's memory for a driver that is no program of a guest.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mlx4_driver::{DmaMemory, PAGE, words_backwards};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Pages from address 0 on, which are not given out again.
pub(crate) struct Ram {
    memory: Arc<GuestMemoryMmap>,
    next: AtomicU64,
}

impl Ram {
    pub(crate) fn new(memory: Arc<GuestMemoryMmap>) -> Self {
        let next = AtomicU64::new(0);
        Self { memory, next }
    }
}

impl fmt::Debug for Ram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ram").finish_non_exhaustive()
    }
}

impl DmaMemory for Ram {
    fn allocate_contiguous(&self, count: usize, align: usize) -> u64 {
        let [count, align] = [count, align].map(|pages| (pages * PAGE) as u64);
        let next = self.next.load(Ordering::Relaxed).next_multiple_of(align);
        self.next.store(next + count, Ordering::Relaxed);
        next
    }

    fn free(&self, _: u64, _: usize) {}

    fn read(&self, addr: u64, out: &mut [u8]) {
        for part in words_backwards(addr, out.len()) {
            let at = GuestAddress(addr + part.start as u64);
            let read = match <&mut [u8; 8]>::try_from(&mut out[part.clone()]) {
                Ok(word) => (self.memory.load(at, Ordering::Acquire))
                    .map(|value: u64| *word = value.to_ne_bytes()),
                Err(_) => self.memory.read_slice(&mut out[part], at),
            };
            read.expect("it is within the memory");
        }
    }

    fn write(&self, addr: u64, bytes: &[u8]) {
        for part in words_backwards(addr, bytes.len()) {
            let at = GuestAddress(addr + part.start as u64);
            let written = match bytes[part.clone()].try_into().map(u64::from_ne_bytes) {
                Ok(word) => self.memory.store(word, at, Ordering::Release),
                Err(_) => self.memory.write_slice(&bytes[part], at),
            };
            written.expect("it is within the memory");
        }
    }
}
