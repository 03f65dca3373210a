//! A chain of three switches brought up by hand.

use ib_wire::smp::{
    LinearForwardingTable, NodeDescription, NodeInfo, NodeType, PortInfo, PortState, SwitchInfo,
};
use ib_wire::{Lid, PortNum};

use super::*;
use crate::LinkState;

/// Host A, switches 1 to 3, host B. The switches' ports are 1 towards A and 2 towards B.
pub(super) struct Chain {
    pub(super) bench: Bench,
    pub(super) a: Endpoint,
    pub(super) b: Endpoint,
    pub(super) switches: [NodeId; 3],
    pub(super) links: Vec<LinkId>,
}

pub(super) const LID_A: u16 = 1;
pub(super) const LID_B: u16 = 2;
/// Paths from host A to the three switches and to host B.
pub(super) const PATHS: [&[u8]; 4] = [&[1], &[1, 2], &[1, 2, 2], &[1, 2, 2, 2]];

impl Chain {
    pub(super) fn new(config: LinkConfig) -> Self {
        let mut bench = Bench::new();
        let (a, b) = (bench.host().port(1), bench.host().port(1));
        let switches = [bench.switch(4), bench.switch(4), bench.switch(4)];
        let mut links = Vec::new();
        let mut left = a;
        for switch in switches {
            links.push(bench.connect_by(left, switch.port(1), config));
            left = switch.port(2);
        }
        links.push(bench.connect_by(left, b, config));
        bench.run();
        Self {
            bench,
            a,
            b,
            switches,
            links,
        }
    }

    /// As an SM would: LIDs, forwarding tables, then all ports armed and active.
    pub(super) fn up(config: LinkConfig) -> Self {
        let mut chain = Self::new(config);
        let a = chain.a;
        let bench = &mut chain.bench;
        let endport = |lid: u16| {
            move |info: &mut PortInfo| {
                info.lid = Lid::new(lid);
                info.master_sm_lid = Lid::new(LID_A);
                info.set_neighbor_mtu(info.mtu_cap());
            }
        };
        bench.change_port(a, &[], 0, endport(LID_A));
        bench.change_port(a, PATHS[3], 0, endport(LID_B));
        for (lid, path) in (3..).zip(PATHS[..3].iter()) {
            bench.change_port(a, path, 0, endport(lid));
            let mut info: SwitchInfo = bench.get(a, path, 0);
            info.linear_fdb_top = Lid::new(5);
            info.set_port_state_change(true);
            bench.set(a, path, 0, info);
            let mut table = LinearForwardingTable {
                ports: [LinearForwardingTable::DROP; 64],
            };
            table.ports[usize::from(LID_A)] = PortNum(1);
            table.ports[usize::from(LID_B)] = PortNum(2);
            for other in 3..6 {
                table.ports[usize::from(other)] = PortNum(match other.cmp(&lid) {
                    core::cmp::Ordering::Less => 1,
                    core::cmp::Ordering::Equal => 0,
                    core::cmp::Ordering::Greater => 2,
                });
            }
            bench.set(a, path, 0, table);
        }
        for state in [PortState::ARMED, PortState::ACTIVE] {
            for path in &PATHS[..3] {
                for port in [1, 2] {
                    bench.change_port(a, path, port, |info| {
                        info.set_neighbor_mtu(info.mtu_cap());
                        info.set_port_state(state);
                    });
                }
            }
            for path in [&[], PATHS[3]] {
                bench.change_port(a, path, 0, |info| info.set_port_state(state));
            }
        }
        chain
    }
}

#[test]
fn directed_routes_reach_every_node_and_come_back() {
    let mut chain = Chain::new(LinkConfig::default());
    let a = chain.a;
    for (path, switch) in PATHS.iter().zip(chain.switches) {
        let info: NodeInfo = chain.bench.get(a, path, 0);
        assert_eq!(info.node_type, NodeType::SWITCH);
        assert_eq!(info.local_port, PortNum(1));
        assert_eq!(info.num_ports, 4);
        let node = chain.bench.fabric.node(switch).unwrap();
        assert_eq!(info.node_guid, node.node_guid);
    }
    let info: NodeInfo = chain.bench.get(a, PATHS[3], 0);
    assert_eq!(info.node_type, NodeType::CA);
    assert_eq!(info.port_guid, chain.bench.port(chain.b).guid);
    let description: NodeDescription = chain.bench.get(a, PATHS[3], 0);
    assert_eq!(description.as_str(), Some("host"));
}

#[test]
fn an_smp_whose_route_leads_nowhere_is_counted_where_it_ends() {
    let mut chain = Chain::new(LinkConfig::default());
    let lost = request::<NodeInfo>(Method::GET, 0);
    chain.bench.send_smp(chain.a, &[1, 9], lost);
    chain.bench.run();
    let end = chain.switches[0].port(1);
    assert_eq!(chain.bench.dropped(end, DropReason::BadRoute), 1);
}

#[test]
fn a_route_without_hops_asks_the_own_port() {
    let mut chain = Chain::new(LinkConfig::default());
    let info: NodeInfo = chain.bench.get(chain.a, &[], 0);
    assert_eq!(info.port_guid, chain.bench.port(chain.a).guid);
}

