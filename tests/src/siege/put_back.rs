//! A program on libibverbs that puts back records which it never had.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, socket_with, socketpair,
};
use verbs_link::{CallReply, Errno, MAX_REQUEST, Request, Verb};

use super::attacks::note;
use super::victims::Trouble;

/// Pause before a VF is asked for again, which is being reset.
const PAUSE: Duration = Duration::from_millis(5);

/// Time in which the service has answered.
const PATIENCE: Duration = Duration::from_secs(20);

/// Records of a storm, if the service takes so many.
const RECORDS: usize = 1 << 16;

/// Puts records back until the service ends the connection, again and again.
pub(super) fn put_back(verbs: &Path, node: &str) -> Result<(), Trouble> {
    loop {
        let Some(service) = claim(verbs, node)? else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let opened = call(&service, Verb::OpenCm, &[], None)?;
        let channel = opened.opened;
        let storm = (0..RECORDS)
            .map(|_| send(&service, Verb::PutBack { channel }, &[7; 512], &[]))
            .take_while(Result::is_ok);
        if storm.count() == RECORDS {
            return Err("records are taken back that were never sent".into());
        }
        note();
    }
}

/// Connects to the service and claims a VF. Returns `None` if the service refuses it.
pub(super) fn claim(verbs: &Path, node: &str) -> Result<Option<OwnedFd>, Trouble> {
    let memory = (OpenOptions::new().read(true).write(true)).open("/proc/self/mem")?;
    let flags = SocketFlags::CLOEXEC;
    let service = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&service, &SocketAddrUnix::new(verbs)?)?;
    let claimed = call(&service, Verb::Claim, node.as_bytes(), Some(memory.as_fd()))?;
    Ok(claimed.error.is_none().then_some(service))
}

/// Sends a request and waits for its answer.
pub(super) fn call(
    service: &OwnedFd,
    verb: Verb,
    body: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<CallReply, Trouble> {
    Ok(call_for_file(service, verb, body, descriptor)?.0)
}

/// Sends a request and waits for its answer, and a descriptor that may come with it.
pub(super) fn call_for_file(
    service: &OwnedFd,
    verb: Verb,
    body: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(CallReply, Option<OwnedFd>), Trouble> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&ours, Timeout::Recv, Some(PATIENCE))?;
    let descriptors: Vec<_> = [Some(theirs.as_fd()), descriptor]
        .into_iter()
        .flatten()
        .collect();
    send(service, verb, body, &descriptors)?;
    // Only the service has that end then, so the end of the connection ends the wait for an answer.
    drop(theirs);
    let mut reply = [0; MAX_REQUEST];
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut reply)];
    let received = recvmsg(&ours, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.flatten().next();
    let decoded = CallReply::decode(&reply[..received.bytes]);
    let reply = decoded.map_err(|Errno(error)| format!("error {error}"))?;
    Ok((reply, file))
}

/// Sends a request with descriptors.
pub(super) fn send(
    service: &OwnedFd,
    verb: Verb,
    body: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let header = Request { verb, body: &[] }.header();
    let parts = [IoSlice::new(&header), IoSlice::new(body)];
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(service, &parts, &mut ancillary, SendFlags::NOSIGNAL).map(|_| ())
}
