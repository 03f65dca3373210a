//! Received MADs: which connection they belong to, and what event they are to it.

use alloc::boxed::Box;

use ib_vtime::Instant;
use ib_wire::cm::{
    CmApr, CmDrep, CmDreq, CmLap, CmMessage, CmMra, CmRej, CmRep, CmReq, CmRtu, CmSidrRep,
    CmSidrReq, RejReason, SidrStatus,
};
use ib_wire::mad::{AttributeId, BASE_VERSION, Mad, Method, MgmtClass};
use ib_wire::{CommId, ServiceId, Tid};

use super::connection::{Connection, RequestIdentity, Role, Waits};
use super::registry::sidr_key;
use super::table::{Event, Reaction, transition};
use super::{Cm, CmDrop, CmVerdict, ConnId, Input, State, message};
use crate::MadAddress;

/// The class version that this code speaks.
const CLASS_VERSION: u8 = MgmtClass::COM_MGT.supported_version();

impl Cm {
    /// Takes a MAD that arrived on QP1.
    pub fn handle_mad(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let verdict = self.dispatch(now, from, mad);
        self.counters.count(verdict);
        verdict
    }

    fn dispatch(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let header = &mad.header;
        if header.base_version != BASE_VERSION
            || header.mgmt_class != MgmtClass::COM_MGT
            || header.method != Method::SEND
        {
            return CmVerdict::Dropped(CmDrop::NotCm);
        }
        if header.class_version != CLASS_VERSION {
            return self.refuse_version(from, mad);
        }
        match header.attribute_id {
            AttributeId::CM_REQ => self.on_req(now, from, mad),
            AttributeId::CM_MRA => self.on_mra(now, from, mad),
            AttributeId::CM_REJ => self.on_rej(now, from, mad),
            AttributeId::CM_REP => self.on_rep(now, from, mad),
            AttributeId::CM_RTU => self.on_rtu(now, from, mad),
            AttributeId::CM_DREQ => self.on_dreq(now, from, mad),
            AttributeId::CM_DREP => self.on_drep(now, from, mad),
            AttributeId::CM_SIDR_REQ => self.on_sidr_req(now, from, mad),
            AttributeId::CM_SIDR_REP => self.on_sidr_rep(now, from, mad),
            AttributeId::CM_LAP => self.on_lap(now, from, mad),
            AttributeId::CM_APR => self.on_apr(now, from, mad),
            _ => CmVerdict::Dropped(CmDrop::NotCm),
        }
    }

    /// Answers requests of another class version (IBA 12.6.7.2, code 31; 12.11.2, status 5).
    fn refuse_version(&mut self, from: &MadAddress, mad: &Mad) -> CmVerdict {
        match mad.header.attribute_id {
            AttributeId::CM_REQ => self.refuse_req(
                from,
                mad.view(),
                RejReason::INVALID_CLASS_VERSION,
                &[CLASS_VERSION],
            ),
            AttributeId::CM_SIDR_REQ => {
                self.refuse_sidr(from, mad.view(), SidrStatus::UNSUPPORTED_VERSION)
            }
            _ => CmVerdict::Dropped(CmDrop::NotCm),
        }
    }

    fn refuse_req(
        &mut self,
        from: &MadAddress,
        req: &CmReq,
        reason: RejReason,
        ari: &[u8],
    ) -> CmVerdict {
        self.stray_rej(
            from,
            req.header.tid,
            CmMessage::REQ,
            reason,
            (CommId::NONE, req.local_comm_id),
            ari,
        )
    }

    /// Sends a REJ that belongs to no connection, with the given local and remote id.
    fn stray_rej(
        &mut self,
        to: &MadAddress,
        tid: Tid,
        rejected: CmMessage,
        reason: RejReason,
        (local_id, remote_id): (CommId, CommId),
        ari: &[u8],
    ) -> CmVerdict {
        let rej = message::stray_rej(tid, rejected, reason, local_id, remote_id, ari);
        self.transmit(*to, rej);
        CmVerdict::Refused
    }

    fn refuse_sidr(&mut self, from: &MadAddress, req: &CmSidrReq, status: SidrStatus) -> CmVerdict {
        let rep = message::refuse_sidr(req.header.tid, req.request_id, req.service_id, status);
        self.transmit(*from, rep);
        CmVerdict::Refused
    }

