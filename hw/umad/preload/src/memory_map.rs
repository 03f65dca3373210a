//! Mappings of the process, as the kernel has them: by the query of Linux 6.11, or else from the text of `/proc/self/maps`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    is_readable: bool,
    is_writable: bool,
}

/// Returns `true` if each page from `start` to `end` is mapped, readable, or writable where that is wanted.
///
/// No page comes into being by it.
///
/// # Errors
/// The kernel says nothing about the mappings.
pub(crate) fn covers(start: u64, end: u64, is_written: bool) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let maps = rustix::fs::open("/proc/self/maps", flags, Mode::empty())?;
    match is_covered(start, end, is_written, |at| query(maps.as_fd(), at)) {
        // Of kernels before 6.11.
        Err(Errno::NOTTY | Errno::INVAL) => by_text(&maps, start, end, is_written),
        found => found,
    }
}

fn is_covered(
    start: u64,
    end: u64,
    is_written: bool,
    mut mapping: impl FnMut(u64) -> Result<Option<Mapping>, Errno>,
) -> Result<bool, Errno> {
    let mut at = start;
    while at < end {
        match mapping(at)? {
            Some(found) if found.allows(is_written) && (found.start..found.end).contains(&at) => {
                at = found.end;
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}

impl Mapping {
    /// As the kernel when it pins a page (`check_vma_flags`).
    const fn allows(self, is_written: bool) -> bool {
        if is_written {
            self.is_writable
        } else {
            self.is_readable
        }
    }

    /// Parses a line: `START-END RIGHTS ...`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut parts = line.split(|byte| *byte == b' ');
        let range = core::str::from_utf8(parts.next()?).ok()?;
        let rights = parts.next()?;
        let (start, end) = range.split_once('-')?;
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            is_readable: rights.first() == Some(&b'r'),
            is_writable: rights.get(1) == Some(&b'w'),
        })
    }
}

/// `struct procmap_query` of `include/uapi/linux/fs.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// Bytes of that structure, which are part of the request's number.
const QUERY_SIZE: u32 = 104;
const _: () = assert!(size_of::<ProcmapQuery>() == QUERY_SIZE as usize);

/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u32 = 3 << 30 | QUERY_SIZE << 16 | (b'f' as u32) << 8 | 17;

/// Flags of the mapping that the kernel found.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// Asks the kernel for the mapping of an address.
fn query(maps: BorrowedFd<'_>, at: u64) -> Result<Option<Mapping>, Errno> {
    let mut asked = ProcmapQuery {
        size: QUERY_SIZE.into(),
        query_addr: at,
        ..ProcmapQuery::default()
    };
    let (fd, place) = (maps.as_raw_fd(), &raw mut asked);
    // SAFETY: the request reads and writes a structure of the size that it names, which is borrowed for the call. It is made
    // without the C library, whose function this library replaces.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, fd, PROCMAP_QUERY, place) };
    if result == 0 {
        return Ok(Some(Mapping {
            start: asked.vma_start,
            end: asked.vma_end,
            is_readable: asked.vma_flags & READABLE != 0,
            is_writable: asked.vma_flags & WRITABLE != 0,
        }));
    }
    // SAFETY: the C library gives each thread a valid place for `errno`.
    match Errno::from_raw_os_error(unsafe { *libc::__errno_location() }) {
        Errno::NOENT => Ok(None),
        error => Err(error),
    }
}

/// Reads the text, whose lines are in the order of addresses, as far as it is about the pages.
fn by_text(maps: &OwnedFd, start: u64, end: u64, is_written: bool) -> Result<bool, Errno> {
    let mut text = Text {
        read: |buffer: &mut [u8]| rustix::io::read(maps, buffer),
        bytes: Vec::new(),
        start: 0,
    };
    let mut last = None;
    is_covered(start, end, is_written, |at| {
        while last.is_none_or(|last: Mapping| last.end <= at) {
            match text.line()? {
                Some(line) => last = Some(Mapping::parse(line).ok_or(Errno::PROTO)?),
                None => return Ok(None),
            }
        }
        Ok(last)
    })
}

/// Lines of a text that is read by pieces.
struct Text<R> {
    read: R,
    bytes: Vec<u8>,
    start: usize,
}

impl<R: FnMut(&mut [u8]) -> Result<usize, Errno>> Text<R> {
    /// Bytes of a piece.
    const PIECE: usize = 1 << 16;

