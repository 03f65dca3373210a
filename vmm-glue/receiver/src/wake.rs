//! Wake-ups of the waiters for a reply or an interrupt.
//!
//! The client chooses the waiters: it can add its own end of a socket or an eventfd to 500 epoll instances 500 times, and each
//! reply then runs 250,000 callbacks in the thread that sends it. So wake-ups are timed, and those of a client that are slow are
//! left to the receiver, or to a thread, from then on.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use rustix::time::{ClockId, clock_gettime};

use crate::{PassedFd, message};

/// Time of a wake-up after which its processor time is looked at.
const LONG: Duration = Duration::from_millis(1);

/// Processor time of a slow wake-up, and of the millisecond before it. A thread that had to wait for the processor
/// used none; that of a virtual machine may have been taken from it, so it takes [`STRIKES`] within a second.
const SLOW: Duration = Duration::from_millis(2);

/// Slow wake-ups within a second after which a client's are left to its thread.
const STRIKES: u32 = 3;

/// Processor time of a wake-up after which the client's are left to its thread at once.
const VERY_SLOW: Duration = Duration::from_millis(20);

/// Time for which the thread waits for a client's room.
const ROOM_LIMIT: Duration = Duration::from_millis(100);

/// Time for which wake-ups are made by another thread.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// Wake-ups that wait for their thread. A client with more does not take its replies.
const QUEUE: usize = 1024;

type Job = Box<dyn FnOnce() + Send>;

/// The wake-ups of one user at one socket.
#[derive(Clone, Debug, Default)]
pub struct Wakeups(Arc<Mutex<Thread>>);

/// The thread of slow wake-ups.
#[derive(Debug, Default)]
struct Thread {
    /// `None` while wake-ups are prompt.
    slow_until: Option<Instant>,
    /// Time of the first slow wake-up of late, and how many there were since.
    strikes: Option<(Instant, u32)>,
    jobs: Option<SyncSender<Job>>,
}

