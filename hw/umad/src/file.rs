//! An open umad file: the agents registered with it, what it sent, and what waits to be read.

use std::collections::{BTreeMap, VecDeque};

use hca_api::SpecialQp;
use ib_endpoint::{
    AgentEvent, AgentId, MadAddress, MadAgent, Message, MethodSet, Oui, RegisterError,
    Registration, RequestId, RetryPolicy, SendError, TransferError, TransferId,
};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{Mad, MadHeader, MgmtClass};
use linux_abi::Errno;
use zerocopy::IntoBytes;

use crate::abi::{MAX_AGENTS, RegisterRequest2, UmadHeader};
use crate::adapters::{Adapters, PortId};
use crate::rules::{FileRules, RequestKey, WriteShape, data_offset};

/// What one file may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Requests, and responses under RMPP, that are under way at once; more wait their turn.
    pub outstanding: usize,
    /// Bytes of messages that wait their turn.
    pub waiting_bytes: usize,
    /// Messages that wait to be read.
    pub unread: usize,
    /// Bytes of messages that wait to be read.
    pub unread_bytes: usize,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self {
            outstanding: 1024,
            waiting_bytes: 8 << 20,
            unread: 16384,
            unread_bytes: 32 << 20,
        }
    }
}

/// What did not reach the program, or not the subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounters {
    /// Messages written by the program and sent.
    pub written: u64,
    /// Messages for the program to read.
    pub received: u64,
    /// Requests that came back without an answer.
    pub timed_out: u64,
    /// Received messages dropped because too many were unread.
    pub unread_dropped: u64,
    /// Messages written by the program that could not be sent.
    pub refused: u64,
}

/// What one `read` gives: header and MAD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Bytes of the header.
    pub header_size: usize,
    /// The header, the first MAD or as much of it as there is, and the data of the segments behind
    /// it.
    pub bytes: Vec<u8>,
}

/// An agent of a file, as the port knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registered {
    qp: SpecialQp,
    agent: AgentId,
}

/// What comes back if there is no answer.
#[derive(Clone, Copy, Debug)]
struct Sent {
    header: UmadHeader,
    mad: MadHeader,
}

/// A message that waits until there is room among those under way.
#[derive(Clone, Debug)]
struct Waiting {
    slot: u32,
    sent: Sent,
    message: Message,
}

/// An open umad file.
#[derive(Debug)]
pub struct UmadFile {
    port: PortId,
    limits: FileLimits,
    rules: FileRules,
    agents: [Option<Registered>; MAX_AGENTS],
    requests: BTreeMap<(SpecialQp, RequestId), Sent>,
    transfers: BTreeMap<(SpecialQp, TransferId), Sent>,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    unread: VecDeque<Packet>,
    unread_bytes: usize,
    /// Bytes of messages that may be kept until the next poll, as the server has room.
    room: usize,
    counters: FileCounters,
}

