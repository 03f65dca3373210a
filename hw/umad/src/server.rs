//! The server's side of all connections.

use std::collections::BTreeMap;

use ib_vtime::{Duration, Instant};
use ib_wire::mad::MAD_SIZE;
use linux_abi::Errno;
use linux_abi::sysfs::View;
use zerocopy::FromBytes;
use zerocopy::native_endian::U32;

use crate::abi::{HEADER_SIZE, RegisterRequest, RegisterRequest2, ioctl};
use crate::adapters::{AdapterId, Adapters, PortId};
use crate::file::{FileCounters, FileLimits, UmadFile};
use crate::protocol::{
    Call, CallReply, Delivery, Frame, FrameKind, Hello, HelloReply, INLINE_MAX, Purpose,
};
use crate::sysfs;
use crate::tree::TreeId;

/// Adapters that one program may see.
const MAX_ADAPTERS: usize = 8;

/// How long a connection may stay without saying what it is for.
const HELLO_TIME: Duration = Duration::from_secs(5);

/// Names a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u64);

/// Names a user of the host: programs of one user share what they may have the server keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

/// What the server may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections.
    pub sessions: usize,
    /// Announced messages of one file that nobody has fetched.
    pub announced: usize,
    /// Bytes of messages of all files of a user, to be read or to be sent.
    pub user_bytes: usize,
    /// The same for all users.
    pub bytes: usize,
    /// Of each file.
    pub file: FileLimits,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            sessions: 256,
            announced: 4,
            user_bytes: 128 << 20,
            bytes: 512 << 20,
            file: FileLimits::default(),
        }
    }
}

/// The answer to a call, for the socket that came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What to send.
    pub datagram: Vec<u8>,
    /// What a memory file holds that goes with it.
    pub attachment: Option<Vec<u8>>,
}

/// A tree of files to be made, or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeRequest {
    /// Its name.
    pub id: TreeId,
    /// Its devices.
    pub view: View,
}

/// What a datagram leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to send.
    Nothing,
    /// An answer on the connection, which is a file from now on.
    Opened(Vec<u8>),
    /// An answer on the connection, which has done its duty.
    Replied(Vec<u8>),
    /// The place of a tree is wanted: the answer is [`HelloReply`] with its path, and the connection
    /// has done its duty.
    Tree(TreeRequest),
    /// An answer to a call.
    Answered(Answer),
    /// The client does not keep to the protocol: the connection is to be closed.
    Close,
}

/// What a connection is.
#[derive(Debug)]
enum Session {
    /// Nobody knows yet; until then at most.
    New { until: Instant, user: UserId },
    /// `umadN`.
    Umad(Box<OpenUmad>),
    /// `issmN`.
    IsSm(PortId),
    /// It had its answer.
    Done,
}

/// The connection of an umad file.
#[derive(Debug)]
struct OpenUmad {
    user: UserId,
    file: UmadFile,
    /// A message of which parts are missing.
    partial: Vec<u8>,
    /// Announced messages.
    announced: BTreeMap<u64, Vec<u8>>,
    next_serial: u64,
    /// The datagram to send next.
    head: Option<Vec<u8>>,
    malformed: u64,
}

/// The server's side of all connections. See the [crate](crate).
#[derive(Debug)]
pub struct UmadServer {
    limits: ServerLimits,
    sessions: BTreeMap<SessionId, Session>,
    /// Which connection holds a port's `issmN`.
    is_sm: BTreeMap<PortId, SessionId>,
    /// Bytes that are held for users, as of the last poll.
    held: BTreeMap<UserId, usize>,
    next: u64,
}

impl UmadServer {
    /// A server without connections.
    #[must_use]
    pub const fn new(limits: ServerLimits) -> Self {
        Self {
            limits,
            sessions: BTreeMap::new(),
            is_sm: BTreeMap::new(),
            held: BTreeMap::new(),
            next: 0,
        }
    }

    /// Takes a client of a user that connected. Returns `None` if there are too many.
    pub fn connect(&mut self, now: Instant, user: UserId) -> Option<SessionId> {
        if self.sessions.len() >= self.limits.sessions {
            return None;
        }
        let id = SessionId(self.next);
        self.next += 1;
        let until = now + HELLO_TIME;
        self.sessions.insert(id, Session::New { until, user });
        Some(id)
    }

