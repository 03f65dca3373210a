//! The process that connects for a confined service.
//!
//! Orders and answers are packets of a Unix socket: a number of the service's, and an address, or a descriptor that was accepted at a
//! `vhost:` address; then the number, and either a descriptor, or the parts of a connection over queues, or the words of an error.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};

use crate::address::TrunkAddress;
use crate::negotiation;
use crate::parts::RingParts;

/// Name of the hidden command that runs the process.
pub const COMMAND: &str = "trunk-door";

/// Time that one address of a name may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Bytes of a packet: an address, or an error.
const PACKET: usize = 1024;

/// Descriptors that come with a packet at most: the parts of a connection over queues.
const PASSED: usize = RingParts::DESCRIPTORS;

/// Connections that are made at the same time at most.
const AT_ONCE: usize = 64;

/// A service's end of the channel to its door.
#[derive(Debug)]
pub struct Door {
    channel: OwnedFd,
}

/// An answer of the door.
#[derive(Debug)]
pub struct DoorAnswer {
    /// The number of the order.
    pub number: u32,
    /// A connection, or the reason for which there is none.
    pub connected: Result<Connected, String>,
}

/// A connection that the door made.
#[derive(Debug)]
pub enum Connected {
    /// A connected socket.
    Socket(OwnedFd),
    /// Queues in shared memory.
    Rings(RingParts),
}

impl Door {
    /// Starts the process: this program again, with the argument [`COMMAND`]. It ends with the service.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn start() -> io::Result<Self> {
        let (own, other) = pair()?;
        Command::new(std::env::current_exe()?)
            .arg(COMMAND)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(other))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { channel: own })
    }

    /// Starts a thread of this process in place of another process, for one that is not confined.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn in_thread() -> io::Result<Self> {
        let (own, other) = pair()?;
        let serve = move || {
            if let Err(error) = run(other) {
                log::error!("the thread that connects for trunks ends: {error}");
            }
        };
        thread::Builder::new()
            .name("trunk-door".to_owned())
            .spawn(serve)?;
        Ok(Self { channel: own })
    }

    /// Orders a connection. The answer comes with the number.
    ///
    /// # Errors
    /// Errors of the system; [`Errno::AGAIN`] if too many orders wait.
    pub fn order(&self, number: u32, address: &TrunkAddress) -> Result<(), Errno> {
        let mut packet = number.to_be_bytes().to_vec();
        packet.extend(address.to_string().bytes());
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        send(&self.channel, &packet, flags).map(drop)
    }

    /// Orders the set-up of a connection over queues with a front end that has connected. The answer comes with the number.
    ///
    /// # Errors
    /// Errors of the system; [`Errno::AGAIN`] if too many orders wait.
    pub fn order_set_up(&self, number: u32, front_end: &OwnedFd) -> Result<(), Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let number = number.to_be_bytes();
        let parts = [IoSlice::new(&number)];
        pass(&self.channel, &parts, &[front_end.as_fd()], flags)
    }

    /// Returns the next answer, if one has come.
    ///
    /// # Errors
    /// Errors of the system; [`Errno::PIPE`] if the process is gone.
    pub fn answer(&self) -> Result<Option<DoorAnswer>, Errno> {
        let mut packet = [0; PACKET];
        let (length, passed) = match receive(self.channel.as_fd(), &mut packet, RecvFlags::DONTWAIT)
        {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Ok((0, _)) => return Err(Errno::PIPE),
            received => received?,
        };
        let Some((number, words)) = packet.get(..length).and_then(<[u8]>::split_first_chunk) else {
            return Err(Errno::PROTO);
        };
        let mut passed = passed.into_iter();
        let connected = match (passed.next(), passed.len()) {
            (None, _) => Err(String::from_utf8_lossy(words).into_owned()),
            (Some(socket), 0) => Ok(Connected::Socket(socket)),
            (Some(lifeline), _) => {
                let parts = RingParts::from_message(words, lifeline, passed);
                Ok(Connected::Rings(parts.ok_or(Errno::PROTO)?))
            }
        };
        Ok(Some(DoorAnswer {
            number: u32::from_be_bytes(*number),
            connected,
        }))
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socketpair(unix, packets, SocketFlags::CLOEXEC, None)?)
}

