//! The descriptors of trunks, which are one to their owner.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// Descriptors that one look finds at most.
const BATCH: usize = 64;

/// For what a descriptor is watched besides its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Nothing.
    End,
    /// Bytes to read.
    Bytes,
    /// Bytes to read, and room for bytes.
    Room,
}

impl Interest {
    /// Returns the interest in a connection for which bytes may wait.
    pub(crate) const fn of(is_waiting: bool) -> Self {
        match is_waiting {
            true => Self::Room,
            false => Self::Bytes,
        }
    }

    const fn flags(self) -> EventFlags {
        match self {
            Self::End => EventFlags::empty(),
            Self::Bytes => EventFlags::IN,
            Self::Room => EventFlags::IN.union(EventFlags::OUT),
        }
    }
}

/// A set of descriptors, level-triggered. A descriptor leaves it when it is closed.
#[derive(Debug)]
pub(crate) struct Descriptors(OwnedFd);

impl Descriptors {
    pub(crate) fn new() -> Result<Self, Errno> {
        epoll::create(CreateFlags::CLOEXEC).map(Self)
    }

    pub(crate) fn add(&self, fd: &impl AsFd, interest: Interest) -> Result<(), Errno> {
        epoll::add(&self.0, fd, data(fd), interest.flags())
    }

    /// Watches a descriptor that is there for something else.
    pub(crate) fn watch(&self, fd: &impl AsFd, interest: Interest) {
        // It cannot fail for a descriptor of the set.
        let _ = epoll::modify(&self.0, fd, data(fd), interest.flags());
    }

    /// Returns descriptors that are ready; some others may be.
    pub(crate) fn ready(&self) -> Vec<RawFd> {
        let mut events = [MaybeUninit::<Event>::uninit(); BATCH];
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A look that a signal ends comes again: the set stays ready.
        let ready = epoll::wait(&self.0, &mut events, Some(&none));
        let number = |event: &Event| RawFd::try_from(event.data.u64()).ok();
        ready.map_or(Vec::new(), |(ready, _)| {
            ready.iter().filter_map(number).collect()
        })
    }
}

fn data(fd: &impl AsFd) -> EventData {
    let fd = fd.as_fd().as_raw_fd();
    EventData::new_u64(u64::try_from(fd).unwrap_or(u64::MAX))
}

impl AsFd for Descriptors {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
