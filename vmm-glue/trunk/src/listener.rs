//! Sockets at which trunks arrive.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::address::TrunkAddress;

/// A socket that listens.
#[derive(Debug)]
pub struct TrunkListener {
    socket: OwnedFd,
    path: Option<PathBuf>,
}

impl TrunkListener {
    /// Listens at an address. A Unix socket that a service left behind is replaced; its mode is as the umask says.
    ///
    /// # Errors
    /// Errors of the system, [`io::ErrorKind::AddrInUse`] above all.
    pub fn bind(address: &TrunkAddress) -> io::Result<Self> {
        let (socket, path) = match address {
            TrunkAddress::Unix(path) | TrunkAddress::Vhost(path) => {
                let socket = bind_unix(path)?;
                socket.set_nonblocking(true)?;
                (socket.into(), Some(path.clone()))
            }
            TrunkAddress::Tcp { host, port } | TrunkAddress::Tls { host, port } => {
                let socket = TcpListener::bind(TrunkAddress::socket(host, *port))?;
                socket.set_nonblocking(true)?;
                (socket.into(), None)
            }
        };
        Ok(Self { socket, path })
    }

    /// Accepts a connection; `None` if none waits.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(&self.socket, flags) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the path of a Unix socket.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

/// Binds a Unix socket, in place of one that is left over.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = path.symlink_metadata()?.file_type().is_socket();
            if !is_socket || UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

impl AsFd for TrunkListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
