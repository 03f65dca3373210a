//! Requests: what is wrong with a member's on its face, and the port's own.

use ib_wire::mad::{MadStatus, Method};
use ib_wire::rmpp::RmppHeader;
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, SaMad, Selector};
use ib_wire::{Gid, SmKey, SubnetPrefix, Tid};

use crate::Requester;

type R = McMemberRecord;

/// What every join and leave must name.
const REQUIRED: ComponentMask = R::MGID.union(R::PORT_GID).union(R::JOIN_STATE);

/// What creating a group needs (OpenSM), and what fixes the rest of it.
const CREATE: ComponentMask = REQUIRED
    .union(R::QKEY)
    .union(R::TRAFFIC_CLASS)
    .union(R::PKEY)
    .union(R::SL)
    .union(R::FLOW_LABEL)
    .union(R::HOP_LIMIT)
    .union(R::MTU_SELECTOR)
    .union(R::MTU)
    .union(R::RATE_SELECTOR)
    .union(R::RATE);

/// Checks what needs no knowledge of the group.
///
/// # Errors
/// The status that the SA gives for it.
pub(crate) fn check(
    mask: ComponentMask,
    record: &McMemberRecord,
    from: &Requester<'_>,
    prefix: SubnetPrefix,
) -> Result<(), MadStatus> {
    if !mask.contains(REQUIRED) {
        return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
    }
    if record.join_state().is_empty() {
        return Err(MadStatus::SA_REQ_INVALID);
    }
    let named = record.port_gid.prefix();
    if named != prefix && named != SubnetPrefix::DEFAULT {
        return Err(MadStatus::SA_INVALID_GID);
    }
    // On behalf of another port nobody joins here: the SA could not tell a VF from its siblings.
    if record.port_gid.interface_id() != from.guid || from.guid.is_none() {
        return Err(MadStatus::SA_REQ_INVALID);
    }
    Ok(())
}

/// The port's join for a member's: the member's, under the port's name and without what only a
/// trusted requester may say.
pub(crate) fn join(request: &SaMad, port_gid: Gid) -> SaMad {
    let mut record = request.record::<McMemberRecord>();
    record.port_gid = port_gid;
    record.set_proxy_join(false);
    let mask = ComponentMask::new(request.component_mask.get() & !R::PROXY_JOIN.get());
    let mut join = *request;
    join.header.tid = Tid::new(0);
    join.rmpp = RmppHeader::default();
    join.sm_key = SmKey::new(0);
    join.component_mask = mask;
    join.set_record(&record);
    join
}

/// The port's leave.
pub(crate) fn leave(mgid: Gid, port_gid: Gid, state: JoinState) -> SaMad {
    let mut record = McMemberRecord {
        mgid,
        port_gid,
        ..McMemberRecord::default()
    };
    record.set_join_state(state);
    SaMad::new(Method::DELETE, REQUIRED, &record)
}

/// The port's join of a group that it was in: with all that creating it anew needs if `full`.
pub(crate) fn rejoin(known: &McMemberRecord, port_gid: Gid, state: JoinState, full: bool) -> SaMad {
    let mut record = McMemberRecord { port_gid, ..*known };
    record.set_join_state(state);
    record.set_proxy_join(false);
    record.set_mtu_selector(Selector::EXACTLY);
    record.set_rate_selector(Selector::EXACTLY);
    SaMad::new(Method::SET, if full { CREATE } else { REQUIRED }, &record)
}

/// Whether two records describe a group alike to those who send to it.
pub(crate) fn same_group(a: &McMemberRecord, b: &McMemberRecord) -> bool {
    a.mlid == b.mlid
        && a.qkey == b.qkey
        && a.pkey == b.pkey
        && a.traffic_class == b.traffic_class
        && a.sl_flow_hop == b.sl_flow_hop
        && a.mtu_value() == b.mtu_value()
        && a.rate_value() == b.rate_value()
}
