//! One connection: what it knows of the peer, what it waits for, and how long.

use alloc::boxed::Box;
use core::time::Duration;

use ib_vtime::TimerKey;
use ib_wire::cm::{CmRep, CmReq, timeout_nanos};
use ib_wire::mad::{AttributeId, Mad};
use ib_wire::{CommId, Guid, Psn, Qpn, ServiceId, Tid};

use super::{ConnId, State};
use crate::MadAddress;

/// Which side of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It sent the REQ.
    Active,
    /// It received the REQ.
    Passive,
}

/// What makes two REQs with the same ids the same REQ rather than a new life of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestIdentity {
    tid: Tid,
    service_id: ServiceId,
    qpn: Qpn,
    psn: Psn,
}

impl RequestIdentity {
    pub(super) const fn of(req: &CmReq) -> Self {
        Self {
            tid: req.header.tid,
            service_id: req.service_id,
            qpn: req.local_qpn,
            psn: req.starting_psn,
        }
    }
}

/// How long to wait for what; all of it comes from the fields of messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    /// For the peer's answer to a message of ours.
    pub answer: Duration,
    /// Between two REQs of a peer that gets no answer.
    pub request: Duration,
    /// For packets that are under way: local ACK timeout of the path, which covers the way there
    /// and back and the peer's own delay.
    pub path: Duration,
    /// For what the peer's adapter may hold back before it acknowledges, by its REP.
    pub target: Duration,
    /// How often to send a message again.
    pub retries: u8,
}

impl Waits {
    /// The waits of the side that sends the REQ.
    pub(super) fn active(req: &CmReq, cap: Duration) -> Self {
        let request = code(req.remote_cm_response_timeout(), cap);
        Self::new(req, request, request, cap)
    }

    /// The waits of the side that receives the REQ.
    pub(super) fn passive(req: &CmReq, cap: Duration) -> Self {
        let answer = code(req.local_cm_response_timeout(), cap);
        let request = code(req.remote_cm_response_timeout(), cap);
        Self::new(req, answer, request, cap)
    }

    fn new(req: &CmReq, answer: Duration, request: Duration, cap: Duration) -> Self {
        let path = code(req.primary.local_ack_timeout(), cap);
        Self {
            answer: answer + path,
            request: request + path,
            path,
            target: Duration::ZERO,
            retries: req.max_cm_retries(),
        }
    }

    /// A SIDR exchange: the waits are the caller's own.
    pub(super) const fn sidr(answer: Duration, retries: u8) -> Self {
        Self {
            answer,
            request: answer,
            path: Duration::ZERO,
            target: Duration::ZERO,
            retries,
        }
    }
}

/// The time of a 5-bit code, at most `cap`.
pub(super) fn code(code: u8, cap: Duration) -> Duration {
    Duration::from_nanos(timeout_nanos(code)).min(cap)
}

/// One connection or SIDR exchange.
#[derive(Debug)]
pub(super) struct Connection {
    pub state: State,
    pub role: Role,
    /// The user has destroyed it: it ends without further events.
    pub orphan: bool,
    pub local_id: CommId,
    pub remote_id: Option<CommId>,
    pub remote_ca_guid: Option<Guid>,
    pub local_qpn: Qpn,
    pub remote_qpn: Qpn,
    pub service_id: ServiceId,
    /// The listener of a request that is not answered yet.
    pub listener: Option<ConnId>,
    pub address: MadAddress,
    /// Transaction of the exchange that goes on: of the connection, the LAP or the DREQ.
    pub tid: Tid,
    pub waits: Waits,
    pub request: Option<RequestIdentity>,
    /// The REQ may cross the peer's.
    pub peer_to_peer: bool,
    /// The message that waits for an answer.
    pub asked: Option<Box<Mad>>,
    /// The time that each try of it gets.
    pub asked_wait: Duration,
    pub tries_left: u8,
    /// The answer given last, for duplicates of what it answered.
    pub answer: Option<Box<Mad>>,
    /// The RTU, for duplicates of the REP.
    pub rtu: Option<Box<Mad>>,
    /// The LAP that was received last, to tell a duplicate from a new one.
    pub lap: Option<Box<Mad>>,
    /// Extra time that an MRA of this side announced.
    pub mra_wait: Duration,
    pub timer: Option<TimerKey>,
}

impl Connection {
    pub(super) fn new(role: Role, local_id: CommId, address: MadAddress, waits: Waits) -> Self {
        Self {
            state: State::Idle,
            role,
            orphan: false,
            local_id,
            remote_id: None,
            remote_ca_guid: None,
            local_qpn: Qpn::default(),
            remote_qpn: Qpn::default(),
            service_id: ServiceId::default(),
            listener: None,
            address,
            tid: Tid::default(),
            waits,
            request: None,
            peer_to_peer: false,
            asked: None,
            asked_wait: Duration::ZERO,
            tries_left: 0,
            answer: None,
            rtu: None,
            lap: None,
            mra_wait: Duration::ZERO,
            timer: None,
        }
    }

