//! Where the listening sockets of a service come from: the service manager, or the file system.
//!
//! `unsafe`: taking descriptors by their numbers, as sd_listen_fds(3) has them.
#![expect(
    unsafe_code,
    reason = "only a number tells which descriptors were passed"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{SocketAddrUnix, SocketType, getsockname};

use super::access::{Access, AccessError, AccessSpec, AccessTable, SocketName};
use super::claim::{Claim, ClaimError, claim_socket};

/// A socket that listens and does not block.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: OwnedFd,
    /// Where clients find it.
    pub(super) path: PathBuf,
    /// The right to the path, unless the service manager has it.
    pub(super) claim: Option<Claim>,
}

impl Listener {
    /// Listens for streams at a path, for the user of this process alone.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn stream(path: &Path) -> Result<Self, ClaimError> {
        Self::claim(path, SocketType::STREAM, &Access::default())
    }

    /// The same for packets, which keep the bounds of messages.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn packets(path: &Path) -> Result<Self, ClaimError> {
        Self::claim(path, SocketType::SEQPACKET, &Access::default())
    }

    fn claim(path: &Path, kind: SocketType, access: &Access) -> Result<Self, ClaimError> {
        let (socket, claim) = claim_socket(path, kind, access)?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            claim: Some(claim),
        })
    }

    /// Takes a socket that the service manager made.
    fn adopt(name: &SocketName, socket: OwnedFd, kind: SocketType) -> Result<Self, ClaimError> {
        let wrong = |why| ClaimError::Passed {
            name: name.to_string(),
            why,
        };
        let address = getsockname(&socket).ok();
        let address = address.and_then(|address| SocketAddrUnix::try_from(address).ok());
        let path = address.as_ref().and_then(SocketAddrUnix::path_bytes);
        let path = path.ok_or_else(|| wrong("is no Unix socket with a path"))?;
        if socket_type(&socket) != Ok(kind) {
            return Err(wrong(if kind == SocketType::STREAM {
                "is of another type: say ListenStream="
            } else {
                "is of another type: say ListenSequentialPacket="
            }));
        }
        if socket_acceptconn(&socket) != Ok(true) {
            return Err(wrong("does not listen: say Accept=no"));
        }
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(path));
        let is_set =
            fcntl_getfl(&socket).and_then(|flags| fcntl_setfl(&socket, flags | OFlags::NONBLOCK));
        is_set.map_err(|error| ClaimError::Refused {
            path: path.clone(),
            source: error.into(),
        })?;
        Ok(Self {
            socket,
            path,
            claim: None,
        })
    }
}

/// The sockets that the service manager passed, and who may connect to the others.
#[derive(Debug, Default)]
pub struct Listeners {
    passed: BTreeMap<SocketName, OwnedFd>,
    access: AccessTable,
    /// Folders of which it was said that they keep out those who may connect, or let all users replace sockets.
    warned: BTreeSet<PathBuf>,
}

impl Listeners {
    /// Looks up whom the rules name, and takes what sd_listen_fds(3) has. To be called once in a process.
    pub(super) fn new(rules: &BTreeMap<SocketName, AccessSpec>) -> Result<Self, super::ServeError> {
        let access = AccessTable::resolve(rules)?;
        let passed = passed()?;
        Ok(Self {
            passed,
            access,
            warned: BTreeSet::new(),
        })
    }

    /// Returns the socket of a name: the one that was passed, or else a new one at a path.
    pub(super) fn stream(
        &mut self,
        name: &SocketName,
        path: &Path,
    ) -> Result<Listener, ClaimError> {
        self.open(name, path, SocketType::STREAM)
    }

    /// The same for packets.
    pub(super) fn packets(
        &mut self,
        name: &SocketName,
        path: &Path,
    ) -> Result<Listener, ClaimError> {
        self.open(name, path, SocketType::SEQPACKET)
    }

    fn open(
        &mut self,
        name: &SocketName,
        path: &Path,
        kind: SocketType,
    ) -> Result<Listener, ClaimError> {
        if let Some(socket) = self.passed.remove(name) {
            return Listener::adopt(name, socket, kind);
        }
        let access = self.access.of(name);
        let listener = Listener::claim(path, kind, &access)?;
        self.warn_of_open_folder(name, path);
        if access.is_shared() {
            self.warn_of_closed_folders(name, path, &access);
        }
        Ok(listener)
    }

    /// Who may connect to a socket.
    pub(super) fn access(&self, name: &SocketName) -> Access {
        self.access.of(name)
    }

    /// The mode of a folder for the sockets of VFs: their own modes tell who may connect, but a closed folder would
    /// keep everybody away.
    pub(super) fn folder_mode(&self) -> u32 {
        if self.access.shares_vfs() {
            0o711
        } else {
            0o700
        }
    }

