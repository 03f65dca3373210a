//! Clients that pass descriptors whose close takes long, and clients whose ends have many waiters.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
    socketpair,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::attacks::note;
use super::raw::RawVmm;
use super::victims::Trouble;

/// Bytes of memory that no protocol of the socket takes.
const MEMORY: u64 = 512 << 20;

/// Number of epoll instances, and of registrations of the client's socket in each.
const WATCHERS: usize = 500;

/// Time for which a close waits, before the peer ends the wait.
const LINGER: Duration = Duration::from_millis(200);

/// Number of threads that close at a time, as many as the service's receiver has for a user.
const CLOSING: usize = 16;

/// Receiver of the descriptors that an attacker passes.
#[derive(Clone, Copy)]
pub(super) enum Receiver<'t> {
    /// The service: its sockets in the folder, and the socket of a VF, in turn.
    Service { lab: &'t Path, vf: &'t Path },
    /// A thread of the attacker itself: a baseline, with the kernel's work alone.
    Own,
}

/// Passes TCP sockets whose close waits.
pub(super) fn linger(receiver: Receiver<'_>) -> Result<(), Trouble> {
    in_turn(receiver, |socket| {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        set_socket_linger(&near, Some(Duration::from_secs(3600)))?;
        near.set_nonblocking(true)?;
        while (&near).write(&[0; 65536]).is_ok() {}
        // The peer's unread bytes end the wait with a reset, this process's own as well.
        std::thread::spawn(move || {
            std::thread::sleep(LINGER);
            drop(far);
        });
        pass(socket, &near.into(), 1)
    })
}

/// Passes as many descriptors with each message as one can have.
pub(super) fn descriptors(receiver: Receiver<'_>) -> Result<(), Trouble> {
    let null = File::open("/dev/null")?.into();
    in_turn(receiver, |socket| pass(socket, &null, 253))
}

/// Passes memory files of which it has all pages, and which the service's socket does not take.
pub(super) fn refused_memory(receiver: Receiver<'_>) -> Result<(), Trouble> {
    in_turn(receiver, |socket| {
        let memory = memfd_create("refused", MemfdFlags::CLOEXEC)?;
        fallocate(&memory, FallocateFlags::empty(), 0, MEMORY)?;
        pass(socket, &memory, 1)
    })
}

/// Adds a VMM's socket to so many epoll instances that each reply takes long to send.
pub(super) fn watchers(vf: &Path, pages: usize) -> Result<(), Trouble> {
    raise_limit();
    let vmm = RawVmm::start(vf, pages)?;
    let _epolls = watch(&vmm.copies(WATCHERS)?)?;
    let posts = vmm.posts();
    Ok(vmm.repeat(&[posts])?)
}

/// Adds a socket to so many epoll instances, and exchanges messages with the other end, which is its own.
pub(super) fn own_watchers() -> Result<(), Trouble> {
    raise_limit();
    let (near, far) = UnixStream::pair()?;
    let copies = (0..WATCHERS).map(|_| near.try_clone().map(OwnedFd::from));
    let _epolls = watch(&copies.collect::<Result<Vec<_>, _>>()?)?;
    std::thread::spawn(move || -> io::Result<()> {
        let mut message = [0; 4096];
        while (&far).read(&mut message)? > 0 {
            (&far).write_all(&message[..16])?;
        }
        Ok(())
    });
    let mut reply = [0; 16];
    loop {
        (&near).write_all(&[0; 4096])?;
        (&near).read_exact(&mut reply)?;
        note();
    }
}

/// Raises this process's limit of descriptors to its maximum.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // With fewer descriptors than the watchers take, the attack ends with an error of its own.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Adds each of the sockets to as many epoll instances.
fn watch(sockets: &[OwnedFd]) -> io::Result<Vec<OwnedFd>> {
    let mut epolls = Vec::new();
    for _ in 0..WATCHERS {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for socket in sockets {
            epoll::add(&epoll, socket, EventData::new_u64(0), EventFlags::IN)?;
        }
        epolls.push(epoll);
    }
    Ok(epolls)
}

/// Connects to each of the receiver's sockets in turn, passes descriptors, and disconnects.
fn in_turn(
    receiver: Receiver<'_>,
    mut attack: impl FnMut(&OwnedFd) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    match receiver {
        Receiver::Service { lab, vf } => {
            // Not to the control socket: a new client there displaces a silent one, and the siege would measure that.
            let sockets: [(PathBuf, SocketType); 3] = [
                (lab.join("umad"), SocketType::SEQPACKET),
                (lab.join("umad.verbs"), SocketType::SEQPACKET),
                (vf.to_owned(), SocketType::STREAM),
            ];
            for (path, kind) in sockets.iter().cycle() {
                let socket = socket_with(AddressFamily::UNIX, *kind, SocketFlags::CLOEXEC, None)?;
                // Where too many wait already, the next socket's turn has come.
                if connect(&socket, &SocketAddrUnix::new(path)?).is_ok() {
                    // The service may have ended the connection.
                    let _ = attack(&socket);
                }
                note();
            }
        }
        Receiver::Own => {
            let closing = Arc::new(());
            loop {
                while Arc::strong_count(&closing) > CLOSING {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let (near, far) = socketpair(
                    AddressFamily::UNIX,
                    SocketType::SEQPACKET,
                    SocketFlags::CLOEXEC,
                    None,
                )?;
                attack(&near)?;
                let held = Arc::clone(&closing);
                std::thread::spawn(move || {
                    let closed = take_and_close(&far);
                    drop(held);
                    closed
                });
                note();
            }
        }
    }
    Ok(())
}

/// Receives a message and closes the descriptors with it.
fn take_and_close(socket: &OwnedFd) -> io::Result<()> {
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut message = [0; 64];
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut message)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    Ok(())
}

/// Passes a descriptor so many times with one message.
fn pass(socket: &OwnedFd, fd: &OwnedFd, times: usize) -> Result<(), Trouble> {
    let fds = vec![fd.as_fd(); times];
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let message = [IoSlice::new(&[0; 16])];
    sendmsg(socket, &message, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
