//! Work under way: sends on their way to the provider, completions on their way to the driver.

use hca_api::{Cause, Completion, CompletionStatus, DmaFault, Hca, HcaError};
use ib_vtime::Instant;
use ib_wire::Qpn;
use mlx4_defs::Cqn;
use mlx4_defs::cqe::Syndrome;
use mlx4_defs::eqe::{CQ_ACCESS_VIOLATION, CQ_OVERRUN, Eqe, EventType};
use mlx4_defs::qp::QpState;
use vf_queues::{Event, Fate, SendLayout, SendRing, collect, is_receive, serve};

use super::cq::{Cq, Written};
use super::cqe::Entry;
use super::name::{Owner, SendName, receive_index};
use super::qp::Qp;
use super::send::Wqe;
use super::transport::Transport;
use super::wqe::{BadWqe, SendData, WorkRequest};
use super::{BATCH, BATCHES_COLLECTED, QueueEvent, Queues};

/// The fate of a request. Its name at the provider says all that is to be known when it completes.
type SendFate = Fate<(), Syndrome>;

/// The send queue of a queue pair.
struct Sends<'a> {
    queues: &'a mut Queues,
    hca: &'a mut dyn Hca,
    qpn: Qpn,
}

impl SendLayout for Sends<'_> {
    type Note = ();
    type Failure = Syndrome;

    fn post_next(&mut self) -> Option<(&mut SendRing<()>, SendFate)> {
        let queues = &mut *self.queues;
        let qp = queues.qps.get_mut(&self.qpn)?;
        let fate = advance(qp, self.hca, &mut queues.wqe, &mut queues.data);
        let fate = fate.unwrap_or_else(|_| {
            queues.backlog.fail([self.qpn]);
            Fate::Idle
        });
        Some((&mut qp.sent, fate))
    }

    fn fail(&mut self, syndrome: Syndrome) -> bool {
        let (queues, qpn) = (&mut *self.queues, self.qpn);
        let Some(qp) = queues.qps.get_mut(&qpn) else {
            return false;
        };
        let ends = syndrome != Syndrome::FLUSHED;
        let is_reliable = qp.transport == Transport::Rc;
        if ends && !is_reliable {
            // What needs no acknowledgement stops sending and goes on receiving (IBA 10.3.1.6).
            qp.state = QpState::SQER;
        }
        let cause = if ends { Cause::BadRequest } else { Cause::None };
        let entry = Entry::failed(qp.qpn, true, qp.take_send(), syndrome, cause);
        let cqn = qp.cqn(false);
        queues.write(self.hca, cqn, &entry);
        if ends && is_reliable {
            queues.flush_at_provider(self.hca, qpn);
            queues.entered_error(qpn, QpState::ERR);
            return false;
        }
        true
    }
}

impl Queues {
    /// Carries out what a queue pair's driver has posted, as much as is its turn.
    pub(super) fn serve(&mut self, hca: &mut dyn Hca, qpn: Qpn) {
        let mut sends = Sends {
            queues: self,
            hca,
            qpn,
        };
        if serve(&mut sends, BATCH) {
            self.backlog.sends.add(qpn);
        }
        self.collect_of(hca, qpn);
    }

    /// Moves the completions of a queue pair's queues to the driver.
    pub(super) fn collect_of(&mut self, hca: &mut dyn Hca, qpn: Qpn) {
        if let Some(qp) = self.qps.get(&qpn) {
            let (send, receive) = (qp.cqn(false), qp.cqn(true));
            self.collect(hca, send);
            if receive != send {
                self.collect(hca, receive);
            }
        }
    }

    /// Moves the completions of a queue to the driver, and asks to be told of the next. Of very many it moves some
    /// now, and the rest with later polls.
    pub(super) fn collect(&mut self, hca: &mut dyn Hca, cqn: Cqn) {
        let Some(handle) = self.cqs.get(&cqn).map(|cq| cq.handle) else {
            return;
        };
        let more = collect::<BATCH>(hca, handle, BATCHES_COLLECTED, |hca, completion| {
            self.deliver(hca, completion);
        });
        if more {
            self.backlog.collect(cqn);
        }
    }

