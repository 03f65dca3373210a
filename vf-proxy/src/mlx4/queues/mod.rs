//! The data path: completion queues, shared receive queues and queue pairs of the guest, with their rings
//! and work requests in its memory.
//!
//! A queue pair of the guest is one of the VF's function. What its driver posts is read when the driver
//! rings, translated, and posted there; receives are read by the provider when a packet needs one; what
//! completes there is written into the guest's ring. Every send completes at the provider, told to the
//! guest or not, so that the count of what is under way is right.
//!
//! # Bounds
//!
//! A doorbell has at most [`BATCH`] requests carried out at once, and one that goes to a group is the last of them, since
//! it may be copied to hundreds of queue pairs. If there are more, or the provider has no room, the queue pair goes on at
//! later calls of [`Queues::poll`], each in turn, and so many in one instant ([`Turns`](vf_queues::Turns)). So do completions and receives
//! that are flushed, when there are very many. One call of [`Queues::poll`] does a part of what there is to do and no
//! more, so that whoever calls can look at the clock.

mod carried;
mod cq;
mod cqe;
mod doorbell_pages;
mod execute;
mod flush;
mod keys;
mod moderation;
mod name;
mod offload;
mod qp;
mod receive;
mod send;
mod service;
mod srq;
mod transition;
mod transport;
mod wqe;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hca_api::{AsyncEvent, CqHandle, Hca, HcaEvent, QpHandle, SrqHandle};
use ib_vtime::Instant;
use ib_wire::{Gid, Qpn};
use mlx4_defs::bar::Register;
use mlx4_defs::cq::CqDoorbell;
use mlx4_defs::eqe::{CQ_OVERRUN, Eqe, EventType};
use mlx4_defs::{Cqn, Eqn, Srqn, Uar};
use vf_queues::Backlog;

#[cfg(test)]
pub(super) use self::execute::MAX_ATTACHMENTS;
pub(super) use self::execute::Tables;

use self::cq::Rung;
pub(super) use self::cq::{Cq, NewRing};
use self::doorbell_pages::DoorbellPages;
pub(super) use self::moderation::moderation;
pub(super) use self::transition::Transition;

use self::name::Life;
use self::qp::Qp;
use self::send::Wqe;
use self::srq::Srq;
use self::wqe::SendData;
use super::traffic::Traffic;

/// Requests of one queue pair that are carried out before others have their turn.
pub(super) const BATCH: usize = 32;

/// As many completions of one queue are moved before others have their turn, so many times.
const BATCHES_COLLECTED: usize = 8;

/// What the driver is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueEvent {
    /// A completion queue that was armed has something, for one event queue.
    Completion {
        cqn: Cqn,
        /// Its event queue.
        eqn: Eqn,
    },
    /// Something else, for whichever event queue its type is assigned to.
    Async(Eqe),
}

/// The multicast groups of a queue pair.
#[derive(Debug, Default)]
struct Groups {
    mgids: BTreeSet<Gid>,
    /// Its own packets are not for it.
    block_loopback: bool,
}

/// The queues of a function.
#[derive(Debug)]
pub(super) struct Queues {
    cqs: BTreeMap<Cqn, Cq>,
    cq_by_handle: BTreeMap<CqHandle, Cqn>,
    srqs: BTreeMap<Srqn, Srq>,
    srq_by_handle: BTreeMap<SrqHandle, Srqn>,
    qps: BTreeMap<Qpn, Qp>,
    qp_by_handle: BTreeMap<QpHandle, Qpn>,
    qp_by_life: BTreeMap<Life, Qpn>,
    next_life: Life,
    /// Groups by queue pair number. They outlive a reset of the queue pair.
    groups: BTreeMap<Qpn, Groups>,
    /// Queue pairs by the page of their send doorbell.
    send_pages: DoorbellPages<Qpn>,
    /// Completion queues by the page of their doorbell.
    cq_pages: DoorbellPages<Cqn>,
    backlog: Backlog<Qpn, Cqn>,
    events: VecDeque<QueueEvent>,
    pub(super) traffic: Traffic,
    /// The bytes of the request that is carried out.
    wqe: Wqe,
    /// Its data.
    data: SendData,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            cqs: BTreeMap::new(),
            cq_by_handle: BTreeMap::new(),
            srqs: BTreeMap::new(),
            srq_by_handle: BTreeMap::new(),
            qps: BTreeMap::new(),
            qp_by_handle: BTreeMap::new(),
            qp_by_life: BTreeMap::new(),
            next_life: Life::FIRST,
            groups: BTreeMap::new(),
            send_pages: DoorbellPages::default(),
            cq_pages: DoorbellPages::default(),
            backlog: Backlog::new(flush::PACE),
            events: VecDeque::new(),
            traffic: Traffic::default(),
            wqe: Wqe::default(),
            data: SendData::default(),
        }
    }
}

