//! The nodes of a lab as the adapters that umad's programs see.

use emulated_hca::{Endpoint, NodeId, NodeKind, PhysicalPort, PortCounters};
use hca_api::{FunctionId, SpecialQp};
use ib_endpoint::{AgentEvent, AgentId, MadAgent};
use ib_wire::smp::NodeType;
use ib_wire::{Gid, GidIndex, PKey, PKeyIndex, PortNum};
use linux_abi::sysfs::Device;
use umad_link::sysfs::{Ca, CaPort};
use umad_link::{AdapterId, Adapters, PortId, Verbs, VerbsId};
use verbs_link::sysfs::device;

use vhca::world::HostFunction;
use vhca_receiver::ClientSocket;

use crate::credentials::of_peer;
use crate::serve::lab::Lab;
use crate::serve::verbs::claims::{hw_counters, split};

/// The nodes that somebody asked for, in the order of their numbers as adapters.
#[derive(Debug, Default)]
pub(super) struct KnownNodes(Vec<NodeId>);

impl KnownNodes {
    fn number(&mut self, node: NodeId) -> Option<AdapterId> {
        let index = self.0.iter().position(|known| *known == node);
        let index = index.unwrap_or_else(|| {
            self.0.push(node);
            self.0.len() - 1
        });
        u32::try_from(index).ok().map(AdapterId)
    }

    fn node(&self, adapter: AdapterId) -> Option<NodeId> {
        self.0.get(usize::try_from(adapter.0).ok()?).copied()
    }
}

/// The VFs that programs saw, in the order of their numbers as devices.
#[derive(Debug, Default)]
pub(super) struct KnownVfs(Vec<HostFunction>);

impl KnownVfs {
    fn number(&mut self, at: HostFunction) -> Option<VerbsId> {
        let index = self.0.iter().position(|known| *known == at);
        let index = index.unwrap_or_else(|| {
            self.0.push(at);
            self.0.len() - 1
        });
        u32::try_from(index).ok().map(VerbsId)
    }
}

/// A lab, lent for a call.
#[derive(Debug)]
pub(super) struct LabAdapters<'l> {
    pub(super) lab: &'l mut Lab,
    pub(super) known: &'l mut KnownNodes,
    pub(super) vfs: &'l mut KnownVfs,
    /// The connection of the program for which the lab is lent, if it is for one.
    pub(super) peer: Option<&'l ClientSocket>,
}

impl LabAdapters<'_> {
    fn endpoint(&self, port: PortId) -> Option<Endpoint> {
        Some(Endpoint {
            node: self.known.node(port.adapter)?,
            port: port.port,
        })
    }
}

