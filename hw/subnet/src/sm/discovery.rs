//! Finding out what the subnet consists of.

use std::collections::BTreeMap;

use ib_wire::mad::{AttributeModifier, Mad};
use ib_wire::smp::{
    CapabilityMask, DirectedRouteSmp, NodeDescription, NodeInfo, NodeType, PKeyTable,
    PKeyTableModifier, PortInfo, SmInfo, SwitchInfo,
};
use ib_wire::{Guid, MKey, PKey, PortNum, SubnetPrefix};

use super::job::{Job, get, get_port, set};
use super::queue::SmpQueue;
use crate::topology::{DrPath, NodeId, Port, PortId, Switch, Topology};

/// Most nodes that are taken into the topology: no subnet has more unicast LIDs.
pub const MAX_NODES: usize = 0xbfff;

/// Most blocks of a P_Key table that are read and written; 2048 keys.
const MAX_PKEY_BLOCKS: u16 = 64;

/// Another manager that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OtherManager {
    /// GUID of its port.
    pub(super) guid: Guid,
    /// How to reach it.
    pub(super) path: DrPath,
    /// What it said of itself.
    pub(super) info: SmInfo,
}

/// A discovery under way.
#[derive(Debug)]
pub(super) struct Discovery {
    /// What was found so far.
    pub(super) topology: Topology,
    /// Managers on other ports.
    pub(super) managers: Vec<OtherManager>,
    /// Ends of live links behind which nobody answered.
    pub(super) unanswered: Vec<DrPath>,
    /// GUIDs that more than one node claims.
    pub(super) duplicates: Vec<Guid>,
    /// Whether something that was found could not be read completely.
    pub(super) incomplete: bool,
    /// The manager's own port.
    pub(super) local: Option<PortId>,
    /// End ports and the ports at the other ends of their links, as the sweep before left them.
    attachments: BTreeMap<(Guid, PortNum), (Guid, PortNum)>,
    /// End ports that two nodes claim, with the path to the one that was there before.
    rightful: BTreeMap<PortId, DrPath>,
    /// Whether marks may be cleared: only the master writes.
    is_master: bool,
    mkey: MKey,
}

impl Discovery {
    /// Starts at the manager's own port.
    pub(super) fn start(
        prefix: SubnetPrefix,
        mkey: MKey,
        is_master: bool,
        before: &Topology,
        queue: &mut SmpQueue<Job>,
    ) -> Self {
        let path = DrPath::LOCAL;
        queue.push(get::<NodeInfo>(&path, 0), Job::NodeInfo { path, via: None });
        Self {
            topology: Topology::new(prefix),
            managers: Vec::new(),
            unanswered: Vec::new(),
            duplicates: Vec::new(),
            incomplete: false,
            local: None,
            attachments: before.attachments(),
            rightful: BTreeMap::new(),
            is_master,
            mkey,
        }
    }

    /// Takes the answer to a discovery request.
    pub(super) fn answer(&mut self, job: Job, answer: &Mad, queue: &mut SmpQueue<Job>) {
        let smp = answer.view::<DirectedRouteSmp>();
        match job {
            Job::NodeInfo { path, via } => self.on_node(path, via, smp.attribute(), queue),
            Job::NodeDescription(node) => {
                self.topology.node_mut(node).description = *smp.attribute::<NodeDescription>();
            }
            Job::SwitchInfo { node, path } => self.on_switch(node, path, smp.attribute(), queue),
            Job::ClearStateChange { node, path } => {
                if let Some(switch) = &mut self.topology.node_mut(node).switch {
                    switch.info = *smp.attribute();
                }
                self.read_switch_ports(node, path, queue);
            }
            Job::PortInfo { port, guid, path } => {
                self.on_port(port, guid, path, smp.attribute(), queue);
            }
            Job::PKeys { port, block } => self.on_pkeys(port, block, smp.attribute()),
            Job::Manager { guid, path } => {
                let info = *smp.attribute::<SmInfo>();
                self.managers.push(OtherManager { guid, path, info });
            }
            _ => {}
        }
    }

