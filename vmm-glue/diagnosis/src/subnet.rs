//! Nodes, links and subnet managers, as far as they are known.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hca_api::{PhysicalState, PortState};
use ib_vtime::Instant;
use ib_wire::smp::SmState;
use ib_wire::{Guid, Lid, Lmc, MKey, PKey, PortNum};

use crate::rates::Rates;

/// Part of a subnet that a snapshot has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// All nodes and links.
    #[default]
    Whole,
    /// The adapters with PFs, the nodes at the other ends of their links, the nodes with the same LIDs or GUIDs or with the
    /// LIDs of their SMs and of foreign peers, and all nodes with an M_Key: see [`Snapshot::looks_far`](crate::Snapshot::looks_far).
    Near,
    /// The adapters with PFs, and nothing behind their ports.
    Adapters,
}

/// A subnet, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Subnet {
    /// Part of the subnet that is known.
    pub extent: Extent,
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// The ends of its links.
    pub links: Vec<[PortAt; 2]>,
    /// The node of the host that is for management, an index of `nodes`.
    pub management: Option<usize>,
    /// Processes of subnet managers by their ports, as far as they are known.
    pub managers: BTreeMap<PortAt, u32>,
    /// The port of the service's own subnet manager, if that runs.
    pub embedded: Option<PortAt>,
    /// Answers of subnet managers to a Get(SMInfo) that was sent on their own nodes: their states; `None` if there was none.
    pub sm_answers: BTreeMap<PortAt, Option<SmState>>,
    /// P_Key tables of the PFs' ports and of their SMs'.
    pub partitions: BTreeMap<PortAt, Vec<PKey>>,
    /// Ways of packets from one port to the LID of another, by these two: between PFs' ports and their SMs' where an SA is silent or
    /// faults are planned, and between ports of a [`Pair`](crate::Pair).
    pub ways: BTreeMap<[PortAt; 2], Way>,
    /// Faults that the service makes by order, by their links (indices of `links`), in the words of `vhca set link`.
    pub planned: BTreeMap<usize, String>,
    /// Trunks to fabrics of other services, by their ports here.
    pub trunks: BTreeMap<PortAt, Trunk>,
}

/// A trunk to the fabric of another service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trunk {
    /// The way to the other end, as the option has it.
    pub way: String,
    /// The site at the other end, or the reason for which the trunk is down.
    pub peer: Result<String, String>,
    /// `true` if the switch takes the other end for a host that is not trusted.
    pub is_guarded: bool,
    /// Time from the latest ping to its pong, since the trunk is up.
    pub round_trip: Option<core::time::Duration>,
    /// SMPs that the port refused, since the other end is a host that is not trusted.
    pub refused_smps: u64,
}

/// Way of packets from one port to the LID of another, as links and forwarding tables are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The links that they cross, in order: the port by which they leave a node, and that by which they come to the next.
    pub hops: Vec<[PortAt; 2]>,
    /// The port at which they end: that of the LID if they arrive.
    pub end: PortAt,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its description.
    pub name: String,
    /// Its kind.
    pub kind: NodeKind,
    /// Its ports in order: from port 0 on of a switch, from port 1 on of others.
    pub ports: Vec<Port>,
}

/// Kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A channel adapter.
    Adapter,
    /// A switch.
    Switch,
    /// The end of the known nodes: a simulator's fabric lies behind it.
    Gateway,
}

