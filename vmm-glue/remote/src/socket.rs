//! The socket to a service: whole messages in and out, until a deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use core::mem::MaybeUninit;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use vhca_vfio_user_codec::{ANNOUNCED_FDS, Assembler, Message};

use crate::error::LinkError;

/// Descriptors that are taken with one message, for the doorbells of a VF.
pub(crate) const MOST_FDS: usize = 64;

/// The socket to a service.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: UnixStream,
    assembler: Assembler<OwnedFd>,
}

impl Socket {
    /// Connects to a service.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        Self::new(UnixStream::connect(path)?)
    }

    /// Takes a connected socket.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            assembler: Assembler::new(MOST_FDS),
        })
    }

    /// Returns another handle of the socket, to be watched.
    pub(crate) fn watched(&self) -> io::Result<OwnedFd> {
        self.stream.as_fd().try_clone_to_owned()
    }

    /// Closes both directions, so that a thread that watches another handle sees the end.
    pub(crate) fn shut(&self) {
        // It may be closed by the service already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Sends a message; descriptors go with its first byte.
    pub(crate) fn send(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<(), LinkError> {
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            let some = match sent {
                0 if !fds.is_empty() => self.send_with(rest, fds),
                _ => send(&self.stream, rest, SendFlags::NOSIGNAL),
            };
            match some {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline)?,
                Err(error) => return Err(failure(error)),
            }
        }
        Ok(())
    }

    fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ANNOUNCED_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        let parts = [IoSlice::new(bytes)];
        sendmsg(&self.stream, &parts, &mut ancillary, SendFlags::NOSIGNAL)
    }

    /// Waits for the next message.
    pub(crate) fn receive(&mut self, deadline: Deadline) -> Result<Message<OwnedFd>, LinkError> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(self.assembler.space())];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = match recvmsg(&self.stream, &mut parts, &mut ancillary, flags) {
                Ok(received) if received.bytes > 0 => received.bytes,
                Ok(_) => return Err(LinkError::Closed),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    self.wait(PollFlags::IN, deadline)?;
                    continue;
                }
                Err(error) => return Err(failure(error)),
            };
            let rights = ancillary.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let fds: Vec<OwnedFd> = rights.flatten().collect();
            if let Some(message) = self.assembler.filled(received, fds)? {
                return Ok(message);
            }
        }
    }

    fn wait(&self, what: PollFlags, deadline: Deadline) -> Result<(), LinkError> {
        let left = deadline.left().ok_or(LinkError::TimedOut(deadline.after))?;
        match poll(&mut [PollFd::new(&self.stream, what)], Some(&left)) {
            Ok(0) => Err(LinkError::TimedOut(deadline.after)),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(LinkError::Socket(error)),
        }
    }
}

const fn failure(error: Errno) -> LinkError {
    match error {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => LinkError::Closed,
        error => LinkError::Socket(error),
    }
}

/// The end of the time that a call waits for a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    after: core::time::Duration,
}

impl Deadline {
    /// Returns the deadline after a time from now on.
    pub(crate) fn after(after: core::time::Duration) -> Self {
        let at = Instant::now() + after;
        Self { at, after }
    }

    fn left(self) -> Option<Timespec> {
        let left = self.at.checked_duration_since(Instant::now())?;
        Timespec::try_from(left).ok()
    }
}
