//! The columns of a fabric's tables.

use emulated_hca::{Fabric, Node, NodeId, NodeKind, PhysicalPort};
use hca_api::{PhysicalState, PortState};
use ib_wire::PortNum;

use super::cell::Cell;
use super::table::Row;

/// A node.
pub(super) struct NodeRow<'f> {
    node: &'f Node,
    is_gateway: bool,
}

/// A port, and what is at the other end of its link.
pub(super) struct PortRow<'f> {
    node: &'f Node,
    port: &'f PhysicalPort,
    peer: Option<(&'f Node, PortNum)>,
}

pub(super) fn nodes(fabric: &Fabric) -> impl Iterator<Item = NodeRow<'_>> {
    all(fabric).map(|(id, node)| NodeRow {
        node,
        is_gateway: fabric.is_gateway(id),
    })
}

pub(super) fn ports(fabric: &Fabric) -> impl Iterator<Item = PortRow<'_>> {
    all(fabric).flat_map(move |(id, node)| {
        node.ports().iter().map(move |port| {
            let peer = fabric.peer(id.port(port.number.0));
            let peer = peer.and_then(|end| Some((fabric.node(end.node)?, end.port)));
            PortRow { node, port, peer }
        })
    })
}

pub(super) fn all(fabric: &Fabric) -> impl Iterator<Item = (NodeId, &Node)> {
    let ids = fabric.nodes().map(|(id, _)| id);
    ids.filter_map(|id| Some((id, fabric.node(id)?)))
}

/// The description, or the GUID of a node that has none.
pub(super) fn name(node: &Node) -> Cell {
    match node.description.as_str() {
        None | Some("") => Cell::text(node.node_guid),
        Some(name) => Cell::text(name),
    }
}

const fn state(state: PortState) -> &'static str {
    match state {
        PortState::Down => "down",
        PortState::Init => "init",
        PortState::Armed => "armed",
        PortState::Active => "active",
    }
}

const fn physical_state(state: PhysicalState) -> &'static str {
    match state {
        PhysicalState::Sleep => "sleep",
        PhysicalState::Polling => "polling",
        PhysicalState::Disabled => "disabled",
        PhysicalState::Training => "training",
        PhysicalState::LinkUp => "link_up",
        PhysicalState::ErrorRecovery => "error_recovery",
    }
}

impl Row for NodeRow<'_> {
    const COLUMNS: &'static [&'static str] = &["node", "kind", "guid", "ports", "links_up"];

    fn cells(&self) -> Vec<Cell> {
        let node = self.node;
        let kind = match node.kind() {
            _ if self.is_gateway => "gateway",
            NodeKind::ChannelAdapter => "ca",
            NodeKind::Switch => "switch",
        };
        let up = |port: &&PhysicalPort| {
            port.number.0 != 0 && port.physical_state == PhysicalState::LinkUp
        };
        vec![
            name(node),
            Cell::text(kind),
            Cell::text(node.node_guid),
            Cell::Number(node.port_count().into()),
            Cell::count(node.ports().iter().filter(up).count()),
        ]
    }
}

impl Row for PortRow<'_> {
    const COLUMNS: &'static [&'static str] = &[
        "node",
        "port",
        "guid",
        "state",
        "physical_state",
        "lid",
        "lmc",
        "sm_lid",
        "mtu",
        "peer",
        "peer_port",
    ];

    fn cells(&self) -> Vec<Cell> {
        let port = self.port;
        let lid = |lid: ib_wire::Lid| {
            Cell::option((lid != ib_wire::Lid::NONE).then_some(lid), |lid| {
                Cell::Number(lid.get().into())
            })
        };
        vec![
            name(self.node),
            Cell::Number(port.number.0.into()),
            Cell::text(port.guid),
            Cell::text(state(port.state)),
            Cell::text(physical_state(port.physical_state)),
            lid(port.lid),
            Cell::Number(port.lmc.get().into()),
            lid(port.sm_lid),
            Cell::option(port.neighbor_mtu.bytes(), Cell::count),
            Cell::option(self.peer, |(node, _)| name(node)),
            Cell::option(self.peer, |(_, port)| Cell::Number(port.0.into())),
        ]
    }
}
