//! Loads and stores that find pages gone.
//!
//! A page of a VMM's file may not be there when it is touched: the VMM shrinks the file, the huge pages run out, the
//! host commits no more memory, or the page has failed. The kernel sends SIGBUS then, which would end the process.
//!
//! Each access is announced, by the thread that makes it, with where it is. The handler of the signal puts a page of
//! a file of our own where one is missing in the announced place, so that the load or store is done there, and the
//! access is known to have failed; its owner restores the mapping. A signal for any other place ends the process,
//! as it would without the handler.
//!
//! That page is there from the start, and to map it commits no memory: so the handler works when there is none.
//!
//! `unsafe`: a signal handler, and mappings that replace parts of one.
#![expect(
    unsafe_code,
    reason = "a handler of SIGBUS, and mappings within one that a caller borrows"
)]

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, compiler_fence};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::OnceLock;

use libc::{c_int, c_void, siginfo_t};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, pwrite};
use rustix::param::page_size;
use vm_memory::VolatileSlice;
use vm_memory::mmap::MmapRegion;
use vmm_sys_util::signal::register_signal_handler;

/// A signal that tells of a failed page that nobody has touched (`si_code`, `asm-generic/siginfo.h`).
const BUS_MCEERR_AO: c_int = 5;

/// The file with the page that stands in for missing ones.
static SPARE: AtomicI32 = AtomicI32::new(-1);

/// What a thread touches.
struct Access {
    start: AtomicUsize,
    /// 0 while nothing is touched.
    end: AtomicUsize,
    /// Bytes that can be replaced at once.
    block: AtomicUsize,
    is_lost: AtomicBool,
}

thread_local! {
    static ACCESS: Access = const {
        Access {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            block: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        }
    };
}

/// Has missing pages survived from now on.
///
/// # Errors
/// What the system says if it has no page, or no descriptor, for that.
pub(super) fn survive_missing() -> Result<(), Errno> {
    static DONE: OnceLock<Result<(), Errno>> = OnceLock::new();

    *DONE.get_or_init(|| {
        let spare = memfd_create("spare", MemfdFlags::CLOEXEC)?;
        pwrite(&spare, &vec![0; page_size()], 0)?;
        SPARE.store(File::from(spare).into_raw_fd(), Ordering::Release);
        let registered = register_signal_handler(libc::SIGBUS, replace_missing);
        registered.map_err(|error| Errno::from_raw_os_error(error.errno()))
    })
}

/// Loads or stores something within a part of a mapping, whose pages come in blocks of so many bytes. `None` if a page
/// was not there; then the mapping is to be [restored](restore).
pub(super) fn touch<T>(
    part: &VolatileSlice<'_>,
    block: usize,
    access: impl FnOnce() -> T,
) -> Option<T> {
    ACCESS.with(|announced| {
        let start = part.ptr_guard().as_ptr().addr();
        announced.block.store(block, Ordering::Relaxed);
        announced.start.store(start, Ordering::Relaxed);
        let end = start.saturating_add(part.len());
        announced.end.store(end, Ordering::Relaxed);
        // The handler runs on this thread: only the compiler could have it see something else.
        compiler_fence(Ordering::SeqCst);
        let done = access();
        compiler_fence(Ordering::SeqCst);
        announced.end.store(0, Ordering::Relaxed);
        if announced.is_lost.load(Ordering::Relaxed) {
            announced.is_lost.store(false, Ordering::Relaxed);
            clear_spare();
            return None;
        }
        Some(done)
    })
}

/// Clears the spare page, which holds what was stored where a page was missing: it stands in for those of other VMMs next.
#[cold]
fn clear_spare() {
    // SAFETY: the descriptor stays open as long as the process lives.
    let spare = unsafe { BorrowedFd::borrow_raw(SPARE.load(Ordering::Acquire)) };
    if let Err(error) = pwrite(spare, &vec![0; page_size()], 0) {
        log::error!("vfio-user: cannot clear the page that stands in for missing ones: {error}");
    }
}

/// Maps a part of a mapping's file again, where pages may have been replaced. Whether that was possible.
///
/// # Panics
/// Never: offsets outside the mapping are refused.
pub(super) fn restore(mapping: &MmapRegion, part: Range<usize>) -> bool {
    let Some(file) = mapping.file_offset() else {
        return false;
    };
    let len = part.len();
    let fits = part.end <= mapping.size().next_multiple_of(page_size());
    let Some(offset) = libc::off_t::try_from(part.start).ok().filter(|_| fits) else {
        return false;
    };
    // SAFETY: the part is within the mapping, up to the end of its last page, and what is put there is what the
    // mapping had there from its beginning: the same bytes of the same file, with the same rights.
    let mapped = unsafe {
        libc::mmap(
            mapping.as_ptr().add(part.start).cast(),
            len,
            mapping.prot(),
            mapping.flags() | libc::MAP_FIXED,
            file.file().as_raw_fd(),
            offset,
        )
    };
    mapped != libc::MAP_FAILED
}

