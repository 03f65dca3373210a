//! Forwarding against a model that looks everything up in maps.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::packet::{Lnh, UdFrame};
use ib_wire::{Guid, Lid, PKey, Psn, QKey, Qpn, Sl};
use proptest::prelude::*;

use super::*;

/// Numbers of ports: within one word of a mask, at a word's end, and the most there can be.
const PORTS: [u8; 3] = [40, 127, SwitchConfig::MAX_PORTS];
const LIDS: u16 = 200;
const GROUPS: u16 = 50;

fn packet(dlid: u16) -> Frame {
    packet_of(dlid, PKey::DEFAULT_FULL)
}

fn packet_of(dlid: u16, pkey: PKey) -> Frame {
    let mut buffer = [0; 128];
    let len = UdFrame {
        vl: Vl::default(),
        sl: Sl::default(),
        slid: Lid::new(1),
        dlid: Lid::new(dlid),
        grh: None,
        pkey,
        dest_qp: Qpn::MULTICAST,
        src_qp: Qpn::GSI,
        qkey: QKey::new(1),
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload: b"payload",
    }
    .write(&mut buffer)
    .unwrap();
    Frame::sealed(&buffer[..len])
}

fn switch(ports: u8) -> Switch {
    Switch::new(&SwitchConfig::new(Guid::new(0x10), "switch", ports))
}

#[derive(Clone, Debug)]
struct Plan {
    ports: u8,
    unicast: Vec<(u16, u8)>,
    multicast: Vec<(u16, u8, u16)>,
    linear_top: u16,
    multicast_top: u16,
    primary: u8,
    not_primary: u8,
}

fn plan() -> impl Strategy<Value = Plan> {
    prop::sample::select(&PORTS[..]).prop_flat_map(plan_of)
}

fn plan_of(ports: u8) -> impl Strategy<Value = Plan> {
    (
        prop::collection::vec((1..LIDS, 0..=ports), 0..60),
        prop::collection::vec((0..GROUPS, 0_u8..16, any::<u16>()), 0..60),
        0..LIDS,
        prop::option::of(0xc000..0xc000 + GROUPS),
        prop::sample::select(vec![1, 7, 255]),
        prop::sample::select(vec![2, 255]),
    )
        .prop_map(
            move |(unicast, multicast, linear_top, top, primary, not_primary)| Plan {
                ports,
                unicast,
                multicast,
                linear_top,
                multicast_top: top.unwrap_or(0),
                primary,
                not_primary,
            },
        )
}

fn program(plan: &Plan) -> Switch {
    let mut switch = switch(plan.ports);
    let tables = switch.node.tables_mut().unwrap();
    for (lid, port) in &plan.unicast {
        tables.set_unicast(usize::from(*lid), PortNum(*port));
    }
    for (group, position, ports) in &plan.multicast {
        tables.set_multicast(usize::from(*group), *position, *ports);
    }
    tables.info.linear_fdb_top = Lid::new(plan.linear_top);
    tables.info.multicast_fdb_top = Lid::new(plan.multicast_top);
    tables.info.default_multicast_primary_port = PortNum(plan.primary);
    tables.info.default_multicast_not_primary_port = PortNum(plan.not_primary);
    switch
}

/// The ports that a packet should leave by.
fn expected(plan: &Plan, in_port: u8, dlid: u16) -> BTreeSet<u8> {
    if dlid < 0xc000 {
        let table: BTreeMap<u16, u8> = plan.unicast.iter().copied().collect();
        let port = table.get(&dlid).filter(|_| dlid <= plan.linear_top);
        return port
            .copied()
            .into_iter()
            .filter(|p| *p != in_port && *p != 0)
            .collect();
    }
    let mut groups: BTreeMap<(u16, u8), u16> = BTreeMap::new();
    for (group, position, ports) in &plan.multicast {
        groups.insert((*group, *position), *ports);
    }
    let mut ports: BTreeSet<u8> = if plan.multicast_top != 0 && dlid > plan.multicast_top {
        let default = if in_port == plan.primary {
            plan.not_primary
        } else {
            plan.primary
        };
        [default].into_iter().collect()
    } else {
        (0..=plan.ports)
            .filter(|port| {
                let mask = groups
                    .get(&(dlid - 0xc000, port / 16))
                    .copied()
                    .unwrap_or(0);
                mask >> (port % 16) & 1 != 0
            })
            .collect()
    };
    ports.retain(|port| *port != in_port && *port != 0 && *port <= plan.ports);
    ports
}

