//! MCMemberRecord and GUIDInfoRecord.

use ib_wire::sa::{GuidInfoRecord, JoinState, McMemberRecord, Selector};
use ib_wire::{Mtu, QKey, Rate};

use super::*;

const FULL: JoinState = JoinState::FULL_MEMBER;
const NON: JoinState = JoinState::NON_MEMBER;
const SEND_ONLY: JoinState = JoinState::SEND_ONLY_NON_MEMBER;
const SEND_ONLY_FULL: JoinState = JoinState::SEND_ONLY_FULL_MEMBER;

const JOIN: ComponentMask = ComponentMask::new(0x1_0003);
const CREATE: ComponentMask = ComponentMask::new(0x1_0003 | 0x70c4);

/// An MGID that any client may choose.
fn group(n: u8) -> Gid {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1], bytes[15]) = (0xff, 0x12, n);
    Gid(bytes)
}

fn member(mgid: Gid, host: usize, state: JoinState) -> McMemberRecord {
    let mut record = McMemberRecord {
        mgid,
        port_gid: gid(host),
        qkey: QKey::new(0x1234),
        pkey: PKey::DEFAULT_FULL,
        ..McMemberRecord::default()
    };
    record.set_join_state(state);
    record
}

impl Subnet {
    fn join(&mut self, host: usize, record: &McMemberRecord) -> Result<McMemberRecord, MadStatus> {
        self.ask(host, Method::SET, JOIN, record)
    }

    fn create(
        &mut self,
        host: usize,
        record: &McMemberRecord,
    ) -> Result<McMemberRecord, MadStatus> {
        self.ask(host, Method::SET, CREATE, record)
    }

    fn leave(&mut self, host: usize, record: &McMemberRecord) -> Result<JoinState, MadStatus> {
        self.ask(host, Method::DELETE, JOIN, record)
            .map(|record| record.join_state())
    }
}

#[test]
fn joins_must_name_group_port_and_state() {
    let mut s = Subnet::new(SubnetConfig::default());
    let record = member(group(1), 0, FULL);
    for method in [Method::SET, Method::DELETE] {
        for mask in [0x0_0003, 0x1_0001, 0x1_0002] {
            let refused = s.ask(0, method, ComponentMask::new(mask), &record);
            assert_eq!(
                refused,
                Err(MadStatus::SA_INSUFFICIENT_COMPONENTS),
                "{mask:x}"
            );
        }
    }
    let refused = s.join(0, &record);
    assert_eq!(
        refused,
        Err(MadStatus::SA_INSUFFICIENT_COMPONENTS),
        "not enough to create"
    );
}

#[test]
fn port_gids_must_be_of_a_known_port_of_the_subnet() {
    let mut s = Subnet::new(SubnetConfig::default());
    let mut record = member(group(1), 0, FULL);
    record.port_gid = Gid::from_parts(SubnetPrefix::new(1), HOSTS[0]);
    assert_eq!(s.create(0, &record), Err(MadStatus::SA_INVALID_GID));
    record.port_gid = Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(0x999));
    assert_eq!(s.create(0, &record), invalid());
}

#[test]
fn the_default_prefix_is_accepted_and_echoed_in_a_subnet_with_its_own() {
    let prefix = SubnetPrefix::new(0xfec0_0000_0000_0007);
    let mut s = Subnet::new(SubnetConfig {
        prefix,
        ..SubnetConfig::default()
    });
    let joined = s.create(0, &member(group(1), 0, FULL)).unwrap();
    assert_eq!(joined.port_gid, gid(0));
    let mut own = member(group(1), 0, NON);
    own.port_gid = Gid::from_parts(prefix, HOSTS[0]);
    let joined = s.join(0, &own).unwrap();
    assert_eq!(
        (joined.port_gid, joined.join_state()),
        (own.port_gid, FULL | NON)
    );
}

#[test]
fn only_full_kinds_create_a_group() {
    let mut s = Subnet::new(SubnetConfig::default());
    for state in [NON, SEND_ONLY, JoinState::NONE] {
        assert_eq!(
            s.create(0, &member(group(1), 0, state)),
            invalid(),
            "{state:?}"
        );
    }
    for (n, state) in [(1, FULL), (2, SEND_ONLY_FULL)] {
        assert_eq!(
            s.create(0, &member(group(n), 0, state))
                .unwrap()
                .join_state(),
            state
        );
    }
}

