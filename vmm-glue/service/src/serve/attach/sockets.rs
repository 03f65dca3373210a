//! The two sockets of a simulator's client.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use ibsim_link::codec::SocketName;

use super::IbsimAddress;

/// Names that are tried before all count as taken.
const MAX_NAMES: u32 = 64;

/// A datagram socket of either kind, which does not block.
#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

impl Socket {
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = match self {
            Self::Unix(socket) => socket.send(bytes),
            Self::Udp(socket) => socket.send(bytes),
        };
        sent.map(|_| ())
    }

    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.recv(buffer),
            Self::Udp(socket) => socket.recv(buffer),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
        }
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        match socket {
            Socket::Unix(socket) => socket.into(),
            Socket::Udp(socket) => socket.into(),
        }
    }
}

/// The sockets of one client.
#[derive(Debug)]
pub(super) struct ClientSockets {
    pub(super) control: Socket,
    pub(super) data: Socket,
    /// What the data socket is called by.
    pub(super) client_id: u32,
}

impl ClientSockets {
    /// Opens both, and connects the one for control.
    pub(super) fn open(simulator: &IbsimAddress) -> io::Result<Self> {
        match simulator {
            IbsimAddress::Unix(base) => Self::open_unix(base),
            IbsimAddress::Udp(port) => Self::open_udp(*port),
        }
    }

    fn open_unix(base: &str) -> io::Result<Self> {
        let server = unix_address(SocketName::ServerControl, base)?;
        for nth in 0..MAX_NAMES {
            let id = client_id(nth);
            let control = unix_address(SocketName::ClientControl(id), base)?;
            let control = match UnixDatagram::bind_addr(&control) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                bound => bound?,
            };
            let data = unix_address(SocketName::ClientData(id), base)?;
            let data = match UnixDatagram::bind_addr(&data) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                bound => bound?,
            };
            control.set_nonblocking(true)?;
            data.set_nonblocking(true)?;
            control.connect_addr(&server)?;
            return Ok(Self {
                control: Socket::Unix(control),
                data: Socket::Unix(data),
                client_id: id,
            });
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    fn open_udp(port: u16) -> io::Result<Self> {
        let open = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let (control, data) = (open()?, open()?);
        control.connect((Ipv4Addr::LOCALHOST, port))?;
        Ok(Self {
            client_id: data.local_addr()?.port().into(),
            control: Socket::Udp(control),
            data: Socket::Udp(data),
        })
    }

    /// Connects the data socket to the one of a slot.
    pub(super) fn join(&self, simulator: &IbsimAddress, slot: u32) -> io::Result<()> {
        match (&self.data, simulator) {
            (Socket::Unix(data), IbsimAddress::Unix(base)) => {
                data.connect_addr(&unix_address(SocketName::ServerData(slot), base)?)
            }
            (Socket::Udp(data), IbsimAddress::Udp(port)) => {
                let port = u16::try_from(slot)
                    .ok()
                    .and_then(|slot| port.checked_add(1)?.checked_add(slot));
                let port = port.ok_or(io::ErrorKind::InvalidInput)?;
                data.connect((Ipv4Addr::LOCALHOST, port))
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

fn unix_address(name: SocketName, base: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name.bytes(base))
}

/// A client's number: this process's, and beyond the numbers that processes have the nth of its own.
/// So it is nobody else's, the clients of the stock library included.
fn client_id(nth: u32) -> u32 {
    /// Linux gives processes numbers up to this (PID_MAX_LIMIT).
    const PID_BITS: u32 = 22;
    (nth + 1) << PID_BITS | std::process::id()
}
