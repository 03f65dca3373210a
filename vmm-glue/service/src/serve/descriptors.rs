//! Descriptors of the process: as many as the system allows, and some kept in reserve.
//!
//! The kernel gives the lowest free number to each descriptor, so one with a high number tells that few are left. Two
//! reserves keep programs from blocking each other when all wait for descriptors that the others hold: the highest
//! numbers are left to descriptors in flight (those that come with a message, and files that are passed on), those below
//! to connections that end with their answer.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Numbers for descriptors in flight, if an eighth of all are as many.
const IN_FLIGHT: RawFd = 8;

/// Numbers for connections that end with their answer, if a quarter of all are as many.
const BRIEF: RawFd = 16;

/// Number of descriptors that the process may have, as it was when this was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorLimit(RawFd);

impl DescriptorLimit {
    /// Returns the limit of the process.
    pub(super) fn current() -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.and_then(|limit| RawFd::try_from(limit).ok());
        Self(limit.unwrap_or(RawFd::MAX))
    }

    fn in_flight(self) -> RawFd {
        IN_FLIGHT.min(self.0 / 8)
    }

    /// Checks that one more connection leaves the reserve for descriptors in flight.
    pub(super) fn admit(self, any: impl AsFd) -> Result<(), Errno> {
        // The copy has the number that a connection would get.
        let copy = fcntl_dupfd_cloexec(&any, 0)?;
        if copy.as_raw_fd() < self.0 - self.in_flight() {
            Ok(())
        } else {
            Err(Errno::MFILE)
        }
    }

    /// Returns `true` if a connection with this number may stay open longer than for an answer.
    pub(super) fn may_stay(self, number: RawFd) -> bool {
        number < self.0 - self.in_flight() - BRIEF.min(self.0 / 4)
    }
}

/// Raises the limit to what the system allows: a program takes one descriptor for each file that it has open, a VMM
/// several for each VF. Where that fails, they are turned away earlier.
pub(super) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        log::warn!("cannot raise the limit on descriptors: {error}");
    }
}
