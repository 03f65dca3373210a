//! A file of memory, mapped so that adapters and other processes share it.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    pub(super) place: NonNull<u8>,
    len: usize,
    mapped: PhantomData<&'a Mapping>,
}

/// Returns bytes of a mapping, which begins at a place and has a length. `None` if they are not all in it.
fn bytes_at<'a>(
    (base, mapped): (NonNull<u8>, usize),
    offset: u64,
    len: usize,
) -> Option<Bytes<'a>> {
    let offset = usize::try_from(offset).ok()?;
    let end = offset.checked_add(len)?;
    (end <= mapped).then(|| Bytes {
        // SAFETY: the place is within the mapping, or its end.
        place: unsafe { base.add(offset) },
        len,
        mapped: PhantomData,
    })
}

impl Bytes<'_> {
    /// Copies as many bytes out as there is room for.
    pub(crate) fn read(self, to: &mut [u8]) {
        let len = to.len().min(self.len);
        let to = NonNull::from(to).cast();
        // SAFETY: so many bytes are mapped, and `to` is no part of a mapping, to which there are no references.
        unsafe { self.place.copy_to_nonoverlapping(to, len) };
    }

    /// Copies bytes in, as many as there is room for.
    pub(crate) fn write(self, bytes: &[u8]) {
        let len = bytes.len().min(self.len);
        let bytes = NonNull::from(bytes).cast();
        // SAFETY: as for reading.
        unsafe { self.place.copy_from_nonoverlapping(bytes, len) };
    }
}

/// A mapped file of memory. Its bytes are copied in and out: no reference to one exists, since an adapter writes them meanwhile.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    file: File,
}

// SAFETY: the mapping is of the process, not of a thread.
unsafe impl Send for Mapping {}
// SAFETY: bytes are copied through raw pointers alone, whoever else writes them.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes a file of zeroes, and maps it. Pages take memory once they are written.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        // SAFETY: the name ends with a zero byte.
        let fd = unsafe { libc::memfd_create(c"vhca-memory".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made the descriptor, and nothing else has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(len as u64)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses the place of a new mapping.
        let base = unsafe { libc::mmap(null_mut(), len, rights, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len, file })
    }

    /// Returns bytes. `None` if they are not all in the file.
    pub(crate) fn at(&self, offset: u64, len: usize) -> Option<Bytes<'_>> {
        bytes_at((self.base, self.len), offset, len)
    }

    /// Replaces an aligned number at once, and returns the old one. Returns `None` if it is not in the file, or not aligned.
    pub(crate) fn update(&self, offset: u64, update: &mut dyn FnMut(u64) -> u64) -> Option<u64> {
        let place = self.at(offset, size_of::<u64>())?.place.cast::<u64>();
        if !place.is_aligned() {
            return None;
        }
        // SAFETY: it is aligned and in the mapping, and who shares the number changes it atomically.
        let number = unsafe { AtomicU64::from_ptr(place.as_ptr()) };
        number
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(update(old)))
            .ok()
    }

    /// Returns pages to the system; they are zero again then.
    pub(crate) fn discard(&self, offset: u64, len: usize) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let range = (libc::off_t::try_from(offset), libc::off_t::try_from(len));
        if let (Ok(offset), Ok(len)) = range {
            // SAFETY: the call changes the file alone; pages of a mapping stay readable.
            let done = unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) };
            debug_assert_eq!(done, 0, "a file of memory can have holes");
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and there are no references to its bytes.
        let done = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(done, 0, "it is mapped");
    }
}

/// Bytes of a page.
const PAGE: usize = 4096;

/// A piece of a file: the file, the first byte and the number of bytes.
pub(crate) type Piece = (Arc<Mapping>, u64, usize);

/// Pieces of files, one behind the other in addresses of this process.
#[derive(Debug)]
pub(crate) struct Composition {
    /// First byte of the first page.
    base: NonNull<u8>,
    /// Bytes in front of the first piece.
    skipped: usize,
    /// Bytes of all pages.
    span: usize,
    len: usize,
    /// Files can be closed while they are mapped; their bytes can be given back, and then are zero.
    _files: Vec<Arc<Mapping>>,
}

// SAFETY: the mappings are of the process, not of a thread.
unsafe impl Send for Composition {}
// SAFETY: bytes are copied through raw pointers alone, whoever else writes them.
unsafe impl Sync for Composition {}

