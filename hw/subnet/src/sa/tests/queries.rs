//! Paths, tables, and requests that make no sense.

use ib_wire::mad::MgmtClass;
use ib_wire::sa::{
    LftRecord, LinkRecord, McMemberRecord, MftRecord, NodeRecord, PKeyTableRecord, PathRecord,
    PortInfoRecord, Selector, SmInfoRecord, SwitchInfoRecord,
};
use ib_wire::{Lmc, Mtu, PortNum, Rate};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::*;

fn path(from: usize, to: usize) -> PathRecord {
    PathRecord {
        sgid: gid(from),
        dgid: gid(to),
        ..PathRecord::default()
    }
}

const BY_GIDS: ComponentMask = PathRecord::SGID.union(PathRecord::DGID);

#[test]
fn a_path_says_what_the_links_on_it_can_do() {
    let mut s = Subnet::new(SubnetConfig::default());
    let found = s.ask(0, Method::GET, BY_GIDS, &path(0, 2)).unwrap();
    assert_eq!((found.slid, found.dlid), (s.lid(0), s.lid(2)));
    assert_eq!(
        (found.mtu_value(), found.rate_value()),
        (Mtu::MTU_4096, Rate::GBPS_40)
    );
    assert_eq!(found.packet_life_time_value(), 18);
    assert!(found.reversible());
    let own = s.ask(0, Method::GET, BY_GIDS, &path(0, 0)).unwrap();
    assert_eq!(own.packet_life_time_value(), 0, "a loopback takes no time");
}

#[test]
fn selectors_narrow_or_refuse_paths() {
    let mut s = Subnet::new(SubnetConfig::default());
    let mtu = BY_GIDS | PathRecord::MTU_SELECTOR | PathRecord::MTU;
    let mut ask = |selector, value| {
        let mut record = path(0, 2);
        record.set_mtu_selector(selector);
        record.set_mtu_value(value);
        s.ask(0, Method::GET, mtu, &record)
            .map(|found| found.mtu_value())
    };
    let none = Err(MadStatus::SA_NO_RECORDS);
    assert_eq!(ask(Selector::EXACTLY, Mtu::MTU_1024), Ok(Mtu::MTU_1024));
    assert_eq!(ask(Selector::GREATER, Mtu::MTU_2048), Ok(Mtu::MTU_4096));
    assert_eq!(ask(Selector::GREATER, Mtu::MTU_4096), none);
    assert_eq!(ask(Selector::LESS, Mtu::MTU_4096), Ok(Mtu::MTU_2048));
    assert_eq!(ask(Selector::LESS, Mtu::MTU_256), none);
    assert_eq!(ask(Selector::BEST, Mtu::MTU_256), Ok(Mtu::MTU_4096));
    assert_eq!(ask(Selector::EXACTLY, Mtu::new(7)), invalid());
}

#[test]
fn paths_are_only_within_common_partitions() {
    let mut s = Subnet::partitioned();
    let with_pkey = BY_GIDS | PathRecord::PKEY;
    let mut record = path(1, 2);
    record.pkey = TENANT;
    assert_eq!(
        s.ask(1, Method::GET, with_pkey, &record).unwrap().pkey,
        TENANT
    );
    record = PathRecord {
        pkey: TENANT,
        ..path(0, 1)
    };
    assert_eq!(
        s.ask(1, Method::GET, with_pkey, &record),
        Err(MadStatus::SA_NO_RECORDS)
    );
    let any = s.ask(2, Method::GET, BY_GIDS, &path(2, 1)).unwrap();
    assert_eq!(
        any.pkey,
        PKey::new(0x0012),
        "the lowest common one, with the source's membership"
    );
}

#[test]
fn wildcards_give_all_pairs_and_numb_path_limits_each() {
    let lmc = Lmc::new(1).unwrap();
    let mut s = Subnet::new(SubnetConfig {
        lmc,
        ..SubnetConfig::default()
    });
    let to_one = s.table(0, 0, PathRecord::SGID, &path(0, 0)).unwrap();
    // Three hosts with two LIDs and two switches with one, from two LIDs.
    assert_eq!(to_one.len(), 3 * 4 + 2 * 2);
    let mut record = path(0, 2);
    record.set_numb_path(2);
    let two = s
        .table(0, 0, BY_GIDS | PathRecord::NUMB_PATH, &record)
        .unwrap();
    assert_eq!(two.iter().map(|p| p.preference).collect::<Vec<_>>(), [0, 0]);
    assert_ne!((two[0].slid, two[0].dlid), (two[1].slid, two[1].dlid));
    let all = s.table(0, 0, BY_GIDS, &record).unwrap();
    assert_eq!(
        all.iter().map(|p| p.preference).collect::<Vec<_>>(),
        [0, 0, 2, 2]
    );
}