    /// Checks that each name of a VF is one that is offered.
    pub(super) fn check_vfs(
        &self,
        is_offered: impl Fn(&SocketName) -> bool,
    ) -> Result<(), AccessError> {
        let passed = self.passed.keys().filter(|name| name.is_of_vfs());
        let mut vfs = passed.chain(self.access.vfs());
        match vfs.find(|name| !is_offered(name)) {
            Some(name) => Err(AccessError::NoVf(name.clone())),
            None => Ok(()),
        }
    }

    /// Warns of a folder in which every user can put another socket in the place of a socket.
    fn warn_of_open_folder(&mut self, name: &SocketName, path: &Path) {
        const STICKY: u32 = 0o1000;
        let Some(folder) = path.parent() else { return };
        let mode = std::fs::metadata(folder).map_or(0, |found| found.mode());
        if mode & (STICKY | 0o002) == 0o002 && self.warned.insert(folder.to_owned()) {
            log::warn!(
                "{name}: every user of this host can replace sockets in {}: run chmod o-w {0}",
                folder.display()
            );
        }
    }

    fn warn_of_closed_folders(&mut self, name: &SocketName, path: &Path, access: &Access) {
        for folder in path.ancestors().skip(1) {
            let closed = std::fs::metadata(folder).is_ok_and(|found| !access.can_search(&found));
            if closed && self.warned.insert(folder.to_owned()) {
                log::warn!(
                    "{name}: those who may connect cannot reach {}: {} is closed to them (chmod o+x)",
                    path.display(),
                    folder.display()
                );
            }
        }
    }
}

/// The first descriptor that a service manager passes.
const FIRST: RawFd = 3;

/// The sockets that sd_listen_fds(3) tells of, by their names.
fn passed() -> Result<BTreeMap<SocketName, OwnedFd>, ClaimError> {
    let number = |name| env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(BTreeMap::new());
    }
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut sockets = BTreeMap::new();
    for fd in (FIRST..).take(number("LISTEN_FDS").unwrap_or_default() as usize) {
        let text = names.next().unwrap_or_default();
        let wrong = |why| ClaimError::Passed {
            name: format!("{text:?}"),
            why,
        };
        let socket = take(fd).ok_or_else(|| wrong("is not open"))?;
        let name: SocketName = text.parse().map_err(|_| {
            wrong("belongs to nothing here: say FileDescriptorName=control, umad, verbs or HOST/N")
        })?;
        if matches!(name, SocketName::AllVfs | SocketName::VfsOf(_)) {
            return Err(wrong("can be of one VF only"));
        }
        if sockets.insert(name, socket).is_some() {
            return Err(wrong("was passed twice"));
        }
    }
    Ok(sockets)
}

/// Takes a descriptor that came with the process, if it is open.
fn take(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: Whoever started this process passed the descriptor to it by LISTEN_FDS, so nothing else in it owns it.
    // One that is not open is let go without being closed.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    match fcntl_setfd(&socket, FdFlags::CLOEXEC) {
        Ok(()) => Some(socket),
        Err(_) => {
            core::mem::forget(socket);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adopt(socket: impl Into<OwnedFd>, kind: SocketType) -> Result<Listener, String> {
        Listener::adopt(&SocketName::Control, socket.into(), kind)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_socket_that_was_passed_is_used_and_left_where_it_is() {
        use std::os::unix::net::{UnixListener, UnixStream};

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let socket = UnixListener::bind(&path).unwrap();
        let listener = adopt(socket, SocketType::STREAM).unwrap();
        assert_eq!(listener.path, path);
        UnixStream::connect(&path).unwrap();
        let flags = fcntl_getfl(&listener.socket).unwrap();
        assert!(flags.contains(OFlags::NONBLOCK));
        drop(listener);
        assert!(path.exists(), "it is the service manager's");
    }

    #[test]
    fn a_socket_that_cannot_be_used_is_refused_with_its_reason() {
        use std::net::TcpListener;
        use std::os::unix::net::{UnixDatagram, UnixListener};

        let folder = tempfile::tempdir().unwrap();
        let bind = |name| UnixListener::bind(folder.path().join(name)).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let datagrams = UnixDatagram::bind(folder.path().join("datagrams")).unwrap();
        let stream = SocketType::STREAM;
        for (refused, why) in [
            (adopt(tcp, stream), "no Unix socket with a path"),
            (adopt(datagrams, stream), "ListenStream="),
            (
                adopt(bind("s"), SocketType::SEQPACKET),
                "ListenSequentialPacket=",
            ),
            (
                adopt(UnixDatagram::unbound().unwrap(), stream),
                "with a path",
            ),
        ] {
            let error = refused.unwrap_err();
            assert!(error.contains(why) && error.contains("control"), "{error}");
        }
    }
}
