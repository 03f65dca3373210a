//! The process's VF: the connection to the service, and the files of verbs.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use verbs_link::abi::completion_queue::ReqNotifyCq;
use verbs_link::abi::queue_pair::PostSend;
use verbs_link::abi::{CommandHeader, command};
use verbs_link::{
    ArmLayout, CallReply, ChannelId, Command, CompletionRings, InterfaceLayout, Request,
    RetiredEvents, SendGate, Verb, netlink,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::descriptors::{FileKind, Identity, OpenFile};
use crate::network_namespace::network_namespace;
use crate::polling::Polling;
use crate::refusal::Refusal;
use crate::ring_mapping::RingMapping;
use crate::{client, open_files, registration, setting, tree};

/// Time that the service has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time for which a VF is waited for that is being reset after another program.
const RESETTING: Duration = Duration::from_secs(5);

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(2);

/// Bytes of the longest answer.
const MAX_REPLY: usize = 1 << 16;

/// Bytes of the longest record: an event of the RDMA CM.
const MAX_RECORD: usize = 512;

/// Number from which descriptors of ours are, out of the way of programs that close the first hundreds.
const HIDDEN: RawFd = 512;

/// Connection of a process to the service.
#[derive(Debug)]
pub(crate) struct Session {
    connection: OwnedFd,
    /// Identity of the connection, whose descriptor a program may close unseen.
    identity: Identity,
    pid: u32,
    /// The rings, from the first of them on.
    rings: Mutex<Option<RingMapping>>,
}

static SESSION: Mutex<Option<Arc<Session>>> = Mutex::new(None);

/// Channels by their numbers, as long as the program has them.
static CHANNELS: Mutex<BTreeMap<u32, Weak<OpenFile>>> = Mutex::new(BTreeMap::new());

fn channels<T>(with: impl FnOnce(&mut BTreeMap<u32, Weak<OpenFile>>) -> T) -> T {
    with(&mut CHANNELS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the name of the device: adapters of umad come first.
pub(crate) fn device_name() -> String {
    let numbered = || format!("vhca{}", setting::nodes().split(',').count());
    setting::device().unwrap_or_else(numbered)
}

/// Returns the session of this process; a VF is taken for it with the first use. A forked child has none of its parent's.
fn find_session() -> Result<Arc<Session>, Refusal> {
    let mut known = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(session) = known.as_ref().filter(|s| s.pid == std::process::id()) {
        // The service frees the VF with the connection, and the number may be another file's.
        return if session.identity.is_behind(session.connection.as_fd()) {
            Ok(session.clone())
        } else {
            Err(Refusal::Closed)
        };
    }
    let session = Arc::new(Session::open()?);
    *known = Some(session.clone());
    tree::forget();
    Ok(session)
}

/// The same for a program that asks for the device, which learns why there is none.
fn session() -> Result<Arc<Session>, Errno> {
    find_session().map_err(said)
}

fn said(refusal: Refusal) -> Errno {
    refusal.say();
    refusal.errno()
}

/// Returns `true` if the kernel has devices of verbs: a program at a service without them sees those.
fn kernel_has_devices() -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open("/sys/class/infiniband_verbs", flags, Mode::empty());
    let entries = folder.and_then(rustix::fs::Dir::new);
    entries.is_ok_and(|mut entries| {
        entries.any(|entry| {
            entry.is_ok_and(|entry| entry.file_name().to_bytes().starts_with(b"uverbs"))
        })
    })
}

/// Says why a program has no device that asks for one of verbs where the service offers none.
pub(crate) fn note_asked() {
    let Some(socket) = setting::socket().filter(|_| setting::verbs_socket().is_none()) else {
        return;
    };
    if kernel_has_devices() {
        return;
    }
    let refusal = match client::connect(&socket) {
        Ok(_) => Refusal::NoVerbs(socket),
        Err(error) => Refusal::Socket(socket, error),
    };
    refusal.say();
}

/// The same for a program that opens a path, and fails.
pub(crate) fn note_opened(path: &[u8]) {
    const PATHS: [&[u8]; 3] = [
        b"/dev/infiniband/uverbs",
        b"/dev/infiniband/rdma_cm",
        b"/sys/class/infiniband_verbs",
    ];
    if PATHS.iter().any(|start| path.starts_with(start)) {
        note_asked();
    }
}

/// Moves a descriptor out of the way of the program's.
fn hide(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, HIDDEN).unwrap_or(fd)
}

/// Returns `true` if this process has, or had, a session.
pub(crate) fn had_session() -> bool {
    let known = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
    known
        .as_ref()
        .is_some_and(|session| session.pid == std::process::id())
}

impl Session {
    /// Connects without taking a VF.
    fn connect() -> Result<Self, Refusal> {
        let path = setting::verbs_socket().ok_or(Refusal::Claim(Errno::NOENT, String::new()))?;
        let connection = client::connect(&path).map_err(|error| Refusal::Socket(path, error))?;
        let connection = hide(connection);
        let identity = Identity::of(&connection).map_err(|_| Refusal::Closed)?;
        Ok(Self {
            connection,
            identity,
            pid: std::process::id(),
            rings: Mutex::default(),
        })
    }

    fn open() -> Result<Self, Refusal> {
        let session = Self::connect()?;
        let path = setting::verbs_socket().unwrap_or_default();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let memory = rustix::fs::open("/proc/self/mem", flags, Mode::empty());
        let memory = memory.map_err(Refusal::NoMemory)?;
        let nodes = setting::nodes();
        let node = node(&nodes);
        let begun = Instant::now();
        loop {
            let answered = session.ask(Verb::Claim, &[node.as_bytes()], Some(memory.as_fd()));
            let (reply, _) = answered.map_err(|error| Refusal::Silent(path.clone(), error))?;
            match reply.error.map(|error| Errno::from_raw_os_error(error.0)) {
                None => return Ok(session),
                Some(Errno::AGAIN) if begun.elapsed() < RESETTING => sleep(PAUSE),
                Some(error) => {
                    let why = String::from_utf8_lossy(&reply.body).into_owned();
                    return Err(Refusal::Claim(error, why));
                }
            }
        }
    }

    /// Returns the address of a part of the rings, whose file is mapped with the first, and then sealed.
    fn map_rings(&self, file: BorrowedFd<'_>, offset: i64, len: usize) -> Result<usize, Errno> {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let mapped = match &mut *rings {
            Some(mapped) => mapped,
            None => rings.insert(RingMapping::new(file)?),
        };
        if !mapped.is_sealed && self.pid == std::process::id() {
            // On a kernel without that seal the rings are as good.
            let _ = self.call(Verb::Mapped, &[], None);
            mapped.is_sealed = true;
        }
        mapped.part(offset, len)
    }

    fn send(
        &self,
        verb: Verb,
        body: &[&[u8]],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        let header = Request { verb, body: &[] }.header();
        let mut parts = vec![IoSlice::new(&header)];
        parts.extend(body.iter().map(|part| IoSlice::new(part)));
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        loop {
            let flags = SendFlags::NOSIGNAL;
            let sent = rustix::net::sendmsg(&self.connection, &parts, &mut ancillary, flags);
            match sent {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(Errno::IO),
            }
        }
    }

    /// Makes a request. Returns the answer, also one of an error.
    fn ask(
        &self,
        verb: Verb,
        body: &[&[u8]],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(CallReply, Vec<OwnedFd>), Errno> {
        let (ours, theirs) = client::packet_pair()?;
        let descriptors: Vec<_> = [Some(theirs.as_fd()), descriptor]
            .into_iter()
            .flatten()
            .collect();
        self.send(verb, body, &descriptors)?;
        drop(theirs);
        set_socket_timeout(&ours, Timeout::Recv, Some(PATIENCE))?;
        let mut reply = vec![0; MAX_REPLY];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut buffers = [IoSliceMut::new(&mut reply)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&ours, &mut buffers, &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                Err(_) => return Err(Errno::IO),
                Ok(received) => break received.bytes,
            }
        };
        let mut attachments = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                attachments.extend(rights);
            }
        }
        if received == 0 {
            return Err(Errno::IO);
        }
        let reply = reply.get(..received).ok_or(Errno::IO)?;
        let reply = CallReply::decode(reply).map_err(|_| Errno::IO)?;
        Ok((reply, attachments))
    }

    fn call(
        &self,
        verb: Verb,
        body: &[&[u8]],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(CallReply, Vec<OwnedFd>), Errno> {
        let (reply, attachments) = self.ask(verb, body, descriptor)?;
        match reply.error {
            Some(error) => Err(Errno::from_raw_os_error(error.0)),
            None => Ok((reply, attachments)),
        }
    }
}

