//! A connection of a program: datagrams in, datagrams out, never blocking.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use umad_link::{Answer, MAX_DATAGRAM, SessionId};

use vhca::watch::EventSet;
use vhca_receiver::{ClientSocket, PassedFd};

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
    pub(super) fn send(&self, datagram: &[u8]) -> Sent {
        match send(self.socket.as_fd(), datagram, None) {
            Ok(()) => Sent::Yes,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Sent::Later,
            Err(_) => Sent::Gone,
        }
    }
}

fn send(
    socket: BorrowedFd<'_>,
    datagram: &[u8],
    attachment: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let descriptors = attachment.as_slice();
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let parts = [rustix::io::IoSlice::new(datagram)];
    sendmsg(socket, &parts, &mut ancillary, flags).map(|_| ())
}

/// Answers a call. Whether that can be done is the caller's business, who chose the socket: it must
/// be a Unix socket, and is never waited for.
///
/// # Errors
/// What the system says.
pub(super) fn answer(socket: &impl AsFd, answer: &Answer) -> io::Result<()> {
    if socket_domain(socket)? != AddressFamily::UNIX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = match &answer.attachment {
        None => None,
        Some(bytes) => Some(memory_file(bytes)?),
    };
    let attachment = file.as_ref().map(AsFd::as_fd);
    Ok(send(socket.as_fd(), &answer.datagram, attachment)?)
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
