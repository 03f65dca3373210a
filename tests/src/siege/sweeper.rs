//! One who looks at the nodes of the fabric as a subnet manager does: by SMPs, through a umad file.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use ib_wire::Lid;
use ib_wire::mad::{MAD_SIZE, Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::{NodeInfo, SmpAttribute};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use umad_link::{
    Call, CallReply, Delivery, Frame, FrameKind, HEADER_SIZE, HELLO_REPLY_SIZE, Hello, HelloReply,
    MAX_DATAGRAM, Purpose, RegisterRequest2, UmadHeader, frames, ioctl,
};
use zerocopy::{FromBytes, IntoBytes};

use super::Trouble;

/// A program on a port, with an agent for SMPs.
pub(super) struct Sweeper {
    file: OwnedFd,
    agent: u32,
    next_tid: u64,
}

impl Sweeper {
    /// Opens the umad file of a node's first port at a service's socket for programs.
    pub(super) fn open(socket: &Path, node: &str) -> Result<Self, Trouble> {
        let kind = SocketType::SEQPACKET;
        let file = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&file, &SocketAddrUnix::new(socket)?)?;
        let hello = Hello {
            adapters: node,
            purpose: Purpose::Umad(0),
        };
        let hello = hello.encode().ok_or("a long name")?;
        rustix::net::send(&file, &hello, SendFlags::NOSIGNAL)?;
        let mut reply = vec![0; HELLO_REPLY_SIZE];
        let (_, length) = rustix::net::recv(&file, reply.as_mut_slice(), RecvFlags::empty())?;
        let reply = HelloReply::decode(&reply[..length]);
        reply
            .and_then(|reply| reply.result)
            .map_err(|error| format!("{node}: {error:?}"))?;
        let agent = register(file.as_fd())?;
        Ok(Self {
            file,
            agent,
            next_tid: 1,
        })
    }

    /// Asks the port with a LID for its NodeInfo, and waits for the answer.
    pub(super) fn look_at(&mut self, lid: Lid) -> Result<(), Trouble> {
        let class = MgmtClass::SUBN_LID_ROUTED;
        let mut mad = Mad::new(MadHeader::new(class, Method::GET, NodeInfo::ID));
        mad.header.tid = self.next_tid.into();
        self.next_tid += 1;
        let header = UmadHeader {
            id: self.agent.into(),
            timeout_ms: 10_000.into(),
            lid,
            ..UmadHeader::default()
        };
        let message = [header.as_bytes(), mad.as_bytes()].concat();
        for frame in frames(&message) {
            send(self.file.as_fd(), &frame, None)?;
        }
        let mut answer = vec![0; MAX_DATAGRAM];
        let (_, length) = rustix::net::recv(&self.file, answer.as_mut_slice(), RecvFlags::empty())?;
        let answer = Delivery::decode(&answer[..length]).map_err(|error| format!("{error:?}"))?;
        let (header, _) =
            UmadHeader::read_from_prefix(answer.body).map_err(|_| "a short answer")?;
        if header.status.get() == 0 && answer.total == HEADER_SIZE + MAD_SIZE {
            Ok(())
        } else {
            Err(format!("LID {lid}: {header:?}").into())
        }
    }
}

/// Registers an agent that only asks. Gives its number.
fn register(file: BorrowedFd<'_>) -> Result<u32, Trouble> {
    let wanted = RegisterRequest2 {
        mgmt_class: MgmtClass::SUBN_LID_ROUTED.get(),
        mgmt_class_version: 1,
        ..RegisterRequest2::default()
    };
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let call = Frame {
        kind: FrameKind::Call(Call::Ioctl(ioctl::REGISTER_AGENT2)),
        body: wanted.as_bytes(),
    };
    send(file, &call, Some(theirs.as_fd()))?;
    drop(theirs);
    let mut reply = [0; 256];
    let received = rustix::net::recvmsg(
        &ours,
        &mut [IoSliceMut::new(&mut reply)],
        &mut RecvAncillaryBuffer::default(),
        RecvFlags::empty(),
    )?;
    let reply = CallReply::decode(&reply[..received.bytes]);
    let reply = reply.map_err(|error| format!("{error:?}"))?;
    match (reply.error, RegisterRequest2::read_from_bytes(reply.body)) {
        (None, Ok(registered)) => Ok(registered.id.get()),
        (error, _) => Err(format!("no agent: {error:?}").into()),
    }
}

fn send(
    file: BorrowedFd<'_>,
    frame: &Frame<'_>,
    attachment: Option<BorrowedFd<'_>>,
) -> Result<(), Trouble> {
    let header = frame.header().ok_or("a long frame")?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if attachment.is_some() {
        ancillary.push(SendAncillaryMessage::ScmRights(attachment.as_slice()));
    }
    let parts = [IoSlice::new(&header), IoSlice::new(frame.body)];
    rustix::net::sendmsg(file, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
