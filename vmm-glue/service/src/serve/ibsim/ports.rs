//! The ports of a lab as the server of the protocol uses them.

use std::collections::BTreeMap;
use std::fmt;

use emulated_hca::{Endpoint, NodeKind, Travelling};
use hca_api::{LocalMad, MadView, SourceAddress, SpecialQp};
use ib_endpoint::{AgentEvent, AgentId, MadAddress, Message};
use ib_wire::mad::{Mad, MgmtClass};
use ib_wire::smp::DirectedRouteSmp;
use ib_wire::{Lid, Qpn};
use ibsim_link::{Asker, Ports, Smi};

use crate::serve::lab::Lab;
use vhca::LogLimit;

/// The raw client on the agents of a port.
#[derive(Clone, Copy, Debug)]
struct RawClient {
    gsi: AgentId,
    /// `None` if QP0 belongs to somebody else.
    smi: Option<AgentId>,
}

/// The ports that the server has taken into use.
#[derive(Debug, Default)]
pub(super) struct RawClients {
    clients: BTreeMap<Endpoint, RawClient>,
    /// What clients cause to be logged.
    log: LogLimit,
}

/// The ports of a lab.
#[derive(Debug)]
pub(super) struct LabPorts<'l> {
    lab: &'l mut Lab,
    raw: &'l mut RawClients,
}

impl<'l> LabPorts<'l> {
    pub(super) const fn new(lab: &'l mut Lab, raw: &'l mut RawClients) -> Self {
        Self { lab, raw }
    }

    /// Logs what a client causes, unless there is too much of it.
    pub(super) fn complain(&mut self, what: impl fmt::Display) {
        let now = self.lab.world().now();
        self.raw.log.warn(now, format_args!("ibsim: {what}"));
    }

    /// Port 1 of an adapter, port 0 of a switch. Topology files name nodes by their GUIDs as `H-…` and
    /// `S-…`.
    fn first_port(&self, name: &str) -> Option<Endpoint> {
        let by_guid = || {
            let digits = name
                .strip_prefix("H-")
                .or_else(|| name.strip_prefix("S-"))?;
            self.lab.inventory.node(&format!("0x{digits}"))
        };
        let node = self.lab.inventory.node(name).or_else(by_guid)?;
        Some(match self.lab.inventory.fabric_node(node)?.kind() {
            NodeKind::Switch => node.port(0),
            NodeKind::ChannelAdapter => node.port(1),
        })
    }

    fn event(&mut self, port: Endpoint) -> Option<(Qpn, AgentEvent)> {
        let client = self.raw.clients.get(&port)?;
        let world = self.lab.world_mut();
        if let Some(agent) = client.smi
            && let Some(event) = world.poll_agent_event(port, SpecialQp::Smi, agent)
        {
            return Some((Qpn::SMI, event));
        }
        let event = world.poll_agent_event(port, SpecialQp::Gsi, client.gsi)?;
        Some((Qpn::GSI, event))
    }
}

impl Ports for LabPorts<'_> {
    type Port = Endpoint;

    fn find(&self, name: &[u8]) -> Option<Endpoint> {
        let name = core::str::from_utf8(name).ok()?;
        if name.is_empty() {
            let (node, _) = self.lab.world().fabric().nodes().next()?;
            return Some(node.port(1));
        }
        self.first_port(name).or_else(|| {
            let (name, port) = name.rsplit_once(':')?;
            let at = self.first_port(name)?.node.port(port.parse().ok()?);
            self.lab.inventory.physical_port(at).map(|_| at)
        })
    }

    fn open(&mut self, port: Endpoint) -> Option<Smi> {
        let world = self.lab.world_mut();
        let is_open = world.open_qp0(port).is_ok();
        let agents = world.port_agents_mut(port)?;
        let gsi = agents.gsi.register_raw().ok()?;
        let smi = agents.smi.filter(|_| is_open);
        let smi = smi.and_then(|smi| smi.register_raw().ok());
        self.raw.clients.insert(port, RawClient { gsi, smi });
        Some(if smi.is_some() { Smi::Open } else { Smi::Taken })
    }

    fn close(&mut self, port: Endpoint) {
        let Some(client) = self.raw.clients.remove(&port) else {
            return;
        };
        if let Some(agents) = self.lab.world_mut().port_agents_mut(port) {
            agents.gsi.unregister(client.gsi);
            if let (Some(smi), Some(agent)) = (agents.smi, client.smi) {
                smi.unregister(agent);
            }
        }
    }

    fn lid(&self, port: Endpoint) -> Lid {
        let port = self.lab.inventory.physical_port(port);
        port.map_or(Lid::NONE, |port| port.lid)
    }

    fn ask_own_agent(&mut self, port: Endpoint, asker: Asker, smp: &Mad) -> Option<Mad> {
        let view = match asker {
            Asker::Driver => MadView::Host,
            Asker::Program => MadView::Network(SourceAddress::local(port.port)),
        };
        match self
            .lab
            .world_mut()
            .fabric_mut()
            .process_local_mad(port, &view, smp)
        {
            LocalMad::Reply(reply) => Some(reply),
            LocalMad::Consumed | LocalMad::NotHandled => None,
        }
    }

    fn set_is_sm(&mut self, port: Endpoint, is_sm: bool) {
        if let Err(error) = self.lab.world_mut().set_is_sm(port, is_sm) {
            self.complain(format_args!("cannot set IsSM: {error}"));
        }
    }

    fn reaches(&self, port: Endpoint, dlid: Lid, mad: &Mad) -> bool {
        let fabric = self.lab.world().fabric();
        let class = mad.header.mgmt_class;
        if class == MgmtClass::SUBN_DIRECTED_ROUTE && dlid == Lid::PERMISSIVE {
            let path = mad.view::<DirectedRouteSmp>().path();
            return path.is_some_and(|path| fabric.trace_path(port, path).is_some());
        }
        let travelling = if class.is_smp() {
            Travelling::Smps
        } else {
            Travelling::Data
        };
        dlid.is_unicast() && fabric.trace_lid(port, dlid, travelling).is_some()
    }

    fn send(&mut self, port: Endpoint, to: &MadAddress, mad: &Mad) -> bool {
        let Some(client) = self.raw.clients.get(&port).copied() else {
            return false;
        };
        let (special, agent) = if mad.header.mgmt_class.is_smp() {
            (SpecialQp::Smi, client.smi)
        } else {
            (SpecialQp::Gsi, Some(client.gsi))
        };
        let agents = self.lab.world_mut().port_agents_mut(port);
        let mads = agents.and_then(|agents| agents.on(special));
        match mads.zip(agent) {
            Some((mads, agent)) => mads.send_raw(agent, *to, *mad).is_ok(),
            None => false,
        }
    }

    fn receive(&mut self, port: Endpoint) -> Option<(Qpn, MadAddress, Message)> {
        loop {
            let (qpn, event) = self.event(port)?;
            if let AgentEvent::Request { from, message, .. } = event {
                return Some((qpn, from, message));
            }
        }
    }

    fn decline(&mut self, port: Endpoint, qpn: Qpn, from: &MadAddress, mad: &Mad) {
        let special = if qpn == Qpn::SMI {
            SpecialQp::Smi
        } else {
            SpecialQp::Gsi
        };
        let agents = self.lab.world_mut().port_agents_mut(port);
        if let Some(mads) = agents.and_then(|agents| agents.on(special)) {
            mads.decline_raw(from, mad);
        }
    }
}
