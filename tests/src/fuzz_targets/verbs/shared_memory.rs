//! Memory that the program writes while its device reads it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use vf_uverbs::RingMemory;

/// Bytes of the memory.
const BYTES: usize = 2 << 20;

/// Memory whose device must stay within it.
#[derive(Debug)]
pub(super) struct SharedMemory {
    bytes: Mutex<Vec<u8>>,
    /// State of the generator by which another thread of the program writes; 0 while there is none.
    restless: AtomicU32,
}

impl SharedMemory {
    pub(super) fn new() -> Self {
        Self {
            bytes: Mutex::new(vec![0; BYTES]),
            restless: AtomicU32::new(0),
        }
    }

    /// Starts a thread of the program that writes at any time, or ends it.
    pub(super) fn set_restless(&self, seed: u32) {
        self.restless.store(seed, Ordering::Relaxed);
    }

    /// Returns what the other thread writes next.
    fn noise(&self) -> Option<u32> {
        let mut noise = self.restless.load(Ordering::Relaxed);
        if noise == 0 {
            return None;
        }
        noise ^= noise << 13;
        noise ^= noise >> 17;
        noise ^= noise << 5;
        self.restless.store(noise, Ordering::Relaxed);
        Some(noise)
    }

    /// Calls something with a part of the memory.
    ///
    /// # Panics
    /// If the part is not within the memory.
    fn part<T>(&self, offset: u64, len: usize, call: impl FnOnce(&mut [u8]) -> T) -> T {
        let start = usize::try_from(offset).expect("an offset within the memory");
        let mut bytes = self.bytes.lock().expect("no other thread");
        call(&mut bytes[start..start + len])
    }
}

impl RingMemory for SharedMemory {
    fn len(&self) -> u64 {
        BYTES as u64
    }

    fn load(&self, offset: u64) -> u32 {
        assert!(offset.is_multiple_of(4), "an index is a word");
        let mut word = [0; 4];
        self.part(offset, 4, |bytes| word.copy_from_slice(bytes));
        self.noise().unwrap_or_else(|| u32::from_ne_bytes(word))
    }

    fn store(&self, offset: u64, value: u32) {
        assert!(offset.is_multiple_of(4), "an index is a word");
        self.write(offset, &value.to_ne_bytes());
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.part(offset, bytes.len(), |part| bytes.copy_from_slice(part));
        if let Some([at, value, ..]) = self.noise().map(u32::to_ne_bytes) {
            let at = usize::from(at) % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= value;
            }
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.part(offset, bytes.len(), |part| part.copy_from_slice(bytes));
    }

    fn resident(&self) -> u64 {
        // What the program has of zeros is as good as not there.
        let bytes = self.bytes.lock().expect("no other thread");
        let pages = bytes.chunks(4096);
        let used = pages.filter(|page| page.iter().any(|byte| *byte != 0));
        used.map(|page| page.len() as u64).sum()
    }

    fn clear(&self, offset: u64, len: u64) {
        let len = usize::try_from(len).expect("a part of the memory");
        self.part(offset, len, |part| part.fill(0));
    }
}
