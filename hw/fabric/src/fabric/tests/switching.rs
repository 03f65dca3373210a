//! What the switches of a chain do with packets.

use hca_api::PortState as State;
use ib_wire::mad::{AttributeId, MadStatus};
use ib_wire::notice::{Notice, SwitchPKeyDetails, TrapNumber};
use ib_wire::packet::{Grh, Packet};
use ib_wire::perf::{PerfAttribute, PerfMad, PortCounters};
use ib_wire::smp::{
    LidRoutedSmp, MulticastForwardingTable, NodeInfo, PKeyTable, PKeyTableModifier,
    SlToVlMappingTable, SlToVlModifier, SwitchInfo,
};
use ib_wire::{Gid, GidIndex};
use zerocopy::network_endian::U16;

use super::bring_up::{Chain, LID_A, LID_B, PATHS};
use super::*;

const MLID: u16 = 0xc001;

fn multicast(payload: &[u8]) -> Frame {
    datagram(LID_A, MLID, payload)
}

/// Makes a group's packets leave the first switch by some ports.
fn set_group(chain: &mut Chain, path: &[u8], ports: u16) {
    let mut table = MulticastForwardingTable::default();
    table.masks[1] = U16::new(ports);
    chain.bench.set(chain.a, path, 0, table);
}

#[test]
fn a_multicast_packet_goes_to_all_ports_of_its_group_but_the_one_it_came_by() {
    let mut bench = Bench::new();
    let switch = bench.switch(4);
    let hosts: Vec<Endpoint> = (1..=4)
        .map(|port| {
            let host = bench.host().port(1);
            bench.connect_by(host, switch.port(port), LinkConfig::default());
            host
        })
        .collect();
    bench.run();
    for (host, lid) in hosts.iter().zip(1..) {
        let node = bench.fabric.device_mut(host.node).unwrap().node_mut();
        node.port_mut(PortNum(1)).unwrap().lid = Lid::new(lid);
        node.set_port_state(PortNum(1), State::Active);
    }
    for state in [PortState::ARMED, PortState::ACTIVE] {
        for port in 1..=4 {
            bench.change_port(hosts[0], &[1], port, |info| info.set_port_state(state));
        }
    }
    let mut table = MulticastForwardingTable::default();
    table.masks[1] = U16::new(0b01_1010);
    bench.set(hosts[0], &[1], 0, table);
    for (sender, receivers) in [(0, vec![2, 3]), (2, vec![0, 3]), (1, vec![0, 2, 3])] {
        bench.send(hosts[sender], multicast(b"all"));
        bench.run();
        let got: Vec<usize> = (0..4)
            .filter(|host| bench.received(hosts[*host].node).len() == 1)
            .collect();
        assert_eq!(got, receivers, "from {sender}");
    }
}

#[test]
fn a_group_outside_the_table_goes_to_the_default_ports() {
    let mut chain = Chain::up(LinkConfig::default());
    let a = chain.a;
    for path in &PATHS[..3] {
        let mut info: SwitchInfo = chain.bench.get(a, path, 0);
        info.multicast_fdb_top = Lid::new(0xc000);
        info.default_multicast_primary_port = PortNum(1);
        info.default_multicast_not_primary_port = PortNum(2);
        chain.bench.set(a, path, 0, info);
    }
    chain.bench.send(chain.a, multicast(b"default"));
    chain.bench.run();
    assert_eq!(chain.bench.received(chain.b.node).len(), 1);
    let back = datagram(LID_B, MLID, b"default");
    chain.bench.send(chain.b, back);
    chain.bench.run();
    assert_eq!(chain.bench.received(chain.a.node).len(), 1);
}

#[test]
fn a_group_without_ports_goes_nowhere() {
    let mut chain = Chain::up(LinkConfig::default());
    set_group(&mut chain, PATHS[0], 0);
    chain.bench.send(chain.a, multicast(b"nobody"));
    chain.bench.run();
    let entry = chain.switches[0].port(1);
    assert_eq!(chain.bench.dropped(entry, DropReason::NoMembers), 1);
    assert!(chain.bench.received(chain.b.node).is_empty());
}

