//! The subnet as discovered: nodes, ports, links, and what was programmed into them.

use std::collections::BTreeMap;

use ib_wire::smp::{
    CapabilityMask, MAX_HOPS, NodeDescription, NodeInfo, NodeType, PortInfo, PortMask,
    PortPhysState, SwitchInfo,
};
use ib_wire::{Gid, Guid, Lid, PKey, PortNum, Rate, SubnetPrefix};

use crate::rate;
use crate::routing::{Hop, Lft, SwitchGraph, SwitchIndex};

/// A directed route from the manager's port: the ports to leave each node by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DrPath {
    len: u8,
    ports: [u8; MAX_HOPS as usize],
}

impl DrPath {
    /// The manager's own node.
    pub const LOCAL: Self = Self {
        len: 0,
        ports: [0; MAX_HOPS as usize],
    };

    /// The path one hop further, `None` if it would be too long.
    #[must_use]
    pub fn then(mut self, port: PortNum) -> Option<Self> {
        *self.ports.get_mut(usize::from(self.len))? = port.0;
        self.len += 1;
        Some(self)
    }

    /// The ports to leave by, the manager's own first.
    #[must_use]
    pub fn hops(&self) -> &[u8] {
        &self.ports[..usize::from(self.len)]
    }
}

impl core::fmt::Debug for DrPath {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "DrPath({:?})", self.hops())
    }
}

/// A node's place in its [`Topology`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// A port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId {
    /// The node.
    pub node: NodeId,
    /// The port.
    pub port: PortNum,
}

/// What is known about a port.
#[derive(Clone, Debug)]
pub struct Port {
    /// The port's GUID; that of the node for all ports of a switch.
    pub guid: Guid,
    /// As last read or set.
    pub info: PortInfo,
    /// The P_Key table, whole blocks; empty if it was not read.
    pub pkeys: Vec<PKey>,
    /// How SMPs reach the node over this port; for a switch, the node's path.
    pub path: DrPath,
}

impl Port {
    /// The rate of the link, as its active fields tell. `extended` says whether the node knows
    /// extended speeds.
    #[must_use]
    pub fn rate(&self, extended: bool) -> Rate {
        let ext = if extended {
            self.info.link_speed_ext_active().get()
        } else {
            0
        };
        rate::of_link(
            self.info.link_width_active.0,
            self.info.link_speed_active().get(),
            ext,
        )
    }

    /// Whether the port's P_Key table has the partition, with either membership. An invalid key
    /// counts as present, as for OpenSM.
    #[must_use]
    pub fn has_partition(&self, pkey: PKey) -> bool {
        !pkey.is_valid() || self.pkeys.iter().any(|held| held.base() == pkey.base())
    }

    /// The first P_Key, in order of the partition, by which this port and another can talk, with
    /// this port's membership.
    #[must_use]
    pub fn common_pkey(&self, other: &Self) -> Option<PKey> {
        let mut held: Vec<PKey> = self
            .pkeys
            .iter()
            .copied()
            .filter(|k| k.is_valid())
            .collect();
        held.sort_unstable_by_key(|k| k.base());
        held.into_iter()
            .find(|key| other.pkeys.iter().any(|k| k.matches(*key)))
    }

    /// Whether the ports can talk to each other. Ports without a P_Key table are not restricted
    /// (IBA 10.9.2), and a port always sees itself.
    #[must_use]
    pub fn shares_pkey(&self, other: &Self) -> bool {
        let unrestricted = |port: &Self| !port.pkeys.iter().any(|k| k.is_valid());
        core::ptr::eq(self, other)
            || unrestricted(self)
            || unrestricted(other)
            || self.common_pkey(other).is_some()
    }

    /// The port's GID with its own GUID.
    #[must_use]
    pub fn gid(&self) -> Gid {
        Gid::from_parts(self.info.gid_prefix, self.guid)
    }

