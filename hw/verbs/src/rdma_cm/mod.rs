//! `/dev/infiniband/rdma_cm`: ids of the RDMA CM and their multicast groups, on the connection manager and the SA client of a
//! port.
//!
//! IP addresses come from an [`AddressBook`]; no interface or route of the host is involved. Private data of requests has
//! the header of IBA's RDMA IP CM service, as the kernel's.

mod address;
mod attributes;
mod bind;
mod connect;
mod group_address;
mod multicast;
mod options;
mod resolve;

use core::net::Ipv4Addr;
use std::collections::{BTreeMap, VecDeque};

use ib_endpoint::cm::ConnId;
use ib_endpoint::sa_client::QueryId;
use ib_endpoint::{EndPort, EndPortEvent, MadTransport, PortPath, SaAnswer, SaError, SaEvent};
use ib_vtime::{Instant, Secret, SecretNumbers};
use ib_wire::{Gid, GidIndex, Guid, PKey, QKey, ServiceId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::abi::rdma_cm::{
    CmCommandHeader, CmEventRecord, CreateId, IdAnswer, IdArgument, IdCommand, PS_IB, PS_IPOIB,
    PS_TCP, PS_UDP, QPT_RC, QPT_UD, SetOption, UDP_QKEY, cm_command,
};
use crate::budget::cost;
use crate::events::EventQueue;
use crate::{Budget, ChannelId, Charge, Errno, EventRecord, Reply, RetiredEvents};

pub use address::{AddressBook, Network};

use address::SocketAddress;
use connect::Peer;
use multicast::{Broadcast, Groups};
use options::Options;

/// Ids of a process at most.
const MAX_IDS: usize = 4096;

/// The port that ids use, lent for a call.
#[derive(Debug)]
pub struct CmHost<'p, G> {
    /// Time.
    pub now: Instant,
    /// Port.
    pub port: &'p mut EndPort<G>,
    /// Node GUID of the device.
    pub node_guid: Guid,
}

impl<G: MadTransport> CmHost<'_, G> {
    fn own_gid(&self) -> Option<Gid> {
        self.port.view().gid(GidIndex(0))
    }

    /// Returns the partition of the ids, as the key of a full member.
    fn partition(&self) -> PKey {
        let first = self.port.view().pkeys.first().copied();
        first
            .filter(|key| key.is_valid())
            .map_or(PKey::DEFAULT_FULL, PKey::full)
    }
}

/// An id.
#[derive(Debug)]
struct CmId {
    channel: ChannelId,
    uid: u64,
    port_space: u16,
    qp_type: u8,
    options: Options,
    /// Address that the id is bound to.
    local: Option<SocketAddress>,
    /// Port space in which the id has the port of its address. Ids that requests make have none: the port is the listener's.
    holds_port_in: Option<u16>,
    remote: Option<SocketAddress>,
    remote_gid: Option<Gid>,
    path: Option<PortPath>,
    query: Option<QueryId>,
    /// Listener of the id's service, which ids with other addresses or families may share.
    listener: Option<ConnId>,
    connection: Option<ConnId>,
    /// The other queue pair, once it is known.
    peer: Option<Peer>,
    /// PSN with which the peer begins; of datagrams, the own first PSN.
    psn: u32,
    /// Parameters of the partition's broadcast group.
    broadcast: Broadcast,
    /// The event of the resolved address waits for these.
    is_resolving: bool,
    /// The GID of the destination is looked up.
    is_looked_up: bool,
    /// The peer has asked for the end of the connection, and waits for the answer.
    answers_dreq: bool,
    /// Events that were passed on.
    events: u32,
    _charge: Charge,
}

/// Ids of a process.
#[derive(Debug)]
pub struct RdmaCm {
    ids: BTreeMap<u32, CmId>,
    budget: Budget,
    channels: BTreeMap<ChannelId, Charge>,
    by_connection: BTreeMap<ConnId, u32>,
    by_query: BTreeMap<QueryId, Purpose>,
    groups: Groups,
    /// Addresses that ids wait for, one for each of their commands.
    lookups: VecDeque<Ipv4Addr>,
    next_id: u32,
    next_channel: u32,
    next_port: u16,
    psns: SecretNumbers,
    events: EventQueue,
    /// Events that found the budget used up.
    dropped_events: u64,
}

