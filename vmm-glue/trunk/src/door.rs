//! The process that connects for a confined service.
//!
//! Orders and answers are packets of a Unix socket: a number of the service's, and an address; then the number, and either a
//! descriptor or the words of an error.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};

use crate::address::TrunkAddress;

/// Name of the hidden command that runs the process.
pub const COMMAND: &str = "trunk-door";

/// Time that one address of a name may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Bytes of a packet: an address, or an error.
const PACKET: usize = 1024;

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
    /// A connected socket, or the reason for which there is none.
    pub connected: Result<OwnedFd, String>,
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

    /// Returns the next answer, if one has come.
    ///
    /// # Errors
    /// Errors of the system; [`Errno::PIPE`] if the process is gone.
    pub fn answer(&self) -> Result<Option<DoorAnswer>, Errno> {
        let mut packet = [0; PACKET];
        let (length, socket) = match receive(self.channel.as_fd(), &mut packet, RecvFlags::DONTWAIT)
        {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Ok((0, _)) => return Err(Errno::PIPE),
            received => received?,
        };
        let Some((number, words)) = packet.get(..length).and_then(<[u8]>::split_first_chunk) else {
            return Err(Errno::PROTO);
        };
        let words = || String::from_utf8_lossy(words).into_owned();
        Ok(Some(DoorAnswer {
            number: u32::from_be_bytes(*number),
            connected: socket.ok_or_else(words),
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
        let (length, _) = match receive(channel.as_fd(), &mut packet, RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(()),
            received => received?,
        };
        let order = packet.get(..length).and_then(<[u8]>::split_first_chunk);
        let Some((number, address)) = order else {
            continue;
        };
        let (number, address) = (*number, String::from_utf8_lossy(address).into_owned());
        let answering = channel.clone();
        let work = move || answer(&answering, number, connect(&address));
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
fn connect(address: &str) -> io::Result<OwnedFd> {
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    match address.parse().map_err(wrong)? {
        TrunkAddress::Unix(path) => connect_unix(&path),
        TrunkAddress::Tcp { host, port } | TrunkAddress::Tls { host, port } => {
            let mut last = io::Error::from(io::ErrorKind::NotFound);
            for address in TrunkAddress::socket(&host, port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, PATIENCE) {
                    Ok(stream) => return Ok(stream.into()),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
}

fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    Ok(UnixStream::connect(path)?.into())
}

/// Answers an order. A service that is gone needs no answer.
fn answer(channel: &OwnedFd, number: [u8; 4], connected: io::Result<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    let words = match &connected {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let socket = connected.as_ref().ok().map(AsFd::as_fd);
    if let Some(socket) = &socket {
        passed.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(
            socket,
        )));
    }
    let words = words.as_bytes();
    let words = words.get(..PACKET - 4).unwrap_or(words);
    let parts = [IoSlice::new(&number), IoSlice::new(words)];
    let _ = sendmsg(channel, &parts, &mut passed, SendFlags::NOSIGNAL);
}

/// Receives a packet, and the descriptor that came with it.
fn receive(
    channel: BorrowedFd<'_>,
    packet: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(channel, &mut [IoSliceMut::new(packet)], &mut passed, flags)?;
    let socket = passed.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    Ok((received.bytes, socket))
}