/// Returns the answer to a netlink message. A program with libibverbs takes a VF with its first question: it opens the device that
/// it sees. Another takes none by asking. Without a service there is no device.
pub(crate) fn ask_netlink(message: &[u8]) -> Vec<u8> {
    let (name, nodes) = (device_name(), setting::nodes());
    let body = [
        name.as_bytes(),
        &[0],
        node(&nodes).as_bytes(),
        &[0],
        message,
    ];
    let session = if had_session() || has_libibverbs() {
        session()
    } else {
        Session::connect().map(Arc::new).map_err(said)
    };
    let asked = session.and_then(|session| session.call(Verb::Netlink, &body, None));
    match asked {
        Ok((reply, _)) => reply.body,
        Err(_) => netlink::answer(None, message).concat(),
    }
}

/// Returns the IP interface of the VF that the process has, or sees: no VF is taken.
pub(crate) fn ask_interface() -> Option<InterfaceLayout> {
    let nodes = setting::nodes();
    let ask = |session: &Session| {
        let asked = session.call(Verb::Interface, &[node(&nodes).as_bytes()], None);
        asked.ok().map(|(reply, _)| reply.body)
    };
    // An older service ends a connection with a request that it does not know: one without a VF is tried first.
    let mut body = ask(&Session::connect().ok()?)?;
    if had_session() {
        body = ask(&*find_session().ok()?)?;
    }
    InterfaceLayout::read_from_bytes(&body).ok()
}