    /// Learns the peer from its REQ.
    pub(super) fn learn_req(&mut self, req: &CmReq) {
        self.role = Role::Passive;
        self.remote_id = Some(req.local_comm_id);
        self.remote_ca_guid = Some(req.local_ca_guid);
        self.remote_qpn = req.local_qpn;
        self.service_id = req.service_id;
        self.tid = req.header.tid;
        self.request = Some(RequestIdentity::of(req));
    }

    /// Learns the peer from its REP.
    pub(super) fn learn_rep(&mut self, rep: &CmRep, cap: Duration) {
        self.waits.target = code(rep.target_ack_delay(), cap);
        self.remote_id = Some(rep.local_comm_id);
        self.remote_ca_guid = Some(rep.local_ca_guid);
        self.remote_qpn = rep.local_qpn;
    }

    /// Whether the peer's id is `id`, or not known yet.
    pub(super) fn may_be_peer(&self, id: CommId) -> bool {
        self.remote_id.is_none_or(|known| known == id)
    }

    /// The key under which the peer's REQs and REJs for timeout find the connection.
    pub(super) fn remote_key(&self) -> Option<(Guid, CommId)> {
        self.remote_ca_guid.zip(self.remote_id)
    }

    /// The key under which a stale connection of the peer's QP is found.
    pub(super) fn remote_qpn_key(&self) -> Option<(Guid, Qpn)> {
        self.remote_ca_guid.map(|guid| (guid, self.remote_qpn))
    }

    /// The REJ that ended the connection, if this side sent one.
    pub(super) fn kept_rej(&self) -> Option<&Mad> {
        self.answer
            .as_deref()
            .filter(|answer| answer.header.attribute_id == AttributeId::CM_REJ)
    }

    /// How long the connection stays in TimeWait: until packets under way have died out, for which the active side adds
    /// the REP's Target ACK Delay (`cm_rep_handler` of Linux), and after a refused REQ until the peer has stopped to
    /// repeat it.
    pub(super) fn time_wait(&self, cap: Duration) -> Duration {
        let wait = if self.role == Role::Passive && self.kept_rej().is_some() {
            (self.waits.request + self.mra_wait) * (u32::from(self.waits.retries) + 1)
        } else {
            self.waits.path + self.waits.target
        };
        wait.min(cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn req() -> CmReq {
        let mut req = CmReq::default();
        req.set_remote_cm_response_timeout(20);
        req.set_local_cm_response_timeout(18);
        req.set_max_cm_retries(15);
        req.primary.set_local_ack_timeout(14);
        req
    }

    const CAP: Duration = Duration::from_secs(600);

    #[test]
    fn each_side_waits_for_the_time_that_the_other_may_take() {
        let path = Duration::from_nanos(4096 << 14);
        let active = Waits::active(&req(), CAP);
        assert_eq!(active.answer, Duration::from_nanos(4096 << 20) + path);
        let passive = Waits::passive(&req(), CAP);
        assert_eq!(passive.answer, Duration::from_nanos(4096 << 18) + path);
        assert_eq!(passive.request, active.answer);
        assert_eq!((active.retries, passive.retries), (15, 15));
    }

    #[test]
    fn a_code_never_waits_longer_than_the_cap() {
        assert_eq!(code(31, CAP), CAP);
        assert_eq!(code(0, CAP), Duration::from_nanos(4096));
    }

    #[test]
    fn time_wait_of_the_active_side_has_the_peers_ack_delay_in_it() {
        let waits = Waits::active(&req(), CAP);
        let address = MadAddress::gsi(ib_wire::Lid::new(1));
        let mut conn = Connection::new(Role::Active, CommId::new(1), address, waits);
        assert_eq!(conn.time_wait(CAP), waits.path);
        let mut rep = CmRep::default();
        rep.set_target_ack_delay(15);
        conn.learn_rep(&rep, CAP);
        let delay = Duration::from_nanos(4096 << 15);
        assert_eq!(conn.time_wait(CAP), waits.path + delay);
    }

    #[test]
    fn time_wait_lasts_for_the_path_or_after_a_refusal_for_the_peers_retries() {
        let address = MadAddress::gsi(ib_wire::Lid::new(1));
        let waits = Waits::passive(&req(), CAP);
        let mut conn = Connection::new(Role::Passive, CommId::new(1), address, waits);
        assert_eq!(conn.time_wait(CAP), waits.path);
        let rej = Mad::new(ib_wire::cm::header(AttributeId::CM_REJ));
        conn.answer = Some(Box::new(rej));
        assert_eq!(conn.time_wait(CAP), waits.request * 16);
        assert_eq!(
            conn.time_wait(Duration::from_secs(1)),
            Duration::from_secs(1)
        );
    }
}