    /// Lets a received message happen to its connection.
    fn happen(
        &mut self,
        now: Instant,
        id: ConnId,
        event: Event,
        from: &MadAddress,
        mad: &Mad,
    ) -> CmVerdict {
        match self.apply(now, id, event, Input::Received { mad, from }) {
            None => CmVerdict::Dropped(CmDrop::WrongState),
            Some(
                Reaction::Ignore
                | Reaction::Repeat
                | Reaction::RepeatRtu
                | Reaction::RepeatAsked
                | Reaction::RepeatRej
                | Reaction::RepeatDrep,
            ) => CmVerdict::Duplicate,
            Some(_) => CmVerdict::Accepted,
        }
    }

    /// The connection that both ids name.
    fn find_by_ids(&self, local_id: CommId, remote_id: CommId) -> Option<ConnId> {
        self.find_local(local_id)
            .filter(|(_, conn)| conn.remote_id == Some(remote_id))
            .map(|(id, _)| id)
    }

    fn find_local(&self, local_id: CommId) -> Option<(ConnId, &Connection)> {
        let id = *self.registry.by_local_id.get(&local_id)?;
        Some((id, self.registry.get(id)?))
    }

    fn on_req(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let req: &CmReq = mad.view();
        let key = (req.local_ca_guid, req.local_comm_id);
        if let Some(&id) = self.registry.by_remote_id.get(&key) {
            match self.compare(id, req) {
                Comparison::Duplicate => return self.happen(now, id, Event::Req, from, mad),
                // The peer has forgotten the connection and uses its id again.
                Comparison::Stale => return self.refuse_stale(now, id, from, req),
                Comparison::New => {}
            }
        }
        if let Some(id) = self.crossing(req) {
            return self.on_peer_req(now, id, from, mad);
        }
        let qpn_key = (req.local_ca_guid, req.local_qpn);
        if let Some(&id) = self.registry.by_remote_qpn.get(&qpn_key) {
            return self.refuse_stale(now, id, from, req);
        }
        self.on_new_req(now, from, mad)
    }

    /// What a REQ with the remote ids of a connection is to it.
    fn compare(&self, id: ConnId, req: &CmReq) -> Comparison {
        let Some(conn) = self.registry.get(id) else {
            return Comparison::New;
        };
        let same = match conn.role {
            Role::Passive => conn.request == Some(RequestIdentity::of(req)),
            // The peer's REQ that crossed ours and lost.
            Role::Active => conn.peer_to_peer && conn.remote_qpn == req.local_qpn,
        };
        match (same, conn.state) {
            (true, _) => Comparison::Duplicate,
            // After a REJ the peer may ask again with the same id.
            (false, State::TimeWait) => Comparison::New,
            (false, _) => Comparison::Stale,
        }
    }

    /// Refuses a REQ because its sender's id or QP belongs to a connection here, and ends that
    /// connection, which the peer does not know any more (IBA 12.9.8.3.1).
    fn refuse_stale(
        &mut self,
        now: Instant,
        id: ConnId,
        from: &MadAddress,
        req: &CmReq,
    ) -> CmVerdict {
        let verdict = self.refuse_req(from, req, RejReason::STALE_CONNECTION, &[]);
        self.disconnect_stale(now, id);
        verdict
    }

    fn disconnect_stale(&mut self, now: Instant, id: ConnId) {
        let can = |conn: &Connection| transition(conn.state, Event::SendDreq).is_some();
        if self.registry.get(id).is_some_and(can) {
            self.disconnect(now, id, &[0; 220]);
        }
    }

    /// The peer-to-peer connection whose REQ the received one crosses: same service, and each
    /// addressed to the other.
    fn crossing(&self, req: &CmReq) -> Option<ConnId> {
        let range = (req.service_id, ConnId(0))..=(req.service_id, ConnId(u64::MAX));
        self.registry
            .peers
            .range(range)
            .map(|&(_, id)| id)
            .find(|&id| {
                let asked = self
                    .registry
                    .get(id)
                    .and_then(|conn| conn.asked.as_deref())
                    .map(Mad::view::<CmReq>);
                asked.is_some_and(|own| {
                    own.primary.remote_gid == req.primary.local_gid
                        && own.primary.remote_lid == req.primary.local_lid
                        && own.primary.local_gid == req.primary.remote_gid
                })
            })
    }