    /// Goes on with the completions of a queue that had very many. Whether there is one.
    pub(super) fn collect_more(&mut self, hca: &mut dyn Hca) -> bool {
        let cqn = self.backlog.take_uncollected();
        if let Some(cqn) = cqn {
            self.collect(hca, cqn);
        }
        cqn.is_some()
    }

    /// Tells the driver of a completion. One of a queue pair that is gone tells nobody anything.
    fn deliver(&mut self, hca: &mut dyn Hca, completion: &Completion) {
        let qpn = match Owner::of(completion.wr_id, completion.qpn) {
            Owner::Life(life) => self.qp_by_life.get(&life).copied(),
            Owner::Shared(qpn) => Some(qpn),
        };
        let Some((qpn, qp)) = qpn.and_then(|qpn| Some((qpn, self.qps.get_mut(&qpn)?))) else {
            return;
        };
        let receive = is_receive(completion.op);
        let failed = completion.status != CompletionStatus::Success;
        if !receive {
            qp.sent.complete();
            if qp.sent.take_wait() {
                self.backlog.sends.add(qpn);
            }
            if failed && qp.has_failed(SendName::of(completion.wr_id)) {
                return;
            }
        }
        let carried = qp.carried(completion);
        let mut entry = Entry::new(qp.qpn, completion);
        if receive && !failed {
            let verified = qp.verified(hca, completion, &mut self.data.summed);
            verified.inspect(|protocol| entry.set_verified(*protocol));
        }
        let cqn = qp.cqn(receive);
        if receive && qp.srqn().is_none() {
            qp.received = receive_index(completion.wr_id).wrapping_add(1);
        }
        let counter = qp.context.primary_path.counter_index;
        if failed {
            self.follow_provider(hca, qpn);
        } else {
            self.traffic.count(counter, carried);
        }
        if receive || failed || SendName::of(completion.wr_id).signaled {
            self.write(hca, cqn, &entry);
        }
    }

    /// Writes an entry into the guest's ring.
    pub(super) fn write(&mut self, hca: &mut dyn Hca, cqn: Cqn, entry: &Entry) {
        let Some(cq) = self.cqs.get_mut(&cqn) else {
            return;
        };
        match cq.write(hca, entry) {
            Written::There(Event::None) | Written::Lost => {}
            Written::There(Event::Held(period)) => self.backlog.held.hold(cqn, period),
            Written::There(Event::Due) => self.wake(cqn),
            Written::Overrun => self.tell_of_cq_error(cqn, CQ_OVERRUN),
            Written::Fault => self.tell_of_cq_error(cqn, CQ_ACCESS_VIOLATION),
        }
    }

    /// Wakes the driver that waits for a completion queue.
    pub(super) fn wake(&mut self, cqn: Cqn) {
        self.backlog.held.forget(cqn);
        if let Some(cq) = self.cqs.get(&cqn) {
            let eqn = cq.eqn;
            self.events.push_back(QueueEvent::Completion { cqn, eqn });
        }
    }

    /// Wakes drivers that were left asleep for more completions to come. Whether there were any.
    pub(super) fn wake_held(&mut self, now: Instant) -> bool {
        let mut did = false;
        while let Some(cqn) = self.backlog.held.due(now) {
            did = true;
            if self.cqs.get_mut(&cqn).is_some_and(Cq::release) {
                self.wake(cqn);
            }
        }
        did
    }

    /// The provider's queue failed.
    pub(super) fn cq_failed(&mut self, cqn: Cqn, syndrome: u8) {
        if self.cqs.get_mut(&cqn).is_some_and(|cq| !cq.fail()) {
            self.tell_of_cq_error(cqn, syndrome);
        }
    }

