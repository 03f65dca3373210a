//! The switches and the links between them, with hop distances.

use std::collections::VecDeque;

use ib_wire::PortNum;

/// A switch's position in its [`SwitchGraph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchIndex(pub usize);

/// One direction of a link between two switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The port by which packets leave.
    pub port: PortNum,
    /// The switch at the other end.
    pub peer: SwitchIndex,
    /// The other end's port.
    pub peer_port: PortNum,
}

/// Distance of a pair of switches between which no path exists.
const UNREACHABLE: u16 = u16::MAX;

/// The switches of a subnet and the links between them.
///
/// Distances are counted in hops from switch to switch and computed once, by a breadth-first search
/// from every switch: O(switches × links).
#[derive(Clone, Debug)]
pub struct SwitchGraph {
    hops: Vec<Vec<Hop>>,
    /// Row-major matrix: `distances[to * len + from]`.
    distances: Vec<u16>,
}

impl SwitchGraph {
    /// The graph of `hops[i]`, the links of switch `i` to other switches, in port order. A link must
    /// be listed at both of its ends.
    #[must_use]
    pub fn new(hops: Vec<Vec<Hop>>) -> Self {
        let mut distances = Vec::with_capacity(hops.len() * hops.len());
        for root in 0..hops.len() {
            distances.extend(distances_from(&hops, root));
        }
        Self { hops, distances }
    }

    /// Number of switches.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hops.len()
    }

    /// Whether there is no switch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hops.is_empty()
    }

    /// All switches.
    pub fn switches(&self) -> impl Iterator<Item = SwitchIndex> + use<> {
        (0..self.hops.len()).map(SwitchIndex)
    }

    /// The links of a switch to other switches.
    #[must_use]
    pub fn hops(&self, switch: SwitchIndex) -> &[Hop] {
        &self.hops[switch.0]
    }

    /// Hops between two switches, `None` if no path exists.
    #[must_use]
    pub fn distance(&self, from: SwitchIndex, to: SwitchIndex) -> Option<u16> {
        let d = self.distances[to.0 * self.hops.len() + from.0];
        (d != UNREACHABLE).then_some(d)
    }

    /// The links of `from` that bring a packet one hop closer to `to`.
    pub fn closer_hops(
        &self,
        from: SwitchIndex,
        to: SwitchIndex,
    ) -> impl Iterator<Item = Hop> + '_ {
        let row = &self.distances[to.0 * self.hops.len()..][..self.hops.len()];
        let here = row[from.0];
        self.hops[from.0]
            .iter()
            .copied()
            .filter(move |hop| here != UNREACHABLE && row[hop.peer.0] < here)
    }
}

fn distances_from(hops: &[Vec<Hop>], root: usize) -> Vec<u16> {
    let mut distances = vec![UNREACHABLE; hops.len()];
    distances[root] = 0;
    let mut queue = VecDeque::from([root]);
    while let Some(at) = queue.pop_front() {
        for hop in &hops[at] {
            if distances[hop.peer.0] == UNREACHABLE {
                distances[hop.peer.0] = distances[at] + 1;
                queue.push_back(hop.peer.0);
            }
        }
    }
    distances
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Builds a graph from undirected links; ports are numbered from 1 in the order of the links.
    pub(crate) fn graph(switches: usize, links: &[(usize, usize)]) -> SwitchGraph {
        let mut hops: Vec<Vec<Hop>> = vec![Vec::new(); switches];
        for &(a, b) in links {
            let port_a = PortNum(u8::try_from(hops[a].len() + 1).unwrap());
            let port_b = PortNum(u8::try_from(hops[b].len() + 1 + usize::from(a == b)).unwrap());
            hops[a].push(Hop {
                port: port_a,
                peer: SwitchIndex(b),
                peer_port: port_b,
            });
            hops[b].push(Hop {
                port: port_b,
                peer: SwitchIndex(a),
                peer_port: port_a,
            });
        }
        SwitchGraph::new(hops)
    }

    /// Random graphs of 1 to 12 switches, with parallel links, loops back to the same switch and
    /// parts that are not connected.
    pub(crate) fn any_graph() -> impl Strategy<Value = SwitchGraph> {
        (1_usize..12).prop_flat_map(|switches| {
            prop::collection::vec((0..switches, 0..switches), 0..24)
                .prop_map(move |links| graph(switches, &links))
        })
    }

    #[test]
    fn distances_are_hops_and_missing_paths_are_none() {
        let g = graph(4, &[(0, 1), (1, 2)]);
        assert_eq!(g.distance(SwitchIndex(0), SwitchIndex(2)), Some(2));
        assert_eq!(g.distance(SwitchIndex(2), SwitchIndex(2)), Some(0));
        assert_eq!(g.distance(SwitchIndex(0), SwitchIndex(3)), None);
        assert_eq!(g.closer_hops(SwitchIndex(3), SwitchIndex(0)).count(), 0);
    }

    #[test]
    fn parallel_links_are_all_closer() {
        let g = graph(2, &[(0, 1), (0, 1), (0, 0)]);
        let ports: Vec<u8> = g
            .closer_hops(SwitchIndex(0), SwitchIndex(1))
            .map(|hop| hop.port.0)
            .collect();
        assert_eq!(ports, [1, 2]);
    }
}