    /// Peer Compare (IBA 12.10.4): the greater CA GUID is the active side; among equal ones the
    /// greater QPN.
    fn on_peer_req(&mut self, now: Instant, id: ConnId, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let req: &CmReq = mad.view();
        let config = self.config;
        let Some(conn) = self.registry.get_mut(id) else {
            return CmVerdict::Dropped(CmDrop::UnknownConnection);
        };
        let own = (config.ca_guid, conn.local_qpn);
        if own >= (req.local_ca_guid, req.local_qpn) {
            return self.happen(now, id, Event::PeerReqLower, from, mad);
        }
        if transition(conn.state, Event::PeerReqHigher).is_none() {
            return CmVerdict::Dropped(CmDrop::WrongState);
        }
        conn.learn_req(req);
        conn.waits = Waits::passive(req, config.max_wait);
        conn.address = *from;
        self.registry.index_remote(id);
        self.happen(now, id, Event::PeerReqHigher, from, mad)
    }

    fn on_new_req(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let req: &CmReq = mad.view();
        let listener = match self.admit(req.service_id) {
            Admission::Listener(listener) => listener,
            Admission::Drop(reason) => return CmVerdict::Dropped(reason),
            Admission::Unserved => {
                return self.refuse_req(from, req, RejReason::INVALID_SERVICE_ID, &[]);
            }
        };
        let waits = Waits::passive(req, self.config.max_wait);
        let Ok(id) = self.new_connection(Role::Passive, from, waits) else {
            return self.refuse_req(from, req, RejReason::NO_RESOURCES, &[]);
        };
        if let Some(conn) = self.registry.get_mut(id) {
            conn.learn_req(req);
        }
        self.registry.index_remote(id);
        self.assign(id, listener);
        self.happen(now, id, Event::Req, from, mad)
    }

    /// Who hears a request, if anybody may.
    ///
    /// A request beyond the limits is dropped, not refused: the peer asks again, and finds the
    /// backlog shorter.
    fn admit(&mut self, service_id: ServiceId) -> Admission {
        let full = self.events.len() >= self.config.max_events;
        let max_pending = self.config.max_pending;
        match self.registry.listener(service_id) {
            None => Admission::Unserved,
            Some(_) if full => Admission::Drop(CmDrop::Full),
            Some(listener) if listener.pending >= max_pending => Admission::Drop(CmDrop::Backlog),
            Some(listener) => Admission::Listener(listener.id),
        }
    }

    /// Makes a request part of its listener's backlog.
    fn assign(&mut self, id: ConnId, listener: ConnId) {
        if let Some(conn) = self.registry.get_mut(id) {
            conn.listener = Some(listener);
        }
        if let Some(listener) = self
            .registry
            .listeners
            .iter_mut()
            .find(|l| l.id == listener)
        {
            listener.pending += 1;
        }
    }

    fn on_mra(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let mra: &CmMra = mad.view();
        let event = match mra.message_mraed() {
            CmMessage::REQ => Event::MraOfReq,
            CmMessage::REP => Event::MraOfRep,
            CmMessage::LAP => Event::MraOfLap,
            _ => return CmVerdict::Dropped(CmDrop::NotCm),
        };
        let Some((id, conn)) = self
            .find_local(mra.remote_comm_id)
            .filter(|(_, conn)| conn.may_be_peer(mra.local_comm_id))
        else {
            return CmVerdict::Dropped(CmDrop::UnknownConnection);
        };
        if event == Event::MraOfLap && is_old(conn, mad) {
            return CmVerdict::Dropped(CmDrop::OldAnswer);
        }
        let verdict = self.happen(now, id, event, from, mad);
        if verdict == CmVerdict::Accepted
            && let Some(conn) = self.registry.get_mut(id)
        {
            conn.remote_id = Some(mra.local_comm_id);
        }
        verdict
    }

    fn on_rej(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let rej: &CmRej = mad.view();
        let Some((id, conn)) = self.find_rejected(rej) else {
            return CmVerdict::Dropped(CmDrop::UnknownConnection);
        };
        if rej.message_rejected() == CmMessage::REQ && !awaits_rep(conn.state) {
            // It refused an earlier copy of the REQ; a later one was accepted, or lost against
            // the peer's own.
            return CmVerdict::Dropped(CmDrop::OldAnswer);
        }
        let event = if rej.reason == RejReason::STALE_CONNECTION {
            Event::RejStale
        } else {
            Event::Rej
        };
        self.happen(now, id, event, from, mad)
    }