    /// A connection is gone: what it had on its port ends.
    pub fn disconnect(&mut self, adapters: &mut dyn Adapters, id: SessionId) {
        match self.sessions.remove(&id) {
            Some(Session::Umad(umad)) => umad.file.close(adapters),
            Some(Session::IsSm(port)) => {
                self.is_sm.remove(&port);
                adapters.set_is_sm(port, false);
            }
            Some(Session::New { .. } | Session::Done) | None => {}
        }
    }

    /// Takes a datagram of a client.
    pub fn receive(
        &mut self,
        now: Instant,
        adapters: &mut dyn Adapters,
        id: SessionId,
        datagram: &[u8],
    ) -> Verdict {
        match self.sessions.get_mut(&id) {
            Some(&mut Session::New { user, .. }) => self.greet(adapters, id, user, datagram),
            Some(Session::Umad(umad)) => match Frame::decode(datagram) {
                Ok(frame) => umad.take(now, adapters, frame),
                Err(_) => Verdict::Close,
            },
            Some(Session::IsSm(_) | Session::Done) | None => Verdict::Close,
        }
    }

    /// Whether a connection's datagrams should be received now. What is left with the client makes
    /// it wait.
    #[must_use]
    pub fn wants_input(&self, id: SessionId) -> bool {
        match self.sessions.get(&id) {
            Some(Session::Umad(umad)) => umad.file.takes_writes() && self.room(umad.user) > 0,
            Some(Session::New { .. } | Session::IsSm(_) | Session::Done) => true,
            None => false,
        }
    }

    /// Takes what happened on the ports, and sends what waits.
    pub fn poll(&mut self, now: Instant, adapters: &mut dyn Adapters) {
        self.held.clear();
        for umad in self.sessions.values().filter_map(Session::umad) {
            *self.held.entry(umad.user).or_default() += umad.held_bytes();
        }
        let all: usize = self.held.values().sum();
        let mut left = self.limits.bytes.saturating_sub(all);
        for session in self.sessions.values_mut() {
            let Session::Umad(umad) = session else {
                continue;
            };
            let held = self.held.entry(umad.user).or_default();
            let room = self.limits.user_bytes.saturating_sub(*held).min(left);
            let before = umad.held_bytes();
            umad.file.poll(now, adapters, room);
            let more = umad.held_bytes().saturating_sub(before);
            *held += more;
            left = left.saturating_sub(more);
        }
    }

    /// Returns how many bytes more may be held for a user, as of the last poll.
    fn room(&self, user: UserId) -> usize {
        let held = self.held.get(&user).copied().unwrap_or(0);
        let all: usize = self.held.values().sum();
        let own = self.limits.user_bytes.saturating_sub(held);
        own.min(self.limits.bytes.saturating_sub(all))
    }

    /// The next connection that was silent for too long: to be closed.
    #[must_use]
    pub fn poll_expired(&self, now: Instant) -> Option<SessionId> {
        let mut sessions = self.sessions.iter();
        sessions.find_map(|(id, session)| match session {
            Session::New { until, .. } if *until <= now => Some(*id),
            _ => None,
        })
    }

