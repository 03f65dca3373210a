//! The performance management agent (IBA 16.1).
//!
//! Answers ClassPortInfo, PortCounters and PortCountersExtended, of one port or of all together, and samples
//! (PortSamplesControl, PortSamplesResult). The optional counter attributes are not offered.

mod counters;
mod samples;

use hca_api::LocalMad;
use ib_wire::PortNum;
use ib_wire::mad::{AttributeId, BASE_VERSION, Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::ClassPortInfo;
use ib_wire::perf::{
    self, ALL_PORTS, PerfAttribute, PerfMad, PortCountersExtended, PortSamplesControl,
    PortSamplesResult, capability, capability2,
};

pub use counters::PortCounters;
pub(crate) use samples::{Samples, TICK};

use crate::{Node, PhysicalPort};

/// ClassPortInfo:RespTimeValue: 4.096 µs × 2^16.
const RESPONSE_TIME: u8 = 16;

/// Hands a MAD that arrived on QP1 of `port`, or that the host itself asks with, to the agent.
///
/// Everything but performance management requests is [`LocalMad::NotHandled`].
pub fn process(node: &mut Node, port: PortNum, mad: &Mad) -> LocalMad {
    let header = &mad.header;
    if header.mgmt_class != MgmtClass::PERF || header.method.is_response() {
        return LocalMad::NotHandled;
    }
    let mut reply = *mad;
    let answer = if header.base_version != BASE_VERSION || header.class_version != 1 {
        Err(MadStatus::BAD_VERSION)
    } else {
        match header.method {
            Method::GET | Method::SET => answer(node, port, &mut reply),
            _ => Err(MadStatus::UNSUPPORTED_METHOD),
        }
    };
    if answer.is_err() {
        reply = *mad;
    }
    reply.header.method = header.method.response();
    reply.header.status = answer.err().unwrap_or(MadStatus::OK);
    LocalMad::Reply(reply)
}

fn answer(node: &mut Node, port: PortNum, reply: &mut Mad) -> Result<(), MadStatus> {
    let agent = node.end_port_number(port);
    let set = reply.header.method == Method::SET;
    let id = reply.header.attribute_id;
    let mad: &mut PerfMad = reply.view_mut();
    match id {
        ClassPortInfo::ID if !set => {
            *mad.attribute_mut() = class_port_info();
            Ok(())
        }
        PortSamplesControl::ID => samples::control(node, agent, set, mad.attribute_mut()),
        PortSamplesResult::ID if !set => {
            *mad.attribute_mut() = samples::result(node, agent)?;
            Ok(())
        }
        <perf::PortCounters as PerfAttribute>::ID => basic(node, set, mad.attribute_mut()),
        PortCountersExtended::ID => extended(node, set, mad.attribute_mut()),
        AttributeId { .. } => Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE),
    }
}

fn class_port_info() -> ClassPortInfo {
    let mask = capability::ALL_PORT_SELECT
        | capability::EXTENDED_WIDTH
        | capability::XMIT_WAIT
        | capability::QP1_DROPPED;
    let mut info = ClassPortInfo {
        base_version: BASE_VERSION,
        class_version: 1,
        capability_mask: mask.into(),
        ..ClassPortInfo::default()
    };
    info.set_capability_mask2(capability2::ERROR_COUNTERS_EXTENDED);
    info.set_resp_time_value(RESPONSE_TIME);
    info
}

/// The ports that a PortSelect means.
fn selected(node: &mut Node, select: PortNum) -> Result<&mut [PhysicalPort], MadStatus> {
    if select == ALL_PORTS {
        Ok(node.ports_mut())
    } else {
        node.port_mut(select)
            .map(core::slice::from_mut)
            .ok_or(MadStatus::INVALID_FIELD)
    }
}

fn basic(node: &mut Node, set: bool, data: &mut perf::PortCounters) -> Result<(), MadStatus> {
    let select = data.port_select;
    let mut total = PortCounters::default();
    for port in selected(node, select)? {
        if set {
            let mut shown = port.counters.since(&port.cleared).basic(select);
            shown.apply_set(data);
            port.cleared = port.counters.base_for(&shown);
        }
        total = total.plus(&port.counters.since(&port.cleared));
    }
    *data = total.basic(select);
    Ok(())
}

fn extended(node: &mut Node, set: bool, data: &mut PortCountersExtended) -> Result<(), MadStatus> {
    let select = data.port_select;
    let mut total = PortCounters::default();
    for port in selected(node, select)? {
        if set {
            let basic = port.counters.since(&port.cleared).basic(select);
            let mut shown = port.counters.extended(select);
            shown.apply_set(data);
            port.counters = PortCounters::from_extended(&shown);
            port.cleared = port.counters.base_for(&basic);
        }
        total = total.plus(&port.counters);
    }
    *data = total.extended(select);
    Ok(())
}

#[cfg(test)]
mod tests;
