//! The service's side.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg, send};

use crate::message::{self, LANE_HEAD, Order, Request, pair};
use crate::wake::has_room;
use crate::{COMMAND, Kind, MESSAGE_MAX, SCM_MAX_FD, Wakeups, Work, during};

/// Time in which the receiver makes room for an order.
const ROOM_LIMIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The receiver, as the service has it.
#[derive(Clone, Debug)]
pub struct Receiver {
    channel: Arc<OwnedFd>,
}

/// A share of the receiver's promise to keep duplicates of descriptors: it closes them when the last share is gone.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    #[expect(dead_code, reason = "its close is the message")]
    end: Option<Arc<OwnedFd>>,
}

/// A descriptor that a client passed. The receiver closes its duplicate afterwards.
#[derive(Debug)]
pub struct PassedFd {
    // Closed before the lease ends.
    fd: OwnedFd,
    lease: Lease,
}

/// The socket of a client.
#[derive(Debug)]
pub struct ClientSocket {
    // Closed before the lane: at the end of the lane the receiver closes its duplicate.
    socket: OwnedFd,
    /// `None` if messages are read here with their descriptors.
    lane: Option<OwnedFd>,
    /// Request to the receiver that it has not answered.
    asked: Option<Request>,
    wakeups: Wakeups,
}

/// A message.
#[derive(Debug)]
pub struct Received {
    /// Bytes; 0 at the end of the connection.
    pub len: usize,
    /// Descriptors that came along. In the place of one that the protocol does not take is the end of a pipe.
    pub fds: Vec<PassedFd>,
    /// Descriptors were lost, since there was no room for them.
    pub is_cut: bool,
}

impl Receiver {
    /// Starts the process: this program again, with the argument [`COMMAND`].
    ///
    /// # Errors
    /// Errors of the system.
    pub fn start() -> io::Result<Self> {
        Self::start_program(&std::env::current_exe()?)
    }

    fn start_program(program: &Path) -> io::Result<Self> {
        let (own, other) = pair()?;
        Command::new(program)
            .arg(COMMAND)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(other))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self::over(own))
    }

    /// Uses a receiver at the other end of a channel.
    pub(crate) fn over(channel: OwnedFd) -> Self {
        Self {
            channel: Arc::new(channel),
        }
    }

    /// Returns the channel, which is ready when the process is gone.
    #[must_use]
    pub fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Hands a client of a user to the receiver, which has a duplicate of its socket from then on.
    ///
    /// # Errors
    /// The socket, and [`Errno::AGAIN`] if the receiver has too many orders, or another error of the system.
    pub fn admit(
        &self,
        socket: OwnedFd,
        kind: Kind,
        uid: u32,
    ) -> Result<ClientSocket, (OwnedFd, Errno)> {
        let order = || -> Result<OwnedFd, Errno> {
            let (own, other) = pair()?;
            let fds = [socket.as_fd(), other.as_fd()];
            self.order(Order::Client(kind, uid), &fds)?;
            Ok(own)
        };
        match order() {
            Ok(lane) => Ok(ClientSocket {
                lane: Some(lane),
                ..ClientSocket::trusted(socket)
            }),
            Err(error) => Err((socket, error)),
        }
    }

    /// Makes the receiver keep a duplicate of a descriptor until the service ends.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn keep(&self, fd: impl AsFd) -> Result<(), Errno> {
        self.order(Order::Keep, &[fd.as_fd()])
    }

    /// Returns `true` if a process has a file, by its device and inode, mapped privately. Waits for the process as long as that
    /// likes.
    #[must_use]
    pub fn is_mapped_privately(&self, pid: i32, device: u64, inode: u64) -> bool {
        let ask = || -> Result<bool, Errno> {
            let (own, other) = pair()?;
            self.order(Order::Maps(pid, device, inode), &[other.as_fd()])?;
            drop(other);
            let mut answer = [0];
            let (len, _) = recv(&own, &mut answer, RecvFlags::empty())?;
            Ok(len == 1 && answer[0] == 1)
        };
        ask().unwrap_or_default()
    }

    fn order(&self, order: Order, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let parts = [&order.encode()[..], &[]];
        match message::send(&self.channel, parts, fds, SendFlags::DONTWAIT) {
            Err(Errno::AGAIN) => {
                // It takes orders without waiting for a client, so there is room as soon as it runs.
                let mut room = [PollFd::new(&self.channel, PollFlags::OUT)];
                let _ = poll(&mut room, Some(&ROOM_LIMIT));
                message::send(&self.channel, parts, fds, SendFlags::DONTWAIT)
            }
            sent => sent,
        }
    }
}

