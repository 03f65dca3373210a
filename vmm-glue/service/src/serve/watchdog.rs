//! A thread that sees the service's thread stand, and what for.
//!
//! The service does no kernel work that may wait for a client: see the table of such work in SECURITY.md. Where that fails, or
//! where it is known not to hold (pages of a VMM's or a program's memory), the watchdog names the client in the log and shuts its
//! connection down, so that it is the last one to do so. It cannot wake the thread.
//!
//! `unsafe`: the client's socket by its number.
#![expect(
    unsafe_code,
    reason = "the thread that owns the socket stands, so only the number can be published"
)]

use core::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{Shutdown, shutdown};
use vhca_receiver::{Activity, Work, published};

use crate::credentials::{Credentials, of_peer};

/// Pause between two looks.
const PERIOD: Duration = Duration::from_millis(500);

/// Looks at the same activity after the first, at which the service's thread counts as one that stands: a second. Looks are counted
/// rather than time, because a process that is stopped and goes on finds much time gone by.
const LOOKS: u32 = 2;

/// Clients that are remembered.
const KEPT: usize = 64;

/// A client for which the service stood.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    activity: Activity,
    peer: Option<Credentials>,
}

/// Clients for which the service stood and which were not noted at their VFs yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Stalls(Arc<Mutex<Vec<Stall>>>);

impl Stalls {
    /// Starts the thread.
    pub(super) fn watch(&self) -> io::Result<()> {
        let stalls = self.clone();
        let watch = move || {
            let mut watchdog = Watchdog::default();
            loop {
                thread::sleep(PERIOD);
                if let Some(activity) = watchdog.look(published()) {
                    stalls.cut_off(activity);
                }
            }
        };
        let thread = thread::Builder::new().name("watchdog".to_owned());
        thread.spawn(watch).map(drop)
    }

    fn cut_off(&self, activity: Activity) {
        // SAFETY: The thread that owns the socket is in the kernel for it, and closes none meanwhile. If it went on in this
        // moment, another client loses its connection at worst.
        let socket = unsafe { BorrowedFd::borrow_raw(activity.client) };
        let peer = of_peer(socket).ok();
        let stall = Stall { activity, peer };
        log::error!("the service stands still for {stall}: its connection is shut down");
        // A listening socket is for others, too.
        if socket_acceptconn(socket) != Ok(true) {
            // A socket that is not connected needs no shutdown.
            let _ = shutdown(socket, Shutdown::Both);
        }
        let mut stalls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stalls.len() < KEPT {
            stalls.push(stall);
        }
    }

    /// Removes and returns the stall that the client of a socket caused, if it did.
    pub(super) fn take(&self, client: std::os::fd::RawFd) -> Option<Stall> {
        let mut stalls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = stalls
            .iter()
            .position(|stall| stall.activity.client == client)?;
        Some(stalls.swap_remove(at))
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.activity.work {
            Work::Message => "a message",
            Work::Page => "a page of memory",
            Work::ProcessMemory => "memory",
            Work::WakeUp => "a wake-up",
        })?;
        match self.peer {
            Some(Credentials {
                pid: Some(pid),
                uid,
            }) => write!(
                f,
                " of process {} of user {}",
                pid.as_raw_nonzero(),
                uid.as_raw()
            ),
            Some(Credentials { pid: None, uid }) => {
                write!(f, " of a process of user {}", uid.as_raw())
            }
            None => f.write_str(" of a client"),
        }
    }
}

/// Compares successive looks at the published work.
#[derive(Debug, Default)]
struct Watchdog {
    last: Option<Activity>,
    /// Looks that found the same activity again.
    again: u32,
}

impl Watchdog {
    /// Returns the activity at which the thread stands, once.
    fn look(&mut self, published: Option<Activity>) -> Option<Activity> {
        let is_same = published.is_some() && self.last == published;
        self.last = published;
        self.again = if is_same {
            self.again.saturating_add(1)
        } else {
            0
        };
        published.filter(|_| self.again == LOOKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(serial: u32) -> Option<Activity> {
        Some(Activity {
            serial,
            work: Work::Page,
            client: 9,
        })
    }

    #[test]
    fn a_thread_that_stands_is_noticed_once_and_one_that_goes_on_is_not() {
        let mut watchdog = Watchdog::default();
        for (published, noticed) in [
            (None, None),
            (at(1), None),
            (at(1), None),
            (at(1), at(1)),
            (at(1), None),
            (at(2), None),
            (at(2), None),
            (at(4), None),
            (None, None),
            (None, None),
            (None, None),
            (at(7), None),
            (at(7), None),
            (at(7), at(7)),
        ] {
            assert_eq!(watchdog.look(published), noticed);
        }
    }

    #[test]
    fn the_client_for_which_the_service_stands_is_named_and_loses_its_connection() {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        use std::os::unix::net::UnixStream;

        let (service, mut client) = UnixStream::pair().unwrap();
        let fd = service.as_raw_fd();
        let stalls = Stalls::default();
        stalls.cut_off(Activity {
            serial: 1,
            work: Work::Page,
            client: fd,
        });
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert!(stalls.take(fd + 1).is_none());
        let own = std::process::id();
        let stall = stalls.take(fd).unwrap().to_string();
        assert!(
            stall.starts_with(&format!("a page of memory of process {own} of user")),
            "{stall}"
        );
        assert!(stalls.take(fd).is_none());
    }
}
