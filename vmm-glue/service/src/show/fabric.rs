//! The columns of a fabric's tables: its nodes, its links, and the ports of its nodes.

use emulated_hca::{Endpoint, Fabric, NodeId, NodeKind};
use hca_api::PhysicalState;
use ib_wire::{GidIndex, Guid, Lid, Lmc, PortNum};
use vhca::world::OutsideHca;
use vhca_control::table::{Cell, Column, column};

use super::Scene;
use super::link::{Link, Problem};
use super::table::{Filter, Row};

/// A node.
pub(super) struct NodeRow {
    name: String,
    kind: &'static str,
    guid: Guid,
    lid: Lid,
    ports: u8,
    links_up: usize,
    active: usize,
    problems: usize,
}

/// A link with both its ends.
pub(super) struct LinkRow {
    near: (String, PortNum),
    far: (String, PortNum),
    link: Link,
    far_link: Link,
    faults: Option<String>,
}

/// A port of a node.
pub(super) struct PortRow {
    name: String,
    port: PortNum,
    guid: Guid,
    lid: Lid,
    lmc: Lmc,
    sm_lid: Lid,
    mtu: Option<usize>,
    link: Link,
    faults: Option<String>,
}

impl LinkRow {
    /// Returns what is wrong with either end.
    fn problem(&self) -> Option<Problem> {
        worse(self.link.problem, self.far_link.problem)
    }
}

/// Returns what is wrong with a link by what is with its ends. One that is disabled is why the other is down.
fn worse(near: Option<Problem>, far: Option<Problem>) -> Option<Problem> {
    far.filter(|far| *far == Problem::Disabled).or(near).or(far)
}

/// Returns the row of a node.
pub(super) fn node(scene: &Scene<'_>, id: NodeId) -> Vec<NodeRow> {
    let fabric = scene.fabric;
    let Some(node) = fabric.node(id) else {
        return Vec::new();
    };
    if let Some(hca) = scene.vmms.outside(id) {
        return vec![outside(name(fabric, id), hca)];
    }
    let ports = node.ports().iter();
    let links: Vec<Link> = ports
        .filter_map(|port| Link::at(fabric, id.port(port.number.0)))
        .collect();
    let count = |is_so: fn(&Link) -> bool| links.iter().filter(|link| is_so(link)).count();
    let kind = match node.kind() {
        _ if fabric.is_gateway(id) => "gateway",
        NodeKind::ChannelAdapter if scene.vmms.is_bare(id) => "bare",
        NodeKind::ChannelAdapter => "ca",
        NodeKind::Switch => "switch",
    };
    let ends = node.ports().iter();
    let ends = ends.filter(|port| has_lid(node.kind(), port.number));
    vec![NodeRow {
        name: name(fabric, id),
        kind,
        guid: node.node_guid,
        lid: ends
            .map(|port| port.lid)
            .find(|lid| *lid != Lid::NONE)
            .unwrap_or_default(),
        ports: node.port_count(),
        links_up: count(|link| link.physical_state == PhysicalState::LinkUp),
        active: count(Link::is_active),
        problems: count(|link| link.problem.is_some()),
    }]
}

/// Returns the row of an adapter outside of the fabric.
fn outside(name: String, hca: &dyn OutsideHca) -> NodeRow {
    let adapter = hca.attributes();
    let ports = (1..=adapter.num_ports).filter_map(|port| hca.query_port(PortNum(port)).ok());
    let ports: Vec<_> = ports.collect();
    let links: Vec<_> = ports.iter().map(Link::outside).collect();
    let count = |is_so: fn(&Link) -> bool| links.iter().filter(|link| is_so(link)).count();
    NodeRow {
        name,
        kind: "linux",
        guid: adapter.node_guid,
        lid: ports.first().map_or(Lid::NONE, |port| port.lid),
        ports: adapter.num_ports,
        links_up: count(|link| link.physical_state == PhysicalState::LinkUp),
        active: count(Link::is_active),
        problems: count(|link| link.problem.is_some()),
    }
}

/// Returns the links of a node that no node before it has.
pub(super) fn links(scene: &Scene<'_>, filter: &Filter, id: NodeId) -> Vec<LinkRow> {
    let fabric = scene.fabric;
    let ends = ends(fabric, id).filter_map(|near| Some((near, fabric.peer(near)?)));
    let own = ends.filter(|(near, far)| near < far);
    let wanted =
        own.filter(|(near, far)| filter.takes_node(near.node) || filter.takes_node(far.node));
    let rows = wanted.filter_map(|(near, far)| {
        Some(LinkRow {
            near: (name(fabric, near.node), near.port),
            far: (name(fabric, far.node), far.port),
            link: Link::at(fabric, near)?,
            far_link: Link::at(fabric, far)?,
            faults: planned(scene, near),
        })
    });
    rows.collect()
}

/// Returns the ports of a node.
pub(super) fn ports(scene: &Scene<'_>, id: NodeId) -> Vec<PortRow> {
    let fabric = scene.fabric;
    if let Some(hca) = scene.vmms.outside(id) {
        return outside_ports(&name(fabric, id), hca);
    }
    let rows = ends(fabric, id).filter_map(|at| {
        let port = fabric.port(at)?;
        let end = has_lid(fabric.node(id)?.kind(), port.number);
        let lid_of_end = |lid| if end { lid } else { Lid::NONE };
        Some(PortRow {
            name: name(fabric, id),
            port: port.number,
            guid: port.guid,
            lid: lid_of_end(port.lid),
            lmc: port.lmc,
            sm_lid: lid_of_end(port.sm_lid),
            mtu: port.neighbor_mtu.bytes(),
            link: Link::of_port(fabric, at)?,
            faults: planned(scene, at),
        })
    });
    rows.collect()
}