    /// A completion queue takes nothing more, so its queue pairs cannot go on (IBA 11.6.3.1).
    fn tell_of_cq_error(&mut self, cqn: Cqn, syndrome: u8) {
        let eqe = Eqe::cq_error(cqn, syndrome);
        self.events.push_back(QueueEvent::Async(eqe));
        let uses = |qp: &Qp| qp.cqn(false) == cqn || qp.cqn(true) == cqn;
        let affected = self.qps.iter().filter(|(_, qp)| uses(qp));
        self.backlog.fail(affected.map(|(qpn, _)| *qpn));
    }

    /// Moves the next queue pair to the error state that cannot go on. Whether there is one.
    pub(super) fn condemn(&mut self, hca: &mut dyn Hca) -> bool {
        let Some(qpn) = self.backlog.take_failing() else {
            return false;
        };
        // The provider, whose completion queue failed, raises the event of those that it has moved.
        self.follow_provider(hca, qpn);
        let qp = self.qps.get(&qpn).filter(|qp| qp.state != QpState::ERR);
        if let Some(qp) = qp {
            let eqe = Eqe::qp(EventType::WQ_CATAS_ERROR, qp.qpn);
            self.events.push_back(QueueEvent::Async(eqe));
            self.flush_at_provider(hca, qpn);
            self.entered_error(qpn, QpState::ERR);
            self.collect_of(hca, qpn);
        }
        true
    }

    /// The provider may have put a queue pair into another state by itself.
    pub(super) fn follow_provider(&mut self, hca: &dyn Hca, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(&qpn)
            && qp.follow_provider(hca)
        {
            let state = qp.state;
            self.entered_error(qpn, state);
        }
    }

    /// A queue pair went to an error state: what is posted from now on is flushed.
    pub(super) fn entered_error(&mut self, qpn: Qpn, state: QpState) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.state = state;
            self.backlog.sends.add(qpn);
            if state == QpState::ERR && !qp.context.has_srq() {
                self.backlog.flush.add(qpn);
            }
        }
    }
}

/// Goes on with the next request of a send queue.
///
/// # Errors
/// [`DmaFault`] where the guest has no memory.
fn advance(
    qp: &mut Qp,
    hca: &mut dyn Hca,
    wqe: &mut Wqe,
    data: &mut SendData,
) -> Result<SendFate, DmaFault> {
    let flushes = match qp.state {
        QpState::RTS => false,
        QpState::SQER | QpState::ERR => true,
        _ => return Ok(Fate::Idle),
    };
    match qp.sends.peek(hca, wqe) {
        Ok(true) if flushes => Ok(Fate::Failed(Syndrome::FLUSHED)),
        Ok(true) => {
            let fate = post(qp, hca, wqe, data);
            Ok(fate.unwrap_or(Fate::Failed(Syndrome::LOCAL_QP_OP)))
        }
        Err(fault) if !flushes => Err(fault),
        Ok(false) | Err(_) => Ok(Fate::Idle),
    }
}

/// Posts a request at the provider.
fn post(
    qp: &mut Qp,
    hca: &mut dyn Hca,
    wqe: &Wqe,
    data: &mut SendData,
) -> Result<SendFate, BadWqe> {
    let send = WorkRequest::parse(wqe.bytes(), qp.transport, qp.keys, data)?;
    if send.registers() && !qp.context.fast_register() {
        return Err(BadWqe);
    }
    let last = match send.offload {
        Some(offload) => data.cut(hca, qp.keys, offload, qp.segments)?,
        None => true,
    };
    let name = SendName {
        index: qp.sends.index(),
        opcode: send.opcode,
        // A request that is cut is complete with its last packet.
        signaled: send.signaled && last,
        grh: send.has_grh(),
    };
    match hca.post_send(qp.handle, &send.request(name.name(qp.life), data)) {
        Ok(()) => {
            if last {
                qp.take_send();
            } else {
                qp.segments += 1;
            }
            Ok(if send.is_multicast() {
                Fate::Multicast(())
            } else {
                Fate::Posted(())
            })
        }
        Err(HcaError::QueueFull) => Ok(Fate::Full),
        Err(HcaError::InvalidQpState) if qp.follow_provider(hca) => Ok(Fate::Again),
        Err(_) => Err(BadWqe),
    }
}
