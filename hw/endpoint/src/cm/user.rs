//! The calls of the user.

use core::time::Duration;

use ib_vtime::Instant;
use ib_wire::cm::{
    self, CmApr, CmDreq, CmLap, CmMessage, CmRep, CmReq, CmSidrRep, CmSidrReq, RejReason,
    SidrStatus,
};
use ib_wire::mad::{AttributeId, Mad};
use ib_wire::{CommId, ServiceId};

use super::connection::{Connection, Role, Waits, code};
use super::registry::Listener;
use super::table::{Event, transition};
use super::{Cm, CmError, ConnId, Input, State, message};
use crate::MadAddress;

/// How the two sides of a connection find each other (IBA 12.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rendezvous {
    /// One side listens, the other sends the REQ.
    ClientServer,
    /// Both sides send a REQ to the other, for the same service id.
    PeerToPeer,
}

impl Cm {
    /// Listens for REQs and SIDR_REQs whose service id is `service_id` in the bits of `mask`.
    ///
    /// Of several listeners that match, the one with the narrowest mask hears a request.
    ///
    /// # Errors
    ///
    /// `ServiceIdInUse` if a listener with the same mask has the range.
    pub fn listen(&mut self, service_id: ServiceId, mask: u64) -> Result<ConnId, CmError> {
        if self.registry.is_taken(service_id, mask) {
            return Err(CmError::ServiceIdInUse);
        }
        let id = self.registry.new_conn_id();
        self.registry.listeners.push(Listener {
            id,
            service_id,
            mask,
            pending: 0,
        });
        Ok(id)
    }

    /// Sends a REQ. The header, the communication id and the CA GUID are filled in; the caller
    /// fills in everything else. Most of what the connection waits for follows from its timeouts
    /// and retries.
    ///
    /// # Errors
    ///
    /// `TooManyConnections`.
    pub fn send_req(
        &mut self,
        now: Instant,
        to: &MadAddress,
        req: &CmReq,
        rendezvous: Rendezvous,
    ) -> Result<ConnId, CmError> {
        let waits = Waits::active(req, self.config.max_wait);
        let id = self.new_connection(Role::Active, to, waits)?;
        let tid = self.new_tid();
        let mut mad = Mad::from_layout(req);
        mad.header = cm::header(AttributeId::CM_REQ);
        mad.header.tid = tid;
        if let Some(conn) = self.registry.get_mut(id) {
            let sent: &mut CmReq = mad.view_mut();
            sent.local_comm_id = conn.local_id;
            sent.local_ca_guid = self.config.ca_guid;
            conn.tid = tid;
            conn.local_qpn = req.local_qpn;
            conn.service_id = req.service_id;
            conn.peer_to_peer = rendezvous == Rendezvous::PeerToPeer;
        }
        if rendezvous == Rendezvous::PeerToPeer {
            self.registry.peers.insert((req.service_id, id));
        }
        let wait = waits.answer;
        self.apply(now, id, Event::SendReq, Input::Ask { mad, wait });
        Ok(id)
    }

    /// Accepts a REQ. The header, both communication ids and the CA GUID are filled in.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`, `WrongState`.
    pub fn send_rep(&mut self, now: Instant, id: ConnId, rep: &CmRep) -> Result<(), CmError> {
        let ca_guid = self.config.ca_guid;
        let conn = self.ready(id, Event::SendRep)?;
        conn.local_qpn = rep.local_qpn;
        let mut mad = with_header(Mad::from_layout(rep), AttributeId::CM_REP, conn);
        let sent: &mut CmRep = mad.view_mut();
        sent.local_comm_id = conn.local_id;
        sent.remote_comm_id = conn.remote_id.unwrap_or(CommId::NONE);
        sent.local_ca_guid = ca_guid;
        let wait = conn.waits.answer;
        self.apply(now, id, Event::SendRep, Input::Ask { mad, wait });
        Ok(())
    }

