//! The second part of a heavy sweep: writing what the subnet lacks.

use std::collections::BTreeSet;

use ib_vtime::Instant;
use ib_wire::mad::AttributeModifier;
use ib_wire::smp::{
    DirectedRouteSmp, LinearForwardingTable, MulticastForwardingTable, MulticastTableModifier,
    PKeyTable, PKeyTableModifier, PortInfo, PortState, SmState,
};
use ib_wire::{Guid, Lid, PKey, PortNum};

use super::discovery::Discovery;
use super::election::{Decision, Rank, decide};
use super::forwarding::{self, Programmed};
use super::job::{Job, get_port, set};
use super::settings::{self, Settings};
use super::{Phase, Sm, SmEvent};
use crate::lid::LidRequest;
use crate::partition::PartitionEnforcement;
use crate::topology::{NodeId, PortId};

/// The steps of configuration; each one starts when the requests of the one before are through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing is done yet.
    Start,
    /// P_Key tables.
    Partitions,
    /// LIDs and settings of end ports.
    EndPorts,
    /// On demand: reading the tables that ordinary sweeps do not look at.
    ReadBack,
    /// Switches and their forwarding tables.
    Switches,
    /// Settings of links between and from switches.
    Links,
    /// All ports to ARMED.
    Arm,
    /// All ports to ACTIVE.
    Activate,
}

impl Sm {
    /// The first part of a heavy sweep is over.
    pub(super) fn discovered(&mut self, now: Instant, discovery: Discovery) {
        let Some(local) = discovery.local else {
            // Not even the own device answered.
            self.trouble = true;
            return;
        };
        self.duplicates.clone_from(&discovery.duplicates);
        self.unanswered.clone_from(&discovery.unanswered);
        self.managers.clone_from(&discovery.managers);
        let own = Rank::new(self.config.priority, self.guid);
        match decide(own, self.state == SmState::MASTER, &self.managers) {
            Decision::Standby(other) => {
                self.adopt(discovery, local);
                self.stand_by(now, other);
            }
            Decision::HandOver(other) => {
                self.adopt(discovery, local);
                self.hand_over(other);
            }
            Decision::Master => {
                self.adopt(discovery, local);
                if self.state != SmState::MASTER {
                    self.become_master();
                }
                self.phase = Phase::Configuring(Step::Start);
            }
        }
    }

    /// Makes what was discovered the subnet, and tells what came and went.
    fn adopt(&mut self, discovery: Discovery, local: PortId) {
        self.trouble |= discovery.incomplete;
        let mut new = discovery.topology;
        new.index();
        new.index_lids();
        // Until the tables are computed again, the present ones answer for the paths.
        for id in new.switches().to_vec() {
            let guid = new.node(id).info.node_guid;
            let old = self
                .topology
                .node_by_guid(guid)
                .and_then(|old| self.topology.node(old).switch.clone());
            if let (Some(old), Some(switch)) = (old, &mut new.node_mut(id).switch) {
                (switch.lft, switch.mft) = (old.lft, old.mft);
            }
        }
        // A port without the LID that it had was reset, as by a node that is off and on again between two sweeps: its tables are gone.
        let lost = new
            .end_ports()
            .filter(|(_, port)| port.info.lid == Lid::NONE);
        let lost: BTreeSet<Guid> = lost.map(|(_, port)| port.guid).collect();
        let known = self.topology.end_ports();
        let known =
            known.filter(|(_, port)| port.info.lid == Lid::NONE || !lost.contains(&port.guid));
        let still: BTreeSet<Guid> = known.map(|(_, port)| port.guid).collect();
        let old_ports: BTreeSet<Guid> = self.topology.end_ports().map(|(_, p)| p.guid).collect();
        let new_ports: BTreeSet<Guid> = new.end_ports().map(|(_, p)| p.guid).collect();
        for gone in old_ports
            .iter()
            .filter(|port| !new_ports.contains(port) || !still.contains(port))
        {
            self.appeared.remove(gone);
            // The SA forgets them as well.
            self.guids.retain(|(port, _), _| port != gone);
            self.event(SmEvent::PortVanished(*gone));
        }
        self.appeared.extend(new_ports.difference(&still));
        // A switch that was away may have lost its tables; so has one whose top is not ours.
        let last = self.topology.last_lid();
        self.programmed.retain(|guid, _| {
            let node = new.node_by_guid(*guid).map(|id| new.node(id));
            let top = node
                .and_then(|n| n.switch.as_ref())
                .map(|s| s.info.linear_fdb_top);
            top == Some(last)
        });
        self.topology = new;
        self.local = Some(local);
    }

