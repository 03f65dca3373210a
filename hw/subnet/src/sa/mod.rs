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
mod service;
mod tables;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ib_endpoint::{MadAddress, Message};
use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Method};
use ib_wire::sa::SaMad;
use ib_wire::{Guid, Lid, SmKey};

use crate::config::SubnetConfig;
use crate::topology::{PortId, Topology};
use alias_guids::AliasGuids;
use groups::Groups;
use inform::Subscription;
use request::{Outcome, Request, answer};
use service::Service;

pub use groups::{Group, MAX_GROUPS, MAX_MEMBERS_PER_GROUP, Member};
pub use inform::{MAX_REPORTS, MAX_SUBSCRIPTIONS, Report};
pub use request::{MAX_ANSWER, SubnetView};
pub use service::MAX_SERVICES;

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
    services: VecDeque<Service>,
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
            services: VecDeque::new(),
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

    /// Answers a request from QP1; `None` stands for silence.
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
        let answer = if mad.sm_key == SmKey::default() || mad.sm_key == self.config.sa_key {
            let request = Request {
                now,
                mad,
                data: message.data(),
                from,
                view: *view,
            };
            self.dispatch(&request)
                .and_then(|outcome| answer(mad, outcome))
        } else {
            None
        };
        match &answer {
            None => self.stats.ignored += 1,
            Some(answer) if answer.status() == ib_wire::mad::MadStatus::OK => {
                self.stats.answered += 1;
            }
            Some(_) => self.stats.refused += 1,
        }
        answer
    }

    /// The outcome of a request; `None` for attributes and methods that OpenSM drops.
    fn dispatch(&mut self, request: &Request<'_>) -> Option<Outcome> {
        let known = [
            Method::GET,
            Method::SET,
            Method::GET_TABLE,
            Method::DELETE,
            Method::GET_MULTI,
        ];
        if !known.contains(&request.method()) {
            return None;
        }
        let attribute = request.mad.header.attribute_id;
        let is_multi = request.method() == Method::GET_MULTI;
        if is_multi != (attribute == AttributeId::MULTI_PATH_RECORD) {
            return None;
        }
        Some(match attribute {
            AttributeId::CLASS_PORT_INFO => Self::class_port_info(request),
            AttributeId::INFORM_INFO => self.inform_info(request),
            AttributeId::NODE_RECORD => Self::node_records(request),
            AttributeId::PORT_INFO_RECORD => Self::port_info_records(request),
            AttributeId::SL_TO_VL_RECORD => Self::sl_to_vl_records(request),
            AttributeId::SWITCH_INFO_RECORD => Self::switch_info_records(request),
            AttributeId::LFT_RECORD => Self::lft_records(request),
            AttributeId::MFT_RECORD => Self::mft_records(request),
            AttributeId::SM_INFO_RECORD => Self::sm_info_records(request),
            AttributeId::LINK_RECORD => Self::link_records(request),
            AttributeId::GUID_INFO_RECORD => self.guid_info_records(request),
            AttributeId::SERVICE_RECORD => self.service_records(request),
            AttributeId::PKEY_TABLE_RECORD => self.pkey_table_records(request),
            AttributeId::PATH_RECORD => self.path_records(request),
            AttributeId::VL_ARB_RECORD => Self::vl_arb_records(request),
            AttributeId::MC_MEMBER_RECORD => self.mc_member_records(request),
            AttributeId::MULTI_PATH_RECORD => self.multi_path_records(request),
            AttributeId::INFORM_INFO_RECORD => self.inform_info_records(request),
            _ => return None,
        })
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

#[cfg(test)]
mod tests;