impl UmadFile {
    /// Opens a port's umad.
    #[must_use]
    pub fn new(port: PortId, limits: FileLimits) -> Self {
        Self {
            port,
            limits,
            rules: FileRules::default(),
            agents: [None; MAX_AGENTS],
            requests: BTreeMap::new(),
            transfers: BTreeMap::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            unread: VecDeque::new(),
            unread_bytes: 0,
            room: usize::MAX,
            counters: FileCounters::default(),
        }
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> PortId {
        self.port
    }

    /// What the file may do now.
    #[must_use]
    pub const fn rules(&self) -> &FileRules {
        &self.rules
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> FileCounters {
        self.counters
    }

    /// `IB_USER_MAD_ENABLE_PKEY`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] once an agent was registered.
    pub const fn enable_pkey(&mut self) -> Result<(), Errno> {
        self.rules.enable_pkey()
    }

    /// `IB_USER_MAD_REGISTER_AGENT` and, if `second_form`, `IB_USER_MAD_REGISTER_AGENT2`. Gives the
    /// agent's number in the file.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for what the kernel refuses, among it methods that somebody takes;
    /// [`Errno::ENOMEM`] without a free number; [`Errno::ENODEV`] without the queue pair.
    pub fn register(
        &mut self,
        adapters: &mut dyn Adapters,
        request: &RegisterRequest2,
        second_form: bool,
    ) -> Result<u32, Errno> {
        let (id, rules) = self.rules.check_registration(request)?;
        let qp = if rules.on_qp0 {
            SpecialQp::Smi
        } else {
            SpecialQp::Gsi
        };
        let mads = adapters.agent(self.port, qp).ok_or(Errno::ENODEV)?;
        let agent = mads
            .register(registration(request, rules.has_rmpp))
            .map_err(|error| match error {
                RegisterError::TooMany => Errno::ENOMEM,
                _ => Errno::EINVAL,
            })?;
        self.rules.registered(id, rules, second_form);
        if let Some(slot) = usize::try_from(id)
            .ok()
            .and_then(|id| self.agents.get_mut(id))
        {
            *slot = Some(Registered { qp, agent });
        }
        Ok(id)
    }

    /// `IB_USER_MAD_UNREGISTER_AGENT`. What the agent had under way ends without a word; what it
    /// received can still be read.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is no such agent.
    pub fn unregister(&mut self, adapters: &mut dyn Adapters, id: u32) -> Result<(), Errno> {
        self.rules.unregister(id)?;
        let slot = usize::try_from(id)
            .ok()
            .and_then(|id| self.agents.get_mut(id));
        let Some(Registered { qp, agent }) = slot.and_then(Option::take) else {
            return Err(Errno::EINVAL);
        };
        if let Some(mads) = adapters.agent(self.port, qp) {
            mads.unregister(agent);
        }
        self.requests.retain(|_, sent| sent.header.id.get() != id);
        self.transfers.retain(|_, sent| sent.header.id.get() != id);
        self.waiting.retain(|waiting| waiting.slot != id);
        self.waiting_bytes = self.waiting.iter().map(Waiting::bytes).sum();
        Ok(())
    }

    /// `write`: a header and a MAD, or under RMPP a whole message.
    ///
    /// # Errors
    /// Those of [`FileRules::check_write`]. A message that is refused later, because its transaction
    /// id is in use, comes back with that status (the kernel refuses it here).
    pub fn write(
        &mut self,
        now: Instant,
        adapters: &mut dyn Adapters,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let shape = self.rules.check_write(bytes, bytes.len())?;
        let mad = bytes.get(self.rules.header_size()..).ok_or(Errno::EINVAL)?;
        let mut message = message(&shape, mad).ok_or(Errno::EINVAL)?;
        if !message.header().method.is_answer()
            && let Some(registered) = self.registered(shape.header.id.get())
        {
            // As in the kernel a request that comes back has the transaction id of the wire.
            let tid = registered.agent.tid_with_low_half_of(message.header().tid);
            message.header_mut().tid = tid;
        }
        let waiting = Waiting {
            slot: shape.header.id.get(),
            sent: Sent {
                header: shape.header,
                mad: *message.header(),
            },
            message,
        };
        self.waiting_bytes += waiting.bytes();
        self.waiting.push_back(waiting);
        self.flush(now, adapters);
        Ok(())
    }

    /// Checks that no request is under way that the one in `head` is like: its header and the common header of its MAD.
    ///
    /// # Errors
    /// [`Errno::EINVAL`], also for what is no request.
    pub fn may_write(&self, head: &[u8]) -> Result<(), Errno> {
        let key = RequestKey::of_request(head, self.rules.header_size()).ok_or(Errno::EINVAL)?;
        let waiting = self.waiting.iter().map(|waiting| &waiting.sent);
        let under_way = self.requests.values().chain(waiting);
        let mut requests = under_way.filter(|sent| !sent.mad.method.is_answer());
        let is_like = |sent: &Sent| RequestKey::new(sent.header.id.get(), &sent.mad) == key;
        if requests.any(is_like) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Whether more may be written now: what waits for its turn, and the requests that came back
    /// and were not read, are within their limits.
    #[must_use]
    pub fn takes_writes(&self) -> bool {
        self.waiting_bytes < self.limits.waiting_bytes && self.unread.len() < 2 * self.limits.unread
    }

    /// Returns the bytes of messages that are kept for the program, and of those that it wrote and that wait.
    #[must_use]
    pub const fn held_bytes(&self) -> usize {
        self.unread_bytes + self.waiting_bytes
    }

    /// Sends what waits, as far as there is room, and takes what happened on the port. Messages beyond `room` bytes are
    /// dropped, as if the program had too many unread.
    pub fn poll(&mut self, now: Instant, adapters: &mut dyn Adapters, room: usize) {
        self.room = room;
        for slot in 0..MAX_AGENTS {
            let Some(Registered { qp, agent }) = self.agents[slot] else {
                continue;
            };
            while let Some(event) = adapters.poll_event(self.port, qp, agent) {
                self.handle_event(slot, qp, event);
            }
        }
        self.flush(now, adapters);
    }

    /// The next message to read.
    pub fn poll_read(&mut self) -> Option<Packet> {
        let packet = self.unread.pop_front()?;
        self.unread_bytes -= packet.bytes.len();
        Some(packet)
    }

    /// Puts back what could not be passed on.
    pub fn unread(&mut self, packet: Packet) {
        self.unread_bytes += packet.bytes.len();
        self.unread.push_front(packet);
    }

    /// Closes the file: nothing is left of its agents.
    pub fn close(mut self, adapters: &mut dyn Adapters) {
        for Registered { qp, agent } in self.agents.iter_mut().filter_map(Option::take) {
            if let Some(mads) = adapters.agent(self.port, qp) {
                mads.unregister(agent);
            }
        }
    }

    fn registered(&self, id: u32) -> Option<Registered> {
        self.agents.get(usize::try_from(id).ok()?).copied()?
    }

    fn flush(&mut self, now: Instant, adapters: &mut dyn Adapters) {
        while self.requests.len() + self.transfers.len() < self.limits.outstanding
            && let Some(waiting) = self.waiting.pop_front()
        {
            let bytes = waiting.bytes();
            let Some(waiting) = self.send(now, adapters, waiting) else {
                self.waiting_bytes -= bytes;
                continue;
            };
            self.waiting.push_front(waiting);
            return;
        }
    }

    /// Sends a message. Gives it back if the port has too much under way.
    fn send(
        &mut self,
        now: Instant,
        adapters: &mut dyn Adapters,
        waiting: Waiting,
    ) -> Option<Waiting> {
        let Registered { qp, agent } = self.registered(waiting.slot)?;
        let Some(mads) = adapters.agent(self.port, qp) else {
            self.refuse(&waiting.sent, Errno::ENODEV);
            return None;
        };
        match hand_over(now, mads, agent, &waiting) {
            Ok(UnderWay::Request(request)) => {
                self.requests.insert((qp, request), waiting.sent);
            }
            Ok(UnderWay::Transfer(transfer)) => {
                self.transfers.insert((qp, transfer), waiting.sent);
            }
            Ok(UnderWay::Nothing) => {}
            Err(SendError::TooMany) => return Some(waiting),
            Err(_) => {
                self.refuse(&waiting.sent, Errno::EINVAL);
                return None;
            }
        }
        self.counters.written += 1;
        None
    }

    fn handle_event(&mut self, slot: usize, qp: SpecialQp, event: AgentEvent) {
        match event {
            AgentEvent::Response {
                request,
                from,
                message,
                ..
            } => {
                self.requests.remove(&(qp, request));
                self.receive(slot, &from, &message);
            }
            AgentEvent::Request { from, message, .. } => self.receive(slot, &from, &message),
            // The kernel tells of a timeout only, and of nothing when a peer ends a transfer: a
            // program that counts its requests would wait for ever.
            AgentEvent::RequestFailed { request, .. } => {
                if let Some(sent) = self.requests.remove(&(qp, request)) {
                    self.time_out(&sent);
                }
            }
            AgentEvent::TransferEnded {
                transfer, result, ..
            } => {
                let sent = self.transfers.remove(&(qp, transfer));
                if let (Some(sent), Err(error)) = (sent, result)
                    && !matches!(error, TransferError::EndedByPeer(_))
                {
                    self.time_out(&sent);
                }
            }
        }
    }

    fn time_out(&mut self, sent: &Sent) {
        self.counters.timed_out += 1;
        self.give_back(sent, Errno::ETIMEDOUT);
    }

    fn refuse(&mut self, sent: &Sent, status: Errno) {
        self.counters.refused += 1;
        self.give_back(sent, status);
    }

    /// Gives a message back: its header with a status, and the common header of the MAD. Unlike
    /// received messages these are never dropped, since a program counts on them; how many there
    /// can be is bounded by [`Self::takes_writes`].
    fn give_back(&mut self, sent: &Sent, status: Errno) {
        let mut header = sent.header;
        header.status = status.to_u32().into();
        self.push(&header, &[sent.mad.as_bytes()]);
    }

    fn receive(&mut self, slot: usize, from: &MadAddress, message: &Message) {
        let (mad, data) = if message.is_rmpp() {
            let head = &message.mad().as_bytes()[..data_offset(message.header().mgmt_class)];
            (head, message.data())
        } else {
            (message.mad().as_bytes(), &[][..])
        };
        let length = self.rules.header_size() + mad.len() + data.len();
        let has_room = self.unread.len() < self.limits.unread
            && self.unread_bytes + length <= self.limits.unread_bytes
            && length <= self.room;
        let ids = (u32::try_from(slot), u32::try_from(length));
        let (Ok(id), Ok(length), true) = (ids.0, ids.1, has_room) else {
            self.counters.unread_dropped += 1;
            return;
        };
        self.counters.received += 1;
        let mut header = UmadHeader::received(id, from);
        header.length = length.into();
        self.push(&header, &[mad, data]);
    }

    fn push(&mut self, header: &UmadHeader, parts: &[&[u8]]) {
        let header_size = self.rules.header_size();
        let mut bytes = header.as_bytes()[..header_size].to_vec();
        bytes.extend(parts.iter().copied().flatten());
        self.unread_bytes += bytes.len();
        self.room = self.room.saturating_sub(bytes.len());
        self.unread.push_back(Packet { header_size, bytes });
    }
}

impl Waiting {
    fn bytes(&self) -> usize {
        size_of::<Self>()
            + if self.message.is_rmpp() {
                self.message.data().len()
            } else {
                0
            }
    }
}

/// What of a message is under way once it was handed over.
enum UnderWay {
    Request(RequestId),
    Transfer(TransferId),
    Nothing,
}

fn hand_over(
    now: Instant,
    mads: &mut MadAgent,
    agent: AgentId,
    waiting: &Waiting,
) -> Result<UnderWay, SendError> {
    let header = &waiting.sent.header;
    let to = header.address();
    let message = waiting.message.clone();
    if message.header().method.is_answer() {
        let transfer = mads.respond(now, agent, to, message)?;
        return Ok(transfer.map_or(UnderWay::Nothing, UnderWay::Transfer));
    }
    let timeout = Duration::from_millis(u64::from(header.timeout_ms.get()));
    if timeout.is_zero() {
        mads.send(agent, to, *message.mad())?;
        return Ok(UnderWay::Nothing);
    }
    let retries = u8::try_from(header.retries.get()).unwrap_or(u8::MAX);
    let policy = RetryPolicy::new(timeout, retries);
    let request = mads.send_numbered_request(now, agent, to, message, policy)?;
    Ok(UnderWay::Request(request))
}

/// The message in what a program wrote behind the header; what it left out is zero.
fn message(shape: &WriteShape, bytes: &[u8]) -> Option<Message> {
    let mut mad = Mad::new(MadHeader::default());
    let filled = bytes.len().min(size_of::<Mad>());
    mad.as_mut_bytes()[..filled].copy_from_slice(&bytes[..filled]);
    if shape.is_rmpp {
        Message::rmpp(mad, bytes.get(shape.data_offset..)?.to_vec())
    } else {
        Some(Message::single(mad))
    }
}

fn registration(request: &RegisterRequest2, has_rmpp: bool) -> Registration {
    if request.mgmt_class == 0 {
        return Registration {
            takes_packets: !has_rmpp,
            ..Registration::sender().apart()
        };
    }
    let [low, high] = request.method_mask;
    let bits = u128::from(low.get()) | u128::from(high.get()) << 64;
    let class = MgmtClass::new(request.mgmt_class);
    let [_, oui @ ..] = request.oui.get().to_be_bytes();
    let registration = Registration::new(class, MethodSet::from_bits(bits)).apart();
    Registration {
        class_version: request.mgmt_class_version,
        oui: class.is_vendor_oui().then_some(Oui(oui)),
        sends_any_class: true,
        takes_packets: !has_rmpp,
        ..registration.with_class_port_info(None)
    }
}

#[cfg(test)]
mod tests;
