//! Linear forwarding tables by minimal hops, with the load spread over equal ports.

use ib_wire::{Lid, PortNum};

use super::graph::{SwitchGraph, SwitchIndex};

/// The forwarding table entry of a LID that has no path (IBA 14.2.5.10).
pub const NO_PATH: u8 = 255;

/// Entries in one LinearForwardingTable attribute.
const BLOCK: usize = 64;

/// A port that LIDs are routed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The switch that the port hangs on, or that the port is the management port of.
    pub switch: SwitchIndex,
    /// The switch's port that leads to it: 0 for the management port.
    pub port: PortNum,
    /// The port's first LID.
    pub base_lid: Lid,
    /// How many LIDs follow each other: 2^LMC.
    pub lids: u16,
}

/// A linear forwarding table: for each LID the port by which packets leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lft {
    /// Whole blocks of 64 entries.
    entries: Vec<u8>,
}

impl Lft {
    /// The port for a LID, `None` if there is no path.
    #[must_use]
    pub fn port(&self, lid: Lid) -> Option<PortNum> {
        let port = *self.entries.get(lid.index())?;
        (port != NO_PATH).then_some(PortNum(port))
    }

    /// The 64-entry blocks, as LinearForwardingTable attributes carry them.
    #[must_use]
    pub fn blocks(&self) -> &[[u8; BLOCK]] {
        self.entries.as_chunks().0
    }

    /// Writes an entry; the table grows by whole blocks of "no path".
    pub fn set(&mut self, lid: Lid, port: PortNum) {
        let index = lid.index();
        if index >= self.entries.len() {
            self.entries.resize((index / BLOCK + 1) * BLOCK, NO_PATH);
        }
        self.entries[index] = port.0;
    }
}

/// Computes one table per switch, in the graph's order.
///
/// A packet always moves to a switch that is one hop closer, so there is no loop and no detour.
/// Among the ports that lead closer, the one that the fewest end ports use so far is taken, the
/// lowest number on a tie. Destinations are served in the given order: with the end ports of each
/// leaf switch next to each other, all switches of a fat tree choose the same spine for the
/// same destination, so its traffic meets as late as possible. The further LIDs of a port with an
/// LMC avoid the switches that its earlier LIDs go through, as far as there is a choice.
///
/// O(switches × LIDs × links of a switch).
#[must_use]
pub fn unicast_tables(graph: &SwitchGraph, destinations: &[Destination]) -> Vec<Lft> {
    graph
        .switches()
        .map(|switch| switch_table(graph, switch, destinations))
        .collect()
}

fn switch_table(graph: &SwitchGraph, switch: SwitchIndex, destinations: &[Destination]) -> Lft {
    let mut lft = Lft::default();
    let mut load = [0_u32; 256];
    let mut candidates = Vec::new();
    let mut visited = Vec::new();
    for destination in destinations {
        if destination.switch == switch {
            for lid in lids_of(destination) {
                lft.set(lid, destination.port);
            }
            continue;
        }
        candidates.clear();
        candidates.extend(graph.closer_hops(switch, destination.switch));
        visited.clear();
        for lid in lids_of(destination) {
            let best = candidates.iter().min_by_key(|hop| {
                (
                    visited.contains(&hop.peer),
                    load[hop.port.index()],
                    hop.port,
                )
            });
            let Some(best) = best else { break };
            lft.set(lid, best.port);
            visited.push(best.peer);
            // Management ports carry next to no traffic and must not unbalance the rest.
            if destination.port != PortNum::SWITCH_MANAGEMENT {
                load[best.port.index()] += 1;
            }
        }
    }
    lft
}