impl PassedFd {
    /// Splits the descriptor from the lease, which is to outlive it and whatever was made of it.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, Lease) {
        (self.fd, self.lease)
    }
}

impl From<OwnedFd> for PassedFd {
    /// Takes a descriptor that no client passed.
    fn from(fd: OwnedFd) -> Self {
        Self {
            fd,
            lease: Lease::default(),
        }
    }
}

impl AsFd for PassedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl ClientSocket {
    /// Takes the socket of a client that is trusted not to pass descriptors whose close waits: messages are read here.
    #[must_use]
    pub fn trusted(socket: OwnedFd) -> Self {
        Self {
            socket,
            lane: None,
            asked: None,
            wakeups: Wakeups::default(),
        }
    }

    /// Shares the wake-ups of the client with its other connections, earlier ones included.
    #[must_use]
    pub fn with_wakeups(self, wakeups: Wakeups) -> Self {
        Self { wakeups, ..self }
    }

    /// Returns the wake-ups of the client, for whatever else it waits for.
    pub const fn wakeups(&self) -> &Wakeups {
        &self.wakeups
    }

    /// Sends bytes, as many as there is room for. Where the client's wake-ups are slow, the receiver sends them.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] if there is no room, or the receiver is busy with the client, and errors of the system.
    pub fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        self.note_sent()?;
        if let Some(lane) = self.lane.as_ref().filter(|_| self.wakeups.are_slow()) {
            if self.asked.is_some() || !has_room(&self.socket)? {
                return Err(Errno::AGAIN);
            }
            let bytes = &bytes[..bytes.len().min(MESSAGE_MAX)];
            ask(lane, Request::Send, bytes)?;
            self.asked = Some(Request::Send);
            return Ok(bytes.len());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        during(Work::WakeUp, self.as_raw_fd(), || {
            self.wakeups.make(|| send(&self.socket, bytes, flags))
        })
    }

    /// Sends bytes with descriptors of the service, all or nothing.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] if there is no room, the receiver is busy with the client, or the client's wake-ups are slow; and errors of the
    /// system.
    pub fn pass(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.note_sent()?;
        if self.asked.is_some() || self.wakeups.are_slow() || !has_room(&self.socket)? {
            return Err(Errno::AGAIN);
        }
        during(Work::WakeUp, self.as_raw_fd(), || {
            let pass = || message::send(&self.socket, [bytes, &[]], fds, SendFlags::DONTWAIT);
            self.wakeups.make(pass)
        })
    }

    /// Returns the descriptor that is ready when the receiver has read a message, if there is one.
    pub const fn lane(&self) -> Option<&OwnedFd> {
        self.lane.as_ref()
    }

