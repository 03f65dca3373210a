//! Faults that the fabric shows: links that are down, and ports without a manager.

use std::collections::{BTreeSet, VecDeque};

use emulated_hca::{Endpoint, NodeId, NodeKind, PhysicalPort};
use hca_api::PhysicalState;
use ib_wire::{Lid, MKey, PortNum};

use super::Fault;
use crate::serve::Lab;
use crate::shell::quoted;
use vhca::world::HostPortId;

/// Unicast LIDs of a subnet (IBA 4.1.3): 0x0001 to 0xbfff.
const UNICAST_LIDS: u32 = 0xbfff;

impl Lab {
    /// The physical port of a PF.
    pub(super) fn endpoint(&self, of: HostPortId) -> Endpoint {
        self.world().host(of.host).node().port(of.port.0)
    }

    /// The name of a port: `NODE/PORT`.
    pub(in crate::serve) fn port_name(&self, at: Endpoint) -> String {
        format!("{}/{}", self.node_name(at.node), at.port)
    }

    /// The name of a node.
    pub(in crate::serve) fn node_name(&self, node: NodeId) -> &str {
        let node = self.fabric().node(node);
        node.and_then(|node| node.description.as_str())
            .unwrap_or("?")
    }

    /// The end ports: of a switch, port 0.
    pub(in crate::serve) fn end_ports(&self) -> impl Iterator<Item = (Endpoint, &PhysicalPort)> {
        let fabric = self.fabric();
        fabric.nodes().flat_map(move |(id, kind)| {
            let ports = fabric.node(id).map_or(&[][..], |node| node.ports());
            let is_end = move |port: &&PhysicalPort| {
                kind == NodeKind::ChannelAdapter || port.number == PortNum::SWITCH_MANAGEMENT
            };
            ports
                .iter()
                .filter(is_end)
                .map(move |port| (id.port(port.number.0), port))
        })
    }

    /// The end port that has a LID.
    pub(super) fn owner(&self, lid: Lid) -> Option<Endpoint> {
        let mut ports = self.end_ports();
        let owner = ports.find(|(_, port)| lid != Lid::NONE && port.owns_lid(lid));
        owner.map(|(at, _)| at)
    }

    /// Returns what keeps the link of a port down, if it is down. A switch's port 0 has none.
    pub(super) fn link_fault(&self, at: Endpoint) -> Option<Fault> {
        let fabric = self.fabric();
        let is_port0 = fabric.node(at.node)?.kind() == NodeKind::Switch
            && at.port == PortNum::SWITCH_MANAGEMENT;
        let port = fabric.port(at).filter(|_| !is_port0)?;
        if port.physical_state == PhysicalState::LinkUp {
            return None;
        }
        let name = self.port_name(at);
        let Some(peer) = fabric.peer(at) else {
            return Some(
                Fault::new("no_cable", "nothing is plugged into the physical port")
                    .seen(format!("{name} has no link in the topology"))
                    .next("give the port a link in the topology file, and start the service anew"),
            );
        };
        let other = self.port_name(peer);
        if fabric.is_gateway(peer.node) {
            return Some(
                Fault::new("not_attached", "the simulator's node is not attached")
                    .seen(format!("{name} leads to {other}, which is not there"))
                    .next("start the simulator, or see its log; vhca attaches as soon as it can"),
            );
        }
        for end in [at, peer] {
            let disabled =
                fabric.port(end).map(|port| port.physical_state) == Some(PhysicalState::Disabled);
            if disabled {
                return Some(self.port_disabled(at, end));
            }
        }
        Some(
            Fault::new("link_down", "the physical link is down")
                .seen(format!("{name} is {:?}", port.physical_state))
                .seen(format!("its link leads to {other}"))
                .next(format!("vhca set link {} up", quoted(&name))),
        )
    }

    /// A port whose link is down because it, or the one at the other end, was disabled.
    fn port_disabled(&self, at: Endpoint, disabled: Endpoint) -> Fault {
        let name = self.port_name(disabled);
        let summary = "a management program has disabled the port at one end of the link";
        let fault = Fault::new("port_disabled", summary).seen(format!(
            "the link of {} is down, since {name} is disabled",
            self.port_name(at)
        ));
        // On the node itself: nothing passes the link.
        fault.next(self.port_command(disabled, "enable"))
    }

    /// The command that changes a port by `ibportstate` on the port's node itself.
    pub(super) fn port_command(&self, at: Endpoint, change: &str) -> String {
        let (node, port) = (quoted(self.node_name(at.node)), at.port);
        let by = self.port_options(at);
        format!("vhca run --node {node} -- ibportstate{by} -D 0 {port} {change}")
    }

    /// The options with which `ibportstate` changes a port on the port's node itself.
    pub(super) fn port_options(&self, at: Endpoint) -> String {
        let end = self.end_port(at);
        // A port of an adapter that is down has to be named, or libibumad opens none.
        let by = match end.port {
            PortNum::SWITCH_MANAGEMENT => String::new(),
            port => format!(" -C vhca0 -P {port}"),
        };
        match self.fabric().port(end).map(|port| port.m_key) {
            Some(key) if key != MKey::default() => format!("{by} -y 0x{:x}", key.get()),
            _ => by,
        }
    }