#[test]
fn contradicting_or_unknown_ends_are_refused() {
    let mut s = Subnet::new(SubnetConfig::default());
    let mut record = path(0, 2);
    record.dlid = s.lid(1);
    assert_eq!(
        s.ask(0, Method::GET, BY_GIDS | PathRecord::DLID, &record),
        invalid()
    );
    record.dgid = Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(0x999));
    assert_eq!(
        s.ask(0, Method::GET, BY_GIDS, &record),
        Err(MadStatus::SA_NO_RECORDS)
    );
    let half = ComponentMask::new(1);
    let refused = s.ask(0, Method::GET, half, &record);
    assert_eq!(refused, Err(MadStatus::SA_INSUFFICIENT_COMPONENTS));
}

#[test]
fn the_path_to_a_group_is_the_groups() {
    let mut s = Subnet::new(SubnetConfig::default());
    let broadcast = s.sa.groups().next().unwrap().record;
    let record = PathRecord {
        dgid: broadcast.mgid,
        ..path(0, 0)
    };
    let found = s.ask(0, Method::GET, PathRecord::DGID, &record).unwrap();
    assert_eq!(
        (found.dlid, found.pkey, found.mtu),
        (Lid::new(0xc000), PKey::DEFAULT_FULL, 0x84)
    );
    let refused = s.ask(0, Method::GET, BY_GIDS, &record);
    assert_eq!(
        refused,
        Err(MadStatus::SA_NO_RECORDS),
        "the source is no member"
    );
}

/// In OpenSM's answers the number of a block stands in the order of its host, and `saquery` takes it so; in requests it
/// is in network order (`osm_sa_pkey_record.c`).
#[test]
fn pkey_tables_of_hosts_and_switch_ports_are_shown_as_opensm_does() {
    let mut fabric = small();
    for node in &mut fabric.nodes {
        if let Some(info) = &mut node.switch {
            info.partition_enforcement_cap = 32.into();
        }
    }
    let config = SubnetConfig::default();
    let mut s = Subnet::of(&mut fabric, config);
    let switch = s.sm.topology().switches()[0];
    let switch = s.sm.topology().node(switch).lid(PortNum::SWITCH_MANAGEMENT);
    let host = s.lid(1);
    let (lid, port, block) = (
        PKeyTableRecord::LID,
        PKeyTableRecord::PORT_NUM,
        PKeyTableRecord::BLOCK,
    );
    // Port, number of the block as its bytes stand in the answer, first key.
    type Row = (u8, [u8; 2], u16);
    type Case<'a> = (Lid, ComponentMask, (u8, u16), &'a [Row]);
    let cases: [Case<'_>; 7] = [
        (host, lid, (0, 0), &[(1, [0, 0], 0xffff), (1, [1, 0], 0)]),
        (host, lid | block, (0, 1), &[(1, [1, 0], 0)]),
        (host, lid | block, (0, 9), &[(1, [9, 0], 0)]),
        (
            host,
            lid | port,
            (7, 0),
            &[(1, [0, 0], 0xffff), (1, [1, 0], 0)],
        ),
        (
            switch,
            lid | port,
            (0, 0),
            &[(0, [0, 0], 0xffff), (0, [1, 0], 0)],
        ),
        (switch, lid | port, (2, 0), &[(2, [0, 0], 0)]),
        (switch, lid | port, (99, 0), &[]),
    ];
    for (of, mask, (port_num, block), expected) in cases {
        let wanted = PKeyTableRecord {
            lid: of,
            port_num: PortNum(port_num),
            block: block.into(),
            ..PKeyTableRecord::default()
        };
        let found = s.table(0, 1, mask, &wanted).unwrap();
        let rows = found.iter().map(|record| {
            assert_eq!(record.lid, of);
            let block = record.block.get().to_be_bytes();
            (record.port_num.0, block, record.pkeys[0].get())
        });
        assert_eq!(rows.collect::<Vec<Row>>(), expected, "{of} {mask:?}");
    }
}

