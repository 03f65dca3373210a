//! The datagram sockets of the protocol: abstract Unix ones, or UDP on the loopback interface.

use core::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use ibsim_link::codec::{Control, SocketName};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    recv, recvfrom, sendto, socket_with,
};
use rustix::process::Uid;
use zerocopy::IntoBytes;

use vhca_receiver::ClientSocket;

use crate::credentials;

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Where a server of the protocol is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IbsimAddress {
    /// Abstract Unix sockets whose names begin with this (`IBSIM_SOCKNAME` of the clients).
    Unix(String),
    /// UDP on the loopback interface: the control port (`IBSIM_SERVER_PORT`), and behind it one port
    /// for each slot. For clients with `IBSIM_SERVER_NAME=127.0.0.1`.
    Udp(u16),
}

impl fmt::Display for IbsimAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(base) => f.write_str(base),
            Self::Udp(port) => write!(f, "127.0.0.1:{port}"),
        }
    }
}

/// Where a control datagram came from.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    Unix(SocketAddrUnix),
    Udp(SocketAddrV4),
}

impl Peer {
    /// Tells peers apart.
    pub(super) fn key(&self) -> Vec<u8> {
        match self {
            Self::Unix(address) => address.abstract_name().unwrap_or_default().to_vec(),
            Self::Udp(address) => address.to_string().into_bytes(),
        }
    }
}

/// What became of a datagram to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is on its way.
    Taken,
    /// The client has to read first.
    Full,
    /// The client is no more.
    Gone,
}

impl IbsimAddress {
    fn unix(base: &str, name: SocketName) -> io::Result<SocketAddrUnix> {
        Ok(SocketAddrUnix::new_abstract_name(&name.bytes(base))?)
    }

    pub(super) fn bind_control(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Unix(base) => bind_unix(base, SocketName::ServerControl),
            Self::Udp(port) => bind_udp(*port),
        }
    }

    /// The data socket of a slot, connected to that of a client.
    pub(super) fn open_data(&self, slot: u32, client: u32, from: &Peer) -> io::Result<OwnedFd> {
        match (self, from) {
            (Self::Unix(base), _) => {
                let fd = bind_unix(base, SocketName::ServerData(slot))?;
                connect(&fd, &Self::unix(base, SocketName::ClientData(client))?)?;
                Ok(fd)
            }
            (Self::Udp(control), Peer::Udp(address)) => {
                let beyond = || io::Error::from(io::ErrorKind::InvalidInput);
                let offset = u16::try_from(slot + 1).map_err(|_| beyond())?;
                let port = control.checked_add(offset).ok_or_else(beyond)?;
                let fd = bind_udp(port)?;
                let client = u16::try_from(client).map_err(|_| beyond())?;
                connect(&fd, &SocketAddrV4::new(*address.ip(), client))?;
                Ok(fd)
            }
            (Self::Udp(_), Peer::Unix(_)) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Whether a client's data socket still exists, as far as can be told: nobody listens on an
    /// abstract name any more once its owner is dead. Of UDP ports it is told when something is sent.
    pub(super) fn is_alive(&self, client: u32) -> bool {
        let Self::Unix(base) = self else {
            return true;
        };
        let probe = || -> io::Result<Result<(), Errno>> {
            let fd = socket_with(AddressFamily::UNIX, SocketType::DGRAM, FLAGS, None)?;
            Ok(connect(
                &fd,
                &Self::unix(base, SocketName::ClientData(client))?,
            ))
        };
        // A client that is connected to its slot takes no other connection: that is alive.
        !matches!(probe(), Ok(Err(Errno::CONNREFUSED)))
    }
}

/// Anyone can send to an abstract name, so the kernel is to tell who did.
fn bind_unix(base: &str, name: SocketName) -> io::Result<OwnedFd> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::DGRAM, FLAGS, None)?;
    set_socket_passcred(&fd, true)?;
    credentials::refuse_descriptors(&fd);
    bind(&fd, &IbsimAddress::unix(base, name)?)?;
    Ok(fd)
}

fn bind_udp(port: u16) -> io::Result<OwnedFd> {
    let fd = socket_with(AddressFamily::INET, SocketType::DGRAM, FLAGS, None)?;
    bind(&fd, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    Ok(fd)
}

/// A datagram.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) len: usize,
    /// Where answers go, if its sender has an address.
    pub(super) from: Option<Peer>,
    pub(super) user: Option<Uid>,
}

impl IbsimAddress {
    /// The next datagram of a control socket, if there is one.
    pub(super) fn receive_from(
        &self,
        fd: &mut ClientSocket,
        buffer: &mut [u8],
    ) -> Option<Received> {
        // A socket that is not connected reports no error but that it is empty.
        match self {
            Self::Unix(_) => {
                let (len, sender) = credentials::receive(fd, buffer).ok()?;
                let from = sender
                    .name
                    .and_then(|name| SocketAddrUnix::new_abstract_name(&name).ok());
                Some(Received {
                    len,
                    from: from.map(Peer::Unix),
                    user: sender.credentials.map(|of| of.uid),
                })
            }
            Self::Udp(_) => {
                let (len, _, from) = recvfrom(&*fd, &mut *buffer, RecvFlags::empty()).ok()?;
                let from = match SocketAddr::try_from(from?).ok()? {
                    SocketAddr::V4(address) => Some(Peer::Udp(address)),
                    SocketAddr::V6(_) => None,
                };
                Some(Received {
                    len,
                    from,
                    user: None,
                })
            }
        }
    }

    /// The next datagram of a data socket; `None` if there is none now.
    pub(super) fn receive(
        &self,
        fd: &mut ClientSocket,
        buffer: &mut [u8],
    ) -> Result<Option<Received>, Errno> {
        let received = match self {
            Self::Unix(_) => credentials::receive(fd, buffer)
                .map(|(len, sender)| (len, sender.credentials.map(|of| of.uid))),
            Self::Udp(_) => {
                recv(&*fd, &mut *buffer, RecvFlags::empty()).map(|(len, _)| (len, None))
            }
        };
        match received {
            Ok((len, user)) => Ok(Some(Received {
                len,
                from: None,
                user,
            })),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn reply(fd: &ClientSocket, to: &Peer, control: &Control) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL;
    match to {
        Peer::Unix(address) => sendto(fd, control.as_bytes(), flags, address)?,
        Peer::Udp(address) => sendto(fd, control.as_bytes(), flags, address)?,
    };
    Ok(())
}

pub(super) fn send(fd: &mut ClientSocket, datagram: &[u8]) -> Sent {
    match fd.send(datagram) {
        Ok(_) => Sent::Taken,
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Sent::Full,
        Err(_) => Sent::Gone,
    }
}
