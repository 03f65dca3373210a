//! Writes to memory that may wait, carried out by a thread of its VMM's own.
//!
//! Memory is *guarded* from an access on that waited for a page, until none has waited for a while: 10 s the first time, and twice as
//! long each further time, up to an hour. Its device then neither loads nor stores: it reads by
//! `pread(2)`, which waits for no page that is being punched, and its writes are posted to one queue, which a thread carries out in
//! order. A read sees the posted writes. Interrupts go through the same queue, so that their order holds. While the queue is full, the
//! service skips the device's turns. The service sends a reply to the VMM only after the thread has done all writes posted before
//! the reply. The thread wakes the service, by a [`GuardNotice`], when the queue has room again, or when a reply may go.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::file::MappedFile;
use super::notice::GuardNotice;

/// Bytes of posted writes from which on the device has no turn.
const FULL_BYTES: usize = 1 << 20;

/// Posted writes from which on the device has no turn.
const FULL: usize = 4096;

/// Multiple of these beyond which writes fail: within the turn that fills the queue a device writes less.
const BEYOND: usize = 16;

/// Time for which memory stays guarded the first time, after the last access that waited. On a busy host a guest's access may wait
/// although its VMM does nothing.
pub(super) const FIRST_GUARD: Duration = Duration::from_secs(10);

/// The same after many times: a VMM that makes others wait does so a few times an hour.
const LONGEST_GUARD: Duration = Duration::from_secs(3600);

/// Returns the time for which memory stays guarded the time after one.
pub(super) fn next_guard(guard: Duration) -> Duration {
    (2 * guard).min(LONGEST_GUARD)
}

/// A write to a file of the VMM.
#[derive(Debug)]
struct Store {
    file: Arc<MappedFile>,
    offset: u64,
    bytes: Box<[u8]>,
}

impl Store {
    /// Copies the part that a read of the same file has in common with the write.
    fn overlay(&self, file: &MappedFile, offset: u64, buf: &mut [u8]) {
        if self.file.id() != file.id() {
            return;
        }
        let (own_end, end) = (
            self.offset + self.bytes.len() as u64,
            offset + buf.len() as u64,
        );
        let (from, to) = (self.offset.max(offset), own_end.min(end));
        if from >= to {
            return;
        }
        let within = |start: u64| {
            let first = usize::try_from(from - start).unwrap_or(usize::MAX);
            first..usize::try_from(to - start).unwrap_or(usize::MAX)
        };
        if let (Some(into), Some(bytes)) = (
            buf.get_mut(within(offset)),
            self.bytes.get(within(self.offset)),
        ) {
            into.copy_from_slice(bytes);
        }
    }
}

enum Job {
    Store(Arc<Store>),
    /// An interrupt. `None` while the thread makes it.
    Signal(Option<Box<dyn FnOnce() + Send>>),
}

struct Entry {
    number: u64,
    since: Instant,
    job: Job,
}

struct Queue {
    /// The one that the thread carries out is the first.
    entries: VecDeque<Entry>,
    bytes: usize,
    posted: u64,
    /// The thread waits for an entry.
    is_idle: bool,
    is_over: bool,
    /// Writes whose pages were gone.
    lost: u64,
    /// Time of the last access that waited.
    waited_at: Instant,
    /// Time after it for which the memory stays guarded.
    guard: Duration,
    /// Number of the entry that the owner of the device waits for.
    awaited: Option<u64>,
    /// The owner waits until the queue is not full.
    awaits_room: bool,
}

/// State of a queue that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedState {
    /// The device may have no turn.
    pub is_full: bool,
    /// Time since the first of the writes was posted.
    pub age: Duration,
}

struct Shared {
    queue: Mutex<Queue>,
    added: Condvar,
    notice: GuardNotice,
}

/// The posted writes of a VMM. The thread ends with it.
pub(super) struct PostedWrites(Arc<Shared>);

impl core::fmt::Debug for PostedWrites {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("PostedWrites").field(&self.state()).finish()
    }
}

impl Drop for PostedWrites {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.added.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out the posted entries until the queue is over.
    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if queue.is_over {
                return;
            }
            let Some(first) = queue.entries.front_mut() else {
                queue.is_idle = true;
                let woken = self.added.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
                queue.is_idle = false;
                continue;
            };
            let number = first.number;
            let (store, signal) = match &mut first.job {
                Job::Store(store) => (Some(store.clone()), None),
                Job::Signal(signal) => (None, signal.take()),
            };
            drop(queue);
            let mut is_lost = false;
            let mut has_waited = false;
            if let Some(store) = &store {
                is_lost = !store.file.write(store.offset, &store.bytes);
                has_waited = store.file.take_waited();
            }
            if let Some(signal) = signal {
                signal();
            }
            // The file may have no other owner: it is given back without the lock.
            drop(store);
            queue = self.lock();
            queue.lost += u64::from(is_lost);
            if has_waited {
                queue.waited_at = Instant::now();
            }
            // The queue may have been cleared in the meantime.
            if queue
                .entries
                .front()
                .is_some_and(|first| first.number == number)
            {
                queue.take_first();
            }
            if queue.take_awaited(number) {
                drop(queue);
                self.notice.wake();
                queue = self.lock();
            }
        }
    }
}

impl Queue {
    fn take_first(&mut self) {
        if let Some(Entry {
            job: Job::Store(store),
            ..
        }) = self.entries.pop_front()
        {
            self.bytes -= store.bytes.len();
        }
    }

    fn is_remembered(&self) -> bool {
        self.waited_at.elapsed() < self.guard
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= FULL || self.bytes >= FULL_BYTES
    }

