//! Which parts of a file a device touches by loads and stores, and how much of its guest's memory it may.
//!
//! To touch a page that no file has yet makes one, and the kernel charges whoever touched it first, for as long as
//! somebody has the file. A VMM can take pages away again at any time, so that each block that was touched once may be
//! charged to this process at any later time, and as long as anybody has the file. So what counts is blocks that were
//! ever touched, of files that somebody still has; and others are left alone: their bytes are read by `pread(2)`, which
//! makes no page.

use core::fmt;
use core::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;

use super::life::Life;
use super::limit::{Account, MemoryLimit};
use super::release::Releasing;

/// Words of bits that are allocated together.
const WORDS: usize = 512;

/// Blocks that they stand for.
const BLOCKS: usize = WORDS * 64;

type Chunk = Box<[AtomicU64; WORDS]>;

/// Guest memory that a VF has touched, over all files.
#[derive(Debug)]
pub(super) struct Allowance {
    account: Account,
    refused: AtomicU64,
    /// Files that are let go though their VMM may still have them, and their bytes that were touched.
    left: Mutex<Vec<(Life, u64)>>,
    releasing: Arc<Releasing>,
}

impl Allowance {
    /// An allowance of which nothing is used.
    pub(super) fn new(limit: MemoryLimit) -> Arc<Self> {
        Arc::new(Self {
            account: Account::new(limit),
            refused: AtomicU64::new(0),
            left: Mutex::default(),
            releasing: Arc::default(),
        })
    }

    pub(super) fn most(&self) -> Option<u64> {
        self.account.most()
    }

    /// Bytes that are touched, of files that are mapped and of those that a VMM kept.
    pub(super) fn used(&self) -> u64 {
        self.forget_ended();
        self.account.used()
    }

    /// Accesses that failed because nothing more may be touched.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn forget_refused(&self) {
        self.refused.store(0, Ordering::Relaxed);
    }

    /// Files that are let go, and that somebody still has.
    pub(super) fn left(&self) -> usize {
        self.forget_ended();
        self.files_left().len()
    }

    /// Mappings of all VMMs of the VF that are not given back yet.
    pub(super) const fn releasing(&self) -> &Arc<Releasing> {
        &self.releasing
    }

    /// Gives back what was touched of files that nobody has any more.
    fn forget_ended(&self) {
        self.files_left().retain(|(life, bytes)| {
            let is_over = life.is_over();
            if is_over {
                self.account.give_back(*bytes);
            }
            !is_over
        });
    }

    fn files_left(&self) -> MutexGuard<'_, Vec<(Life, u64)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes, if there are so many left.
    fn take(&self, bytes: u64) -> bool {
        self.account.take(bytes) || {
            self.forget_ended();
            self.account.take(bytes)
        }
    }
}

/// The blocks of a file that are touched.
pub(super) struct Touched {
    /// Base-2 logarithm of the bytes of a block.
    shift: u32,
    chunks: Box<[OnceLock<Chunk>]>,
    bytes: AtomicU64,
    allowance: Arc<Allowance>,
    /// Whose life it is. Nobody counts where there is no limit.
    life: Option<Life>,
}

impl fmt::Debug for Touched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut touched = f.debug_struct("Touched");
        touched.field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Drop for Touched {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        match self.life.take().filter(|_| bytes > 0) {
            Some(life) => self.allowance.files_left().push((life, bytes)),
            None => self.allowance.account.give_back(bytes),
        }
    }
}

impl Touched {
    /// No block of a file of so many bytes. The bytes of a block are a power of two.
    ///
    /// # Errors
    /// [`Life::watch`]'s.
    pub(super) fn new(
        file: &OwnedFd,
        len: usize,
        block: usize,
        allowance: Arc<Allowance>,
    ) -> Result<Self, Errno> {
        let is_limited = allowance.account.is_limited();
        let life = is_limited.then(|| Life::watch(file)).transpose()?;
        let shift = block.trailing_zeros();
        let chunks = (len >> shift) / BLOCKS + 1;
        Ok(Self {
            shift,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            bytes: AtomicU64::new(0),
            allowance,
            life,
        })
    }

    /// Returns how many bytes are touched.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The blocks of a part that is not empty.
    const fn blocks(&self, offset: usize, len: usize) -> RangeInclusive<usize> {
        offset >> self.shift..=(offset + len.saturating_sub(1)) >> self.shift
    }

