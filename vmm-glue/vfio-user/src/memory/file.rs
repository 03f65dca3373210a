//! A file of a VMM's memory, mapped.
//!
//! The VMM keeps the file, and can have any page of it gone at any time: see [`pages`] on what happens then, and
//! [`touched`](super::touched) on who pays for pages.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::fs::{fstat, fstatfs};
use rustix::io::{Errno, pread};
use rustix::param::page_size;
use vhca_receiver::Lease;
use vm_memory::mmap::MmapRegion;
use vm_memory::{FileOffset, VolatileMemory, VolatileSlice};

use super::release::{Releasing, release};
use super::slow::timed;
use super::touched::{Allowance, Touched};
use super::{dump, pages};

/// Which file it is, as long as somebody has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// A file whose bytes from the first on are mapped.
#[derive(Debug)]
pub(super) struct MappedFile {
    id: FileId,
    mapping: Arc<MmapRegion>,
    /// Bytes that come and go together: of a page, which may be huge.
    block: usize,
    touched: Touched,
    writable: bool,
    /// Whether a part could not be mapped again that was gone.
    is_broken: AtomicBool,
    /// An access waited for a page.
    has_waited: AtomicBool,
    /// Whether the VMM has pages of its own in its place, as soon as that is known.
    is_private: Arc<AtomicBool>,
    releasing: Arc<Releasing>,
    /// Kept until the mapping is gone.
    lease: Lease,
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        let touched = self.touched.bytes();
        let mapping = (self.mapping.clone(), self.lease.clone());
        release(mapping, self.block, touched, &self.releasing);
    }
}

/// Kinds of file systems (`linux/magic.h`) on which a page fault waits for nobody but this host.
const LOCAL: [u64; 6] = [
    0x0102_1994, // tmpfs, and memfd
    0x9584_58f6, // hugetlbfs, and memfd with huge pages
    0x8584_58f6, // ramfs
    0xef53,      // ext2 to ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
];

/// Whether a file's pages come from this host, so that nobody can have a page fault wait for ever.
pub(super) fn is_local(file: &impl AsFd) -> bool {
    #[expect(clippy::cast_sign_loss, reason = "a number of 32 bits")]
    let kind = |kind| kind as u64 & 0xffff_ffff;
    fstatfs(file).is_ok_and(|system| LOCAL.contains(&kind(system.f_type)))
}

/// Which file a descriptor is of.
pub(super) fn id(file: &impl AsFd) -> Result<FileId, Errno> {
    let status = fstat(file)?;
    Ok(FileId {
        device: status.st_dev,
        inode: status.st_ino,
    })
}

impl MappedFile {
    /// Maps a file.
    pub(super) fn map(
        file: OwnedFd,
        lease: Lease,
        writable: bool,
        is_private: Arc<AtomicBool>,
        allowance: Arc<Allowance>,
    ) -> Result<Arc<Self>, Errno> {
        pages::survive_missing()?;
        let id = id(&file)?;
        let status = fstat(&file)?;
        let len = u64::try_from(status.st_size).map_err(|_| Errno::INVAL)?;
        let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
        let block = usize::try_from(status.st_blksize).map_err(|_| Errno::INVAL)?;
        let block = block.max(page_size()).next_power_of_two();
        let releasing = allowance.releasing().clone();
        let touched = Touched::new(&file, len, block, allowance)?;
        let mut rights = libc::PROT_READ;
        if writable {
            rights |= libc::PROT_WRITE;
        }
        let file = FileOffset::new(File::from(file), 0);
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let mapping = MmapRegion::build(Some(file), len, rights, flags).map_err(errno)?;
        dump::leave_out(&mapping)?;
        Ok(Arc::new(Self {
            id,
            mapping: Arc::new(mapping),
            block,
            touched,
            writable,
            is_broken: AtomicBool::new(false),
            has_waited: AtomicBool::new(false),
            is_private,
            releasing,
            lease,
        }))
    }

    pub(super) const fn id(&self) -> FileId {
        self.id
    }

    /// Bytes that are mapped.
    pub(super) fn len(&self) -> u64 {
        self.mapping.size() as u64
    }

    /// Whether the VMM does not share it, though it gave its descriptor.
    pub(super) fn is_private(&self) -> bool {
        self.is_private.load(Ordering::Acquire)
    }

