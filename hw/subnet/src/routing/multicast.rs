//! Spanning trees for multicast groups.

use ib_wire::smp::PortMask;
use ib_wire::{Lid, PortNum};

use super::graph::{SwitchGraph, SwitchIndex};

/// A port of a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// The switch that the port hangs on.
    pub switch: SwitchIndex,
    /// The switch's port that leads to the member; 0 for the switch's own management port.
    pub port: PortNum,
    /// Whether the member receives. A send-only member needs its switch on the tree, but no copies
    /// (IBA 15.2.5.17.2).
    pub receives: bool,
}

/// What each switch of a group's tree does with the group's packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MulticastTree {
    /// Switches on the tree, in order of discovery, with the ports that packets are copied to.
    pub switches: Vec<(SwitchIndex, PortMask)>,
}

/// Computes the tree that joins all members along minimal paths to a central switch.
///
/// The centre is the switch with the smallest sum of distances to the members, which keeps the tree
/// shallow. Equal links are chosen by `mlid`, so that different groups use different links.
/// Members that the centre cannot reach are left out, as they cannot be served by any tree.
///
/// O(switches × switches with members + tree).
#[must_use]
pub fn multicast_tree(graph: &SwitchGraph, mlid: Lid, members: &[GroupMember]) -> MulticastTree {
    let Some(root) = central_switch(graph, members) else {
        return MulticastTree::default();
    };
    let mut masks: Vec<Option<PortMask>> = vec![None; graph.len()];
    let mut switches = Vec::new();
    attach(graph, mlid, root, root, &mut masks, &mut switches);
    for member in members {
        if graph.distance(member.switch, root).is_none() {
            continue;
        }
        attach(graph, mlid, root, member.switch, &mut masks, &mut switches);
        if let (true, Some(mask)) = (member.receives, &mut masks[member.switch.0]) {
            mask.insert(member.port);
        }
    }
    let switches = switches
        .into_iter()
        .filter_map(|switch| Some((switch, masks[switch.0]?)))
        .collect();
    MulticastTree { switches }
}

/// Adds the switches between `from` and the tree.
fn attach(
    graph: &SwitchGraph,
    mlid: Lid,
    root: SwitchIndex,
    from: SwitchIndex,
    masks: &mut [Option<PortMask>],
    switches: &mut Vec<SwitchIndex>,
) {
    let mut at = from;
    let mut child = None;
    loop {
        let is_new = masks[at.0].is_none();
        let mask = masks[at.0].get_or_insert_default();
        if let Some(port) = child {
            mask.insert(port);
        }
        if !is_new {
            return;
        }
        switches.push(at);
        // The parent depends on the switch and the group alone, so the union of all paths is a tree.
        let choices = graph.closer_hops(at, root).count();
        let choice = mlid.index() % choices.max(1);
        let Some(up) = graph.closer_hops(at, root).nth(choice) else {
            return;
        };
        mask.insert(up.port);
        child = Some(up.peer_port);
        at = up.peer;
    }
}