thread_local! {
    /// Processor time of this thread at some moment of the last millisecond.
    static SAMPLE: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

impl Wakeups {
    fn lock(&self) -> MutexGuard<'_, Thread> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if wake-ups are to be left to the thread.
    #[must_use]
    pub fn are_slow(&self) -> bool {
        let mut thread = self.lock();
        let is_over = thread
            .slow_until
            .is_some_and(|until| until <= Instant::now());
        if is_over {
            *thread = Thread::default();
        }
        thread.slow_until.is_some()
    }

    /// Returns `true` if something besides a socket has them: there is a client.
    #[must_use]
    pub fn are_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Makes a wake-up on this thread, and notes if it is a slow one.
    pub fn make<T>(&self, wake: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let recent = SAMPLE.get().filter(|(at, _)| begun - *at <= LONG);
        let (_, used) = recent.unwrap_or_else(|| {
            let sample = (begun, processor_time());
            SAMPLE.set(Some(sample));
            sample
        });
        let woken = wake();
        if begun.elapsed() > LONG {
            let used = processor_time().saturating_sub(used);
            if used > SLOW {
                self.note_slow(begun, used);
            }
        }
        woken
    }

    fn note_slow(&self, begun: Instant, used: Duration) {
        let mut thread = self.lock();
        let (since, strikes) = thread.strikes.unwrap_or((begun, 0));
        let within = begun.saturating_duration_since(since) <= Duration::from_secs(1);
        let (since, strikes) = if within {
            (since, strikes + 1)
        } else {
            (begun, 1)
        };
        thread.strikes = Some((since, strikes));
        if strikes < STRIKES && used < VERY_SLOW {
            return;
        }
        if thread.slow_until.is_none() {
            log::warn!(
                "a client has so many waiters that its messages are read and sent beside the service's thread from now on"
            );
        }
        thread.slow_until = Some(Instant::now() + REMEMBERED);
    }

    /// Leaves a wake-up to the thread, behind those before.
    ///
    /// # Errors
    /// [`Errno::NOBUFS`] if too many wait, or there can be no thread.
    pub fn leave(&self, wake: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
        let mut thread = self.lock();
        let jobs = match &thread.jobs {
            Some(jobs) => jobs.clone(),
            None => {
                let (jobs, queue) = sync_channel::<Job>(QUEUE);
                let work = move || queue.into_iter().for_each(with_rest);
                let name = thread::Builder::new().name("wake-ups".to_owned());
                name.spawn(work).map_err(|_| Errno::NOBUFS)?;
                thread.jobs = Some(jobs.clone());
                jobs
            }
        };
        drop(thread);
        match jobs.try_send(Box::new(wake)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(Errno::NOBUFS),
        }
    }
}

impl Wakeups {
    /// Sends a packet with descriptors to a socket that a client passed for its answer, without waiting for room.
    ///
    /// # Errors
    /// Errors of the system, as far as the packet is sent now.
    pub fn answer(&self, to: PassedFd, packet: Vec<u8>, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let answer = move || {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            message::send(&to, [&packet, &[]], &fds, SendFlags::DONTWAIT)
        };
        if self.are_slow() {
            // A program that does not wait for its answer has none.
            return self.leave(move || {
                let _ = answer();
            });
        }
        self.make(answer)
    }

    /// Sends a packet on a channel of ours to a client: now, where there must be room for it, or in its turn.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] if there is no room, and errors of the system.
    pub fn send(&self, channel: &Arc<OwnedFd>, packet: &[u8]) -> Result<(), Errno> {
        if self.are_slow() {
            if !has_room(channel)? {
                return Err(Errno::AGAIN);
            }
            let (channel, packet) = (channel.clone(), packet.to_vec());
            return self.leave(move || send_all(&channel, &packet));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.make(|| send(channel, packet, flags).map(|_| ()))
    }
}

/// Returns `true` if a socket takes bytes now.
pub(crate) fn has_room(socket: &OwnedFd) -> Result<bool, Errno> {
    let mut room = [PollFd::new(socket, PollFlags::OUT)];
    Ok(poll(&mut room, Some(&Timespec::default()))? > 0)
}

/// Carries out work that may be slow, and rests after that for four times the processor time that it took, a second at most: the
/// callbacks of waiters hold a processor against everything else.
pub(crate) fn with_rest(work: impl FnOnce()) {
    let before = processor_time();
    work();
    let used = processor_time().saturating_sub(before);
    if used > SLOW {
        thread::sleep((4 * used).min(Duration::from_secs(1)));
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Sends bytes on a stream, or a packet, and waits for room for [`ROOM_LIMIT`] at most, after which the connection is ended.
pub(crate) fn send_all(socket: &OwnedFd, mut bytes: &[u8]) {
    let deadline = Instant::now() + ROOM_LIMIT;
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOBUFS) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let mut room = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
                let left = Timespec::try_from(left).unwrap_or_default();
                let waited = poll(&mut room, Some(&left));
                if waited == Ok(0) || waited.is_err_and(|error| error != Errno::INTR) {
                    let _ = shutdown(socket, Shutdown::Both);
                    return;
                }
            }
            // The service finds the connection at its end.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn burn(time: Duration) {
        let begun = processor_time();
        while processor_time().saturating_sub(begun) < time {}
    }

    #[test]
    fn a_client_whose_wake_up_takes_long_has_them_made_by_a_thread_of_its_own_in_order() {
        let (slow, quick) = (Wakeups::default(), Wakeups::default());
        slow.make(|| ());
        assert!(!slow.are_slow());
        quick.make(|| burn(Duration::from_millis(4)));
        for _ in 0..STRIKES {
            slow.make(|| burn(Duration::from_millis(4)));
        }
        assert!(slow.are_slow() && !quick.are_slow());
        let very_slow = Wakeups::default();
        very_slow.make(|| burn(VERY_SLOW + SLOW));
        assert!(very_slow.are_slow());
        let (made, seen) = channel();
        for number in 0..100 {
            let made = made.clone();
            let wake = move || made.send((number, thread::current().id())).unwrap();
            slow.leave(wake).unwrap();
        }
        drop(made);
        let seen: Vec<_> = seen.into_iter().collect();
        assert!(seen.iter().map(|(number, _)| *number).eq(0..100));
        assert!(seen.iter().all(|(_, id)| *id != thread::current().id()));
        assert_eq!(seen[0].1, seen[99].1);
    }

    #[test]
    fn a_thread_that_waited_for_the_processor_is_not_slow() {
        let wakeups = Wakeups::default();
        wakeups.make(|| thread::sleep(Duration::from_millis(5)));
        assert!(!wakeups.are_slow());
    }

    #[test]
    fn wake_ups_that_wait_are_bounded() {
        let wakeups = Wakeups::default();
        let (go_on, wait) = channel::<()>();
        let mut left = 0;
        let blocks = move || assert!(wait.recv().is_err());
        wakeups.leave(blocks).unwrap();
        while wakeups.leave(|| ()).is_ok() {
            left += 1;
        }
        // The thread may not have taken the first yet.
        assert!((QUEUE - 1..=QUEUE).contains(&left), "{left}");
        drop(go_on);
    }
}
