//! M_Keys of ports that their subnet manager does not know.

use std::collections::BTreeMap;

use ib_vtime::Instant;
use ib_wire::{MKey, PortNum};

use crate::commands;
use crate::fault::Fault;
use crate::shell::quoted;
use crate::snapshot::RECENT;
use crate::subnet::{NodeKind, PortAt, Subnet};

const SUMMARY: &str = "the subnet manager does not know the M_Key of a port that it must manage";

/// Returns the end ports that a subnet manager must manage for packets to pass between two: those, and all switches.
pub(crate) fn managed_between(subnet: &Subnet, at: PortAt, sm: PortAt) -> Vec<PortAt> {
    let nodes = (0..).zip(&subnet.nodes);
    let switches = nodes.filter(|(_, node)| node.kind == NodeKind::Switch);
    let switches = switches.map(|(node, _)| PortAt {
        node,
        port: PortNum::SWITCH_MANAGEMENT,
    });
    [at, sm].into_iter().chain(switches).collect()
}

/// Returns the M_Key of an end port, if it has one.
fn m_key(subnet: &Subnet, at: PortAt) -> Option<MKey> {
    let key = subnet.port(at).map(|port| port.m_key);
    key.filter(|key| *key != MKey::default())
}

/// Returns the fault that one of some end ports has an M_Key that its subnet manager does not know.
///
/// The manager's M_Key is taken to be the one that most end ports have.
pub(crate) fn foreign(subnet: &Subnet, ports: &[PortAt]) -> Option<Fault> {
    ports.iter().find(|at| m_key(subnet, **at).is_some())?;
    let mut known: BTreeMap<u64, usize> = BTreeMap::new();
    for (_, port) in subnet.end_ports() {
        *known.entry(port.m_key.get()).or_default() += 1;
    }
    let (common, _) = known.into_iter().max_by_key(|(_, ports)| *ports)?;
    let is_foreign = |at: &PortAt| m_key(subnet, *at).is_some_and(|key| key.get() != common);
    let foreign = *ports.iter().find(|at| is_foreign(at))?;
    let port = subnet.port(foreign)?;
    let fault = Fault::new("foreign_m_key", SUMMARY)
        .seen(format!(
            "the M_Key of {} is 0x{:016x}, that of most other ports 0x{common:016x}",
            subnet.port_name(foreign),
            port.m_key.get()
        ))
        .seen(format!(
            "{} SMPs with another M_Key were refused there",
            port.m_key_violations
        ));
    Some(fault.next(commands::port(
        subnet,
        foreign,
        &format!("mkey 0x{common:x}"),
    )))
}

/// Returns the fault that one of some end ports has lately refused SMPs for their M_Key, while the SA is silent or a port is not
/// managed: the key is that of a subnet manager that is gone, whichever ports have it.
pub(crate) fn refused(subnet: &Subnet, taken: Instant, ports: &[PortAt]) -> Option<Fault> {
    let (at, key, packets, ago) = ports.iter().find_map(|at| {
        let key = m_key(subnet, *at)?;
        let refused = subnet.port(*at)?.refused_smps?;
        let ago = taken.saturating_duration_since(refused.last);
        (ago <= RECENT).then_some((*at, key, refused.packets, ago))
    })?;
    let fault = Fault::new("foreign_m_key", SUMMARY)
        .seen(format!(
            "the M_Key of {} is 0x{:016x}",
            subnet.port_name(at),
            key.get()
        ))
        .seen(format!(
            "{packets} SMPs with another M_Key were refused there, the last {:.1} s ago",
            ago.as_secs_f64()
        ));
    Some(fault.next(clear(subnet, key)).remark(format_args!(
        "or start the subnet manager with that M_Key (OpenSM: m_key 0x{:016x} in the file of -F)",
        key.get()
    )))
}

/// Returns the command that takes an M_Key from all ports that have it.
fn clear(subnet: &Subnet, key: MKey) -> String {
    let mut nodes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (at, port) in subnet.end_ports().filter(|(_, port)| port.m_key == key) {
        let (by, port) = (commands::port_options(subnet, at), port.number);
        let change = format!("ibportstate{by} -D 0 {port} mkey 0");
        let node = quoted(subnet.node_name(at.node));
        nodes.entry(change).or_default().push(node);
    }
    let loops = nodes.into_iter().map(|(change, nodes)| {
        let nodes = nodes.join(" ");
        format!("for node in {nodes}; do vhca run --node \"$node\" -- {change}; done")
    });
    loops.collect::<Vec<_>>().join("; ")
}