proptest! {
    #[test]
    fn packets_leave_by_the_ports_of_the_tables(
        plan in plan(),
        packets in prop::collection::vec(
            (any::<u8>(), prop_oneof![1..LIDS + 20, 0xc000..0xc000 + GROUPS + 20]), 1..40
        ),
    ) {
        let mut switch = program(&plan);
        for (number, dlid) in packets {
            let in_port = number % plan.ports + 1;
            let mut out = Outputs::new();
            switch.forward(PortNum(in_port), packet(dlid), &mut out);
            let ports: BTreeSet<u8> = out.iter().map(|(port, _)| port.0).collect();
            prop_assert_eq!(ports.len(), out.len());
            prop_assert_eq!(ports, expected(&plan, in_port, dlid), "from {} to {:#x}", in_port, dlid);
        }
    }

    #[test]
    fn no_bytes_make_a_switch_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..100), in_port: u8,
        ports in prop::sample::select(&PORTS[..]),
    ) {
        let mut switch = switch(ports);
        let mut out = Outputs::new();
        switch.forward(PortNum(in_port), Frame::new(&bytes), &mut out);
        switch.route_smp(PortNum(in_port), Frame::new(&bytes), &mut out);
    }
}

#[test]
fn a_packet_caught_in_a_loop_is_discarded_in_the_end() {
    let mut switch = switch(2);
    let tables = switch.node.tables_mut().unwrap();
    tables.set_unicast(5, PortNum(2));
    tables.info.linear_fdb_top = Lid::new(5);
    let mut frame = packet(5);
    let mut crossed = 0;
    loop {
        let mut out = Outputs::new();
        switch.forward(PortNum(1), frame, &mut out);
        let Some((_, next)) = out.pop() else {
            break;
        };
        frame = next;
        crossed += 1;
    }
    assert_eq!(crossed, 63);
    assert_eq!(
        switch.node.port(PortNum(2)).unwrap().counters.xmit_discards,
        1
    );
}

/// Whether a packet passes the first port, by which it comes, or the second, by which it leaves.
fn passes(own: PKey, packet_key: PKey, inbound: bool) -> bool {
    let mut switch = switch(2);
    let tables = switch.node.tables_mut().unwrap();
    tables.set_unicast(5, PortNum(2));
    tables.info.linear_fdb_top = Lid::new(5);
    let enforcing = PortNum(if inbound { 1 } else { 2 });
    let port = switch.node.port_mut(enforcing).unwrap();
    port.pkeys = vec![PKey::INVALID, PKey::new(0x8001), own];
    port.partition_enforcement_in = inbound;
    port.partition_enforcement_out = !inbound;
    let mut out = Outputs::new();
    switch.forward(PortNum(1), packet_of(5, packet_key), &mut out);
    !out.is_empty()
}

#[test]
fn enforcement_asks_for_the_partition_and_leaves_memberships_to_the_end_nodes() {
    let default = [PKey::DEFAULT_FULL, PKey::DEFAULT_LIMITED];
    let foreign = [0x8002, 0x0002, 0x8000, 0].map(PKey::new);
    for inbound in [true, false] {
        for own in default {
            for key in default {
                assert!(passes(own, key, inbound), "{key} by {own}, {inbound}");
            }
            for key in foreign {
                assert!(!passes(own, key, inbound), "{key} by {own}, {inbound}");
            }
        }
    }
}

/// A switch at whose port 1 is a host with LID 5 that is not trusted, and LID 9 behind port 2.
fn guarding() -> Switch {
    let mut switch = switch(2);
    let tables = switch.node.tables_mut().unwrap();
    tables.info.linear_fdb_top = Lid::new(9);
    tables.set_unicast(5, PortNum(1));
    tables.set_unicast(9, PortNum(2));
    switch.guard.set(PortNum(1), true);
    switch
}

