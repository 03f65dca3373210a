//! Who is at the other end of a Unix socket, as the kernel tells it.
//!
//! `unsafe`: the calls for it. The process id of one in another pid namespace is 0, for which the types of the crate
//! that wraps them have no value.
#![expect(
    unsafe_code,
    reason = "no crate in use takes credentials of processes without an id"
)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "the sizes of small structures"
)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use rustix::io::Errno;
use rustix::process::{Pid, Uid};
use vhca_receiver::ClientSocket;

/// A process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// Its id, if it has one in this process's namespace.
    pub(crate) pid: Option<Pid>,
    /// Its user; that of overflow (65534) if it has none in this process's namespace.
    pub(crate) uid: Uid,
}

impl From<libc::ucred> for Credentials {
    fn from(of: libc::ucred) -> Self {
        Self {
            pid: Pid::from_raw(of.pid),
            uid: Uid::from_raw(of.uid),
        }
    }
}

/// The process that connected a socket of a connection.
///
/// # Errors
/// What the system says.
pub(crate) fn of_peer(socket: impl AsFd) -> io::Result<Credentials> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as _;
    // SAFETY: Both pointers are to objects of this frame, and `len` is the size of the first one.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: It is three integers, of which zero is a value.
    Ok(unsafe { credentials.assume_init() }.into())
}

/// Makes a socket, and sockets that it accepts later, refuse descriptors: senders get EPERM. Returns `false` where the kernel
/// cannot (before Linux 6.16).
pub(crate) fn refuse_descriptors(socket: impl AsFd) -> bool {
    /// `SO_PASSRIGHTS` of `asm-generic/socket.h`.
    const SO_PASSRIGHTS: libc::c_int = 83;

    let off: libc::c_int = 0;
    // SAFETY: The pointer is to an integer of this frame, whose size stands behind it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size_of::<libc::c_int>() as _,
        )
    };
    result == 0
}

/// What came with a datagram.
#[derive(Debug)]
pub(crate) struct Sender {
    /// The name of its socket in the abstract namespace, if it has one there.
    pub(crate) name: Option<Vec<u8>>,
    /// The process, of a socket with `SO_PASSCRED`.
    pub(crate) credentials: Option<Credentials>,
}

/// Receives a datagram from a Unix socket, without waiting for one. The receiver discards those that have descriptors.
///
/// # Errors
/// [`Errno::AGAIN`] if there is none, and what the system says.
pub(crate) fn receive(
    socket: &mut ClientSocket,
    buffer: &mut [u8],
) -> Result<(usize, Sender), Errno> {
    if socket.is_asking() {
        socket.discard()?;
    }
    if socket.lane().is_some() {
        // Room for credentials alone: no descriptor is installed.
        let (_, _, is_cut) = receive_with(&*socket, &mut [], libc::MSG_PEEK, CREDENTIALS)?;
        if is_cut {
            socket.discard()?;
        }
    }
    let (len, sender, _) = receive_with(&*socket, buffer, 0, CONTROL)?;
    Ok((len, sender))
}

/// Bytes of a control part with credentials.
// SAFETY: The macro computes with its argument and touches no memory.
const CREDENTIALS: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;

/// Bytes of the control part that is read.
const CONTROL: usize = 64;

