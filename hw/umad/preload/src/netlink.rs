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
        let mut rest = answer.as_slice();
        while !rest.is_empty() {
            let (datagram, others) = rest.split_at(datagram_len(rest));
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            rustix::net::send(&self.peer, datagram, flags)?;
            rest = others;
        }
        Ok(())
    }
}

/// Bytes of a datagram for which programs have room, as the kernel fills them.
const ROOM: usize = 4096;

/// Returns how many bytes of messages go into the next datagram: those for which it has room, and one in any case.
fn datagram_len(messages: &[u8]) -> usize {
    let mut len = 0;
    while let Some(size) = messages[len..].first_chunk().copied() {
        // Messages begin at multiples of four.
        let size = usize::try_from(u32::from_ne_bytes(size)).unwrap_or(usize::MAX);
        let end = len
            .saturating_add(size.next_multiple_of(4))
            .min(messages.len());
        if size < 16 || (len > 0 && end > ROOM) {
            break;
        }
        len = end;
    }
    if len == 0 { messages.len() } else { len }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(size: u32) -> Vec<u8> {
        let mut message = size.to_ne_bytes().to_vec();
        message.resize(usize::try_from(size).unwrap(), 0);
        message
    }

    #[test]
    fn datagrams_have_whole_messages() {
        for (sizes, expected) in [
            (&[16, 20][..], 36),
            (&[4000, 100], 4000),
            (&[4000, 96], 4096),
            (&[6000, 16], 6000),
            (&[16], 16),
        ] {
            let messages: Vec<u8> = sizes.iter().flat_map(|size| message(*size)).collect();
            assert_eq!(datagram_len(&messages), expected, "{sizes:?}");
        }
        assert_eq!(datagram_len(&[0; 8]), 8, "no message");
        assert_eq!(datagram_len(&[1, 2]), 2);
    }
}