    pub(super) const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Copies bytes out. Whether all of them are there.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        let Some((start, slice)) = self.slice(offset, buf.len()) else {
            return false;
        };
        if self.touched.has(start, buf.len()) {
            return self.touch(start, &slice, || slice.copy_to(buf)).is_some();
        }
        let is_read = self.read_by_kernel(offset, buf);
        if is_read {
            self.touched.add_seen(start, buf);
        }
        is_read
    }

    /// Makes the kernel copy bytes out, which makes no pages and waits for none that is being punched out of the file.
    pub(super) fn read_by_kernel(&self, mut offset: u64, mut buf: &mut [u8]) -> bool {
        let Some(file) = self.mapping.file_offset() else {
            return false;
        };
        while !buf.is_empty() {
            match pread(file.file(), &mut *buf, offset) {
                Ok(0) => return false,
                Ok(read) => {
                    offset += read as u64;
                    buf = buf.get_mut(read..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Copies bytes in, the last eight of them at once and after all others. Whether all have their place.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some((start, slice)) = self.slice(offset, bytes.len()) else {
            return false;
        };
        self.touched.add(start, bytes.len())
            && self.touch(start, &slice, || store(&slice, bytes)).is_some()
    }

    /// Returns `true` if a part may be written later on: the file has it, and the VF may touch it, which is counted.
    pub(super) fn may_write(&self, offset: u64, len: usize) -> bool {
        let Some((start, _)) = self.slice(offset, len) else {
            return false;
        };
        let status = self.mapping.file_offset().map(|file| fstat(file.file()));
        let size = status.and_then(Result::ok).map(|status| status.st_size);
        let size = size.and_then(|size| u64::try_from(size).ok());
        size.is_some_and(|size| offset + len as u64 <= size) && self.touched.add(start, len)
    }

    /// Returns `true` if an access waited for a page since the last call.
    pub(super) fn take_waited(&self) -> bool {
        self.has_waited.load(Ordering::Relaxed) && self.has_waited.swap(false, Ordering::Relaxed)
    }

    /// Replaces eight bytes atomically, and gives what they were.
    pub(super) fn update(&self, offset: u64, update: &mut dyn FnMut(u64) -> u64) -> Option<u64> {
        let (start, slice) = self.slice(offset, 8)?;
        let word = slice.get_atomic_ref::<AtomicU64>(0).ok()?;
        if !self.touched.add(start, 8) {
            return None;
        }
        self.touch(start, &slice, || {
            let mut old = word.load(Ordering::SeqCst);
            loop {
                let new = update(old);
                match word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(old) => return old,
                    Err(now) => old = now,
                }
            }
        })
    }

    /// A part of the mapping, and where it begins.
    fn slice(&self, offset: u64, len: usize) -> Option<(usize, VolatileSlice<'_>)> {
        let start = usize::try_from(offset).ok()?;
        let slice = self.mapping.get_slice(start, len).ok()?;
        (!self.is_broken.load(Ordering::Relaxed)).then_some((start, slice))
    }

    /// Loads or stores something within a slice that begins somewhere, if all its pages are there. Notes whether this waited.
    fn touch<T>(
        &self,
        start: usize,
        slice: &VolatileSlice<'_>,
        access: impl FnOnce() -> T,
    ) -> Option<T> {
        let touch = || pages::touch(slice, self.block, access);
        let (done, has_waited) = timed(slice.len(), touch);
        if done.is_none() {
            self.restore(start, slice.len());
        }
        if has_waited {
            self.has_waited.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Puts the file's bytes back where pages were gone, for the time when they are there again.
    #[cold]
    fn restore(&self, start: usize, len: usize) {
        let first = start & !(self.block - 1);
        let end = (start + len).next_multiple_of(self.block);
        let end = end.min(self.mapping.size().next_multiple_of(page_size()));
        // What is mapped anew belongs into no core file either.
        let is_whole =
            pages::restore(&self.mapping, first..end) && dump::leave_out(&self.mapping).is_ok();
        if !is_whole {
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Copies bytes in, the last eight of them at once, if they are at a multiple of eight, and after all others.
fn store(slice: &VolatileSlice<'_>, bytes: &[u8]) {
    let Some((body, tail)) = bytes.split_last_chunk::<8>() else {
        return slice.copy_from(bytes);
    };
    let Ok((first, last)) = slice.split_at(body.len()) else {
        return;
    };
    first.copy_from(body);
    fence(Ordering::Release);
    match last.get_atomic_ref::<AtomicU64>(0) {
        Ok(word) => word.store(u64::from_ne_bytes(*tail), Ordering::Release),
        Err(_) => last.copy_from(tail),
    }
}

fn errno(error: vm_memory::mmap::MmapRegionError) -> Errno {
    match error {
        vm_memory::mmap::MmapRegionError::Mmap(error) => {
            Errno::from_io_error(&error).unwrap_or(Errno::IO)
        }
        _ => Errno::INVAL,
    }
}
