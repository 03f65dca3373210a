//! Subnet administration: the database that clients query, register with and subscribe to.
//!
//! [`Sa::handle`] turns a request into an answer, given the subnet as the manager sees it. It
//! answers as OpenSM does, statuses and silence included. What follows from requests is pulled:
//! groups to route ([`Sa::poll_group_change`]), GUIDs to write ([`Sa::poll_guid_change`]) and
//! reports to send ([`Sa::poll_report`]).
//!
//! Where it differs from OpenSM on purpose: send-only members of a group get no copies; an empty
//! group never stays behind; a query for GUIDInfoRecord by GUID compares with the port's table.

mod alias_guids;
mod groups;
mod guidinfo;
mod inform;
mod mcmember;
mod path;
mod port_fields;
mod records;
mod request;
mod search;
mod service;
mod tables;
mod unfinished;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ib_endpoint::{MadAddress, Message};
use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, MadStatus, Method};
use ib_wire::sa::SaMad;
use ib_wire::{Guid, Lid, SmKey};

use crate::config::SubnetConfig;
use crate::topology::{PortId, Topology};
use alias_guids::AliasGuids;
use groups::Groups;
use inform::Subscription;
use request::{Found, Outcome, Request, answer};
use search::Search;
use service::Services;
use unfinished::{Query, Unfinished};

pub use groups::{Group, MAX_GROUPS, MAX_MEMBERS_PER_GROUP, Member};
pub use inform::{MAX_REPORTS, MAX_SUBSCRIPTIONS, Report};
pub use request::{MAX_ANSWER, SubnetView};
pub use service::{MAX_SERVICES, MAX_SERVICES_PER_PORT};
pub use unfinished::{MAX_BYTES, MAX_BYTES_PER_PORT, MAX_QUERIES, MAX_QUERIES_PER_PORT, PIECE};

/// Counters since the SA was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaStats {
    /// Requests received.
    pub requests: u64,
    /// Requests answered with records.
    pub answered: u64,
    /// Requests answered with an error status.
    pub refused: u64,
    /// Requests left without an answer: wrong key, unknown sender, attribute or method.
    pub ignored: u64,
    /// Reports and groups that found no room.
    pub overflows: u64,
}

/// The subnet administration.
#[derive(Debug)]
pub struct Sa {
    config: SubnetConfig,
    groups: Groups,
    aliases: AliasGuids,
    services: Services,
    unfinished: Unfinished,
    subscriptions: VecDeque<Subscription>,
    reports: VecDeque<Report>,
    changed_groups: BTreeSet<Lid>,
    changed_guids: BTreeSet<(Guid, u8)>,
    stats: SaStats,
}

impl Sa {
    /// An SA with the IPoIB broadcast groups of the configured partitions.
    #[must_use]
    pub fn new(config: SubnetConfig) -> Self {
        let mut sa = Self {
            config,
            groups: Groups::new(),
            aliases: AliasGuids::default(),
            services: Services::default(),
            unfinished: Unfinished::default(),
            subscriptions: VecDeque::new(),
            reports: VecDeque::new(),
            changed_groups: BTreeSet::new(),
            changed_guids: BTreeSet::new(),
            stats: SaStats::default(),
        };
        sa.create_broadcast_groups();
        sa
    }

    /// Sets the last multicast LID that all switches can forward.
    pub fn set_last_mlid(&mut self, last: Lid) {
        self.groups.set_last_mlid(last);
    }

    /// Answers a request from QP1. `None` stands for silence, or for an answer that
    /// [`Self::make_piece`] returns later.
    #[must_use]
    pub fn handle(
        &mut self,
        now: Instant,
        view: &SubnetView<'_>,
        from: &MadAddress,
        message: &Message,
    ) -> Option<Message> {
        self.stats.requests += 1;
        self.expire_services(now);
        let mad: &SaMad = message.mad().view();
        if mad.sm_key != SmKey::default() && mad.sm_key != self.config.sa_key {
            return self.count(None);
        }
        let request = Request {
            now,
            mad,
            data: message.data(),
            from,
            view: *view,
        };
        let Some(asked) = asked(&request) else {
            return self.count(None);
        };
        let outcome = match asked {
            Asked::Change => self.change(&request),
            Asked::Query => self.begin(&request, message)?,
        };
        self.count(answer(mad, outcome))
    }

