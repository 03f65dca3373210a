//! The connection to the service.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Once;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use umad_link::{Call, CallReply, Frame, FrameKind, HELLO_REPLY_SIZE, Hello, HelloReply, Purpose};

use crate::refusal::Refusal;
use crate::setting;

/// How long the service may take to answer, or to take what is sent to it, in seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a service that is short of descriptors is asked for a file, and how long one may take that makes trees for many
/// programs on a slow disk.
const BUSY: Duration = Duration::from_secs(60);

/// Pause between two such requests.
const PAUSE: Duration = Duration::from_millis(20);

/// Connects and says what for. Gives the connection and the text of the answer. A service that is short of descriptors
/// is asked again, with the connection closed in between.
pub(crate) fn ask(purpose: Purpose<'_>) -> Result<(OwnedFd, Vec<u8>), Errno> {
    let begun = Instant::now();
    loop {
        match ask_once(purpose) {
            Err(Errno::NFILE) if begun.elapsed() < BUSY => sleep(PAUSE),
            Err(Errno::NFILE) => {
                let path = setting::socket().unwrap_or_default();
                complain(&format!(
                    "vhca-umad: the service at {} has no descriptors left; raise its limit of open files (ulimit -n)\n",
                    path.display()
                ));
                return Err(Errno::NFILE);
            }
            asked => return asked,
        }
    }
}

/// Connects to a socket of the service.
pub(crate) fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let connection = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::connect(&connection, &SocketAddrUnix::new(path)?)?;
    Ok(connection)
}

/// Returns the two ends of a socket of packets: one for the answer to a call, and one that goes with the call.
pub(crate) fn packet_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

fn ask_once(purpose: Purpose<'_>) -> Result<(OwnedFd, Vec<u8>), Errno> {
    let path = setting::socket().ok_or(Errno::NOENT)?;
    let connection = connect(&path).inspect_err(|error| Refusal::Socket(path, *error).say())?;
    let hello = Hello {
        adapters: &setting::nodes(),
        device: &setting::device().unwrap_or_default(),
        purpose,
    };
    let hello = hello.encode().ok_or(Errno::NAMETOOLONG)?;
    let patience = match purpose {
        Purpose::Tree => BUSY,
        _ => PATIENCE,
    };
    limit_patience(&connection, Some(patience))?;
    rustix::net::send(&connection, &hello, SendFlags::NOSIGNAL)?;
    let mut reply = vec![0; HELLO_REPLY_SIZE];
    let (_, length) = rustix::net::recv(&connection, reply.as_mut_slice(), RecvFlags::empty())
        .map_err(|error| {
            if error == Errno::AGAIN {
                Errno::TIMEDOUT
            } else {
                error
            }
        })?;
    limit_patience(&connection, None)?;
    let reply = reply.get(..length).ok_or(Errno::PROTO)?;
    let reply = HelloReply::decode(reply).map_err(errno)?;
    let text = reply.result.map_err(errno).inspect_err(|error| {
        if *error == Errno::NODEV {
            Refusal::NoNode(setting::nodes()).say();
        }
    })?;
    let text = text.to_vec();
    Ok((connection, text))
}

/// What a call gave.
#[derive(Debug)]
pub(crate) struct Called {
    /// Whether it succeeded.
    pub(crate) result: Result<(), Errno>,
    /// The argument as it came back.
    pub(crate) argument: Vec<u8>,
    /// The file that came with it.
    pub(crate) attachment: Option<OwnedFd>,
}

/// Makes a call on the connection of an umad file.
pub(crate) fn call(
    connection: BorrowedFd<'_>,
    call: Call,
    argument: &[u8],
) -> Result<Called, Errno> {
    let (ours, theirs) = packet_pair()?;
    let frame = Frame {
        kind: FrameKind::Call(call),
        body: argument,
    };
    send(connection, &frame, Some(theirs.as_fd()))?;
    drop(theirs);
    limit_patience(&ours, Some(PATIENCE))?;
    let mut reply = [0; 256];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        &ours,
        &mut [IoSliceMut::new(&mut reply)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let attachment = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let reply = reply.get(..received.bytes).ok_or(Errno::PROTO)?;
    let reply = CallReply::decode(reply).map_err(errno)?;
    Ok(Called {
        result: reply.error.map_or(Ok(()), |error| Err(errno(error))),
        argument: reply.body.to_vec(),
        attachment,
    })
}

/// Sends a frame. As an umad file can always be written to, this waits for room whatever the
/// descriptor's flags say, but not for ever.
pub(crate) fn send(
    connection: BorrowedFd<'_>,
    frame: &Frame<'_>,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let header = frame.header().ok_or(Errno::MSGSIZE)?;
    loop {
        let descriptors = descriptor.as_slice();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let sent = rustix::net::sendmsg(
            connection,
            &[IoSlice::new(&header), IoSlice::new(frame.body)],
            &mut ancillary,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        );
        match sent {
            Ok(_) => return Ok(()),
            Err(Errno::AGAIN) => await_room(connection)?,
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => end_program(),
            Err(_) => return Err(Errno::IO),
        }
    }
}

fn await_room(connection: BorrowedFd<'_>) -> Result<(), Errno> {
    let patience = Timespec::try_from(PATIENCE).map_err(|_| Errno::INVAL)?;
    let mut wanted = [PollFd::from_borrowed_fd(connection, PollFlags::OUT)];
    match rustix::event::poll(&mut wanted, Some(&patience)) {
        Ok(0) => Err(Errno::IO),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

fn limit_patience(connection: &OwnedFd, time: Option<Duration>) -> Result<(), Errno> {
    set_socket_timeout(connection, Timeout::Recv, time)?;
    set_socket_timeout(connection, Timeout::Send, time)
}

/// The error of the protocol as one of the system.
pub(crate) fn errno(errno: umad_link::Errno) -> Errno {
    Errno::from_raw_os_error(errno.0)
}

/// Ends the program, because its service has ended: what it registered is lost, and answers that it waits for never
/// come. Programs do not expect that of an adapter; OpenSM would log errors for ever.
pub(crate) fn end_program() -> ! {
    let path = setting::socket().unwrap_or_default();
    complain(&format!(
        "vhca-umad: the service at {} has ended, and so does this program; start both again\n",
        path.display()
    ));
    // SAFETY: the call has no demands. Handlers of `atexit` are left out, since other threads of the program may hold
    // what they wait for.
    unsafe { libc::_exit(libc::EXIT_FAILURE) }
}

/// Writes a line to standard error, once: the program's own message will not name the cause.
fn complain(line: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: whatever the program has as its standard error is borrowed for this call only.
        let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
        // An error here has no other place to be reported.
        let _ = rustix::io::write(stderr, line.as_bytes());
    });
}