#[test]
fn every_table_shows_the_subnet() {
    let mut s = Subnet::new(SubnetConfig::default());
    assert_eq!(
        s.table(0, 0, NONE, &NodeRecord::default()).unwrap().len(),
        5
    );
    assert_eq!(
        s.table(0, 0, NONE, &PortInfoRecord::default())
            .unwrap()
            .len(),
        3 + 2 * 9
    );
    assert_eq!(
        s.table(0, 0, NONE, &SwitchInfoRecord::default())
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        s.table(0, 0, NONE, &LinkRecord::default()).unwrap().len(),
        10
    );
    assert_eq!(
        s.table(0, 0, NONE, &SmInfoRecord::default()).unwrap().len(),
        1
    );
    let lfts = s.table(0, 0, NONE, &LftRecord::default()).unwrap();
    assert_eq!(lfts.len(), 2);
    assert_eq!(lfts[0].ports[s.lid(0).index()].0, 1);
    assert_eq!(s.table(0, 0, NONE, &MftRecord::default()), Ok(vec![]));
    let pkeys = PKeyTableRecord::default();
    assert_eq!(
        s.table(0, 0, NONE, &pkeys),
        invalid(),
        "for the trusted only"
    );
    let one = NodeRecord {
        lid: s.lid(2),
        ..NodeRecord::default()
    };
    assert_eq!(
        s.ask(0, Method::GET, NodeRecord::LID, &one)
            .unwrap()
            .node_info()
            .port_guid,
        HOSTS[2]
    );
    assert_eq!(s.view().topology.node_count(), 5);
}

#[test]
fn strangers_wrong_keys_and_unknown_requests_get_silence() {
    let mut s = Subnet::new(SubnetConfig::default());
    let record = NodeRecord::default();
    let good = SaMad::new(Method::GET_TABLE, NONE, &record);
    let lid = s.lid(1);
    assert!(s.send(Lid::new(999), &good).is_none());
    let mut wrong_key = good;
    wrong_key.sm_key = SmKey::new(9);
    assert!(s.send(lid, &wrong_key).is_none());
    let mut unknown = good;
    unknown.header.attribute_id = AttributeId::new(0x7777);
    assert!(s.send(lid, &unknown).is_none());
    let mut odd = good;
    odd.header.method = Method::GET_TRACE_TABLE;
    assert!(s.send(lid, &odd).is_none());
    let set = s.ask(1, Method::SET, NONE, &record);
    assert_eq!(set, Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE));
    let stats = s.sa.stats();
    assert_eq!((stats.ignored, stats.refused, stats.answered), (4, 1, 0));
}

#[test]
fn an_error_echoes_the_request() {
    let mut s = Subnet::new(SubnetConfig::default());
    let record = McMemberRecord {
        reserved: [3, 4],
        ..McMemberRecord::default()
    };
    let mut mad = SaMad::new(Method::SET, ComponentMask::new(0x55), &record);
    mad.data[150..].fill(0xa5);
    mad.sm_key = SmKey::new(1);
    let answer = s.send(s.lid(1), &mad).unwrap();
    let mut expected = mad;
    expected.header.method = Method::GET_RESP;
    expected.header.status = MadStatus::SA_INSUFFICIENT_COMPONENTS;
    expected.sm_key = SmKey::default();
    assert_eq!(answer.mad().as_bytes(), expected.as_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn no_request_panics_or_gets_more_than_the_limit(
        attribute in prop::sample::select(vec![
            0x01, 0x03, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x18, 0x20, 0x30, 0x31, 0x33, 0x35,
            0x36, 0x38, 0x3a, 0xf3, 0x39,
        ]),
        method in prop::sample::select(vec![1_u8, 2, 3, 6, 0x12, 0x14, 0x15]),
        mask in prop_oneof![any::<u64>(), (0_u64..16).prop_map(|n| 1 << n), Just(0x1_70c7)],
        modifier: u32,
        data in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 200),
        host in 0_usize..3,
        trusted: bool,
    ) {
        let mut s = Subnet::partitioned();
        let mut mad = SaMad::read_from_bytes(&[0; 256]).unwrap();
        mad.header = ib_wire::mad::MadHeader::new(
            MgmtClass::SUBN_ADM,
            Method::new(method),
            AttributeId::new(attribute),
        );
        mad.header.attribute_modifier = modifier.into();
        mad.sm_key = SmKey::new(u64::from(trusted));
        mad.component_mask = ComponentMask::new(mask);
        mad.data.copy_from_slice(&data);
        if let Some(answer) = s.send(s.lid(host), &mad) {
            prop_assert!(answer.data().len() <= MAX_ANSWER);
            prop_assert_eq!(answer.mad().view::<SaMad>().sm_key, SmKey::default());
        }
    }
}
