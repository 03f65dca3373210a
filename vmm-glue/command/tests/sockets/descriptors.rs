//! A service whose process may have no more files open: it stays idle, says so, and goes on when it may. And one whose
//! clients want its log full.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use umad_link::{Call, CallReply, Errno, Frame, FrameKind, Hello, HelloReply, Purpose};

use crate::serving::{Serve, vhca};

const LIMIT: Duration = Duration::from_secs(60);

/// A service that is short of descriptors.
struct Limited(Serve);

impl Limited {
    /// Lets the process have descriptors below a number only.
    fn limit(&self, most: Rlimit) {
        let process = Some(Pid::from_child(&self.0.child));
        prlimit(process, Resource::Nofile, most).unwrap();
    }

    /// Returns the process that receives descriptors for it.
    fn receiver(&self) -> Pid {
        let pid = self.0.child.id();
        let children = fs::read_to_string(self.0.proc(&format!("task/{pid}/children"))).unwrap();
        let mut children = children.split_whitespace().map(|pid| pid.parse().unwrap());
        let receiver = Pid::from_raw(children.next().unwrap()).unwrap();
        assert_eq!(children.next(), None, "the service has another child");
        receiver
    }

    /// Processor time that it has used, in hundredths of a second.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(self.0.proc("stat")).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let fields = fields.split_whitespace().skip(11).take(2);
        fields.map(|field| field.parse::<u64>().unwrap()).sum()
    }

    /// What it logged of those who have to wait.
    fn complaints(&self) -> Vec<String> {
        let log = fs::read_to_string(self.0.folder.path().join("log")).unwrap();
        let lines = log.lines().filter(|line| line.contains("have to wait"));
        lines.map(str::to_owned).collect()
    }

    /// Asks something at the control socket.
    fn ask(&self) -> UnixStream {
        let mut socket = UnixStream::connect(self.0.folder.path().join("control.sock")).unwrap();
        socket
            .write_all(b"{\"v\":2,\"request\":{\"show\":{\"subject\":\"vfs\"}}}\n")
            .unwrap();
        socket
    }
}

fn answer(socket: UnixStream) -> String {
    let mut answer = String::new();
    BufReader::new(socket).read_line(&mut answer).unwrap();
    answer
}

/// A connection to the umad socket.
fn connect_umad(serve: &Serve) -> OwnedFd {
    let address = SocketAddrUnix::new(serve.folder.path().join("control.umad")).unwrap();
    let kind = SocketType::SEQPACKET;
    // Services that other tests start have few descriptors to inherit.
    let socket = net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let socket = socket.unwrap();
    net::connect(&socket, &address).unwrap();
    socket
}

/// Asks for something as the library in a program does. Returns the connection, and whether the answer was an error.
fn ask_umad(serve: &Serve, purpose: Purpose<'_>) -> (OwnedFd, Result<(), Errno>) {
    let socket = connect_umad(serve);
    set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT)).unwrap();
    let hello = Hello {
        adapters: "",
        device: "",
        purpose,
    };
    net::send(&socket, &hello.encode().unwrap(), SendFlags::NOSIGNAL).unwrap();
    let mut bytes = [0; 4096];
    let (_, length) = net::recv(&socket, &mut bytes[..], RecvFlags::empty()).unwrap();
    let reply = HelloReply::decode(&bytes[..length]).unwrap();
    let result = reply.result.map(|_| ());
    (socket, result)
}

