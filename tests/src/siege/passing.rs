//! Clients that pass descriptors whose close takes long, and clients whose ends have many waiters.

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::io::IoSlice;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
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

/// Passes TCP sockets whose close waits, to each of the service's sockets in turn.
pub(super) fn linger(lab: &Path, vf: &Path) -> Result<(), Trouble> {
    in_turn(lab, vf, |socket| {
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
pub(super) fn descriptors(lab: &Path, vf: &Path) -> Result<(), Trouble> {
    let null = File::open("/dev/null")?.into();
    in_turn(lab, vf, |socket| pass(socket, &null, 253))
}

/// Passes memory files of which it has all pages, and which the service's socket does not take.
pub(super) fn refused_memory(lab: &Path, vf: &Path) -> Result<(), Trouble> {
    in_turn(lab, vf, |socket| {
        let memory = memfd_create("refused", MemfdFlags::CLOEXEC)?;
        fallocate(&memory, FallocateFlags::empty(), 0, MEMORY)?;
        pass(socket, &memory, 1)
    })
}

/// Adds a VMM's socket to so many epoll instances that each reply takes long to send.
pub(super) fn watchers(vf: &Path, pages: usize) -> Result<(), Trouble> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised)?;
    let vmm = RawVmm::start(vf, pages)?;
    let copies = vmm.copies(WATCHERS)?;
    let mut epolls = Vec::new();
    for _ in 0..WATCHERS {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for copy in &copies {
            epoll::add(&epoll, copy, EventData::new_u64(0), EventFlags::IN)?;
        }
        epolls.push(epoll);
    }
    let posts = vmm.posts();
    Ok(vmm.repeat(&[posts])?)
}

/// Connects to each of the service's sockets in turn, passes descriptors, and disconnects.
fn in_turn(
    lab: &Path,
    vf: &Path,
    mut attack: impl FnMut(&OwnedFd) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    // Not to the control socket, where a new client makes a silent one go: that would be measured.
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
