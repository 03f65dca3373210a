//! Multicast groups that ids join.
//!
//! A port is a member once, however many ids join: the last one that leaves ends the membership.

use std::collections::{BTreeMap, BTreeSet};

use hca_api::UdAddress;
use ib_endpoint::sa_client::{QueryId, StandingId, Wish};
use ib_endpoint::{MadTransport, SaAnswer, SaError, SaRequest, group_destination};
use ib_wire::Gid;
use ib_wire::ipoib::{LINK_LOCAL, broadcast_mgid};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord};
use zerocopy::IntoBytes;

use super::address::SocketAddress;
use super::attributes::ah_attr;
use super::group_address::mgid;
use super::{CmHost, CmId, PS_IPOIB, Purpose, RdmaCm, count, read};
use crate::abi::rdma_cm::{
    ADDRESS_SIZE, IP_ADDRESS_SIZE, IdAnswer, IdCommand, JoinIpMcast, JoinMcast, UdParam, cm_event,
};
use crate::budget::cost;
use crate::{ChannelId, Charge, Errno, Reply};

/// Groups that the ids of a process are in at most.
const MAX_GROUPS: usize = 256;

/// Kinds of membership (`RDMA_MC_JOIN_FLAG_*`).
const FULL_MEMBER: u16 = 0;
const SEND_ONLY_FULL_MEMBER: u16 = 1;

/// Components of a join in IPoIB's port space beyond those that may make a group.
const IPOIB: ComponentMask = McMemberRecord::RATE_SELECTOR
    .union(McMemberRecord::RATE)
    .union(McMemberRecord::MTU_SELECTOR)
    .union(McMemberRecord::MTU)
    .union(McMemberRecord::HOP_LIMIT);

/// Broadcast group of IPoIB in the partition, whose parameters other groups take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broadcast {
    /// Nobody has asked.
    Unknown,
    /// The SA is asked.
    Asked(QueryId),
    /// The SA's record. Outside IPoIB's port space it is all zero if the partition has no such group.
    Known(McMemberRecord),
}

impl Broadcast {
    pub(super) const fn query(&self) -> Option<QueryId> {
        match self {
            Self::Asked(query) => Some(*query),
            _ => None,
        }
    }

    /// Returns what another id may take over.
    pub(super) const fn settled(&self) -> Self {
        match self {
            Self::Known(_) => *self,
            _ => Self::Unknown,
        }
    }
}

/// Progress of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The broadcast group is asked for.
    AwaitsBroadcast,
    /// The SA chooses the MGID.
    AwaitsMgid,
    /// The port is a member, or asks to be.
    Member(StandingId),
    /// The program has been told of the failure.
    Failed,
}

/// A group that an id has joined.
#[derive(Debug)]
pub(super) struct Group {
    id: u32,
    /// The program's name for the group.
    pub(super) uid: u64,
    /// MGID; 0 until the SA has chosen one.
    mgid: Gid,
    join_state: JoinState,
    progress: Progress,
    /// Events that were passed on.
    pub(super) events: u32,
    _charge: Charge,
}

/// A membership of the port.
#[derive(Debug)]
struct Membership {
    asked: (McMemberRecord, ComponentMask),
    granted: Option<McMemberRecord>,
    /// Groups of ids that share it.
    groups: BTreeSet<u32>,
}

/// Groups of a process.
#[derive(Debug)]
pub(super) struct Groups {
    all: BTreeMap<u32, Group>,
    memberships: BTreeMap<StandingId, Membership>,
    next: u32,
}

impl Groups {
    pub(super) const fn new() -> Self {
        Self {
            all: BTreeMap::new(),
            memberships: BTreeMap::new(),
            next: 0,
        }
    }

    /// Returns the groups that an id is in.
    pub(super) fn of_id(&self, id: u32) -> impl Iterator<Item = &Group> {
        self.all.values().filter(move |group| group.id == id)
    }

    /// Returns the numbers of an id's groups.
    fn numbers(&self, id: u32) -> Vec<u32> {
        let own = self.all.iter().filter(|(_, group)| group.id == id);
        own.map(|(number, _)| *number).collect()
    }
}