    /// Whether the LID is one of the port's.
    #[must_use]
    pub fn owns_lid(&self, lid: Lid) -> bool {
        self.info.lid.is_unicast() && lid.get() & !self.info.lmc().mask() == self.info.lid.get()
    }

    /// Whether the physical link is up.
    #[must_use]
    pub fn link_up(&self) -> bool {
        self.info.phys_state() == PortPhysState::LINK_UP
    }

    /// Whether the port says that it supports something.
    #[must_use]
    pub fn supports(&self, capability: CapabilityMask) -> bool {
        self.info.capability_mask.contains(capability)
    }
}

/// What is known about a switch besides its ports.
#[derive(Clone, Debug)]
pub struct Switch {
    /// As last read or set.
    pub info: SwitchInfo,
    /// The linear forwarding table that was computed for it.
    pub lft: Lft,
    /// The ports that the packets of each multicast LID are copied to.
    pub mft: BTreeMap<Lid, PortMask>,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// As read through the port that it was found by.
    pub info: NodeInfo,
    /// The description.
    pub description: NodeDescription,
    /// Of a switch.
    pub switch: Option<Switch>,
    /// By port number; `None` for a port that was not read.
    pub ports: Vec<Option<Port>>,
    /// By port number: the port at the other end of the link.
    pub links: Vec<Option<PortId>>,
}

impl Node {
    /// Whether this is a switch.
    #[must_use]
    pub fn is_switch(&self) -> bool {
        self.info.node_type == NodeType::SWITCH
    }

    /// A port, if it was read.
    #[must_use]
    pub fn port(&self, port: PortNum) -> Option<&Port> {
        self.ports.get(port.index())?.as_ref()
    }

    /// The ports that were read, with their numbers.
    pub fn ports(&self) -> impl Iterator<Item = (PortNum, &Port)> {
        (0..=u8::MAX)
            .map(PortNum)
            .zip(&self.ports)
            .filter_map(|(n, port)| Some((n, port.as_ref()?)))
    }

    /// The ports that have LIDs of their own: a switch's management port, all ports of others.
    pub fn end_ports(&self) -> impl Iterator<Item = (PortNum, &Port)> {
        self.ports().filter(|(n, _)| self.is_end_port(*n))
    }

    /// Returns `true` if a port has LIDs of its own.
    #[must_use]
    pub fn is_end_port(&self, port: PortNum) -> bool {
        (port == PortNum::SWITCH_MANAGEMENT) == self.is_switch()
    }

    /// Whether extended link speeds count: the end port's capability, that of port 0 for all ports
    /// of a switch.
    #[must_use]
    pub fn extended_speeds(&self, port: PortNum) -> bool {
        let asked = if self.is_switch() {
            PortNum::SWITCH_MANAGEMENT
        } else {
            port
        };
        let capability = CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED;
        self.port(asked).is_some_and(|p| p.supports(capability))
    }

    /// Entries in a port's P_Key table, as NodeInfo and SwitchInfo tell.
    #[must_use]
    pub fn pkey_entries(&self, port: PortNum) -> u16 {
        match &self.switch {
            Some(switch) if port != PortNum::SWITCH_MANAGEMENT => {
                switch.info.partition_enforcement_cap.get()
            }
            _ => self.info.partition_cap.get(),
        }
    }

    /// The LID that a link of this port is recorded under.
    #[must_use]
    pub fn lid(&self, port: PortNum) -> Lid {
        let asked = if self.is_switch() {
            PortNum::SWITCH_MANAGEMENT
        } else {
            port
        };
        self.port(asked).map_or(Lid::NONE, |p| p.info.lid)
    }
}

/// A subnet.
#[derive(Clone, Debug)]
pub struct Topology {
    prefix: SubnetPrefix,
    nodes: Vec<Node>,
    by_node_guid: BTreeMap<Guid, NodeId>,
    by_port_guid: BTreeMap<Guid, PortId>,
    by_lid: Vec<Option<PortId>>,
    switches: Vec<NodeId>,
    graph: SwitchGraph,
}