/// Purpose of a query of the SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The path of an id.
    Route(u32),
    /// The broadcast group, for an id.
    Broadcast(u32),
    /// An MGID that the SA chooses, for a multicast group.
    Mgid(u32),
}

/// Numbers of channels begin here, apart from those of uverbs.
const FIRST_CHANNEL: u32 = 1 << 30;

/// Open files of a process at most.
const MAX_CHANNELS: usize = 256;

impl RdmaCm {
    /// Returns a process without ids, and without a limit to its budget. First PSNs follow from the secret,
    /// which no other process may have.
    #[must_use]
    pub fn new(secret: impl Into<Secret>) -> Self {
        Self {
            ids: BTreeMap::new(),
            budget: Budget::default(),
            channels: BTreeMap::new(),
            by_connection: BTreeMap::new(),
            by_query: BTreeMap::new(),
            groups: Groups::new(),
            lookups: VecDeque::new(),
            next_id: 0,
            next_channel: 0,
            next_port: 0,
            psns: secret.into().numbers(),
            events: EventQueue::default(),
            dropped_events: 0,
        }
    }

    /// Charges ids, groups, channels and events to a budget from now on.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Returns the events that were lost, since the budget was used up.
    #[must_use]
    pub const fn dropped_events(&self) -> u64 {
        self.dropped_events
    }

    /// Charges an object to the budget.
    fn charge(&self, bytes: u64) -> Result<Charge, Errno> {
        self.budget.charge(bytes).ok_or(Errno::ENOMEM)
    }

    /// Opens a file: a channel of events.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`] if there are too many, or the budget is used up.
    pub fn open(&mut self) -> Result<ChannelId, Errno> {
        if self.channels.len() >= MAX_CHANNELS {
            return Err(Errno::ENOMEM);
        }
        let charge = self.charge(cost::CHANNEL)?;
        let channel = ChannelId(FIRST_CHANNEL | self.next_channel);
        self.next_channel = self.next_channel.wrapping_add(1) & (FIRST_CHANNEL - 1);
        self.channels.insert(channel, charge);
        Ok(channel)
    }

    /// Closes a file, and destroys its ids.
    pub fn close<G: MadTransport>(&mut self, host: &mut CmHost<'_, G>, channel: ChannelId) {
        self.channels.remove(&channel);
        let own = self.ids.iter().filter(|(_, id)| id.channel == channel);
        let own: Vec<u32> = own.map(|(number, _)| *number).collect();
        for number in own {
            self.end(host, number);
        }
    }

    /// Returns how many ids there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns `true` if there are no ids.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns `true` if there is such a file.
    #[must_use]
    pub fn has_channel(&self, channel: ChannelId) -> bool {
        self.channels.contains_key(&channel)
    }