    /// When to ask for [`Self::poll_expired`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let untils = self.sessions.values().filter_map(|session| match session {
            Session::New { until, .. } => Some(*until),
            _ => None,
        });
        untils.min()
    }

    /// The next datagram for a client. It stays the next until [`Self::sent`].
    pub fn next_datagram(&mut self, id: SessionId) -> Option<&[u8]> {
        match self.sessions.get_mut(&id) {
            Some(Session::Umad(umad)) => umad.next_datagram(self.limits.announced),
            _ => None,
        }
    }

    /// The datagram was sent.
    pub fn sent(&mut self, id: SessionId) {
        if let Some(Session::Umad(umad)) = self.sessions.get_mut(&id) {
            umad.head = None;
        }
    }

    /// What the file of a connection counted, and the messages of its client that were malformed.
    #[must_use]
    pub fn counters(&self, id: SessionId) -> Option<(FileCounters, u64)> {
        match self.sessions.get(&id)? {
            Session::Umad(umad) => Some((umad.file.counters(), umad.malformed)),
            _ => None,
        }
    }

    /// Connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    fn greet(
        &mut self,
        adapters: &mut dyn Adapters,
        id: SessionId,
        user: UserId,
        datagram: &[u8],
    ) -> Verdict {
        let Ok(hello) = Hello::decode(datagram) else {
            return Verdict::Close;
        };
        match self.grant(adapters, id, user, &hello) {
            Ok((session, verdict)) => {
                self.sessions.insert(id, session);
                verdict
            }
            Err(errno) => {
                self.sessions.insert(id, Session::Done);
                let reply = HelloReply { result: Err(errno) };
                Verdict::Replied(reply.encode())
            }
        }
    }

    fn grant(
        &mut self,
        adapters: &mut dyn Adapters,
        id: SessionId,
        user: UserId,
        hello: &Hello<'_>,
    ) -> Result<(Session, Verdict), Errno> {
        let ids = resolve(adapters, hello.adapters)?;
        let mut port = |number: u32| -> Result<PortId, Errno> {
            let views: Option<Vec<_>> = ids.iter().map(|id| adapters.view(*id)).collect();
            let views = views.ok_or(Errno::ENODEV)?;
            let (index, port) = sysfs::port(&views, number).ok_or(Errno::ENOENT)?;
            let adapter = ids.get(index).copied().ok_or(Errno::ENOENT)?;
            Ok(PortId { adapter, port })
        };
        let opened = HelloReply { result: Ok(&[]) }.encode();
        match hello.purpose {
            Purpose::Umad(number) => {
                let umad = OpenUmad::new(user, UmadFile::new(port(number)?, self.limits.file));
                Ok((Session::Umad(Box::new(umad)), Verdict::Opened(opened)))
            }
            Purpose::IsSm(number) => {
                let port = port(number)?;
                if self.is_sm.contains_key(&port) {
                    return Err(Errno::EAGAIN);
                }
                if !adapters.set_is_sm(port, true) {
                    return Err(Errno::EIO);
                }
                self.is_sm.insert(port, id);
                Ok((Session::IsSm(port), Verdict::Opened(opened)))
            }
            Purpose::Attribute(path) => {
                let tree = tree(adapters, ids, hello)?;
                let text = tree.view.text(path).ok_or(Errno::ENOENT)?;
                let reply = HelloReply {
                    result: Ok(text.as_bytes()),
                };
                Ok((Session::Done, Verdict::Replied(reply.encode())))
            }
            Purpose::PendingPorts => {
                let names = hello.adapters.split(',').map(str::trim);
                let pending = names.flat_map(|name| adapters.pending_ports(name));
                let pending: Vec<_> = pending.take(MAX_ADAPTERS).collect();
                let pending = pending.join(",");
                let reply = HelloReply {
                    result: Ok(pending.as_bytes()),
                };
                Ok((Session::Done, Verdict::Replied(reply.encode())))
            }
            Purpose::Tree => {
                let tree = tree(adapters, ids, hello)?;
                Ok((Session::Done, Verdict::Tree(tree)))
            }
        }
    }
}

/// Returns the tree of a program that sees adapters.
fn tree(
    adapters: &mut dyn Adapters,
    ids: Vec<AdapterId>,
    hello: &Hello<'_>,
) -> Result<TreeRequest, Errno> {
    let name = match hello.device {
        "" => None,
        name if sysfs::may_be_named(name, ids.len()) => Some(name.to_owned()),
        _ => return Err(Errno::EINVAL),
    };
    let verbs = adapters.verbs(hello.adapters);
    let id = TreeId {
        adapters: ids,
        verbs,
        name,
    };
    let view = id.view(adapters).ok_or(Errno::ENODEV)?;
    Ok(TreeRequest { id, view })
}

/// The adapters that a client names.
fn resolve(adapters: &mut dyn Adapters, names: &str) -> Result<Vec<AdapterId>, Errno> {
    let names = names.split(',').map(str::trim);
    let ids: Option<Vec<_>> = names
        .take(MAX_ADAPTERS + 1)
        .map(|name| adapters.find(name))
        .collect();
    ids.filter(|ids| ids.len() <= MAX_ADAPTERS)
        .ok_or(Errno::ENODEV)
}

impl Session {
    fn umad(&self) -> Option<&OpenUmad> {
        match self {
            Self::Umad(umad) => Some(umad),
            Self::New { .. } | Self::IsSm(_) | Self::Done => None,
        }
    }
}

impl OpenUmad {
    fn new(user: UserId, file: UmadFile) -> Self {
        Self {
            user,
            file,
            partial: Vec::new(),
            announced: BTreeMap::new(),
            next_serial: 0,
            head: None,
            malformed: 0,
        }
    }

    /// Returns the bytes of messages that are kept for the program or by it.
    fn held_bytes(&self) -> usize {
        let announced: usize = self.announced.values().map(Vec::len).sum();
        self.file.held_bytes() + announced + self.partial.len()
    }