#[test]
fn a_route_by_a_port_that_does_not_exist_gets_no_answer() {
    let mut chain = Chain::new(LinkConfig::default());
    for path in [&[1, 5][..], &[1, 0], &[2], &[1, 3], &[1, 2, 2, 2, 1]] {
        let mad = request::<NodeInfo>(Method::GET, 0);
        assert!(chain.bench.ask(chain.a, path, mad).is_none(), "{path:?}");
    }
}

#[test]
fn a_subnet_brought_up_by_hand_carries_datagrams_both_ways() {
    let mut chain = Chain::up(LinkConfig::default());
    for end in [chain.a, chain.b] {
        assert_eq!(chain.bench.port(end).state, hca_api::PortState::Active);
    }
    chain.bench.send(chain.a, datagram(LID_A, LID_B, b"to b"));
    chain.bench.send(chain.b, datagram(LID_B, LID_A, b"to a"));
    chain.bench.run();
    let at_b = chain.bench.received(chain.b.node);
    assert_eq!(at_b.iter().map(payload).collect::<Vec<_>>(), [b"to b"]);
    let at_a = chain.bench.received(chain.a.node);
    assert_eq!(at_a.iter().map(payload).collect::<Vec<_>>(), [b"to a"]);
}

#[test]
fn data_before_the_ports_are_active_is_discarded_and_counted() {
    let mut chain = Chain::new(LinkConfig::default());
    chain.bench.send(chain.a, datagram(LID_A, LID_B, b"early"));
    chain.bench.run();
    assert!(chain.bench.received(chain.b.node).is_empty());
    assert_eq!(chain.bench.port(chain.a).counters.xmit_discards, 1);
    assert_eq!(chain.bench.dropped(chain.a, DropReason::PortNotActive), 1);
}

#[test]
fn a_cable_pulled_out_takes_both_ports_down_and_plugged_in_again_to_initialize() {
    let mut chain = Chain::up(LinkConfig::default());
    let (cable, far) = (chain.links[1], chain.switches[1].port(1));
    let near = chain.bench.fabric.peer(far).unwrap();
    chain.bench.fabric.set_link(cable, LinkState::Down);
    chain.bench.run();
    for end in [near, far] {
        let port = chain.bench.port(end);
        assert_eq!(port.state, hca_api::PortState::Down);
        assert_eq!(port.physical_state, hca_api::PhysicalState::Polling);
        assert_eq!(port.counters.link_downed, 1);
    }
    chain.bench.fabric.set_link(cable, LinkState::Up);
    chain.bench.run();
    for end in [near, far] {
        let port = chain.bench.port(end);
        assert_eq!(port.state, hca_api::PortState::Init);
        assert_eq!(port.physical_state, hca_api::PhysicalState::LinkUp);
    }
    let info: SwitchInfo = chain.bench.get(chain.a, PATHS[0], 0);
    assert!(info.port_state_change());
}

#[test]
fn a_port_that_trained_runs_at_all_that_it_can_so_that_no_manager_has_to_reset_it() {
    let mut chain = Chain::new(LinkConfig::default());
    for (path, port) in [(&[][..], 1), (&[1], 0), (&[1], 1), (&[1], 2)] {
        let info: PortInfo = chain.bench.get(chain.a, path, port);
        assert_eq!(info.neighbor_mtu(), info.mtu_cap(), "{path:?} {port}");
        assert_eq!(info.operational_vls(), info.vl_cap(), "{path:?} {port}");
        assert!(info.link_width_active.lanes().is_some(), "{path:?} {port}");
    }
}

#[test]
fn what_a_switch_sends_itself_without_a_route_is_no_error_of_a_port() {
    let mut chain = Chain::new(LinkConfig::default());
    chain.bench.change_port(chain.a, &[1], 0, |info| {
        info.lid = Lid::new(9);
        info.master_sm_lid = Lid::new(1);
    });
    // Its trap of the link finds no entry for the SM's LID.
    chain.bench.fabric.set_link(chain.links[1], LinkState::Down);
    chain.bench.run();
    let switch = chain.bench.fabric.peer(chain.a).unwrap().node;
    let errors = |port: &PhysicalPort| port.counters.rcv_switch_relay_errors;
    let node = chain.bench.fabric.node(switch).unwrap();
    assert_eq!(node.ports().iter().map(errors).sum::<u64>(), 0);
}

#[test]
fn only_adapters_that_got_something_or_were_used_are_told_of() {
    let mut chain = Chain::up(LinkConfig::default());
    while chain.bench.fabric.poll_served().is_some() {}
    chain.bench.run();
    assert_eq!(chain.bench.fabric.poll_served(), None);
    chain.bench.send(chain.a, datagram(LID_A, LID_B, &[1; 8]));
    chain.bench.run();
    let told: Vec<NodeId> = std::iter::from_fn(|| chain.bench.fabric.poll_served()).collect();
    assert_eq!(told, [chain.a.node, chain.b.node]);
    assert_eq!(chain.bench.fabric.poll_served(), None);
}