    fn line(&mut self) -> Result<Option<&[u8]>, Errno> {
        loop {
            let rest = self.bytes.get(self.start..).unwrap_or_default();
            if let Some(length) = rest.iter().position(|byte| *byte == b'\n') {
                let start = self.start;
                self.start += length + 1;
                return Ok(self.bytes.get(start..start + length));
            }
            self.bytes.drain(..self.start);
            self.start = 0;
            let had = self.bytes.len();
            self.bytes.resize(had + Self::PIECE, 0);
            let place = self.bytes.get_mut(had..).unwrap_or_default();
            let length = (self.read)(place);
            self.bytes.truncate(had + *length.as_ref().unwrap_or(&0));
            if length? == 0 {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    const PAGE: usize = 4096;

    /// Pages, mapped one by one with these rights; `None` for one that is unmapped again.
    struct Pages(usize, usize);

    impl Pages {
        fn new(rights: &[Option<i32>]) -> Self {
            let len = rights.len() * PAGE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new mapping replaces none, and its pages are this test's.
            let start = unsafe { libc::mmap(null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            for (index, rights) in rights.iter().enumerate() {
                let page = start.wrapping_byte_add(index * PAGE);
                // SAFETY: the page is of the mapping above.
                let done = unsafe {
                    match rights {
                        Some(rights) => libc::mprotect(page, PAGE, *rights),
                        None => libc::munmap(page, PAGE),
                    }
                };
                assert_eq!(done, 0);
            }
            Self(start.addr(), len)
        }

        fn range(&self) -> (u64, u64) {
            (self.0 as u64, (self.0 + self.1) as u64)
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: the pages are this test's.
            unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.0), self.1) };
        }
    }

    /// Returns the answers of both ways, which must be one where the kernel has the query.
    fn found(pages: &Pages, is_written: bool) -> bool {
        let (start, end) = pages.range();
        // Neither address is that of a page.
        let (start, end) = (start + 8, end - 8);
        let maps = rustix::fs::open("/proc/self/maps", OFlags::RDONLY, Mode::empty()).unwrap();
        let by_text = by_text(&maps, start, end, is_written).unwrap();
        assert_eq!(covers(start, end, is_written), Ok(by_text));
        by_text
    }

    #[test]
    fn pages_are_there_with_the_rights_of_each() {
        const READ: Option<i32> = Some(libc::PROT_READ);
        const BOTH: Option<i32> = Some(libc::PROT_READ | libc::PROT_WRITE);
        const NONE: Option<i32> = Some(libc::PROT_NONE);
        for (rights, can_be_read, can_be_written) in [
            (&[BOTH][..], true, true),
            (&[BOTH, BOTH, BOTH], true, true),
            (&[READ], true, false),
            (&[BOTH, READ, BOTH], true, false),
            (&[NONE], false, false),
            (&[BOTH, NONE], false, false),
            (&[BOTH, None, BOTH], false, false),
            (&[READ, BOTH, READ], true, false),
        ] {
            let pages = Pages::new(rights);
            assert_eq!(found(&pages, false), can_be_read, "{rights:?}");
            assert_eq!(found(&pages, true), can_be_written, "{rights:?}");
        }
    }

    #[test]
    fn a_sparse_mapping_stays_sparse() {
        let pages = Pages::new(&[Some(libc::PROT_READ | libc::PROT_WRITE); 64]);
        assert!(found(&pages, true));
        let mut resident = [0_u8; 64];
        let start = std::ptr::with_exposed_provenance_mut(pages.0);
        // SAFETY: there is a byte for each page.
        let asked = unsafe { libc::mincore(start, pages.1, resident.as_mut_ptr()) };
        assert_eq!((asked, resident), (0, [0; 64]));
    }

    #[test]
    fn lines_are_taken_from_pieces_that_end_anywhere() {
        let text = b"1000-2000 rw-p 00000000 00:00 0\n2000-3000 r--s 00000000 00:00 0 /a b\n7000-8000 ---p 0\n";
        for piece in 1..text.len() {
            let mut rest = &text[..];
            let read = |buffer: &mut [u8]| {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                rest = later;
                buffer[..now.len()].copy_from_slice(now);
                Ok(now.len())
            };
            let mut lines = Text {
                read,
                bytes: Vec::new(),
                start: 0,
            };
            let mut next = || {
                lines
                    .line()
                    .unwrap()
                    .map(|line| Mapping::parse(line).unwrap())
            };
            let mapping = |start, is_readable, is_writable| {
                Some(Mapping {
                    start,
                    end: start + 0x1000,
                    is_readable,
                    is_writable,
                })
            };
            assert_eq!(next(), mapping(0x1000, true, true));
            assert_eq!(next(), mapping(0x2000, true, false));
            assert_eq!(next(), mapping(0x7000, false, false));
            assert_eq!(next(), None);
        }
        for line in ["", "1000", "1000-2000", "x-y rw-p", "1000 rw-p"] {
            assert_eq!(Mapping::parse(line.as_bytes()), None, "{line}");
        }
    }
}