/// Receives a datagram with `room` bytes for the control part, of [`CONTROL`] at most. Returns `true` if that was too little.
fn receive_with(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: libc::c_int,
    room: usize,
) -> Result<(usize, Sender, bool), Errno> {
    /// Room for one message with credentials, aligned as its header is to be.
    #[repr(C)]
    union Control {
        _header: libc::cmsghdr,
        bytes: [u8; CONTROL],
    }

    // SAFETY: Both are plain integers and bytes, of which zero is a value.
    let (mut address, mut control) = unsafe {
        (
            MaybeUninit::<libc::sockaddr_un>::zeroed().assume_init(),
            Control {
                bytes: [0; CONTROL],
            },
        )
    };
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: It is integers and pointers, of which zero is a value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = size_of::<libc::sockaddr_un>() as _;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = room.min(CONTROL) as _;
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: All pointers in the message are to live objects with the lengths that stand beside them.
    let len = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(len).map_err(|_| last_errno())?;
    Ok((
        len,
        Sender {
            name: abstract_name(&address, message.msg_namelen),
            credentials: credentials(&message),
        },
        message.msg_flags & libc::MSG_CTRUNC != 0,
    ))
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The name behind the zero byte that begins an abstract address.
#[expect(clippy::cast_sign_loss, reason = "characters are bytes here")]
fn abstract_name(address: &libc::sockaddr_un, len: libc::socklen_t) -> Option<Vec<u8>> {
    let offset = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    let len = usize::try_from(len).ok()?.checked_sub(offset)?;
    let (first, name) = address.sun_path.get(..len)?.split_first()?;
    (*first == 0).then(|| name.iter().map(|byte| *byte as u8).collect())
}

/// The credentials in a message's control part. Descriptors in it, which nobody asked for, are closed.
fn credentials(message: &libc::msghdr) -> Option<Credentials> {
    let mut found = None;
    // SAFETY: The message is as recvmsg(2) left it, with its control part still in place.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: The macros give headers that lie wholly in the control part.
        let (of, data) = unsafe { (*header, libc::CMSG_DATA(header)) };
        let len: usize = of.cmsg_len as _;
        let len = len.saturating_sub(data as usize - header as usize);
        match (of.cmsg_level, of.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if len >= size_of::<libc::ucred>() => {
                // SAFETY: So many bytes of data are there; they need not be aligned.
                let of = unsafe { ptr::read_unaligned(data.cast::<libc::ucred>()) };
                found = Some(of.into());
            }
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for index in 0..len / size_of::<libc::c_int>() {
                    // SAFETY: So many descriptors are there, and they are this process's from now on.
                    unsafe {
                        libc::close(ptr::read_unaligned(data.cast::<libc::c_int>().add(index)))
                    };
                }
            }
            _ => {}
        }
        // SAFETY: As for the first header.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};

    use rustix::net::sockopt::set_socket_passcred;
    use rustix::process::{getpid, getuid};

    use super::*;

    #[test]
    fn the_other_end_of_a_connection_is_known() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = of_peer(&one).unwrap();
        assert_eq!((peer.pid, peer.uid), (Some(getpid()), getuid()));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(of_peer(file).is_err());
    }

    #[test]
    fn a_datagram_comes_with_its_senders_name_and_user_and_without_its_descriptors() {
        let (server, client) = UnixDatagram::pair().unwrap();
        set_socket_passcred(&server, true).unwrap();
        let mut server = ClientSocket::trusted(server.into());
        let mut buffer = [0; 8];
        assert_eq!(receive(&mut server, &mut buffer).unwrap_err(), Errno::AGAIN);
        client.send(b"words").unwrap();
        let (len, sender) = receive(&mut server, &mut buffer).unwrap();
        let credentials = sender.credentials.unwrap();
        assert_eq!((len, &buffer[..len]), (5, &b"words"[..]));
        assert_eq!(
            (credentials.pid, credentials.uid),
            (Some(getpid()), getuid())
        );
        assert_eq!(sender.name, None);

        let name = format!("vhca-credentials-{}", std::process::id());
        let named = SocketAddr::from_abstract_name(&name).unwrap();
        let server_name = SocketAddr::from_abstract_name(format!("{name}-server")).unwrap();
        let named = UnixDatagram::bind_addr(&named).unwrap();
        let server = UnixDatagram::bind_addr(&server_name).unwrap();
        let mut server = ClientSocket::trusted(server.into());
        named.send_to_addr(b"", &server_name).unwrap();
        let (len, sender) = receive(&mut server, &mut buffer).unwrap();
        assert_eq!((len, sender.credentials), (0, None));
        assert_eq!(sender.name, Some(name.into_bytes()));
    }

    #[test]
    fn a_socket_that_refuses_descriptors_takes_messages_without_them() {
        use rustix::io::IoSlice;
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

        let (server, client) = UnixDatagram::pair().unwrap();
        if !refuse_descriptors(&server) {
            eprintln!("not run: the kernel has no SO_PASSRIGHTS");
            return;
        }
        let given = [client.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&given)));
        let flags = SendFlags::empty();
        let sent = sendmsg(&client, &[IoSlice::new(b"x")], &mut ancillary, flags);
        assert_eq!(sent, Err(Errno::PERM));
        assert_eq!(client.send(b"x").unwrap(), 1);
    }

    #[test]
    fn descriptors_that_come_with_a_datagram_are_closed() {
        use rustix::io::IoSlice;
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

        let (server, client) = UnixDatagram::pair().unwrap();
        let mut server = ClientSocket::trusted(server.into());
        let (mine, theirs) = UnixStream::pair().unwrap();
        let given = [theirs.as_fd(), theirs.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&given)));
        let flags = SendFlags::empty();
        sendmsg(&client, &[IoSlice::new(b"x")], &mut ancillary, flags).unwrap();
        drop(theirs);
        receive(&mut server, &mut [0]).unwrap();
        let mut byte = [0];
        assert_eq!(io::Read::read(&mut &mine, &mut byte).unwrap(), 0);
    }
}
