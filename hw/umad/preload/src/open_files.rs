//! Which of the program's descriptors are files of ours.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::descriptors::OpenFile;

/// Descriptors of larger numbers are looked up each time.
const FLAGGED: usize = 4096;

/// A flag for each descriptor that may be a file of ours, so that other files cost one load.
static FLAGS: [AtomicU64; FLAGGED / 64] = [const { AtomicU64::new(0) }; FLAGGED / 64];

static FILES: Mutex<BTreeMap<RawFd, Arc<OpenFile>>> = Mutex::new(BTreeMap::new());

fn files() -> MutexGuard<'static, BTreeMap<RawFd, Arc<OpenFile>>> {
    // The map is whole whatever happened to who held it.
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn flag(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((FLAGS.get(fd / 64)?, 1 << (fd % 64)))
}

/// A descriptor is a file of ours from now on.
pub(crate) fn insert(fd: RawFd, file: Arc<OpenFile>) {
    // A file that is replaced is closed without the lock: its descriptors come by here.
    let replaced = files().insert(fd, file);
    drop(replaced);
    if let Some((word, bit)) = flag(fd) {
        word.fetch_or(bit, Ordering::Release);
    }
}

/// A descriptor is about to be closed, or means something else.
pub(crate) fn remove(fd: RawFd) {
    if may_be_open(fd) {
        if let Some((word, bit)) = flag(fd) {
            word.fetch_and(!bit, Ordering::Release);
        }
        let removed = files().remove(&fd);
        drop(removed);
    }
}

fn may_be_open(fd: RawFd) -> bool {
    fd >= 0 && flag(fd).is_none_or(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

/// Returns the file that a descriptor is, if it is one of ours.
///
/// A program may close descriptors in ways that are not seen here, and open other files under their
/// numbers: so the file behind the descriptor is compared.
pub(crate) fn get(fd: RawFd) -> Option<Arc<OpenFile>> {
    if !may_be_open(fd) {
        return None;
    }
    let file = files().get(&fd).cloned()?;
    // SAFETY: a negative number is ruled out above, and the descriptor is used for one call that
    // fails if it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    if file.identity().is_behind(borrowed) {
        return Some(file);
    }
    remove(fd);
    None
}
