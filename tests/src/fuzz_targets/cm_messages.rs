//! CM messages for the targets that have VFs and peers converse.

use ib_wire::cm::{self, CmRej, CmRep, CmReq, CmRtu};
use ib_wire::mad::{AttributeId, Mad};
use ib_wire::{CommId, Gid, Guid, PKey};
use zerocopy::IntoBytes;

use super::hostile::Input;

/// All of them.
pub(super) const MESSAGES: [AttributeId; 11] = [
    AttributeId::CM_REQ,
    AttributeId::CM_MRA,
    AttributeId::CM_REJ,
    AttributeId::CM_REP,
    AttributeId::CM_RTU,
    AttributeId::CM_DREQ,
    AttributeId::CM_DREP,
    AttributeId::CM_SIDR_REQ,
    AttributeId::CM_SIDR_REP,
    AttributeId::CM_LAP,
    AttributeId::CM_APR,
];

/// A message with its two ids, everything else zero.
pub(super) fn message(attribute: AttributeId, local: u32, remote: u32) -> Mad {
    let mut mad = Mad::new(cm::header(attribute));
    let rtu: &mut CmRtu = mad.view_mut();
    rtu.local_comm_id = CommId::new(local);
    rtu.remote_comm_id = CommId::new(remote);
    mad
}

/// A REQ of a CA from one GID to another.
pub(super) fn request(id: u32, ca: Guid, from: Gid, to: Gid) -> Mad {
    let mut mad = message(AttributeId::CM_REQ, id, 0);
    let req: &mut CmReq = mad.view_mut();
    req.local_ca_guid = ca;
    req.pkey = PKey::DEFAULT_FULL;
    req.primary.local_gid = from;
    req.primary.remote_gid = to;
    mad
}

/// The two ids of a message.
pub(super) fn ids(mad: &Mad) -> (u32, u32) {
    let rtu: &CmRtu = mad.view();
    (rtu.local_comm_id.get(), rtu.remote_comm_id.get())
}

/// The second id of these is no id.
pub(super) fn is_sidr(mad: &Mad) -> bool {
    [AttributeId::CM_SIDR_REQ, AttributeId::CM_SIDR_REP].contains(&mad.header.attribute_id)
}

/// The message with both ids cleared.
pub(super) fn without_ids(mad: &Mad) -> Mad {
    let mut mad = *mad;
    let ids = if is_sidr(&mad) { 4 } else { 8 };
    mad.data[..ids].fill(0);
    mad
}

/// Makes a REP or REJ name its CA, which a REJ for a timeout has to.
pub(super) fn set_ca(mad: &mut Mad, ca: Guid) {
    match mad.header.attribute_id {
        AttributeId::CM_REP => mad.view_mut::<CmRep>().local_ca_guid = ca,
        AttributeId::CM_REJ => {
            let rej: &mut CmRej = mad.view_mut();
            rej.ari[..8].copy_from_slice(ca.as_bytes());
            rej.set_ari_length(8);
        }
        _ => {}
    }
}

/// What could follow a message: mostly what should.
pub(super) fn reply(got: &Mad, ca: Guid, input: &mut Input<'_>) -> Mad {
    let (local, remote) = ids(got);
    let usual = match got.header.attribute_id {
        AttributeId::CM_REQ => AttributeId::CM_REP,
        AttributeId::CM_REP => AttributeId::CM_RTU,
        AttributeId::CM_RTU => AttributeId::CM_DREQ,
        AttributeId::CM_DREQ => AttributeId::CM_DREP,
        AttributeId::CM_SIDR_REQ => AttributeId::CM_SIDR_REP,
        _ => AttributeId::CM_REJ,
    };
    let attribute = match input.byte() {
        unusual @ 0..64 => MESSAGES[usize::from(unusual) % MESSAGES.len()],
        _ => usual,
    };
    let own = match got.header.attribute_id {
        AttributeId::CM_REQ => u32::from(input.byte() % 6),
        _ => remote,
    };
    let mut mad = match attribute {
        AttributeId::CM_SIDR_REP => message(attribute, local, 0),
        _ => message(attribute, own, local),
    };
    set_ca(&mut mad, ca);
    mad
}