/// Returns the adapter whose VF the program gets.
fn node(nodes: &str) -> &str {
    nodes.split(',').next().unwrap_or_default().trim()
}

/// Returns `true` if the program has loaded libibverbs, for all of it or for one of its modules.
fn has_libibverbs() -> bool {
    let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY;
    // SAFETY: the name ends with a zero byte, and nothing is loaded, so that no code of a library runs.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), flags) };
    if library.is_null() {
        return false;
    }
    // SAFETY: the handle is of the call above; the program's own reference keeps the library.
    unsafe { libc::dlclose(library) };
    true
}

/// A uverbs file.
#[derive(Debug)]
pub(crate) struct UverbsFile {
    session: Arc<Session>,
    context: u32,
    sends: Mutex<SendGate>,
    polling: Mutex<Polling>,
    rings: Mutex<CompletionRings>,
}

impl Drop for UverbsFile {
    fn drop(&mut self) {
        // A forked child closes its descriptors, and not its parent's file.
        if self.session.pid == std::process::id() {
            let verb = Verb::Close {
                context: self.context,
            };
            let _ = self.session.send(verb, &[], &[]);
        }
    }
}

/// A channel of events.
#[derive(Debug)]
pub(crate) struct Channel {
    session: Arc<Session>,
    number: u32,
    /// The program's end once more.
    reader: OwnedFd,
}

impl Drop for Channel {
    fn drop(&mut self) {
        channels(|channels| channels.remove(&self.number));
        if self.session.pid == std::process::id() {
            let verb = Verb::CloseChannel {
                channel: self.number,
            };
            let _ = self.session.send(verb, &[], &[]);
        }
    }
}

impl Channel {
    /// Takes the records about some objects that the program has not read.
    fn drain(&self, retired: &[RetiredEvents]) -> Vec<Vec<u8>> {
        let is_retired = |record: &[u8]| {
            let mut elements = retired.iter().map(|retired| retired.element.to_ne_bytes());
            elements.any(|element| record.starts_with(&element))
        };
        let (mut kept, mut taken) = (Vec::new(), Vec::new());
        let mut record = [0; MAX_RECORD];
        while let Ok((length, _)) =
            rustix::net::recv(&self.reader, &mut record, RecvFlags::DONTWAIT)
        {
            let Some(record) = record.get(..length).filter(|record| record.len() >= 8) else {
                break;
            };
            if is_retired(record) {
                taken.push(record.to_vec());
            } else {
                kept.push(record.to_vec());
            }
        }
        kept.iter().for_each(|record| self.put_back(record));
        taken
    }

    fn put_back(&self, record: &[u8]) {
        let verb = Verb::PutBack {
            channel: self.number,
        };
        // A service that has ended has no more events.
        let _ = self.session.send(verb, &[record], &[]);
    }

    /// Takes the next record, and waits for one unless the program's descriptor says that it does not want to.
    pub(crate) fn next_record(&self) -> Result<Vec<u8>, Errno> {
        let mut record = [0; MAX_RECORD];
        let (_, length) = rustix::net::recv(&self.reader, &mut record, RecvFlags::empty())?;
        match record.get(..length).filter(|record| !record.is_empty()) {
            Some(record) => Ok(record.to_vec()),
            None => Err(Errno::IO),
        }
    }

