//! A connection of a program: requests in, answers out by the sockets that come with them, never blocking.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use verbs_link::{CallReply, MAX_REQUEST};
use vhca::watch::EventSet;
use vhca::world::HostFunction;
use vhca_receiver::{ClientSocket, PassedFd, Wakeups};

use super::channels::Channels;
use super::rings::MappedRings;

/// A request as it came.
#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) bytes: Vec<u8>,
    /// The socket for the answer, and behind it what the request is about.
    pub(super) descriptors: Vec<PassedFd>,
}

/// A VF in the hands of a program.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) at: HostFunction,
    pub(super) rings: Arc<MappedRings>,
    pub(super) channels: Channels,
    pub(super) uid: Option<u32>,
    /// Commands are refused until the rings are sealed.
    pub(super) is_distrusted: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: ClientSocket,
    /// `true` while the socket is watched for requests.
    watched: bool,
    pub(super) holding: Option<Holding>,
}

impl Client {
    pub(super) const fn new(socket: ClientSocket) -> Self {
        Self {
            socket,
            holding: None,
            watched: true,
        }
    }

    /// Returns what the socket is to be watched for, if that is something else than before.
    pub(super) fn new_watch(&mut self) -> Option<EventSet> {
        let wanted = !self.socket.is_asking();
        if core::mem::replace(&mut self.watched, wanted) == wanted {
            return None;
        }
        Some(if wanted {
            EventSet::IN
        } else {
            EventSet::empty()
        })
    }

    /// Returns the next request, `None` if there is none now.
    ///
    /// # Errors
    /// The connection is over, or the program sends more than the protocol has.
    pub(super) fn receive(&mut self) -> io::Result<Option<Datagram>> {
        let mut bytes = vec![0; MAX_REQUEST + 1];
        let Some(received) = self.socket.receive(&mut bytes)? else {
            return Ok(None);
        };
        if received.len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.len > MAX_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes.truncate(received.len);
        Ok(Some(Datagram {
            bytes,
            descriptors: received.fds,
        }))
    }
}

/// Answers a request by the socket that came with it, which must be a Unix socket and is never waited for.
///
/// # Errors
/// Errors of the system.
pub(super) fn answer(
    wakeups: &Wakeups,
    to: PassedFd,
    reply: &CallReply,
    attachments: Vec<OwnedFd>,
) -> io::Result<()> {
    if socket_domain(&to)? != AddressFamily::UNIX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(wakeups.answer(to, reply.encode(), attachments)?)
}