    fn take(&mut self, now: Instant, adapters: &mut dyn Adapters, frame: Frame<'_>) -> Verdict {
        match frame.kind {
            FrameKind::Part { total, offset } => {
                if offset != self.partial.len() && offset != 0 {
                    return Verdict::Close;
                }
                if offset == 0 && frame.body.len() == total {
                    self.partial = Vec::new();
                    self.write(now, adapters, frame.body);
                } else {
                    self.partial.truncate(offset);
                    self.partial.extend_from_slice(frame.body);
                    if self.partial.len() == total {
                        let message = core::mem::take(&mut self.partial);
                        self.write(now, adapters, &message);
                    }
                }
                Verdict::Nothing
            }
            FrameKind::Call(call) => Verdict::Answered(self.call(adapters, call, frame.body)),
        }
    }

    fn write(&mut self, now: Instant, adapters: &mut dyn Adapters, bytes: &[u8]) {
        // The client's side told its program already what is wrong.
        if self.file.write(now, adapters, bytes).is_err() {
            self.malformed += 1;
        }
    }

    fn call(&mut self, adapters: &mut dyn Adapters, call: Call, body: &[u8]) -> Answer {
        let mut argument = body.to_vec();
        let outcome = match call {
            Call::Fetch(serial) => match self.announced.remove(&serial) {
                Some(message) => {
                    return Answer {
                        datagram: CallReply {
                            error: None,
                            body: &[],
                        }
                        .encode(),
                        attachment: Some(message),
                    };
                }
                None => Err(Errno::ENOENT),
            },
            Call::MayWrite => self.file.may_write(body),
            Call::Ioctl(ioctl::REGISTER_AGENT) => self.register(adapters, &mut argument),
            Call::Ioctl(ioctl::REGISTER_AGENT2) => self.register2(adapters, &mut argument),
            Call::Ioctl(ioctl::UNREGISTER_AGENT) => match U32::read_from_bytes(body) {
                Ok(id) => self.file.unregister(adapters, id.get()),
                Err(_) => Err(Errno::EINVAL),
            },
            Call::Ioctl(ioctl::ENABLE_PKEY) => self.file.enable_pkey(),
            Call::Ioctl(_) => Err(Errno::ENOTTY),
        };
        let reply = CallReply {
            error: outcome.err(),
            body: &argument,
        };
        Answer {
            datagram: reply.encode(),
            attachment: None,
        }
    }

    fn register(&mut self, adapters: &mut dyn Adapters, argument: &mut [u8]) -> Result<(), Errno> {
        let request = RegisterRequest::mut_from_bytes(argument).map_err(|_| Errno::EINVAL)?;
        let id = self.file.register(adapters, &(*request).into(), false)?;
        request.id = id.into();
        Ok(())
    }

    fn register2(&mut self, adapters: &mut dyn Adapters, argument: &mut [u8]) -> Result<(), Errno> {
        let request = RegisterRequest2::mut_from_bytes(argument).map_err(|_| Errno::EINVAL)?;
        if request.flags.get() & !RegisterRequest2::USER_RMPP != 0 {
            // The kernel tells which flags it knows.
            request.flags = RegisterRequest2::USER_RMPP.into();
            return Err(Errno::EINVAL);
        }
        let id = self.file.register(adapters, request, true)?;
        request.id = id.into();
        Ok(())
    }

    fn next_datagram(&mut self, max_announced: usize) -> Option<&[u8]> {
        if self.head.is_none() {
            let packet = self.file.poll_read()?;
            let is_long = packet.bytes.len() > INLINE_MAX;
            if is_long && self.announced.len() >= max_announced {
                self.file.unread(packet);
                return None;
            }
            let serial = is_long.then_some(self.next_serial);
            let shown = if is_long {
                packet.header_size + MAD_SIZE
            } else {
                packet.bytes.len()
            };
            let delivery = Delivery {
                header_size: packet.header_size,
                total: packet.bytes.len(),
                serial,
                body: &packet.bytes[..shown],
            };
            self.head = delivery.encode();
            if let Some(serial) = serial {
                self.next_serial += 1;
                self.announced.insert(serial, packet.bytes);
            }
        }
        self.head.as_deref()
    }
}

const _: () = assert!(HEADER_SIZE + MAD_SIZE < INLINE_MAX);

#[cfg(test)]
mod tests;
