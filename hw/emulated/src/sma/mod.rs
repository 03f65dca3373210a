//! The subnet management agent (IBA 14.2 to 14.3).

use hca_api::LocalMad;
use ib_wire::PortNum;
use ib_wire::mad::{BASE_VERSION, Mad, MadStatus, Method};

use crate::Node;

/// Hands an SMP that reached its destination by `port`, or that the host itself asks with, to the
/// agent.
///
/// SMInfo, traps and responses are for the software on QP0: [`LocalMad::NotHandled`].
pub fn process(_node: &mut Node, _port: PortNum, mad: &Mad) -> LocalMad {
    let header = &mad.header;
    if !header.mgmt_class.is_smp() || header.method.is_response() || header.method == Method::TRAP {
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