impl Adapters for LabAdapters<'_> {
    fn find(&mut self, name: &str) -> Option<AdapterId> {
        let node = if name.is_empty() {
            let world = self.lab.world();
            self.lab
                .inventory
                .manager()
                .map(|host| world.host(host.id).node())
        } else {
            // A name may go on with the number of a VF, for programs on libibverbs.
            self.lab
                .inventory
                .node(name)
                .or_else(|| self.lab.inventory.node(split(name).0))
        };
        self.known.number(node?)
    }

    fn view(&mut self, adapter: AdapterId) -> Option<Ca> {
        let node = self.lab.inventory.fabric_node(self.known.node(adapter)?)?;
        let (node_type, numbers) = match node.kind() {
            NodeKind::ChannelAdapter => (NodeType::CA, 1..=node.port_count()),
            NodeKind::Switch => (NodeType::SWITCH, 0..=0),
        };
        let ports = numbers.filter_map(|number| node.port(PortNum(number)).map(view_of_port));
        Some(Ca {
            node_type,
            node_guid: node.node_guid,
            system_image_guid: node.system_image_guid,
            description: String::from_utf8_lossy(node.description.trimmed()).into_owned(),
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
            revision: node.revision,
            device_id: node.device_id,
            ports: ports.collect(),
        })
    }

    fn verbs(&mut self, adapters: &str) -> Option<Verbs> {
        if !self.lab.has_program_vfs() {
            return None;
        }
        let pid = self.peer.and_then(|peer| of_peer(peer).ok()?.pid);
        let node = adapters.split(',').next().unwrap_or_default().trim();
        let at = self.lab.shown_vf(node, pid);
        Some(Verbs {
            device: at.and_then(|at| self.vfs.number(at)),
            is_adapter: at.is_some_and(|at| at.function == FunctionId::PF),
        })
    }

    fn verbs_device(&mut self, id: VerbsId, name: String) -> Option<Device> {
        let at = *self.vfs.0.get(usize::try_from(id.0).ok()?)?;
        let mut view = self.lab.device_view(at, &name)?;
        let connections = self.lab.connections_of(at)?;
        let node = self.lab.world().host(at.host).node();
        let node = self.lab.inventory.fabric_node(node)?;
        for port in &mut view.ports {
            let counters = node.port(port.number).map(|port| counters(&port.counters));
            port.counters = counters.unwrap_or_default();
            port.hw_counters = hw_counters(&connections);
        }
        Some(device(&view))
    }

    fn pending_ports(&mut self, name: &str) -> Vec<String> {
        self.lab.pending_ports(name)
    }

    fn agent(&mut self, port: PortId, qp: SpecialQp) -> Option<&mut MadAgent> {
        let at = self.endpoint(port)?;
        let world = self.lab.world_mut();
        if qp == SpecialQp::Smi {
            // Refused while the PF context has QP0 for its VFs: then there is none for programs.
            world.open_qp0(at).ok()?;
        }
        world.port_agents_mut(at)?.on(qp)
    }

    fn poll_event(&mut self, port: PortId, qp: SpecialQp, agent: AgentId) -> Option<AgentEvent> {
        let at = self.endpoint(port)?;
        self.lab.world_mut().poll_agent_event(at, qp, agent)
    }

    fn set_is_sm(&mut self, port: PortId, is_sm: bool) -> bool {
        let Some(at) = self.endpoint(port) else {
            return false;
        };
        let peer = self.peer.and_then(|peer| of_peer(peer).ok()?.pid);
        match peer.filter(|_| is_sm) {
            Some(pid) => self.lab.managers.insert(at, pid),
            None => self.lab.managers.remove(&at),
        };
        self.lab.world_mut().set_is_sm(at, is_sm).is_ok()
    }
}

fn view_of_port(port: &PhysicalPort) -> CaPort {
    let gids = (0..port.guid_cap).map(|index| port.gid(GidIndex(index)).unwrap_or(Gid::NONE));
    let pkeys = (0..port.pkey_cap).map(|index| {
        let pkey = port.pkey(PKeyIndex(index));
        pkey.unwrap_or(PKey::INVALID)
    });
    CaPort {
        number: port.number,
        info: port.port_info(),
        gids: gids.collect(),
        pkeys: pkeys.collect(),
        counters: counters(&port.counters),
    }
}

/// Returns counters of a port by the names of their files (`pma_attrs`, `pma_attrs_ext`).
fn counters(port: &PortCounters) -> Vec<(&'static str, u64)> {
    vec![
        ("symbol_error", port.symbol_errors),
        ("link_error_recovery", port.link_error_recoveries),
        ("link_downed", port.link_downed),
        ("port_rcv_errors", port.rcv_errors),
        (
            "port_rcv_remote_physical_errors",
            port.rcv_remote_physical_errors,
        ),
        ("port_rcv_switch_relay_errors", port.rcv_switch_relay_errors),
        ("port_xmit_discards", port.xmit_discards),
        ("port_xmit_constraint_errors", port.xmit_constraint_errors),
        ("port_rcv_constraint_errors", port.rcv_constraint_errors),
        (
            "local_link_integrity_errors",
            port.local_link_integrity_errors,
        ),
        (
            "excessive_buffer_overrun_errors",
            port.excessive_buffer_overruns,
        ),
        ("VL15_dropped", port.vl15_dropped),
        ("port_xmit_data", port.xmit_data),
        ("port_rcv_data", port.rcv_data),
        ("port_xmit_packets", port.xmit_packets),
        ("port_rcv_packets", port.rcv_packets),
        ("port_xmit_wait", port.xmit_wait),
        ("unicast_xmit_packets", port.unicast_xmit_packets),
        ("unicast_rcv_packets", port.unicast_rcv_packets),
        ("multicast_xmit_packets", port.multicast_xmit_packets),
        ("multicast_rcv_packets", port.multicast_rcv_packets),
    ]
}