    /// Says that this side is ready to use the connection.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`, `WrongState`, `TooLong` (224 bytes).
    pub fn send_rtu(
        &mut self,
        now: Instant,
        id: ConnId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = padded(private_data)?;
        let conn = self.ready(id, Event::SendRtu)?;
        let mad = message::rtu(conn, &private_data);
        self.apply(now, id, Event::SendRtu, Input::Tell(mad));
        Ok(())
    }

    /// Refuses the peer's REQ or REP, or gives up an own one. A REJ for timeout carries this CA's
    /// GUID as its ARI, whatever `ari` says: the peer needs it to find the connection.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`, `WrongState`, `TooLong` (ARI 72 bytes, private data 148).
    pub fn send_rej(
        &mut self,
        now: Instant,
        id: ConnId,
        reason: RejReason,
        ari: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        if ari.len() > 72 {
            return Err(CmError::TooLong { max: 72 });
        }
        let private_data = padded(private_data)?;
        let ca_guid = self.config.ca_guid;
        let conn = self.ready(id, Event::SendRej)?;
        let rejected = match conn.state {
            State::ReqRcvd | State::MraReqSent => CmMessage::REQ,
            State::RepRcvd | State::MraRepSent => CmMessage::REP,
            _ => CmMessage::OTHER,
        };
        let mad = message::rej(conn, rejected, reason, ca_guid, ari, &private_data);
        self.apply(now, id, Event::SendRej, Input::Tell(mad));
        Ok(())
    }

    /// Tells the peer that the answer to its REQ, REP or LAP takes up to 4.096 µs × 2^code.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`, `WrongState`, `TooLong` (222 bytes).
    pub fn send_mra(
        &mut self,
        now: Instant,
        id: ConnId,
        service_timeout: u8,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = padded(private_data)?;
        let max_wait = self.config.max_wait;
        let conn = self.ready(id, Event::SendMra)?;
        let acknowledged = match conn.state {
            State::ReqRcvd => CmMessage::REQ,
            State::RepRcvd => CmMessage::REP,
            _ => CmMessage::LAP,
        };
        conn.mra_wait = code(service_timeout, max_wait);
        let mad = message::mra(conn, acknowledged, service_timeout, &private_data);
        self.apply(now, id, Event::SendMra, Input::Tell(mad));
        Ok(())
    }

    /// Disconnects.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`, `WrongState`, `TooLong` (220 bytes).
    pub fn send_dreq(
        &mut self,
        now: Instant,
        id: ConnId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = padded(private_data)?;
        self.ready(id, Event::SendDreq)?;
        self.disconnect(now, id, &private_data);
        Ok(())
    }

    /// Answers a DREQ.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`, `WrongState`, `TooLong` (224 bytes).
    pub fn send_drep(
        &mut self,
        now: Instant,
        id: ConnId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = padded(private_data)?;
        let conn = self.ready(id, Event::SendDrep)?;
        let mut dreq = CmDreq::default();
        dreq.header.tid = conn.tid;
        dreq.local_comm_id = conn.remote_id.unwrap_or(CommId::NONE);
        dreq.remote_comm_id = conn.local_id;
        let mad = message::drep(&dreq, &private_data);
        self.apply(now, id, Event::SendDrep, Input::Tell(mad));
        Ok(())
    }

    /// Asks the peer to load another alternate path. The header, both communication ids and the
    /// peer's QPN are filled in.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`, `WrongState`, `NotActive`.
    pub fn send_lap(&mut self, now: Instant, id: ConnId, lap: &CmLap) -> Result<(), CmError> {
        let tid = self.new_tid();
        let max_wait = self.config.max_wait;
        let conn = self.ready(id, Event::SendLap)?;
        if conn.role != Role::Active {
            return Err(CmError::NotActive);
        }
        let wait = code(lap.remote_cm_response_timeout(), max_wait) + conn.waits.path;
        conn.tid = tid;
        let mut mad = with_header(Mad::from_layout(lap), AttributeId::CM_LAP, conn);
        let sent: &mut CmLap = mad.view_mut();
        sent.local_comm_id = conn.local_id;
        sent.remote_comm_id = conn.remote_id.unwrap_or(CommId::NONE);
        sent.remote_qpn = conn.remote_qpn;
        self.apply(now, id, Event::SendLap, Input::Ask { mad, wait });
        Ok(())
    }

