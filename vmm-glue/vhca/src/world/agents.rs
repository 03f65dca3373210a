//! The ports of a world as programs outside use them: QP0 and QP1 of any end port.
//!
//! A program registers with the port's MAD agents beside the software that the world runs there. Its
//! registrations are [apart](ib_endpoint::Registration::apart): their events wait until the program
//! takes them, and the world's own software never sees them.

use emulated_hca::{Endpoint, NodeId, NodeKind};
use hca_api::{FunctionId, Hca, HcaError, PortModify, SpecialQp};
use ib_endpoint::{AgentEvent, AgentId, MadAgent, MadAgentConfig};
use ib_wire::PortNum;
use ib_wire::smp::CapabilityMask;

use super::switch::SwitchSoftware;
use super::{Host, HostId, HostPortId, World};

/// The MAD agents of a port.
#[derive(Debug)]
pub struct PortAgents<'w> {
    /// On QP1.
    pub gsi: &'w mut MadAgent,
    /// On QP0, once [`World::open_qp0`] has opened it.
    pub smi: Option<&'w mut MadAgent>,
}

impl<'w> PortAgents<'w> {
    /// The agent on one of the two queue pairs.
    #[must_use]
    pub fn on(self, special: SpecialQp) -> Option<&'w mut MadAgent> {
        match special {
            SpecialQp::Gsi => Some(self.gsi),
            SpecialQp::Smi => self.smi,
        }
    }
}

impl World {
    /// The host that has a node's adapter.
    #[must_use]
    pub fn host_at(&self, node: NodeId) -> Option<HostId> {
        self.host_at.get(&node).copied()
    }

    /// The MAD agents of a port, to be used: of a host's port, as the software on its physical
    /// function has it, or of a switch's port 0, whose software starts with this. What they want to
    /// send leaves with the next poll. `None` if there is no such port, or no software on it.
    pub fn port_agents_mut(&mut self, at: Endpoint) -> Option<PortAgents<'_>> {
        if let Some(port) = self.host_port(at) {
            self.wake(port.on());
        } else if self.is_port0(at) {
            self.start_switch(at.node).ok()?;
            self.wake_switch(at.node);
        }
        self.agents_mut(at)
    }

    /// The next event of a program's registration with an agent of a port; see
    /// [`MadAgent::poll_event_of`]. Unlike [`World::port_agents_mut`] this makes nobody busy.
    pub fn poll_agent_event(
        &mut self,
        at: Endpoint,
        special: SpecialQp,
        agent: AgentId,
    ) -> Option<AgentEvent> {
        self.agents_mut(at)?.on(special)?.poll_event_of(agent)
    }

    /// Opens the QP0 of a port for the programs that use it, unless it is open. A subnet manager of
    /// the world that runs on the port shares its own.
    ///
    /// # Errors
    /// [`HcaError::SpecialQpTaken`] if the port's PF context has QP0 for VFs;
    /// [`HcaError::InvalidPort`] if there is no such port, or no software on
    /// it.
    pub fn open_qp0(&mut self, at: Endpoint) -> Result<(), HcaError> {
        let Some(port) = self.host_port(at) else {
            return if self.is_port0(at) {
                self.start_switch(at.node)
            } else {
                Err(HcaError::InvalidPort)
            };
        };
        let config = MadAgentConfig::smi(self.derived_secret().seed());
        self.wake(port.on());
        let host = &mut self.hosts[port.host.0];
        if manages(host, port) {
            return Ok(());
        }
        let mut hca = self.adapters.function(host.node(), port.function)?;
        host.open_smi(&mut hca, port.port, config)
    }

    /// Sets or clears PortInfo:CapabilityMask.IsSM of a port, as the kernel's `issm` file does.
    ///
    /// # Errors
    /// [`HcaError::InvalidPort`] if there is no such port, or no software on it, and those of
    /// [`Hca::modify_port`].
    pub fn set_is_sm(&mut self, at: Endpoint, is_sm: bool) -> Result<(), HcaError> {
        let bit = CapabilityMask::IS_SM.get();
        let (set_capabilities, clear_capabilities) = if is_sm { (bit, 0) } else { (0, bit) };
        let Some(port) = self.host_port(at) else {
            return if self.is_port0(at) {
                self.adapters.fabric.change_port0_capabilities(
                    at.node,
                    set_capabilities,
                    clear_capabilities,
                )
            } else {
                Err(HcaError::InvalidPort)
            };
        };
        let mut hca = self.adapters.function(at.node, port.function)?;
        hca.modify_port(
            port.port,
            &PortModify {
                set_capabilities,
                clear_capabilities,
                ..PortModify::default()
            },
        )
    }

    fn agents_mut(&mut self, at: Endpoint) -> Option<PortAgents<'_>> {
        let (gsi, smi) = match self.host_port(at) {
            Some(port) => {
                let host = &mut self.hosts[port.host.0];
                if manages(host, port) {
                    let (gsi, manager) = host.gsi_and_manager(port.port)?;
                    (gsi, manager.smi(port.port))
                } else {
                    host.agents_mut(port.port)?
                }
            }
            None => self
                .switches
                .get_mut(&at.node)
                .filter(|_| at.port == PortNum::SWITCH_MANAGEMENT)?
                .agents(),
        };
        Some(PortAgents { gsi, smi })
    }

    fn host_port(&self, at: Endpoint) -> Option<HostPortId> {
        Some(HostPortId {
            host: self.host_at(at.node)?,
            function: FunctionId::PF,
            port: at.port,
        })
    }

    fn is_port0(&self, at: Endpoint) -> bool {
        let node = self.adapters.fabric.node(at.node);
        at.port == PortNum::SWITCH_MANAGEMENT
            && node.is_some_and(|node| node.kind() == NodeKind::Switch)
    }

    /// Starts the software of a switch's port 0, unless it runs.
    fn start_switch(&mut self, node: NodeId) -> Result<(), HcaError> {
        if !self.switches.contains_key(&node) {
            let secret = self.derived_secret();
            let software = SwitchSoftware::open(&mut self.adapters.fabric, node, secret)?;
            self.switches.insert(node, software);
        }
        Ok(())
    }
}

/// Whether a subnet manager of the world runs on a port of a host.
fn manages(host: &Host, port: HostPortId) -> bool {
    let manager = host.manager();
    port.function == FunctionId::PF && manager.is_some_and(|manager| manager.port() == port.port)
}

#[cfg(test)]
mod tests;
