//! Ports and counters, by command.

use hca_api::{PortChange, VirtualPort};
use ib_wire::PortNum;
use ib_wire::mad::{Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{CapabilityMask, LidRoutedSmp, PortInfo, SmpAttribute};
use mlx4_defs::mad_ifc::{MadIfcInput, MadIfcOutput};
use mlx4_defs::qp::QpContext;
use mlx4_defs::query::{QueryInterfaceCounters, RESET_COUNTER};
use mlx4_defs::set_port::SetPort;

use super::*;

const PORT: PortNum = PortNum(1);

fn port_info(guest: &mut Guest) -> PortInfo {
    let class = MgmtClass::SUBN_LID_ROUTED;
    let header = MadHeader::new(class, Method::GET, PortInfo::ID);
    let mut input = guest.put(&MadIfcInput {
        mad: Mad::new(header),
        ..MadIfcInput::default()
    });
    input.modifier = PORT.0.into();
    input.variant = 3;
    assert_eq!(guest.command(Opcode::MAD_IFC, input).0, Status::OK);
    let outbox = guest.outbox();
    let answer: MadIfcOutput = guest.read_layout(outbox);
    assert_eq!(answer.mad.header.status, MadStatus::OK);
    *answer.mad.view::<LidRoutedSmp>().attribute()
}

#[test]
fn a_capability_that_is_set_by_command_is_read_by_command() {
    let mut guest = Guest::probed();
    let own = CapabilityMask::IS_COMMUNICATION_MANAGEMENT_SUPPORTED;
    let wanted = port_info(&mut guest).capability_mask | own;
    let mut input = guest.put(&SetPort {
        capability_mask: U32::new(wanted.get()),
        ..SetPort::default()
    });
    input.modifier = PORT.0.into();
    assert_eq!(guest.command(Opcode::SET_PORT, input).0, Status::OK);
    assert_eq!(port_info(&mut guest).capability_mask, wanted);
}

/// A guest whose event queue takes the events of its ports.
fn listening() -> Guest {
    let mut guest = Guest::probed();
    guest.make_event_queue(4);
    let events = EventMask::default()
        .with(EventType::PORT_CHANGE)
        .with(EventType::PORT_MNG_CHG_EVENT);
    let input = Input {
        param: events.0,
        modifier: 4,
        ..Input::default()
    };
    assert_eq!(guest.command(Opcode::MAP_EQ, input).0, Status::OK);
    guest
}

/// The port changes, and is down then.
fn change_port(guest: &mut Guest, change: PortChange) {
    let event = AsyncEvent::Port { port: PORT, change };
    let mut pf = guest.fabric.hca(guest.node, FunctionId::PF).unwrap();
    pf.set_virtual_port(VF, PORT, VirtualPort::default())
        .unwrap();
    pf.notify(VF, event).unwrap();
    let mut hca = guest.fabric.hca(guest.node, VF).unwrap();
    while let Some(event) = hca.poll_event() {
        guest.function.handle_hca_event(NOW, &mut hca, &event);
    }
}

#[test]
fn a_port_change_is_told_by_the_event_queue_of_its_type() {
    let mut guest = listening();
    change_port(&mut guest, PortChange::DOWN | PortChange::PKEY_TABLE);
    assert_eq!(guest.eqe(0), Eqe::port_change(PORT, false));
    assert_eq!(guest.eqe(1), Eqe::pkey_change(PORT));
    assert_eq!(guest.interrupts(), [3]);
}

/// What happens to a port while the guest does not look is told when it does, each kind once.
#[test]
fn port_changes_wait_for_room_in_the_event_queue_and_are_merged() {
    let mut guest = listening();
    for _ in 0..127 {
        guest.nop();
    }
    for _ in 0..3 {
        change_port(&mut guest, PortChange::DOWN | PortChange::PKEY_TABLE);
        change_port(&mut guest, PortChange::LID);
    }
    assert_eq!(
        guest.eqe(127),
        Eqe::port_change(PORT, false),
        "there was room"
    );
    let first = guest.eqe(0);
    assert_eq!(first.event_type, EventType::CMD);
    guest.interrupts();
    guest.write_bar(2, 0x1800, &[0, 0, 0, 1]);
    let told = guest.eqe(0);
    assert_eq!(
        (told.event_type, told.subtype),
        (EventType::PORT_MNG_CHG_EVENT, 0x16)
    );
    assert_eq!(
        guest.eqe(1).event_type,
        EventType::CMD,
        "no room for another"
    );
    guest.write_bar(2, 0x1800, &[0x80, 0, 0, 128]);
    let told = guest.eqe(1);
    assert_eq!(
        (told.event_type, told.subtype),
        (EventType::PORT_MNG_CHG_EVENT, 0x15)
    );
    assert!(!guest.eqe(2).owner(), "nothing is told twice");
    assert_eq!(guest.interrupts(), [3]);
    assert_eq!(guest.function.lost_events(), 0);
}

fn counter(guest: &mut Guest, modifier: u32) -> QueryInterfaceCounters {
    let input = Input {
        modifier,
        ..Input::default()
    };
    assert_eq!(guest.command(Opcode::QUERY_IF_STAT, input).0, Status::OK);
    let outbox = guest.outbox();
    guest.read_layout(outbox)
}

#[test]
fn a_counter_tells_what_its_queue_pairs_carried_until_it_is_reset() {
    let mut guest = Guest::online();
    let (status, index) = guest.allocate(ResourceType::COUNTER, ResourceOp::RESERVE, 0);
    assert_eq!((status, index), (Status::OK, 0));
    let cq = guest.make_cq(10);
    let (mut left, mut right) = (guest.make_qp(12, &cq), guest.make_qp(16, &cq));
    let into = guest.page(44);
    for qp in [&left, &right] {
        const COUNTER_INDEX: u32 = 1 << 20;
        guest.ok_transition(
            Opcode::RTS2RTS_QP,
            qp.qpn,
            &QpContext::default(),
            COUNTER_INDEX,
        );
    }
    let mut uncounted = guest.make_qp(24, &cq);
    guest.receive(&mut right, into, 512);
    guest.send_inline(&mut left, right.qpn, &[7; 20]);
    guest.send_inline(&mut uncounted, left.qpn, &[7; 20]);
    let expected = QueryInterfaceCounters {
        rx_frames: U64::new(1),
        rx_bytes: U64::new(32 + 20),
        tx_frames: U64::new(1),
        tx_bytes: U64::new(32 + 20),
        ..QueryInterfaceCounters::default()
    };
    assert_eq!(counter(&mut guest, 0), expected);
    assert_eq!(counter(&mut guest, RESET_COUNTER), expected);
    assert_eq!(counter(&mut guest, 0), QueryInterfaceCounters::default());
}

#[test]
fn a_counter_is_read_by_who_has_it() {
    let mut guest = Guest::probed();
    let (status, _) = guest.command(Opcode::QUERY_IF_STAT, Input::default());
    assert_eq!(status, Status::BAD_RESOURCE);
    let op = ResourceOp::RESERVE;
    let (_, index) = guest.allocate(ResourceType::COUNTER, op, 0);
    assert_eq!(index, 0);
    assert_eq!(counter(&mut guest, 0), QueryInterfaceCounters::default());
}