#[test]
fn a_lid_without_a_route_is_a_relay_error() {
    let mut chain = Chain::up(LinkConfig::default());
    for dlid in [9, LID_A, 0xbfff] {
        chain.bench.send(chain.a, datagram(LID_A, dlid, b"lost"));
    }
    chain.bench.run();
    let counters = chain.bench.port(chain.switches[0].port(1)).counters;
    assert_eq!(counters.rcv_switch_relay_errors, 3);
    let entry = chain.switches[0].port(1);
    assert_eq!(chain.bench.dropped(entry, DropReason::NoRoute), 3);
}

#[test]
fn lid_routed_smps_reach_switches_and_hosts_and_come_back() {
    let mut chain = Chain::up(LinkConfig::default());
    for (dlid, guid) in [
        (
            4,
            chain
                .bench
                .fabric
                .node(chain.switches[1])
                .unwrap()
                .node_guid,
        ),
        (
            LID_B,
            chain.bench.fabric.node(chain.b.node).unwrap().node_guid,
        ),
    ] {
        let header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, NodeInfo::ID);
        let (from, to) = (Lid::new(LID_A), Lid::new(dlid));
        let frame = Frame::of_smp(&Mad::new(header), from, to, Sl::default()).unwrap();
        chain.bench.send(chain.a, frame);
        chain.bench.run();
        let mut answers = chain.bench.received(chain.a.node);
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].lrh().map(|lrh| lrh.slid), Some(to));
        let answer = answers[0].smp().unwrap();
        let info: &NodeInfo = answer.view::<LidRoutedSmp>().attribute();
        assert_eq!(info.node_guid, guid);
    }
}

#[test]
fn a_directed_route_can_start_at_a_switch_that_is_reached_by_lid() {
    let mut chain = Chain::up(LinkConfig::default());
    let mut mad = request::<NodeInfo>(Method::GET, 0);
    let smp: &mut DirectedRouteSmp = mad.view_mut();
    assert!(smp.set_path(&[2, 2]));
    smp.dr_slid = Lid::new(LID_A);
    let frame = Frame::of_smp(&mad, Lid::new(LID_A), Lid::new(4), Sl::default()).unwrap();
    chain.bench.send(chain.a, frame);
    chain.bench.run();
    let mut answers = chain.bench.received(chain.a.node);
    assert_eq!(answers.len(), 1);
    let answer = answers[0].smp().unwrap();
    let smp: &DirectedRouteSmp = answer.view();
    assert_eq!(smp.hop_pointer(), 0);
    let guid = chain.bench.fabric.node(chain.b.node).unwrap().node_guid;
    assert_eq!(smp.attribute::<NodeInfo>().node_guid, guid);
}

#[test]
fn the_lane_follows_the_table_and_lane_15_drops() {
    let mut chain = Chain::up(LinkConfig::default());
    let a = chain.a;
    let modifier = SlToVlModifier {
        input: PortNum(1),
        output: PortNum(2),
        ..SlToVlModifier::default()
    };
    let mut table = SlToVlMappingTable::default();
    table.set_vl(Sl::default(), Vl::from_low_bits(3));
    let modifier = modifier.encode().get();
    chain.bench.set(a, PATHS[2], modifier, table);
    chain.bench.send(a, datagram(LID_A, LID_B, b"lane 3"));
    chain.bench.run();
    let mut frames = chain.bench.received(chain.b.node);
    assert_eq!(frames[0].lrh().map(|lrh| lrh.vl().get()), Some(3));
    assert!(frames[0].vcrc_matches() && frames[0].icrc_matches());

    table.set_vl(Sl::default(), Vl::MANAGEMENT);
    chain.bench.set(a, PATHS[2], modifier, table);
    chain.bench.send(a, datagram(LID_A, LID_B, b"lane 15"));
    chain.bench.run();
    assert!(chain.bench.received(chain.b.node).is_empty());
    let entry = chain.bench.fabric.peer(chain.b).unwrap().node.port(1);
    assert_eq!(chain.bench.dropped(entry, DropReason::NoDataLane), 1);
}

/// Puts port 2 of the first switch into partition 0x8001 and has it check packets one way.
fn enforce(chain: &mut Chain, inbound: bool) {
    let a = chain.a;
    let mut table = PKeyTable::default();
    table.pkeys[0] = PKey::new(0x8001);
    let port = if inbound { 1 } else { 2 };
    let modifier = PKeyTableModifier { port, block: 0 }.encode().get();
    chain.bench.set(a, PATHS[0], modifier, table);
    chain
        .bench
        .change_port(a, PATHS[0], u32::from(port), |info| {
            info.set_partition_enforcement_inbound(inbound);
            info.set_partition_enforcement_outbound(!inbound);
        });
    chain.bench.send(a, datagram(LID_A, LID_B, b"foreign"));
    chain.bench.run();
}