    /// Number by which the service knows the channel.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// Asks the service something about the channel.
    pub(crate) fn call(&self, verb: Verb, body: &[u8]) -> Result<CallReply, Errno> {
        if self.session.pid != std::process::id() {
            return Err(Errno::INVAL);
        }
        self.session
            .call(verb, &[body], None)
            .map(|(reply, _)| reply)
    }
}

/// Opens the device. Returns the program's descriptor.
pub(crate) fn open(number: u32, flags: OFlags) -> Result<OwnedFd, Errno> {
    if number != 0 {
        return Err(Errno::NXIO);
    }
    let session = session()?;
    let (reply, attachments) = session.call(Verb::Open, &[], None)?;
    let file = attachments.into_iter().next().ok_or(Errno::IO)?;
    let opened = UverbsFile {
        session,
        context: reply.opened,
        sends: Mutex::default(),
        polling: Mutex::default(),
        rings: Mutex::default(),
    };
    let opened = OpenFile::new(&file, FileKind::Uverbs(opened))?;
    if !flags.contains(OFlags::CLOEXEC) {
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())?;
    }
    open_files::insert(file.as_raw_fd(), Arc::new(opened));
    Ok(file)
}

/// Offsets of the channel's descriptor in the two forms of CREATE_CQ.
const CHANNEL_AT: usize = 8 + 24;
const EXTENDED_CHANNEL_AT: usize = 24 + 16;

impl UverbsFile {
    fn sends(&self) -> MutexGuard<'_, SendGate> {
        // It is whole whatever happened to who held it.
        self.sends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rings(&self) -> MutexGuard<'_, CompletionRings> {
        // As above.
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the producer index of a completion queue's ring, which this library has mapped.
    fn producer_index(&self, cq: u32) -> Option<u32> {
        let at = self.rings().producer_index(cq)?;
        let rings = self.session.rings.lock();
        let rings = rings.unwrap_or_else(PoisonError::into_inner);
        rings.as_ref()?.load(i64::try_from(at).ok()?)
    }

    /// Returns the address of a part of the rings.
    pub(crate) fn map(
        &self,
        file: BorrowedFd<'_>,
        offset: i64,
        len: usize,
    ) -> Result<usize, Errno> {
        self.session.map_rings(file, offset, len)
    }

    /// Carries out a command. Copies the answer to where the command says.
    ///
    /// # Safety
    /// The command names memory of the caller's that is as long as the command says, as the kernel's interface demands.
    pub(crate) unsafe fn write(&self, fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
        if self.session.pid != std::process::id() {
            // The memory that a child of the process names is not that of the process.
            return Err(Errno::INVAL);
        }
        if let Some(qp) = doorbell(bytes) {
            if self.sends().is_shut(qp) {
                return Err(Errno::INVAL);
            }
            let context = self.context;
            return self.session.send(Verb::Doorbell { context, qp }, &[], &[]);
        }
        if let Some(asked) = arming(bytes)
            && let Some(seen) = self.producer_index(asked.cq_handle.get())
        {
            let verb = Verb::Arm {
                context: self.context,
                cq: asked.cq_handle.get(),
            };
            let arm = ArmLayout {
                solicited_only: asked.solicited_only,
                seen: seen.into(),
            };
            return self.session.send(verb, &[arm.as_bytes()], &[]);
        }
        let parsed = Command::decode(bytes).map_err(|error| Errno::from_raw_os_error(error.0))?;
        registration::check(bytes)?;
        let mut translated = bytes.to_vec();
        if parsed.number == command::CREATE_CQ {
            let at = if parsed.extended {
                EXTENDED_CHANNEL_AT
            } else {
                CHANNEL_AT
            };
            translate_channel(&mut translated, at)?;
        }
        let verb = Verb::Command {
            context: self.context,
        };
        let (mut reply, attachments) = self.session.call(verb, &[&translated], None)?;
        self.sends().observe(&parsed, &reply.body);
        self.rings().observe(&parsed, &reply.body);
        let mut polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        polling.observe(fd.as_raw_fd(), &parsed, &reply.body);
        drop(polling);
        if reply.opened != 0 {
            let kind = FileKind::Channel;
            let opened = adopt_channel(&self.session, reply.opened, attachments, kind)?;
            let number = u32::try_from(opened.into_raw_fd()).map_err(|_| Errno::IO)?;
            put(&mut reply.body, 0, number);
        }
        settle(&mut reply.body, &reply.retired, None);
        let (address, room) = parsed.place_of_answer();
        // SAFETY: by this function's contract `room` bytes are there.
        unsafe { answer(address, room, &reply.body) }
    }
}