    fn become_master(&mut self) {
        self.first_sweep = true;
        self.programmed.clear();
        self.master = None;
        self.set_state(SmState::MASTER);
    }

    /// Begins the step after `step`.
    pub(super) fn next_step(&mut self, now: Instant, step: Step) {
        let next = match step {
            Step::Start => Step::Partitions,
            Step::Partitions => Step::EndPorts,
            Step::EndPorts if self.read_back_wanted => Step::ReadBack,
            Step::EndPorts | Step::ReadBack => Step::Switches,
            Step::Switches => Step::Links,
            Step::Links => Step::Arm,
            Step::Arm => Step::Activate,
            Step::Activate => return self.configured(now),
        };
        match next {
            Step::Partitions => self.write_partitions(),
            Step::EndPorts => self.write_end_ports(),
            Step::ReadBack => self.read_back(),
            Step::Switches => {
                self.topology.index_lids();
                self.write_switches();
            }
            Step::Links => self.write_links(),
            Step::Arm => self.move_ports(PortState::INIT, PortState::ARMED),
            Step::Activate => self.move_ports(PortState::ARMED, PortState::ACTIVE),
            Step::Start => {}
        }
        self.phase = Phase::Configuring(next);
    }

    fn configured(&mut self, now: Instant) {
        self.first_sweep = false;
        self.follow_ups.note_completed();
        self.next_check = now + self.config.sweep_interval;
        for guid in core::mem::take(&mut self.appeared) {
            self.event(SmEvent::PortAppeared(guid));
        }
        self.event(SmEvent::SubnetUp);
    }

    fn write_partitions(&mut self) {
        let end_ports: Vec<(PortId, PortId)> =
            self.topology.end_ports().map(|(id, _)| (id, id)).collect();
        let mut tables = end_ports.clone();
        if self.config.partition_enforcement != PartitionEnforcement::OFF {
            // The switch port in front of an end port checks by the end port's table.
            let topology = &self.topology;
            let facing = |(id, _): &(PortId, PortId)| Some((topology.peer(*id)?, *id));
            let fronts = end_ports.iter().filter_map(facing);
            tables.extend(fronts.filter(|(front, _)| topology.node(front.node).is_switch()));
        }
        for (port, member) in tables {
            self.write_pkeys(port, member);
        }
    }

    /// Writes the blocks of a port's P_Key table that differ from what `member` is entitled to.
    fn write_pkeys(&mut self, id: PortId, member: PortId) {
        let Some(guid) = self.topology.port(member).map(|port| port.guid) else {
            return;
        };
        let Some(port) = self.topology.port(id) else {
            return;
        };
        let entries = usize::from(self.topology.node(id.node).pkey_entries(id.port));
        let readable = &port.pkeys[..entries.min(port.pkeys.len())];
        let mut wanted = self.config.partitions.table(guid, readable);
        wanted.resize(port.pkeys.len(), PKey::INVALID);
        let is_switch = self.topology.node(id.node).is_switch();
        let modifier_port = if is_switch { u16::from(id.port.0) } else { 0 };
        let blocks = wanted.as_chunks::<{ PKeyTable::ENTRIES }>().0;
        let held = port.pkeys.as_chunks::<{ PKeyTable::ENTRIES }>().0;
        for (block, (wanted, held)) in (0..u16::MAX).zip(blocks.iter().zip(held)) {
            if wanted != held {
                let modifier = PKeyTableModifier {
                    port: modifier_port,
                    block,
                }
                .encode();
                let table = PKeyTable { pkeys: *wanted };
                let request = set(&port.path, modifier, self.config.mkey, &table);
                self.queue.push(request, Job::SetPKeys { port: id, block });
            }
        }
    }