/// Makes a call. Returns the socket for its answer.
fn send_call(file: &OwnedFd, request: u32) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let pair = net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.unwrap();
    set_socket_timeout(&ours, Timeout::Recv, Some(LIMIT)).unwrap();
    let frame = Frame {
        kind: FrameKind::Call(Call::Ioctl(request)),
        body: &[],
    };
    let descriptors = [theirs.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let header = frame.header().unwrap();
    let parts = [rustix::io::IoSlice::new(&header)];
    net::sendmsg(file, &parts, &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    ours
}

/// Waits for the answer to a call.
fn answer_to_call(ours: &OwnedFd) -> Option<Errno> {
    let mut bytes = [0; 256];
    let (_, length) = net::recv(ours, &mut bytes[..], RecvFlags::empty()).unwrap();
    CallReply::decode(&bytes[..length]).unwrap().error
}

fn call_umad(file: &OwnedFd, request: u32) -> Option<Errno> {
    answer_to_call(&send_call(file, request))
}

/// A program that wants to use umad.
fn umad_program(serve: &Serve) -> OwnedFd {
    let socket = connect_umad(serve);
    let hello = Hello {
        adapters: "",
        device: "",
        purpose: Purpose::Tree,
    };
    net::send(&socket, &hello.encode().unwrap(), SendFlags::NOSIGNAL).unwrap();
    socket
}

#[test]
fn whoever_connects_when_no_descriptor_is_left_waits_until_one_is() {
    let serve = Limited(Serve::start(1));
    // Once it answers it has all the descriptors that it needs for itself.
    assert!(answer(serve.ask()).contains("vfs"));
    let before = getrlimit(Resource::Nofile);
    serve.limit(Rlimit {
        // Those of input, output and errors, which it has.
        current: Some(3),
        ..before
    });
    let mut asking = serve.ask();
    let mut vmm = UnixStream::connect(serve.0.socket()).unwrap();
    // VERSION, of 16 bytes of header and the number 0.1.
    vmm.write_all(&[1, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0])
        .unwrap();
    let program = umad_program(&serve.0);

    let begun = Instant::now();
    while serve.complaints().len() < 3 {
        assert!(begun.elapsed() < LIMIT, "{:?}", serve.complaints());
    }
    let ticks = serve.ticks();
    asking
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let unanswered = asking.read(&mut [0]).unwrap_err();
    assert_eq!(unanswered.kind(), ErrorKind::WouldBlock);
    let used = serve.ticks() - ticks;
    assert!(used < 50, "{used} hundredths of two seconds");

    serve.limit(before);
    for socket in [&asking, &vmm] {
        socket.set_read_timeout(Some(LIMIT)).unwrap();
    }
    assert!(answer(asking).contains("vfs"));
    let mut reply = [0; 16];
    vmm.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..4], [1, 0, 1, 0]);
    let mut bytes = [0; 4096];
    let (_, length) = net::recv(&program, &mut bytes[..], RecvFlags::empty()).unwrap();
    assert!(HelloReply::decode(&bytes[..length]).unwrap().result.is_ok());
    // One for each kind of socket in each interval of the log.
    let intervals = usize::try_from(begun.elapsed().as_secs() / 10).unwrap();
    let complaints = serve.complaints();
    assert!(complaints.len() <= 3 * (1 + intervals), "{complaints:?}");
}

#[test]
fn a_call_waits_while_its_receiver_has_no_room_for_a_descriptor() {
    const ENABLE_PKEY: u32 = 0x1b03;
    let serve = Limited(Serve::start(1));
    let (file, opened) = ask_umad(&serve.0, Purpose::Umad(0));
    opened.unwrap();
    // The service reads messages without descriptors itself: until a call is answered, the receiver may still load its libraries,
    // which it cannot without descriptors.
    assert_eq!(call_umad(&file, ENABLE_PKEY), None);
    let receiver = Some(serve.receiver());
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(3),
        ..before
    };
    prlimit(receiver, Resource::Nofile, none).unwrap();
    let asking = send_call(&file, ENABLE_PKEY);
    set_socket_timeout(&asking, Timeout::Recv, Some(Duration::from_millis(300))).unwrap();
    let unanswered = net::recv(&asking, &mut [0; 256][..], RecvFlags::empty());
    let unanswered = unanswered.map(|(_, len)| len);
    assert_eq!(unanswered, Err(rustix::io::Errno::AGAIN));
    prlimit(receiver, Resource::Nofile, before).unwrap();
    set_socket_timeout(&asking, Timeout::Recv, Some(LIMIT)).unwrap();
    assert_eq!(answer_to_call(&asking), None);
}