    /// The connection that a REJ ends. One for timeout may come from a side that never learnt our
    /// id: it names its own id and CA GUID instead.
    fn find_rejected(&self, rej: &CmRej) -> Option<(ConnId, &Connection)> {
        if let Some(guid) = rej.timeout_ca_guid() {
            let key = (guid, rej.local_comm_id);
            if let Some(&id) = self.registry.by_remote_id.get(&key) {
                return Some((id, self.registry.get(id)?));
            }
        }
        let (id, conn) = self.find_local(rej.remote_comm_id)?;
        // Whoever rejects a REQ may have no id, or, after a first copy of it was answered by an
        // MRA, another one.
        let matches = rej.message_rejected() == CmMessage::REQ
            || conn.remote_id == Some(rej.local_comm_id)
            || (rej.reason == RejReason::TIMEOUT && conn.remote_id.is_none());
        matches.then_some((id, conn))
    }

    fn on_rep(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let rep: &CmRep = mad.view();
        let Some((id, conn)) = self
            .find_local(rep.remote_comm_id)
            .filter(|(_, conn)| awaits_rep(conn.state) || conn.may_be_peer(rep.local_comm_id))
        else {
            return self.stray_rej(
                from,
                rep.header.tid,
                CmMessage::REP,
                RejReason::INVALID_COMM_ID,
                (rep.remote_comm_id, rep.local_comm_id),
                &[],
            );
        };
        if awaits_rep(conn.state) {
            if self.is_taken(id, rep) {
                return CmVerdict::Dropped(CmDrop::InvalidId);
            }
            let key = (rep.local_ca_guid, rep.local_qpn);
            if let Some(&old) = self.registry.by_remote_qpn.get(&key) {
                return self.refuse_stale_rep(now, old, from, rep);
            }
            let cap = self.config.max_wait;
            if let Some(conn) = self.registry.get_mut(id) {
                conn.learn_rep(rep, cap);
            }
            self.registry.index_remote(id);
        }
        self.happen(now, id, Event::Rep, from, mad)
    }

    /// Whether the id in a REP names another connection of that peer already.
    fn is_taken(&self, id: ConnId, rep: &CmRep) -> bool {
        let key = (rep.local_ca_guid, rep.local_comm_id);
        self.registry
            .by_remote_id
            .get(&key)
            .filter(|&&other| other != id)
            .and_then(|&other| self.registry.get(other))
            .is_some_and(|other| other.state != State::TimeWait)
    }

    /// Refuses a REP whose sender's QP belongs to another connection here. The own REQ goes on to
    /// wait: the peer's REJ will end it.
    fn refuse_stale_rep(
        &mut self,
        now: Instant,
        old: ConnId,
        from: &MadAddress,
        rep: &CmRep,
    ) -> CmVerdict {
        let verdict = self.stray_rej(
            from,
            rep.header.tid,
            CmMessage::REP,
            RejReason::STALE_CONNECTION,
            (rep.remote_comm_id, rep.local_comm_id),
            &[],
        );
        self.disconnect_stale(now, old);
        verdict
    }

    fn on_rtu(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let rtu: &CmRtu = mad.view();
        match self.find_by_ids(rtu.remote_comm_id, rtu.local_comm_id) {
            Some(id) => self.happen(now, id, Event::Rtu, from, mad),
            None => CmVerdict::Dropped(CmDrop::UnknownConnection),
        }
    }

    fn on_dreq(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let dreq: &CmDreq = mad.view();
        let Some(id) = self.find_by_ids(dreq.remote_comm_id, dreq.local_comm_id) else {
            // A connection that is forgotten here is disconnected.
            self.transmit(*from, message::drep(dreq, &[0; 224]));
            return CmVerdict::Refused;
        };
        let Some(conn) = self.registry.get_mut(id) else {
            return CmVerdict::Dropped(CmDrop::UnknownConnection);
        };
        if conn.local_qpn != dreq.remote_qpn {
            return CmVerdict::Dropped(CmDrop::WrongQpn);
        }
        if matches!(
            transition(conn.state, Event::Dreq),
            Some((Reaction::Deliver, _))
        ) {
            conn.tid = dreq.header.tid;
        }
        self.happen(now, id, Event::Dreq, from, mad)
    }