    fn write_end_ports(&mut self) {
        // The manager's own port first: it is the one that must not go without.
        let mut ports: Vec<PortId> = self.topology.end_ports().map(|(id, _)| id).collect();
        ports.sort_by_key(|id| Some(*id) != self.local);
        let requests: Vec<LidRequest> = ports
            .iter()
            .filter_map(|id| {
                let port = self.topology.port(*id)?;
                let lmc = settings::lmc(&self.config, self.topology.node(id.node));
                let current = if port.info.lmc() == lmc {
                    port.info.lid
                } else {
                    Lid::NONE
                };
                Some(LidRequest {
                    port_guid: port.guid,
                    current,
                    lmc,
                })
            })
            .collect();
        let ranges = self.lids.assign(&requests);
        let own = ports.iter().position(|id| Some(*id) == self.local);
        let Some(sm_lid) = own.and_then(|at| ranges[at]).map(|range| range.base) else {
            self.trouble = true;
            return;
        };
        for (id, range) in ports.into_iter().zip(ranges) {
            let Some(range) = range else {
                self.trouble = true;
                continue;
            };
            let Some(port) = self.topology.port(id) else {
                continue;
            };
            let mut wanted =
                settings::end_port(&self.config, &self.topology, id, port, range, sm_lid);
            let is_new = |guid| self.first_sweep || self.appeared.contains(&guid);
            if settings::needs_reregister(port, is_new, sm_lid) {
                wanted.info.set_client_reregister(true);
                wanted.changed = true;
            }
            wanted.changed |= self.first_sweep;
            self.write_port(id, &wanted);
        }
    }

    fn write_links(&mut self) {
        for id in forwarding::connected_ports(&self.topology) {
            let external = id.port != PortNum::SWITCH_MANAGEMENT;
            if !self.topology.node(id.node).is_switch() || !external {
                continue;
            }
            let Some(port) = self.topology.port(id) else {
                continue;
            };
            let mut wanted = settings::switch_port(&self.config, &self.topology, id, port);
            wanted.changed |= self.first_sweep;
            self.write_port(id, &wanted);
        }
    }

    fn write_port(&mut self, id: PortId, wanted: &Settings) {
        if !wanted.changed {
            return;
        }
        self.set_port_info(id, &wanted.info);
        if wanted.info.port_state() == PortState::DOWN {
            // The other end starts again, too.
            if let Some(peer) = self.topology.peer(id)
                && let Some(port) = self.topology.port_mut(peer)
            {
                port.info.set_port_state(PortState::INIT);
            }
        }
    }

    fn set_port_info(&mut self, id: PortId, info: &PortInfo) {
        let Some(port) = self.topology.port(id) else {
            return;
        };
        let modifier = settings::modifier(self.topology.node(id.node), id.port).encode();
        let request = set(&port.path, modifier, self.config.mkey, info);
        self.queue.push(request, Job::SetPortInfo(id));
    }

    fn write_switches(&mut self) {
        forwarding::route_unicast(&mut self.topology);
        let groups = core::mem::take(&mut self.groups);
        for (mlid, members) in &groups {
            forwarding::route_group(&mut self.topology, *mlid, members);
        }
        self.groups = groups;
        self.drop_unknown_groups();
        self.dirty_groups.clear();
        for node in self.topology.switches().to_vec() {
            self.write_switch_info(node);
            self.write_lft(node);
            self.write_mft(node);
        }
    }

    /// Groups that ended while their switches were out of sight leave no entries behind.
    fn drop_unknown_groups(&mut self) {
        for node in self.topology.switches().to_vec() {
            if let Some(switch) = &mut self.topology.node_mut(node).switch {
                switch.mft.retain(|mlid, _| self.groups.contains_key(mlid));
            }
        }
    }

    fn write_switch_info(&mut self, node: NodeId) {
        let top = self.topology.last_lid();
        let found = self.topology.node(node);
        let (Some(switch), Some(path)) = (&found.switch, self.path_of(found)) else {
            return;
        };
        let mut info = switch.info;
        info.linear_fdb_top = top;
        // All entries count (IBA 14.2.5.4), whatever another manager wrote.
        info.multicast_fdb_top = Lid::NONE;
        info.set_life_time_value(self.config.subnet_timeout);
        // Writing the mark clears it.
        if info != switch.info || info.port_state_change() {
            let request = set(&path, AttributeModifier::default(), self.config.mkey, &info);
            self.queue.push(request, Job::SetSwitchInfo(node));
        }
    }