impl Composition {
    /// Maps pieces once more, one behind the other.
    ///
    /// # Errors
    /// `InvalidInput` if one that has a neighbour does not begin or end there with a page, or is not in its file; errors of `mmap`.
    pub(crate) fn new(pieces: &[Piece]) -> io::Result<Self> {
        const INVALID: io::ErrorKind = io::ErrorKind::InvalidInput;

        let (first, last) = (0, pieces.len().checked_sub(1).ok_or(INVALID)?);
        let mut pages = Vec::with_capacity(pieces.len());
        let (mut skipped, mut span, mut len) = (0, 0_usize, 0_usize);
        for (index, (file, offset, bytes)) in pieces.iter().enumerate() {
            file.at(*offset, *bytes).ok_or(INVALID)?;
            let begin = usize::try_from(*offset).map_err(|_| INVALID)?;
            let (head, tail) = (begin % PAGE, (begin + bytes) % PAGE);
            if index != first && head != 0 || index != last && tail != 0 {
                return Err(INVALID.into());
            }
            if index == first {
                skipped = head;
            }
            let mapped = (head + bytes).next_multiple_of(PAGE);
            pages.push((file, begin - head, span, mapped));
            span = span.checked_add(mapped).ok_or(INVALID)?;
            len += bytes;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses the place of a new mapping, whose bytes nobody reaches.
        let base = unsafe { libc::mmap(null_mut(), span, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base: NonNull<u8> = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let composition = Self {
            base,
            skipped,
            span,
            len,
            _files: pieces.iter().map(|(file, ..)| file.clone()).collect(),
        };
        for (file, offset, place, bytes) in pages {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let offset = libc::off_t::try_from(offset).map_err(|_| INVALID)?;
            let fd = file.file.as_raw_fd();
            // SAFETY: the place is within the mapping of this value, to whose bytes there are no references.
            let mapped = unsafe {
                let place = base.as_ptr().add(place).cast();
                libc::mmap(place, bytes, rights, flags, fd, offset)
            };
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(composition)
    }

    /// Returns bytes. `None` if they are not all in it.
    fn at(&self, offset: u64, len: usize) -> Option<Bytes<'_>> {
        let offset = offset.checked_add(self.skipped as u64)?;
        bytes_at((self.base, self.skipped + self.len), offset, len)
    }
}

impl Drop for Composition {
    fn drop(&mut self) {
        // SAFETY: the mappings are this value's, and there are no references to their bytes.
        let done = unsafe { libc::munmap(self.base.as_ptr().cast(), self.span) };
        debug_assert_eq!(done, 0, "it is mapped");
    }
}

/// Memory of a region.
#[derive(Debug)]
pub(crate) enum RegionMemory {
    /// Bytes of a file from an offset on, where the file is mapped.
    Run(Arc<Mapping>, u64),
    /// Bytes of several pieces.
    Composed(Composition),
}

impl RegionMemory {
    /// Maps pieces, unless there is one alone.
    ///
    /// # Errors
    /// As [`Composition::new`].
    pub(crate) fn new(pieces: &[Piece]) -> io::Result<Self> {
        match pieces {
            [(file, offset, _)] => Ok(Self::Run(file.clone(), *offset)),
            _ => Composition::new(pieces).map(Self::Composed),
        }
    }

    /// Returns bytes. `None` if they are not all in the memory.
    pub(crate) fn at(&self, offset: u64, len: usize) -> Option<Bytes<'_>> {
        match self {
            Self::Run(file, first) => file.at(first.checked_add(offset)?, len),
            Self::Composed(composition) => composition.at(offset, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_one_behind_the_other_and_share_the_bytes_of_their_files() {
        let files = [(); 2].map(|()| Arc::new(Mapping::new(4 * PAGE).unwrap()));
        let [one, two] = &files;
        one.at(2 * PAGE as u64 - 2, 2).unwrap().write(b"ab");
        two.at(0, 2).unwrap().write(b"cd");
        let pieces = [
            (one.clone(), PAGE as u64 + 96, PAGE - 96),
            (two.clone(), 0, PAGE),
            (one.clone(), 3 * PAGE as u64, 10),
        ];
        let memory = RegionMemory::new(&pieces).unwrap();
        let mut bytes = [0; 4];
        memory.at(PAGE as u64 - 98, 4).unwrap().read(&mut bytes);
        assert_eq!(&bytes, b"abcd");
        let place = memory.at(2 * PAGE as u64 - 96, 4).unwrap();
        place.write(b"vhca");
        one.at(3 * PAGE as u64, 4).unwrap().read(&mut bytes);
        assert_eq!(&bytes, b"vhca");
        let len = (2 * PAGE - 96 + 10) as u64;
        assert!(memory.at(len - 4, 4).is_some());
        assert!(memory.at(len - 3, 4).is_none());
        for wrong in [
            vec![],
            vec![(one.clone(), 0, PAGE), (two.clone(), 8, PAGE)],
            vec![(one.clone(), 0, 8), (two.clone(), 0, PAGE)],
            vec![(one.clone(), 0, PAGE), (two.clone(), 0, 5 * PAGE)],
        ] {
            let refused = RegionMemory::new(&wrong).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