    /// Takes the failure of a discovery request.
    pub(super) fn failure(&mut self, job: Job, queue: &mut SmpQueue<Job>) {
        match job {
            Job::NodeInfo { path, via: Some(_) } => self.unanswered.push(path),
            Job::ClearStateChange { node, path } => {
                self.incomplete = true;
                self.read_switch_ports(node, path, queue);
            }
            // A manager that does not answer is no manager.
            Job::Manager { .. } => {}
            _ => self.incomplete = true,
        }
    }

    fn on_node(
        &mut self,
        path: DrPath,
        via: Option<PortId>,
        info: &NodeInfo,
        queue: &mut SmpQueue<Job>,
    ) {
        let known_type = matches!(
            info.node_type,
            NodeType::CA | NodeType::SWITCH | NodeType::ROUTER
        );
        let sound = known_type
            && !info.node_guid.is_none()
            && !info.port_guid.is_none()
            && info.local_port.0 <= info.num_ports
            && (info.local_port.0 != 0 || via.is_none());
        if !sound {
            self.incomplete = true;
            self.unanswered.push(path);
            return;
        }
        let Some(node) = self.node_of(info, path, queue) else {
            return;
        };
        let here = PortId {
            node,
            port: info.local_port,
        };
        let mut is_unread = self.topology.port(here).is_none();
        if let Some(via) = via {
            if self.connect(via, here, info) {
                self.rightful.insert(here, path);
                is_unread = true;
            }
        } else {
            let port = if info.node_type == NodeType::SWITCH {
                PortNum::SWITCH_MANAGEMENT
            } else {
                info.local_port
            };
            self.local = Some(PortId { node, port });
        }
        if info.node_type != NodeType::SWITCH && is_unread {
            let job = Job::PortInfo {
                port: here,
                guid: info.port_guid,
                path,
            };
            queue.push(get_port::<PortInfo>(&path, here.port), job);
        }
    }

    /// The node of this GUID, newly added or known. `None` if there are two different ones.
    fn node_of(
        &mut self,
        info: &NodeInfo,
        path: DrPath,
        queue: &mut SmpQueue<Job>,
    ) -> Option<NodeId> {
        if let Some(known) = self.topology.node_by_guid(info.node_guid) {
            let other = &self.topology.node(known).info;
            let same = other.node_type == info.node_type && other.num_ports == info.num_ports;
            if !same {
                self.duplicate(info.node_guid);
            }
            return same.then_some(known);
        }
        if self.topology.node_count() >= MAX_NODES {
            self.incomplete = true;
            return None;
        }
        let node = self.topology.add_node(*info);
        queue.push(get::<NodeDescription>(&path, 0), Job::NodeDescription(node));
        if info.node_type == NodeType::SWITCH {
            queue.push(get::<SwitchInfo>(&path, 0), Job::SwitchInfo { node, path });
        }
        Some(node)
    }

    /// Notes a link, unless one of its ends is said to be somewhere else already: then two nodes
    /// have one GUID. A node that was behind the port before keeps its place, and the other one has none. Returns `true` if the
    /// other one was found first.
    fn connect(&mut self, via: PortId, here: PortId, info: &NodeInfo) -> bool {
        // A plug that connects a port with itself.
        if via == here {
            return false;
        }
        let taken = |port, end| self.topology.peer(port).is_some_and(|peer| peer != end);
        let (is_found, is_linked) = (taken(here, via), taken(via, here));
        if is_found || is_linked {
            self.duplicate(info.node_guid);
            let beyond = (self.topology.node(via.node).info.node_guid, via.port);
            let was_here = self.attachments.get(&(info.node_guid, here.port)) == Some(&beyond);
            if is_linked || !was_here {
                return false;
            }
            self.topology.disconnect(here);
            self.topology.connect(via, here);
            return true;
        }
        self.topology.connect(via, here);
        false
    }

