//! Commands of remedies.

use ib_wire::{MKey, PortNum};

use crate::shell::quoted;
use crate::subnet::{PortAt, Subnet};

/// Returns the name of a VF: `HOST/N`.
pub(crate) fn vf_name(host: &str, vf: u16) -> String {
    format!("{host}/{vf}")
}

/// Returns the command that changes a VF's port.
pub(crate) fn set_vf(host: &str, vf: u16, port: PortNum) -> String {
    let name = format!("vhca set vf {}", quoted(&vf_name(host, vf)));
    match port {
        PortNum(1) => name,
        PortNum(port) => format!("{name} --port {port}"),
    }
}

/// Returns `true` if a subnet manager is the service's own. Where the way to it is not known, it is taken for the only one.
fn is_embedded(subnet: &Subnet, sm: Option<PortAt>) -> bool {
    subnet.embedded.is_some() && (sm.is_none() || sm == subnet.embedded)
}

/// Returns the command that has the subnet manager near a port find out and mend how ports are.
pub(crate) fn sweep(subnet: &Subnet, at: PortAt) -> String {
    let sm = subnet.manager_near(at);
    if is_embedded(subnet, sm) {
        return "vhca sm sweep".to_owned();
    }
    match sm.and_then(|sm| subnet.managers.get(&sm)) {
        Some(pid) => format!("kill -HUP {pid} # OpenSM then sweeps"),
        None => "have the subnet manager sweep (OpenSM: kill -HUP PID)".to_owned(),
    }
}

/// Returns the command that has the subnet manager near a port write all forwarding tables again.
pub(crate) fn route_anew(subnet: &Subnet, at: PortAt) -> String {
    let sm = subnet.manager_near(at);
    if is_embedded(subnet, sm) {
        return "vhca sm sweep".to_owned();
    }
    let name = sm.map_or_else(String::new, |sm| format!(" on {}", subnet.port_name(sm)));
    format!("start the subnet manager{name} anew: OpenSM writes forwarding tables again only then")
}

/// Returns the command that changes a port by `ibportstate` on the port's node itself.
pub(crate) fn port(subnet: &Subnet, at: PortAt, change: &str) -> String {
    let (node, number) = (quoted(subnet.node_name(at.node)), at.port);
    let by = port_options(subnet, at);
    format!("vhca run --node {node} -- ibportstate{by} -D 0 {number} {change}")
}

/// Returns the options with which `ibportstate` changes a port on the port's node itself.
pub(crate) fn port_options(subnet: &Subnet, at: PortAt) -> String {
    let end = subnet.end_port(at);
    // A port of an adapter that is down has to be named, or libibumad opens none.
    let by = match end.port {
        PortNum::SWITCH_MANAGEMENT => String::new(),
        port => format!(" -C vhca0 -P {port}"),
    };
    match subnet.port(end).map(|port| port.m_key) {
        Some(key) if key != MKey::default() => format!("{by} -y 0x{:x}", key.get()),
        _ => by,
    }
}
