//! Tables that are made piece by piece.

use ib_wire::notice::{InformInfo, ProducerType, TrapNumber};
use ib_wire::sa::{
    GuidInfoRecord, JoinState, McMemberRecord, NodeRecord, PathRecord, ServiceRecord,
};
use ib_wire::{Lmc, ServiceId, Tid};

use super::*;
use crate::sa::request::Records;

const TABLES: [AttributeId; 15] = [
    AttributeId::NODE_RECORD,
    AttributeId::PORT_INFO_RECORD,
    AttributeId::SL_TO_VL_RECORD,
    AttributeId::SWITCH_INFO_RECORD,
    AttributeId::LFT_RECORD,
    AttributeId::MFT_RECORD,
    AttributeId::SM_INFO_RECORD,
    AttributeId::LINK_RECORD,
    AttributeId::GUID_INFO_RECORD,
    AttributeId::SERVICE_RECORD,
    AttributeId::PKEY_TABLE_RECORD,
    AttributeId::PATH_RECORD,
    AttributeId::VL_ARB_RECORD,
    AttributeId::MC_MEMBER_RECORD,
    AttributeId::INFORM_INFO_RECORD,
];

/// A subnet of so many hosts on a switch, with `2^lmc` LIDs each.
fn star(hosts: u8, lmc: u8) -> Subnet {
    let mut fabric = Fabric::default();
    for host in 0..hosts {
        fabric.host(0x100 + 0x10 * u64::from(host));
    }
    fabric.switch(0x10_0000, hosts);
    for host in 0..hosts {
        fabric.link((usize::from(host), 1), (usize::from(hosts), host + 1));
    }
    let lmc = Lmc::new(lmc).unwrap();
    let config = SubnetConfig {
        lmc,
        ..SubnetConfig::default()
    };
    Subnet::of(&mut fabric, config)
}

/// A subnet with something of everything that tables show.
fn furnished() -> Subnet {
    let mut s = star(6, 1);
    for (host, group) in [(0, 1), (1, 1), (2, 2)] {
        let mut aliases = GuidInfoRecord {
            lid: s.lid(host),
            ..GuidInfoRecord::default()
        };
        aliases.guids[2] = Guid::new(0xa0 - host as u64);
        s.ask(host, Method::SET, ComponentMask::new(0x43), &aliases)
            .unwrap();
        let service = ServiceRecord {
            service_id: ServiceId::new(host as u64),
            service_gid: gid(host),
            ..ServiceRecord::default()
        };
        s.ask(host, Method::SET, ComponentMask::new(3), &service)
            .unwrap();
        let inform = InformInfo {
            lid_range_begin: Lid::new(0xffff),
            is_generic: 1,
            subscribe: 1,
            notice_type: InformInfo::ALL_TYPES.into(),
            trap_number: TrapNumber::GID_IN_SERVICE,
            producer: ProducerType::ALL.0,
            ..InformInfo::default()
        };
        s.ask(host, Method::SET, NONE, &inform).unwrap();
        let mut join = McMemberRecord {
            port_gid: gid(host),
            pkey: PKey::DEFAULT_FULL,
            ..McMemberRecord::default()
        };
        (join.mgid.0[0], join.mgid.0[1]) = (0xff, 0x12);
        join.mgid.0[15] = group;
        join.set_join_state(JoinState::FULL_MEMBER);
        s.ask(host, Method::SET, ComponentMask::new(0x1_70c7), &join)
            .unwrap();
    }
    s
}

/// The records of a query that is answered in pieces of so much work, and how many pieces.
fn in_pieces(s: &Subnet, mad: &SaMad, work: usize) -> (Records, usize) {
    let from = MadAddress::gsi(s.lid(0));
    let request = Request {
        now: s.now,
        mad,
        data: &mad.data,
        from: &from,
        view: s.view(),
    };
    let mut search = Search::new();
    let mut pieces = 0;
    while !search.is_complete() {
        search.allow(work);
        let before = search.records.len();
        s.sa.query(&request, &mut search).unwrap();
        pieces += 1;
        assert!(
            search.records.len() - before <= work.saturating_mul(10),
            "a piece is bounded"
        );
        assert!(pieces < 100_000, "it ends");
    }
    (search.records, pieces)
}

fn everything(attribute: AttributeId, key: u64) -> SaMad {
    let mut mad = SaMad::new(Method::GET_TABLE, NONE, &NodeRecord::default());
    mad.header.attribute_id = attribute;
    mad.sm_key = SmKey::new(key);
    mad
}

