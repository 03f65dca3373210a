//! The connection manager: opens and closes connections by MADs (IBA chapter 12).
//!
//! [`Cm`] is one port's manager. It is sans-I/O: the user gives it received MADs, the time and
//! calls; it gives MADs to send ([`Cm::poll_transmit`]), events ([`Cm::poll_event`]) and the time
//! of the next timer ([`Cm::poll_timeout`]). It does not care whether its QP1 is a real one or a
//! VF's proxy.
//!
//! # States
//!
//! The transition relation is data, in `table.rs`; a test compares all of it with a reviewed
//! snapshot. The main paths:
//!
//! ```text
//!          active side                                      passive side
//!
//!            Idle                                               Idle   (a Listen matched)
//!             │ send_req                                         │ REQ
//!             ▼            MRA                     send_mra      ▼
//!   ┌────── ReqSent ─────────► MraReqRcvd    MraReqSent ◄───── ReqRcvd ──────┐
//!   │         │  ▲   late: again  │ │            │               │           │
//!   │         │  └────────────────┘ │            └──────┬────────┘           │
//!   │         │ REP                 │                   │ send_rep           │
//!   │         ▼        send_mra     │                   ▼         MRA        │
//!   │ ┌──── RepRcvd ◄───────────────┘      ┌───────── RepSent ────► MraRepRcvd
//!   │ │       │  └──► MraRepSent           │            │  ▲  late: again │  │
//!   │ │       │ send_rtu │                 │            │  └─────────────-┘  │
//!   │ │       ▼          ▼                 │            ▼ RTU, establish     │
//!   │ │     Established ◄──── APR ──── LapSent ⇄ MraLapRcvd                  │
//!   │ │       │   │ ▲ └── send_lap ────────┘▲                                │
//!   │ │       │   │ └──── send_apr ──── LapRcvd ⇄ MraLapSent                 │
//!   │ │       │   └──────── LAP ───────────►┘                                │
//!   │ │       │ send_dreq      DREQ                                          │
//!   │ │       ▼                  ▼                                           │
//!   │ │     DreqSent          DreqRcvd                                       │
//!   │ │       │ DREP, DREQ,      │ send_drep                                 │
//!   │ │       │ no answer        │                                           │
//!   │ │       ▼                  ▼                                           │
//!   │ └──► TimeWait ◄────────────┴───── REJ sent or received, no answer ◄────┘
//!   │         │ time-wait over
//!   └──────► Idle  (REJ of the REQ)
//!
//!   Idle ── send_sidr_req ──► SidrReqSent ── SIDR_REP, no answer ──► Idle
//!   Idle ── SIDR_REQ ──► SidrReqRcvd ── send_sidr_rep ──► Idle
//! ```
//!
//! Peer Compare (IBA 12.10.4) takes no time and therefore is no state: when a REQ crosses that of
//! a peer-to-peer connection in ReqSent, the side with the greater CA GUID, or among equal ones
//! with the greater QPN, stays the active side and ignores the other REQ; the other side goes to
//! ReqRcvd.
//!
//! # Timers, and the reason for each
//!
//! A connection has at most one timer. Its length comes from the messages (IBA 12.7, fields of the
//! REQ), never from a constant, except that nothing waits longer than [`CmConfig::max_wait`]:
//! the peer chooses the fields, and codes go up to 2.4 hours.
//!
//! | waits for | in | length | source |
//! | --- | --- | --- | --- |
//! | REP | ReqSent | REQ remote CM response timeout + path | the time within which the receiver promises to answer |
//! | RTU | RepSent | REQ local CM response timeout + path | the time within which the sender promises to answer |
//! | DREP | DreqSent | as for the own side of the connection | the same promises |
//! | APR | LapSent | LAP remote CM response timeout + path | the LAP has its own |
//! | SIDR_REP | SidrReqSent | the caller's | a SIDR_REQ has no such field |
//! | a late answer | MraReqRcvd, MraRepRcvd, MraLapRcvd | MRA service timeout + path | the time for which the peer asks |
//! | packets under way | TimeWait | path + Target ACK Delay of the REP received | no packet of the old connection may meet the QP's next |
//! | a repeated REQ | TimeWait of a passive side that sent a REJ | (remote CM response timeout + path) × (max CM retries + 1) | a repeated REQ must meet the same REJ, not make a second connection |
//!
//! "Path" is the primary path's local ACK timeout: twice the packet life time and the peer's own
//! delay (IBA 12.7.34). When a timer of the first six runs out the message goes out again, REQ max
//! CM retries times; then the user gets an error, and a peer that may still hope gets a REJ for
//! timeout. An MRA extends one try; a second MRA to the same try does not, or a peer could hold a
//! connection for ever.
//!
//! # Where this differs from Linux
//!
//! * A duplicate REQ is answered by the kept REP, MRA or REJ, and a duplicate LAP by the kept APR;
//!   Linux answers fewer of them and lets timers repair the rest.
//! * A REP with an unknown id is answered by a REJ (invalid communication id), and a LAP by an APR
//!   with that status: the peer need not wait for its timers.
//! * When two DREQs cross, both sides answer with a DREP at once.
//! * A destroyed connection goes on to repeat its DREQ until it is answered.
//! * A connection that was refused or abandoned keeps its ids through TimeWait.
//! * Only the active side may send a LAP; a LAP is accepted on both.

