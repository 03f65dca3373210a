//! What the software on port 0 of a switch sends and receives.

use hca_api::{AddressVector, HcaError, PhysicalState, SpecialQp, UdAddress, UdDestination};
use ib_wire::perf::{PerfAttribute, PerfMad, PortCounters};
use ib_wire::smp::{CapabilityMask, NodeInfo, SmInfo};

use super::bring_up::{Chain, LID_A, LID_B, PATHS};
use super::*;
use crate::Port0Mad;

fn to(special: SpecialQp, dlid: Lid) -> UdDestination {
    let (qpn, qkey) = match special {
        SpecialQp::Smi => (Qpn::SMI, QKey::SMI),
        SpecialQp::Gsi => (Qpn::GSI, QKey::GSI),
    };
    UdDestination {
        address: UdAddress::Vector(AddressVector {
            port: PortNum(0),
            dlid,
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: None,
        }),
        qpn,
        qkey,
        pkey_index: None,
    }
}

/// A chain whose first switch has software.
fn chain() -> (Chain, NodeId) {
    let mut chain = Chain::up(LinkConfig::default());
    let switch = chain.switches[0];
    chain.bench.fabric.open_port0(switch, 4).unwrap();
    chain.bench.announce_sm(switch);
    (chain, switch)
}

impl Bench {
    /// Lets SMInfo through to the software on port 0.
    fn announce_sm(&mut self, node: NodeId) {
        let is_sm = CapabilityMask::IS_SM.get();
        (self.fabric)
            .change_port0_capabilities(node, is_sm, 0)
            .unwrap();
    }

    fn send_port0(&mut self, node: NodeId, special: SpecialQp, dlid: Lid, mad: &Mad) {
        let to = to(special, dlid);
        self.fabric.send_port0(node, special, &to, mad).unwrap();
        self.run();
    }

    fn received_port0(&mut self) -> Option<Port0Mad> {
        let node = self.fabric.poll_port0_ready()?;
        self.fabric.receive_port0(node)
    }
}

#[test]
fn directed_routes_lead_from_port_0_to_itself_and_to_its_neighbours() {
    let (mut chain, switch) = chain();
    let other = chain.switches[1];
    for (path, node) in [(&[][..], switch), (&[2], other)] {
        let mut mad = request::<NodeInfo>(Method::GET, 0);
        assert!(mad.view_mut::<DirectedRouteSmp>().set_path(path));
        (chain.bench).send_port0(switch, SpecialQp::Smi, Lid::PERMISSIVE, &mad);
        let answer = chain.bench.received_port0().unwrap();
        assert_eq!(answer.special, SpecialQp::Smi);
        let smp: &DirectedRouteSmp = answer.mad.view();
        assert_eq!((smp.hop_pointer(), smp.is_returning()), (0, true));
        let info: &NodeInfo = smp.attribute();
        let guid = chain.bench.fabric.node(node).unwrap().node_guid;
        assert_eq!(info.node_guid, guid);
    }
}

#[test]
fn a_port_that_the_switch_s_own_software_disables_goes_down_at_once() {
    use ib_wire::smp::{PortInfo, PortPhysState};

    let (mut chain, switch) = chain();
    for (state, expected) in [
        (PortPhysState::DISABLED, PhysicalState::Disabled),
        (PortPhysState::POLLING, PhysicalState::LinkUp),
    ] {
        let mut info = chain.bench.port(switch.port(2)).port_info();
        info.set_phys_state(state);
        info.set_port_state(PortState::NO_CHANGE);
        let mut mad = request::<PortInfo>(Method::SET, 2);
        assert!(mad.view_mut::<DirectedRouteSmp>().set_path(&[]));
        *mad.view_mut::<DirectedRouteSmp>().attribute_mut() = info;
        (chain.bench).send_port0(switch, SpecialQp::Smi, Lid::PERMISSIVE, &mad);
        let port = chain.bench.port(switch.port(2));
        assert_eq!(port.physical_state, expected);
    }
}

#[test]
fn what_the_agents_of_a_switch_leave_comes_to_its_software_and_is_answered() {
    let (mut chain, switch) = chain();
    let tid = (chain.bench).send_smp(chain.a, PATHS[0], request::<SmInfo>(Method::GET, 0));
    chain.bench.run();
    let asked = chain.bench.received_port0().unwrap();
    assert_eq!(asked.mad.header.tid, tid);
    let mut answer = asked.mad;
    answer.header.method = Method::GET_RESP;
    let smp = answer.view_mut::<DirectedRouteSmp>();
    assert_eq!(smp.hop_pointer(), smp.hop_count() + 1);
    smp.set_returning(true);
    (chain.bench).send_port0(switch, SpecialQp::Smi, Lid::PERMISSIVE, &answer);
    let received = chain.bench.received(chain.a.node);
    let mut smps = received.into_iter().filter_map(|mut frame| frame.smp());
    assert!(smps.any(|smp| smp.header.tid == tid && smp.header.method == Method::GET_RESP));
}

#[test]
fn gmps_of_port_0_reach_a_host_and_its_own_agents() {
    let (mut chain, switch) = chain();
    let own = chain.bench.port(switch.port(0)).lid;
    assert!(own.is_unicast());
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::PERF,
        Method::GET,
        PortCounters::ID,
    ));
    *mad.view_mut::<PerfMad>().attribute_mut() = PortCounters {
        port_select: PortNum(1),
        ..PortCounters::default()
    };
    (chain.bench).send_port0(switch, SpecialQp::Gsi, own, &mad);
    let answer = chain.bench.received_port0().unwrap();
    assert_eq!(answer.mad.header.method, Method::GET_RESP);
    for (host, lid) in [(chain.a, LID_A), (chain.b, LID_B)] {
        (chain.bench).send_port0(switch, SpecialQp::Gsi, Lid::new(lid), &mad);
        let received = chain.bench.received(host.node);
        let mut from_port0 = (received.iter()).filter(|frame| frame.lrh().unwrap().slid == own);
        assert!(from_port0.any(|frame| payload(frame) == mad.as_bytes()));
    }
}

#[test]
fn port_0_without_software_drops_and_with_a_full_queue_counts() {
    let mut chain = Chain::up(LinkConfig::default());
    let switch = chain.switches[0];
    let fabric = &mut chain.bench.fabric;
    let gsi = to(SpecialQp::Gsi, Lid::new(LID_A));
    let closed = fabric.send_port0(switch, SpecialQp::Gsi, &gsi, &Mad::default());
    assert_eq!(closed, Err(HcaError::InvalidHandle));
    assert_eq!(
        fabric.open_port0(chain.a.node, 1),
        Err(HcaError::InvalidParameter)
    );
    fabric.open_port0(switch, 1).unwrap();
    assert_eq!(fabric.open_port0(switch, 1), Err(HcaError::SpecialQpTaken));
    chain.bench.announce_sm(switch);
    for _ in 0..3 {
        (chain.bench).send_smp(chain.a, PATHS[0], request::<SmInfo>(Method::GET, 0));
    }
    chain.bench.run();
    assert_eq!(chain.bench.fabric.port0_overrun(switch), 2);
    assert!(chain.bench.received_port0().is_some());
    assert_eq!(chain.bench.received_port0(), None);
    chain.bench.fabric.close_port0(switch);
    (chain.bench).send_smp(chain.a, PATHS[0], request::<SmInfo>(Method::GET, 0));
    chain.bench.run();
    assert_eq!(chain.bench.received_port0(), None);
}
