//! What the machine does on a transition.

use alloc::boxed::Box;
use core::time::Duration;

use ib_vtime::Instant;
use ib_wire::cm::{CmDreq, CmMessage, CmMra, CmRej, RejReason};
use ib_wire::mad::{AttributeId, Mad};

use super::connection::{Connection, code};
use super::table::Reaction;
use super::{Cm, CmEventKind, ConnId, Input, State, message};
use crate::MadAddress;

impl Cm {
    pub(super) fn react(
        &mut self,
        now: Instant,
        id: ConnId,
        state: State,
        reaction: Reaction,
        input: Input<'_>,
    ) {
        match (reaction, input) {
            (Reaction::Ask, Input::Ask { mad, wait }) => self.ask(now, id, mad, wait),
            (Reaction::Tell, Input::Tell(mad)) => self.tell(id, mad),
            (Reaction::Deliver, Input::Received { mad, from }) => {
                self.settle(id);
                self.deliver(id, mad, from);
            }
            (Reaction::Extend, Input::Received { mad, from }) => {
                self.deliver(id, mad, from);
                self.extend(now, id, mad.view());
            }
            (Reaction::Repeat, Input::Received { from, .. }) => {
                self.repeat(id, from, |conn| conn.answer.as_deref());
            }
            (Reaction::RepeatRtu, Input::Received { from, .. }) => {
                self.repeat(id, from, |conn| conn.rtu.as_deref());
            }
            (Reaction::RepeatAsked, Input::Received { from, .. }) => {
                self.repeat(id, from, |conn| conn.asked.as_deref());
            }
            (Reaction::RepeatRej, Input::Received { mad, from }) => self.repeat_rej(id, mad, from),
            (Reaction::RepeatDrep, Input::Received { mad, from }) => {
                self.answer_dreq(id, mad.view(), from);
            }
            (Reaction::AnswerDreq, Input::Received { mad, from }) => {
                self.answer_dreq(id, mad.view(), from);
                self.deliver(id, mad, from);
            }
            (Reaction::Settle, _) => self.settle(id),
            (Reaction::Resend, _) => self.resend(now, id),
            (Reaction::Abandon, _) => self.abandon(id, state),
            (Reaction::Fail, _) => self.fail(id, state),
            (Reaction::Expire, _) => self.emit(id, CmEventKind::TimeWaitExit),
            // What is left is `Ignore`; the other reactions always come with their input.
            _ => {}
        }
    }

    fn ask(&mut self, now: Instant, id: ConnId, mad: Mad, wait: Duration) {
        let Some(conn) = self.registry.get_mut(id) else {
            return;
        };
        conn.asked = Some(Box::new(mad));
        conn.asked_wait = wait;
        conn.tries_left = conn.waits.retries;
        let to = conn.address;
        self.transmit(to, mad);
        self.set_timer(id, now + wait);
    }

    fn tell(&mut self, id: ConnId, mad: Mad) {
        self.settle(id);
        let Some(conn) = self.registry.get_mut(id) else {
            return;
        };
        let kept = Some(Box::new(mad));
        if mad.header.attribute_id == AttributeId::CM_RTU {
            conn.rtu = kept;
        } else {
            conn.answer = kept;
        }
        let to = conn.address;
        self.transmit(to, mad);
    }

    /// Stops waiting for an answer.
    pub(super) fn settle(&mut self, id: ConnId) {
        self.stop_timer(id);
        if let Some(conn) = self.registry.get_mut(id) {
            conn.asked = None;
        }
    }

    fn extend(&mut self, now: Instant, id: ConnId, mra: &CmMra) {
        let Some(conn) = self.registry.get(id) else {
            return;
        };
        let wait = code(mra.service_timeout(), self.config.max_wait) + conn.waits.path;
        self.set_timer(id, now + wait);
    }

    fn repeat(
        &mut self,
        id: ConnId,
        to: &MadAddress,
        kept: impl FnOnce(&Connection) -> Option<&Mad>,
    ) {
        if let Some(mad) = self.registry.get(id).and_then(kept).copied() {
            self.transmit(*to, mad);
        }
    }

