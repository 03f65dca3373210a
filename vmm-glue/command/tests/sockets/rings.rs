//! A program on libibverbs that punches holes into the file of its rings.

use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use verbs_link::{CallReply, Request, Verb};

use crate::serving::Serve;

const LIMIT: Duration = Duration::from_secs(60);

/// A program that speaks for itself.
struct Program {
    service: OwnedFd,
    context: u32,
    rings: File,
}

impl Program {
    /// Takes the service's VF for programs, as soon as it is free, and opens the device.
    fn start(serve: &Serve, memory: &File) -> Self {
        let begun = Instant::now();
        let address = SocketAddrUnix::new(serve.folder.path().join("control.verbs")).unwrap();
        let flags = SocketFlags::CLOEXEC;
        loop {
            let kind = SocketType::SEQPACKET;
            let service = net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
            net::connect(&service, &address).unwrap();
            let claimed = call(&service, Verb::Claim, b"", Some(memory.as_fd()));
            if claimed.is_some_and(|(reply, _)| reply.error.is_none()) {
                let (opened, files) = call(&service, Verb::Open, &[], None).unwrap();
                let rings = files.into_iter().next().unwrap().into();
                let context = opened.opened;
                return Self {
                    service,
                    context,
                    rings,
                };
            }
            assert!(begun.elapsed() < LIMIT);
            sleep(Duration::from_millis(5));
        }
    }

    fn command(&self, number: u32, words: &[u32]) -> Option<CallReply> {
        let len = 2 + u32::try_from(words.len()).unwrap();
        let head = [number, len | 16 << 16];
        let words = head.iter().chain(words);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        let context = self.context;
        let called = call(&self.service, Verb::Command { context }, &bytes, None);
        called.map(|(reply, _)| reply)
    }

    /// Makes a completion queue and destroys it. Returns the error of the first command. `None` if the service has hung up.
    fn make_queue(&self) -> Option<Option<i32>> {
        // GET_CONTEXT, which succeeds once.
        self.command(0, &[0, 0])?;
        // CREATE_CQ of 15 entries, without a channel, and DESTROY_CQ of the handle that it answers.
        let no_channel = u32::MAX;
        let made = self.command(18, &[0, 0, 0, 0, 15, 0, no_channel, 0])?;
        if let Some(error) = made.error {
            return Some(Some(error.0));
        }
        let handle = u32::from_ne_bytes(made.body[..4].try_into().unwrap());
        let gone = self.command(20, &[0, 0, handle, 0])?;
        assert_eq!(gone.error, None);
        Some(None)
    }
}

/// Makes a call. `None` if the service has hung up.
fn call(
    service: &OwnedFd,
    verb: Verb,
    body: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Option<(CallReply, Vec<OwnedFd>)> {
    let kind = SocketType::SEQPACKET;
    let pair = net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.unwrap();
    set_socket_timeout(&ours, Timeout::Recv, Some(LIMIT)).unwrap();
    let descriptors: Vec<_> = [Some(theirs.as_fd()), descriptor]
        .into_iter()
        .flatten()
        .collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let header = Request { verb, body: &[] }.header();
    let parts = [IoSlice::new(&header), IoSlice::new(body)];
    net::sendmsg(service, &parts, &mut ancillary, SendFlags::NOSIGNAL).ok()?;
    drop(theirs);
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = net::recvmsg(&ours, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let len = received.unwrap().bytes;
    let fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    (len > 0).then(|| (CallReply::decode(&bytes[..len]).unwrap(), fds))
}

#[test]
fn a_program_whose_rings_made_the_service_wait_is_cut_off_and_its_user_has_to_seal() {
    let serve = Serve::start_with(2, &["--verbs", "--program-vfs", "1"]);
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    let program = Program::start(&serve, &memory);
    let len = fstat(&program.rings).unwrap().st_size.unsigned_abs();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fallocate(&program.rings, FallocateFlags::empty(), 0, len).unwrap();
                fallocate(&program.rings, hole, 0, len).unwrap();
            }
        });
        let begun = Instant::now();
        while program.make_queue().is_some() && begun.elapsed() < LIMIT {}
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(program.make_queue(), None, "nothing waited");
    drop(program);

    let next = Program::start(&serve, &memory);
    assert_eq!(next.make_queue(), Some(Some(Errno::PERM.raw_os_error())));
    let (sealed, _) = call(&next.service, Verb::Mapped, &[], None).unwrap();
    assert_eq!(sealed.error, None);
    assert_eq!(next.make_queue(), Some(None));
    assert_eq!(fallocate(&next.rings, hole, 0, len), Err(Errno::PERM));
}