    /// Reads the ports of a switch again. The first sweep reads them before it clears the mark, since the manager is no master then, and a
    /// link that came up in between is marked nowhere.
    pub(super) fn look_again(&mut self, node: NodeId) {
        let found = self.topology.node(node);
        let Some(path) = self.path_of(found) else {
            return;
        };
        for port in (1..=found.info.num_ports).map(PortNum) {
            let job = Job::LookAgain(PortId { node, port });
            self.queue.push(get_port::<PortInfo>(&path, port), job);
        }
    }

    fn write_lft(&mut self, node: NodeId) {
        let found = self.topology.node(node);
        let Some(path) = self.path_of(found) else {
            return;
        };
        let guid = found.info.node_guid;
        let programmed = self.programmed.entry(guid).or_default();
        for (block, table) in forwarding::missing_lft(&self.topology, node, programmed) {
            let modifier = AttributeModifier::new(u32::try_from(block).unwrap_or(u32::MAX));
            let request = set(&path, modifier, self.config.mkey, &table);
            self.queue.push(
                request,
                Job::SetLft {
                    switch: guid,
                    block,
                },
            );
        }
    }

    fn write_mft(&mut self, node: NodeId) {
        let found = self.topology.node(node);
        let Some(path) = self.path_of(found) else {
            return;
        };
        let guid = found.info.node_guid;
        let programmed = self.programmed.entry(guid).or_default();
        let missing = forwarding::missing_mft(&self.topology, node, programmed);
        for ((position, block), table) in missing {
            let modifier = MulticastTableModifier { position, block }.encode();
            let request = set(&path, modifier, self.config.mkey, &table);
            self.queue.push(
                request,
                Job::SetMft {
                    switch: guid,
                    position,
                    block,
                },
            );
        }
    }

    /// Routes the groups that changed since the last time.
    pub(super) fn route_dirty_groups(&mut self) {
        for mlid in core::mem::take(&mut self.dirty_groups) {
            let members = self.groups.get(&mlid).cloned().unwrap_or_default();
            forwarding::route_group(&mut self.topology, mlid, &members);
        }
        for node in self.topology.switches().to_vec() {
            self.write_mft(node);
        }
    }

    fn move_ports(&mut self, from: PortState, to: PortState) {
        for id in forwarding::connected_ports(&self.topology) {
            let management =
                self.topology.node(id.node).is_switch() && id.port == PortNum::SWITCH_MANAGEMENT;
            let Some(port) = self.topology.port(id) else {
                continue;
            };
            if !management && port.info.port_state() == from {
                let info = settings::state_change(port, to);
                self.set_port_info(id, &info);
            }
        }
    }

    /// Notes what a switch or port holds now, as it answered.
    pub(super) fn programmed_block(&mut self, job: Job, answer: &DirectedRouteSmp) {
        match job {
            Job::SetPKeys { port, block } => {
                if let Some(port) = self.topology.port_mut(port) {
                    let first = usize::from(block) * PKeyTable::ENTRIES;
                    let held = port.pkeys.get_mut(first..first + PKeyTable::ENTRIES);
                    if let Some(held) = held {
                        held.copy_from_slice(&answer.attribute::<PKeyTable>().pkeys);
                    }
                }
            }
            Job::SetLft { switch, block } => {
                let table = *answer.attribute::<LinearForwardingTable>();
                self.programmed_of(switch).lft.insert(block, table);
            }
            Job::SetMft {
                switch,
                position,
                block,
            } => {
                let table = *answer.attribute::<MulticastForwardingTable>();
                self.programmed_of(switch)
                    .mft
                    .insert((position, block), table);
            }
            _ => {}
        }
    }

    fn programmed_of(&mut self, switch: Guid) -> &mut Programmed {
        self.programmed.entry(switch).or_default()
    }
}