fn bad_pkey_trap(chain: &mut Chain) -> SwitchPKeyDetails {
    let frames = chain.bench.received(chain.a.node);
    let mads: Vec<Mad> = frames.into_iter().filter_map(|mut f| f.smp()).collect();
    let notice: &Notice = mads[0].view::<LidRoutedSmp>().attribute();
    assert_eq!(notice.trap_number, TrapNumber::SWITCH_BAD_PKEY);
    *notice.details()
}

#[test]
fn a_port_that_enforces_partitions_refuses_foreign_packets_and_tells_the_sm() {
    for inbound in [true, false] {
        let mut chain = Chain::up(LinkConfig::default());
        enforce(&mut chain, inbound);
        assert!(chain.bench.received(chain.b.node).is_empty());
        let port = if inbound { 1 } else { 2 };
        let counters = chain.bench.port(chain.switches[0].port(port)).counters;
        let (rcv, xmit) = (
            counters.rcv_constraint_errors,
            counters.xmit_constraint_errors,
        );
        assert_eq!((rcv, xmit), (u64::from(inbound), u64::from(!inbound)));
        let refusing = chain.switches[0].port(port);
        assert_eq!(chain.bench.dropped(refusing, DropReason::BadPKey), 1);
        let details = bad_pkey_trap(&mut chain);
        assert_eq!(details.pkey, PKey::DEFAULT_FULL);
        assert_eq!(details.port, PortNum(port));
        assert_eq!(details.qp1, Qpn::from_low_bits(0x49));
        assert_eq!(details.switch_lid, Lid::new(3));
    }
}

/// A performance management request to a LID.
fn perf_request(dlid: u16, pkey: PKey, qkey: QKey, port: PortNum) -> Frame {
    let header = MadHeader::new(MgmtClass::PERF, Method::GET, PortCounters::ID);
    let mut mad = Mad::new(header);
    mad.view_mut::<PerfMad>()
        .attribute_mut::<PortCounters>()
        .port_select = port;
    gmp(dlid, pkey, qkey, &mad)
}

/// A packet to QP1 of a LID.
fn gmp(dlid: u16, pkey: PKey, qkey: QKey, mad: &Mad) -> Frame {
    let mut buffer = [0; 512];
    let len = UdFrame {
        vl: Vl::default(),
        sl: Sl::default(),
        slid: Lid::new(LID_A),
        dlid: Lid::new(dlid),
        grh: None,
        pkey,
        dest_qp: Qpn::GSI,
        src_qp: Qpn::GSI,
        qkey,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload: mad.as_bytes(),
    }
    .write(&mut buffer)
    .unwrap();
    Frame::sealed(&buffer[..len])
}

#[test]
fn a_switch_answers_for_its_counters_by_lid() {
    let mut chain = Chain::up(LinkConfig::default());
    let frame = perf_request(4, PKey::DEFAULT_FULL, QKey::GSI, PortNum(2));
    chain.bench.send(chain.a, frame);
    chain.bench.run();
    let answers = chain.bench.received(chain.a.node);
    assert_eq!(answers.len(), 1);
    let mad = Mad::from_bytes(&payload(&answers[0])).unwrap();
    assert_eq!(mad.header.status, MadStatus::OK);
    let counters: &PortCounters = mad.view::<PerfMad>().attribute();
    let stored = chain.bench.port(chain.switches[1].port(2)).counters;
    assert_eq!(
        u64::from(counters.port_xmit_pkts.get()),
        stored.xmit_packets
    );
}

