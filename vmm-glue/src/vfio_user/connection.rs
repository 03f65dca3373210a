//! A client's socket: whole messages in, bytes out, never waiting.

use core::mem::MaybeUninit;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};
use thiserror::Error;

use super::codec::{Assembler, HeaderFlags, MAX_FDS, Message, ProtocolError};

/// Bytes of replies that wait for a client, beyond which nothing more is read of it.
const MAX_UNSENT: usize = 256 << 10;

/// Messages that are read while an answer is waited for.
const MAX_WAITING: usize = 64;

/// Why a connection is over.
#[derive(Debug, Error)]
pub enum ConnectionEnd {
    /// The client closed it, or is gone.
    #[error("it hung up")]
    HungUp,
    /// It hung up, leaving a message half said.
    #[error("it hung up in the middle of a message")]
    HungUpAmid,
    /// What it says makes no sense.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Descriptors got lost: it sent more than the protocol has, or this process can have no more.
    #[error("descriptors that it sent were lost, for which there was no room")]
    LostDescriptors,
    /// The system says so.
    #[error("its socket fails: {0}")]
    Failed(Errno),
}

/// A client's socket.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    assembler: Assembler<OwnedFd>,
    unsent: VecDeque<u8>,
    /// What came while an answer was waited for.
    waiting: VecDeque<Message<OwnedFd>>,
    /// Answers that did not come in time, and may come yet.
    late: u32,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl From<Connection> for OwnedFd {
    fn from(connection: Connection) -> Self {
        connection.socket
    }
}

impl Connection {
    /// A connection over a stream socket, which need not be non-blocking.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            assembler: Assembler::new(),
            unsent: VecDeque::new(),
            waiting: VecDeque::new(),
            late: 0,
        }
    }

    /// The next message, `None` if none is complete.
    ///
    /// # Errors
    /// [`ConnectionEnd`].
    pub fn receive(&mut self) -> Result<Option<Message<OwnedFd>>, ConnectionEnd> {
        if let Some(message) = self.waiting.pop_front() {
            return Ok(Some(message));
        }
        loop {
            let message = self.read()?;
            let is_late = message.as_ref().is_some_and(is_reply) && self.late > 0;
            if !is_late {
                return Ok(message);
            }
            self.late -= 1;
        }
    }

    /// Whether [`Self::receive`] has messages that the socket has no more.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends a command of ours and waits for its answer, until then at most. Other messages that come meanwhile wait
    /// for [`Self::receive`].
    pub(super) fn ask(
        &mut self,
        request: &[u8],
        id: u16,
        deadline: Instant,
    ) -> Option<Message<OwnedFd>> {
        self.send(request).ok()?;
        while self.has_unsent() {
            self.wait(PollFlags::OUT, deadline)?;
            self.send_unsent().ok()?;
        }
        let answer = self.answer(id, deadline);
        if answer.is_none() {
            self.late += 1;
        }
        answer
    }

    fn answer(&mut self, id: u16, deadline: Instant) -> Option<Message<OwnedFd>> {
        loop {
            match self.read().ok()? {
                None => self.wait(PollFlags::IN, deadline)?,
                Some(message) if is_reply(&message) && message.header.id.get() == id => {
                    return Some(message);
                }
                Some(message) if is_reply(&message) && self.late > 0 => self.late -= 1,
                Some(message) => {
                    self.waiting.push_back(message);
                    if self.waiting.len() == MAX_WAITING {
                        return None;
                    }
                }
            }
        }
    }

    /// Waits until the socket can be read or written, or it is too late.
    fn wait(&self, what: PollFlags, deadline: Instant) -> Option<()> {
        let left = deadline.checked_duration_since(Instant::now())?;
        let left = Timespec::try_from(left).ok()?;
        let mut fds = [PollFd::new(&self.socket, what)];
        match poll(&mut fds, Some(&left)) {
            Ok(0) => None,
            Ok(_) | Err(Errno::INTR) => Some(()),
            Err(_) => None,
        }
    }

    /// The next message from the socket.
    fn read(&mut self) -> Result<Option<Message<OwnedFd>>, ConnectionEnd> {
        loop {
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut room);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let mut space = [IoSliceMut::new(self.assembler.space())];
            let received = match recvmsg(&self.socket, &mut space, &mut ancillary, flags) {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(Errno::CONNRESET) => return Err(self.hung_up()),
                Err(error) => return Err(ConnectionEnd::Failed(error)),
            };
            let fds = ancillary.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let message = self.assembler.filled(received.bytes, fds.flatten())?;
            if received.flags.contains(ReturnFlags::CTRUNC) {
                return Err(ConnectionEnd::LostDescriptors);
            }
            if received.bytes == 0 {
                return Err(self.hung_up());
            }
            if message.is_some() {
                return Ok(message);
            }
        }
    }

    fn hung_up(&self) -> ConnectionEnd {
        if self.assembler.is_amid() {
            ConnectionEnd::HungUpAmid
        } else {
            ConnectionEnd::HungUp
        }
    }

    /// Whether more should be read: a client that does not take its replies is heard no more.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.unsent.len() <= MAX_UNSENT
    }

    /// Whether bytes wait until the client takes some.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends bytes, now or when the client takes them.
    ///
    /// # Errors
    /// [`ConnectionEnd`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), ConnectionEnd> {
        self.send_unsent()?;
        let sent = if self.has_unsent() {
            0
        } else {
            self.send_some(bytes)?
        };
        self.unsent.extend(bytes.get(sent..).unwrap_or_default());
        Ok(())
    }

    /// Sends what waits, as far as the client takes it.
    ///
    /// # Errors
    /// [`ConnectionEnd`].
    pub fn send_unsent(&mut self) -> Result<(), ConnectionEnd> {
        while !self.unsent.is_empty() {
            let sent = self.send_some(self.unsent.as_slices().0)?;
            if sent == 0 {
                return Ok(());
            }
            self.unsent.drain(..sent);
        }
        self.unsent.shrink_to(4096);
        Ok(())
    }

    /// How many bytes the socket takes now.
    fn send_some(&self, bytes: &[u8]) -> Result<usize, ConnectionEnd> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            match send(&self.socket, rest, flags) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => break,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ConnectionEnd::HungUp),
                Err(error) => return Err(ConnectionEnd::Failed(error)),
            }
        }
        Ok(sent)
    }
}

fn is_reply(message: &Message<OwnedFd>) -> bool {
    message.header.flags().contains(HeaderFlags::REPLY)
}
