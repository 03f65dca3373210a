//! Making the messages that the machine itself fills in.

use ib_wire::cm::{
    self, ApStatus, CmApr, CmDrep, CmDreq, CmLap, CmMessage, CmMra, CmRej, CmRtu, CmSidrRep,
    RejReason, SidrStatus,
};
use ib_wire::mad::{AttributeId, Mad, MadLayout};
use ib_wire::{CommId, Guid, ServiceId, Tid};
use zerocopy::IntoBytes;

use super::CmError;
use super::connection::Connection;

/// A message of zeros in transaction `tid`, for `fill` to complete.
pub(super) fn build<T: MadLayout>(
    attribute_id: AttributeId,
    tid: Tid,
    fill: impl FnOnce(&mut T),
) -> Mad {
    let mut mad = Mad::new(cm::header(attribute_id));
    mad.header.tid = tid;
    fill(mad.view_mut());
    mad
}

/// Writes `data` to the front of a field.
pub(super) fn fill(field: &mut [u8], data: &[u8]) -> Result<(), CmError> {
    let max = field.len();
    field
        .get_mut(..data.len())
        .ok_or(CmError::TooLong { max })?
        .copy_from_slice(data);
    Ok(())
}

/// The peer's id, or "none".
fn remote_id(conn: &Connection) -> CommId {
    conn.remote_id.unwrap_or(CommId::NONE)
}

pub(super) fn rtu(conn: &Connection, private_data: &[u8; 224]) -> Mad {
    build(AttributeId::CM_RTU, conn.tid, |rtu: &mut CmRtu| {
        rtu.local_comm_id = conn.local_id;
        rtu.remote_comm_id = remote_id(conn);
        rtu.private_data = *private_data;
    })
}

pub(super) fn dreq(conn: &Connection, tid: Tid, private_data: &[u8; 220]) -> Mad {
    build(AttributeId::CM_DREQ, tid, |dreq: &mut CmDreq| {
        dreq.local_comm_id = conn.local_id;
        dreq.remote_comm_id = remote_id(conn);
        dreq.remote_qpn = conn.remote_qpn;
        dreq.private_data = *private_data;
    })
}

pub(super) fn mra(
    conn: &Connection,
    message: CmMessage,
    service_timeout: u8,
    private_data: &[u8; 222],
) -> Mad {
    build(AttributeId::CM_MRA, conn.tid, |mra: &mut CmMra| {
        mra.local_comm_id = conn.local_id;
        mra.remote_comm_id = remote_id(conn);
        mra.set_message_mraed(message);
        mra.set_service_timeout(service_timeout);
        mra.private_data = *private_data;
    })
}

/// A REJ of a connection; one for timeout names the CA that gives up.
pub(super) fn rej(
    conn: &Connection,
    message: CmMessage,
    reason: RejReason,
    ca_guid: Guid,
    ari: &[u8],
    private_data: &[u8; 148],
) -> Mad {
    build(AttributeId::CM_REJ, conn.tid, |rej: &mut CmRej| {
        rej.local_comm_id = conn.local_id;
        rej.remote_comm_id = remote_id(conn);
        rej.set_message_rejected(message);
        rej.reason = reason;
        let ari = if reason == RejReason::TIMEOUT {
            ca_guid.as_bytes()
        } else {
            ari
        };
        set_ari(rej, ari);
        rej.private_data = *private_data;
    })
}

fn set_ari(rej: &mut CmRej, ari: &[u8]) {
    for (to, from) in rej.ari.iter_mut().zip(ari) {
        *to = *from;
    }
    rej.set_ari_length(u8::try_from(ari.len().min(rej.ari.len())).unwrap_or(0));
}

/// A REJ of a message that no connection takes: its ids are the message's, swapped.
pub(super) fn stray_rej(
    tid: Tid,
    message: CmMessage,
    reason: RejReason,
    local_id: CommId,
    remote_id: CommId,
    ari: &[u8],
) -> Mad {
    build(AttributeId::CM_REJ, tid, |rej: &mut CmRej| {
        rej.local_comm_id = local_id;
        rej.remote_comm_id = remote_id;
        rej.set_message_rejected(message);
        rej.reason = reason;
        set_ari(rej, ari);
    })
}

/// The DREP that answers a DREQ, known or not.
pub(super) fn drep(dreq: &CmDreq, private_data: &[u8; 224]) -> Mad {
    build(
        AttributeId::CM_DREP,
        dreq.header.tid,
        |drep: &mut CmDrep| {
            drep.local_comm_id = dreq.remote_comm_id;
            drep.remote_comm_id = dreq.local_comm_id;
            drep.private_data = *private_data;
        },
    )
}

/// The APR that refuses a LAP of an unknown connection.
pub(super) fn stray_apr(lap: &CmLap) -> Mad {
    build(AttributeId::CM_APR, lap.header.tid, |apr: &mut CmApr| {
        apr.local_comm_id = lap.remote_comm_id;
        apr.remote_comm_id = lap.local_comm_id;
        apr.ap_status = ApStatus::INVALID_COMM_ID;
    })
}

/// The SIDR_REP that refuses a SIDR_REQ.
pub(super) fn refuse_sidr(
    tid: Tid,
    request_id: CommId,
    service_id: ServiceId,
    status: SidrStatus,
) -> Mad {
    build(AttributeId::CM_SIDR_REP, tid, |rep: &mut CmSidrRep| {
        rep.request_id = request_id;
        rep.service_id = service_id;
        rep.status = status;
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_does_not_fit_is_refused_and_shorter_data_is_padded() {
        let mut field = [0; 4];
        assert_eq!(fill(&mut field, &[1, 2]), Ok(()));
        assert_eq!(field, [1, 2, 0, 0]);
        assert_eq!(fill(&mut field, &[1; 5]), Err(CmError::TooLong { max: 4 }));
        assert_eq!(fill(&mut field, &[9; 4]), Ok(()));
    }

    #[test]
    fn a_stray_rej_has_its_ids_reason_and_ari() {
        let mad = stray_rej(
            Tid::new(7),
            CmMessage::REP,
            RejReason::INVALID_COMM_ID,
            CommId::new(1),
            CommId::new(2),
            &[5; 3],
        );
        let rej: &CmRej = mad.view();
        assert_eq!((rej.local_comm_id.get(), rej.remote_comm_id.get()), (1, 2));
        assert_eq!(rej.message_rejected(), CmMessage::REP);
        assert_eq!(rej.ari_bytes(), [5; 3]);
        assert_eq!(rej.header.tid.get(), 7);
    }
}