impl RdmaCm {
    /// Carries out JOIN_MCAST.
    pub(super) fn join<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let asked: JoinMcast = read(payload)?;
        let address = SocketAddress::read_sized(&asked.addr, asked.addr_size.get())?;
        let join_state = match asked.join_flags.get() {
            FULL_MEMBER => JoinState::FULL_MEMBER,
            SEND_ONLY_FULL_MEMBER => JoinState::SEND_ONLY_FULL_MEMBER,
            _ => return Err(Errno::EINVAL),
        };
        let uid = asked.uid.get();
        self.add_group(host, channel, asked.id.get(), uid, &address, join_state)
    }

    /// Carries out JOIN_IP_MCAST.
    pub(super) fn join_ip<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let asked: JoinIpMcast = read(payload)?;
        let mut bytes = [0; ADDRESS_SIZE];
        bytes[..IP_ADDRESS_SIZE].copy_from_slice(&asked.addr);
        let address @ SocketAddress::Ip(_) = SocketAddress::read(&bytes)? else {
            return Err(Errno::EINVAL);
        };
        let uid = asked.uid.get();
        let join_state = JoinState::FULL_MEMBER;
        self.add_group(host, channel, asked.id.get(), uid, &address, join_state)
    }

    /// Adds a group to an id. Returns the answer, which is its number.
    fn add_group<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        id_number: u32,
        uid: u64,
        address: &SocketAddress,
        join_state: JoinState,
    ) -> Result<Vec<u8>, Errno> {
        let id = self.get(channel, id_number)?;
        if !id.may_join() {
            return Err(Errno::EINVAL);
        }
        let mgid = mgid(address, id.port_space, host.partition());
        if self.groups.all.len() >= MAX_GROUPS {
            return Err(Errno::ENOMEM);
        }
        let group = Group {
            id: id_number,
            uid,
            mgid,
            join_state,
            progress: Progress::AwaitsBroadcast,
            events: 0,
            _charge: self.charge(cost::GROUP)?,
        };
        let number = self.groups.next;
        self.groups.next = number.wrapping_add(1);
        self.groups.all.insert(number, group);
        self.learn_broadcast(host, id_number);
        let answer = IdAnswer {
            value: number.into(),
        };
        Ok(answer.as_bytes().to_vec())
    }

    /// Asks for the broadcast group, unless an id knows it already.
    pub(super) fn learn_broadcast<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        number: u32,
    ) {
        let Some(id) = self.ids.get_mut(&number) else {
            return;
        };
        match id.broadcast {
            Broadcast::Asked(_) => {}
            Broadcast::Known(_) => self.broadcast_learned(host, number),
            Broadcast::Unknown => {
                let record = McMemberRecord {
                    mgid: broadcast_mgid(LINK_LOCAL, host.partition()),
                    ..McMemberRecord::default()
                };
                let request = SaRequest::get(&record, McMemberRecord::MGID);
                let query = host.port.query(host.now, request);
                id.broadcast = Broadcast::Asked(query);
                self.by_query.insert(query, Purpose::Broadcast(number));
            }
        }
    }

    /// Takes the SA's answer about the broadcast group.
    pub(super) fn broadcast_answered<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        number: u32,
        result: Result<SaAnswer, SaError>,
    ) {
        let Some(id) = self.ids.get_mut(&number) else {
            return;
        };
        let record = result.ok().and_then(|answer| answer.record());
        id.broadcast = match record {
            Some(record) => Broadcast::Known(record),
            // Only the service level and the like are missing, which are 0 by default.
            None if id.port_space != PS_IPOIB => Broadcast::Known(McMemberRecord::default()),
            None => Broadcast::Unknown,
        };
        self.broadcast_learned(host, number);
    }

    /// Goes on with what waited for the broadcast group.
    fn broadcast_learned<G: MadTransport>(&mut self, host: &mut CmHost<'_, G>, number: u32) {
        let Some(id) = self.ids.get_mut(&number) else {
            return;
        };
        let is_known = matches!(id.broadcast, Broadcast::Known(_));
        if core::mem::take(&mut id.is_resolving) {
            let (event, status) = match is_known {
                true => (cm_event::ADDR_RESOLVED, 0),
                false => (cm_event::ADDR_ERROR, Errno::EADDRNOTAVAIL.status()),
            };
            self.tell(number, event, status, &[]);
        }
        for group in self.groups.numbers(number) {
            let waits = self.groups.all.get(&group);
            if waits.is_some_and(|group| group.progress == Progress::AwaitsBroadcast) {
                self.ask_to_join(host, group);
            }
        }
    }

    /// Returns the membership that a group asks for.
    fn wanted<G: MadTransport>(
        &self,
        host: &CmHost<'_, G>,
        group: &Group,
    ) -> Option<(McMemberRecord, ComponentMask)> {
        let id = self.ids.get(&group.id)?;
        let Broadcast::Known(broadcast) = id.broadcast else {
            return None;
        };
        let mut record = McMemberRecord {
            mgid: group.mgid,
            port_gid: host.own_gid()?,
            qkey: id.qkey()?,
            pkey: host.partition(),
            traffic_class: broadcast.traffic_class,
            ..McMemberRecord::default()
        };
        record.set_sl(broadcast.sl());
        record.set_flow_label(broadcast.flow_label());
        record.set_join_state(group.join_state);
        let mut mask = McMemberRecord::CREATE;
        if id.port_space == PS_IPOIB {
            (record.mtu, record.rate) = (broadcast.mtu, broadcast.rate);
            record.set_hop_limit(broadcast.hop_limit());
            mask = mask | IPOIB;
        }
        Some((record, mask))
    }

    fn ask_to_join<G: MadTransport>(&mut self, host: &mut CmHost<'_, G>, number: u32) {
        let group = self.groups.all.get(&number);
        let Some(asked) = group.and_then(|group| self.wanted(host, group)) else {
            return self.fail(number, Errno::EADDRNOTAVAIL);
        };
        // A wish would wait for an SA.
        if host.port.sa().sa().is_none() {
            return self.fail(number, Errno::EAGAIN);
        }
        let (record, mask) = asked;
        let progress = if record.mgid.is_none() {
            let query = host.port.query(host.now, SaRequest::join(&record, mask));
            self.by_query.insert(query, Purpose::Mgid(number));
            Progress::AwaitsMgid
        } else {
            let known = self.groups.memberships.iter();
            let shared = known.filter(|(_, known)| known.asked == asked);
            let shared = shared.map(|(standing, _)| *standing).next();
            let standing = shared.unwrap_or_else(|| {
                let wish = Wish::Membership { record, mask };
                host.port.wish(host.now, wish)
            });
            let membership = self.groups.memberships.entry(standing);
            let membership = membership.or_insert_with(|| Membership {
                asked,
                granted: None,
                groups: BTreeSet::new(),
            });
            membership.groups.insert(number);
            Progress::Member(standing)
        };
        if let Some(group) = self.groups.all.get_mut(&number) {
            group.progress = progress;
        }
        if let Progress::Member(standing) = progress
            && let Some(record) = self.granted(standing)
        {
            self.tell_joined(host, number, &record);
        }
    }

    fn granted(&self, standing: StandingId) -> Option<McMemberRecord> {
        self.groups.memberships.get(&standing)?.granted
    }

    /// Takes the answer to a join that left the MGID to the SA.
    pub(super) fn mgid_answered<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        number: u32,
        result: Result<SaAnswer, SaError>,
    ) {
        let record = match &result {
            Ok(answer) => answer.record::<McMemberRecord>().ok_or(Errno::EINVAL),
            Err(error) => Err(errno(error)),
        };
        match (self.groups.all.get_mut(&number), record) {
            // From here on it is a membership like others, which the SA client keeps up.
            (Some(group), Ok(record)) if !record.mgid.is_none() => {
                group.mgid = record.mgid;
                self.ask_to_join(host, number);
            }
            (Some(_), record) => self.fail(number, record.err().unwrap_or(Errno::EINVAL)),
            (None, Ok(record)) => {
                host.port.query(host.now, SaRequest::leave(&record));
            }
            (None, Err(_)) => {}
        }
    }

    /// Takes a membership from the SA. Returns `true` if it is one of an id.
    pub(super) fn membership_granted<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        standing: StandingId,
        answer: &SaAnswer,
    ) -> bool {
        let Some(membership) = self.groups.memberships.get_mut(&standing) else {
            return false;
        };
        let record = answer.record::<McMemberRecord>();
        let asked = &membership.asked.0;
        let Some(record) = record.filter(|record| record.qkey == asked.qkey) else {
            host.port.withdraw(host.now, standing);
            self.end_membership(standing, Errno::EINVAL);
            return true;
        };
        let groups: Vec<u32> = membership.groups.iter().copied().collect();
        match membership.granted.replace(record) {
            None => {
                for group in groups {
                    self.tell_joined(host, group, &record);
                }
            }
            // Address handles and attachments have the old one: programs must leave, and join again.
            Some(old) if old.mlid != record.mlid => {
                for group in groups {
                    let status = Errno::ENETRESET.status();
                    self.tell_group(group, cm_event::MULTICAST_ERROR, status, &[]);
                }
            }
            Some(_) => {}
        }
        true
    }

    /// Takes the SA's refusal of a membership. Returns `true` if it is one of an id.
    pub(super) fn membership_refused<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        standing: StandingId,
        error: &SaError,
    ) -> bool {
        let Some(membership) = self.groups.memberships.get(&standing) else {
            return false;
        };
        // The SA client asks again for one that was granted once.
        if membership.granted.is_none() {
            // It gives up by itself only what the SA has refused.
            host.port.withdraw(host.now, standing);
            self.end_membership(standing, errno(error));
        }
        true
    }

    fn end_membership(&mut self, standing: StandingId, error: Errno) {
        let ended = self.groups.memberships.remove(&standing);
        for group in ended.into_iter().flat_map(|ended| ended.groups) {
            self.fail(group, error);
        }
    }

    /// Carries out LEAVE_MCAST.
    pub(super) fn leave<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<Reply, Errno> {
        let asked: IdCommand = read(payload)?;
        let number = asked.id.get();
        let group = self.groups.all.get(&number).ok_or(Errno::ENOENT)?;
        let (id, reply) = (group.id, count(channel, group.events, &[group.uid]));
        self.get(channel, id)?;
        self.leave_group(host, number);
        Ok(reply)
    }

    /// Leaves all groups of an id.
    pub(super) fn leave_all<G: MadTransport>(&mut self, host: &mut CmHost<'_, G>, id: u32) {
        for number in self.groups.numbers(id) {
            self.leave_group(host, number);
        }
    }

    fn leave_group<G: MadTransport>(&mut self, host: &mut CmHost<'_, G>, number: u32) {
        let Some(group) = self.groups.all.remove(&number) else {
            return;
        };
        let Progress::Member(standing) = group.progress else {
            return;
        };
        let Some(membership) = self.groups.memberships.get_mut(&standing) else {
            return;
        };
        membership.groups.remove(&number);
        if membership.groups.is_empty() {
            self.groups.memberships.remove(&standing);
            host.port.withdraw(host.now, standing);
        }
    }

    fn fail(&mut self, number: u32, error: Errno) {
        if let Some(group) = self.groups.all.get_mut(&number) {
            group.progress = Progress::Failed;
        }
        self.tell_group(number, cm_event::MULTICAST_ERROR, error.status(), &[]);
    }

    fn tell_joined<G: MadTransport>(
        &mut self,
        host: &CmHost<'_, G>,
        number: u32,
        record: &McMemberRecord,
    ) {
        let destination = group_destination(host.port.port(), record);
        let mut param = UdParam {
            qp_num: destination.qpn.get().into(),
            qkey: destination.qkey.get().into(),
            ..UdParam::default()
        };
        if let UdAddress::Vector(vector) = &destination.address {
            param.path = ah_attr(vector);
        }
        self.tell_group(number, cm_event::MULTICAST_JOIN, 0, param.as_bytes());
    }

    /// Queues an event of a group.
    fn tell_group(&mut self, number: u32, event: u32, status: i32, param: &[u8]) {
        let Some(group) = self.groups.all.get(&number) else {
            return;
        };
        let Some(id) = self.ids.get(&group.id) else {
            return;
        };
        let (channel, uid) = (id.channel, group.uid);
        if self.tell_as(channel, uid, number, event, status, param)
            && let Some(group) = self.groups.all.get_mut(&number)
        {
            group.events += 1;
        }
    }
}

impl CmId {
    /// Returns `true` if the id is one of datagrams that is bound to the device, and nothing beyond that.
    fn may_join(&self) -> bool {
        let is_bound = self.is_on_device();
        let has_route = self.query.is_some() || self.path.is_some();
        let is_used = self.listener.is_some() || self.connection.is_some();
        self.is_datagram() && is_bound && !has_route && !is_used
    }
}

/// Returns the error number of an event for what the SA says.
const fn errno(error: &SaError) -> Errno {
    match error {
        SaError::Status(_) => Errno::EINVAL,
        SaError::NoSa => Errno::EAGAIN,
        _ => Errno::ETIMEDOUT,
    }
}

#[cfg(test)]
mod tests;
