use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    FunctionId, FunctionManager, FunctionSpec, HostMemory, LocalMad, MadView, PortState,
    ResourceCounts, VirtualPort,
};
use ib_wire::mad::{AttributeModifier, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{
    GuidInfo, LidRoutedSmp, MlnxExtPortInfo, NodeDescription, NodeInfo, PKeyTable, PortInfo,
    PortState as WirePortState, SmpAttribute,
};
use ib_wire::{Guid, Lid, PKey, PKeyIndex};
use mlx4_defs::mad_ifc::{MadIfcInput, MadIfcModifier, MadIfcOp};
use zerocopy::network_endian::U32;

use super::*;

const PORT: PortNum = PortNum(1);
const PF: FunctionId = FunctionId::PF;
const VF: FunctionId = FunctionId(1);
const NODE_GUID: Guid = Guid::new(0x14_0500);
const ALIAS: Guid = Guid::new(0xaaaa);
const QUERY: u8 = 3;
const NETWORK: u8 = 8;

/// Sets an attribute of the physical port, as a subnet manager does.
fn set<A: SmpAttribute>(device: &mut Device, attribute: &A) {
    let header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::SET, A::ID);
    let mut mad = Mad::new(header);
    let smp: &mut LidRoutedSmp = mad.view_mut();
    smp.attribute_mut::<A>()
        .as_mut_bytes()
        .copy_from_slice(attribute.as_bytes());
    let mut pf = device.function(PF).unwrap();
    let answer = pf.process_local_mad(PORT, MadView::Host, &mad);
    let Ok(LocalMad::Reply(reply)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(reply.header.status, MadStatus::OK);
}

/// An adapter with a VF whose P_Key indices 0 and 1 are the port's 1 and none.
fn device(state: PortState, smi_enabled: bool) -> Device {
    let mut device = Device::new(&HcaConfig::new(Guid::new(1), "test"), 7);
    let port = device.node_mut().port_mut(PORT).unwrap();
    port.state = PortState::Active;
    port.lid = Lid::new(5);
    port.q_key_violations = 7;
    let mut guids = GuidInfo::default();
    guids.guids[1] = ALIAS;
    set(&mut device, &guids);
    let mut pkeys = PKeyTable::default();
    pkeys.pkeys[..2].copy_from_slice(&[PKey::DEFAULT_FULL, PKey::new(0x8001)]);
    set(&mut device, &pkeys);
    let mut pf = device.function(PF).unwrap();
    pf.create_function(FunctionSpec {
        id: VF,
        node_guid: NODE_GUID,
        memory: Box::new(HostMemory::new()),
        quota: ResourceCounts::default(),
    })
    .unwrap();
    let view = VirtualPort {
        state,
        pkeys: vec![Some(PKeyIndex(1)), None],
        smi_enabled,
    };
    pf.set_virtual_port(VF, PORT, view).unwrap();
    device
}

fn input(
    class: MgmtClass,
    method: Method,
    attribute: ib_wire::mad::AttributeId,
    modifier: u32,
) -> Mailbox {
    let mut mad = Mad::new(MadHeader::new(class, method, attribute));
    mad.header.attribute_modifier = AttributeModifier::new(modifier);
    Mailbox::with(&MadIfcInput {
        mad,
        ..MadIfcInput::default()
    })
}

fn send(
    device: &mut Device,
    ports: &Ports,
    port: u32,
    op: u8,
    mailbox: &Mailbox,
) -> Result<Mad, Status> {
    let request = MadRequest::parse(port, op, mailbox);
    let mut vf = device.function(VF).unwrap();
    let answer = ports.ask(&mut vf, &request)?;
    Ok(answer.view::<MadIfcOutput>().mad)
}

/// Asks as the driver asks when it wants to know something of its port.
fn get<A: SmpAttribute + Copy>(device: &mut Device, ports: &Ports, modifier: u32) -> A {
    let mailbox = input(MgmtClass::SUBN_LID_ROUTED, Method::GET, A::ID, modifier);
    let mad = send(device, ports, 1, QUERY, &mailbox).unwrap();
    assert_eq!(mad.header.method, Method::GET_RESP);
    assert_eq!(mad.header.status, MadStatus::OK);
    *mad.view::<LidRoutedSmp>().attribute()
}

fn set_port(capabilities: CapabilityMask, reset: bool) -> Mailbox {
    let mut set = SetPort {
        capability_mask: U32::new(capabilities.get()),
        ..SetPort::default()
    };
    set.set_reset_qkey_violations(reset);
    Mailbox::with(&set)
}

fn change(
    device: &mut Device,
    ports: &mut Ports,
    port: u32,
    mailbox: &Mailbox,
) -> Result<(), Status> {
    let settings = PortSettings::parse(port, 0, mailbox)?;
    ports.change(&mut device.function(VF).unwrap(), &settings)
}

#[test]
fn the_questions_of_a_starting_driver_are_answered_in_its_view() {
    let (mut device, ports) = (device(PortState::Active, false), Ports::default());
    get::<NodeDescription>(&mut device, &ports, 0);
    let node: NodeInfo = get(&mut device, &ports, 0);
    assert_eq!(node.node_guid, NODE_GUID);
    let info: PortInfo = get(&mut device, &ports, 1);
    assert_eq!(info.port_state(), WirePortState::ACTIVE);
    assert_eq!(info.lid, Lid::new(5));
    assert_eq!(info.qkey_violations.get(), 7);
    let guids: GuidInfo = get(&mut device, &ports, 0);
    assert_eq!(guids.guids[0], ALIAS);
    assert_eq!(guids.guids[1..], [Guid::NONE; 7]);
    let pkeys: PKeyTable = get(&mut device, &ports, 0);
    assert_eq!(pkeys.pkeys[..2], [PKey::new(0x8001), PKey::INVALID]);
    get::<MlnxExtPortInfo>(&mut device, &ports, 1);
}

#[test]
fn a_virtual_port_that_is_not_active_reads_as_down() {
    for state in [PortState::Down, PortState::Init, PortState::Armed] {
        let info: PortInfo = get(&mut device(state, false), &Ports::default(), 1);
        assert_eq!(info.port_state(), WirePortState::DOWN, "{state:?}");
    }
}

#[test]
fn a_port_that_the_function_does_not_have_is_a_bad_parameter() {
    let mut device = device(PortState::Active, false);
    let mailbox = input(MgmtClass::SUBN_LID_ROUTED, Method::GET, PortInfo::ID, 1);
    for port in [0, 9, 0xff] {
        let answer = send(&mut device, &Ports::default(), port, QUERY, &mailbox);
        assert_eq!(answer, Err(Status::BAD_PARAM), "port {port}");
        let mut ports = Ports::default();
        let answer = change(
            &mut device,
            &mut ports,
            port,
            &set_port(CapabilityMask::default(), true),
        );
        assert_eq!(answer, Err(Status::BAD_PARAM), "port {port}");
        assert!(ports.ports.is_empty());
    }
}

#[test]
fn a_guest_without_smi_may_only_ask_about_itself() {
    let (mut device, ports) = (device(PortState::Active, false), Ports::default());
    let forbidden = [
        (QUERY | NETWORK, MgmtClass::SUBN_LID_ROUTED, Method::GET),
        (QUERY, MgmtClass::SUBN_LID_ROUTED, Method::SET),
        (QUERY, MgmtClass::SUBN_DIRECTED_ROUTE, Method::GET),
        (QUERY | NETWORK, MgmtClass::PERF, Method::GET),
        (QUERY, MgmtClass::PERF, Method::GET),
    ];
    for (op, class, method) in forbidden {
        let mailbox = input(class, method, PortInfo::ID, 1);
        let answer = send(&mut device, &ports, 1, op, &mailbox);
        assert_eq!(answer, Err(Status::BAD_OP), "{class} {method} {op}");
    }
}

#[test]
fn a_guest_with_smi_is_answered_by_the_agents() {
    let (mut device, ports) = (device(PortState::Active, true), Ports::default());
    let mailbox = input(MgmtClass::SUBN_DIRECTED_ROUTE, Method::GET, NodeInfo::ID, 0);
    let reply = send(&mut device, &ports, 1, QUERY | NETWORK, &mailbox).unwrap();
    assert!(reply.header.method.is_response());
    let mailbox = input(MgmtClass::COM_MGT, Method::SEND, NodeInfo::ID, 0);
    let answer = send(&mut device, &ports, 1, QUERY | NETWORK, &mailbox);
    assert_eq!(answer, Err(Status::BAD_PARAM));
}

#[test]
fn where_a_mad_came_from_is_read_from_behind_it() {
    let mut mailbox = input(MgmtClass::SUBN_LID_ROUTED, Method::GET, PortInfo::ID, 1);
    let packet = &mut mailbox.view_mut::<MadIfcInput>().packet;
    packet.remote_qpn = ib_wire::Qpn::from_low_bits(0x77);
    packet.set_grh_present(true);
    packet.grh.hop_limit = 9;
    let mut op = MadIfcOp::default();
    op.set_network_view(true);
    let modifier = MadIfcModifier {
        slid: Lid::new(0x22),
        ..MadIfcModifier::new(PORT)
    };
    let modifier = u32::from_be_bytes(zerocopy::transmute!(modifier));
    let source = |op: MadIfcOp| match MadRequest::parse(modifier, op.bits, &mailbox).view {
        MadView::Network(source) => source,
        MadView::Host => panic!("not from the network"),
    };
    assert_eq!(source(op).slid, Lid::PERMISSIVE);
    op.set_has_packet(true);
    let from = source(op);
    assert_eq!((from.slid, from.port), (Lid::new(0x22), PORT));
    assert_eq!(from.src_qpn.get(), 0x77);
    assert_eq!(from.grh.unwrap().hop_limit, 9);
}

#[test]
fn capabilities_are_the_guest_s_own_and_no_manager_is_announced() {
    let (mut device, mut ports) = (device(PortState::Active, false), Ports::default());
    let before = get::<PortInfo>(&mut device, &ports, 1).capability_mask;
    let own = CapabilityMask::IS_COMMUNICATION_MANAGEMENT_SUPPORTED;
    change(&mut device, &mut ports, 1, &set_port(before | own, false)).unwrap();
    let after = get::<PortInfo>(&mut device, &ports, 1).capability_mask;
    assert_eq!(after, before | own);
    for manager in [
        CapabilityMask::IS_SM,
        CapabilityMask::IS_DEVICE_MANAGEMENT_SUPPORTED,
    ] {
        let answer = change(
            &mut device,
            &mut ports,
            1,
            &set_port(before | manager, false),
        );
        assert_eq!(answer, Err(Status::BAD_PARAM));
    }
    assert_eq!(
        get::<PortInfo>(&mut device, &ports, 1).capability_mask,
        after
    );
    change(
        &mut device,
        &mut ports,
        1,
        &set_port(before.difference(own), false),
    )
    .unwrap();
    let cleared = get::<PortInfo>(&mut device, &ports, 1).capability_mask;
    assert_eq!(cleared, before.difference(own));
}

#[test]
fn settings_of_an_ethernet_port_are_refused() {
    let settings = PortSettings::parse(1, 1, &Mailbox::default());
    assert_eq!(settings, Err(Status::BAD_PARAM));
}

#[test]
fn q_key_violations_count_from_the_guest_s_reset_on() {
    let (mut device, mut ports) = (device(PortState::Active, false), Ports::default());
    change(
        &mut device,
        &mut ports,
        1,
        &set_port(CapabilityMask::default(), true),
    )
    .unwrap();
    let violations = |device: &mut Device, ports: &Ports| {
        get::<PortInfo>(device, ports, 1).qkey_violations.get()
    };
    assert_eq!(violations(&mut device, &ports), 0);
    device.node_mut().port_mut(PORT).unwrap().q_key_violations = 9;
    assert_eq!(violations(&mut device, &ports), 2);
    // The PF has reset the port's counter meanwhile.
    device.node_mut().port_mut(PORT).unwrap().q_key_violations = 3;
    assert_eq!(violations(&mut device, &ports), 3);
}

#[test]
fn what_the_guest_is_told_of_can_be_read_already() {
    let (mut device, mut ports) = (device(PortState::Down, false), Ports::default());
    let view = VirtualPort {
        state: PortState::Active,
        pkeys: vec![Some(PKeyIndex(0))],
        smi_enabled: false,
    };
    let mut pf = device.function(PF).unwrap();
    pf.set_virtual_port(VF, PORT, view).unwrap();
    let told = PortChange::ACTIVE | PortChange::PKEY_TABLE;
    ports.handle_port_change(&device.function(VF).unwrap(), PORT, told);
    assert_eq!(ports.poll_event(), Some(Eqe::pkey_change(PORT)));
    let pkeys: PKeyTable = get(&mut device, &ports, 0);
    assert_eq!(pkeys.pkeys[0], PKey::DEFAULT_FULL);
    assert_eq!(ports.poll_event(), Some(Eqe::port_change(PORT, true)));
    let info: PortInfo = get(&mut device, &ports, 1);
    assert_eq!(info.port_state(), WirePortState::ACTIVE);
    assert_eq!(ports.poll_event(), None);
}

#[test]
fn changes_of_ports_that_the_function_does_not_have_are_forgotten() {
    let (mut device, mut ports) = (device(PortState::Active, false), Ports::default());
    let vf = device.function(VF).unwrap();
    ports.handle_port_change(&vf, PortNum(9), PortChange::all());
    assert_eq!(ports.poll_event(), None);
    assert!(ports.ports.is_empty());
}
