//! The agent on its own, without a fabric.

mod m_key;
mod port_info;
mod properties;
mod tables;

use hca_api::{LocalMad, MadView, SourceAddress};
use ib_wire::mad::{Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{LidRoutedSmp, PortInfo, SmpAttribute};
use ib_wire::{Guid, Lid, MKey, PKeyIndex, PortNum, Sl};

use super::process;
use crate::{HcaConfig, Node, SwitchConfig};

const PORT: PortNum = PortNum(1);

fn adapter() -> Node {
    Node::channel_adapter(&HcaConfig::new(Guid::new(0x1000), "host"))
}

fn switch() -> Node {
    Node::switch(&SwitchConfig::new(Guid::new(0x2000), "switch", 8))
}

fn from_network() -> MadView {
    MadView::Network(SourceAddress::of_smp(PORT, Lid::new(1), Sl::default()))
}

fn request<A: SmpAttribute>(method: Method, modifier: u32, key: u64, value: A) -> Mad {
    let mut header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, method, A::ID);
    header.attribute_modifier = modifier.into();
    let mut mad = Mad::new(header);
    let smp: &mut LidRoutedSmp = mad.view_mut();
    smp.mkey = MKey::new(key);
    *smp.attribute_mut() = value;
    mad
}

fn reply(node: &mut Node, mad: &Mad) -> Mad {
    match process(node, PORT, &from_network(), mad) {
        LocalMad::Reply(reply) => reply,
        other => panic!("{other:?}"),
    }
}

/// Does a Get or Set and gives the response's status and attribute.
fn ask<A: SmpAttribute + Copy>(
    node: &mut Node,
    method: Method,
    modifier: u32,
    value: A,
) -> (MadStatus, A) {
    let reply = reply(node, &request(method, modifier, 0, value));
    assert_eq!(reply.header.method, Method::GET_RESP);
    (
        reply.header.status,
        *reply.view::<LidRoutedSmp>().attribute(),
    )
}

fn get<A: SmpAttribute + Copy>(node: &mut Node, modifier: u32) -> A {
    let (status, value) = ask(node, Method::GET, modifier, A::new_zeroed());
    assert_eq!(status, MadStatus::OK);
    value
}

fn set<A: SmpAttribute + Copy>(node: &mut Node, modifier: u32, value: A) -> A {
    let (status, value) = ask(node, Method::SET, modifier, value);
    assert_eq!(status, MadStatus::OK);
    value
}

/// A PortInfo that a Set accepts and that changes nothing but addresses.
fn managed(node: &mut Node, port: u32) -> PortInfo {
    let mut info: PortInfo = get(node, port);
    info.lid = Lid::new(8);
    info.master_sm_lid = Lid::new(1);
    info.set_port_state(ib_wire::smp::PortState::NO_CHANGE);
    info.set_phys_state(ib_wire::smp::PortPhysState::NO_CHANGE);
    info
}

#[test]
fn requests_that_the_agent_does_not_know_are_answered_with_the_reason() {
    let mut node = adapter();
    let mut mad = request(Method::GET, 0, 0, PortInfo::default());
    let status = |node: &mut Node, mad: &Mad| reply(node, mad).header.status;
    mad.header.attribute_id = ib_wire::mad::AttributeId::new(0x7777);
    assert_eq!(
        status(&mut node, &mad),
        MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE
    );
    mad.header.method = Method::new(0x33);
    assert_eq!(status(&mut node, &mad), MadStatus::UNSUPPORTED_METHOD);
    mad.header.class_version = 2;
    assert_eq!(status(&mut node, &mad), MadStatus::BAD_VERSION);
    mad.header.class_version = 1;
    mad.header.base_version = 2;
    assert_eq!(status(&mut node, &mad), MadStatus::BAD_VERSION);
}

#[test]
fn a_directed_route_response_has_the_direction_bit_and_a_lid_routed_one_has_not() {
    let mut node = adapter();
    let mut mad = request(Method::GET, 0, 0, PortInfo::default());
    assert_eq!(reply(&mut node, &mad).header.status.get(), 0);
    mad.header.mgmt_class = MgmtClass::SUBN_DIRECTED_ROUTE;
    assert_eq!(reply(&mut node, &mad).header.status.get(), 0x8000);
    mad.header.attribute_id = ib_wire::mad::AttributeId::new(0x7777);
    assert_eq!(reply(&mut node, &mad).header.status.get(), 0x800c);
}

#[test]
fn traps_responses_and_other_classes_are_not_for_the_agent() {
    let mut node = adapter();
    let mut mad = request(Method::TRAP, 0, 0, PortInfo::default());
    let outcome = |node: &mut Node, mad: &Mad| process(node, PORT, &from_network(), mad);
    assert_eq!(outcome(&mut node, &mad), LocalMad::NotHandled);
    mad.header.method = Method::GET_RESP;
    assert_eq!(outcome(&mut node, &mad), LocalMad::NotHandled);
    mad.header.method = Method::GET;
    mad.header.mgmt_class = MgmtClass::SUBN_ADM;
    assert_eq!(outcome(&mut node, &mad), LocalMad::NotHandled);
}

#[test]
fn sm_info_is_for_the_manager_on_the_port_and_refused_where_there_is_none() {
    let mut node = adapter();
    let mad = request(Method::GET, 0, 0, ib_wire::smp::SmInfo::default());
    let status = reply(&mut node, &mad).header.status;
    assert_eq!(status, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
    let is_sm = ib_wire::smp::CapabilityMask::IS_SM.get();
    node.change_capabilities(PORT, is_sm, 0);
    assert_eq!(
        process(&mut node, PORT, &from_network(), &mad),
        LocalMad::NotHandled
    );
}
