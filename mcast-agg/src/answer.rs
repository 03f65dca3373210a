//! Answers with the SA's bytes.

use ib_wire::mad::{MadStatus, Method};
use ib_wire::rmpp::RmppHeader;
use ib_wire::sa::{JoinState, McMemberRecord, SaMad, SaRecord, Selector};
use ib_wire::{Gid, SmKey};
use zerocopy::network_endian::U16;

/// Turns a request into its refusal: the request echoed with a status (as OpenSM does).
pub(crate) fn refuse(mad: &mut SaMad, status: MadStatus) {
    echo::<McMemberRecord>(mad, status);
}

/// Turns a request for an `R` into the answer that echoes it with a status.
pub(crate) fn echo<R: SaRecord>(mad: &mut SaMad, status: MadStatus) {
    // A Delete is answered by DeleteResp; mlx4 sends GetResp, which only Linux tolerates.
    mad.header.method = match mad.header.method {
        Method::DELETE => Method::DELETE_RESP,
        _ => Method::GET_RESP,
    };
    mad.header.status = status;
    mad.rmpp = RmppHeader::default();
    mad.sm_key = SmKey::new(0);
    mad.attribute_offset = U16::new(R::ATTRIBUTE_OFFSET);
}

/// The status to relay: a success that makes no sense counts as a refusal.
pub(crate) fn failure(status: MadStatus) -> MadStatus {
    if status == MadStatus::OK {
        MadStatus::SA_REQ_INVALID
    } else {
        status
    }
}

/// Turns a request into the answer that grants it: the group's record for this member.
pub(crate) fn grant(mad: &mut SaMad, group: &McMemberRecord, port_gid: Gid, state: JoinState) {
    echo::<McMemberRecord>(mad, MadStatus::OK);
    mad.set_record(group);
    let record: &mut McMemberRecord = mad.record_mut();
    record.port_gid = port_gid;
    record.set_join_state(state);
    record.set_proxy_join(false);
    record.set_mtu_selector(Selector::EXACTLY);
    record.set_rate_selector(Selector::EXACTLY);
    record.set_packet_life_time_selector(Selector::EXACTLY);
}