#[test]
fn a_switch_refuses_gets_and_sets_of_classes_that_it_does_not_speak_at_once() {
    // 0x0a is a vendor's class, in which ibdiagnet asks Mellanox' switches for general information.
    const VENDOR: MgmtClass = MgmtClass::new(0x0a);
    const GENERAL_INFO: AttributeId = AttributeId::new(0x17);
    for (class, method, is_refused) in [
        (VENDOR, Method::GET, true),
        (VENDOR, Method::SET, true),
        (MgmtClass::SUBN_ADM, Method::GET, true),
        (VENDOR, Method::SEND, false),
        (VENDOR, Method::GET_RESP, false),
        (MgmtClass::SUBN_LID_ROUTED, Method::GET, false),
    ] {
        let mut chain = Chain::up(LinkConfig::default());
        let mad = Mad::new(MadHeader::new(class, method, GENERAL_INFO));
        let frame = gmp(4, PKey::DEFAULT_FULL, QKey::GSI, &mad);
        chain.bench.send(chain.a, frame);
        chain.bench.run();
        let answers = chain.bench.received(chain.a.node);
        let answers: Vec<Mad> = answers
            .iter()
            .filter_map(|frame| Mad::from_bytes(&payload(frame)))
            .collect();
        let mut refusal = mad;
        refusal.header.method = Method::GET_RESP;
        refusal.header.status = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE;
        let expected: &[Mad] = if is_refused { &[refusal] } else { &[] };
        assert_eq!(answers, expected, "{class:?} {method:?}");
    }
}

#[test]
fn a_switch_refuses_requests_with_wrong_keys_and_counts_them() {
    let mut chain = Chain::up(LinkConfig::default());
    let wrong_pkey = perf_request(4, PKey::new(0x8002), QKey::GSI, PortNum(1));
    let wrong_qkey = perf_request(4, PKey::DEFAULT_FULL, QKey::new(1), PortNum(1));
    for frame in [wrong_pkey, wrong_qkey] {
        chain.bench.send(chain.a, frame);
        chain.bench.run();
    }
    let port0 = chain.bench.port(chain.switches[1].port(0));
    assert_eq!((port0.p_key_violations, port0.q_key_violations), (1, 1));
}

/// A limited member takes no answer from another one, so an answer has the switch's own key and not the requester's.
#[test]
fn a_switch_answers_with_its_own_pkey() {
    let mut chain = Chain::up(LinkConfig::default());
    let limited = PKey::new(0x7fff);
    let frame = perf_request(4, limited, QKey::GSI, PortNum(2));
    chain.bench.send(chain.a, frame);
    chain.bench.run();
    let answers = chain.bench.received(chain.a.node);
    let pkeys: Vec<_> = answers.iter().map(|f| f.bth().unwrap().pkey).collect();
    assert_eq!(pkeys, [PKey::DEFAULT_FULL]);
}

/// IBA 13.5.4, 9.6.1.2; `ib_init_ah_attr_from_wc` answers with hop limit 255, too.
#[test]
fn a_switch_answers_along_the_global_route_and_to_its_own_gid_only() {
    let mut chain = Chain::up(LinkConfig::default());
    let own = chain.bench.port(chain.switches[1].port(0)).gid(GidIndex(0));
    let (own, host) = (own.unwrap(), Gid([9; 16]));
    for (dgid, answered) in [(own, true), (Gid([7; 16]), false)] {
        let request = perf_request(4, PKey::DEFAULT_FULL, QKey::GSI, PortNum(2));
        let packet = Packet::parse(request.bytes()).unwrap();
        let transport = packet.transport().unwrap();
        let mut grh = Grh::new(host, dgid, 3);
        grh.set_traffic_class(5);
        grh.set_flow_label(0x12345);
        let mut buffer = [0; 512];
        let len = UdFrame {
            vl: Vl::default(),
            sl: Sl::default(),
            slid: Lid::new(LID_A),
            dlid: Lid::new(4),
            grh: Some(grh),
            pkey: PKey::DEFAULT_FULL,
            dest_qp: Qpn::GSI,
            src_qp: Qpn::GSI,
            qkey: QKey::GSI,
            psn: Psn::default(),
            solicited: false,
            immediate: None,
            payload: transport.payload,
        }
        .write(&mut buffer)
        .unwrap();
        chain.bench.send(chain.a, Frame::sealed(&buffer[..len]));
        chain.bench.run();
        let answers = chain.bench.received(chain.a.node);
        assert_eq!(answers.len(), usize::from(answered));
        for answer in answers {
            let back = *Packet::parse(answer.bytes()).unwrap().grh.unwrap();
            assert_eq!((back.sgid, back.dgid), (own, host));
            assert_eq!(back.hop_limit, 255);
            assert_eq!((back.traffic_class(), back.flow_label()), (5, 0x12345));
        }
    }
}
