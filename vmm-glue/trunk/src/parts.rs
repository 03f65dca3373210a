//! The parts of a connection over queues, and the message in which a door passes them on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use zerocopy::network_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ring::QueueAddresses;
use crate::ring::memory::{self, Plan, QUEUES};

/// The end of a trunk over queues: the driver has made them, and the device serves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Driver,
    Device,
}

/// The parts of a connection over queues, as the process has them that made or took it.
#[derive(Debug)]
pub struct RingParts {
    pub(crate) side: Side,
    /// A descriptor that hangs up with the other end.
    pub(crate) lifeline: OwnedFd,
    pub(crate) memory: OwnedFd,
    /// Address of the first byte of the memory.
    pub(crate) base: u64,
    /// Bytes of the memory.
    pub(crate) bytes: u64,
    pub(crate) queues: [QueueAddresses; QUEUES],
    /// Eventfds by which the driver notifies the device, for each queue.
    pub(crate) kicks: [OwnedFd; QUEUES],
    /// Eventfds by which the device notifies the driver, for each queue.
    pub(crate) calls: [OwnedFd; QUEUES],
}

impl RingParts {
    /// Descriptors among the parts: the lifeline, the memory, and the eventfds.
    pub(crate) const DESCRIPTORS: usize = 2 + 2 * QUEUES;

    /// Makes both ends within a process: the parts of the driver, and of the device.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (own, other) = UnixStream::pair()?;
        let plan = Plan::new();
        let file = memory::create(plan.bytes)?;
        let make = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let four = || Ok::<_, io::Error>([make()?, make()?, make()?, make()?]);
        let driver = Self {
            side: Side::Driver,
            lifeline: own.into(),
            memory: file,
            base: memory::BASE,
            bytes: plan.bytes,
            queues: plan.queues.map(|(addresses, _)| addresses),
            kicks: four()?,
            calls: four()?,
        };
        let device = Self {
            side: Side::Device,
            lifeline: other.into(),
            memory: driver.memory.try_clone()?,
            kicks: clone(&driver.kicks)?,
            calls: clone(&driver.calls)?,
            ..driver
        };
        Ok((driver, device))
    }
}

fn clone([a, b, c, d]: &[OwnedFd; QUEUES]) -> io::Result<[OwnedFd; QUEUES]> {
    Ok([
        a.try_clone()?,
        b.try_clone()?,
        c.try_clone()?,
        d.try_clone()?,
    ])
}

impl RingParts {
    /// Returns another descriptor of the memory, for a program that looks at it.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn memory(&self) -> io::Result<OwnedFd> {
        self.memory.try_clone()
    }

    /// Returns the places in the memory at which the queues begin: packets to the device and to the driver, then other records to the device
    /// and to the driver.
    #[must_use]
    pub fn places(&self) -> [u64; QUEUES] {
        let place = |queue: QueueAddresses| queue.descriptors.saturating_sub(self.base);
        self.queues.map(place)
    }
}

/// A queue in a message. Network byte order.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct QueueBody {
    size: U16,
    descriptors: U64,
    available: U64,
    used: U64,
}

/// A message with parts, between a door and its service. Network byte order.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PartsBody {
    /// 0 for the driver, 1 for the device.
    side: U16,
    base: U64,
    bytes: U64,
    queues: [QueueBody; QUEUES],
}

impl RingParts {
    /// Returns the message with the parts, and the descriptors that go along.
    pub(crate) fn to_message(&self) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        let body = PartsBody {
            side: U16::new(match self.side {
                Side::Driver => 0,
                Side::Device => 1,
            }),
            base: U64::new(self.base),
            bytes: U64::new(self.bytes),
            queues: self.queues.map(|queue| QueueBody {
                size: U16::new(queue.size),
                descriptors: U64::new(queue.descriptors),
                available: U64::new(queue.available),
                used: U64::new(queue.used),
            }),
        };
        let eventfds = self.kicks.iter().chain(&self.calls);
        let descriptors = [&self.lifeline, &self.memory].into_iter().chain(eventfds);
        let descriptors = descriptors.map(AsFd::as_fd);
        (body.as_bytes().to_vec(), descriptors.collect())
    }

    /// Reads a message with parts. Returns `None` for one of another form.
    pub(crate) fn from_message(
        body: &[u8],
        lifeline: OwnedFd,
        mut others: impl Iterator<Item = OwnedFd>,
    ) -> Option<Self> {
        let body = PartsBody::read_from_bytes(body).ok()?;
        let memory = others.next()?;
        let mut four = || {
            let four: Vec<_> = others.by_ref().take(QUEUES).collect();
            <[OwnedFd; QUEUES]>::try_from(four).ok()
        };
        Some(Self {
            side: match body.side.get() {
                0 => Side::Driver,
                _ => Side::Device,
            },
            lifeline,
            memory,
            base: body.base.get(),
            bytes: body.bytes.get(),
            queues: body.queues.map(|queue| QueueAddresses {
                size: queue.size.get(),
                descriptors: queue.descriptors.get(),
                available: queue.available.get(),
                used: queue.used.get(),
            }),
            kicks: four()?,
            calls: four()?,
        })
    }
}
