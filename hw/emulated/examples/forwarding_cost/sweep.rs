//! What a subnet manager's first sweep of a large fabric costs the fabric.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;

use emulated_hca::hca::Device;
use emulated_hca::{Fabric, Node, Topology};
use ib_wire::smp::{
    LinearForwardingTable, NodeDescription, NodeInfo, NodeType, PKeyTable, PKeyTableModifier,
    PortInfo, PortInfoModifier, PortPhysState, PortState, SwitchInfo,
};
use ib_wire::{Guid, Lid, PortNum};

use crate::prober::{Bench, Host};
use crate::{cpu_time, resident};

const SWITCH_PORTS: u8 = 16;
const HOSTS: usize = 1000;

/// A node that the sweep found.
struct Found {
    info: NodeInfo,
    path: Vec<u8>,
    lid: Lid,
    /// Ports with a link, and PortInfo of each.
    ports: Vec<(u8, PortInfo)>,
}

/// Sweeps a fat tree as OpenSM does at its start, one SMP after the other, and prints the cost.
pub(crate) fn measure() -> Result<(), Box<dyn Error>> {
    let before = resident()?;
    let plan = Topology::fat_tree(SWITCH_PORTS, HOSTS);
    let mut seed = 0;
    let (fabric, built) = plan.build_on(Fabric::new(1), |fabric, config| {
        seed += 1;
        fabric.add_end_node(if seed == 1 {
            Host::sink(Node::channel_adapter(config))
        } else {
            Host::Adapter(Box::new(Device::new(config, seed)))
        })
    });
    let from = *built.hcas.first().ok_or("no host")?;
    let mut bench = Bench::new(fabric, from);
    bench.run();
    let start = cpu_time()?;
    let nodes = discover(&mut bench)?;
    let discovered = cpu_time()?;
    configure(&mut bench, &nodes)?;
    let end = cpu_time()?;
    println!(
        "sweep of {} nodes: {} SMPs over {} links, {:.1} ms of CPU time to discover and {:.1} ms to \
         configure: {:.2} us per SMP, {:.0} ns per link; {} KiB",
        nodes.len(),
        bench.smps,
        bench.links,
        (discovered - start) as f64 / 1e6,
        (end - discovered) as f64 / 1e6,
        (end - start) as f64 / 1e3 / bench.smps as f64,
        (end - start) as f64 / bench.links as f64,
        (resident()? - before) / 1024,
    );
    Ok(())
}

/// Finds every node by the shortest way, and reads it.
fn discover(bench: &mut Bench) -> Result<Vec<Found>, Box<dyn Error>> {
    let mut known: BTreeMap<Guid, usize> = BTreeMap::new();
    let mut nodes: Vec<Found> = Vec::new();
    let mut to_see = VecDeque::from([Vec::new()]);
    while let Some(path) = to_see.pop_front() {
        let info: NodeInfo = bench.ask(&path, 0, None)?;
        if known.insert(info.node_guid, nodes.len()).is_some() {
            continue;
        }
        let _: NodeDescription = bench.ask(&path, 0, None)?;
        let is_switch = info.node_type == NodeType::SWITCH;
        if is_switch {
            let _: SwitchInfo = bench.ask(&path, 0, None)?;
        }
        let mut ports = Vec::new();
        let all = if is_switch {
            0..=info.num_ports
        } else {
            info.local_port.0..=info.local_port.0
        };
        for number in all {
            let port: PortInfo = bench.ask(&path, u32::from(number), None)?;
            if port.phys_state() != PortPhysState::LINK_UP {
                continue;
            }
            let modifier = PKeyTableModifier {
                block: 0,
                port: u16::from(number),
            };
            let _: PKeyTable = bench.ask(&path, modifier.encode().get(), None)?;
            ports.push((number, port));
            if number != 0 && (is_switch || path.is_empty()) {
                let mut next = path.clone();
                next.push(number);
                to_see.push_back(next);
            }
        }
        let lid = Lid::new(u16::try_from(nodes.len() + 1)?);
        nodes.push(Found {
            info,
            path,
            lid,
            ports,
        });
    }
    Ok(nodes)
}

/// Gives LIDs, tables and states to all.
fn configure(bench: &mut Bench, nodes: &[Found]) -> Result<(), Box<dyn Error>> {
    for node in nodes {
        let own = if node.info.node_type == NodeType::SWITCH {
            0
        } else {
            node.info.local_port.0
        };
        set_ports(bench, node, |number, info| {
            info.set_port_state(PortState::NO_CHANGE);
            number == own
        })?;
    }
    let blocks = u32::try_from(nodes.len() / LinearForwardingTable::ENTRIES + 1)?;
    for node in nodes {
        if node.info.node_type != NodeType::SWITCH {
            continue;
        }
        let mut info: SwitchInfo = bench.ask(&node.path, 0, None)?;
        info.linear_fdb_top = Lid::new(u16::try_from(nodes.len())?);
        bench.ask(&node.path, 0, Some(info))?;
        for block in 0..blocks {
            let table = LinearForwardingTable {
                ports: [PortNum(1); LinearForwardingTable::ENTRIES],
            };
            bench.ask(&node.path, block, Some(table))?;
        }
    }
    for state in [PortState::NO_CHANGE, PortState::ARMED, PortState::ACTIVE] {
        for node in nodes {
            set_ports(bench, node, |number, info| {
                info.set_port_state(state);
                number != 0
            })?;
        }
    }
    Ok(())
}

/// Sets PortInfo of those ports of a node that `change` says.
fn set_ports(
    bench: &mut Bench,
    node: &Found,
    change: impl Fn(u8, &mut PortInfo) -> bool,
) -> Result<(), Box<dyn Error>> {
    for (number, port) in &node.ports {
        let mut info = *port;
        info.lid = node.lid;
        info.master_sm_lid = Lid::new(1);
        info.set_neighbor_mtu(info.mtu_cap());
        info.set_phys_state(PortPhysState::NO_CHANGE);
        if change(*number, &mut info) {
            let modifier = PortInfoModifier {
                port: PortNum(*number),
                extended_speeds: true,
            };
            bench.ask(&node.path, modifier.encode().get(), Some(info))?;
        }
    }
    Ok(())
}
