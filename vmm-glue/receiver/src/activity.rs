//! Kernel work of the service's thread for a client, published for a watchdog: kernel work that waits for a client
//! blocks the service, and the blocked thread cannot log it.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kernel work for a client that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A message, and the descriptors that it is about.
    Message,
    /// A page of memory that a VMM shares.
    Page,
    /// Memory of a process, by its `/proc/PID/mem`.
    ProcessMemory,
    /// A reply or an interrupt, which wakes its waiters.
    WakeUp,
}

/// Work and client that are published, with the number of publications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Number of the publication.
    pub serial: u32,
    /// The work.
    pub work: Work,
    /// Descriptor of the client's socket.
    pub client: RawFd,
}

/// Serial number (32 bits), work and one (8 bits), and descriptor (24 bits).
static PUBLISHED: AtomicU64 = AtomicU64::new(0);

const WORKS: [Work; 4] = [Work::Message, Work::Page, Work::ProcessMemory, Work::WakeUp];

const CLIENT_BITS: u32 = 24;

/// Publishes work for a client while a call lasts. To be called by the service's thread alone.
pub fn during<T>(work: Work, client: RawFd, call: impl FnOnce() -> T) -> T {
    let before = PUBLISHED.load(Ordering::Relaxed);
    let number = WORKS.iter().position(|known| *known == work);
    let number = number.map_or(0, |number| number as u64 + 1);
    let client = u64::from(client.unsigned_abs()) & ((1 << CLIENT_BITS) - 1);
    let serial = (before >> 32).wrapping_add(1) << 32;
    PUBLISHED.store(serial | number << CLIENT_BITS | client, Ordering::Relaxed);
    let result = call();
    let serial = (before >> 32).wrapping_add(2) << 32;
    PUBLISHED.store(serial | before & u64::from(u32::MAX), Ordering::Relaxed);
    result
}

/// Returns the published work. `None` if the service's thread does none for a client.
#[must_use]
pub fn published() -> Option<Activity> {
    let word = PUBLISHED.load(Ordering::Relaxed);
    let number = usize::try_from(word >> CLIENT_BITS & 0xff).ok()?;
    Some(Activity {
        serial: u32::try_from(word >> 32).ok()?,
        work: *WORKS.get(number.checked_sub(1)?)?,
        client: RawFd::try_from(word & ((1 << CLIENT_BITS) - 1)).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_work_is_published_and_afterwards_the_one_around_it() {
        let at = || published().map(|at| (at.work, at.client));
        let serial = || published().map(|at| at.serial);
        assert_eq!(at(), None);
        during(Work::Message, 17, || {
            let first = serial();
            assert_eq!(at(), Some((Work::Message, 17)));
            during(Work::Page, 4711, || {
                assert_eq!(at(), Some((Work::Page, 4711)));
            });
            assert_eq!(at(), Some((Work::Message, 17)));
            assert_ne!(serial(), first, "it goes on");
        });
        assert_eq!(at(), None);
    }
}
