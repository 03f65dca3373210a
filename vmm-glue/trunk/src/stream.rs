//! A socket that carries the bytes of a session.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ib_trunk::Session;
use ib_vtime::{Duration, Instant};
use rustix::io::Errno;
use rustix::net::sockopt::{set_tcp_nodelay, set_tcp_user_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, getsockname, recv, send};
use socket2::SockRef;

#[cfg(feature = "tls")]
use crate::tls::{Tls, TlsEnd};

/// Bytes that are read at a time.
const READ: usize = 64 << 10;

/// Bytes, and packets, after which one call of [`Stream::receive`] reads no others, so that other trunks and guests have their turns: packets
/// of a few bytes cost as much as large ones.
const MOST: usize = 1 << 20;
const MOST_PACKETS: u64 = 512;

/// Bytes that wait for the connection at most: a packet on VL15 waits behind them.
const WAITING: usize = 64 << 10;

/// Bytes that the kernel has and has not sent, above which a TCP connection takes no others. Without a bound it takes some MiB, and a MAD or
/// a ping behind them crosses a slow wire after the timeout.
const UNSENT: u32 = 128 << 10;

/// First bytes of a TLS connection: an alert or a message of its handshake (RFC 8446, section 5.1). A session begins with its hello,
/// which is kind 0.
const TLS_RECORDS: [u8; 2] = [21, 22];

/// Reason for which a plain connection ends whose other end begins with TLS.
const SPEAKS_TLS: &str =
    "the other end speaks TLS and this one does not: give both ends tls: addresses";

/// Protection of the bytes of a connection.
#[derive(Clone, Debug)]
pub enum Security {
    /// None: the bytes cross as they are.
    Plain,
    /// TLS 1.3, in which both ends prove their identities.
    #[cfg(feature = "tls")]
    Tls(TlsEnd),
}

/// A connected socket that never blocks.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: OwnedFd,
    layer: Layer,
    /// Bytes of the session that the connection has not taken; with TLS the ones to encrypt next.
    waiting: Vec<u8>,
}

#[derive(Debug)]
enum Layer {
    Plain(Plain),
    #[cfg(feature = "tls")]
    Tls(Box<Tls>),
}

#[derive(Debug)]
struct Plain {
    /// Bytes at the start of the waiting ones that the connection has taken.
    sent: usize,
    buffer: Vec<u8>,
    has_begun: bool,
    speaks_tls: bool,
}

impl Stream {
    /// Takes a connected socket. The kernel ends a TCP connection
    /// whose peer acknowledges nothing for `timeout`.
    ///
    /// # Errors
    /// The words of an error of the system.
    pub(crate) fn new(
        socket: OwnedFd,
        timeout: Duration,
        security: &Security,
    ) -> Result<Self, String> {
        set_options(&socket, timeout).map_err(|error| error.to_string())?;
        let layer = match security {
            Security::Plain => Layer::Plain(Plain {
                sent: 0,
                buffer: vec![0; READ],
                has_begun: false,
                speaks_tls: false,
            }),
            #[cfg(feature = "tls")]
            Security::Tls(end) => Layer::Tls(Box::new(Tls::new(end)?)),
        };
        Ok(Self {
            socket,
            layer,
            waiting: Vec::new(),
        })
    }

    /// Moves the handshake on, as often as the socket is ready. Returns `true` once there may be a session: at once without TLS.
    ///
    /// # Errors
    /// The reason for which there will be none, in words.
    pub(crate) fn establish(&mut self) -> Result<bool, String> {
        match &mut self.layer {
            Layer::Plain(_) => Ok(true),
            #[cfg(feature = "tls")]
            Layer::Tls(tls) => establish(&self.socket, tls),
        }
    }

    /// Reads as long as there are bytes, and gives them to the session. Returns `false` if the connection has ended.
    pub(crate) fn receive(&mut self, now: Instant, session: &mut Session) -> bool {
        let mut read = 0;
        let most = packets(session) + MOST_PACKETS;
        loop {
            #[cfg(feature = "tls")]
            if let Layer::Tls(tls) = &mut self.layer {
                tls.deliver(&mut |bytes| session.handle_bytes(now, bytes));
                if tls.is_over() {
                    return false;
                }
            }
            if read >= MOST || packets(session) >= most || session.is_closed() {
                return true;
            }
            let buffer = match &mut self.layer {
                Layer::Plain(plain) => &mut plain.buffer[..],
                #[cfg(feature = "tls")]
                Layer::Tls(tls) => tls.room(),
            };
            let length = match recv(&self.socket, buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return false,
                Ok((_, length)) => length,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => continue,
                Err(_) => return false,
            };
            read += length;
            match &mut self.layer {
                Layer::Plain(plain) => {
                    let bytes = plain.buffer.get(..length).unwrap_or_default();
                    let first = bytes.first().filter(|_| !plain.has_begun);
                    if first.is_some_and(|first| TLS_RECORDS.contains(first)) {
                        plain.speaks_tls = true;
                        return false;
                    }
                    plain.has_begun = true;
                    session.handle_bytes(now, bytes);
                }
                #[cfg(feature = "tls")]
                Layer::Tls(tls) => tls.received(length),
            }
        }
    }

