//! Ports that a program is about to use and that a subnet manager has yet to make active.

use emulated_hca::Endpoint;
use hca_api::{PhysicalState, PortState};
use ib_wire::PortNum;
use pf_context::PortReason;

use super::claims::split;
use super::program::{PORT, VfProgram};
use crate::serve::lab::Lab;

impl Lab {
    /// Returns the names of ports that a program under `--node NAME` is about to use and that are not active yet: the
    /// adapter's own, and that of the VF that the program would get. A port whose link is down, or that no subnet manager
    /// reaches, is left out, because nothing but an administrator makes it active.
    pub(in crate::serve) fn pending_ports(&self, name: &str) -> Vec<String> {
        let (node_name, number) = match self.inventory.node(name) {
            Some(_) => (name, None),
            None => split(name),
        };
        let node = if node_name.is_empty() {
            let manager = self.inventory.manager();
            manager.map(|host| self.world().host(host.id).node())
        } else {
            self.inventory.node(node_name)
        };
        let own = node.and_then(|node| self.inventory.fabric_node(node).map(|ports| (node, ports)));
        let own = own.into_iter().flat_map(|(node, ports)| {
            let numbers = (1..=ports.port_count()).map(PortNum);
            numbers.map(move |port| Endpoint { node, port })
        });
        let own = own.filter(|at| self.is_pending(*at));
        let own = own.map(|at| self.inventory.port_name(at));
        own.chain(self.pending_vf(node_name, number)).collect()
    }

    /// Returns `true` if a port is not active and a subnet manager will make it so.
    fn is_pending(&self, at: Endpoint) -> bool {
        let port = self.inventory.physical_port(at);
        port.is_some_and(|port| port.state != PortState::Active) && self.is_managed(at)
    }

    /// Returns `true` if the link of a port is up and a subnet manager reaches it.
    fn is_managed(&self, at: Endpoint) -> bool {
        let port = self.inventory.physical_port(at);
        port.is_some_and(|port| port.physical_state == PhysicalState::LinkUp)
            && self.reaches_manager(at)
    }

    /// Returns the name of the VF that a program would get if its port is not active, but will be.
    fn pending_vf(&self, node_name: &str, number: Option<u16>) -> Option<String> {
        let world = self.world();
        let wanted = self.inventory.node(node_name);
        let mut offered = self.process_vfs.iter();
        let (offered, vf) = offered.find_map(|(at, offered)| {
            let vf = offered.vf?;
            let is_wanted = node_name.is_empty() || wanted == Some(world.host(offered.host).node());
            let is_named = number.is_none_or(|number| number == vf.get());
            let program = world.consumer::<VfProgram>(*at);
            let is_free = program.is_some_and(|program| program.device.is_free());
            (is_wanted && is_named && is_free).then_some((offered, vf))
        })?;
        let host = world.host(offered.host);
        let ports = host.context()?.ports();
        let reason = ports.get(PORT.index().checked_sub(1)?)?.reason(vf)?;
        let waits = match reason {
            PortReason::PhysicalDown
            | PortReason::WaitingForSa
            | PortReason::WaitingForHardware { obstacle: None } => true,
            PortReason::Up
            | PortReason::AdminDown
            | PortReason::NoGuidRequested
            | PortReason::Declined { .. }
            | PortReason::WaitingForHardware { obstacle: Some(_) }
            | PortReason::NotSupported
            | PortReason::TableTooSmall => false,
        };
        let at = Endpoint {
            node: host.node(),
            port: PORT,
        };
        (waits && self.is_managed(at)).then(|| offered.description())
    }
}
