//! A connection of a program: datagrams in, datagrams out, never blocking.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use umad_link::{Answer, MAX_DATAGRAM, SessionId};

use vhca::watch::EventSet;
use vhca_receiver::{ClientSocket, PassedFd, Work, during};

/// What a client sent.
#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) bytes: Vec<u8>,
    /// The socket for an answer.
    pub(super) answer_to: Option<PassedFd>,
}

/// What became of a datagram that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is on its way.
    Yes,
    /// There is no room now.
    Later,
    /// There is nobody any more.
    Gone,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: ClientSocket,
    pub(super) session: SessionId,
    /// What the socket is watched for.
    pub(super) watched: EventSet,
}

impl Client {
    /// The next datagram, `None` if there is none now.
    ///
    /// # Errors
    /// The connection is over, or the client sends more than the protocol has.
    pub(super) fn receive(&mut self) -> io::Result<Option<Datagram>> {
        let mut bytes = vec![0; MAX_DATAGRAM + 1];
        let Some(received) = self.socket.receive(&mut bytes)? else {
            return Ok(None);
        };
        if received.len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.len > MAX_DATAGRAM {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes.truncate(received.len);
        Ok(Some(Datagram {
            bytes,
            answer_to: received.fds.into_iter().next(),
        }))
    }

    /// Sends a datagram.
    pub(super) fn send(&mut self, datagram: &[u8]) -> Sent {
        match self.socket.send(datagram) {
            Ok(_) => Sent::Yes,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Sent::Later,
            Err(_) => Sent::Gone,
        }
    }

    /// Answers a call. Whether that can be done is the caller's business, who chose the socket: it must
    /// be a Unix socket, and is never waited for.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn answer(&self, to: PassedFd, answer: Answer) -> io::Result<()> {
        if socket_domain(&to)? != AddressFamily::UNIX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = answer.attachment.as_deref().map(memory_file).transpose()?;
        let files = file.into_iter().collect();
        let wakeups = self.socket.wakeups();
        Ok(during(Work::WakeUp, self.socket.as_raw_fd(), || {
            wakeups.answer(to, answer.datagram, files)
        })?)
    }
}

fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create(c"umad-message", MemfdFlags::CLOEXEC)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    Ok(file)
}