    /// Looks at a bounded number of candidates for the answer to one query, in turns of the ports
    /// that ask. Returns where to send its answer, if it has one now. Call as long as
    /// [`Self::has_unfinished`] returns `true`, with others' work between the calls.
    #[must_use]
    pub fn make_piece(
        &mut self,
        now: Instant,
        view: &SubnetView<'_>,
    ) -> Option<(MadAddress, Message)> {
        let (port, mut query) = self.unfinished.take()?;
        query.search.allow(PIECE);
        let request = Request {
            now,
            mad: query.message.mad().view(),
            data: query.message.data(),
            from: &query.from,
            view: *view,
        };
        let found = self.query(&request, &mut query.search);
        let (from, mad) = (query.from, *request.mad);
        let outcome = match found {
            Err(refusal) => Err(refusal),
            Ok(()) if query.search.is_complete() => Ok(query.search.records),
            Ok(()) if self.unfinished.put_back(port, query) => return None,
            Ok(()) => Err(MadStatus::BUSY.into()),
        };
        Some((from, self.count(answer(&mad, outcome))?))
    }

    /// Returns `true` if a query has no answer yet, for which [`Self::make_piece`] is to be called.
    #[must_use]
    pub const fn has_unfinished(&self) -> bool {
        self.unfinished.has_queries()
    }

    /// Notes that an answer with so many bytes of records is on its way to a port, where it counts
    /// against the port's share until [`Self::answer_ended`].
    pub fn answer_begun(&mut self, port: Guid, bytes: usize) {
        self.unfinished.carry(port, bytes);
    }

    /// Notes that an answer has arrived, or was given up.
    pub fn answer_ended(&mut self, port: Guid, bytes: usize) {
        self.unfinished.release(port, bytes);
    }

    fn count(&mut self, answer: Option<Message>) -> Option<Message> {
        match &answer {
            None => self.stats.ignored += 1,
            Some(answer) if answer.status() == MadStatus::OK => self.stats.answered += 1,
            Some(_) => self.stats.refused += 1,
        }
        answer
    }

    /// Makes the first piece of the answer to a query. `None` if there is no outcome yet.
    fn begin(&mut self, request: &Request<'_>, message: &Message) -> Option<Outcome> {
        let busy = Some(Err(MadStatus::BUSY.into()));
        let port = request.requester().ok().map(|(_, port)| port.guid);
        let is_single = request.method() == Method::GET;
        if let Some(port) = port {
            if self.unfinished.is_repeated(port, request.from, message) {
                return None;
            }
            if !is_single && !self.unfinished.has_room(port) {
                return busy;
            }
        }
        let mut search = Search::new();
        search.allow(self.unfinished.first_piece(is_single));
        if let Err(refusal) = self.query(request, &mut search) {
            return Some(Err(refusal));
        }
        if search.is_complete() {
            return Some(Ok(search.records));
        }
        let query = Query {
            from: *request.from,
            message: message.clone(),
            search,
        };
        // Who is unknown was refused.
        if self.unfinished.add(port?, query) {
            None
        } else {
            busy
        }
    }