    /// Returns `true` if [`Self::poll_event`] has a record.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next event to be passed on.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<EventRecord> {
        self.events.pop()
    }

    /// Returns `true` if a command names an address: of others no address is looked up.
    #[must_use]
    pub fn names_address(bytes: &[u8]) -> bool {
        let header = CmCommandHeader::read_from_prefix(bytes);
        let number = header.map(|(header, _)| header.command.get());
        matches!(number, Ok(cm_command::BIND | cm_command::RESOLVE_ADDR))
    }

    /// Returns the address and the length of the option in a program's memory that a command sets.
    #[must_use]
    pub fn names_option(bytes: &[u8]) -> Option<(u64, usize)> {
        let (header, payload) = CmCommandHeader::read_from_prefix(bytes).ok()?;
        if header.command.get() != cm_command::SET_OPTION {
            return None;
        }
        let asked: SetOption = read(payload).ok()?;
        let length = usize::try_from(asked.optlen.get()).ok()?;
        Some((asked.optval.get(), length))
    }

    /// Carries out a command of a file. Addresses that it names are looked up. The option that SET_OPTION names follows the
    /// command.
    ///
    /// # Errors
    /// The error number that the kernel would give.
    pub fn command<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        addresses: &AddressBook,
        channel: ChannelId,
        bytes: &[u8],
    ) -> Result<Reply, Errno> {
        let (header, payload) =
            CmCommandHeader::read_from_prefix(bytes).map_err(|_| Errno::EINVAL)?;
        if !self.has_channel(channel) {
            return Err(Errno::EIO);
        }
        let room = usize::from(header.out_bytes.get());
        let plain = |answer: Vec<u8>| Reply {
            answer,
            ..Reply::default()
        };
        let done = |(): ()| Reply::default();
        let mut reply = match header.command.get() {
            cm_command::CREATE_ID => self.create_id(channel, payload).map(plain),
            cm_command::DESTROY_ID => self.destroy_id(host, channel, payload),
            cm_command::BIND => self.bind(host, addresses, channel, payload).map(done),
            cm_command::RESOLVE_ADDR => self
                .resolve_addr(host, addresses, channel, payload)
                .map(done),
            cm_command::RESOLVE_ROUTE => self.resolve_route(host, channel, payload).map(done),
            cm_command::QUERY => self.query(host, channel, payload).map(plain),
            cm_command::LISTEN => self.listen(host, channel, payload).map(done),
            cm_command::CONNECT => self.connect(host, channel, payload).map(done),
            cm_command::ACCEPT => self.accept(host, channel, payload).map(done),
            cm_command::REJECT => self.reject(host, channel, payload).map(done),
            cm_command::DISCONNECT => self.disconnect(host, channel, payload).map(done),
            cm_command::INIT_QP_ATTR => self.init_qp_attr(host, channel, payload).map(plain),
            cm_command::SET_OPTION => self.set_option(host, channel, payload).map(done),
            cm_command::NOTIFY => self.notify(host, channel, payload).map(done),
            cm_command::MIGRATE_ID => self.migrate_id(channel, payload),
            cm_command::JOIN_MCAST => self.join(host, channel, payload).map(plain),
            cm_command::JOIN_IP_MCAST => self.join_ip(host, channel, payload).map(plain),
            cm_command::LEAVE_MCAST => self.leave(host, channel, payload),
            _ => Err(Errno::EOPNOTSUPP),
        }?;
        reply.answer.truncate(room);
        Ok(reply)
    }

    fn get(&mut self, channel: ChannelId, number: u32) -> Result<&mut CmId, Errno> {
        let id = self.ids.get_mut(&number).ok_or(Errno::ENOENT)?;
        if id.channel == channel {
            Ok(id)
        } else {
            Err(Errno::EINVAL)
        }
    }

    fn add(&mut self, id: CmId) -> Result<u32, Errno> {
        if self.ids.len() >= MAX_IDS {
            return Err(Errno::ENOMEM);
        }
        let number = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.ids.insert(number, id);
        Ok(number)
    }

    /// Returns the first PSN of a direction of a connection. Those before it do not reveal it.
    pub fn fresh_psn(&mut self) -> u32 {
        self.psns.next_u32() & 0x00ff_ffff
    }

    fn create_id(&mut self, channel: ChannelId, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let asked: CreateId = read(payload)?;
        let port_space = asked.ps.get();
        if !matches!(port_space, PS_TCP | PS_UDP | PS_IPOIB | PS_IB) {
            return Err(Errno::EINVAL);
        }
        let qp_type = match port_space {
            PS_TCP => QPT_RC,
            PS_IB => asked.qp_type,
            _ => QPT_UD,
        };
        let charge = self.charge(cost::CM_ID)?;
        let id = CmId::new(channel, asked.uid.get(), port_space, qp_type, charge);
        let number = self.add(id)?;
        let answer = IdAnswer {
            value: number.into(),
        };
        Ok(answer.as_bytes().to_vec())
    }

    fn destroy_id<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<Reply, Errno> {
        let asked: IdCommand = read(payload)?;
        let number = asked.id.get();
        self.get(channel, number)?;
        let reply = self.reported(number);
        self.end(host, number);
        Ok(reply)
    }

    /// Destroys an id, and tells the peer what its state demands.
    fn end<G: MadTransport>(&mut self, host: &mut CmHost<'_, G>, number: u32) {
        self.leave_all(host, number);
        let Some(id) = self.ids.remove(&number) else {
            return;
        };
        for query in [id.query, id.broadcast.query()].into_iter().flatten() {
            self.by_query.remove(&query);
            host.port.cancel_query(query);
        }
        let mut others = self.ids.values();
        let is_shared = others.any(|other| other.listener == id.listener);
        let listener = id.listener.filter(|_| !is_shared);
        if let Some(connection) = id.connection {
            self.by_connection.remove(&connection);
        }
        for connection in [listener, id.connection].into_iter().flatten() {
            // It may be over already.
            let _ = host.port.cm().destroy(host.now, connection);
        }
    }

    fn migrate_id(&mut self, channel: ChannelId, payload: &[u8]) -> Result<Reply, Errno> {
        let asked: IdCommand = read(payload)?;
        let old = ChannelId(asked.argument.get());
        let number = asked.id.get();
        self.get(old, number)?;
        let reply = self.reported(number);
        self.get(old, number)?.channel = channel;
        Ok(reply)
    }

    fn notify<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let asked: IdArgument = read(payload)?;
        let id = self.get(channel, asked.id.get())?;
        if let Some(connection) = id.connection {
            // An RTU that came first has done the same.
            let _ = host.port.cm().establish(host.now, connection);
        }
        Ok(())
    }

    /// Queues an event of an id.
    fn tell(&mut self, number: u32, event: u32, status: i32, param: &[u8]) {
        let Some(id) = self.ids.get(&number) else {
            return;
        };
        let (uid, channel) = (id.uid, id.channel);
        if self.tell_as(channel, uid, number, event, status, param)
            && let Some(id) = self.ids.get_mut(&number)
        {
            id.events += 1;
        }
    }

    /// Queues an event. Returns `false` if it is lost.
    fn tell_as(
        &mut self,
        channel: ChannelId,
        uid: u64,
        number: u32,
        event: u32,
        status: i32,
        param: &[u8],
    ) -> bool {
        let mut record = CmEventRecord {
            uid: uid.into(),
            id: number.into(),
            event: event.into(),
            status: u32::from_ne_bytes(status.to_ne_bytes()).into(),
            ..CmEventRecord::default()
        };
        let length = param.len().min(record.param.len());
        record.param[..length].copy_from_slice(&param[..length]);
        let record = EventRecord {
            channel,
            bytes: record.as_bytes().to_vec(),
        };
        let queued = self.events.push(&self.budget, record);
        self.dropped_events += u64::from(!queued);
        queued
    }

    /// Takes an event of the port. Returns `true` if it was of an id.
    pub fn handle_port_event<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        event: EndPortEvent,
    ) -> bool {
        match event {
            EndPortEvent::Sa(SaEvent::Answered { query, result }) => {
                self.answered(host, query, result)
            }
            EndPortEvent::Sa(SaEvent::Granted { standing, answer }) => {
                self.membership_granted(host, standing, &answer)
            }
            EndPortEvent::Sa(SaEvent::Refused {
                standing, error, ..
            }) => self.membership_refused(host, standing, &error),
            EndPortEvent::Cm(event) => {
                self.handle_cm_event(host, event);
                true
            }
            _ => false,
        }
    }

    /// Takes the answer to a query. Returns `true` if an id asked.
    fn answered<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        query: QueryId,
        result: Result<SaAnswer, SaError>,
    ) -> bool {
        match self.by_query.remove(&query) {
            Some(Purpose::Route(id)) => self.route_answered(host, id, result),
            Some(Purpose::Broadcast(id)) => self.broadcast_answered(host, id, result),
            Some(Purpose::Mgid(group)) => self.mgid_answered(host, group, result),
            None => return false,
        }
        true
    }

    /// Returns the answer that counts the events of an id, and of the groups that it is in.
    ///
    /// Events of groups that it has left are not among them: only the library knows which of those the program has read, and
    /// a program waits for ever for an acknowledgement of one that it has not.
    fn reported(&self, number: u32) -> Reply {
        let own = self
            .ids
            .get(&number)
            .map(|id| (id.channel, id.uid, id.events));
        let Some((channel, uid, mut events)) = own else {
            return Reply::default();
        };
        let mut elements = vec![uid];
        for group in self.groups.of_id(number) {
            events = events.saturating_add(group.events);
            elements.push(group.uid);
        }
        count(channel, events, &elements)
    }
}

