//! Programs at umad files: one that looks at the nodes of the fabric as a subnet manager does, and one that asks the SA.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use ib_endpoint::SaRequest;
use ib_wire::mad::{MAD_SIZE, Mad, MadHeader, Method, MgmtClass};
use ib_wire::sa::{ComponentMask, PathRecord};
use ib_wire::smp::{NodeInfo, SmpAttribute};
use ib_wire::{Lid, QKey};
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

/// A program on a port, with an agent.
pub(super) struct Sweeper {
    file: OwnedFd,
    agent: u32,
    next_tid: u64,
    /// The port's LID and that of its subnet manager, as sysfs has them.
    sm_lid: Option<Lid>,
}

impl Sweeper {
    /// Opens the umad file of a node's first port at a service's socket for programs, for SMPs.
    pub(super) fn open(socket: &Path, node: &str) -> Result<Self, Trouble> {
        let wanted = RegisterRequest2 {
            mgmt_class: MgmtClass::SUBN_LID_ROUTED.get(),
            mgmt_class_version: 1,
            ..RegisterRequest2::default()
        };
        Self::with_agent(socket, node, &wanted, None)
    }

    /// The same for questions to the SA.
    pub(super) fn open_for_tables(socket: &Path, node: &str) -> Result<Self, Trouble> {
        let path = "sys/devices/pci7ca0:00/7ca0:00:00.0/infiniband/vhca0/ports/1/sm_lid";
        let (_, text) = ask(socket, node, Purpose::Attribute(path))?;
        let text = String::from_utf8(text)?;
        let digits = text.trim().trim_start_matches("0x");
        let sm_lid = Lid::new(u16::from_str_radix(digits, 16)?);
        let wanted = RegisterRequest2 {
            mgmt_class: MgmtClass::SUBN_ADM.get(),
            mgmt_class_version: 2,
            qpn: 1.into(),
            rmpp_version: 1,
            ..RegisterRequest2::default()
        };
        Self::with_agent(socket, node, &wanted, Some(sm_lid))
    }

    fn with_agent(
        socket: &Path,
        node: &str,
        wanted: &RegisterRequest2,
        sm_lid: Option<Lid>,
    ) -> Result<Self, Trouble> {
        let (file, _) = ask(socket, node, Purpose::Umad(0))?;
        let agent = register(file.as_fd(), wanted)?;
        Ok(Self {
            file,
            agent,
            next_tid: 1,
            sm_lid,
        })
    }

    /// Asks the SA for the paths between all ports, and waits for the answer.
    pub(super) fn ask_for_paths(&mut self) -> Result<(), Trouble> {
        let lid = self.sm_lid.ok_or("no subnet manager")?;
        let message = SaRequest::get_table(&PathRecord::default(), ComponentMask::default());
        let mut mad = *message.message().mad();
        mad.header.tid = self.next_tid.into();
        self.next_tid += 1;
        let header = UmadHeader {
            id: self.agent.into(),
            timeout_ms: 10_000.into(),
            lid,
            qpn: 1.into(),
            qkey: QKey::GSI.get().into(),
            ..UmadHeader::default()
        };
        self.exchange(&[header.as_bytes(), mad.as_bytes()].concat())?;
        Ok(())
    }

    /// Sends a message and waits for what comes back, of which all but a long message's end is returned.
    fn exchange(&self, message: &[u8]) -> Result<(usize, Vec<u8>), Trouble> {
        for frame in frames(message) {
            send(self.file.as_fd(), &frame, None)?;
        }
        let mut answer = vec![0; MAX_DATAGRAM];
        let (_, length) = rustix::net::recv(&self.file, answer.as_mut_slice(), RecvFlags::empty())?;
        let answer = Delivery::decode(&answer[..length]).map_err(|error| format!("{error:?}"))?;
        if let Some(serial) = answer.serial {
            call(self.file.as_fd(), Call::Fetch(serial), &[])?;
        }
        Ok((answer.total, answer.body.to_vec()))
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
        let (total, body) = self.exchange(&message)?;
        let (header, _) = UmadHeader::read_from_prefix(&body).map_err(|_| "a short answer")?;
        if header.status.get() == 0 && total == HEADER_SIZE + MAD_SIZE {
            Ok(())
        } else {
            Err(format!("LID {lid}: {header:?}").into())
        }
    }
}

/// Connects for a purpose. Returns the connection and what was answered.
fn ask(socket: &Path, node: &str, purpose: Purpose<'_>) -> Result<(OwnedFd, Vec<u8>), Trouble> {
    let kind = SocketType::SEQPACKET;
    let file = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&file, &SocketAddrUnix::new(socket)?)?;
    let hello = Hello {
        adapters: node,
        device: "",
        purpose,
    };
    let hello = hello.encode().ok_or("a long name")?;
    rustix::net::send(&file, &hello, SendFlags::NOSIGNAL)?;
    let mut reply = vec![0; HELLO_REPLY_SIZE];
    let (_, length) = rustix::net::recv(&file, reply.as_mut_slice(), RecvFlags::empty())?;
    let reply = HelloReply::decode(&reply[..length]);
    let text = reply
        .and_then(|reply| reply.result)
        .map_err(|error| format!("{node}: {error:?}"))?;
    let text = text.to_vec();
    Ok((file, text))
}

/// Registers an agent. Returns its number.
fn register(file: BorrowedFd<'_>, wanted: &RegisterRequest2) -> Result<u32, Trouble> {
    let request = Call::Ioctl(ioctl::REGISTER_AGENT2);
    let reply = call(file, request, wanted.as_bytes())?;
    let registered = RegisterRequest2::read_from_bytes(&reply).map_err(|_| "a short reply")?;
    Ok(registered.id.get())
}

/// Makes a call on a file. Returns the argument as the service left it.
fn call(file: BorrowedFd<'_>, call: Call, body: &[u8]) -> Result<Vec<u8>, Trouble> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let kind = FrameKind::Call(call);
    send(file, &Frame { kind, body }, Some(theirs.as_fd()))?;
    drop(theirs);
    let mut reply = [0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let received = rustix::net::recvmsg(
        &ours,
        &mut [IoSliceMut::new(&mut reply)],
        &mut RecvAncillaryBuffer::new(&mut space),
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let reply = CallReply::decode(&reply[..received.bytes]);
    let reply = reply.map_err(|error| format!("{error:?}"))?;
    match reply.error {
        None => Ok(reply.body.to_vec()),
        Some(error) => Err(format!("refused: {error:?}").into()),
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