    /// The outcome of a request that is not a query for records.
    fn change(&mut self, request: &Request<'_>) -> Outcome {
        match request.mad.header.attribute_id {
            AttributeId::CLASS_PORT_INFO => Self::class_port_info(request),
            AttributeId::INFORM_INFO => self.inform_info(request),
            AttributeId::GUID_INFO_RECORD => self.change_guids(request),
            AttributeId::SERVICE_RECORD => self.change_services(request),
            AttributeId::MC_MEMBER_RECORD => self.change_membership(request),
            _ => Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE.into()),
        }
    }

    /// Goes on with the search for the records that answer a query.
    fn query(&self, request: &Request<'_>, search: &mut Search) -> Found {
        match request.mad.header.attribute_id {
            AttributeId::NODE_RECORD => Self::node_records(request, search),
            AttributeId::PORT_INFO_RECORD => Self::port_info_records(request, search),
            AttributeId::SL_TO_VL_RECORD => Self::sl_to_vl_records(request, search),
            AttributeId::SWITCH_INFO_RECORD => Self::switch_info_records(request, search),
            AttributeId::LFT_RECORD => Self::lft_records(request, search),
            AttributeId::MFT_RECORD => Self::mft_records(request, search),
            AttributeId::SM_INFO_RECORD => Self::sm_info_records(request, search),
            AttributeId::LINK_RECORD => Self::link_records(request, search),
            AttributeId::GUID_INFO_RECORD => self.query_guids(request, search),
            AttributeId::SERVICE_RECORD => self.query_services(request, search),
            AttributeId::PKEY_TABLE_RECORD => self.pkey_table_records(request, search),
            AttributeId::PATH_RECORD => self.path_records(request, search),
            AttributeId::VL_ARB_RECORD => Self::vl_arb_records(request, search),
            AttributeId::MC_MEMBER_RECORD => self.query_groups(request, search),
            AttributeId::MULTI_PATH_RECORD => self.multi_path_records(request, search),
            _ => self.inform_info_records(request, search),
        }
    }

    /// The next group whose tree must be computed anew, with the GUIDs of its members' ports and
    /// whether each receives. Without members it is to be taken out of the switches.
    pub fn poll_group_change(&mut self) -> Option<(Lid, BTreeMap<Guid, bool>)> {
        let mlid = self.changed_groups.pop_first()?;
        let mut members = BTreeMap::new();
        for group in self.groups.iter().filter(|group| group.record.mlid == mlid) {
            for member in group.members.values() {
                *members.entry(member.port_guid).or_default() |= member.join_state.receives();
            }
        }
        Some((mlid, members))
    }

    /// When [`Self::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_lease_end()
    }

    /// Ends leases that ran out.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.expire_services(now);
    }

    /// All multicast groups in order of their MGIDs.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    /// Number of registered services.
    #[must_use]
    pub fn service_count(&self) -> usize {
        self.services.len()
    }

    /// Number of subscriptions to notices.
    #[must_use]
    pub fn subscription_count(&self) -> usize {
        self.subscriptions.len()
    }

    /// All alias GUIDs with the GUIDs of their ports.
    pub fn alias_guids(&self) -> impl Iterator<Item = (Guid, Guid)> + '_ {
        self.aliases.iter()
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> SaStats {
        self.stats
    }

    /// The port of a GUID, its own or an alias.
    fn port_of_guid(&self, topology: &Topology, guid: Guid) -> Option<PortId> {
        topology
            .port_by_guid(guid)
            .or_else(|| topology.port_by_guid(self.aliases.owner(guid)?))
    }
}

/// Kind of a request to the SA.
enum Asked {
    /// Records that are there.
    Query,
    /// Anything else.
    Change,
}

/// Returns what a request asks; `None` for attributes and methods that OpenSM drops.
fn asked(request: &Request<'_>) -> Option<Asked> {
    let attribute = request.mad.header.attribute_id;
    let is_multi = request.method() == Method::GET_MULTI;
    if is_multi != (attribute == AttributeId::MULTI_PATH_RECORD) {
        return None;
    }
    let is_query = match request.method() {
        Method::GET | Method::GET_TABLE | Method::GET_MULTI => true,
        Method::SET | Method::DELETE => false,
        _ => return None,
    };
    match attribute {
        AttributeId::CLASS_PORT_INFO | AttributeId::INFORM_INFO => Some(Asked::Change),
        AttributeId::NODE_RECORD
        | AttributeId::PORT_INFO_RECORD
        | AttributeId::SL_TO_VL_RECORD
        | AttributeId::SWITCH_INFO_RECORD
        | AttributeId::LFT_RECORD
        | AttributeId::MFT_RECORD
        | AttributeId::SM_INFO_RECORD
        | AttributeId::LINK_RECORD
        | AttributeId::GUID_INFO_RECORD
        | AttributeId::SERVICE_RECORD
        | AttributeId::PKEY_TABLE_RECORD
        | AttributeId::PATH_RECORD
        | AttributeId::VL_ARB_RECORD
        | AttributeId::MC_MEMBER_RECORD
        | AttributeId::MULTI_PATH_RECORD
        | AttributeId::INFORM_INFO_RECORD => Some(if is_query {
            Asked::Query
        } else {
            Asked::Change
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