/// Handles SIGBUS.
extern "C" fn replace_missing(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a pointer to what there is to tell, and of SIGBUS an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code == BUS_MCEERR_AO {
        // The page is gone, and to touch it is another signal.
        return;
    }
    if !ACCESS.with(|announced| announced.replace(address)) {
        // SAFETY: the default action of a signal can be set in its handler (signal-safety(7)). The access is made
        // again behind it, and ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

impl Access {
    /// Puts a page where one is missing. Whether the address is in what is touched.
    fn replace(&self, address: usize) -> bool {
        let (start, end) = (
            self.start.load(Ordering::Relaxed),
            self.end.load(Ordering::Relaxed),
        );
        let page = page_size();
        let block = self.block.load(Ordering::Relaxed);
        let first = address & !(page - 1);
        if end == 0 || first >= end || first + page <= start {
            return false;
        }
        self.is_lost.store(true, Ordering::Relaxed);
        // Of a huge page no part can be replaced: first all of it, where then all pages but one are missing again.
        let whole = address & !(block - 1);
        put_spare(first, page) || (put_spare(whole, block) && put_spare(first, page))
    }
}

/// Maps the spare page at an address, and nothing behind it.
fn put_spare(at: usize, len: usize) -> bool {
    // SAFETY: who announced the access borrows a mapping that has this place, and nobody has references to it.
    // mmap is a plain system call, and errno is what it was behind it.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let put = libc::mmap(
            core::ptr::with_exposed_provenance_mut(at),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
            SPARE.load(Ordering::Acquire),
            0,
        );
        *errno = before;
        put != libc::MAP_FAILED
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use rustix::fs::ftruncate;
    use vm_memory::{FileOffset, VolatileMemory};

    use super::*;

    /// A mapping of a file that has no pages any more.
    fn gone() -> MmapRegion {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, 1 << 16).unwrap();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let mapping = MmapRegion::build(Some(offset), 1 << 16, rights, libc::MAP_SHARED).unwrap();
        ftruncate(&file, 0).unwrap();
        mapping
    }

    #[test]
    fn only_announced_accesses_survive_a_missing_page() {
        const CHILD: &str = "VHCA_TEST_TOUCHES_WHAT_IS_GONE";
        let mapping = gone();
        survive_missing().unwrap();
        let part = mapping.get_slice(5000, 10_000).unwrap();
        let touched = touch(&part, 4096, || part.copy_from(&[1_u8; 10_000]));
        assert_eq!(touched, None);
        // What was stored is no longer in the page that stood in.
        // SAFETY: the descriptor stays open as long as the process lives.
        let spare = unsafe { BorrowedFd::borrow_raw(SPARE.load(Ordering::Acquire)) };
        let mut left = vec![1; page_size()];
        rustix::io::pread(spare, &mut left, 0).unwrap();
        assert!(left.iter().all(|byte| *byte == 0));
        if std::env::var_os(CHILD).is_some() {
            // Behind the announced access again nothing is there.
            assert!(restore(&mapping, 4096..16_384));
            part.copy_from(&[1_u8; 10_000]);
            unreachable!("a page was there");
        }
        let name = "memory::pages::tests::only_announced_accesses_survive_a_missing_page";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
    }

    #[test]
    fn pages_that_are_there_are_touched_by_many_threads_beside_those_that_are_not() {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let sound = |_| {
            let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
            ftruncate(&file, 1 << 16).unwrap();
            let offset = FileOffset::new(file, 0);
            MmapRegion::<()>::build(Some(offset), 1 << 16, rights, libc::MAP_SHARED).unwrap()
        };
        survive_missing().unwrap();
        std::thread::scope(|scope| {
            for nth in 0..4_u8 {
                scope.spawn(move || {
                    let (sound, gone) = (sound(()), gone());
                    for at in (0..1 << 15).step_by(512) {
                        let there = sound.get_slice(at, 600).unwrap();
                        assert!(touch(&there, 4096, || there.copy_from(&[nth; 600])).is_some());
                        let missing = gone.get_slice(at, 600).unwrap();
                        assert!(
                            touch(&missing, 4096, || missing.copy_from(&[9_u8; 600])).is_none()
                        );
                        assert!(restore(&gone, 0..1 << 16));
                        let mut bytes = [0; 600];
                        assert!(touch(&there, 4096, || there.copy_to(&mut bytes)).is_some());
                        assert_eq!(bytes, [nth; 600]);
                    }
                });
            }
        });
    }
}