    /// Answers a late REQ or REP of a connection in TimeWait: by the REJ that ended it, if one
    /// did; a REQ otherwise by a REJ for a stale connection.
    fn repeat_rej(&mut self, id: ConnId, mad: &Mad, from: &MadAddress) {
        let Some(conn) = self.registry.get(id) else {
            return;
        };
        let rej = match (conn.kept_rej(), mad.header.attribute_id) {
            (Some(kept), _) => {
                // The REJ of a side that never saw the REP could not name the peer's id.
                let mut rej = *kept;
                let late: &CmRej = mad.view();
                rej.view_mut::<CmRej>().remote_comm_id = late.local_comm_id;
                rej
            }
            (None, AttributeId::CM_REQ) => message::rej(
                conn,
                CmMessage::REQ,
                RejReason::STALE_CONNECTION,
                self.config.ca_guid,
                &[],
                &[0; 148],
            ),
            (None, _) => return,
        };
        self.transmit(*from, rej);
    }

    /// Answers a DREQ by the kept DREP, or by one that is kept from now on.
    fn answer_dreq(&mut self, id: ConnId, dreq: &CmDreq, from: &MadAddress) {
        let Some(conn) = self.registry.get_mut(id) else {
            return;
        };
        let drep = match conn.answer.as_deref() {
            Some(kept) if kept.header.attribute_id == AttributeId::CM_DREP => *kept,
            _ => message::drep(dreq, &[0; 224]),
        };
        conn.answer = Some(Box::new(drep));
        self.transmit(*from, drep);
    }

    fn resend(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.registry.get_mut(id) else {
            return;
        };
        conn.tries_left = conn.tries_left.saturating_sub(1);
        let wait = conn.asked_wait;
        let to = conn.address;
        if let Some(mad) = conn.asked.as_deref().copied() {
            self.transmit(to, mad);
        }
        self.counters.retries += 1;
        self.set_timer(id, now + wait);
    }

    /// Gives up on a peer that may still be about to answer: it learns so by a REJ.
    fn abandon(&mut self, id: ConnId, state: State) {
        let ca_guid = self.config.ca_guid;
        if let Some(conn) = self.registry.get_mut(id) {
            let rej = message::rej(
                conn,
                CmMessage::OTHER,
                RejReason::TIMEOUT,
                ca_guid,
                &[],
                &[0; 148],
            );
            conn.answer = Some(Box::new(rej));
            let to = conn.address;
            self.transmit(to, rej);
        }
        self.fail(id, state);
    }

    fn fail(&mut self, id: ConnId, state: State) {
        self.settle(id);
        self.counters.timeouts += 1;
        let kind = match state {
            State::ReqSent | State::MraReqRcvd => CmEventKind::ReqError,
            State::RepSent | State::MraRepRcvd => CmEventKind::RepError,
            State::LapSent | State::MraLapRcvd => CmEventKind::LapError,
            State::SidrReqSent => CmEventKind::SidrReqError,
            // Of the states that wait only DreqSent is left.
            _ => CmEventKind::DreqError,
        };
        self.emit(id, kind);
    }

    /// Gives a received message to the user.
    fn deliver(&mut self, id: ConnId, mad: &Mad, from: &MadAddress) {
        let listener = self.registry.get(id).and_then(|conn| conn.listener);
        let from = *from;
        let kind = match (mad.header.attribute_id, listener) {
            (AttributeId::CM_REQ, Some(listener)) => CmEventKind::ReqReceived {
                listener,
                from,
                req: Box::new(*mad.view()),
            },
            (AttributeId::CM_REQ, None) => CmEventKind::PeerReqReceived {
                from,
                req: Box::new(*mad.view()),
            },
            (AttributeId::CM_SIDR_REQ, Some(listener)) => CmEventKind::SidrReqReceived {
                listener,
                from,
                req: Box::new(*mad.view()),
            },
            (AttributeId::CM_REP, _) => CmEventKind::RepReceived(Box::new(*mad.view())),
            (AttributeId::CM_RTU, _) => CmEventKind::RtuReceived(Box::new(*mad.view())),
            (AttributeId::CM_REJ, _) => CmEventKind::RejReceived(Box::new(*mad.view())),
            (AttributeId::CM_MRA, _) => CmEventKind::MraReceived(Box::new(*mad.view())),
            (AttributeId::CM_DREQ, _) => CmEventKind::DreqReceived(Box::new(*mad.view())),
            (AttributeId::CM_DREP, _) => CmEventKind::DrepReceived(Box::new(*mad.view())),
            (AttributeId::CM_LAP, _) => CmEventKind::LapReceived {
                from,
                lap: Box::new(*mad.view()),
            },
            (AttributeId::CM_APR, _) => CmEventKind::AprReceived(Box::new(*mad.view())),
            (AttributeId::CM_SIDR_REP, _) => CmEventKind::SidrRepReceived {
                from,
                rep: Box::new(*mad.view()),
            },
            _ => return,
        };
        self.emit(id, kind);
    }
}
