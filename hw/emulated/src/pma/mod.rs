//! The performance management agent (IBA 16.1).

mod counters;

use hca_api::LocalMad;
use ib_wire::PortNum;
use ib_wire::mad::{BASE_VERSION, Mad, MadStatus, Method, MgmtClass};

pub use counters::PortCounters;

use crate::Node;

/// Hands a MAD that arrived on QP1 of `port`, or that the host itself asks with, to the agent.
///
/// Everything but performance management requests is [`LocalMad::NotHandled`].
pub fn process(_node: &mut Node, _port: PortNum, mad: &Mad) -> LocalMad {
    let header = &mad.header;
    if header.mgmt_class != MgmtClass::PERF || header.method.is_response() {
        return LocalMad::NotHandled;
    }
    let mut reply = *mad;
    reply.header.method = header.method.response();
    reply.header.status = if header.base_version != BASE_VERSION || header.class_version != 1 {
        MadStatus::BAD_VERSION
    } else if !matches!(header.method, Method::GET | Method::SET) {
        MadStatus::UNSUPPORTED_METHOD
    } else {
        MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE
    };
    LocalMad::Reply(reply)
}