#[test]
fn a_group_has_the_values_of_its_creator_and_of_its_port() {
    let mut s = Subnet::new(SubnetConfig::default());
    let created = s.create(0, &member(group(1), 0, FULL)).unwrap();
    assert_eq!(created.mlid, Lid::new(0xc001));
    assert_eq!(created.mtu_selector(), Selector::EXACTLY);
    assert_eq!(created.mtu_value(), Mtu::MTU_4096);
    assert_eq!(created.rate_value(), Rate::GBPS_40);
    let mut other = member(group(1), 1, NON);
    other.qkey = QKey::new(9);
    let joined = s.join(1, &other).unwrap();
    assert_eq!((joined.qkey, joined.mlid), (created.qkey, created.mlid));
}

#[test]
fn mgids_are_checked() {
    let mut s = Subnet::new(SubnetConfig::default());
    let mgid = |head: [u8; 6]| {
        let mut bytes = group(7).0;
        bytes[..6].copy_from_slice(&head);
        Gid(bytes)
    };
    for (what, head) in [
        ("not multicast", [0xfe, 0x12, 0, 0, 0, 0]),
        ("reserved flags", [0xff, 0x22, 0, 0, 0, 0]),
        ("the SA's own", [0xff, 0x12, 0xa0, 0x1b, 0, 0]),
        (
            "IPoIB without its broadcast group",
            [0xff, 0x12, 0x40, 0x1b, 0x80, 0x77],
        ),
        (
            "IPoIB with other parameters",
            [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff],
        ),
    ] {
        assert_eq!(
            s.create(0, &member(mgid(head), 0, FULL)),
            invalid(),
            "{what}"
        );
    }
    let mut ipoib = member(mgid([0xff, 0x12, 0x60, 0x1b, 0xff, 0xff]), 0, FULL);
    ipoib.qkey = QKey::new(0x0b1b);
    assert!(s.create(0, &ipoib).is_ok());
    assert!(
        s.create(0, &member(mgid([0xff, 0x15, 0xa0, 0x1b, 0, 0]), 0, FULL))
            .is_ok()
    );
}

#[test]
fn an_mgid_of_zero_gets_the_asked_scope() {
    let mut s = Subnet::new(SubnetConfig::default());
    let mut record = member(Gid::NONE, 0, FULL);
    record.set_scope(5);
    let local = s.create(0, &record).unwrap();
    assert_eq!(local.mgid.0[..4], [0xff, 0x12, 0xa0, 0x1b]);
    let mask = CREATE | McMemberRecord::SCOPE;
    let site = s.ask(0, Method::SET, mask, &record).unwrap();
    assert_eq!(site.mgid.0[1], 0x15);
    assert_ne!(site.mlid, local.mlid);
}

#[test]
fn unrealisable_and_illegal_values_are_refused() {
    let mut s = Subnet::new(SubnetConfig::default());
    let mtu = McMemberRecord::MTU_SELECTOR | McMemberRecord::MTU;
    let rate = McMemberRecord::RATE_SELECTOR | McMemberRecord::RATE;
    let mut ask = |mask, change: &dyn Fn(&mut McMemberRecord)| {
        let mut record = member(group(1), 0, FULL);
        change(&mut record);
        let answer = s.ask(0, Method::SET, CREATE | mask, &record);
        if answer.is_ok() {
            s.leave(0, &record).unwrap();
        }
        answer
    };
    assert_eq!(ask(mtu, &|r| r.set_mtu_value(Mtu::new(9))), invalid());
    assert_eq!(ask(rate, &|r| r.set_rate_value(Rate::new(1))), invalid());
    assert_eq!(
        ask(mtu, &|r| r.set_mtu_value(Mtu::MTU_4096)),
        invalid(),
        "nothing is greater"
    );
    let exact = ask(rate, &|r| {
        r.set_rate_selector(Selector::EXACTLY);
        r.set_rate_value(Rate::GBPS_100);
    });
    assert_eq!(exact, invalid(), "the port is slower");
    let less = ask(mtu, &|r| {
        r.set_mtu_selector(Selector::LESS);
        r.set_mtu_value(Mtu::MTU_2048);
    });
    assert_eq!(less.unwrap().mtu_value(), Mtu::MTU_1024);
    assert_eq!(
        ask(NONE, &|r| r.pkey = PKey::new(0x8000)),
        invalid(),
        "partition 0"
    );
}

