//! A client's socket: whole messages in, bytes out, never waiting.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use thiserror::Error;
use vhca_receiver::{ClientSocket, PassedFd};

use super::unread::unread;

use vhca_vfio_user_codec::{ANNOUNCED_FDS, Assembler, HeaderFlags, Message, ProtocolError};

/// Bytes of replies that wait for a client, beyond which nothing more is read of it.
const MAX_UNSENT: usize = 256 << 10;

/// Messages that are read while an answer is waited for.
const MAX_WAITING: usize = 64;

/// Descriptors that come with them.
const MAX_WAITING_FDS: usize = 64;

/// Descriptors for which there is room in one call. More are lost, and with them the connection.
const FDS_ROOM: usize = 64;

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
    socket: ClientSocket,
    assembler: Assembler<PassedFd>,
    unsent: VecDeque<u8>,
    /// What came while an answer was waited for.
    waiting: VecDeque<Message<PassedFd>>,
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

impl From<Connection> for ClientSocket {
    fn from(connection: Connection) -> Self {
        connection.socket
    }
}

impl Connection {
    /// A connection over a stream socket, which need not be non-blocking, to a client that has a function of so many
    /// interrupts. A message of it may bring an eventfd for each of them, beyond what is announced: Cloud Hypervisor
    /// sends them all at once, whatever was announced.
    #[must_use]
    pub fn new(socket: ClientSocket, interrupts: u16) -> Self {
        let most_fds = ANNOUNCED_FDS.max(interrupts.into());
        Self::with_fds(socket, most_fds.min(FDS_ROOM))
    }

    /// A connection to a client that has nothing, and of which no descriptor is taken.
    #[must_use]
    pub fn without_function(socket: ClientSocket) -> Self {
        Self::with_fds(socket, 0)
    }

    fn with_fds(socket: ClientSocket, most_fds: usize) -> Self {
        Self {
            socket,
            assembler: Assembler::new(most_fds),
            unsent: VecDeque::new(),
            waiting: VecDeque::new(),
            late: 0,
        }
    }

