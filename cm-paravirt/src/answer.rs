//! Messages that the machine makes itself, and how many of them.

use ib_vtime::{Instant, Rate, TokenBucket};
use ib_wire::cm::{self, CmDrep, CmDreq, CmMessage, CmRej, CmReq, RejReason};
use ib_wire::mad::{AttributeId, Mad, MadHeader};
use ib_wire::{CommId, Guid, Lid, Qpn, Tid};
use vf_tunnel::wire_id::KeyedHash;
use vf_tunnel::{RemoteCommId, WireCommId};

/// The header of an answer: the exchange's transaction id goes on.
const fn answer_header(attribute: AttributeId, tid: Tid) -> MadHeader {
    let mut header = cm::header(attribute);
    header.tid = tid;
    header
}

/// Puts a REJ in the place of the REQ that it rejects.
pub(crate) fn reject_req(mad: &mut Mad, reason: RejReason) {
    let req: &CmReq = mad.view();
    let mut rej = CmRej {
        header: answer_header(AttributeId::CM_REJ, req.header.tid),
        remote_comm_id: req.local_comm_id,
        reason,
        ..CmRej::default()
    };
    rej.set_message_rejected(CmMessage::REQ);
    *mad = Mad::from_layout(&rej);
}

/// Puts a DREP in the place of the DREQ that it answers.
pub(crate) fn reply_to_dreq(mad: &mut Mad) {
    let dreq: &CmDreq = mad.view();
    let drep = CmDrep {
        header: answer_header(AttributeId::CM_DREP, dreq.header.tid),
        local_comm_id: dreq.remote_comm_id,
        remote_comm_id: dreq.local_comm_id,
        ..CmDrep::default()
    };
    *mad = Mad::from_layout(&drep);
}

/// How a VF that is gone takes leave of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// The connection is closed.
    Dreq { remote: RemoteCommId, qpn: Qpn },
    /// The VF's own REQ is abandoned.
    Abandon { ca_guid: Guid },
    /// The peer's REQ is refused.
    RejectReq { remote: RemoteCommId },
    /// The handshake ends after a REP.
    RejectRep { remote: RemoteCommId },
}

impl Farewell {
    pub(crate) fn message(self, wire: WireCommId) -> Mad {
        // The low half of the transaction id, as CMs do it: the sender's id.
        let tid = Tid::new(u64::from(wire.0.get()));
        let rej = |local, remote, reason, message| {
            let mut rej = CmRej {
                header: answer_header(AttributeId::CM_REJ, tid),
                local_comm_id: local,
                remote_comm_id: remote,
                reason,
                ..CmRej::default()
            };
            rej.set_message_rejected(message);
            rej
        };
        match self {
            Self::Dreq { remote, qpn } => Mad::from_layout(&CmDreq {
                header: answer_header(AttributeId::CM_DREQ, tid),
                local_comm_id: wire.0,
                remote_comm_id: remote.0,
                remote_qpn: qpn,
                ..CmDreq::default()
            }),
            Self::Abandon { ca_guid } => {
                let mut rej = rej(wire.0, CommId::NONE, RejReason::TIMEOUT, CmMessage::OTHER);
                let guid = ca_guid.get().to_be_bytes();
                rej.ari[..guid.len()].copy_from_slice(&guid);
                rej.set_ari_length(8);
                Mad::from_layout(&rej)
            }
            Self::RejectReq { remote } => Mad::from_layout(&rej(
                CommId::NONE,
                remote.0,
                RejReason::NO_RESOURCES,
                CmMessage::REQ,
            )),
            Self::RejectRep { remote } => Mad::from_layout(&rej(
                wire.0,
                remote.0,
                RejReason::NO_RESOURCES,
                CmMessage::REP,
            )),
        }
    }
}

const METERS: usize = 64;

/// How many answers go to a LID: a token bucket per LID, LIDs that share one under a secret hash
/// excepted.
#[derive(Clone, Debug)]
pub(crate) struct AnswerLimit {
    buckets: [TokenBucket; METERS],
    /// `None` if nothing is answered.
    rate: Option<Rate>,
    hash: KeyedHash,
}

impl AnswerLimit {
    pub(crate) fn new(per_second: u32, burst: u32, hash: KeyedHash) -> Self {
        let answers = per_second > 0 && burst > 0;
        Self {
            buckets: [TokenBucket::full(); METERS],
            rate: answers.then(|| Rate::per_second(per_second, burst)),
            hash,
        }
    }

    /// Takes a token, if there is one.
    pub(crate) fn allow(&mut self, now: Instant, lid: Lid) -> bool {
        let meter = self.hash.hash(u64::from(lid.get())) as usize % METERS;
        self.rate
            .is_some_and(|rate| self.buckets[meter].take(now, &rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_one_answer_per_interval() {
        let mut limit = AnswerLimit::new(10, 3, KeyedHash::new([1, 2]));
        let lid = Lid::new(7);
        let allowed = (0..10).filter(|_| limit.allow(Instant::ZERO, lid)).count();
        assert_eq!(allowed, 3);
        let later = Instant::from_millis(100);
        let allowed = (0..10).filter(|_| limit.allow(later, lid)).count();
        assert_eq!(allowed, 1);
        let much_later = Instant::from_millis(10_000);
        let allowed = (0..10).filter(|_| limit.allow(much_later, lid)).count();
        assert_eq!(allowed, 3);
    }

    #[test]
    fn a_rate_or_a_burst_of_zero_allows_nothing() {
        for (per_second, burst) in [(0, 3), (10, 0)] {
            let mut limit = AnswerLimit::new(per_second, burst, KeyedHash::new([1, 2]));
            assert!(!limit.allow(Instant::ZERO, Lid::new(7)));
        }
    }
}