/// The switch with the smallest sum of distances to the members' switches, the first on a tie;
/// switches that reach more members win over those that reach fewer.
fn central_switch(graph: &SwitchGraph, members: &[GroupMember]) -> Option<SwitchIndex> {
    let mut weights: Vec<(SwitchIndex, u32)> = Vec::new();
    let mut sorted: Vec<SwitchIndex> = members.iter().map(|m| m.switch).collect();
    sorted.sort_unstable();
    for switch in sorted {
        match weights.last_mut() {
            Some((last, weight)) if *last == switch => *weight += 1,
            _ => weights.push((switch, 1)),
        }
    }
    if weights.is_empty() {
        return None;
    }
    graph.switches().min_by_key(|candidate| {
        let mut missed = 0_u32;
        let mut sum = 0_u64;
        for (switch, weight) in &weights {
            match graph.distance(*switch, *candidate) {
                Some(d) => sum += u64::from(d) * u64::from(*weight),
                None => missed += weight,
            }
        }
        (missed, sum)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::graph::tests::{any_graph, graph};
    use super::*;

    const MLID: Lid = Lid::new(0xc001);

    fn member(switch: usize, port: u8, receives: bool) -> GroupMember {
        GroupMember {
            switch: SwitchIndex(switch),
            port: PortNum(port),
            receives,
        }
    }

    /// Floods a packet that enters `switch` by `port`: the member ports that get a copy. Panics when
    /// a switch sees the packet twice.
    fn deliver(
        graph: &SwitchGraph,
        tree: &MulticastTree,
        switch: SwitchIndex,
        port: PortNum,
    ) -> BTreeSet<(usize, u8)> {
        let mut copies = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut queue = vec![(switch, port)];
        while let Some((at, entry)) = queue.pop() {
            assert!(seen.insert(at.0), "switch {} sees the packet twice", at.0);
            let Some((_, mask)) = tree.switches.iter().find(|(s, _)| *s == at) else {
                continue;
            };
            for out in mask.ports().filter(|out| *out != entry) {
                match graph.hops(at).iter().find(|hop| hop.port == out) {
                    Some(hop) => queue.push((hop.peer, hop.peer_port)),
                    None => {
                        copies.insert((at.0, out.0));
                    }
                }
            }
        }
        copies
    }

    #[test]
    fn no_member_means_no_tree() {
        assert_eq!(
            multicast_tree(&graph(2, &[(0, 1)]), MLID, &[]),
            MulticastTree::default()
        );
    }

    #[test]
    fn members_of_one_switch_leave_the_others_alone() {
        let g = graph(2, &[(0, 1)]);
        let tree = multicast_tree(&g, MLID, &[member(1, 100, true), member(1, 101, true)]);
        assert_eq!(tree.switches.len(), 1);
        assert_eq!(tree.switches[0].0, SwitchIndex(1));
        assert_eq!(
            tree.switches[0].1.ports().map(|p| p.0).collect::<Vec<_>>(),
            [100, 101]
        );
    }

    #[test]
    fn a_send_only_member_reaches_the_group_and_gets_no_copy() {
        let g = graph(2, &[(0, 1)]);
        let tree = multicast_tree(&g, MLID, &[member(0, 100, true), member(1, 101, false)]);
        let from_sender = deliver(&g, &tree, SwitchIndex(1), PortNum(101));
        assert_eq!(from_sender, BTreeSet::from([(0, 100)]));
        let from_member = deliver(&g, &tree, SwitchIndex(0), PortNum(100));
        assert!(from_member.is_empty());
    }

    #[test]
    fn groups_spread_over_parallel_links() {
        let g = graph(2, &[(0, 1), (0, 1)]);
        let members = [member(0, 100, true), member(1, 100, true)];
        let even = multicast_tree(&g, Lid::new(0xc000), &members);
        let odd = multicast_tree(&g, Lid::new(0xc001), &members);
        assert_ne!(even, odd);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn a_packet_reaches_exactly_the_other_receivers_of_its_part_of_the_fabric(
            g in any_graph(),
            members in prop::collection::vec((0_usize..12, 100_u8..120, any::<bool>()), 1..20),
            mlid in 0xc000_u16..0xc010,
        ) {
            let members: Vec<_> = members
                .into_iter()
                .map(|(s, p, receives)| member(s % g.len(), p, receives))
                .collect();
            let tree = multicast_tree(&g, Lid::new(mlid), &members);
            let on_tree: BTreeSet<_> = tree.switches.iter().map(|(s, _)| s.0).collect();
            let root = tree.switches[0].0;
            for sender in &members {
                if g.distance(sender.switch, root).is_none() {
                    prop_assert!(!on_tree.contains(&sender.switch.0));
                    continue;
                }
                let expected: BTreeSet<_> = members
                    .iter()
                    .filter(|m| m.receives && g.distance(m.switch, root).is_some())
                    .map(|m| (m.switch.0, m.port.0))
                    .filter(|at| *at != (sender.switch.0, sender.port.0))
                    .collect();
                prop_assert_eq!(deliver(&g, &tree, sender.switch, sender.port), expected);
            }
        }
    }
}