impl CmId {
    fn new(channel: ChannelId, uid: u64, port_space: u16, qp_type: u8, charge: Charge) -> Self {
        Self {
            channel,
            uid,
            port_space,
            qp_type,
            options: Options::default(),
            local: None,
            holds_port_in: None,
            remote: None,
            remote_gid: None,
            path: None,
            query: None,
            listener: None,
            connection: None,
            peer: None,
            psn: 0,
            broadcast: Broadcast::Unknown,
            is_resolving: false,
            is_looked_up: false,
            answers_dreq: false,
            events: 0,
            _charge: charge,
        }
    }

    const fn is_datagram(&self) -> bool {
        self.qp_type == QPT_UD
    }

    /// Returns `true` if the id is bound to an address, and nothing beyond that.
    const fn is_bound_only(&self) -> bool {
        let is_used = self.listener.is_some() || self.connection.is_some();
        self.local.is_some() && self.remote.is_none() && !is_used
    }

    /// Returns `true` if the id is bound to the device, as one with a specific address is.
    fn is_on_device(&self) -> bool {
        self.local.is_some_and(|local| !local.is_any())
    }

    /// Returns the service that an address of the id stands for.
    fn service(&self, address: &SocketAddress) -> ServiceId {
        ServiceId::new(match address {
            SocketAddress::Ip(address) => {
                u64::from(self.port_space) << 16 | u64::from(address.port)
            }
            SocketAddress::Ib(address) => address.service,
        })
    }