fn dropped(switch: &Switch, reason: DropReason) -> u64 {
    switch.node.drops().get(reason)
}

#[test]
fn a_host_that_is_not_trusted_speaks_for_its_own_lids_in_its_partitions() {
    let foreign = PKey::new(0x8123);
    for (slid, pkey, refused) in [
        (5, PKey::DEFAULT_FULL, None),
        (5, PKey::new(0x7fff), None),
        (9, PKey::DEFAULT_FULL, Some(DropReason::ForeignSlid)),
        (6, PKey::DEFAULT_FULL, Some(DropReason::ForeignSlid)),
        (0xc001, PKey::DEFAULT_FULL, Some(DropReason::ForeignSlid)),
        (5, foreign, Some(DropReason::BadPKey)),
    ] {
        let mut switch = guarding();
        let mut frame = packet_of(9, pkey);
        frame.rewrite_variant(|lrh| lrh.slid = Lid::new(slid));
        let mut out = Outputs::new();
        switch.forward(PortNum(1), frame.clone(), &mut out);
        assert_eq!(out.is_empty(), refused.is_some(), "{slid} {pkey:?}");
        let head = RunHead {
            slid: Lid::new(slid),
            dlid: Lid::new(9),
            sl: Sl::default(),
            vl: Vl::default(),
            pkey,
            packets: 1,
            words: 10,
            longest: 10,
            payload: 8,
        };
        assert_eq!(
            switch.passes(PortNum(1), &head).is_none(),
            refused.is_some()
        );
        if let Some(reason) = refused {
            assert_eq!(dropped(&switch, reason), 1);
            let port = switch.node.port(PortNum(1)).unwrap();
            assert_eq!(port.counters.rcv_constraint_errors, 1);
        }
        switch.guard.set(PortNum(1), false);
        switch.forward(PortNum(1), frame, &mut out);
        assert!(!out.is_empty(), "a peer that is trusted as a switch is");
    }
}

#[test]
fn a_host_that_is_not_trusted_sends_no_raw_packets() {
    let mut switch = guarding();
    let mut frame = packet_of(9, PKey::DEFAULT_FULL);
    frame.rewrite_variant(|lrh| {
        lrh.slid = Lid::new(5);
        lrh.set_lnh(Lnh::RawEthertype);
    });
    let mut out = Outputs::new();
    switch.forward(PortNum(1), frame, &mut out);
    assert!(out.is_empty());
    assert_eq!(dropped(&switch, DropReason::RawFiltered), 1);
}

#[test]
fn of_smps_a_host_that_is_not_trusted_sends_responses_and_traps_alone() {
    let mad = |method| {
        let mut mad = Mad::default();
        mad.header.mgmt_class = MgmtClass::SUBN_LID_ROUTED;
        mad.header.method = method;
        mad
    };
    let any = Lid::PERMISSIVE.get();
    for (method, [slid, dlid], refused) in [
        (Method::GET_RESP, [5, 9], None),
        (Method::GET_RESP, [any, any], None),
        (Method::TRAP, [5, 9], None),
        (Method::TRAP, [9, 9], Some(DropReason::ForeignSlid)),
        (Method::GET, [5, 9], Some(DropReason::ForeignSmp)),
        (Method::SET, [any, any], Some(DropReason::ForeignSmp)),
        (Method::TRAP_REPRESS, [5, 9], Some(DropReason::ForeignSmp)),
    ] {
        let mut switch = guarding();
        let smp = |lid| Lid::new(lid);
        let mut frame = Frame::of_smp(&mad(method), smp(slid), smp(dlid), Sl::default()).unwrap();
        let is_taken = switch.admit_smp(PortNum(1), &mut frame);
        assert_eq!(is_taken, refused.is_none(), "{method:?} {slid}");
        if let Some(reason) = refused {
            assert_eq!(dropped(&switch, reason), 1);
        }
        assert!(
            switch.admit_smp(PortNum(2), &mut frame),
            "port 2 is not guarded"
        );
    }
}
