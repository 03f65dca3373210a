//! A file of a VMM's memory, mapped.
//!
//! The VMM keeps the file, and can shrink it at any time unless it is sealed against that. To touch a page
//! behind a file's end is a fatal signal, so only sealed files are touched directly. Others are copied by the
//! kernel (`process_vm_readv(2)` on this very process), which finds the same pages and, where there are none,
//! says so.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use vm_memory::mmap::MmapRegion;
use vm_memory::{FileOffset, VolatileMemory, VolatileSlice};

use super::copy;

/// Which file it is, as long as somebody has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// How the pages of a mapping are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By loads and stores: they stay as long as the mapping does.
    Direct,
    /// By the kernel: they may be gone.
    Kernel,
}

/// A file whose bytes from the first on are mapped.
#[derive(Debug)]
pub(super) struct MappedFile {
    id: FileId,
    mapping: MmapRegion,
    way: Way,
    writable: bool,
    /// Whether the VMM has pages of its own in its place, as soon as that is known.
    is_private: Arc<AtomicBool>,
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

const HUGETLBFS: u64 = 0x9584_58f6;

/// Whether a file's pages come from this host, so that nobody can have a page fault wait for ever.
pub(super) fn is_local(file: &OwnedFd) -> bool {
    magic(file).is_ok_and(|magic| LOCAL.contains(&magic))
}

fn magic(file: &OwnedFd) -> Result<u64, Errno> {
    let system = fstatfs(file)?;
    #[expect(clippy::cast_sign_loss, reason = "a number of 32 bits")]
    Ok(system.f_type as u64 & 0xffff_ffff)
}

/// Which file a descriptor is of.
pub(super) fn id(file: &OwnedFd) -> Result<FileId, Errno> {
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
        writable: bool,
        is_private: Arc<AtomicBool>,
    ) -> Result<Arc<Self>, Errno> {
        let id = id(&file)?;
        let len = u64::try_from(fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
        let way = if magic(&file)? != HUGETLBFS && cannot_shrink(&file) {
            Way::Direct
        } else {
            // Huge pages can run out when one is first touched, which is a fatal signal, too.
            Way::Kernel
        };
        let mut rights = libc::PROT_READ;
        if writable {
            rights |= libc::PROT_WRITE;
        }
        let file = FileOffset::new(File::from(file), 0);
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let mapping = MmapRegion::build(Some(file), len, rights, flags).map_err(errno)?;
        Ok(Arc::new(Self {
            id,
            mapping,
            way,
            writable,
            is_private,
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

    /// Whether pages may be gone, so that each access is a system call.
    pub(super) fn is_slow(&self) -> bool {
        self.way == Way::Kernel
    }

    /// Copies bytes out. Whether all of them are there.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        let Some(slice) = self.slice(offset, buf.len()) else {
            return false;
        };
        match self.way {
            Way::Direct => {
                slice.copy_to(buf);
                true
            }
            Way::Kernel => copy::from_mapping(&slice, buf),
        }
    }

    /// Copies bytes in, the last eight of them at once and after all others. Whether all have their place.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(slice) = self.slice(offset, bytes.len()) else {
            return false;
        };
        let Some((body, tail)) = bytes.split_last_chunk::<8>() else {
            return self.store(&slice, bytes);
        };
        let Ok((first, last)) = slice.split_at(body.len()) else {
            return false;
        };
        if !self.store(&first, body) {
            return false;
        }
        fence(Ordering::Release);
        match (self.way, last.get_atomic_ref::<AtomicU64>(0)) {
            (Way::Direct, Ok(word)) => {
                word.store(u64::from_ne_bytes(*tail), Ordering::Release);
                true
            }
            _ => self.store(&last, tail),
        }
    }

    fn store(&self, slice: &VolatileSlice<'_>, bytes: &[u8]) -> bool {
        match self.way {
            Way::Direct => {
                slice.copy_from(bytes);
                true
            }
            Way::Kernel => copy::to_mapping(bytes, slice),
        }
    }

    /// Replaces eight bytes, and gives what they were. Atomic unless the pages may be gone; then only with
    /// respect to this process.
    pub(super) fn update(&self, offset: u64, update: &mut dyn FnMut(u64) -> u64) -> Option<u64> {
        let slice = self.slice(offset, 8)?;
        if self.way == Way::Kernel {
            let mut bytes = [0; 8];
            if !copy::from_mapping(&slice, &mut bytes) {
                return None;
            }
            let old = u64::from_ne_bytes(bytes);
            let new = update(old).to_ne_bytes();
            return copy::to_mapping(&new, &slice).then_some(old);
        }
        let word = slice.get_atomic_ref::<AtomicU64>(0).ok()?;
        let mut old = word.load(Ordering::SeqCst);
        loop {
            let new = update(old);
            match word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) => return Some(old),
                Err(now) => old = now,
            }
        }
    }

    fn slice(&self, offset: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let offset = usize::try_from(offset).ok()?;
        self.mapping.get_slice(offset, len).ok()
    }
}

/// Whether nobody can shrink a file. Seals it if that is still allowed.
fn cannot_shrink(file: &OwnedFd) -> bool {
    // A file without seals, or one whose seals are closed, refuses; what counts is how it is then.
    let _ = fcntl_add_seals(file, SealFlags::SHRINK);
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

fn errno(error: vm_memory::mmap::MmapRegionError) -> Errno {
    match error {
        vm_memory::mmap::MmapRegionError::Mmap(error) => {
            Errno::from_io_error(&error).unwrap_or(Errno::IO)
        }
        _ => Errno::INVAL,
    }
}
