//! Forwarding tables: computing them for a topology and finding what a switch still lacks.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::smp::{LinearForwardingTable, MulticastForwardingTable, PortMask};
use ib_wire::{Guid, Lid, PortNum};
use zerocopy::FromBytes;
use zerocopy::network_endian::U16;

use crate::routing::{Destination, GroupMember, SwitchIndex, multicast_tree, unicast_tables};
use crate::topology::{NodeId, PortId, Topology};

/// Members of a multicast group as the manager routes them: port GUID, and whether it receives.
pub(super) type Members = BTreeMap<Guid, bool>;

/// What a switch is known to hold. A block that is absent is unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct Programmed {
    /// Linear forwarding table by block.
    pub(super) lft: BTreeMap<usize, LinearForwardingTable>,
    /// Multicast forwarding table by position and block.
    pub(super) mft: BTreeMap<(u8, u16), MulticastForwardingTable>,
}

/// Computes the linear forwarding tables of all switches.
pub(super) fn route_unicast(topology: &mut Topology) {
    let destinations = destinations(topology);
    let tables = unicast_tables(topology.graph(), &destinations);
    let switches: Vec<NodeId> = topology.switches().to_vec();
    for (node, lft) in switches.into_iter().zip(tables) {
        if let Some(switch) = &mut topology.node_mut(node).switch {
            switch.lft = lft;
        }
    }
}

/// All end ports: first those behind each switch, side by side, then the management ports. The order
/// is what balances the tables.
fn destinations(topology: &Topology) -> Vec<Destination> {
    let mut all: Vec<Destination> = topology
        .end_ports()
        .filter(|(_, port)| port.info.lid.is_unicast())
        .filter_map(|(id, port)| {
            let (switch, at) = topology.attachment(id)?;
            let lids = 1 << port.info.lmc().get();
            Some(Destination {
                switch,
                port: at,
                base_lid: port.info.lid,
                lids,
            })
        })
        .collect();
    all.sort_by_key(|d| (d.port == PortNum::SWITCH_MANAGEMENT, d.switch, d.port));
    all
}

/// Computes the tree of one group and writes it to the switches' tables. Without members the group
/// is taken out.
pub(super) fn route_group(topology: &mut Topology, mlid: Lid, members: &Members) {
    let attached: Vec<GroupMember> = members
        .iter()
        .filter_map(|(guid, receives)| {
            let (switch, port) = topology.attachment(topology.port_by_guid(*guid)?)?;
            Some(GroupMember {
                switch,
                port,
                receives: *receives,
            })
        })
        .collect();
    let tree = multicast_tree(topology.graph(), mlid, &attached);
    let masks: BTreeMap<SwitchIndex, PortMask> = tree.switches.into_iter().collect();
    let switches: Vec<NodeId> = topology.switches().to_vec();
    for (index, node) in switches.into_iter().enumerate() {
        let Some(switch) = &mut topology.node_mut(node).switch else {
            continue;
        };
        match masks.get(&SwitchIndex(index)) {
            Some(mask) if !mask.is_empty() => {
                switch.mft.insert(mlid, *mask);
            }
            _ => {
                switch.mft.remove(&mlid);
            }
        }
    }
}

/// The block of 64 entries of a switch's linear table; `None` beyond its end.
pub(crate) fn lft_block(
    topology: &Topology,
    switch: NodeId,
    block: usize,
) -> Option<LinearForwardingTable> {
    let entries = topology
        .node(switch)
        .switch
        .as_ref()?
        .lft
        .blocks()
        .get(block)?;
    LinearForwardingTable::read_from_bytes(entries).ok()
}

/// How many blocks of the linear table are in use.
pub(crate) fn lft_blocks(topology: &Topology, switch: NodeId) -> usize {
    topology
        .node(switch)
        .switch
        .as_ref()
        .map_or(0, |s| s.lft.blocks().len())
}

/// The block and index of a multicast LID.
pub(crate) fn mft_place(mlid: Lid) -> (u16, usize) {
    let offset = mlid.get() - Lid::FIRST_MULTICAST.get();
    let entries = 32;
    (offset / entries, usize::from(offset % entries))
}

/// A block of 32 entries of a switch's multicast table.
pub(crate) fn mft_block(
    mft: &BTreeMap<Lid, PortMask>,
    position: u8,
    block: u16,
) -> MulticastForwardingTable {
    let mut table = MulticastForwardingTable::default();
    let first = Lid::new(
        Lid::FIRST_MULTICAST
            .get()
            .saturating_add(block.saturating_mul(32)),
    );
    for (mlid, mask) in mft.range(first..) {
        let (at, index) = mft_place(*mlid);
        if at != block {
            break;
        }
        table.masks[index] = U16::new(mask.position(position));
    }
    table
}

/// The last position of a switch's multicast table that has ports.
pub(crate) fn last_position(topology: &Topology, switch: NodeId) -> u8 {
    topology.node(switch).info.num_ports / 16
}

/// The linear blocks that a switch lacks.
pub(super) fn missing_lft(
    topology: &Topology,
    switch: NodeId,
    programmed: &Programmed,
) -> Vec<(usize, LinearForwardingTable)> {
    (0..lft_blocks(topology, switch))
        .filter_map(|block| Some((block, lft_block(topology, switch, block)?)))
        .filter(|(block, table)| programmed.lft.get(block) != Some(table))
        .collect()
}

/// The multicast blocks that a switch lacks: those with groups, and those that had some.
pub(super) fn missing_mft(
    topology: &Topology,
    switch: NodeId,
    programmed: &Programmed,
) -> Vec<((u8, u16), MulticastForwardingTable)> {
    let Some(state) = &topology.node(switch).switch else {
        return Vec::new();
    };
    let mut blocks: BTreeSet<u16> = state.mft.keys().map(|mlid| mft_place(*mlid).0).collect();
    blocks.extend(programmed.mft.keys().map(|(_, block)| *block));
    let mut missing = Vec::new();
    for block in blocks {
        for position in 0..=last_position(topology, switch) {
            let table = mft_block(&state.mft, position, block);
            if programmed.mft.get(&(position, block)) != Some(&table) {
                missing.push(((position, block), table));
            }
        }
    }
    missing
}

/// The last multicast LID that every switch can forward.
pub(super) fn last_mlid(topology: &Topology) -> Lid {
    let smallest = topology
        .switches()
        .iter()
        .filter_map(|node| topology.node(*node).switch.as_ref())
        .map(|switch| switch.info.multicast_fdb_cap.get())
        .min();
    let first = Lid::FIRST_MULTICAST.get();
    let last = smallest.map_or(Lid::LAST_MULTICAST.get(), |cap| {
        first
            .saturating_add(cap.saturating_sub(1))
            .min(Lid::LAST_MULTICAST.get())
    });
    Lid::new(last)
}

/// Ports that carry SMPs and are part of a known link.
pub(super) fn connected_ports(topology: &Topology) -> Vec<PortId> {
    topology
        .nodes()
        .flat_map(|(node, found)| {
            found
                .ports()
                .map(move |(port, state)| (PortId { node, port }, state))
        })
        .filter(|(id, port)| port.link_up() && topology.peer(*id).is_some())
        .map(|(id, _)| id)
        .collect()
}
