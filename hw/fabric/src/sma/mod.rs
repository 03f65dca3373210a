//! The subnet management agent (IBA 14.2, 14.3).
//!
//! Answers Get and Set of every attribute that a channel adapter or a switch must have: NodeInfo,
//! NodeDescription, SwitchInfo, GUIDInfo, PortInfo, P_KeyTable, SLtoVLMappingTable,
//! VLArbitrationTable, LinearForwardingTable, MulticastForwardingTable, LedInfo (where the
//! capability mask announces it) and the vendor's ExtendedPortInfo. Random forwarding tables and
//! Get(Notice) are not offered. A Set that asks for something illegal changes nothing.

mod access;
mod m_key;
mod port_info;
mod switch;
mod tables;

use hca_api::{LocalMad, MadView};
use ib_wire::PortNum;
use ib_wire::mad::{AttributeId, BASE_VERSION, Mad, MadStatus, Method};
use ib_wire::smp::{
    GuidInfo, LedInfo, LidRoutedSmp, LinearForwardingTable, MlnxExtPortInfo,
    MulticastForwardingTable, NodeDescription, NodeInfo, PKeyTable, PortInfo, SlToVlMappingTable,
    SmInfo, SmpAttribute, SwitchInfo, VlArbitrationTable,
};

use crate::Node;
use access::Access;
use m_key::Guard;

/// What an attribute's handler answers: nothing more to say, or why the request was refused.
type Answer = Result<(), MadStatus>;

/// Hands an SMP that reached its destination by `port`, or that the host itself asks with, to the
/// agent.
///
/// SMInfo on a port with a subnet manager, traps, responses, and a TrapRepress of none of the node's own
/// traps are for the software on QP0:
/// [`LocalMad::NotHandled`]. A request with a wrong M_Key is [`LocalMad::Consumed`]: it is counted
/// and not answered (IBA 14.2.4). The host's own requests need no key.
pub fn process(node: &mut Node, port: PortNum, view: &MadView, mad: &Mad) -> LocalMad {
    let header = &mad.header;
    if !header.mgmt_class.is_smp() || header.method.is_response() || header.method == Method::TRAP {
        return LocalMad::NotHandled;
    }
    if header.base_version != BASE_VERSION || header.class_version != 1 {
        return refuse(mad, MadStatus::BAD_VERSION);
    }
    if header.attribute_id == SmInfo::ID
        && node
            .end_port(port)
            .is_some_and(|p| p.capabilities.contains(ib_wire::smp::CapabilityMask::IS_SM))
    {
        return LocalMad::NotHandled;
    }
    let guard = match view {
        MadView::Host => Guard::Open,
        MadView::Network(_) => {
            m_key::check_both(node, port, port_info::other_port(node, port, mad), mad)
        }
    };
    if guard == Guard::Closed {
        return LocalMad::Consumed;
    }
    match header.method {
        Method::GET | Method::SET => {}
        Method::TRAP_REPRESS => {
            return if node.repress_trap(port, mad) {
                LocalMad::Consumed
            } else {
                LocalMad::NotHandled
            };
        }
        _ => return refuse(mad, MadStatus::UNSUPPORTED_METHOD),
    }
    let mut reply = *mad;
    let answer = answer(node, port, &mut reply);
    if guard == Guard::HideKey && header.attribute_id == PortInfo::ID {
        let smp: &mut LidRoutedSmp = reply.view_mut();
        smp.attribute_mut::<PortInfo>().mkey = ib_wire::MKey::default();
    }
    match answer {
        Ok(()) => LocalMad::Reply(as_response(reply, MadStatus::OK)),
        Err(status) => refuse(mad, status),
    }
}

fn refuse(request: &Mad, status: MadStatus) -> LocalMad {
    LocalMad::Reply(as_response(*request, status))
}

/// Makes a request its own response. Only a directed-route SMP has the direction bit.
fn as_response(mut mad: Mad, status: MadStatus) -> Mad {
    let returning = mad.header.mgmt_class == ib_wire::mad::MgmtClass::SUBN_DIRECTED_ROUTE;
    mad.header.method = mad.header.method.response();
    mad.header.status =
        MadStatus::new(status.get() | if returning { MadStatus::DIRECTION } else { 0 });
    mad
}

/// Serves a Get or Set: `reply` comes with the request's data and goes with the attribute.
fn answer(node: &mut Node, port: PortNum, reply: &mut Mad) -> Answer {
    let id = reply.header.attribute_id;
    let access = Access {
        modifier: reply.header.attribute_modifier,
        set: reply.header.method == Method::SET,
        port,
    };
    // The data stands at byte 64 in both forms of the SMP.
    let smp: &mut LidRoutedSmp = reply.view_mut();
    match id {
        NodeDescription::ID => tables::node_description(node, &access, smp.attribute_mut()),
        NodeInfo::ID => tables::node_info(node, &access, smp.attribute_mut()),
        SwitchInfo::ID => switch::switch_info(node, &access, smp.attribute_mut()),
        GuidInfo::ID => tables::guid_info(node, &access, smp.attribute_mut()),
        PortInfo::ID => port_info::port_info(node, &access, smp.attribute_mut()),
        PKeyTable::ID => tables::pkey_table(node, &access, smp.attribute_mut()),
        SlToVlMappingTable::ID => tables::sl_to_vl(node, &access, smp.attribute_mut()),
        VlArbitrationTable::ID => tables::vl_arbitration(node, &access, smp.attribute_mut()),
        LinearForwardingTable::ID => switch::linear_table(node, &access, smp.attribute_mut()),
        MulticastForwardingTable::ID => switch::multicast_table(node, &access, smp.attribute_mut()),
        LedInfo::ID => tables::led_info(node, &access, smp.attribute_mut()),
        MlnxExtPortInfo::ID => tables::extended_port_info(node, &access, smp.attribute_mut()),
        AttributeId { .. } => Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE),
    }
}

#[cfg(test)]
mod tests;