impl Queues {
    /// The driver rang the send doorbell of a UAR.
    pub(super) fn send_doorbell(&mut self, hca: &mut dyn Hca, uar: Uar, qpn: Qpn) {
        if self.qps.get(&qpn).is_some_and(|qp| qp.uar() == uar) {
            self.serve(hca, qpn);
            self.condemn(hca);
        }
    }

    /// The driver rang the completion queue doorbell of a UAR.
    pub(super) fn arm(&mut self, uar: Uar, doorbell: &CqDoorbell) {
        let cqn = doorbell.cqn();
        let Some(cq) = self.cqs.get_mut(&cqn) else {
            return;
        };
        // A driver that drains a queue pair waits for receives of which nothing else tells.
        self.backlog.flush.hurry();
        match cq.arm(uar, doorbell) {
            Rung::Ignored => {}
            Rung::Armed => self.backlog.held.forget(cqn),
            Rung::Missed => self.wake(cqn),
        }
    }

    /// The driver rang the send doorbell of a UAR, for a queue pair that nobody knows.
    pub(super) fn ring_sends(&mut self, uar: Uar) {
        self.send_pages.ring(uar);
    }

    /// The driver rang the completion queue doorbell of a UAR, for a queue that nobody knows.
    pub(super) fn ring_cqs(&mut self, uar: Uar) {
        self.cq_pages.ring(uar);
    }

    /// Looks at some of the queues on pages that were rung: of a driver with thousands of queues on a page, others have
    /// their turn in between. Returns `true` if there was any.
    fn look_at_rung(&mut self, hca: &dyn Hca) -> bool {
        let mut did = false;
        for _ in 0..BATCH {
            if let Some(qpn) = self.send_pages.take_rung() {
                self.backlog.sends.add(qpn);
                did = true;
            }
            if let Some(cqn) = self.cq_pages.take_rung() {
                self.arm_by_record(hca, cqn);
                did = true;
            }
        }
        did
    }

    /// Arms a completion queue as its doorbell record says, unless what that says has been heard.
    fn arm_by_record(&mut self, hca: &dyn Hca, cqn: Cqn) {
        let doorbell = self.cqs.get(&cqn).and_then(|cq| cq.unheard_arm(hca, cqn));
        if let Some((uar, doorbell)) = doorbell {
            self.arm(uar, &doorbell);
        }
    }

    /// Returns the doorbells of the pages that queues name.
    pub(super) fn doorbells(&self) -> impl Iterator<Item = Register> {
        let sends = self.send_pages.pages().map(|uar| Register::Send { uar });
        let cqs = self.cq_pages.pages();
        sends.chain(cqs.map(|uar| Register::Cq { uar, second: false }))
    }

    /// Returns `true` if a queue names a doorbell page.
    pub(super) fn has_doorbell_pages(&self) -> bool {
        self.doorbells().next().is_some()
    }

    /// Returns `true` if [`Queues::doorbells`] changed since the last call.
    pub(super) fn take_doorbells_changed(&mut self) -> bool {
        let (sends, cqs) = (self.send_pages.take_changed(), self.cq_pages.take_changed());
        sends || cqs
    }

