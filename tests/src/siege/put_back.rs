//! A program on libibverbs that puts back records which it never had.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::IoSlice;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with, socketpair,
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
    let memory = (OpenOptions::new().read(true).write(true)).open("/proc/self/mem")?;
    loop {
        let flags = SocketFlags::CLOEXEC;
        let service = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&service, &SocketAddrUnix::new(verbs)?)?;
        let claimed = call(&service, Verb::Claim, node.as_bytes(), Some(memory.as_fd()))?;
        if claimed.error.is_some() {
            std::thread::sleep(PAUSE);
            continue;
        }
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

/// Sends a request and waits for its answer.
fn call(
    service: &OwnedFd,
    verb: Verb,
    body: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<CallReply, Trouble> {
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
    let mut reply = [0; MAX_REQUEST];
    let (_, length) = recv(&ours, &mut reply[..], RecvFlags::empty())?;
    CallReply::decode(&reply[..length]).map_err(|Errno(error)| format!("error {error}").into())
}

fn send(
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