mod connection;
mod event;
mod message;
mod react;
mod receive;
mod registry;
mod table;
#[cfg(test)]
mod tests;
mod user;

use alloc::collections::VecDeque;
use core::time::Duration;

use ib_vtime::{Instant, Secret, TimerQueue};
use ib_wire::mad::Mad;
use ib_wire::{CommId, Guid, Qpn, ServiceId, Tid};

pub use connection::Role;
pub use event::{CmCounters, CmDrop, CmError, CmEvent, CmEventKind, CmVerdict, ConnId};
pub use table::State;
pub use user::Rendezvous;

use crate::{MadAddress, Transmit};
use connection::Connection;
use registry::Registry;
use table::{Event, Reaction, transition};

/// What a connection manager is told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// GUID of the CA: goes into REQ, REP and REJ for timeout, and decides Peer Compare.
    pub ca_guid: Guid,
    /// Communication ids and transaction ids follow from it.
    pub secret: Secret,
    /// The upper half of every transaction id, when several clients share the QP.
    pub tid_high: u32,
    /// Connections and SIDR exchanges at a time, those in TimeWait included.
    pub max_connections: usize,
    /// Requests that the user of one listener has not answered, at a time.
    pub max_pending: usize,
    /// MADs that wait to be pulled; more are not sent.
    pub max_transmits: usize,
    /// Events that wait to be pulled; while there are as many, requests of peers are dropped. The
    /// events of live connections still come: a connection makes few without its user.
    pub max_events: usize,
    /// The longest that any timer runs, whatever the peer's fields say.
    pub max_wait: Duration,
}

impl CmConfig {
    /// The usual limits.
    #[must_use]
    pub fn new(ca_guid: Guid, secret: impl Into<Secret>) -> Self {
        Self {
            ca_guid,
            secret: secret.into(),
            tid_high: 0,
            max_connections: 65_536,
            max_pending: 1024,
            max_transmits: 65_536,
            max_events: 65_536,
            max_wait: Duration::from_secs(300),
        }
    }
}

/// How much a connection manager holds. All of it is zero once every conversation has ended, the
/// listeners are gone, and events and MADs have been pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmSizes {
    /// Connections and SIDR exchanges.
    pub connections: usize,
    /// Listeners.
    pub listeners: usize,
    /// Communication ids in use.
    pub local_ids: usize,
    /// Known ids of peers.
    pub remote_ids: usize,
    /// Known QPs of peers.
    pub remote_qpns: usize,
    /// Connections that may cross a peer's REQ.
    pub peers: usize,
    /// SIDR requests that are not answered.
    pub sidr_requests: usize,
    /// Timers.
    pub timers: usize,
    /// Messages kept to be sent again.
    pub buffers: usize,
    /// Events that wait to be pulled.
    pub events: usize,
    /// MADs that wait to be pulled.
    pub transmits: usize,
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnInfo {
    /// Its state.
    pub state: State,
    /// Its side.
    pub role: Role,
    /// Its service id.
    pub service_id: ServiceId,
    /// Its communication id.
    pub local_id: CommId,
    /// The peer's communication id, once known.
    pub remote_id: Option<CommId>,
    /// GUID of the peer's CA, once known.
    pub remote_ca_guid: Option<Guid>,
    /// Its QP.
    pub local_qpn: Qpn,
    /// The peer's QP, once known.
    pub remote_qpn: Qpn,
    /// Where its messages go.
    pub address: MadAddress,
}

/// What comes with an event.
enum Input<'a> {
    /// A message to send until it is answered.
    Ask { mad: Mad, wait: Duration },
    /// A message to send once.
    Tell(Mad),
    /// A message of the peer.
    Received { mad: &'a Mad, from: &'a MadAddress },
    /// Nothing.
    Nothing,
}

/// The connection manager of a port.
#[derive(Debug)]
pub struct Cm {
    config: CmConfig,
    next_tid: u32,
    registry: Registry,
    timers: TimerQueue<ConnId>,
    events: VecDeque<CmEvent>,
    transmits: VecDeque<Transmit>,
    counters: CmCounters,
}