    /// Takes an event of the VF's function.
    pub(super) fn handle_hca_event(&mut self, hca: &mut dyn Hca, event: &HcaEvent) {
        match *event {
            HcaEvent::Completion(handle) => {
                if let Some(&cqn) = self.cq_by_handle.get(&handle) {
                    self.collect(hca, cqn);
                }
            }
            HcaEvent::Async(event) => self.handle_async_event(hca, event),
        }
        self.condemn(hca);
    }

    fn handle_async_event(&mut self, hca: &mut dyn Hca, event: AsyncEvent) {
        match event {
            AsyncEvent::CommunicationEstablished(qp) => self.tell_of_qp(EventType::COMM_EST, qp),
            AsyncEvent::SendQueueDrained(qp) => self.tell_of_qp(EventType::SQ_DRAINED, qp),
            AsyncEvent::QpFatal(qp) => self.tell_of_failed_qp(hca, EventType::WQ_CATAS_ERROR, qp),
            AsyncEvent::QpRequestError(qp) => {
                self.tell_of_failed_qp(hca, EventType::WQ_INVAL_REQ_ERROR, qp);
            }
            AsyncEvent::QpAccessError(qp) => {
                self.tell_of_failed_qp(hca, EventType::WQ_ACCESS_ERROR, qp);
            }
            AsyncEvent::LastWqeReached(qp) => {
                self.tell_of_failed_qp(hca, EventType::SRQ_QP_LAST_WQE, qp);
            }
            AsyncEvent::PathMigrated(qp) => self.tell_of_qp(EventType::PATH_MIG, qp),
            AsyncEvent::PathMigrationFailed(qp) => self.tell_of_qp(EventType::PATH_MIG_FAILED, qp),
            AsyncEvent::CqError(handle) => {
                if let Some(&cqn) = self.cq_by_handle.get(&handle) {
                    self.collect(hca, cqn);
                    self.cq_failed(cqn, CQ_OVERRUN);
                }
            }
            AsyncEvent::SrqError(srq) => self.tell_of_srq(EventType::SRQ_CATAS_ERROR, srq),
            AsyncEvent::SrqLimitReached(srq) => self.tell_of_srq(EventType::SRQ_LIMIT, srq),
            AsyncEvent::Port { .. }
            | AsyncEvent::RegistrationDone(_)
            | AsyncEvent::FunctionReset
            | AsyncEvent::DeviceFatal => {}
        }
    }

    /// The provider has changed the state of a queue pair: what it has completed comes first.
    fn tell_of_failed_qp(&mut self, hca: &mut dyn Hca, event: EventType, handle: QpHandle) {
        if let Some(&qpn) = self.qp_by_handle.get(&handle) {
            self.follow_provider(hca, qpn);
            self.collect_of(hca, qpn);
        }
        self.tell_of_qp(event, handle);
    }

    fn tell_of_qp(&mut self, event: EventType, handle: QpHandle) {
        if let Some(&qpn) = self.qp_by_handle.get(&handle) {
            let eqe = Eqe::qp(event, qpn);
            self.events.push_back(QueueEvent::Async(eqe));
        }
    }

    fn tell_of_srq(&mut self, event: EventType, handle: SrqHandle) {
        if let Some(&srqn) = self.srq_by_handle.get(&handle) {
            let eqe = Eqe::srq(event, srqn);
            self.events.push_back(QueueEvent::Async(eqe));
        }
    }

    /// Goes on with what waits: a bounded part of it, so that others can have their turn before the next. Whether
    /// there was anything.
    pub(super) fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        if self.condemn(hca) || self.collect_more(hca) {
            return true;
        }
        let mut did = self.wake_held(now);
        did |= self.look_at_rung(hca);
        if self.backlog.flush.is_due(now) {
            did |= self.flush_next(now, hca);
        }
        if let Some(qpn) = self.backlog.sends.take(now) {
            self.serve(hca, qpn);
            did = true;
        }
        did
    }

    /// When to poll at the latest.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let has_rung = self.send_pages.has_rung() || self.cq_pages.has_rung();
        if has_rung {
            return Some(Instant::ZERO);
        }
        self.backlog.next()
    }

    /// What the driver is to be told next.
    pub(super) fn poll_event(&mut self) -> Option<QueueEvent> {
        self.events.pop_front()
    }
}
