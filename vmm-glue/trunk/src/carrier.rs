//! A connection that carries the bytes of a session.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ib_trunk::Session;
use ib_vtime::{Duration, Instant};
use rustix::io::Errno;
use rustix::net::sockopt::{set_tcp_nodelay, set_tcp_user_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, getsockname, recv, send};

/// Bytes that are read at a time.
const READ: usize = 64 << 10;

/// Bytes that are read in one call of [`Carrier::receive`], so that others have their turns.
const MOST: usize = 1 << 20;

/// Bytes that wait for the connection at most: a packet on VL15 waits behind them.
const WAITING: usize = 64 << 10;

/// A connection that never blocks.
#[derive(Debug)]
pub struct Carrier {
    socket: OwnedFd,
    /// Bytes of the session that the connection has not taken.
    waiting: Vec<u8>,
    /// Bytes at the start of them that it has taken.
    sent: usize,
    buffer: Vec<u8>,
}

impl Carrier {
    /// Takes a connected socket of [`TrunkListener`](crate::TrunkListener) or [`Door`](crate::Door). The kernel ends a TCP connection
    /// whose peer acknowledges nothing for `timeout`.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(socket: OwnedFd, timeout: Duration) -> Result<Self, Errno> {
        if getsockname(&socket)?.address_family() != AddressFamily::UNIX {
            set_tcp_nodelay(&socket, true)?;
            let most = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
            set_tcp_user_timeout(&socket, most)?;
        }
        Ok(Self {
            socket,
            waiting: Vec::new(),
            sent: 0,
            buffer: vec![0; READ],
        })
    }

    /// Reads as long as there are bytes, and gives them to the session. Returns `false` if the connection has ended.
    pub fn receive(&mut self, now: Instant, session: &mut Session) -> bool {
        let mut read = 0;
        while read < MOST && !session.is_closed() {
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return false,
                Ok((_, length)) => {
                    session.handle_bytes(now, self.buffer.get(..length).unwrap_or_default());
                    read += length;
                }
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Writes the bytes of the session, as far as the connection takes them. Returns `false` if the connection has ended.
    pub fn transmit(&mut self, session: &mut Session) -> bool {
        loop {
            if self.sent == self.waiting.len() {
                self.waiting.clear();
                self.sent = 0;
                if !session.poll_transmit(&mut self.waiting, WAITING) {
                    return true;
                }
            }
            let rest = self.waiting.get(self.sent..).unwrap_or_default();
            match send(
                &self.socket,
                rest,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(length) => self.sent += length,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Returns `true` if bytes wait until the connection takes more.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.sent < self.waiting.len()
    }

    /// Returns the socket.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

impl AsFd for Carrier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