    /// Whether all blocks of a part are touched.
    pub(super) fn has(&self, offset: usize, len: usize) -> bool {
        self.blocks(offset, len).all(|block| self.has_block(block))
    }

    fn has_block(&self, block: usize) -> bool {
        let chunk = self.chunks.get(block / BLOCKS).and_then(OnceLock::get);
        chunk.is_some_and(|chunk| {
            let word = chunk[block % BLOCKS / 64].load(Ordering::Relaxed);
            word & bit(block) != 0
        })
    }

    /// Has all blocks of a part touched from now on, as far as the allowance goes. Whether it does.
    pub(super) fn add(&self, offset: usize, len: usize) -> bool {
        let all = self
            .blocks(offset, len)
            .all(|block| self.has_block(block) || self.add_block(block));
        if !all {
            self.allowance.refused.fetch_add(1, Ordering::Relaxed);
        }
        all
    }

    /// Has the blocks touched from now on in which bytes were seen that are not 0: they have pages. Others may have
    /// none.
    pub(super) fn add_seen(&self, offset: usize, mut bytes: &[u8]) {
        for block in self.blocks(offset, bytes.len()) {
            let end = (block + 1) << self.shift;
            let here = (end - offset.max(block << self.shift)).min(bytes.len());
            let (seen, rest) = bytes.split_at(here);
            if !self.has_block(block) && seen.iter().any(|byte| *byte != 0) {
                self.add_block(block);
            }
            bytes = rest;
        }
    }

    #[cold]
    fn add_block(&self, block: usize) -> bool {
        let Some(chunk) = self.chunks.get(block / BLOCKS) else {
            return false;
        };
        let bytes = 1 << self.shift;
        if !self.allowance.take(bytes) {
            return false;
        }
        let chunk = chunk.get_or_init(|| Box::new([const { AtomicU64::new(0) }; WORDS]));
        chunk[block % BLOCKS / 64].fetch_or(bit(block), Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }
}

const fn bit(block: usize) -> u64 {
    1 << (block % 64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    const BLOCK: usize = 4096;

    fn touched(blocks: usize, allowance: &Arc<Allowance>) -> (OwnedFd, Touched) {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        let touched = Touched::new(&file, blocks * BLOCK, BLOCK, allowance.clone());
        (file, touched.unwrap())
    }

    proptest! {
        #[test]
        fn a_block_is_touched_once_and_counted_until_its_file_goes(
            parts in prop::collection::vec((0..4 * BLOCKS * BLOCK, 1..4 * BLOCK), 1..60),
            most in prop::option::of(0..200_u64),
        ) {
            let limit = most.map_or(MemoryLimit::Unlimited, |most| MemoryLimit::Bytes(most * 4096));
            let allowance = Allowance::new(limit);
            let (file, touched) = touched(5 * BLOCKS, &allowance);
            let mut model = std::collections::BTreeSet::new();
            for (offset, len) in parts {
                let blocks = offset / BLOCK..=(offset + len - 1) / BLOCK;
                let is_had = blocks.clone().all(|block| model.contains(&block));
                prop_assert_eq!(touched.has(offset, len), is_had);
                let mut fits = true;
                for block in blocks {
                    let is_full = most.is_some_and(|most| model.len() as u64 >= most);
                    if !model.contains(&block) && is_full {
                        fits = false;
                        break;
                    }
                    model.insert(block);
                }
                prop_assert_eq!(touched.add(offset, len), fits);
                prop_assert_eq!(allowance.used(), model.len() as u64 * 4096);
            }
            drop(touched);
            let is_kept = most.is_some();
            prop_assert_eq!(allowance.used() > 0, is_kept && !model.is_empty());
            drop(file);
            prop_assert_eq!(allowance.used(), 0);
        }
    }

    #[test]
    fn what_reads_as_nothing_but_zeros_is_left_alone() {
        let allowance = Allowance::new(MemoryLimit::Unlimited);
        let (_file, touched) = touched(8, &allowance);
        let mut bytes = vec![0; 3 * BLOCK];
        touched.add_seen(100, &bytes);
        assert_eq!(allowance.used(), 0);
        // The last byte of the second block, as seen from 100 on.
        bytes[2 * BLOCK - 101] = 1;
        touched.add_seen(100, &bytes);
        assert!(touched.has(BLOCK, BLOCK) && !touched.has(0, 1) && !touched.has(2 * BLOCK, 1));
        assert_eq!((allowance.used(), allowance.refused()), (4096, 0));
    }
}