#[test]
fn pieces_of_any_size_find_the_same_records_in_the_same_order() {
    let s = furnished();
    for attribute in TABLES {
        for key in [0, 1] {
            if key == 0 && attribute == AttributeId::PKEY_TABLE_RECORD {
                continue;
            }
            let mad = everything(attribute, key);
            let (whole, pieces) = in_pieces(&s, &mad, usize::MAX);
            assert_eq!(pieces, 1);
            assert!(
                whole.len() > 0 || attribute == AttributeId::MFT_RECORD,
                "{attribute:?}"
            );
            for work in [1, 2, 3, 7] {
                let (found, _) = in_pieces(&s, &mad, work);
                assert_eq!(found, whole, "{attribute:?} by {work}");
            }
        }
    }
}

#[test]
fn paths_of_all_pairs_stand_in_the_order_of_targets_and_sources_and_lids() {
    let mut s = star(3, 1);
    let paths = s.table(0, 0, NONE, &PathRecord::default()).unwrap();
    let guids: Vec<Guid> =
        s.sm.topology()
            .end_ports()
            .map(|(_, port)| port.guid)
            .collect();
    let ends: Vec<(Guid, Guid)> = paths
        .iter()
        .map(|path| (path.dgid.interface_id(), path.sgid.interface_id()))
        .collect();
    let mut runs = ends.clone();
    runs.dedup();
    let pairs = guids
        .iter()
        .flat_map(|target| guids.iter().map(|source| (*target, *source)));
    assert_eq!(runs, pairs.collect::<Vec<_>>());
    let (from, to) = (s.lid(1).get(), s.lid(2).get());
    let between = paths
        .iter()
        .filter(|path| path.sgid == gid(1) && path.dgid == gid(2));
    let lids = between.map(|path| {
        (
            path.slid.get() - from,
            path.dlid.get() - to,
            path.preference,
        )
    });
    assert_eq!(
        lids.collect::<Vec<_>>(),
        [(0, 0, 0), (1, 1, 0), (0, 1, 2), (1, 0, 2)]
    );
}

#[test]
fn a_step_looks_at_a_bounded_number_of_pairs() {
    let mut s = star(60, 0);
    let mad = everything(AttributeId::PATH_RECORD, 0);
    let message = Message::single(Mad::from_layout(&mad));
    let view = SubnetView {
        topology: s.sm.topology(),
        manager: s.sm.sm_info(),
        other_managers: &[],
    };
    let from = MadAddress::gsi(s.lid(0));
    assert!(s.sa.handle(s.now, &view, &from, &message).is_none());
    let mut pieces = 1;
    let answer = loop {
        let (before, size) = (s.sa.unfinished.bytes(), size_of::<PathRecord>());
        let made = s.sa.make_piece(s.now, &view);
        pieces += 1;
        if let Some((to, answer)) = made {
            assert_eq!(to, from);
            break answer;
        }
        assert!(s.sa.unfinished.bytes() - before <= PIECE / 4 * size);
    };
    assert_eq!(answer.data().len(), 61 * 61 * size_of::<PathRecord>());
    assert!(pieces > 61 * 61 * 4 / PIECE, "{pieces} pieces");
    assert!(!s.sa.has_unfinished());
    assert_eq!(s.sa.unfinished.bytes(), 0);
}

#[test]
fn a_query_that_names_both_ends_looks_at_no_other() {
    let s = star(60, 0);
    let named = |record: PathRecord, mask| {
        let mad = SaMad::new(Method::GET_TABLE, mask, &record);
        let (found, pieces) = in_pieces(&s, &mad, 8);
        assert_eq!((found.len(), pieces), (1, 1));
    };
    let record = PathRecord {
        sgid: gid(0),
        dgid: gid(2),
        slid: s.lid(0),
        dlid: s.lid(2),
        ..PathRecord::default()
    };
    named(record, PathRecord::SGID | PathRecord::DGID);
    named(record, PathRecord::SLID | PathRecord::DLID);
    named(record, PathRecord::SGID | PathRecord::DLID);
    let mad = SaMad::new(Method::GET_TABLE, PathRecord::SLID, &record);
    let (found, pieces) = in_pieces(&s, &mad, PIECE);
    assert_eq!(found.len(), 61);
    assert!(pieces <= 4, "{pieces} pieces for the paths of one port");
}

/// Sends a host's request for all paths, under a transaction of its own.
fn ask_for_paths(s: &mut Subnet, host: usize, tid: u64) -> Option<Message> {
    let mut mad = everything(AttributeId::PATH_RECORD, 0);
    mad.header.tid = Tid::new(tid);
    let view = SubnetView {
        topology: s.sm.topology(),
        manager: s.sm.sm_info(),
        other_managers: &[],
    };
    let message = Message::single(Mad::from_layout(&mad));
    s.sa.handle(s.now, &view, &MadAddress::gsi(s.lid(host)), &message)
}

fn next_answer(s: &mut Subnet) -> Option<(MadAddress, Message)> {
    let view = SubnetView {
        topology: s.sm.topology(),
        manager: s.sm.sm_info(),
        other_managers: &[],
    };
    while s.sa.has_unfinished() {
        if let Some(answer) = s.sa.make_piece(s.now, &view) {
            return Some(answer);
        }
    }
    None
}

