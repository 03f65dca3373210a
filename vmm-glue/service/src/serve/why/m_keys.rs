//! M_Keys of ports that their subnet manager does not know.

use std::collections::BTreeMap;

use emulated_hca::{DropReason, Endpoint, NodeKind};
use ib_wire::{MKey, PortNum};

use super::Fault;
use super::hampered::RECENT;
use crate::serve::Lab;
use crate::shell::quoted;

const SUMMARY: &str = "the subnet manager does not know the M_Key of a port that it must manage";

impl Lab {
    /// The end ports that a subnet manager must manage for packets to pass between two: those, and all switches.
    pub(super) fn managed_between(&self, at: Endpoint, sm: Endpoint) -> Vec<Endpoint> {
        let nodes = self.fabric().nodes();
        let switches = nodes.filter(|(_, kind)| *kind == NodeKind::Switch);
        let switches = switches.map(|(id, _)| id.port(PortNum::SWITCH_MANAGEMENT.0));
        [at, sm].into_iter().chain(switches).collect()
    }

    /// The M_Key of an end port, if it has one.
    fn m_key(&self, at: Endpoint) -> Option<MKey> {
        let key = self.fabric().port(at).map(|port| port.m_key);
        key.filter(|key| *key != MKey::default())
    }

    /// Returns the fault that one of some end ports has an M_Key that its subnet manager does not know.
    ///
    /// The manager's M_Key is taken to be the one that most end ports have.
    pub(super) fn foreign_m_key(&self, ports: &[Endpoint]) -> Option<Fault> {
        ports.iter().find(|at| self.m_key(**at).is_some())?;
        let mut known: BTreeMap<u64, usize> = BTreeMap::new();
        for (_, port) in self.end_ports() {
            *known.entry(port.m_key.get()).or_default() += 1;
        }
        let (common, _) = known.into_iter().max_by_key(|(_, ports)| *ports)?;
        let is_foreign = |at: &Endpoint| self.m_key(*at).is_some_and(|key| key.get() != common);
        let foreign = *ports.iter().find(|at| is_foreign(at))?;
        let port = self.fabric().port(foreign)?;
        let fault = Fault::new("foreign_m_key", SUMMARY)
            .seen(format!(
                "the M_Key of {} is 0x{:016x}, that of most other ports 0x{common:016x}",
                self.port_name(foreign),
                port.m_key.get()
            ))
            .seen(format!(
                "{} SMPs with another M_Key were refused there",
                port.m_key_violations
            ));
        Some(fault.next(self.port_command(foreign, &format!("mkey 0x{common:x}"))))
    }

    /// Returns the fault that one of some end ports has lately refused SMPs for their M_Key, while the SA is silent or a
    /// port is not managed: the key is that of a subnet manager that is gone, whichever ports have it.
    pub(super) fn refused_m_key(&self, ports: &[Endpoint]) -> Option<Fault> {
        let now = self.world().now();
        let (at, key, packets, ago) = ports.iter().find_map(|at| {
            let key = self.m_key(*at)?;
            let mut drops = self.fabric().node(at.node)?.drops().iter();
            let refused = |port: PortNum, reason| port == at.port && reason == DropReason::BadMKey;
            let (.., dropped) = drops.find(|(port, _, reason, _)| refused(*port, *reason))?;
            let ago = now.saturating_duration_since(dropped.last);
            (ago <= RECENT).then_some((*at, key, dropped.packets, ago))
        })?;
        let fault = Fault::new("foreign_m_key", SUMMARY)
            .seen(format!(
                "the M_Key of {} is 0x{:016x}",
                self.port_name(at),
                key.get()
            ))
            .seen(format!(
                "{packets} SMPs with another M_Key were refused there, the last {:.1} s ago",
                ago.as_secs_f64()
            ));
        Some(fault.next(self.clear_m_key(key)).remark(format_args!(
            "or start the subnet manager with that M_Key (OpenSM: m_key 0x{:016x} in the file of -F)",
            key.get()
        )))
    }

    /// The command that takes an M_Key from all ports that have it.
    fn clear_m_key(&self, key: MKey) -> String {
        let mut nodes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (at, port) in self.end_ports().filter(|(_, port)| port.m_key == key) {
            let (by, port) = (self.port_options(at), port.number);
            let change = format!("ibportstate{by} -D 0 {port} mkey 0");
            let node = quoted(self.node_name(at.node));
            nodes.entry(change).or_default().push(node);
        }
        let loops = nodes.into_iter().map(|(change, nodes)| {
            let nodes = nodes.join(" ");
            format!("for node in {nodes}; do vhca run --node \"$node\" -- {change}; done")
        });
        loops.collect::<Vec<_>>().join("; ")
    }
}