#[test]
fn a_service_whose_receiver_is_gone_ends_with_an_error() {
    let mut serve = Limited(Serve::start(1));
    kill_process(serve.receiver(), Signal::KILL).unwrap();
    assert_eq!(serve.0.child.wait().unwrap().code(), Some(1));
    let log = fs::read_to_string(serve.0.folder.path().join("log")).unwrap();
    assert_eq!(log.matches("is gone: the service ends").count(), 1, "{log}");
    assert!(
        log.contains("the service ended because the receiver"),
        "{log}"
    );
}

/// Returns a shell that becomes what follows, with so many descriptors and no more.
fn limited(most: u32) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &most.to_string()]);
    shell.arg(vhca().get_program());
    shell
}

#[test]
fn more_programs_than_descriptors_take_turns() {
    const PROGRAMS: usize = 80;
    const ENABLE_PKEY: u32 = 0x1b03;
    let folder = tempfile::tempdir().unwrap();
    let command = Serve::command(limited(64), folder.path(), 1);
    let serve = Serve::spawn(command, folder);
    let together = Barrier::new(PROGRAMS);
    let program = || {
        together.wait();
        ask_umad(&serve, Purpose::Tree).1.unwrap();
        let file = loop {
            match ask_umad(&serve, Purpose::Umad(0)) {
                (file, Ok(())) => break file,
                (_, Err(Errno::ENFILE)) => sleep(Duration::from_millis(20)),
                (_, Err(error)) => panic!("{error}"),
            }
        };
        // Each holds a descriptor while it waits for another.
        assert_eq!(call_umad(&file, ENABLE_PKEY), None);
        ask_umad(&serve, Purpose::Tree).1.unwrap();
        assert_eq!(call_umad(&file, ENABLE_PKEY), None);
    };
    thread::scope(|scope| {
        for _ in 0..PROGRAMS {
            scope.spawn(program);
        }
    });
}

#[test]
fn a_service_may_have_as_many_descriptors_as_the_system_allows() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-c", "ulimit -Sn 40 && exec \"$@\"", "bash"]);
    shell.arg(vhca().get_program());
    shell.args(["serve", "--json", "--vfs", "1", "--control"]);
    shell.arg(folder.path().join("control.sock"));
    let serve = Serve::spawn(shell, folder);
    let limits = fs::read_to_string(serve.proc("limits")).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let numbers: Vec<&str> = files.unwrap().split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1]);
}

#[test]
fn a_service_that_says_that_it_is_ready_has_the_descriptors_that_it_needs() {
    for most in 3..100 {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Serve::command(limited(most), folder.path(), 1)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut said)
            .unwrap();
        if said.is_empty() {
            assert!(!child.wait().unwrap().success(), "{most}");
            continue;
        }
        // It would end otherwise than by this if it lacked something now.
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success(), "{most}: {said}");
        return;
    }
    panic!("a service is never ready");
}

#[test]
fn programs_that_break_the_protocol_do_not_fill_the_log() {
    let serve = Serve::start(1);
    for _ in 0..200 {
        let socket = connect_umad(&serve);
        net::send(&socket, b"nonsense", SendFlags::NOSIGNAL).unwrap();
        let mut end = [0; 16];
        let (_, length) = net::recv(&socket, &mut end[..], RecvFlags::empty()).unwrap();
        assert_eq!(length, 0, "cut off");
    }
    let log = fs::read_to_string(serve.folder.path().join("log")).unwrap();
    let lines = log.lines();
    let lines = lines.filter(|line| line.contains("does not keep to the protocol"));
    let count = lines.count();
    // 20 at once, then one a second.
    assert!((20..100).contains(&count), "{count}");
}