    /// Returns the Q_Key of datagrams, unless it is the broadcast group's and not known.
    fn qkey(&self) -> Option<QKey> {
        match (self.port_space, &self.broadcast) {
            (PS_IPOIB, Broadcast::Known(record)) => Some(record.qkey),
            (PS_IPOIB, _) => None,
            _ => Some(QKey::new(UDP_QKEY)),
        }
    }
}

/// Returns the answer that counts events of objects that are gone from a channel.
fn count(channel: ChannelId, events: u32, elements: &[u64]) -> Reply {
    let answer = IdAnswer {
        value: events.into(),
    };
    let retired = elements.iter().map(|element| RetiredEvents {
        channel,
        element: *element,
        offset: 0,
    });
    Reply {
        answer: answer.as_bytes().to_vec(),
        retired: retired.collect(),
        ..Reply::default()
    }
}

/// Returns a payload as a layout.
fn read<T>(payload: &[u8]) -> Result<T, Errno>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let read = T::read_from_prefix(payload);
    read.map(|(layout, _)| layout).map_err(|_| Errno::EINVAL)
}

/// Returns a payload as a layout whose end an older library leaves out.
fn read_padded<T: FromBytes + IntoBytes + Default>(
    payload: &[u8],
    least: usize,
) -> Result<T, Errno> {
    let mut layout = T::default();
    let bytes = layout.as_mut_bytes();
    let given = payload.len().min(bytes.len());
    if given < least {
        return Err(Errno::EINVAL);
    }
    bytes[..given].copy_from_slice(&payload[..given]);
    Ok(layout)
}

#[cfg(test)]
mod tests;