impl Topology {
    /// An empty subnet.
    #[must_use]
    pub fn new(prefix: SubnetPrefix) -> Self {
        Self {
            prefix,
            nodes: Vec::new(),
            by_node_guid: BTreeMap::new(),
            by_port_guid: BTreeMap::new(),
            by_lid: Vec::new(),
            switches: Vec::new(),
            graph: SwitchGraph::new(Vec::new()),
        }
    }

    /// The subnet prefix of all GIDs.
    #[must_use]
    pub fn prefix(&self) -> SubnetPrefix {
        self.prefix
    }

    /// All nodes in order of their GUIDs.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.by_node_guid
            .values()
            .map(|id| (*id, &self.nodes[id.0]))
    }

    /// Returns the nodes from a GUID on, in order of their GUIDs.
    pub(crate) fn nodes_from(&self, guid: Guid) -> impl Iterator<Item = NodeId> + '_ {
        self.by_node_guid.range(guid..).map(|(_, id)| *id)
    }

    /// Returns the first end port from a GUID on, in order of their GUIDs.
    pub(crate) fn end_port_from(&self, guid: Guid) -> Option<(Guid, PortId)> {
        let (guid, id) = self.by_port_guid.range(guid..).next()?;
        Some((*guid, *id))
    }

    /// Number of nodes.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// A node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0]
    }

    /// The node with a GUID.
    #[must_use]
    pub fn node_by_guid(&self, guid: Guid) -> Option<NodeId> {
        self.by_node_guid.get(&guid).copied()
    }

    /// A port that was read.
    #[must_use]
    pub fn port(&self, id: PortId) -> Option<&Port> {
        self.nodes.get(id.node.0)?.port(id.port)
    }

    pub(crate) fn port_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.nodes
            .get_mut(id.node.0)?
            .ports
            .get_mut(id.port.index())?
            .as_mut()
    }

    /// All end ports, those with LIDs, in order of their GUIDs.
    pub fn end_ports(&self) -> impl Iterator<Item = (PortId, &Port)> {
        self.by_port_guid
            .values()
            .filter_map(|id| Some((*id, self.port(*id)?)))
    }

    /// The end port with a GUID of its own (not an alias).
    #[must_use]
    pub fn port_by_guid(&self, guid: Guid) -> Option<PortId> {
        self.by_port_guid.get(&guid).copied()
    }

    /// The end port that owns a LID.
    #[must_use]
    pub fn port_by_lid(&self, lid: Lid) -> Option<PortId> {
        *self.by_lid.get(lid.index())?
    }

    /// The highest LID in use.
    #[must_use]
    pub fn last_lid(&self) -> Lid {
        let last = self.by_lid.len().saturating_sub(1);
        u16::try_from(last).map_or(Lid::NONE, Lid::new)
    }

    /// The switches, by their index in [`Self::graph`].
    #[must_use]
    pub fn switches(&self) -> &[NodeId] {
        &self.switches
    }

    /// The links between switches.
    #[must_use]
    pub fn graph(&self) -> &SwitchGraph {
        &self.graph
    }

    /// Where an end port hangs: its switch and the switch's port. For a switch's management port
    /// the switch itself and port 0. `None` without switch.
    #[must_use]
    pub fn attachment(&self, id: PortId) -> Option<(SwitchIndex, PortNum)> {
        let at = if self.node(id.node).is_switch() {
            id
        } else {
            self.peer(id)?
        };
        let index = self
            .switches
            .binary_search_by_key(&self.node(at.node).info.node_guid, |node| {
                self.node(*node).info.node_guid
            });
        Some((SwitchIndex(index.ok()?), at.port))
    }

    /// Adds a node that is not known yet, without ports.
    pub(crate) fn add_node(&mut self, info: NodeInfo) -> NodeId {
        let id = NodeId(self.nodes.len());
        let count = usize::from(info.num_ports) + 1;
        let (ports, links) = (vec![None; count], vec![None; count]);
        let description = NodeDescription::default();
        self.nodes.push(Node {
            info,
            description,
            switch: None,
            ports,
            links,
        });
        self.by_node_guid.insert(info.node_guid, id);
        id
    }

    /// The port at the other end of a port's link.
    #[must_use]
    pub fn peer(&self, id: PortId) -> Option<PortId> {
        *self.nodes.get(id.node.0)?.links.get(id.port.index())?
    }

    /// Returns the end ports of the subnet with the port at the other end of each one's link, both by the GUIDs of their nodes.
    pub(crate) fn attachments(&self) -> BTreeMap<(Guid, PortNum), (Guid, PortNum)> {
        let named = |id: PortId| (self.node(id.node).info.node_guid, id.port);
        let ends = self.nodes().filter(|(_, node)| !node.is_switch());
        let ports = ends.flat_map(|(id, node)| {
            let ports = node.ports();
            ports.map(move |(port, _)| PortId { node: id, port })
        });
        let attached = ports.filter_map(|id| Some((named(id), named(self.peer(id)?))));
        attached.collect()
    }

    /// Takes the link of a port away.
    pub(crate) fn disconnect(&mut self, id: PortId) {
        for end in [Some(id), self.peer(id)].into_iter().flatten() {
            let links = self.nodes.get_mut(end.node.0).map(|node| &mut node.links);
            if let Some(link) = links.and_then(|links| links.get_mut(end.port.index())) {
                *link = None;
            }
        }
    }

    /// Joins two ports by a link.
    pub(crate) fn connect(&mut self, a: PortId, b: PortId) {
        for (from, to) in [(a, b), (b, a)] {
            let links = self.nodes.get_mut(from.node.0).map(|node| &mut node.links);
            if let Some(end) = links.and_then(|links| links.get_mut(from.port.index())) {
                *end = Some(to);
            }
        }
    }

    /// Computes what follows from nodes, ports and links: GUID index and graph. Call when
    /// discovery is complete.
    pub(crate) fn index(&mut self) {
        self.by_port_guid.clear();
        for (index, node) in self.nodes.iter().enumerate() {
            for (port, found) in node.end_ports() {
                let id = PortId {
                    node: NodeId(index),
                    port,
                };
                self.by_port_guid.entry(found.guid).or_insert(id);
            }
        }
        let nodes = &self.nodes;
        self.switches = self
            .by_node_guid
            .values()
            .copied()
            .filter(|id| nodes[id.0].switch.is_some())
            .collect();
        self.graph = SwitchGraph::new(self.switches.iter().map(|id| self.hops_of(*id)).collect());
    }

    fn hops_of(&self, switch: NodeId) -> Vec<Hop> {
        let external = self
            .node(switch)
            .ports()
            .filter(|(n, _)| *n != PortNum::SWITCH_MANAGEMENT);
        external
            .filter_map(|(port, _)| {
                let peer = self.peer(PortId { node: switch, port })?;
                self.node(peer.node).switch.as_ref()?;
                let (index, peer_port) = self.attachment(peer)?;
                Some(Hop {
                    port,
                    peer: index,
                    peer_port,
                })
            })
            .collect()
    }

    /// Computes the LID index from the LIDs in the end ports' PortInfo.
    pub(crate) fn index_lids(&mut self) {
        let mut by_lid: Vec<Option<PortId>> = Vec::new();
        for (id, port) in self.end_ports() {
            let base = port.info.lid.index();
            if !port.info.lid.is_unicast() {
                continue;
            }
            let end = base + (1 << port.info.lmc().get());
            if by_lid.len() < end {
                by_lid.resize(end, None);
            }
            by_lid[base..end].fill(Some(id));
        }
        self.by_lid = by_lid;
    }

    /// The port by which a switch forwards a LID.
    #[must_use]
    pub fn route(&self, switch: NodeId, lid: Lid) -> Option<PortId> {
        let port = self.node(switch).switch.as_ref()?.lft.port(lid)?;
        Some(PortId { node: switch, port })
    }
}
