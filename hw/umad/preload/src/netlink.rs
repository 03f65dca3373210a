//! Netlink sockets of RDMA: one of a pair, into whose other end answers are written.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use crate::verbs;

/// A netlink socket of the program.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    /// The end that the program does not have.
    peer: OwnedFd,
}

impl NetlinkSocket {
    /// Opens a socket. Returns the program's end, too.
    pub(crate) fn open() -> Result<(OwnedFd, Self), Errno> {
        let (program, peer) = socketpair(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((program, Self { peer }))
    }

    /// Takes a message of the program, and has its answer ready to be received.
    pub(crate) fn send(&self, message: &[u8]) -> Result<(), Errno> {
        let answer = verbs::ask_netlink(message);
        if !answer.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            rustix::net::send(&self.peer, &answer, flags)?;
        }
        Ok(())
    }
}
