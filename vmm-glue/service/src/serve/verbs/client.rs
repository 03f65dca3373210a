//! A connection of a program: requests in, answers out by the sockets that come with them, never blocking.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::sockopt::socket_domain;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};
use verbs_link::{CallReply, ChannelId, MAX_REQUEST};
use vhca::world::HostFunction;

use super::rings::MappedRings;

/// Descriptors that come with a request at most.
const MAX_DESCRIPTORS: usize = 2;

/// A request as it came.
#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) bytes: Vec<u8>,
    /// The socket for the answer, and behind it what the request is about.
    pub(super) descriptors: Vec<OwnedFd>,
}

/// A VF in the hands of a program.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) at: HostFunction,
    pub(super) rings: Arc<MappedRings>,
    /// The service's ends of channels.
    pub(super) channels: BTreeMap<ChannelId, OwnedFd>,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) holding: Option<Holding>,
}

impl Client {
    /// Returns the next request, `None` if there is none now.
    ///
    /// # Errors
    /// The connection is over, or the program sends more than the protocol has.
    pub(super) fn receive(&self) -> io::Result<Option<Datagram>> {
        let mut bytes = vec![0; MAX_REQUEST + 1];
        let mut space =
            [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        let received = match recvmsg(&self.socket, &mut buffers, &mut ancillary, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.bytes > MAX_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes.truncate(received.bytes);
        Ok(Some(Datagram { bytes, descriptors }))
    }
}

/// Answers a request by the socket that came with it, which must be a Unix socket and is never waited for.
///
/// # Errors
/// Errors of the system.
pub(super) fn answer(
    socket: &OwnedFd,
    reply: &CallReply,
    attachments: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if socket_domain(socket)? != AddressFamily::UNIX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space =
        [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !attachments.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(attachments));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let datagram = reply.encode();
    let parts = [IoSlice::new(&datagram)];
    sendmsg(socket.as_fd(), &parts, &mut ancillary, flags)?;
    Ok(())
}

/// The two ends of a channel: the service's, and the program's.
pub(super) fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    Ok(socketpair(
        AddressFamily::UNIX,
        kind,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Passes a record on to the program. Returns `false` if the program does not take it.
pub(super) fn pass_on(channel: &OwnedFd, record: &[u8]) -> bool {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    send(channel, record, flags).is_ok()
}