/// Creates the program's descriptor of a channel.
fn adopt_channel(
    session: &Arc<Session>,
    number: u32,
    attachments: Vec<OwnedFd>,
    kind: fn(Channel) -> FileKind,
) -> Result<OwnedFd, Errno> {
    let program = attachments.into_iter().next().ok_or(Errno::IO)?;
    let channel = Channel {
        session: session.clone(),
        number,
        reader: hide(rustix::io::dup(&program)?),
    };
    let file = Arc::new(OpenFile::new(&program, kind(channel))?);
    channels(|channels| channels.insert(number, Arc::downgrade(&file)));
    open_files::insert(program.as_raw_fd(), file);
    Ok(program)
}

/// Opens a file of the RDMA CM.
pub(crate) fn open_rdma_cm() -> Result<OwnedFd, Errno> {
    let session = session()?;
    let body = network_namespace().encode();
    let (reply, attachments) = session.call(Verb::OpenCm, &[&body], None)?;
    adopt_channel(&session, reply.opened, attachments, FileKind::RdmaCm)
}

/// Copies an answer to where a command wants it.
///
/// # Safety
/// `room` bytes at `address` are the caller's.
pub(crate) unsafe fn answer(address: u64, room: usize, body: &[u8]) -> Result<(), Errno> {
    let length = body.len().min(room);
    let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    if length > 0 {
        if address == 0 {
            return Err(Errno::FAULT);
        }
        let place = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: by this function's contract; the body is ours, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), place, length) };
    }
    Ok(())
}

/// Returns the queue pair whose doorbell a command rings, if it does nothing else.
fn doorbell(bytes: &[u8]) -> Option<u32> {
    let (header, rest) = CommandHeader::ref_from_prefix(bytes).ok()?;
    if header.command.get() != command::POST_SEND {
        return None;
    }
    let post = PostSend::ref_from_bytes(rest).ok()?;
    (post.wr_count.get() == 0).then(|| post.qp_handle.get())
}

/// Returns the request of a command that arms a completion queue.
fn arming(bytes: &[u8]) -> Option<ReqNotifyCq> {
    let (header, rest) = CommandHeader::ref_from_prefix(bytes).ok()?;
    let is_one = header.command.get() == command::REQ_NOTIFY_CQ;
    is_one.then(|| ReqNotifyCq::read_from_bytes(rest).ok())?
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Writes the number of a channel where a program has its descriptor.
pub(crate) fn translate_channel(command: &mut [u8], at: usize) -> Result<(), Errno> {
    let place = command
        .get(at..at + 4)
        .and_then(|place| place.try_into().ok());
    let fd = i32::from_ne_bytes(place.ok_or(Errno::INVAL)?);
    if fd < 0 {
        return Ok(());
    }
    let file = open_files::get(fd).ok_or(Errno::BADF)?;
    let channel = file.channel().ok_or(Errno::INVAL)?;
    put(command, at, channel.number);
    Ok(())
}

/// Drops the records about objects that are gone, which then count as not reported.
///
/// Those of an id that has moved to another channel go there.
pub(crate) fn settle(answer: &mut [u8], retired: &[RetiredEvents], next: Option<&Channel>) {
    let counted_at = |retired: &RetiredEvents| (retired.channel, retired.offset);
    // Each channel is searched once: what is put back comes again only after the service had it.
    for retired in retired.chunk_by(|one, other| counted_at(one) == counted_at(other)) {
        let (ChannelId(number), offset) = counted_at(&retired[0]);
        let file = channels(|channels| channels.get(&number).and_then(Weak::upgrade));
        let Some(channel) = file.as_deref().and_then(OpenFile::channel) else {
            continue;
        };
        let unread = channel.drain(retired);
        let dropped = u32::try_from(unread.len()).unwrap_or(u32::MAX);
        if let Some(next) = next {
            unread.iter().for_each(|record| next.put_back(record));
        }
        let at = usize::try_from(offset).unwrap_or(usize::MAX - 4);
        if let Some(count) = answer
            .get(at..at + 4)
            .and_then(|count| count.try_into().ok())
        {
            let count = u32::from_ne_bytes(count);
            put(answer, at, count.saturating_sub(dropped));
        }
    }
}
