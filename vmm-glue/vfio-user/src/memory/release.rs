//! Unmaps guests' memory beside the thread that serves them all.
//!
//! To take a GiB of pages out of a page table takes some 50 ms, and if nobody else has the file, to free them as long
//! again: an orderly shutdown of a large guest would stop all others for seconds. So large mappings go on a thread of their
//! own, piece by piece, since the lock of the address space that a piece takes is one for which a page fault of the other
//! thread may wait. Until then they count among what their VF has.
//!
//! `unsafe`: the call that takes pages out, of a mapping that nobody uses any more.
#![expect(unsafe_code, reason = "no crate in use wraps this call safely")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use rustix::fs::fstat;
use vhca_receiver::Lease;
use vm_memory::mmap::MmapRegion;

/// Bytes of pages that are given back at once, in some 200 us.
const PROMPT: u64 = 2 << 20;

/// Bytes of a piece.
const PIECE: usize = 2 << 20;

/// Mappings of a VF that are being given back.
#[derive(Debug, Default)]
pub(super) struct Releasing {
    files: AtomicUsize,
    bytes: AtomicU64,
}

impl Releasing {
    pub(super) fn files(&self) -> usize {
        self.files.load(Ordering::Acquire)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }
}

/// A mapping on its way out.
#[derive(Debug)]
struct Leaving {
    mapping: Arc<MmapRegion>,
    /// Bytes of its pages, which may be huge.
    block: usize,
    counted: Arc<Releasing>,
    /// Ends behind the mapping: then the receiver closes the file, and that frees its pages.
    _lease: Lease,
}

impl Leaving {
    fn new(
        (mapping, lease): (Arc<MmapRegion>, Lease),
        block: usize,
        counted: Arc<Releasing>,
    ) -> Self {
        counted.files.fetch_add(1, Ordering::AcqRel);
        let bytes = mapping.size() as u64;
        counted.bytes.fetch_add(bytes, Ordering::AcqRel);
        Self {
            mapping,
            block,
            counted,
            _lease: lease,
        }
    }

    /// Takes the pages out of the page table, so that little is left for `munmap(2)`.
    fn take_pages_out(&self) {
        let piece = PIECE.max(self.block);
        for start in (0..self.mapping.size()).step_by(piece) {
            let len = piece.min(self.mapping.size() - start);
            // SAFETY: the piece is within a shared mapping that lives through the call and that nobody reads or writes any
            // more; its bytes stay in the file.
            unsafe {
                let piece = self.mapping.as_ptr().add(start).cast();
                libc::madvise(piece, len, libc::MADV_DONTNEED);
            }
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let bytes = self.mapping.size() as u64;
        self.counted.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.counted.files.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Unmaps memory that nobody uses any more: now if it has few pages, `touched` bytes of them in the page table, or
/// else in a while.
pub(super) fn release(
    (mapping, lease): (Arc<MmapRegion>, Lease),
    block: usize,
    touched: u64,
    counted: &Arc<Releasing>,
) {
    static THREAD: OnceLock<Option<Sender<Leaving>>> = OnceLock::new();

    if touched.max(pages_of(&mapping)) <= PROMPT {
        return;
    }
    let thread = THREAD.get_or_init(|| {
        let (sender, leaving) = channel::<Leaving>();
        let give_back = move || {
            for one in leaving {
                one.take_pages_out();
                // The other thread lets go of it about now. Whoever is last has the file's pages freed.
                while Arc::strong_count(&one.mapping) > 1 {
                    std::thread::yield_now();
                }
            }
        };
        let thread = std::thread::Builder::new().name("unmap".to_owned());
        let spawned = thread.spawn(give_back);
        if let Err(error) = &spawned {
            log::warn!("vfio-user: no thread for unmapping, so all VMs wait for it: {error}");
        }
        spawned.is_ok().then_some(sender)
    });
    if let Some(thread) = thread {
        // The thread ends with the process only.
        let _ = thread.send(Leaving::new((mapping, lease), block, counted.clone()));
    }
}

/// Returns the bytes of pages that the file of a mapping has.
fn pages_of(mapping: &MmapRegion) -> u64 {
    let status = mapping.file_offset().map(|file| fstat(file.file()));
    let blocks = status.and_then(Result::ok).map(|status| status.st_blocks);
    blocks.map_or(0, |blocks| u64::try_from(blocks).unwrap_or(0) * 512)
}