impl Cm {
    /// A connection manager without connections.
    #[must_use]
    pub fn new(config: CmConfig) -> Self {
        Self {
            config,
            next_tid: 1,
            registry: Registry::new(config.secret),
            timers: TimerQueue::new(),
            events: VecDeque::new(),
            transmits: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Whether [`Cm::poll_transmit`] has something to give.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        !self.transmits.is_empty()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// When to call [`Cm::handle_timeout`] next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Runs the timers that are due. Calling it early does nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, id)) = self.timers.pop_due(now) {
            let Some(conn) = self.registry.get_mut(id) else {
                continue;
            };
            conn.timer = None;
            let event = if conn.state == State::TimeWait {
                Event::TimeWaitOver
            } else if conn.tries_left > 0 {
                Event::Late
            } else {
                Event::Exhausted
            };
            self.apply(now, id, event, Input::Nothing);
        }
    }

    /// What is known of a connection; `None` once it is over or destroyed.
    #[must_use]
    pub fn info(&self, id: ConnId) -> Option<ConnInfo> {
        let conn = self.registry.get(id).filter(|conn| !conn.orphan)?;
        Some(ConnInfo {
            state: conn.state,
            role: conn.role,
            service_id: conn.service_id,
            local_id: conn.local_id,
            remote_id: conn.remote_id,
            remote_ca_guid: conn.remote_ca_guid,
            local_qpn: conn.local_qpn,
            remote_qpn: conn.remote_qpn,
            address: conn.address,
        })
    }

    /// What has been counted.
    #[must_use]
    pub const fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// How much is held at the moment. Walks all connections.
    #[must_use]
    pub fn table_sizes(&self) -> CmSizes {
        let kept = |conn: &Connection| {
            [&conn.asked, &conn.answer, &conn.rtu, &conn.lap]
                .into_iter()
                .flatten()
                .count()
        };
        CmSizes {
            connections: self.registry.connections.len(),
            listeners: self.registry.listeners.len(),
            local_ids: self.registry.by_local_id.len(),
            remote_ids: self.registry.by_remote_id.len(),
            remote_qpns: self.registry.by_remote_qpn.len(),
            peers: self.registry.peers.len(),
            sidr_requests: self.registry.sidr.len(),
            timers: self.timers.len(),
            buffers: self.registry.connections.values().map(kept).sum(),
            events: self.events.len(),
            transmits: self.transmits.len(),
        }
    }

    fn new_tid(&mut self) -> Tid {
        let low = self.next_tid;
        self.next_tid = self.next_tid.wrapping_add(1).max(1);
        Tid::new(u64::from(self.config.tid_high) << 32 | u64::from(low))
    }

    fn transmit(&mut self, to: MadAddress, mad: Mad) {
        if self.transmits.len() < self.config.max_transmits {
            self.transmits.push_back(Transmit { to, mad });
        } else {
            self.counters.transmits_dropped += 1;
        }
    }

    /// Gives an event to the user, unless the connection is destroyed.
    fn emit(&mut self, id: ConnId, kind: CmEventKind) {
        if self.registry.get(id).is_some_and(|conn| !conn.orphan) {
            self.events.push_back(CmEvent { conn: id, kind });
        }
    }

    fn set_timer(&mut self, id: ConnId, deadline: Instant) {
        self.stop_timer(id);
        let key = self.timers.set(deadline, id);
        if let Some(conn) = self.registry.get_mut(id) {
            conn.timer = Some(key);
        }
    }

    fn stop_timer(&mut self, id: ConnId) {
        let timer = self.registry.get_mut(id).and_then(|conn| conn.timer.take());
        if let Some(key) = timer {
            self.timers.cancel(key);
        }
    }

    /// Lets an event happen to a connection: looks the transition up, reacts, and enters the next
    /// state. `None` if the event is not heard in the connection's state.
    fn apply(
        &mut self,
        now: Instant,
        id: ConnId,
        event: Event,
        input: Input<'_>,
    ) -> Option<Reaction> {
        let state = self.registry.get(id)?.state;
        let (reaction, next) = transition(state, event)?;
        self.react(now, id, state, reaction, input);
        if next != state {
            self.enter(now, id, state, next);
        }
        Some(reaction)
    }

    fn enter(&mut self, now: Instant, id: ConnId, state: State, next: State) {
        if matches!(next, State::TimeWait | State::Idle) {
            self.settle(id);
        }
        let Some(conn) = self.registry.get_mut(id) else {
            return;
        };
        conn.state = next;
        let time_wait = conn.time_wait(self.config.max_wait);
        self.registry.moved(id, state, next);
        if next == State::TimeWait {
            self.set_timer(id, now + time_wait);
        }
    }
}