#[test]
fn a_port_that_asks_for_much_does_not_delay_another_by_more_than_its_share() {
    let mut s = star(20, 0);
    for tid in 0..10 {
        assert!(ask_for_paths(&mut s, 0, tid).is_none());
    }
    assert!(ask_for_paths(&mut s, 1, 0).is_none());
    let order: Vec<Lid> = core::iter::from_fn(|| next_answer(&mut s))
        .map(|(to, _)| to.lid)
        .collect();
    assert_eq!(order.len(), 11);
    let other = order.iter().position(|lid| *lid == s.lid(1));
    assert!(other <= Some(1), "they take turns: {order:?}");
}

#[test]
fn a_repetition_of_a_query_under_way_is_dropped() {
    let mut s = star(20, 0);
    for _ in 0..3 {
        assert!(ask_for_paths(&mut s, 0, 7).is_none());
    }
    assert!(next_answer(&mut s).is_some());
    assert!(next_answer(&mut s).is_none(), "one answer");
}

#[test]
fn more_tables_than_a_port_may_have_under_way_are_refused_as_busy() {
    let mut s = star(20, 0);
    for tid in 0..MAX_QUERIES_PER_PORT as u64 {
        assert!(ask_for_paths(&mut s, 0, tid).is_none());
    }
    let refused = ask_for_paths(&mut s, 0, 1000).unwrap();
    assert_eq!(refused.status(), MadStatus::BUSY);
    assert!(ask_for_paths(&mut s, 1, 0).is_none(), "another port's turn");
    let record = PathRecord {
        sgid: gid(0),
        dgid: gid(2),
        ..PathRecord::default()
    };
    let both = PathRecord::SGID | PathRecord::DGID;
    let mut mad = SaMad::new(Method::GET, both, &record);
    mad.header.tid = Tid::new(2000);
    let view = SubnetView {
        topology: s.sm.topology(),
        manager: s.sm.sm_info(),
        other_managers: &[],
    };
    let message = Message::single(Mad::from_layout(&mad));
    let single =
        s.sa.handle(s.now, &view, &MadAddress::gsi(s.lid(0)), &message);
    assert_eq!(
        single.map(|answer| answer.status()),
        Some(MadStatus::OK),
        "single records are found at once"
    );
}

#[test]
fn bytes_on_their_way_count_until_they_arrived() {
    let mut s = star(20, 0);
    let port = HOSTS[0];
    s.sa.answer_begun(port, MAX_BYTES_PER_PORT);
    let refused = ask_for_paths(&mut s, 0, 1).unwrap();
    assert_eq!(refused.status(), MadStatus::BUSY);
    s.sa.answer_ended(port, 10_000);
    assert!(ask_for_paths(&mut s, 0, 2).is_none());
    let (_, outgrown) = next_answer(&mut s).unwrap();
    assert_eq!(outgrown.status(), MadStatus::BUSY, "it found no room");
    s.sa.answer_ended(port, MAX_BYTES_PER_PORT - 10_000);
    assert_eq!(s.sa.unfinished.bytes(), 0);
    assert!(ask_for_paths(&mut s, 0, 3).is_none());
    let (_, whole) = next_answer(&mut s).unwrap();
    assert_eq!(whole.status(), MadStatus::OK);
    for host in 0..MAX_BYTES / MAX_BYTES_PER_PORT {
        let guid = Guid::new(0x101 + 0x10 * (1 + host as u64));
        s.sa.answer_begun(guid, MAX_BYTES_PER_PORT);
    }
    let refused = ask_for_paths(&mut s, 0, 4).unwrap();
    assert_eq!(refused.status(), MadStatus::BUSY, "all ports together");
}

#[test]
fn a_port_registers_its_share_of_services() {
    let mut s = Subnet::new(SubnetConfig::default());
    let mut register = |host: usize, id: u64, method| {
        let record = ServiceRecord {
            service_id: ServiceId::new(id),
            service_gid: gid(host),
            ..ServiceRecord::default()
        };
        s.ask(host, method, ComponentMask::new(3), &record)
            .map(|_| ())
    };
    for id in 0..MAX_SERVICES_PER_PORT as u64 {
        register(0, id, Method::SET).unwrap();
    }
    let full = Err(MadStatus::SA_NO_RESOURCES);
    assert_eq!(register(0, 1 << 32, Method::SET), full);
    assert_eq!(register(0, 5, Method::SET), Ok(()), "the same anew");
    assert_eq!(register(1, 0, Method::SET), Ok(()), "another port's");
    assert_eq!(register(0, 5, Method::DELETE), Ok(()));
    assert_eq!(register(0, 1 << 32, Method::SET), Ok(()));
    assert_eq!(register(0, 1 << 33, Method::SET), full);
}
