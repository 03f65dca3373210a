//! What the connection manager tells its user.

use alloc::boxed::Box;

use ib_wire::cm::{
    CmApr, CmDrep, CmDreq, CmLap, CmMra, CmRej, CmRep, CmReq, CmRtu, CmSidrRep, CmSidrReq,
};
use thiserror::Error;

use super::State;
use crate::MadAddress;

/// Names a connection, a SIDR exchange or a listener. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub(super) u64);

/// Something that happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmEvent {
    /// The connection.
    pub conn: ConnId,
    /// What happened.
    pub kind: CmEventKind,
}

/// What happened to a connection. Received messages come whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEventKind {
    /// A REQ arrived and made this connection; answer with REP, REJ or MRA.
    ReqReceived {
        /// The listener that it matched.
        listener: ConnId,
        /// Where it came from.
        from: MadAddress,
        /// The REQ.
        req: Box<CmReq>,
    },
    /// The peer's REQ crossed this connection's, and the peer is the active side (IBA 12.10.4):
    /// the own REQ is void; answer with REP, REJ or MRA.
    PeerReqReceived {
        /// Where it came from.
        from: MadAddress,
        /// The REQ.
        req: Box<CmReq>,
    },
    /// The peer accepts; answer with RTU, REJ or MRA.
    RepReceived(Box<CmRep>),
    /// The peer is ready: the connection is established.
    RtuReceived(Box<CmRtu>),
    /// The peer refuses or has given up: the connection is over.
    RejReceived(Box<CmRej>),
    /// The peer takes longer.
    MraReceived(Box<CmMra>),
    /// The peer disconnects; answer with DREP. If a DREQ of this side crossed it, the DREP has
    /// been sent already.
    DreqReceived(Box<CmDreq>),
    /// The peer has disconnected.
    DrepReceived(Box<CmDrep>),
    /// The peer wants another alternate path; answer with APR or MRA.
    LapReceived {
        /// Where it came from.
        from: MadAddress,
        /// The LAP.
        lap: Box<CmLap>,
    },
    /// The peer's answer to a LAP; see its status.
    AprReceived(Box<CmApr>),
    /// A SIDR_REQ arrived and made this exchange; answer with SIDR_REP.
    SidrReqReceived {
        /// The listener that it matched.
        listener: ConnId,
        /// Where it came from.
        from: MadAddress,
        /// The SIDR_REQ.
        req: Box<CmSidrReq>,
    },
    /// The answer to a SIDR_REQ; the exchange is over.
    SidrRepReceived {
        /// Where it came from.
        from: MadAddress,
        /// The SIDR_REP.
        rep: Box<CmSidrRep>,
    },
    /// Nobody answered the REQ; the peer has been told by a REJ.
    ReqError,
    /// Nobody answered the REP; the peer has been told by a REJ.
    RepError,
    /// Nobody answered the DREQ; the connection is over all the same.
    DreqError,
    /// Nobody answered the LAP; the connection stays established.
    LapError,
    /// Nobody answered the SIDR_REQ; the exchange is over.
    SidrReqError,
    /// Time-wait is over: the QP may be used again, the connection is forgotten.
    TimeWaitExit,
}

/// Why a call was refused. Nothing was sent or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CmError {
    /// There is no such connection, or it is over or destroyed.
    #[error("no such connection")]
    UnknownConnection,
    /// The connection's state does not allow the call.
    #[error("not allowed in state {0:?}")]
    WrongState(State),
    /// Only the side that sent the REQ may load alternate paths (IBA 12.8).
    #[error("only the active side may send a LAP")]
    NotActive,
    /// Another listener has the service id.
    #[error("the service id is listened to already")]
    ServiceIdInUse,
    /// There are as many connections as the configuration allows.
    #[error("too many connections")]
    TooManyConnections,
    /// Private data or additional information does not fit into the message.
    #[error("at most {max} bytes fit into the message")]
    TooLong {
        /// Bytes that fit.
        max: usize,
    },
}

/// What became of a received MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CmVerdict {
    /// It moved a connection, whose user gets an event unless it has destroyed the connection.
    Accepted,
    /// It was a duplicate of one that was accepted; the answer was repeated if there is one.
    Duplicate,
    /// It named nothing known, and was answered with a refusal or a DREP.
    Refused,
    /// It was dropped.
    Dropped(CmDrop),
}

/// Why a received MAD was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CmDrop {
    /// Not a CM message: class, version, method or attribute.
    NotCm,
    /// A communication id that another connection of the same peer has.
    InvalidId,
    /// No connection has these communication ids.
    UnknownConnection,
    /// The QPN in the message is not the connection's.
    WrongQpn,
    /// The connection's state does not allow the message.
    WrongState,
    /// The answer to an earlier request.
    OldAnswer,
    /// Its listener has as many unanswered requests as the configuration allows.
    Backlog,
    /// There are as many connections as the configuration allows.
    Full,
}

/// What the connection manager has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    /// MADs that moved a connection.
    pub accepted: u64,
    /// Duplicates.
    pub duplicates: u64,
    /// MADs answered without a connection.
    pub refused: u64,
    /// Dropped: not CM messages.
    pub not_cm: u64,
    /// Dropped: invalid, unknown or mismatched ids or QPN, or answers to earlier requests.
    pub unmatched: u64,
    /// Dropped: not allowed in the connection's state.
    pub wrong_state: u64,
    /// Dropped: a listener's backlog or the connection table was full.
    pub overload: u64,
    /// MADs that were not sent because too many waited to be pulled.
    pub transmits_dropped: u64,
    /// MADs sent again because no answer came.
    pub retries: u64,
    /// Connections and exchanges that ended because no answer came.
    pub timeouts: u64,
}

impl CmCounters {
    pub(super) fn count(&mut self, verdict: CmVerdict) {
        let counter = match verdict {
            CmVerdict::Accepted => &mut self.accepted,
            CmVerdict::Duplicate => &mut self.duplicates,
            CmVerdict::Refused => &mut self.refused,
            CmVerdict::Dropped(reason) => match reason {
                CmDrop::NotCm => &mut self.not_cm,
                CmDrop::InvalidId
                | CmDrop::UnknownConnection
                | CmDrop::WrongQpn
                | CmDrop::OldAnswer => &mut self.unmatched,
                CmDrop::WrongState => &mut self.wrong_state,
                CmDrop::Backlog | CmDrop::Full => &mut self.overload,
            },
        };
        *counter += 1;
    }
}
