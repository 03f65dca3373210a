//! Where routes lead.

use super::bring_up::{Chain, LID_A, LID_B, PATHS};
use super::*;
use crate::{LinkState, Travelling};

#[test]
fn directed_routes_are_traced_to_where_smps_come_in() {
    let chain = Chain::new(LinkConfig::default());
    let fabric = &chain.bench.fabric;
    assert_eq!(fabric.trace_path(chain.a, &[]), Some(chain.a));
    for (path, switch) in PATHS.iter().zip(chain.switches) {
        assert_eq!(fabric.trace_path(chain.a, path), Some(switch.port(1)));
    }
    assert_eq!(fabric.trace_path(chain.a, PATHS[3]), Some(chain.b));
    let port0 = chain.switches[1].port(0);
    assert_eq!(fabric.trace_path(port0, &[2, 2]), Some(chain.b));
    for nowhere in [&[2][..], &[1, 0], &[1, 4], &[1, 9], &[1, 2, 2, 2, 1]] {
        assert_eq!(fabric.trace_path(chain.a, nowhere), None, "{nowhere:?}");
    }
}

#[test]
fn lids_are_traced_by_the_forwarding_tables() {
    let chain = Chain::up(LinkConfig::default());
    let fabric = &chain.bench.fabric;
    for travelling in [Travelling::Smps, Travelling::Data] {
        let trace = |from, lid| fabric.trace_lid(from, Lid::new(lid), travelling);
        assert_eq!(trace(chain.a, LID_A), Some(chain.a));
        assert_eq!(trace(chain.a, LID_B), Some(chain.b));
        let port0 = chain.switches[2].port(0);
        assert_eq!(trace(chain.b, 5), Some(port0));
        assert_eq!(trace(port0, LID_A), Some(chain.a));
        assert_eq!(trace(chain.a, 0), None);
        assert_eq!(trace(chain.a, 6), None);
    }
}

#[test]
fn a_route_over_a_link_that_is_down_or_not_active_leads_nowhere() {
    let mut chain = Chain::up(LinkConfig::default());
    let (a, b) = (chain.a, Lid::new(LID_B));
    (chain.bench).change_port(a, PATHS[1], 2, |info| info.set_port_state(PortState::DOWN));
    let fabric = &chain.bench.fabric;
    assert_eq!(fabric.trace_lid(a, b, Travelling::Data), None);
    assert_eq!(fabric.trace_lid(a, b, Travelling::Smps), Some(chain.b));
    chain.bench.fabric.set_link(chain.links[2], LinkState::Down);
    chain.bench.run();
    let fabric = &chain.bench.fabric;
    assert_eq!(fabric.trace_lid(a, b, Travelling::Smps), None);
    assert_eq!(fabric.trace_path(a, PATHS[2]), None);
    assert!(fabric.trace_path(a, PATHS[1]).is_some());
}
