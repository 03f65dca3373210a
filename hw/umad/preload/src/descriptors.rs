//! Files of ours, and how a descriptor is known to be one of them still.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::netlink::NetlinkSocket;
use crate::umad_file::UmadFile;
use crate::verbs::{Channel, UverbsFile};

/// The kernel's name for what is behind a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// Reads the identity of a descriptor.
    pub(crate) fn of(fd: impl AsFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(fd)?;
        Ok(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }

    /// Returns `true` if a descriptor has this identity.
    pub(crate) fn is_behind(self, fd: BorrowedFd<'_>) -> bool {
        Self::of(fd) == Ok(self)
    }
}

/// A file of ours that the program has open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    identity: Identity,
    pub(crate) kind: FileKind,
}

/// Kinds of files.
#[derive(Debug)]
pub(crate) enum FileKind {
    /// An umad file: a connection to the service.
    Umad(UmadFile),
    /// A uverbs file: the memory file of the process's VF.
    Uverbs(UverbsFile),
    /// A channel of events: a socket.
    Channel(Channel),
    /// A file of the RDMA CM: the channel of its events.
    RdmaCm(Channel),
    /// A netlink socket: one of a pair.
    Netlink(NetlinkSocket),
    /// A file of sysfs, by its path below the tree's root: a memory file with the text.
    Attribute(String),
}

impl OpenFile {
    /// Wraps what is behind a descriptor.
    pub(crate) fn new(fd: impl AsFd, kind: FileKind) -> Result<Self, Errno> {
        let identity = Identity::of(fd)?;
        Ok(Self { identity, kind })
    }

    pub(crate) const fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the umad file, if it is one.
    pub(crate) const fn umad(&self) -> Option<&UmadFile> {
        match &self.kind {
            FileKind::Umad(file) => Some(file),
            _ => None,
        }
    }

    /// Returns the uverbs file, if it is one.
    pub(crate) const fn uverbs(&self) -> Option<&UverbsFile> {
        match &self.kind {
            FileKind::Uverbs(file) => Some(file),
            _ => None,
        }
    }

    /// Returns the file of the RDMA CM, if it is one.
    pub(crate) const fn rdma_cm(&self) -> Option<&Channel> {
        match &self.kind {
            FileKind::RdmaCm(channel) => Some(channel),
            _ => None,
        }
    }

    /// Returns the path of the file of sysfs, if it is one.
    pub(crate) fn attribute(&self) -> Option<&str> {
        match &self.kind {
            FileKind::Attribute(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the channel of events, of either kind.
    pub(crate) const fn channel(&self) -> Option<&Channel> {
        match &self.kind {
            FileKind::Channel(channel) | FileKind::RdmaCm(channel) => Some(channel),
            _ => None,
        }
    }

    /// Returns the netlink socket, if it is one.
    pub(crate) const fn netlink(&self) -> Option<&NetlinkSocket> {
        match &self.kind {
            FileKind::Netlink(socket) => Some(socket),
            _ => None,
        }
    }
}
