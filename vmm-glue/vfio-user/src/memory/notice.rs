//! News of guarded memory for the thread that drives the devices.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

/// Notes that one of several memories became guarded, and wakes their owner when the write that it waits for is done.
#[derive(Clone, Debug, Default)]
pub struct GuardNotice(Arc<Noted>);

#[derive(Debug, Default)]
struct Noted {
    is_guarded: AtomicBool,
    event: OnceLock<OwnedFd>,
}

impl GuardNotice {
    /// Returns `true` if a memory became guarded since the last call.
    #[must_use]
    pub fn take(&self) -> bool {
        let is_guarded = &self.0.is_guarded;
        is_guarded.load(Ordering::Relaxed) && is_guarded.swap(false, Ordering::Relaxed)
    }

    /// Returns an eventfd that is ready from when an awaited write is done until [`Self::clear`].
    ///
    /// # Errors
    /// The error of the system, which has none.
    pub fn event(&self) -> Result<&OwnedFd, Errno> {
        if let Some(event) = self.0.event.get() {
            return Ok(event);
        }
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(self.0.event.get_or_init(|| event))
    }

    /// Makes the eventfd not ready.
    pub fn clear(&self) {
        if let Some(event) = self.0.event.get() {
            // It may not be ready.
            let _ = read(event, &mut [0; 8]);
        }
    }

    /// Notes that a memory became guarded.
    pub(super) fn note_guarded(&self) {
        self.0.is_guarded.store(true, Ordering::Relaxed);
    }

    /// Makes the eventfd ready.
    pub(super) fn wake(&self) {
        if let Some(event) = self.0.event.get() {
            // It fails only if it is ready already.
            let _ = write(event, &1_u64.to_ne_bytes());
        }
    }
}
