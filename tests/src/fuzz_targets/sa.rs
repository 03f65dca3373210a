//! A subnet administration that hostile hosts ask.

use std::sync::OnceLock;

use emulated_hca::Topology as Plan;
use ib_endpoint::{MadAddress, Message};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, Method};
use ib_wire::sa::{ComponentMask, GuidInfoRecord, JoinState, McMemberRecord, SaMad, SaRecord};
use ib_wire::smp::SmInfo;
use ib_wire::{Gid, Guid, Lid};
use subnet_lite::SubnetConfig;
use subnet_lite::sa::{MAX_ANSWER, MAX_GROUPS, MAX_SERVICES, MAX_SUBSCRIPTIONS, Sa, SubnetView};
use subnet_lite::topology::Topology;
use vhca::world::{Outcome, World};
use zerocopy::IntoBytes;

use super::hostile::Input;

const ATTRIBUTES: [AttributeId; 20] = [
    AttributeId::CLASS_PORT_INFO,
    AttributeId::INFORM_INFO,
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
    AttributeId::MULTI_PATH_RECORD,
    AttributeId::INFORM_INFO_RECORD,
    AttributeId::TRACE_RECORD,
    AttributeId::NOTICE,
];

const METHODS: [Method; 8] = [
    Method::GET,
    Method::SET,
    Method::GET_TABLE,
    Method::DELETE,
    Method::GET_MULTI,
    Method::GET_RESP,
    Method::REPORT,
    Method::TRAP,
];

/// A subnet of three switches and three hosts, as a manager found it.
fn topology() -> &'static Topology {
    static TOPOLOGY: OnceLock<Topology> = OnceLock::new();
    TOPOLOGY.get_or_init(|| {
        let (fabric, built) = Plan::three_switches().build(1);
        let mut world = World::new(fabric, 1);
        let host = world.add_host(built.hcas[0]).expect("the host starts");
        world
            .start_manager(host.port(1), SubnetConfig::default())
            .expect("the manager starts");
        let outcome = world.run_until(Duration::from_secs(10), |world| {
            world
                .manager(host)
                .is_some_and(|manager| manager.sm().is_serving())
        });
        assert_eq!(outcome, Outcome::Reached, "the subnet comes up");
        world
            .manager(host)
            .expect("it still runs")
            .sm()
            .topology()
            .clone()
    })
}

/// A port's GID and LID, or one that nobody has.
fn somebody(input: &mut Input<'_>) -> (Gid, Lid) {
    let ports: Vec<_> = topology()
        .end_ports()
        .map(|(_, port)| (port.gid(), port.info.lid))
        .collect();
    let stranger = (Gid([0xfe; 16]), Lid::new(0x1234));
    ports
        .get(input.index(ports.len() + 1))
        .copied()
        .unwrap_or(stranger)
}

/// A request with any record bytes under any mask.
fn wild(input: &mut Input<'_>) -> SaMad {
    let mut mad = SaMad::default();
    input.fill(mad.as_mut_bytes());
    mad.header = ib_wire::mad::MadHeader::new(
        ib_wire::mad::MgmtClass::SUBN_ADM,
        METHODS[input.index(METHODS.len())],
        ATTRIBUTES[input.index(ATTRIBUTES.len())],
    );
    mad.sm_key = ib_wire::SmKey::new(u64::from(input.byte() / 128));
    mad
}

/// A join or leave that may well succeed.
fn member(input: &mut Input<'_>) -> SaMad {
    let mut record = McMemberRecord {
        port_gid: somebody(input).0,
        ..McMemberRecord::default()
    };
    record.mgid = Gid::default();
    if !input.byte().is_multiple_of(4) {
        record.mgid.0[0] = 0xff;
        record.mgid.0[1] = 0x12;
        record.mgid.0[15] = input.byte();
    }
    record.pkey = ib_wire::PKey::DEFAULT_FULL;
    record.set_join_state(JoinState::from_low_bits(input.byte()));
    let method = if input.byte().is_multiple_of(3) {
        Method::DELETE
    } else {
        Method::SET
    };
    // Mostly what creating a group needs, with any other components.
    let mask = 0x1_70c7 | u64::from(input.byte()) << 4;
    with_record(method, mask, &record)
}

/// A request for alias GUIDs.
fn guids(input: &mut Input<'_>) -> SaMad {
    let mut record = GuidInfoRecord {
        lid: somebody(input).1,
        ..GuidInfoRecord::default()
    };
    record.block = input.byte() % 40;
    for guid in &mut record.guids {
        *guid = Guid::new(u64::from(input.byte() % 8));
    }
    let method = METHODS[input.index(4)];
    with_record(method, 0x3 | u64::from(input.byte()) << 4, &record)
}

fn with_record<R: SaRecord>(method: Method, mask: u64, record: &R) -> SaMad {
    SaMad::new(method, ComponentMask::new(mask), record)
}

/// Answers every request or keeps silent, within its limits, whatever is asked.
pub(super) fn sa(data: &[u8]) {
    let mut input = Input::new(data);
    let mut sa = Sa::new(SubnetConfig::default());
    let mut now = Instant::from_millis(1);
    let view = SubnetView {
        topology: topology(),
        manager: SmInfo::default(),
        other_managers: &[],
    };
    while input.has_operation() {
        let request = match input.byte() % 8 {
            0 => {
                now += Duration::from_millis(1 << (input.byte() % 24));
                sa.handle_timeout(now);
                continue;
            }
            1..=3 => member(&mut input),
            4 => guids(&mut input),
            _ => wild(&mut input),
        };
        let from = MadAddress::gsi(somebody(&mut input).1);
        let message = Message::single(Mad::from_layout(&request));
        if let Some(answer) = sa.handle(now, &view, &from, &message) {
            check(&request, &answer);
        } else if input.byte().is_multiple_of(2) {
            // The pieces of what is unfinished may come much later.
            while sa.has_unfinished() {
                if let Some((_, answer)) = sa.make_piece(now, &view) {
                    assert!(answer.data().len() <= MAX_ANSWER.max(200));
                }
            }
        }
        while sa.poll_group_change().is_some() {}
        while sa.poll_report().is_some() {}
    }
    assert!(sa.groups().count() <= MAX_GROUPS);
    assert!(sa.service_count() <= MAX_SERVICES);
    assert!(sa.subscription_count() <= MAX_SUBSCRIPTIONS);
}

fn check(request: &SaMad, answer: &Message) {
    assert!(answer.data().len() <= MAX_ANSWER.max(200));
    assert_eq!(
        answer.header().attribute_id == request.header.attribute_id,
        !is_multi(request)
    );
}

/// A MultiPathRecord request is answered with PathRecords.
fn is_multi(request: &SaMad) -> bool {
    request.header.attribute_id == AttributeId::MULTI_PATH_RECORD
}