    /// Returns `true` while the receiver reads or sends a message. The lane is ready when it has; the socket is not to be watched
    /// until then.
    #[must_use]
    pub const fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// Returns another descriptor of the socket.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Returns the socket and the lane, to be closed in this order: the receiver ends the connection then, and closes it last.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, Option<OwnedFd>) {
        (self.socket, self.lane)
    }

    /// Makes the receiver take the next datagram and close its descriptors. To be called again until it is done, when the lane
    /// is ready.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] until it is done, and errors of the system.
    pub fn discard(&mut self) -> Result<(), Errno> {
        let lane = self.lane.as_ref().ok_or(Errno::INVAL)?;
        if self.asked.is_none() {
            ask(lane, Request::Read(0), &[])?;
            self.asked = Some(Request::Read(0));
        }
        from_lane(lane, &mut [])?.ok_or(Errno::AGAIN)?;
        self.asked = None;
        Ok(())
    }

    /// Takes note of the receiver's answer that it has sent bytes.
    fn note_sent(&mut self) -> Result<(), Errno> {
        if let Some(lane) = &self.lane
            && self.asked == Some(Request::Send)
            && from_lane(lane, &mut [])?.is_some()
        {
            self.asked = None;
        }
        Ok(())
    }

    /// Reads the next message of a socket of packets, or bytes of a stream, into `space`. `None` if there are none now.
    ///
    /// # Errors
    /// Errors of the system, and [`Errno::CONNRESET`] if the receiver has refused the client.
    pub fn receive(&mut self, space: &mut [u8]) -> Result<Option<Received>, Errno> {
        self.note_sent()?;
        let Some(lane) = &self.lane else {
            return whole(&self.socket, space);
        };
        if matches!(self.asked, Some(Request::Read(_))) {
            let received = from_lane(lane, space)?;
            if received.is_some() {
                self.asked = None;
            }
            return Ok(received);
        }
        if self.asked.is_some() {
            return Ok(None);
        }
        let len = space.len().min(MESSAGE_MAX);
        let space = &mut space[..len];
        let Some((len, has_descriptors)) = peek(&self.socket, space)? else {
            return Ok(None);
        };
        // Receiving wakes the waiters for room, too.
        if has_descriptors || self.wakeups.are_slow() {
            let read = Request::Read(u32::try_from(len).unwrap_or(u32::MAX));
            ask(lane, read, &[])?;
            self.asked = Some(read);
            return Ok(None);
        }
        // The message without descriptors that is there now, and of a stream nothing behind it.
        let receive = || recv(&self.socket, &mut space[..len], RecvFlags::DONTWAIT);
        let (len, _) = self.wakeups.make(receive)?;
        Ok(Some(Received {
            len,
            fds: Vec::new(),
            is_cut: false,
        }))
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for ClientSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Makes a request on a lane, where at most one is under way.
fn ask(lane: &OwnedFd, request: Request, bytes: &[u8]) -> Result<(), Errno> {
    let parts = [&request.head()[..], bytes];
    message::send(lane, parts, &[], SendFlags::DONTWAIT)
}

/// Looks at the next message, of which nothing is taken. Returns its bytes, as many as there is space for, and whether it has
/// descriptors: without room for these the kernel neither installs nor closes any.
fn peek(socket: &OwnedFd, space: &mut [u8]) -> Result<Option<(usize, bool)>, Errno> {
    let mut none: [MaybeUninit<u8>; 0] = [];
    let mut ancillary = RecvAncillaryBuffer::new(&mut none);
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    match recvmsg(socket, &mut [IoSliceMut::new(space)], &mut ancillary, flags) {
        Ok(received) => {
            let has_descriptors = received.flags.contains(ReturnFlags::CTRUNC);
            Ok(Some((received.bytes, has_descriptors)))
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a message with its descriptors.
fn whole(socket: &OwnedFd, space: &mut [u8]) -> Result<Option<Received>, Errno> {
    match message::receive(socket, &mut [], space, SCM_MAX_FD) {
        Ok(packet) => Ok(Some(Received {
            len: packet.len,
            fds: packet.fds.into_iter().map(PassedFd::from).collect(),
            is_cut: packet.is_cut,
        })),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads what the receiver passes on.
fn from_lane(lane: &OwnedFd, space: &mut [u8]) -> Result<Option<Received>, Errno> {
    let mut head = [0; LANE_HEAD];
    let packet = match message::receive(lane, &mut head, space, SCM_MAX_FD) {
        Ok(packet) => packet,
        Err(Errno::AGAIN) => return Ok(None),
        Err(error) => return Err(error),
    };
    let len = packet.len.checked_sub(LANE_HEAD).ok_or(Errno::CONNRESET)?;
    match i32::from_ne_bytes(head) {
        0 => {}
        error => return Err(Errno::from_raw_os_error(error)),
    }
    let mut fds = packet.fds.into_iter();
    let end = fds.next().map(Arc::new);
    let passed = fds.map(|fd| PassedFd {
        fd,
        lease: Lease { end: end.clone() },
    });
    Ok(Some(Received {
        len,
        fds: passed.collect(),
        is_cut: packet.is_cut,
    }))
}
