//! Makes links of the ports that lead to one another, and holds the nodes to what one fabric can have.

use std::collections::BTreeMap;

use ib_wire::Guid;

use super::TopologyFile;
use super::error::{TopologyError, TopologyProblem, quoted};
use super::reader::{Content, Made, NodeEntry, PortEntry};
use crate::{PlannedNode, PortConfig, Topology};

/// Turns nodes into a plan.
pub(super) fn connect(content: Content) -> Result<TopologyFile, TopologyError> {
    check_guids(&content)?;
    let planned = planned_nodes(&content.nodes);
    let mut topology = Topology::default();
    for (node, own) in content.nodes.iter().zip(&planned) {
        for (&port, entry) in &node.ports {
            let far = far_end(&content, node, port, entry)
                .map_err(|problem| content.files.error(entry.place, problem))?;
            let (near, far) = (own.port(port), planned[far].port(entry.remote_port));
            // Each link is seen from both of its ends.
            if near < far {
                topology.connect(near, far);
            }
            let supported = node.supported(port);
            if supported != of_node(node) {
                topology.ports.insert(near, supported);
            }
        }
    }
    let mut names = Vec::with_capacity(content.nodes.len());
    for (node, own) in content.nodes.into_iter().zip(planned) {
        names.push((node.name, own));
        match node.made {
            Made::Hca(config) => topology.hcas.push(config),
            Made::Switch(config) => topology.switches.push(config),
        }
    }
    Ok(TopologyFile {
        topology,
        nodes: names,
    })
}

/// The places that nodes will have in the plan.
fn planned_nodes(nodes: &[NodeEntry]) -> Vec<PlannedNode> {
    let (mut hcas, mut switches) = (0, 0);
    let place = |count: &mut usize| {
        *count += 1;
        *count - 1
    };
    nodes
        .iter()
        .map(|node| match node.made {
            Made::Hca(_) => PlannedNode::Hca(place(&mut hcas)),
            Made::Switch(_) => PlannedNode::Switch(place(&mut switches)),
        })
        .collect()
}

/// What the ports of a node support that say nothing.
const fn of_node(node: &NodeEntry) -> PortConfig {
    match &node.made {
        Made::Hca(config) => config.port,
        Made::Switch(config) => config.port,
    }
}

/// The node at the other end of a port's link, which leads back.
fn far_end(
    content: &Content,
    node: &NodeEntry,
    port: u8,
    entry: &PortEntry,
) -> Result<usize, TopologyProblem> {
    let at = *content
        .by_name
        .get(&entry.remote)
        .ok_or_else(|| TopologyProblem::NoSuchNode(quoted(&entry.remote)))?;
    let far = &content.nodes[at];
    let (name, far_port) = (quoted(&far.name), entry.remote_port);
    if far_port > far.port_count() {
        return Err(TopologyProblem::NoSuchPort {
            node: name,
            port: far_port,
        });
    }
    let leads_back = far
        .ports
        .get(&far_port)
        .is_some_and(|back| back.remote == node.name && back.remote_port == port);
    let is_itself = far.name == node.name && far_port == port;
    if !leads_back || is_itself {
        return Err(TopologyProblem::OneSided {
            node: name,
            port: far_port,
        });
    }
    let (own, other) = (node.supported(port), far.supported(far_port));
    let nothing = |what| TopologyProblem::NothingInCommon {
        node: name.clone(),
        port: far_port,
        what,
    };
    if own.widths.0 & other.widths.0 == 0 {
        return Err(nothing("width"));
    }
    if own.speeds.get() & other.speeds.get() == 0 {
        return Err(nothing("speed"));
    }
    Ok(at)
}

/// Every node GUID belongs to one node, and every port GUID to one port.
fn check_guids(content: &Content) -> Result<(), TopologyError> {
    let mut owners: BTreeMap<Guid, usize> = BTreeMap::new();
    let mut ports: BTreeMap<Guid, (usize, u8)> = BTreeMap::new();
    for (at, node) in content.nodes.iter().enumerate() {
        let twice = |guid, other: usize| {
            let problem = TopologyProblem::GuidTwice {
                guid,
                node: quoted(&node.name),
                other: quoted(&content.nodes[other].name),
            };
            content.files.error(node.place, problem)
        };
        let (own, port_guids): (Guid, Vec<(u8, Guid)>) = match &node.made {
            Made::Hca(config) => {
                let guids = (1..=config.ports).map(|port| (port, config.port_guid(port)));
                (config.node_guid, guids.collect())
            }
            Made::Switch(config) => (config.node_guid, vec![(0, config.node_guid)]),
        };
        if let Some(other) = owners.insert(own, at) {
            return Err(twice(own, other));
        }
        for (port, guid) in port_guids {
            if let Some((other, _)) = ports.insert(guid, (at, port)) {
                return Err(twice(guid, other));
            }
        }
    }
    Ok(())
}
