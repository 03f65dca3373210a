//! Who attaches where, and what is told of the port.

use super::*;
use crate::codec::{PortData, VendorData};

#[test]
fn a_client_attaches_to_the_node_it_names_and_to_the_first_without_a_name() {
    let mut bench = Bench::default();
    for (name, port) in [("n2", 2), ("", 1)] {
        let slot = bench.connect(name);
        let view = bench.server.clients().find(|client| client.slot == slot);
        assert_eq!(view.unwrap().port, port);
    }
    assert_eq!(bench.try_connect("nowhere", false), None);
    assert_eq!(bench.counters().refused_controls, 1);
}

#[test]
fn there_are_more_slots_than_ten_and_freed_ones_are_used_again() {
    let config = ServerConfig {
        max_clients: 12,
        ..ServerConfig::default()
    };
    let mut bench = Bench::new(config);
    let slots: Vec<u32> = (0..12).map(|_| bench.connect("n1")).collect();
    assert_eq!(slots, (0..12).collect::<Vec<_>>());
    assert_eq!(bench.try_connect("n1", false), None);
    let bye = Control::new(ControlKind::DISCONNECT, 4, &[0_u8; 4]);
    assert_eq!(bench.control(&bye).kind, ControlKind::DISCONNECT);
    assert_eq!(bench.connect("n2"), 4);
    assert_eq!(bench.net.open, [1, 2].into());
}

#[test]
fn one_client_on_a_port_takes_requests_and_the_next_is_refused() {
    let mut bench = Bench::default();
    let first = bench.try_connect("n1", true).unwrap();
    assert_eq!(bench.try_connect("n1", true), None);
    bench.connect("n1");
    bench.try_connect("n2", true).unwrap();
    bench.server.lose(&mut bench.net, first);
    bench.try_connect("n1", true).unwrap();
}

#[test]
fn datagrams_of_another_size_are_not_answered_and_those_of_strangers_refused() {
    let mut bench = Bench::default();
    let slot = bench.connect("n1");
    let control = Control::new(ControlKind::GET_GUID, slot, &[0_u8; 4]);
    let outcome = (bench.server).handle_control(&mut bench.net, OWNER, &control.as_bytes()[1..]);
    assert_eq!(outcome, ControlOutcome::default());
    assert_eq!(bench.counters().bad_controls, 1);
    for kind in [ControlKind::DISCONNECT, ControlKind::SET_IS_SM] {
        let control = Control::new(kind, slot, &1_u32);
        let outcome =
            (bench.server).handle_control(&mut bench.net, b"stranger", control.as_bytes());
        assert_eq!(outcome.reply.unwrap().kind, ControlKind::ERROR);
        assert_eq!(outcome.disconnected, None);
    }
    assert!(bench.net.is_sm.is_empty());
    for (kind, slot) in [
        (ControlKind::GET_GUID, 77),
        (ControlKind::new(11), slot),
        (ControlKind::ERROR, slot),
    ] {
        let reply = bench.control(&Control::new(kind, slot, &0_u32));
        assert_eq!(reply.kind, ControlKind::ERROR);
    }
}

#[test]
fn a_client_reads_its_node_and_its_port() {
    let mut bench = Bench::default();
    let slot = bench.connect("n2");
    let mut ask = |kind, data: u8| bench.control(&Control::new(kind, slot, &[data; 1]));
    let vendor: VendorData = ask(ControlKind::GET_VENDOR, 0).data();
    assert_eq!(vendor.vendor_id.get(), 0x2c9);
    let node: NodeInfo = read(&ask(ControlKind::GET_NODE_INFO, 0));
    assert_eq!(node.node_guid, Guid::new(2));
    let info: PortInfo = ask(ControlKind::GET_PORT_INFO, 7).data();
    assert_eq!((info.lid, info.local_port), (Lid::new(12), PortNum(7)));
    let port: PortData = ask(ControlKind::GET_PORT, 0).data();
    assert_eq!((port.lid.get(), port.state), (12, 4));
    let guid: [u8; 8] = ask(ControlKind::GET_GUID, 0).data();
    assert_eq!(guid, 2_u64.to_be_bytes());
    let gid: [u8; 16] = ask(ControlKind::GET_GID, 0).data();
    assert_eq!(gid[8..], guid);
    // The port's agent refuses it.
    let refused = ask(ControlKind::GET_PKEYS, 0);
    assert_eq!(refused.kind, ControlKind::ERROR);
}

fn read(control: &Control) -> NodeInfo {
    control.data()
}

#[test]
fn is_sm_stays_set_while_any_client_of_the_port_wants_it() {
    let mut bench = Bench::default();
    let [one, other] = [bench.connect("n1"), bench.connect("n1")];
    bench.set_is_sm(one, true);
    bench.set_is_sm(other, true);
    bench.set_is_sm(one, false);
    assert_eq!(bench.net.is_sm, [1].into());
    bench.server.lose(&mut bench.net, other);
    assert!(bench.net.is_sm.is_empty());
    assert_eq!(bench.counters().lost_clients, 1);
    assert_eq!(bench.net.open, [1].into());
    bench.server.lose(&mut bench.net, one);
    assert!(bench.net.open.is_empty());
}