    /// Returns `true` if the owner of the device waits for the state after an entry.
    fn take_awaited(&mut self, number: u64) -> bool {
        let is_done = self.awaited.take_if(|awaited| *awaited <= number);
        let has_room = self.awaits_room && !self.is_full();
        self.awaits_room &= !has_room;
        is_done.is_some() || has_room
    }

    fn has_room(&self, more: usize) -> bool {
        self.entries.len() < FULL * BEYOND && self.bytes + more <= FULL_BYTES * BEYOND
    }

    fn push(&mut self, job: Job) {
        if let Job::Store(store) = &job {
            self.bytes += store.bytes.len();
        }
        self.posted += 1;
        self.entries.push_back(Entry {
            number: self.posted,
            since: Instant::now(),
            job,
        });
    }
}

impl PostedWrites {
    /// Starts the thread. `None` if there can be none.
    pub(super) fn start(notice: GuardNotice, guard: Duration) -> Option<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                entries: VecDeque::new(),
                bytes: 0,
                posted: 0,
                is_idle: false,
                is_over: false,
                lost: 0,
                waited_at: Instant::now(),
                guard,
                awaited: None,
                awaits_room: false,
            }),
            added: Condvar::new(),
            notice,
        });
        let work = shared.clone();
        let spawned = thread::Builder::new()
            .name("vmm-memory".to_owned())
            .spawn(move || work.work());
        if let Err(error) = spawned {
            log::warn!(
                "vfio-user: no thread for memory that waits, so all VMs wait for it: {error}"
            );
            return None;
        }
        Some(Self(shared))
    }

    fn add(&self, mut queue: MutexGuard<'_, Queue>, job: Job) {
        queue.push(job);
        let is_idle = queue.is_idle;
        drop(queue);
        if is_idle {
            self.0.added.notify_one();
        }
    }

    /// Posts a write. Returns `false` if the file lacks the place, the VF has touched all that it may, or too much is posted.
    pub(super) fn write(&self, file: &Arc<MappedFile>, offset: u64, bytes: &[u8]) -> bool {
        if !file.may_write(offset, bytes.len()) {
            return false;
        }
        let store = Store {
            file: file.clone(),
            offset,
            bytes: bytes.into(),
        };
        let queue = self.0.lock();
        let has_room = queue.has_room(bytes.len());
        if has_room {
            self.add(queue, Job::Store(Arc::new(store)));
        }
        has_room
    }

    /// Copies bytes out as they will be when all posted writes are done. Returns `false` if the file lacks any.
    pub(super) fn read(&self, file: &MappedFile, offset: u64, buf: &mut [u8]) -> bool {
        // With the lock held, no write that is missing from the bytes leaves the queue.
        let queue = self.0.lock();
        if !file.read_by_kernel(offset, buf) {
            return false;
        }
        for entry in &queue.entries {
            if let Job::Store(store) = &entry.job {
                store.overlay(file, offset, buf);
            }
        }
        true
    }

    /// Replaces eight bytes, and returns the old ones: atomically as far as this device is concerned.
    pub(super) fn update(
        &self,
        file: &Arc<MappedFile>,
        offset: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Option<u64> {
        let mut bytes = [0; 8];
        if !self.read(file, offset, &mut bytes) {
            return None;
        }
        let old = u64::from_ne_bytes(bytes);
        let is_posted = self.write(file, offset, &update(old).to_ne_bytes());
        is_posted.then_some(old)
    }

    /// Posts an interrupt behind the writes that wait. Returns it if none does.
    pub(super) fn signal<F: FnOnce() + Send + 'static>(&self, signal: F) -> Option<F> {
        let queue = self.0.lock();
        if queue.entries.is_empty() {
            return Some(signal);
        }
        if queue.has_room(0) {
            self.add(queue, Job::Signal(Some(Box::new(signal))));
        } else {
            log::warn!("vfio-user: an interrupt is lost, since its VMM's memory takes no writes");
        }
        None
    }

    /// Returns the state of the queue. `None` if nothing is posted. If it is full, the notice follows when it is not.
    pub(super) fn state(&self) -> Option<PostedState> {
        let mut queue = self.0.lock();
        let is_full = queue.is_full();
        let age = queue.entries.front()?.since.elapsed();
        queue.awaits_room = is_full;
        Some(PostedState { is_full, age })
    }

    /// Returns the number of the last entry. `None` if nothing is posted.
    pub(super) fn last(&self) -> Option<u64> {
        let queue = self.0.lock();
        queue.entries.back().map(|last| last.number)
    }

    /// Returns `true` if an entry and all before it are done. If not, the notice follows when they are.
    pub(super) fn has_done(&self, number: u64) -> bool {
        let mut queue = self.0.lock();
        let first = queue.entries.front();
        let is_done = first.is_none_or(|first| first.number > number);
        queue.awaited = (!is_done).then_some(number);
        is_done
    }

    /// Returns how many writes were lost, since their pages were gone.
    pub(super) fn lost(&self) -> u64 {
        self.0.lock().lost
    }

    /// Forgets everything that is posted. A write that the thread carries out it ends.
    pub(super) fn clear(&self) {
        let mut queue = self.0.lock();
        let entries = core::mem::take(&mut queue.entries);
        queue.bytes = 0;
        drop(queue);
        drop(entries);
    }

    /// Returns `true` if an access waited so shortly ago that the memory stays guarded.
    pub(super) fn is_remembered(&self) -> bool {
        self.0.lock().is_remembered()
    }

    /// Returns `true` if nothing is posted and no access has waited for long: then the guard ends.
    pub(super) fn is_over(&self) -> bool {
        let queue = self.0.lock();
        queue.entries.is_empty() && !queue.is_remembered()
    }
}

#[cfg(test)]
mod tests;