#[test]
fn joining_needs_the_groups_values_unless_validation_is_off() {
    let mut other = member(group(1), 1, FULL);
    other.qkey = QKey::new(77);
    let mut strict = Subnet::new(SubnetConfig::default());
    strict.create(0, &member(group(1), 0, FULL)).unwrap();
    assert_eq!(strict.create(1, &other), invalid());
    let mut lax = Subnet::new(SubnetConfig {
        join_validation: false,
        ..SubnetConfig::default()
    });
    lax.create(0, &member(group(1), 0, FULL)).unwrap();
    assert_eq!(lax.create(1, &other).unwrap().qkey, QKey::new(0x1234));
    let none = member(group(1), 1, JoinState::NONE);
    assert_eq!(lax.join(1, &none), invalid(), "a join of nothing");
}

#[test]
fn members_must_be_in_the_groups_partition_limited_or_full() {
    let mut s = Subnet::partitioned();
    let tenant = |host| McMemberRecord {
        pkey: TENANT,
        ..member(group(1), host, FULL)
    };
    assert_eq!(s.create(0, &tenant(0)), invalid(), "not in the partition");
    assert!(
        s.sa.groups.get(group(1)).is_none(),
        "and nothing is left of the group"
    );
    assert!(s.create(1, &tenant(1)).is_ok());
    assert!(s.join(2, &tenant(2)).is_ok(), "a limited member");
    assert_eq!(s.join(0, &tenant(0)), invalid());
}

#[test]
fn states_add_up_and_go_one_by_one() {
    let mut s = Subnet::new(SubnetConfig::default());
    s.create(0, &member(group(1), 0, FULL)).unwrap();
    for (state, held) in [(NON, FULL | NON), (SEND_ONLY, FULL | NON | SEND_ONLY)] {
        assert_eq!(
            s.join(0, &member(group(1), 0, state)).unwrap().join_state(),
            held
        );
    }
    assert_eq!(s.leave(0, &member(group(1), 0, NON)), Ok(FULL | SEND_ONLY));
    assert_eq!(
        s.leave(0, &member(group(1), 0, NON)),
        invalid(),
        "no longer held"
    );
    assert_eq!(s.leave(0, &member(group(1), 0, JoinState::NONE)), invalid());
    assert_eq!(
        s.leave(1, &member(group(1), 1, FULL)),
        invalid(),
        "no member"
    );
    assert_eq!(
        s.leave(0, &member(group(2), 0, FULL)),
        invalid(),
        "no group"
    );
    assert_eq!(s.leave(0, &member(group(1), 0, FULL)), Ok(JoinState::NONE));
    assert!(
        s.sa.groups.get(group(1)).is_none(),
        "the last full member takes it along"
    );
}

#[test]
fn memberships_are_changed_by_their_port_or_by_proxies_of_the_partition() {
    let mut s = Subnet::partitioned();
    let tenant = |host| McMemberRecord {
        pkey: TENANT,
        ..member(group(1), host, FULL)
    };
    s.create(1, &tenant(1)).unwrap();
    assert_eq!(s.leave(0, &tenant(1)), invalid(), "another port");
    assert!(
        s.join(0, &tenant(2)).is_ok(),
        "for a port that shares a partition"
    );
    assert_eq!(
        s.leave(0, &tenant(2)),
        invalid(),
        "but the proxy is not in the group's"
    );
    assert_eq!(s.leave(1, &tenant(2)), Ok(JoinState::NONE), "this one is");
}

#[test]
fn what_changes_is_routed_and_receivers_are_told_from_senders() {
    let mut s = Subnet::new(SubnetConfig::default());
    let mlid = s.create(0, &member(group(1), 0, FULL)).unwrap().mlid;
    s.join(1, &member(group(1), 1, SEND_ONLY)).unwrap();
    let routed = s.sa.poll_group_change();
    assert_eq!(
        routed,
        Some((mlid, [(HOSTS[0], true), (HOSTS[1], false)].into()))
    );
    assert_eq!(s.sa.poll_group_change(), None);
    s.leave(0, &member(group(1), 0, FULL)).unwrap();
    assert_eq!(s.sa.poll_group_change(), Some((mlid, [].into())));
}

