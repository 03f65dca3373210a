//! The thread of a device: it signals interrupts, and notices that the service is gone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, read, write};

use crate::error::LinkError;

/// Returns an eventfd without a signal.
pub(crate) fn event() -> rustix::io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
}

/// Takes the signals of an eventfd. Returns `true` if there were any.
pub(crate) fn drain(event: &OwnedFd) -> bool {
    read(event, &mut [0; 8]).is_ok()
}

/// A device as its thread knows it.
pub(crate) trait Watched: Send + Sync + 'static {
    /// Returns the eventfds of the vectors that the thread signals.
    fn signals(&self) -> &[(u16, OwnedFd)];

    /// Signals a vector whose eventfd is ready.
    fn signal(&self, vector: u16, signal: &OwnedFd);

    /// Returns the eventfd for changes of doorbells.
    fn changed(&self) -> &OwnedFd;

    /// Follows a change of doorbells, whose eventfd is ready.
    fn handle_changed(&self);

    /// Ends the connection, which the service has closed.
    fn end(&self, error: LinkError);
}

/// The thread, which ends when this is dropped.
pub(crate) struct Watcher {
    stop: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watcher {
    /// Starts the thread of a device, whose socket is `socket`.
    pub(crate) fn start(watched: Arc<impl Watched>, socket: OwnedFd) -> io::Result<Self> {
        let stop = Arc::new(event()?);
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("vhca-remote".to_owned())
            .spawn(move || run(&*watched, &socket, &stopped))?;
        Ok(Self {
            stop,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Ends the thread, and waits for that unless it is the one that calls.
    pub(crate) fn stop(&self) {
        // Its counter is far from full.
        let _ = write(&*self.stop, &1_u64.to_ne_bytes());
        let thread = self.thread.lock();
        let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|it| it.thread().id() != thread::current().id()) {
            // It ends by a panic only if a call of the VMM's panicked in it.
            let _ = thread.join();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(device: &impl Watched, socket: &OwnedFd, stop: &OwnedFd) {
    loop {
        let events = device.signals().iter().map(|(_, event)| event.as_fd());
        let mut watched: Vec<PollFd<'_>> = [stop.as_fd(), device.changed().as_fd()]
            .into_iter()
            .chain(events)
            .map(|event| PollFd::from_borrowed_fd(event, PollFlags::IN))
            .collect();
        // Replies are for the threads that wait for them.
        watched.push(PollFd::new(socket, PollFlags::RDHUP));
        match poll(&mut watched, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return device.end(LinkError::Socket(error)),
        }
        let mut ready = watched.iter().map(|fd| !fd.revents().is_empty());
        if ready.next() == Some(true) {
            return;
        }
        if ready.next() == Some(true) {
            device.handle_changed();
        }
        for ((vector, event), is_ready) in device.signals().iter().zip(&mut ready) {
            if is_ready {
                device.signal(*vector, event);
            }
        }
        if ready.next() == Some(true) {
            return device.end(LinkError::Closed);
        }
    }
}