    fn on_switch(
        &mut self,
        node: NodeId,
        path: DrPath,
        info: &SwitchInfo,
        queue: &mut SmpQueue<Job>,
    ) {
        let (lft, mft) = Default::default();
        self.topology.node_mut(node).switch = Some(Switch {
            info: *info,
            lft,
            mft,
        });
        if self.is_master && info.port_state_change() {
            // Cleared before the ports are read: what changes later sets it again.
            let request = set(&path, AttributeModifier::default(), self.mkey, info);
            queue.push(request, Job::ClearStateChange { node, path });
        } else {
            self.read_switch_ports(node, path, queue);
        }
    }

    fn read_switch_ports(&mut self, node: NodeId, path: DrPath, queue: &mut SmpQueue<Job>) {
        let info = &self.topology.node(node).info;
        let guid = info.node_guid;
        for port in (0..=info.num_ports).map(PortNum) {
            let job = Job::PortInfo {
                port: PortId { node, port },
                guid,
                path,
            };
            queue.push(get_port::<PortInfo>(&path, port), job);
        }
    }

    fn on_port(
        &mut self,
        id: PortId,
        guid: Guid,
        path: DrPath,
        info: &PortInfo,
        queue: &mut SmpQueue<Job>,
    ) {
        if self
            .rightful
            .get(&id)
            .is_some_and(|rightful| *rightful != path)
        {
            return;
        }
        let node = self.topology.node_mut(id.node);
        let (is_switch, pkey_cap) = (node.is_switch(), node.pkey_entries(id.port));
        let Some(slot) = node.ports.get_mut(id.port.index()) else {
            return;
        };
        let port = Port {
            guid,
            info: *info,
            pkeys: Vec::new(),
            path,
        };
        let (up, is_sm) = (port.link_up(), port.supports(CapabilityMask::IS_SM));
        *slot = Some(port);
        let is_local = self.local == Some(id);
        let is_external = is_switch && id.port != PortNum::SWITCH_MANAGEMENT;

        if !is_external || up {
            let entries = usize::from(pkey_cap);
            let blocks = entries.div_ceil(PKeyTable::ENTRIES);
            let modifier_port = if is_switch { u16::from(id.port.0) } else { 0 };
            for block in (0..MAX_PKEY_BLOCKS).take(blocks) {
                let modifier = PKeyTableModifier {
                    port: modifier_port,
                    block,
                }
                .encode();
                queue.push(
                    get::<PKeyTable>(&path, modifier.get()),
                    Job::PKeys { port: id, block },
                );
            }
        }
        if is_sm && !is_local && !is_external {
            queue.push(get::<SmInfo>(&path, 0), Job::Manager { guid, path });
        }
        let leads_on = is_external || (is_local && !is_switch);
        if leads_on && up && self.topology.peer(id).is_none() {
            match path.then(id.port) {
                Some(next) => {
                    let job = Job::NodeInfo {
                        path: next,
                        via: Some(id),
                    };
                    queue.push(get::<NodeInfo>(&next, 0), job);
                }
                None => self.incomplete = true,
            }
        }
    }

    fn on_pkeys(&mut self, id: PortId, block: u16, table: &PKeyTable) {
        let Some(port) = self.topology.port_mut(id) else {
            return;
        };
        let first = usize::from(block) * PKeyTable::ENTRIES;
        let end = first + PKeyTable::ENTRIES;
        if port.pkeys.len() < end {
            port.pkeys.resize(end, PKey::INVALID);
        }
        port.pkeys[first..end].copy_from_slice(&table.pkeys);
    }

    fn duplicate(&mut self, guid: Guid) {
        self.incomplete = true;
        if !self.duplicates.contains(&guid) {
            self.duplicates.push(guid);
        }
    }
}
