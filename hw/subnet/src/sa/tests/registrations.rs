//! ServiceRecord, InformInfo, and the reports that follow.

use ib_vtime::Duration;
use ib_wire::notice::{InformInfo, Notice, ProducerType, TrapNumber};
use ib_wire::sa::{InformInfoRecord, ServiceRecord};
use ib_wire::{Qpn, ServiceId};

use super::*;

const RID: ComponentMask = ComponentMask::new(0x3);

fn service(id: u64, host: usize) -> ServiceRecord {
    let mut record = ServiceRecord {
        service_id: ServiceId::new(id),
        service_gid: gid(host),
        service_key: [7; 16],
        ..ServiceRecord::default()
    };
    record.service_name[..3].copy_from_slice(b"svc");
    record
}

#[test]
fn services_are_found_by_what_they_register_and_keys_stay_hidden() {
    let mut s = Subnet::new(SubnetConfig::default());
    let stored = s.ask(1, Method::SET, RID, &service(5, 1)).unwrap();
    assert_eq!(stored.service_lease.get(), ServiceRecord::INDEFINITE_LEASE);
    assert_eq!(
        (stored.service_pkey, stored.service_key),
        (PKey::DEFAULT_FULL, [0; 16])
    );
    s.ask(2, Method::SET, RID, &service(6, 2)).unwrap();
    let all = s.table(0, 1, NONE, &service(0, 0)).unwrap();
    assert_eq!(
        all.iter().map(|r| r.service_id.get()).collect::<Vec<_>>(),
        [6, 5]
    );
    assert_eq!(all[0].service_key, [7; 16], "the trusted see it");
    let named = s
        .table(0, 0, ServiceRecord::SERVICE_NAME, &service(0, 0))
        .unwrap();
    assert_eq!(named.len(), 2);
    let mut other = service(5, 1);
    other.service_data8[3] = 1;
    let data8_3 = ComponentMask::new(1 << 10);
    assert_eq!(
        s.table(0, 0, ServiceRecord::SERVICE_ID, &other)
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        s.table(0, 0, ServiceRecord::SERVICE_ID | data8_3, &other),
        Ok(vec![])
    );
}

#[test]
fn leases_end_and_are_renewed() {
    let mut s = Subnet::new(SubnetConfig::default());
    let mut record = service(5, 1);
    record.service_lease = 30.into();
    let mask = RID | ServiceRecord::SERVICE_LEASE;
    s.ask(1, Method::SET, mask, &record).unwrap();
    assert_eq!(s.sa.poll_timeout(), Some(Instant::from_millis(30_000)));
    s.now = Instant::from_millis(20_000);
    s.ask(1, Method::SET, mask, &record).unwrap();
    s.now += Duration::from_secs(29);
    assert_eq!(s.table(0, 0, NONE, &record).unwrap().len(), 1);
    s.sa.handle_timeout(s.now + Duration::from_secs(1));
    assert_eq!(s.sa.service_count(), 0);
    assert_eq!(s.sa.poll_timeout(), None);
}

#[test]
fn services_need_a_rid_and_a_partition_of_theirs() {
    let mut s = Subnet::partitioned();
    let refused = s.ask(1, Method::SET, ServiceRecord::SERVICE_ID, &service(5, 1));
    assert_eq!(refused, invalid());
    let tenant = ServiceRecord {
        service_pkey: TENANT,
        ..service(5, 1)
    };
    let mask = RID | ServiceRecord::SERVICE_PKEY;
    assert_eq!(
        s.ask(0, Method::SET, mask, &tenant),
        invalid(),
        "the sender is not in it"
    );
    s.ask(1, Method::SET, mask, &tenant).unwrap();
    assert_eq!(s.table(2, 0, NONE, &tenant).unwrap().len(), 1);
    assert_eq!(
        s.table(0, 0, NONE, &tenant),
        Ok(vec![]),
        "who is not in it does not see it"
    );
    let gone = s.ask(1, Method::DELETE, mask, &tenant).unwrap();
    assert_eq!(gone.service_id, ServiceId::new(5));
    assert_eq!(
        s.ask(1, Method::DELETE, mask, &tenant),
        Err(MadStatus::SA_NO_RECORDS)
    );
}

fn inform(trap: TrapNumber) -> InformInfo {
    InformInfo {
        lid_range_begin: Lid::new(0xffff),
        is_generic: 1,
        subscribe: 1,
        notice_type: InformInfo::ALL_TYPES.into(),
        trap_number: trap,
        producer: ProducerType::ALL.0,
        ..InformInfo::default()
    }
}