#[test]
fn tables_hide_members_from_the_untrusted() {
    let mut s = Subnet::partitioned();
    let tenant = McMemberRecord {
        pkey: TENANT,
        ..member(group(1), 1, FULL)
    };
    s.create(1, &tenant).unwrap();
    s.join(
        2,
        &McMemberRecord {
            port_gid: gid(2),
            ..tenant
        },
    )
    .unwrap();
    let mask = McMemberRecord::MGID;
    let seen = s.table(1, 0, mask, &tenant).unwrap();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        (seen[0].port_gid, seen[0].join_state()),
        (Gid::NONE, JoinState::NONE)
    );
    let seen = s.table(1, 1, mask, &tenant).unwrap();
    assert_eq!(
        seen.iter().map(|r| r.port_gid).collect::<Vec<_>>(),
        [gid(1), gid(2)]
    );
    assert_eq!(
        s.table(0, 1, mask, &tenant),
        Ok(vec![]),
        "not in the partition"
    );
    assert_eq!(
        s.ask(1, Method::GET, NONE, &tenant),
        Err(MadStatus::SA_TOO_MANY_RECORDS)
    );
    let nowhere = member(group(9), 1, FULL);
    assert_eq!(
        s.ask(1, Method::GET, mask, &nowhere),
        Err(MadStatus::SA_NO_RECORDS)
    );
}

#[test]
fn a_vanished_port_leaves_its_groups_aliases_and_subscriptions() {
    let mut s = Subnet::new(SubnetConfig::default());
    let mlid = s.create(1, &member(group(1), 1, FULL)).unwrap().mlid;
    s.sa.poll_group_change();
    let (topology, manager) = (s.sm.topology(), s.sm.sm_info());
    let view = SubnetView {
        topology,
        manager,
        other_managers: &[],
    };
    s.sa.handle_port_vanished(&view, HOSTS[1]);
    assert_eq!(s.sa.poll_group_change(), Some((mlid, [].into())));
    assert!(s.sa.groups.get(group(1)).is_none());
}

fn block(lid: Lid, block: u8, guids: [u64; 8]) -> GuidInfoRecord {
    let guids = guids.map(Guid::new);
    GuidInfoRecord {
        lid,
        block,
        guids,
        ..GuidInfoRecord::default()
    }
}

const SET_ENTRY_1: ComponentMask = ComponentMask::new(0x23);

#[test]
fn an_alias_joins_by_itself_and_cannot_be_deleted_while_it_is_a_member() {
    let mut s = Subnet::new(SubnetConfig::default());
    let lid = s.lid(1);
    let wanted = block(lid, 0, [0, 0xabc, 0, 0, 0, 0, 0, 0]);
    let set = s.ask(1, Method::SET, SET_ENTRY_1, &wanted).unwrap();
    assert_eq!(set.guids[..2], [HOSTS[1], Guid::new(0xabc)]);
    assert_eq!(s.sa.poll_guid_change(), Some((HOSTS[1], 0, set.guids)));
    let mut alias = member(group(1), 1, FULL);
    alias.port_gid = Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(0xabc));
    s.create(1, &alias).unwrap();
    s.join(1, &member(group(1), 1, NON)).unwrap();
    let group = s.sa.groups.get(group(1)).unwrap();
    assert_eq!(group.members.len(), 2);
    assert!(
        group
            .members
            .values()
            .all(|m| m.port_guid == HOSTS[1] && !m.proxy)
    );
    let delete = |s: &mut Subnet| s.ask(1, Method::DELETE, SET_ENTRY_1, &block(lid, 0, [0; 8]));
    assert_eq!(delete(&mut s), Err(MadStatus::SA_DENIED));
    s.leave(1, &alias).unwrap();
    assert_eq!(delete(&mut s).unwrap().guids[1], Guid::NONE);
}

#[test]
fn guid_requests_are_refused_as_by_opensm() {
    let mut s = Subnet::new(SubnetConfig::default());
    let lid = s.lid(1);
    let set = |s: &mut Subnet, mask: u64, record| {
        s.ask(1, Method::SET, ComponentMask::new(mask), &record)
    };
    let empty = |lid, n| block(lid, n, [0; 8]);
    let refused = |r: Result<GuidInfoRecord, MadStatus>| r.unwrap_err();
    assert_eq!(
        refused(set(&mut s, 0x21, empty(lid, 0))),
        MadStatus::SA_INSUFFICIENT_COMPONENTS
    );
    assert_eq!(
        refused(set(&mut s, 0x13, empty(lid, 0))),
        MadStatus::SA_REQ_INVALID
    );
    assert_eq!(
        refused(set(&mut s, 0x23, empty(lid, 4))),
        MadStatus::SA_NO_RECORDS
    );
    assert_eq!(
        refused(set(&mut s, 0x23, empty(Lid::new(99), 0))),
        MadStatus::SA_NO_RECORDS
    );
    let taken = block(lid, 0, [0, HOSTS[2].get(), 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        set(&mut s, 0x23, taken).unwrap().guids[1],
        Guid::NONE,
        "declined"
    );
}
