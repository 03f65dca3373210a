//! Answers with the SA's bytes.

use ib_wire::mad::{MadStatus, Method};
use ib_wire::rmpp::RmppHeader;
use ib_wire::sa::{JoinState, McMemberRecord, SaMad, SaRecord, Selector};
use ib_wire::{Gid, SmKey};
use zerocopy::network_endian::U16;

/// Turns a request into its refusal: the request echoed with a status (as OpenSM does).
pub(crate) fn refuse(mad: &mut SaMad, status: MadStatus) {
    make_response(mad);
    mad.header.status = status;
}

/// Turns a request into the answer that grants it: the group's record for this member.
pub(crate) fn grant(mad: &mut SaMad, group: &McMemberRecord, port_gid: Gid, state: JoinState) {
    let mut record = *group;
    record.port_gid = port_gid;
    record.set_join_state(state);
    record.set_proxy_join(false);
    record.set_mtu_selector(Selector::EXACTLY);
    record.set_rate_selector(Selector::EXACTLY);
    record.set_packet_life_time_selector(Selector::EXACTLY);
    make_response(mad);
    mad.header.status = MadStatus::OK;
    mad.set_record(&record);
}

fn make_response(mad: &mut SaMad) {
    // A Delete is answered by DeleteResp; mlx4 sends GetResp, which only Linux tolerates.
    mad.header.method = match mad.header.method {
        Method::DELETE => Method::DELETE_RESP,
        _ => Method::GET_RESP,
    };
    mad.rmpp = RmppHeader::default();
    mad.sm_key = SmKey::new(0);
    mad.attribute_offset = U16::new(McMemberRecord::ATTRIBUTE_OFFSET);
}