    /// Writes the bytes of the session, as far as the connection takes them. Returns `false` if the connection has ended.
    pub(crate) fn transmit(&mut self, session: &mut Session) -> bool {
        match &mut self.layer {
            Layer::Plain(plain) => plain.transmit(&self.socket, &mut self.waiting, session),
            #[cfg(feature = "tls")]
            Layer::Tls(tls) => loop {
                match flush(&self.socket, tls) {
                    Ok(true) => {}
                    Ok(false) => return true,
                    Err(_) => return false,
                }
                if tls.is_over() || !tls.is_established() {
                    return !tls.is_over();
                }
                self.waiting.clear();
                if !session.poll_transmit(&mut self.waiting, WAITING) {
                    return true;
                }
                tls.encrypt(&self.waiting);
            },
        }
    }

    /// Returns `true` if bytes wait until the connection takes more.
    pub(crate) fn is_waiting(&self) -> bool {
        match &self.layer {
            Layer::Plain(plain) => plain.sent < self.waiting.len(),
            #[cfg(feature = "tls")]
            Layer::Tls(tls) => !tls.unsent().is_empty(),
        }
    }

    /// Returns the reason in words if the connection ended because the ends do not agree on TLS, or one refuses the other.
    pub(crate) fn failure(&self) -> Option<&str> {
        match &self.layer {
            Layer::Plain(plain) => plain.speaks_tls.then_some(SPEAKS_TLS),
            #[cfg(feature = "tls")]
            Layer::Tls(tls) => tls.failure(),
        }
    }
}

impl Plain {
    fn transmit(&mut self, socket: &OwnedFd, waiting: &mut Vec<u8>, session: &mut Session) -> bool {
        loop {
            if self.sent == waiting.len() {
                waiting.clear();
                self.sent = 0;
                if !session.poll_transmit(waiting, WAITING) {
                    return true;
                }
            }
            match send_some(socket, waiting.get(self.sent..).unwrap_or_default()) {
                Ok(0) => return true,
                Ok(length) => self.sent += length,
                Err(_) => return false,
            }
        }
    }
}

/// Returns the number of packets that a session has received.
fn packets(session: &Session) -> u64 {
    let statistics = session.statistics();
    statistics.received_packets + statistics.discarded
}

fn set_options(socket: &OwnedFd, timeout: Duration) -> io::Result<()> {
    if getsockname(socket)?.address_family() != AddressFamily::UNIX {
        set_tcp_nodelay(socket, true)?;
        let most = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        set_tcp_user_timeout(socket, most)?;
        SockRef::from(socket).set_tcp_notsent_lowat(UNSENT)?;
    }
    Ok(())
}

/// Sends bytes, of which there are some. Returns how many of them the connection has taken.
fn send_some(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            sent => return sent,
        }
    }
}

/// Sends records. Returns `true` if all have left.
#[cfg(feature = "tls")]
fn flush(socket: &OwnedFd, tls: &mut Tls) -> Result<bool, Errno> {
    while !tls.unsent().is_empty() {
        match send_some(socket, tls.unsent())? {
            0 => return Ok(false),
            length => tls.transmitted(length),
        }
    }
    Ok(true)
}

#[cfg(feature = "tls")]
fn establish(socket: &OwnedFd, tls: &mut Tls) -> Result<bool, String> {
    const ENDED: &str = "the connection ended during the TLS handshake";

    loop {
        tls.shake();
        // The other end may have closed after its own last words, which are still to be read.
        let is_broken = flush(socket, tls).is_err();
        match (tls.failure(), tls.is_established()) {
            (Some(failure), _) => return Err(failure.to_owned()),
            (None, true) => return Ok(true),
            (None, false) if tls.is_over() => return Err(ENDED.to_owned()),
            (None, false) => {}
        }
        match recv(socket, tls.room(), RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(ENDED.to_owned()),
            Ok((_, length)) => tls.received(length),
            Err(Errno::AGAIN) if is_broken => return Err(ENDED.to_owned()),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(format!("{ENDED}: {error}")),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