/// Serves the service at the other end of a channel until it ends.
///
/// # Errors
/// Errors of the system.
pub fn run(channel: OwnedFd) -> io::Result<()> {
    // Its last clone among the threads is dropped with the process.
    let channel = Arc::new(channel);
    loop {
        let mut packet = [0; PACKET];
        let (length, passed) = match receive(channel.as_fd(), &mut packet, RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(()),
            received => received?,
        };
        let order = packet.get(..length).and_then(<[u8]>::split_first_chunk);
        let Some((number, address)) = order else {
            continue;
        };
        let (number, address) = (*number, String::from_utf8_lossy(address).into_owned());
        let front_end = passed.into_iter().next();
        let answering = channel.clone();
        let work = move || match front_end {
            Some(front_end) => set_up(answering, number, front_end),
            None => answer(&answering, number, connect(&address)),
        };
        let refuse = |_| answer(&channel, number, Err(io::ErrorKind::WouldBlock.into()));
        if Arc::strong_count(&channel) > AT_ONCE {
            refuse(());
        } else if let Err(error) = thread::Builder::new().spawn(work) {
            log::warn!("cannot start a thread: {error}");
            refuse(());
        }
    }
}

/// Connects to the first address of a name that answers.
fn connect(address: &str) -> io::Result<Connected> {
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    match address.parse().map_err(wrong)? {
        TrunkAddress::Unix(path) => Ok(Connected::Socket(UnixStream::connect(path)?.into())),
        TrunkAddress::Vhost(path) => {
            let parts = negotiation::connect(&path).map_err(io::Error::other)?;
            Ok(Connected::Rings(parts))
        }
        TrunkAddress::Tcp { host, port } | TrunkAddress::Tls { host, port } => {
            let addresses = TrunkAddress::socket(&host, port).to_socket_addrs()?;
            connect_first(addresses).map(|stream| Connected::Socket(stream.into()))
        }
    }
}

/// Connects to the first address that answers, of both families in the resolver's order.
///
/// # Errors
/// The error of the last address, with the address.
fn connect_first(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
        }
    }
    Err(last)
}

/// Sets up a connection over queues, and watches it: each end hears when the other one is gone.
fn set_up(channel: Arc<OwnedFd>, number: [u8; 4], front_end: OwnedFd) {
    let agreed = match negotiation::accept(front_end.into()) {
        Ok(agreed) => agreed,
        Err(error) => return answer(&channel, number, Err(io::Error::other(error))),
    };
    answer(&channel, number, Ok(Connected::Rings(agreed.parts)));
    // From here on it is none of the connections that are made.
    drop(channel);
    let mut ends = [&agreed.service, &agreed.front_end]
        .map(|end| PollFd::new(end, PollFlags::IN | PollFlags::RDHUP));
    // A front end has nothing to say any longer, and the service never has.
    while poll(&mut ends, None) == Err(Errno::INTR) {}
}

/// Answers an order. A service that is gone needs no answer.
fn answer(channel: &OwnedFd, number: [u8; 4], connected: io::Result<Connected>) {
    let (words, passed) = match &connected {
        Ok(Connected::Socket(socket)) => (Vec::new(), vec![socket.as_fd()]),
        Ok(Connected::Rings(parts)) => parts.to_message(),
        Err(error) => (error.to_string().into_bytes(), Vec::new()),
    };
    let words = words.get(..PACKET - 4).unwrap_or(&words);
    let parts = [IoSlice::new(&number), IoSlice::new(words)];
    let _ = pass(channel, &parts, &passed, SendFlags::NOSIGNAL);
}

/// Sends a packet with descriptors.
fn pass(
    channel: &OwnedFd,
    parts: &[IoSlice<'_>],
    passed: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !passed.is_empty() {
        rights.push(SendAncillaryMessage::ScmRights(passed));
    }
    sendmsg(channel, parts, &mut rights, flags).map(drop)
}

/// Receives a packet, and the descriptors that came with it.
fn receive(
    channel: BorrowedFd<'_>,
    packet: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(channel, &mut [IoSliceMut::new(packet)], &mut passed, flags)?;
    let mut descriptors = Vec::new();
    for message in passed.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok((received.bytes, descriptors))
}

#[cfg(test)]
mod tests;
