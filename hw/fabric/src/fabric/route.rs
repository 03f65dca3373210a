//! Where routes lead, without sending anything along them. At a gateway they end: what lies behind it
//! is not known here.

use std::collections::BTreeSet;

use hca_api::{PhysicalState, PortState};
use ib_wire::{Lid, PortNum};

use super::Fabric;
use crate::{EndNode, Endpoint, NodeKind};

/// What travels along a route: it decides which ports let it pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Travelling {
    /// SMPs: links need only be up.
    Smps,
    /// Data packets, such as GMPs: ports must be active.
    Data,
}

impl<D: EndNode> Fabric<D> {
    /// Where a directed route ends that starts at an end port: the node, and the port by which the
    /// SMP comes in. `None` if it ends nowhere as the links are now.
    #[must_use]
    pub fn trace_path(&self, from: Endpoint, path: &[u8]) -> Option<Endpoint> {
        let mut at = from;
        for (index, hop) in path.iter().enumerate() {
            if self.is_gateway(at.node) {
                break;
            }
            at = match self.node(at.node)?.kind() {
                NodeKind::Switch => self.cross(at.node.port(*hop), Travelling::Smps)?,
                NodeKind::ChannelAdapter if index == 0 && *hop == from.port.0 => {
                    self.cross(from, Travelling::Smps)?
                }
                NodeKind::ChannelAdapter => return None,
            };
        }
        Some(at)
    }

    /// Returns the end port at which packets to a unicast LID arrive that start at an end port: itself if the
    /// LID is its own. `None` if they arrive nowhere as links and forwarding tables are now.
    #[must_use]
    pub fn trace_lid(&self, from: Endpoint, dlid: Lid, travelling: Travelling) -> Option<Endpoint> {
        self.follow_lid(from, dlid, travelling, &mut |_| {}).ok()
    }

    /// Follows packets to a unicast LID from an end port to the end port at which they arrive: itself if the LID is its
    /// own. Each link that they cross is passed to `crossed`: the port by which they leave a node, and that by which they
    /// come to the next.
    ///
    /// # Errors
    /// The port by which they would go on, as links and forwarding tables are now; or that by which they came to a node
    /// that knows no way.
    pub fn follow_lid(
        &self,
        from: Endpoint,
        dlid: Lid,
        travelling: Travelling,
        crossed: &mut dyn FnMut([Endpoint; 2]),
    ) -> Result<Endpoint, Endpoint> {
        let mut at = from;
        // No route without a loop is longer.
        for _ in 0..=self.slots.len() {
            let node = self.node(at.node).ok_or(at)?;
            let end_port = node.end_port(at.port);
            if self.is_gateway(at.node) || end_port.is_some_and(|port| port.owns_lid(dlid)) {
                let port = node.end_port_number(at.port);
                return Ok(Endpoint { port, ..at });
            }
            let out = match node.tables() {
                Some(tables) => tables.route(dlid).filter(|port| port.0 != 0),
                None if at == from => Some(from.port),
                None => None,
            };
            let out = at.node.port(out.ok_or(at)?.0);
            at = self.cross(out, travelling).ok_or(out)?;
            crossed([out, at]);
        }
        Err(at)
    }

    /// Returns the end ports at which packets to a multicast LID arrive that start at an end port, as links and forwarding tables are
    /// now.
    #[must_use]
    pub fn spread_mlid(&self, from: Endpoint, mlid: Lid) -> BTreeSet<Endpoint> {
        let (mut arrived, mut crossed) = (BTreeSet::new(), BTreeSet::new());
        let mut outs = vec![from];
        while let Some(out) = outs.pop() {
            // A table with a loop sends a packet over a link again.
            let Some(at) = self
                .cross(out, Travelling::Data)
                .filter(|_| crossed.insert(out))
            else {
                continue;
            };
            let tables = self.node(at.node).and_then(|node| node.tables());
            match tables {
                Some(tables) => {
                    let ports = tables.replicate(mlid, at.port);
                    outs.extend(ports.ports().map(|port| at.node.port(port.0)));
                }
                None => {
                    arrived.insert(at);
                }
            }
        }
        arrived
    }

    /// The port at the other end of a link, if what travels gets there.
    fn cross(&self, out: Endpoint, travelling: Travelling) -> Option<Endpoint> {
        let is_port0 = self.node(out.node)?.kind() == NodeKind::Switch
            && out.port == PortNum::SWITCH_MANAGEMENT;
        let (here, there) = (self.port(out)?, self.peer(out)?);
        let peer = self.port(there)?;
        let up = here.physical_state == PhysicalState::LinkUp
            && peer.physical_state == PhysicalState::LinkUp;
        let open = match travelling {
            Travelling::Smps => here.state != PortState::Down && peer.state != PortState::Down,
            Travelling::Data => {
                here.state == PortState::Active
                    && matches!(peer.state, PortState::Active | PortState::Armed)
            }
        };
        (!is_port0 && up && open).then_some(there)
    }
}