fn lids_of(destination: &Destination) -> impl Iterator<Item = Lid> + use<> {
    let base = destination.base_lid.get();
    (0..destination.lids)
        .filter_map(move |i| base.checked_add(i))
        .map(Lid::new)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::graph::tests::{any_graph, graph};
    use super::*;

    const FIRST_HOST_PORT: u8 = 100;

    /// One destination per switch at LID 1.. and `hosts` end ports per switch behind them.
    fn destinations(graph: &SwitchGraph, hosts: u8, lids: u16) -> Vec<Destination> {
        let mut next = 1;
        let mut all = Vec::new();
        for switch in graph.switches() {
            for i in 0..=hosts {
                let (port, lids) = if i == 0 {
                    (0, 1)
                } else {
                    (FIRST_HOST_PORT + i, lids)
                };
                let base = u16::next_multiple_of(next, lids);
                all.push(Destination {
                    switch,
                    port: PortNum(port),
                    base_lid: Lid::new(base),
                    lids,
                });
                next = base + lids;
            }
        }
        all
    }

    /// Follows the tables from `from` to the LID: the hops taken, or `None` at a dead end.
    fn walk(
        graph: &SwitchGraph,
        tables: &[Lft],
        from: SwitchIndex,
        to: &Destination,
        lid: Lid,
    ) -> Option<u16> {
        let mut at = from;
        for hops in 0..=u16::try_from(graph.len()).unwrap() {
            let port = tables[at.0].port(lid)?;
            if at == to.switch {
                assert_eq!(port, to.port);
                return Some(hops);
            }
            at = graph.hops(at).iter().find(|hop| hop.port == port)?.peer;
        }
        panic!("lid {lid} loops from {from:?}");
    }

    #[test]
    fn a_lid_without_path_has_none_and_the_table_is_whole_blocks() {
        let g = graph(2, &[]);
        let tables = unicast_tables(&g, &destinations(&g, 1, 1));
        assert_eq!(tables[0].port(Lid::new(2)), Some(PortNum(101)));
        assert_eq!(tables[0].port(Lid::new(3)), None);
        assert_eq!(tables[0].port(Lid::new(5000)), None);
        assert_eq!(tables[0].blocks().len(), 1);
        assert_eq!(tables[0].blocks()[0][0], NO_PATH);
    }

    #[test]
    fn equal_uplinks_of_a_fat_tree_carry_equal_numbers_of_end_ports() {
        // Four leaves with four hosts each under four spines.
        let links: Vec<_> = (0..4)
            .flat_map(|leaf| (4..8).map(move |spine| (leaf, spine)))
            .collect();
        let g = graph(8, &links);
        let all = destinations(&g, 4, 1);
        let hosts: Vec<_> = all
            .iter()
            .filter(|d| d.port.0 != 0 && d.switch.0 < 4)
            .copied()
            .collect();
        let tables = unicast_tables(&g, &hosts);
        for leaf in 0..4 {
            let mut per_port = [0; 5];
            for d in hosts.iter().filter(|d| d.switch.0 != leaf) {
                per_port[tables[leaf].port(d.base_lid).unwrap().index()] += 1;
            }
            assert_eq!(per_port[1..], [3; 4], "leaf {leaf}");
        }
        // All leaves reach one host through one spine: the ports are numbered alike.
        for d in &hosts {
            let mut ports: Vec<_> = (0..4)
                .filter(|leaf| *leaf != d.switch.0)
                .map(|leaf| tables[leaf].port(d.base_lid))
                .collect();
            ports.dedup();
            assert_eq!(ports.len(), 1);
        }
    }

    #[test]
    fn the_lids_of_one_port_take_different_switches() {
        // 0 and 3 are joined through 1 and through 2, twice through 1.
        let g = graph(4, &[(0, 1), (0, 1), (0, 2), (1, 3), (2, 3)]);
        let d = Destination {
            switch: SwitchIndex(3),
            port: PortNum(100),
            base_lid: Lid::new(4),
            lids: 2,
        };
        let table = &unicast_tables(&g, &[d])[0];
        assert_eq!(table.port(Lid::new(4)), Some(PortNum(1)));
        assert_eq!(table.port(Lid::new(5)), Some(PortNum(3)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn every_pair_is_reached_in_minimal_hops_without_loops(g in any_graph(), lmc in 0_u32..3) {
            let all = destinations(&g, 2, 1 << lmc);
            let tables = unicast_tables(&g, &all);
            for from in g.switches() {
                for to in &all {
                    for lid in lids_of(to) {
                        prop_assert_eq!(
                            walk(&g, &tables, from, to, lid),
                            g.distance(from, to.switch),
                        );
                    }
                }
            }
        }
    }
}
