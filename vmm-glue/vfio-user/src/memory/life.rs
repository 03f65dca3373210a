//! Whether somebody still has a file that this process has let go.
//!
//! What a device has touched of a file stays charged to this process until nobody has the file any more. A watch of
//! inotify does not keep a file, and tells when the last one who has it is gone, of files without a name as well.

use core::mem::MaybeUninit;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// A file that is watched.
#[derive(Debug, Default)]
struct Watched {
    /// [`Life`]s of it.
    lives: usize,
    is_gone: bool,
}

/// All files that are watched, by the numbers of their watches.
#[derive(Debug)]
struct Watches {
    inotify: OwnedFd,
    files: Mutex<BTreeMap<i32, Watched>>,
}

static WATCHES: OnceLock<Result<Watches, Errno>> = OnceLock::new();

/// The life of a file, until nobody has it any more.
#[derive(Debug)]
pub(super) struct Life {
    watches: &'static Watches,
    number: i32,
}

impl Life {
    /// Watches a file.
    ///
    /// # Errors
    /// [`Errno::ACCESS`] if this process could not open the file by itself, or what the system says if it has no
    /// watches left.
    pub(super) fn watch(file: &OwnedFd) -> Result<Self, Errno> {
        let watches = WATCHES.get_or_init(|| {
            Ok(Watches {
                inotify: inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?,
                files: Mutex::default(),
            })
        });
        let watches = watches.as_ref().map_err(|error| *error)?;
        let mut files = watches.lock();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let number = inotify::add_watch(&watches.inotify, path, WatchFlags::DELETE_SELF)?;
        files.entry(number).or_default().lives += 1;
        drop(files);
        Ok(Self { watches, number })
    }

    /// Whether nobody has the file any more.
    pub(super) fn is_over(&self) -> bool {
        let mut files = self.watches.lock();
        self.watches.note_gone(&mut files);
        files.get(&self.number).is_none_or(|file| file.is_gone)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let mut files = self.watches.lock();
        let Some(file) = files.get_mut(&self.number) else {
            return;
        };
        file.lives -= 1;
        if file.lives > 0 {
            return;
        }
        files.remove(&self.number);
        // The file may be gone, and its watch with it.
        let _ = inotify::remove_watch(&self.watches.inotify, self.number);
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Watched>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_gone(&self, files: &mut BTreeMap<i32, Watched>) {
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.inotify, &mut room);
        while let Ok(event) = events.next() {
            if event.events().contains(ReadFlags::DELETE_SELF)
                && let Some(file) = files.get_mut(&event.wd())
            {
                file.is_gone = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn a_life_is_over_when_the_last_descriptor_is_closed() {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        let life = Life::watch(&file).unwrap();
        let other = file.try_clone().unwrap();
        let again = Life::watch(&other).unwrap();
        drop(file);
        assert!(!life.is_over() && !again.is_over());
        drop(again);
        assert!(!life.is_over());
        drop(other);
        assert!(life.is_over());
    }
}