/// Returns the ports of an adapter outside of the fabric.
fn outside_ports(name: &str, hca: &dyn OutsideHca) -> Vec<PortRow> {
    let ports = (1..=hca.attributes().num_ports).map(PortNum);
    let rows = ports.filter_map(|port| {
        let of_port = hca.query_port(port).ok()?;
        let gid = hca.query_gid(port, GidIndex(0)).unwrap_or_default();
        Some(PortRow {
            name: name.to_owned(),
            port,
            guid: gid.interface_id(),
            lid: of_port.lid,
            lmc: of_port.lmc,
            sm_lid: of_port.sm_lid,
            mtu: of_port.active_mtu.bytes(),
            link: Link::outside(&of_port),
            faults: None,
        })
    });
    rows.collect()
}

/// Returns the faults that the service makes by order on a port's link, if there are some.
fn planned(scene: &Scene<'_>, at: Endpoint) -> Option<String> {
    let link = scene.fabric.link_at(at)?;
    scene.vmms.planned_faults(link)
}

/// Returns true if a port has LIDs. A switch has that of its port 0; `ibportstate` writes 4660 to its others, which means nothing.
fn has_lid(kind: NodeKind, port: PortNum) -> bool {
    kind == NodeKind::ChannelAdapter || port == PortNum::SWITCH_MANAGEMENT
}

fn ends(fabric: &Fabric, id: NodeId) -> impl Iterator<Item = Endpoint> {
    let ports = fabric.node(id).map_or(&[][..], |node| node.ports());
    ports.iter().map(move |port| id.port(port.number.0))
}

/// Returns the name of a node at this site, or its GUID if it has none.
pub(super) fn name(fabric: &Fabric, id: NodeId) -> String {
    let Some(node) = fabric.node(id) else {
        return String::new();
    };
    match node.name() {
        None | Some("") => node.node_guid.to_string(),
        Some(name) => name.to_owned(),
    }
}

fn lid(lid: Lid) -> Cell {
    let lid = (lid != Lid::NONE).then_some(lid);
    Cell::option(lid, |lid| Cell::Number(lid.get().into()))
}

fn guid(guid: Guid) -> Cell {
    Cell::option((!guid.is_none()).then_some(guid), Cell::of)
}

fn problem(problem: Option<Problem>) -> Cell {
    Cell::option(problem, |problem| Cell::of(problem.as_str()))
}

fn faults(faults: &Option<String>) -> Cell {
    Cell::option(faults.as_deref(), Cell::of)
}

const NODE: Column<'static> = column("node").shrinks_to(8);
const PHYSICAL_STATE: Column<'static> = column("physical_state").shrinks_to(8).headed("PHYSICAL");

impl Row for NodeRow {
    const COLUMNS: &'static [Column<'static>] = &[
        NODE,
        column("kind"),
        column("guid"),
        column("lid"),
        column("ports"),
        column("links_up"),
        column("active"),
        column("problems"),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::of(&self.name),
            Cell::of(self.kind),
            guid(self.guid),
            lid(self.lid),
            Cell::Number(self.ports.into()),
            Cell::count(self.links_up),
            Cell::count(self.active),
            Cell::count(self.problems),
        ]
    }

    fn has_problem(&self) -> bool {
        self.problems > 0
    }
}

impl Row for LinkRow {
    const COLUMNS: &'static [Column<'static>] = &[
        NODE,
        column("port"),
        column("state"),
        PHYSICAL_STATE,
        column("width"),
        column("speed"),
        column("peer").shrinks_to(8),
        column("peer_port"),
        column("peer_state").wide(),
        column("peer_physical_state").wide(),
        column("problem"),
        column("faults").shrinks_to(8),
    ];

    fn cells(&self) -> Vec<Cell> {
        let Self { near, far, .. } = self;
        vec![
            Cell::of(&near.0),
            Cell::Number(near.1.0.into()),
            self.link.state(),
            self.link.physical_state(),
            self.link.width(),
            self.link.speed(),
            Cell::of(&far.0),
            Cell::Number(far.1.0.into()),
            self.far_link.state(),
            self.far_link.physical_state(),
            problem(self.problem()),
            faults(&self.faults),
        ]
    }

    fn has_problem(&self) -> bool {
        self.problem().is_some() || self.faults.is_some()
    }
}

impl Row for PortRow {
    const COLUMNS: &'static [Column<'static>] = &[
        NODE,
        column("port"),
        column("guid"),
        column("lid"),
        column("lmc").wide(),
        column("sm_lid").wide(),
        column("mtu"),
        column("state"),
        PHYSICAL_STATE,
        column("width"),
        column("speed"),
        column("problem"),
        column("faults").wide(),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::of(&self.name),
            Cell::Number(self.port.0.into()),
            guid(self.guid),
            lid(self.lid),
            Cell::Number(self.lmc.get().into()),
            lid(self.sm_lid),
            Cell::option(self.mtu, Cell::count),
            self.link.state(),
            self.link.physical_state(),
            self.link.width(),
            self.link.speed(),
            problem(self.link.problem),
            faults(&self.faults),
        ]
    }

    fn has_problem(&self) -> bool {
        self.link.problem.is_some() || self.faults.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_disabled_by_either_end() {
        let (disabled, down) = (Some(Problem::Disabled), Some(Problem::LinkDown));
        for (near, far, shown) in [
            (None, None, None),
            (disabled, down, disabled),
            (down, disabled, disabled),
            (down, down, down),
            (None, down, down),
        ] {
            assert_eq!(worse(near, far), shown);
        }
    }
}
