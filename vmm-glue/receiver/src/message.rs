//! Messages between the service and the receiver: packets on Unix sockets of one host, integers in its byte order.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::{Kind, SCM_MAX_FD};

/// An order of the service on the channel to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Serve a client of a user: its socket and the end of a lane come along.
    Client(Kind, u32),
    /// Keep a descriptor open until the service ends.
    Keep,
    /// Say whether a process has a file, by device and inode, mapped privately: a socket for the answer comes along.
    Maps(i32, u64, u64),
}

/// Bytes of an order.
const ORDER: usize = 1 + 4 + 8 + 8;

impl Order {
    pub(crate) fn encode(self) -> [u8; ORDER] {
        let mut bytes = [0; ORDER];
        match self {
            Self::Client(kind, uid) => {
                bytes[0] = 1;
                bytes[1..5].copy_from_slice(&uid.to_ne_bytes());
                bytes[5] = kind.number();
            }
            Self::Keep => bytes[0] = 2,
            Self::Maps(pid, device, inode) => {
                bytes[0] = 3;
                bytes[1..5].copy_from_slice(&pid.to_ne_bytes());
                bytes[5..13].copy_from_slice(&device.to_ne_bytes());
                bytes[13..].copy_from_slice(&inode.to_ne_bytes());
            }
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        let (number, rest) = rest.split_first_chunk::<4>()?;
        let (device, inode) = rest.split_first_chunk::<8>()?;
        let inode = inode.first_chunk::<8>()?;
        Some(match tag {
            1 => {
                let kind = Kind::ALL.get(usize::from(device[0]))?;
                Self::Client(*kind, u32::from_ne_bytes(*number))
            }
            2 => Self::Keep,
            3 => Self::Maps(
                i32::from_ne_bytes(*number),
                u64::from_ne_bytes(*device),
                u64::from_ne_bytes(*inode),
            ),
            _ => return None,
        })
    }
}

/// A request of the service on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Read a message of so many bytes at most.
    Read(u32),
    /// Send the bytes behind the head, and say so.
    Send,
}

/// Bytes before those of a message on a lane, in both directions: of a request its kind and length, of an answer the error number,
/// or zero.
pub(crate) const LANE_HEAD: usize = 4;

impl Request {
    /// In place of a length.
    const SEND: u32 = u32::MAX;

    pub(crate) fn head(self) -> [u8; LANE_HEAD] {
        match self {
            Self::Read(most) => most.min(Self::SEND - 1),
            Self::Send => Self::SEND,
        }
        .to_ne_bytes()
    }

    pub(crate) const fn of(head: [u8; LANE_HEAD]) -> Self {
        match u32::from_ne_bytes(head) {
            Self::SEND => Self::Send,
            most => Self::Read(most),
        }
    }
}

/// Makes the two ends of a channel.
pub(crate) fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends a packet of two parts with descriptors.
pub(crate) fn send(
    channel: impl AsFd,
    parts: [&[u8]; 2],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let parts = parts.map(IoSlice::new);
    loop {
        match sendmsg(
            &channel,
            &parts,
            &mut ancillary,
            flags | SendFlags::NOSIGNAL,
        ) {
            Err(Errno::INTR) => {}
            sent => return sent.map(|_| ()),
        }
    }
}

/// A packet as it came.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) len: usize,
    pub(crate) fds: Vec<OwnedFd>,
    /// Descriptors were lost, since this process has no room for more.
    pub(crate) is_cut: bool,
}

/// Receives a packet with `most` of its descriptors, without waiting for one. The kernel closes the others.
pub(crate) fn receive(
    channel: impl AsFd,
    head: &mut [u8],
    body: &mut [u8],
    most: usize,
) -> Result<Packet, Errno> {
    receive_with(channel, head, body, most, RecvFlags::empty())
}

/// Receives a message with `most` of its descriptors. Returns [`Errno::MFILE`] and leaves the message where it is while
/// this process has too few free descriptors for it.
pub(crate) fn receive_whole(
    socket: impl AsFd,
    body: &mut [u8],
    most: usize,
) -> Result<Packet, Errno> {
    // The kernel loses descriptors for which there is no room. A message that was only looked at has its descriptors still.
    let looked = receive_with(&socket, &mut [], body, most, RecvFlags::PEEK)?;
    if looked.is_cut && looked.fds.len() < most {
        return Err(Errno::MFILE);
    }
    let taken = receive_with(&socket, &mut [], body, 0, RecvFlags::empty())?;
    let mut packet = Packet {
        len: taken.len,
        ..looked
    };
    // A look at a message of a stream shows the descriptors of the next one, too (`unix_stream_read_generic` goes on for no bytes). A
    // message that has some is cut where there is no room for them.
    if !taken.is_cut {
        packet.fds.clear();
        packet.is_cut = false;
    }
    Ok(packet)
}

fn receive_with(
    channel: impl AsFd,
    head: &mut [u8],
    body: &mut [u8],
    most: usize,
    flags: RecvFlags,
) -> Result<Packet, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let room = match most {
        0 => 0,
        most => rustix::cmsg_space!(ScmRights(most)).min(space.len()),
    };
    let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    loop {
        let mut ancillary = RecvAncillaryBuffer::new(&mut space[..room]);
        let mut parts = [IoSliceMut::new(head), IoSliceMut::new(body)];
        let received = match recvmsg(&channel, &mut parts, &mut ancillary, flags) {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        let fds = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        return Ok(Packet {
            len: received.bytes,
            fds: fds.flatten().collect(),
            is_cut: received.flags.contains(rustix::net::ReturnFlags::CTRUNC),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_as_they_were_made() {
        for request in [Request::Read(0), Request::Read(1 << 17), Request::Send] {
            assert_eq!(Request::of(request.head()), request);
        }
    }

    #[test]
    fn descriptors_of_a_stream_are_those_of_the_bytes_with_which_they_came() {
        let flags = SocketFlags::CLOEXEC;
        let streams = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (client, socket) = streams.unwrap();
        let say = |bytes: &[u8], fds: &[BorrowedFd<'_>]| {
            send(&client, [bytes, &[]], fds, SendFlags::empty()).unwrap();
        };
        let one = client.as_fd();
        say(b"none", &[]);
        say(b"some", &[one, one]);
        say(b"more", &[one]);
        say(b"last", &[]);
        let mut body = [0; 4];
        let mut next = |len: usize| {
            let packet = receive_whole(&socket, &mut body[..len], 8).unwrap();
            assert!(!packet.is_cut);
            (packet.len, packet.fds.len())
        };
        assert_eq!(next(4), (4, 0));
        // The first bytes of a message bring them, as of the head of a message.
        assert_eq!(next(2), (2, 2));
        assert_eq!(next(2), (2, 0));
        assert_eq!(next(4), (4, 1));
        assert_eq!(next(4), (4, 0));
    }

    #[test]
    fn orders_come_back_as_they_were_given() {
        for order in [
            Order::Client(Kind::Program, 1000),
            Order::Keep,
            Order::Maps(4711, 3, u64::MAX),
        ] {
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
        assert_eq!(Order::decode(&[9; ORDER]), None);
        assert_eq!(Order::decode(&[1, 2]), None);
    }
}
