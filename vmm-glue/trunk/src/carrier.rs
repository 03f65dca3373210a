//! A connection that carries the records of a session.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ib_trunk::Session;
use ib_vtime::{Duration, Instant};

use crate::parts::RingParts;
use crate::ring::Signals;
use crate::rings::Rings;
use crate::stream::{Security, Stream};

/// A connection that never blocks.
#[derive(Debug)]
pub struct Carrier(Way);

#[derive(Debug)]
enum Way {
    Stream(Stream),
    Rings(Box<Rings>),
}

impl Carrier {
    /// Takes a connected socket of [`TrunkListener`](crate::TrunkListener) or [`Door`](crate::Door). The kernel ends a TCP connection
    /// whose peer acknowledges nothing for `timeout`.
    ///
    /// # Errors
    /// The words of an error of the system.
    pub fn new(socket: OwnedFd, timeout: Duration, security: &Security) -> Result<Self, String> {
        Stream::new(socket, timeout, security).map(|stream| Self(Way::Stream(stream)))
    }

    /// Takes queues in shared memory.
    ///
    /// # Errors
    /// The words of an error of the system, or the rule that the other end broke.
    pub fn over_rings(parts: RingParts, signals: &Signals) -> Result<Self, String> {
        let rings = Rings::new(parts, signals).map_err(|error| error.to_string())?;
        Ok(Self(Way::Rings(Box::new(rings))))
    }

    /// Moves the handshake on, as often as the connection is ready. Returns `true` once there may be a session: at once without TLS.
    ///
    /// # Errors
    /// The reason for which there will be none, in words.
    pub fn establish(&mut self) -> Result<bool, String> {
        match &mut self.0 {
            Way::Stream(stream) => stream.establish(),
            Way::Rings(_) => Ok(true),
        }
    }

    /// Reads as long as there are bytes, and gives them to the session. Returns `false` if the connection has ended.
    pub fn receive(&mut self, now: Instant, session: &mut Session) -> bool {
        match &mut self.0 {
            Way::Stream(stream) => stream.receive(now, session),
            Way::Rings(rings) => rings.receive(now, session),
        }
    }

    /// Returns `true` if [`Self::look`] is to be called soon: the descriptor may not become ready.
    pub(crate) fn is_awake(&self) -> bool {
        matches!(&self.0, Way::Rings(rings) if rings.is_awake())
    }

    /// Sets for how long after traffic queues are looked at in place of a wait for signals, and looks at them as long as [`Self::is_awake`]
    /// says so. Sockets have no such time. Returns `false` if the connection has ended.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        session: &mut Session,
        busy_poll: Duration,
    ) -> bool {
        let Way::Rings(rings) = &mut self.0 else {
            return true;
        };
        rings.set_busy_poll(busy_poll);
        !rings.is_awake() || rings.look(now, session)
    }

    /// Writes the bytes of the session, as far as the connection takes them. Returns `false` if the connection has ended.
    pub fn transmit(&mut self, session: &mut Session) -> bool {
        match &mut self.0 {
            Way::Stream(stream) => stream.transmit(session),
            Way::Rings(rings) => rings.transmit(session),
        }
    }

    /// Returns `true` if bytes wait until the connection takes more: until its descriptor can be written, or over queues, read.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        match &self.0 {
            Way::Stream(stream) => stream.is_waiting(),
            Way::Rings(rings) => rings.is_waiting(),
        }
    }

    /// Returns the reason in words if the connection ended because the ends do not agree on TLS, or one refuses the other, or broke the
    /// rules of queues.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match &self.0 {
            Way::Stream(stream) => stream.failure(),
            Way::Rings(rings) => rings.failure(),
        }
    }
}

impl AsFd for Carrier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Way::Stream(stream) => stream.as_fd(),
            Way::Rings(rings) => rings.as_fd(),
        }
    }
}
