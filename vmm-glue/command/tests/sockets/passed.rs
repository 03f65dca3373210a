//! Clients pass descriptors whose close waits; the service goes on serving the others.

use std::io::{BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::{Errno, IoSlice};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::serving::Serve;

/// Time within which a service that is not blocked answers and ends, on a busy machine.
const SOON: Duration = Duration::from_secs(10);

/// A TCP socket whose close waits for an hour, and its peer, which reads nothing.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    set_socket_linger(&near, Some(Duration::from_secs(3600))).unwrap();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[0; 65536]).is_ok() {}
    (near.into(), far)
}

/// Passes a descriptor so many times with a message.
fn pass(socket: impl AsFd, fd: &OwnedFd, times: usize) {
    let fds = vec![fd.as_fd(); times];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let message = [IoSlice::new(&[0; 16])];
    match net::sendmsg(socket, &message, &mut ancillary, SendFlags::NOSIGNAL) {
        // Sockets that take none refuse them, where the kernel has SO_PASSRIGHTS.
        Ok(_) | Err(Errno::PERM) => {}
        Err(error) => panic!("{error}"),
    }
}

fn connect(path: &Path, kind: SocketType) -> OwnedFd {
    let socket = net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// Asks the service something, and returns how long the answer took.
fn ask(serve: &Serve) -> Duration {
    let begun = Instant::now();
    let mut control = UnixStream::connect(serve.folder.path().join("control.sock")).unwrap();
    let question = "{\"v\":2,\"request\":{\"show\":{\"subject\":\"vfs\"}}}\n";
    control.write_all(question.as_bytes()).unwrap();
    control.set_read_timeout(Some(SOON)).unwrap();
    let mut answer = String::new();
    BufReader::new(control).read_line(&mut answer).unwrap();
    assert!(answer.contains("vfs"), "{answer}");
    begun.elapsed()
}

#[test]
fn a_close_that_waits_stops_no_socket_of_the_service() {
    let simulator = format!("vhca-passed-{}", std::process::id());
    let mut serve = Serve::start_with(2, &["--verbs", "--program-vfs", "1", "--ibsim", &simulator]);
    let folder = serve.folder.path().to_owned();
    let ibsim = UnixDatagram::unbound().unwrap();
    let address = SocketAddr::from_abstract_name(format!("{simulator}:ctl\0")).unwrap();
    let mut peers = Vec::new();
    let mut clients = Vec::new();
    // One descriptor, and as many as a message can have; connections that stay, and some that end with messages in their queues.
    for (times, stays) in [(1, true), (253, true), (1, false), (253, false)] {
        let (near, far) = lingering();
        peers.push(far);
        let sockets = [
            connect(&folder.join("control.sock"), SocketType::STREAM),
            connect(&folder.join("control.umad"), SocketType::SEQPACKET),
            connect(&folder.join("control.verbs"), SocketType::SEQPACKET),
            connect(&serve.socket(), SocketType::STREAM),
            connect(&serve.socket(), SocketType::STREAM),
        ];
        for socket in sockets {
            pass(&socket, &near, times);
            clients.extend(stays.then_some(socket));
        }
        ibsim.connect_addr(&address).unwrap();
        pass(&ibsim, &near, times);
        // The last close waits for an hour, and may be this one.
        std::thread::spawn(move || drop(near));
        ask(&serve);
    }
    ask(&serve);
    end(&mut serve);
    drop(peers);
}

/// Ends the service, which may take as long as an answer.
fn end(serve: &mut Serve) {
    kill_process(Pid::from_child(&serve.child), Signal::TERM).unwrap();
    let begun = Instant::now();
    while serve.child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < SOON, "the service does not end");
        std::thread::yield_now();
    }
}

/// Starts a file system in user space whose files are passed to sockets. `None` where the host forbids that.
fn file_system(folder: &Path, sockets: &[String]) -> Option<Child> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sockets/fuse.py");
    let mut command = Command::new("unshare");
    command.args(["-Urm", "python3", script]);
    command.arg(folder).args(sockets);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut said = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut said).unwrap();
    if said.trim() == "passed" {
        return Some(child);
    }
    let output = child.wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    eprintln!("not run: files of a file system in user space, which is forbidden here: {why}");
    None
}

#[test]
fn a_file_whose_server_never_answers_stops_no_socket_of_the_service() {
    let mut serve = Serve::start_with(2, &["--verbs", "--program-vfs", "1"]);
    let folder = serve.folder.path().to_owned();
    let path = |name: &str| folder.join(name).display().to_string();
    let sockets = [
        format!("stream:{}", path("control.sock")),
        format!("packets:{}", path("control.umad")),
        format!("packets:{}", path("control.verbs")),
        format!("stream:{}", serve.socket().display()),
    ];
    let mount = tempfile::tempdir().unwrap();
    let Some(mut child) = file_system(mount.path(), &sockets) else {
        return;
    };
    ask(&serve);
    ask(&serve);
    end(&mut serve);
    // The server answers then: its own exit would wait for itself.
    drop(child.stdin.take());
    child.wait().unwrap();
}