    /// Answers a LAP. The header and both communication ids are filled in.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`, `WrongState`.
    pub fn send_apr(&mut self, now: Instant, id: ConnId, apr: &CmApr) -> Result<(), CmError> {
        let conn = self.ready(id, Event::SendApr)?;
        let mut mad = with_header(Mad::from_layout(apr), AttributeId::CM_APR, conn);
        let sent: &mut CmApr = mad.view_mut();
        sent.local_comm_id = conn.local_id;
        sent.remote_comm_id = conn.remote_id.unwrap_or(CommId::NONE);
        self.apply(now, id, Event::SendApr, Input::Tell(mad));
        Ok(())
    }

    /// Asks which QP serves a service id. The header and the request id are filled in. Each try
    /// gets `timeout`; there are `retries` more than one.
    ///
    /// # Errors
    ///
    /// `TooManyConnections`.
    pub fn send_sidr_req(
        &mut self,
        now: Instant,
        to: &MadAddress,
        req: &CmSidrReq,
        timeout: Duration,
        retries: u8,
    ) -> Result<ConnId, CmError> {
        let wait = timeout.min(self.config.max_wait);
        let id = self.new_connection(Role::Active, to, Waits::sidr(wait, retries))?;
        let tid = self.new_tid();
        let mut mad = Mad::from_layout(req);
        mad.header = cm::header(AttributeId::CM_SIDR_REQ);
        mad.header.tid = tid;
        if let Some(conn) = self.registry.get_mut(id) {
            mad.view_mut::<CmSidrReq>().request_id = conn.local_id;
            conn.tid = tid;
            conn.service_id = req.service_id;
        }
        self.apply(now, id, Event::SendSidrReq, Input::Ask { mad, wait });
        Ok(id)
    }

    /// Answers a SIDR_REQ; the exchange is over. The header, the request id and the service id are
    /// filled in.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`, `WrongState`.
    pub fn send_sidr_rep(
        &mut self,
        now: Instant,
        id: ConnId,
        rep: &CmSidrRep,
    ) -> Result<(), CmError> {
        let conn = self.ready(id, Event::SendSidrRep)?;
        let mut mad = with_header(Mad::from_layout(rep), AttributeId::CM_SIDR_REP, conn);
        let sent: &mut CmSidrRep = mad.view_mut();
        sent.request_id = conn.remote_id.unwrap_or(CommId::NONE);
        sent.service_id = conn.service_id;
        self.apply(now, id, Event::SendSidrRep, Input::Tell(mad));
        Ok(())
    }

    /// Says that a packet of the peer has arrived on the QP before the RTU did ("communication
    /// established", IBA 11.6.3.2): the connection is established.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`, `WrongState`.
    pub fn establish(&mut self, now: Instant, id: ConnId) -> Result<(), CmError> {
        self.ready(id, Event::Establish)?;
        self.apply(now, id, Event::Establish, Input::Nothing);
        Ok(())
    }

    /// Sends the connection's further messages elsewhere: its path has migrated.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`.
    pub fn set_address(&mut self, id: ConnId, to: &MadAddress) -> Result<(), CmError> {
        let conn = self
            .registry
            .get_mut(id)
            .filter(|conn| !conn.orphan)
            .ok_or(CmError::UnknownConnection)?;
        conn.address = *to;
        Ok(())
    }