    /// The next message, `None` if none is complete.
    ///
    /// # Errors
    /// [`ConnectionEnd`].
    pub fn receive(&mut self) -> Result<Option<Message<PassedFd>>, ConnectionEnd> {
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
    ) -> Option<Message<PassedFd>> {
        if !self.wants_input() {
            // It does not take what it was asked before: nothing is added to that.
            return None;
        }
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

    fn answer(&mut self, id: u16, deadline: Instant) -> Option<Message<PassedFd>> {
        loop {
            if self.has_many_waiting() {
                return None;
            }
            match self.read().ok()? {
                None => self.wait(PollFlags::IN, deadline)?,
                Some(message) if is_reply(&message) && message.header.id.get() == id => {
                    return Some(message);
                }
                Some(message) if is_reply(&message) && self.late > 0 => self.late -= 1,
                Some(message) => self.waiting.push_back(message),
            }
        }
    }

    /// Whether so much waits for [`Self::receive`] that nothing more is read before.
    fn has_many_waiting(&self) -> bool {
        let fds = self.waiting.iter().map(|message| message.fds.len());
        self.waiting.len() >= MAX_WAITING || fds.sum::<usize>() >= MAX_WAITING_FDS
    }

    /// Waits until the socket can be read or written, or it is too late.
    fn wait(&self, what: PollFlags, deadline: Instant) -> Option<()> {
        let left = deadline.checked_duration_since(Instant::now())?;
        let left = Timespec::try_from(left).ok()?;
        let lane = self.socket.lane().filter(|_| self.socket.is_asking());
        let mut fds = match lane {
            Some(lane) if what == PollFlags::IN => [PollFd::new(lane, what)],
            _ => [PollFd::new(&self.socket, what)],
        };
        match poll(&mut fds, Some(&left)) {
            Ok(0) => None,
            Ok(_) | Err(Errno::INTR) => Some(()),
            Err(_) => None,
        }
    }

    /// The next message from the socket.
    fn read(&mut self) -> Result<Option<Message<PassedFd>>, ConnectionEnd> {
        loop {
            let received = match self.socket.receive(self.assembler.space()) {
                Ok(Some(received)) => received,
                Ok(None) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(self.hung_up()),
                Err(error) => return Err(ConnectionEnd::Failed(error)),
            };
            let message = self.assembler.filled(received.len, received.fds)?;
            if received.is_cut {
                return Err(ConnectionEnd::LostDescriptors);
            }
            if received.len == 0 {
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

    /// Returns the socket, to be watched.
    #[must_use]
    pub const fn socket(&self) -> &ClientSocket {
        &self.socket
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
            Self::send_some(&mut self.socket, bytes)?
        };
        self.unsent.extend(bytes.get(sent..).unwrap_or_default());
        Ok(())
    }

    /// Sends a message with descriptors. Returns `false`, without having sent anything, if the client has not read all that was sent
    /// before, or takes nothing now: descriptors on their way count against the service's user (`RLIMIT_NOFILE`, unix(7)), so each
    /// client has one message of them there at most.
    ///
    /// # Errors
    /// [`ConnectionEnd`].
    pub fn pass(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<bool, ConnectionEnd> {
        if self.has_unsent() || unread(&self.socket).map_err(ConnectionEnd::Failed)? > 0 {
            return Ok(false);
        }
        match self.socket.pass(bytes, fds) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS) => Ok(false),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(ConnectionEnd::HungUp),
            Err(error) => Err(ConnectionEnd::Failed(error)),
        }
    }

    /// Sends what waits, as far as the client takes it.
    ///
    /// # Errors
    /// [`ConnectionEnd`].
    pub fn send_unsent(&mut self) -> Result<(), ConnectionEnd> {
        while !self.unsent.is_empty() {
            let sent = Self::send_some(&mut self.socket, self.unsent.as_slices().0)?;
            if sent == 0 {
                return Ok(());
            }
            self.unsent.drain(..sent);
        }
        self.unsent.shrink_to(4096);
        Ok(())
    }

    /// How many bytes the socket takes now.
    fn send_some(socket: &mut ClientSocket, bytes: &[u8]) -> Result<usize, ConnectionEnd> {
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            match socket.send(rest) {
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

fn is_reply(message: &Message<PassedFd>) -> bool {
    message.header.flags().contains(HeaderFlags::REPLY)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use rustix::io::IoSlice;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;
    use vhca_vfio_user_codec::{dma_read, dma_write};

    /// Far: nothing is waited for in these tests.
    const DEADLINE: Duration = Duration::from_secs(60);

    fn pair(interrupts: u16) -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let ours = ClientSocket::trusted(ours.into());
        (Connection::new(ours, interrupts), theirs)
    }

    /// Any command of a client.
    fn command() -> Vec<u8> {
        dma_read(1, 0, 8)
    }

    fn send_with(socket: &UnixStream, bytes: &[u8], count: usize) {
        let fds = vec![socket.as_fd(); count];
        let mut space =
            [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_ROOM))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let parts = [IoSlice::new(bytes)];
        let sent = sendmsg(socket, &parts, &mut ancillary, SendFlags::empty());
        assert_eq!(sent, Ok(bytes.len()));
    }

    #[test]
    fn a_client_that_talks_instead_of_answering_has_no_more_than_so_much_kept() {
        let (mut connection, mut client) = pair(0);
        let mut sent = 0;
        for _ in 0..10 {
            while sent < 1000 && client.write(&command()).is_ok() {
                sent += 1;
            }
            let deadline = Instant::now() + DEADLINE;
            assert!(connection.ask(&dma_read(7, 0, 8), 7, deadline).is_none());
            assert_eq!(connection.waiting.len(), MAX_WAITING);
        }
        // All of it is heard in the end.
        let mut heard = 0;
        while connection.receive().unwrap().is_some() {
            heard += 1;
        }
        assert_eq!(heard, sent);
    }

    #[test]
    fn descriptors_of_a_client_that_does_not_answer_are_few() {
        let (mut connection, client) = pair(16);
        for _ in 0..32 {
            send_with(&client, &command(), 16);
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        assert!(connection.ask(&dma_read(7, 0, 8), 7, deadline).is_none());
        assert_eq!(connection.waiting.len(), MAX_WAITING_FDS / 16);
    }

    #[test]
    fn what_a_client_does_not_take_that_is_asked_is_bounded() {
        let (mut connection, _client) = pair(0);
        let write = dma_write(7, 0, &[0; 4096]);
        for _ in 0..4000 {
            assert!(connection.ask(&write, 7, Instant::now()).is_none());
        }
        assert!(connection.unsent.len() <= MAX_UNSENT + write.len());
    }

    #[test]
    fn a_client_that_does_not_read_has_one_message_with_descriptors_on_its_way() {
        let (mut connection, mut client) = pair(0);
        let (ours, _) = UnixStream::pair().unwrap();
        let fds = [ours.as_fd(); 64];
        let mut pass = || connection.pass(&dma_read(7, 0, 8), &fds).unwrap();
        assert!(pass());
        assert!(!pass() && !pass());
        let mut read = vec![0; dma_read(7, 0, 8).len()];
        client.read_exact(&mut read).unwrap();
        assert!(pass());
        client.read_exact(&mut read).unwrap();
        // Nor does one overtake what waits.
        while !connection.has_unsent() {
            connection.send(&dma_write(7, 0, &[0; 4096])).unwrap();
        }
        assert!(!connection.pass(&command(), &fds).unwrap());
        drop(client);
        let end = ConnectionEnd::HungUp.to_string();
        let (mut connection, client) = pair(0);
        drop(client);
        let passed = connection.pass(&command(), &fds);
        assert_eq!(passed.unwrap_err().to_string(), end);
    }

    #[test]
    fn a_message_brings_a_descriptor_for_each_interrupt_and_no_more() {
        for (interrupts, most) in [(3, 16), (33, 33)] {
            let (mut connection, client) = pair(interrupts);
            send_with(&client, &command(), most);
            let message = connection.receive().unwrap().unwrap();
            assert_eq!(message.fds.len(), most);
            send_with(&client, &command(), most + 1);
            let end = connection.receive().unwrap_err();
            assert!(
                matches!(end, ConnectionEnd::Protocol(ProtocolError::Descriptors(n)) if n == most)
            );
        }
        let (ours, client) = UnixStream::pair().unwrap();
        send_with(&client, &command(), 1);
        let mut refused = Connection::without_function(ClientSocket::trusted(ours.into()));
        assert!(refused.receive().is_err());
    }
}