/// Names a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortAt {
    /// Its node: an index of [`Subnet::nodes`].
    pub node: usize,
    /// Its number.
    pub port: PortNum,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Port {
    /// Its number.
    pub number: PortNum,
    /// Its GUID.
    pub guid: Guid,
    /// Logical state.
    pub state: PortState,
    /// Physical state.
    pub physical_state: PhysicalState,
    /// Base LID.
    pub lid: Lid,
    /// LID mask count.
    pub lmc: Lmc,
    /// LID of the master SM.
    pub sm_lid: Lid,
    /// `true` if a subnet manager runs there (PortInfo:CapabilityMask.IsSM).
    pub is_sm: bool,
    /// Protection key.
    pub m_key: MKey,
    /// SMPs refused for their M_Key, as PortInfo counts them.
    pub m_key_violations: u16,
    /// SMPs refused for their M_Key, and the time of the latest, of a port that has one.
    pub refused_smps: Option<Dropped>,
    /// Widths and speeds.
    pub rates: Rates,
    /// Its link: an index of [`Subnet::links`].
    pub link: Option<usize>,
}

/// Packets that were dropped for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Number of packets.
    pub packets: u64,
    /// Time of the latest.
    pub last: Instant,
}

impl Port {
    /// Returns `true` if a unicast LID is one of the port's 2^LMC.
    #[must_use]
    pub const fn owns_lid(&self, lid: Lid) -> bool {
        let base = self.lid.get();
        base != 0 && lid.get() & !self.lmc.mask() == base & !self.lmc.mask()
    }
}

impl Subnet {
    /// Adds a node. Returns its index.
    pub fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Adds a link between two ports.
    pub fn connect(&mut self, ends: [PortAt; 2]) {
        let link = self.links.len();
        self.links.push(ends);
        for port in ends {
            if let Some(port) = self.port_mut(port) {
                port.link = Some(link);
            }
        }
    }

    /// Returns a port.
    #[must_use]
    pub fn port(&self, at: PortAt) -> Option<&Port> {
        let node = self.nodes.get(at.node)?;
        node.ports.get(place(node, at.port)?)
    }

    /// Returns a port, to be changed.
    pub fn port_mut(&mut self, at: PortAt) -> Option<&mut Port> {
        let node = self.nodes.get_mut(at.node)?;
        let place = place(node, at.port)?;
        node.ports.get_mut(place)
    }

    /// Returns `true` if an end port has an M_Key.
    pub(crate) fn has_m_keys(&self) -> bool {
        self.end_ports()
            .any(|(_, port)| port.m_key != MKey::default())
    }

    /// Returns the name of a node.
    #[must_use]
    pub fn node_name(&self, node: usize) -> &str {
        self.nodes.get(node).map_or("?", |node| &node.name)
    }

    /// Returns the name of a port: `NODE/PORT`.
    #[must_use]
    pub fn port_name(&self, at: PortAt) -> String {
        format!("{}/{}", self.node_name(at.node), at.port)
    }

    /// Returns the port at the other end of a port's link.
    #[must_use]
    pub fn peer(&self, at: PortAt) -> Option<PortAt> {
        let [one, other] = *self.links.get(self.port(at)?.link?)?;
        Some(if one == at { other } else { one })
    }

    /// Returns the end ports: of a switch, port 0.
    pub fn end_ports(&self) -> impl Iterator<Item = (PortAt, &Port)> {
        (0..).zip(&self.nodes).flat_map(|(node, of)| {
            let ports = match of.kind {
                NodeKind::Switch => of.ports.get(..1).unwrap_or_default(),
                NodeKind::Adapter | NodeKind::Gateway => &of.ports[..],
            };
            let named = move |port: &Port| PortAt {
                node,
                port: port.number,
            };
            ports.iter().map(move |port| (named(port), port))
        })
    }

    /// Returns the end port that has a LID: the first if several have it.
    #[must_use]
    pub fn owner(&self, lid: Lid) -> Option<PortAt> {
        self.owners(lid).next()
    }

    /// Returns the end ports that have a LID.
    pub(crate) fn owners(&self, lid: Lid) -> impl Iterator<Item = PortAt> {
        let ports = self.end_ports();
        let owners = ports.filter(move |(_, port)| lid != Lid::NONE && port.owns_lid(lid));
        owners.map(|(at, _)| at)
    }