    fn on_drep(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let drep: &CmDrep = mad.view();
        match self.find_by_ids(drep.remote_comm_id, drep.local_comm_id) {
            Some(id) => self.happen(now, id, Event::Drep, from, mad),
            None => CmVerdict::Dropped(CmDrop::UnknownConnection),
        }
    }

    fn on_lap(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let lap: &CmLap = mad.view();
        let Some(id) = self.find_by_ids(lap.remote_comm_id, lap.local_comm_id) else {
            self.transmit(*from, message::stray_apr(lap));
            return CmVerdict::Refused;
        };
        let Some(conn) = self.registry.get_mut(id) else {
            return CmVerdict::Dropped(CmDrop::UnknownConnection);
        };
        if conn.local_qpn != lap.remote_qpn {
            return CmVerdict::Dropped(CmDrop::WrongQpn);
        }
        let event = if conn.lap.as_deref() == Some(mad) {
            Event::LapAgain
        } else {
            Event::Lap
        };
        if matches!(transition(conn.state, event), Some((Reaction::Deliver, _))) {
            conn.tid = lap.header.tid;
            conn.address = *from;
            conn.lap = Some(Box::new(*mad));
        }
        self.happen(now, id, event, from, mad)
    }

    fn on_apr(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let apr: &CmApr = mad.view();
        let Some((id, conn)) = self
            .find_local(apr.remote_comm_id)
            .filter(|(_, conn)| conn.remote_id == Some(apr.local_comm_id))
        else {
            return CmVerdict::Dropped(CmDrop::UnknownConnection);
        };
        if is_old(conn, mad) {
            return CmVerdict::Dropped(CmDrop::OldAnswer);
        }
        self.happen(now, id, Event::Apr, from, mad)
    }

    fn on_sidr_req(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let req: &CmSidrReq = mad.view();
        let key = sidr_key(from, req.request_id);
        if let Some(&id) = self.registry.sidr.get(&key) {
            return self.happen(now, id, Event::SidrReq, from, mad);
        }
        let listener = match self.admit(req.service_id) {
            Admission::Listener(listener) => listener,
            Admission::Drop(reason) => return CmVerdict::Dropped(reason),
            Admission::Unserved => {
                return self.refuse_sidr(from, req, SidrStatus::UNSUPPORTED_SERVICE_ID);
            }
        };
        let waits = Waits::sidr(self.config.max_wait, 0);
        let Ok(id) = self.new_connection(Role::Passive, from, waits) else {
            return CmVerdict::Dropped(CmDrop::Full);
        };
        if let Some(conn) = self.registry.get_mut(id) {
            conn.remote_id = Some(req.request_id);
            conn.service_id = req.service_id;
            conn.tid = req.header.tid;
        }
        self.registry.sidr.insert(key, id);
        self.assign(id, listener);
        self.happen(now, id, Event::SidrReq, from, mad)
    }

    fn on_sidr_rep(&mut self, now: Instant, from: &MadAddress, mad: &Mad) -> CmVerdict {
        let rep: &CmSidrRep = mad.view();
        match self.find_local(rep.request_id) {
            Some((id, _)) => self.happen(now, id, Event::SidrRep, from, mad),
            None => CmVerdict::Dropped(CmDrop::UnknownConnection),
        }
    }
}

/// Whether a REQ of this side waits for an answer.
const fn awaits_rep(state: State) -> bool {
    matches!(state, State::ReqSent | State::MraReqRcvd)
}

/// What becomes of a request for a service.
enum Admission {
    /// This listener hears it.
    Listener(ConnId),
    /// Too much is going on.
    Drop(CmDrop),
    /// Nobody listens.
    Unserved,
}

/// What a REQ with known remote ids is.
enum Comparison {
    /// A repetition.
    Duplicate,
    /// Another REQ under an id that is in use here.
    Stale,
    /// Another REQ under an id that is free.
    New,
}

/// Whether an APR or MRA answers another LAP than the one that waits: LAPs of a connection differ
/// in nothing but their transaction.
fn is_old(conn: &Connection, answer: &Mad) -> bool {
    conn.asked
        .as_deref()
        .is_some_and(|asked| asked.header.tid != answer.header.tid)
}