    /// Ends a connection, an exchange or a listener at once for its user: no event of it will be
    /// pulled any more. The peer is told what the state demands (a REJ, a DREQ, a DREP or a
    /// SIDR_REP); ids stay in use until that is settled and TimeWait is over.
    ///
    /// # Errors
    ///
    /// `UnknownConnection`.
    pub fn destroy(&mut self, now: Instant, id: ConnId) -> Result<(), CmError> {
        if let Some(place) = self.registry.listeners.iter().position(|l| l.id == id) {
            self.registry.listeners.remove(place);
            return Ok(());
        }
        let state = self.info(id).ok_or(CmError::UnknownConnection)?.state;
        self.close(now, id, state)?;
        if let Some(conn) = self.registry.get_mut(id) {
            conn.orphan = true;
        }
        self.events.retain(|event| event.conn != id);
        Ok(())
    }

    /// Takes leave of the peer as the state demands.
    fn close(&mut self, now: Instant, id: ConnId, state: State) -> Result<(), CmError> {
        match state {
            State::ReqSent | State::MraReqRcvd => {
                self.send_rej(now, id, RejReason::TIMEOUT, &[], &[])
            }
            State::ReqRcvd
            | State::MraReqSent
            | State::RepSent
            | State::MraRepRcvd
            | State::RepRcvd
            | State::MraRepSent => self.send_rej(now, id, RejReason::CONSUMER, &[], &[]),
            State::Established
            | State::LapSent
            | State::LapRcvd
            | State::MraLapSent
            | State::MraLapRcvd => self.send_dreq(now, id, &[]),
            State::DreqRcvd => self.send_drep(now, id, &[]),
            State::SidrReqRcvd => {
                let rep = CmSidrRep {
                    status: SidrStatus::REJECTED,
                    ..CmSidrRep::default()
                };
                self.send_sidr_rep(now, id, &rep)
            }
            State::SidrReqSent => {
                self.enter(now, id, state, State::Idle);
                Ok(())
            }
            State::DreqSent | State::TimeWait | State::Idle | State::Listen => Ok(()),
        }
    }

    /// Sends a DREQ; the state has been checked.
    pub(super) fn disconnect(&mut self, now: Instant, id: ConnId, private_data: &[u8; 220]) {
        let tid = self.new_tid();
        let Some(conn) = self.registry.get(id) else {
            return;
        };
        let mad = message::dreq(conn, tid, private_data);
        let wait = conn.waits.answer;
        self.apply(now, id, Event::SendDreq, Input::Ask { mad, wait });
    }

    /// A new connection in Idle.
    pub(super) fn new_connection(
        &mut self,
        role: Role,
        address: &MadAddress,
        waits: Waits,
    ) -> Result<ConnId, CmError> {
        if self.registry.connections.len() >= self.config.max_connections {
            return Err(CmError::TooManyConnections);
        }
        let id = self.registry.new_conn_id();
        let local_id = self.registry.new_comm_id();
        let conn = Connection::new(role, local_id, *address, waits);
        self.registry.insert(id, conn);
        Ok(id)
    }

    /// The user's connection, if its state allows the call.
    fn ready(&mut self, id: ConnId, event: Event) -> Result<&mut Connection, CmError> {
        let conn = self
            .registry
            .get_mut(id)
            .filter(|conn| !conn.orphan)
            .ok_or(CmError::UnknownConnection)?;
        match transition(conn.state, event) {
            Some(_) => Ok(conn),
            None => Err(CmError::WrongState(conn.state)),
        }
    }
}

/// The caller's message under a header of the connection's transaction.
fn with_header(mut mad: Mad, attribute_id: AttributeId, conn: &Connection) -> Mad {
    mad.header = cm::header(attribute_id);
    mad.header.tid = conn.tid;
    mad
}

/// Private data with zeros behind it.
fn padded<const N: usize>(data: &[u8]) -> Result<[u8; N], CmError> {
    let mut field = [0; N];
    message::fill(&mut field, data)?;
    Ok(field)
}