#[test]
fn a_subscription_lives_until_it_is_taken_back_by_its_address() {
    let mut s = Subnet::new(SubnetConfig::default());
    let info = inform(TrapNumber::GID_IN_SERVICE);
    for _ in 0..2 {
        assert_eq!(s.ask(1, Method::SET, NONE, &info), Ok(info));
    }
    assert_eq!(
        s.sa.subscription_count(),
        1,
        "the same one again is the same one"
    );
    let listed = s.table(0, 0, NONE, &InformInfoRecord::default()).unwrap();
    assert_eq!(
        (listed[0].subscriber_gid, listed[0].inform_info.qpn),
        (gid(1), Qpn::SMI)
    );
    let listed = s.table(0, 1, NONE, &InformInfoRecord::default()).unwrap();
    assert_eq!(
        listed[0].inform_info.qpn,
        Qpn::GSI,
        "the trusted see the QP"
    );
    let back = InformInfo {
        subscribe: 0,
        qpn: Qpn::GSI,
        ..info
    };
    assert_eq!(
        s.ask(2, Method::SET, NONE, &back),
        invalid(),
        "somebody else's"
    );
    assert_eq!(s.ask(1, Method::SET, NONE, &back), Ok(back));
    assert_eq!(
        s.ask(1, Method::SET, NONE, &back),
        invalid(),
        "nothing left"
    );
    let odd = InformInfo {
        subscribe: 2,
        ..info
    };
    assert_eq!(s.ask(1, Method::SET, NONE, &odd), invalid());
}

#[test]
fn security_traps_are_for_the_trusted() {
    let mut s = Subnet::new(SubnetConfig::default());
    for trap in [TrapNumber::BAD_MKEY, TrapNumber::SWITCH_BAD_PKEY] {
        assert_eq!(s.ask(1, Method::SET, NONE, &inform(trap)), invalid());
        // IBA o13-13.1.1: who is refused is told that it is not subscribed.
        let refused = SaMad::new(Method::SET, NONE, &inform(trap));
        let answer = s.send(s.lid(1), &refused).unwrap();
        let info: InformInfo = answer.mad().view::<SaMad>().record();
        assert_eq!((info.subscribe, info.is_generic), (0, 1));
    }
    let mut mad = SaMad::new(Method::SET, NONE, &inform(TrapNumber::BAD_PKEY));
    mad.sm_key = SmKey::new(1);
    assert_eq!(s.send(s.lid(1), &mad).unwrap().status(), MadStatus::OK);
}

#[test]
fn reports_go_to_those_who_asked_and_may_hear() {
    let mut s = Subnet::partitioned();
    s.ask(1, Method::SET, NONE, &inform(TrapNumber::GROUP_CREATED))
        .unwrap();
    s.ask(0, Method::SET, NONE, &inform(TrapNumber::GROUP_CREATED))
        .unwrap();
    s.ask(2, Method::SET, NONE, &inform(TrapNumber::GROUP_DELETED))
        .unwrap();
    let mut record = ib_wire::sa::McMemberRecord {
        mgid: Gid([0xff; 16]),
        port_gid: gid(1),
        pkey: TENANT,
        ..Default::default()
    };
    record.mgid.0[1] = 0x12;
    record.set_join_state(ib_wire::sa::JoinState::FULL_MEMBER);
    s.ask(1, Method::SET, ComponentMask::new(0x1_70c7), &record)
        .unwrap();
    let report = s.sa.poll_report().unwrap();
    assert_eq!(
        report.to,
        MadAddress::gsi(s.lid(1)),
        "host 0 is not in the partition"
    );
    let notice: &Notice = &report.mad.view::<SaMad>().record_notice();
    assert_eq!(notice.trap_number, TrapNumber::GROUP_CREATED);
    assert!(s.sa.poll_report().is_none());
    s.ask(1, Method::DELETE, ComponentMask::new(0x1_0003), &record)
        .unwrap();
    assert_eq!(s.sa.poll_report().unwrap().to, MadAddress::gsi(s.lid(2)));
}

/// The notice in a report.
trait RecordNotice {
    fn record_notice(&self) -> Notice;
}

impl RecordNotice for SaMad {
    fn record_notice(&self) -> Notice {
        zerocopy::FromBytes::read_from_prefix(&self.data).unwrap().0
    }
}