    /// The end port whose agent answers for a port: a switch's port 0, or the port itself.
    fn end_port(&self, at: Endpoint) -> Endpoint {
        let node = self.fabric().node(at.node);
        match node.map(|node| node.kind()) {
            Some(NodeKind::Switch) => at.node.port(PortNum::SWITCH_MANAGEMENT.0),
            _ => at,
        }
    }

    /// The end ports that SMPs reach from one over links that are up, itself included. Nothing passes an adapter.
    pub(super) fn reachable(&self, from: Endpoint) -> BTreeSet<Endpoint> {
        let fabric = self.fabric();
        let from = self.end_port(from);
        let (mut found, mut next) = (BTreeSet::from([from]), VecDeque::from([from]));
        while let Some(at) = next.pop_front() {
            let ports = fabric.node(at.node).map_or(&[][..], |node| node.ports());
            let is_switch = at.port == PortNum::SWITCH_MANAGEMENT;
            let up = ports.iter().filter(|port| {
                (is_switch || port.number == at.port)
                    && port.physical_state == PhysicalState::LinkUp
            });
            let peers = up.filter_map(|port| fabric.peer(at.node.port(port.number.0)));
            for peer in peers.map(|peer| self.end_port(peer)) {
                if found.insert(peer) {
                    next.push_back(peer);
                }
            }
        }
        found
    }

    /// Returns a link that is down between what is reachable from one end port and the rest, beyond which the other is.
    pub(super) fn cut_between(&self, at: Endpoint, far: Endpoint) -> Option<Fault> {
        let near = self.reachable(at);
        let beyond = self.reachable(far);
        if near.contains(&far) {
            return None;
        }
        let fabric = self.fabric();
        let mut ends = fabric.links().filter_map(|link| fabric.link_ends(link));
        let (one, _) = ends.find_map(|[a, b]| {
            let crosses = |a: Endpoint, b: Endpoint| {
                near.contains(&self.end_port(a)) && beyond.contains(&self.end_port(b))
            };
            (crosses(a, b).then_some((a, b))).or_else(|| crosses(b, a).then_some((b, a)))
        })?;
        self.link_fault(one)
    }

    /// Returns why no subnet manager has given a port a LID, or activated it, though its link is up.
    pub(super) fn why_not_managed(&self, at: Endpoint, has_lid: bool) -> Fault {
        let (code, summary) = match has_lid {
            false => (
                "no_sm",
                "no subnet manager has configured the physical port",
            ),
            true => (
                "port_not_active",
                "the subnet manager has not activated the port",
            ),
        };
        let fault = Fault::new(code, summary);
        if self.is_attached(at) {
            return fault
                .seen("the fabric is a simulator's")
                .next(self.start_a_manager(at));
        }
        let Some(sm) = self.manager_near(at) else {
            return match self.cut_from_manager(at) {
                Some(cut) => cut.called(code, summary),
                None => fault
                    .seen("no subnet manager runs where the port's packets get to (IsSM)")
                    .next(self.start_a_manager(at)),
            };
        };
        let managed = self.managed_between(at, sm);
        let foreign = self.foreign_m_key(&managed);
        if let Some(foreign) = foreign.or_else(|| self.refused_m_key(&managed)) {
            return foreign;
        }
        let fault = fault.seen(format!("a subnet manager runs on {}", self.port_name(sm)));
        if let Some(full) = self.lids_used_up().filter(|_| !has_lid) {
            return full;
        }
        fault.next(self.wake_the_manager(sm))
    }

    /// Returns the fault that the subnet has no LID left for a port without one.
    fn lids_used_up(&self) -> Option<Fault> {
        let mut used = 0;
        let mut lmc = 0;
        let mut without = 0_usize;
        for (at, port) in self.end_ports() {
            // A switch has one LID, whatever the LMC.
            if port.lid == Lid::NONE {
                without += 1;
            } else if at.port == PortNum::SWITCH_MANAGEMENT {
                used += 1;
            } else {
                used += 1_u32 << port.lmc.get();
                lmc = lmc.max(port.lmc.get());
            }
        }
        // LIDs of a port with an LMC begin at a multiple of their number, which leaves gaps.
        if used + 2 * (1_u32 << lmc) <= UNICAST_LIDS {
            return None;
        }
        let summary = "the subnet has no LID left for the port";
        Some(
            Fault::new("no_lid", summary)
                .seen(format!(
                    "{used} of {UNICAST_LIDS} unicast LIDs are in use, with an LMC of {lmc}"
                ))
                .seen(format!("{without} ports have none"))
                .next("use a smaller LMC (vhca serve --lmc 0, opensm -l 0), or take ports away"),
        )
    }
}