    /// Returns the end ports at which a subnet manager runs, as the ports say.
    pub fn sm_ports(&self) -> impl Iterator<Item = PortAt> {
        self.end_ports()
            .filter_map(|(at, port)| port.is_sm.then_some(at))
    }

    /// Returns `true` if a port's own PortInfo has the port as its subnet manager's.
    #[must_use]
    pub fn is_master(&self, at: PortAt) -> bool {
        self.port(at)
            .is_some_and(|port| port.is_sm && port.owns_lid(port.sm_lid))
    }

    /// Returns a port with a subnet manager that a port's SMPs reach, if there is any. A master comes before managers that stand
    /// by.
    #[must_use]
    pub fn manager_near(&self, at: PortAt) -> Option<PortAt> {
        let reachable = self.reachable(at);
        let near = || self.sm_ports().filter(|sm| reachable.contains(sm));
        near()
            .find(|sm| self.is_master(*sm))
            .or_else(|| near().next())
    }

    pub(crate) fn is_switch(&self, node: usize) -> bool {
        let node = self.nodes.get(node);
        node.is_some_and(|node| node.kind == NodeKind::Switch)
    }

    pub(crate) fn is_gateway(&self, node: usize) -> bool {
        let node = self.nodes.get(node);
        node.is_some_and(|node| node.kind == NodeKind::Gateway)
    }

    /// Returns `true` if an end port stands for one of a simulator's fabric.
    pub(crate) fn is_attached(&self, at: PortAt) -> bool {
        self.peer(at).is_some_and(|peer| self.is_gateway(peer.node))
    }

    /// Returns the end port whose agent answers for a port: a switch's port 0, or the port itself.
    pub(crate) fn end_port(&self, at: PortAt) -> PortAt {
        if self.is_switch(at.node) {
            let port = PortNum::SWITCH_MANAGEMENT;
            PortAt { port, ..at }
        } else {
            at
        }
    }

    /// Returns the end ports that SMPs reach from one over links that are up, itself included. Nothing passes an adapter.
    pub(crate) fn reachable(&self, from: PortAt) -> BTreeSet<PortAt> {
        self.spread(from).into_keys().collect()
    }

    /// Returns the links of a shortest way of SMPs between two end ports over links that are up; none if there is no way.
    pub(crate) fn shortest(&self, from: PortAt, to: PortAt) -> Vec<usize> {
        let came = self.spread(from);
        let (mut at, mut links) = (self.end_port(to), Vec::new());
        while let Some(Some((link, before))) = came.get(&at) {
            links.push(*link);
            at = *before;
        }
        links
    }

    /// Returns the end ports that SMPs reach from one, and for each but the first the link by which they come to it, and the end
    /// port before.
    fn spread(&self, from: PortAt) -> BTreeMap<PortAt, Option<(usize, PortAt)>> {
        let from = self.end_port(from);
        let (mut found, mut next) = (BTreeMap::from([(from, None)]), VecDeque::from([from]));
        while let Some(at) = next.pop_front() {
            let ports = self.nodes.get(at.node).map_or(&[][..], |node| &node.ports);
            let is_switch = at.port == PortNum::SWITCH_MANAGEMENT;
            let up = ports.iter().filter(|port| {
                (is_switch || port.number == at.port)
                    && port.physical_state == PhysicalState::LinkUp
            });
            for port in up {
                let number = port.number;
                let peer = self.peer(PortAt { port: number, ..at });
                let Some((link, peer)) = port.link.zip(peer.map(|peer| self.end_port(peer))) else {
                    continue;
                };
                if let Entry::Vacant(place) = found.entry(peer) {
                    place.insert(Some((link, at)));
                    next.push_back(peer);
                }
            }
        }
        found
    }
}

/// Returns the place of a port among its node's.
fn place(node: &Node, port: PortNum) -> Option<usize> {
    let first = node.ports.first()?.number;
    port.index().checked_sub(first.index())
}
