//! Send queues: from the program's ring to the provider.

use hca_api::{
    AvHandle, Cause, Completion, CompletionStatus, Hca, HcaError, QpKind, QpState, SendFlags,
    SendRequest, UdAddress, UdDestination,
};
use ib_vtime::{Duration, Instant};
use verbs_link::abi::completion_queue::event_type;
use verbs_link::abi::queue_pair::PostSend;
use verbs_link::{Answer, Command, Errno};
use vf_queues::{Fate, FlushPace, Found, SendLayout, SendRing, fail, serve};

use super::queue_pair::{Qp, SentRequest};
use super::{ContextId, ProcessDevice};
use crate::send::SendWork;

/// Requests of a queue that are taken before others have their turn.
const BATCH: usize = 64;

/// A request that fails, its status, and why.
type Failure = (SentRequest, CompletionStatus, Cause);

/// The fate of a request.
type SendFate = Fate<SentRequest, Failure>;

/// The send queue of a queue pair.
struct Sends<'a> {
    device: &'a mut ProcessDevice,
    hca: &'a mut dyn Hca,
    handle: u32,
}

impl SendLayout for Sends<'_> {
    type Note = SentRequest;
    type Failure = Failure;

    fn post_next(&mut self) -> Option<(&mut SendRing<SentRequest>, SendFate)> {
        let device = &mut *self.device;
        let owned = device.qps.0.get_mut(&self.handle)?;
        let (context, qp) = (owned.context, &mut owned.object);
        let fate = if qp.send.distance(qp.next_send, qp.send.producer()) == 0 {
            Fate::Idle
        } else if qp.send.reach(qp.next_send) {
            let element = qp.send.read(qp.next_send, &mut device.element);
            post(qp, self.hca, element, |ah| {
                device.ahs.get(context, ah).copied()
            })
        } else {
            device.starved.insert(self.handle);
            Fate::Full
        };
        Some((&mut qp.sent, fate))
    }

    /// A request that is wrong ends a reliable connection, as in hardware. Without acknowledgements the queue pair stops sending and
    /// goes on receiving (IBA 10.3.1.6).
    fn fail(&mut self, (request, status, cause): Failure) -> bool {
        let (device, handle) = (&mut *self.device, self.handle);
        let Some(qp) = device.qps.0.get_mut(&handle).map(|qp| &mut qp.object) else {
            return false;
        };
        qp.next_send = qp.send.next(qp.next_send);
        qp.send.publish_consumer(qp.next_send);
        let completion = Completion {
            wr_id: request.wr_id,
            status,
            cause,
            qpn: qp.number(),
            ..Completion::BLANK
        };
        let (cq, provider, ends) = (qp.send_cq, qp.provider, qp.kind == QpKind::Rc);
        let is_cause = status != CompletionStatus::Flushed;
        qp.send_error |= is_cause && !ends;
        device.push(cq, &completion);
        if is_cause {
            device.backlog.flush.add(handle);
        }
        if is_cause && ends {
            // From every state in which requests are taken there is a way to error.
            let _ = fail(self.hca, provider);
        }
        true
    }
}

/// Queue pairs in error that a step looks at.
const FLUSH_STEP: usize = 32;

/// Programs poll completion queues without arming them, so no call makes the pauses short again: none is long.
pub(super) const PACE: FlushPace = FlushPace {
    at_a_time: 1024,
    seldom: Duration::from_millis(20),
};

impl ProcessDevice {
    /// Takes what a program has posted to a queue pair of its: the program has rung the doorbell.
    pub fn ring(&mut self, hca: &mut dyn Hca, context: ContextId, qp: u32) {
        if self.qps.get(context, qp).is_ok() {
            self.serve(hca, qp);
        }
    }

    pub(super) fn post_send(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (asked, _) = command.read::<PostSend>()?;
        if asked.wr_count.get() != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let handle = asked.qp_handle.get();
        self.qps.get(context, handle)?;
        self.serve(hca, handle);
        // The number of a bad request: none.
        Ok(Answer::new(&0_u32))
    }

    /// Takes requests from a ring, as many as is its turn.
    pub(super) fn serve(&mut self, hca: &mut dyn Hca, handle: u32) {
        let mut sends = Sends {
            device: self,
            hca,
            handle,
        };
        if serve(&mut sends, BATCH) {
            self.backlog.sends.add(handle);
        }
    }

    /// Moves a queue pair whose completion queue overran to the error state, since it can report nothing (IBA 11.6.3.1).
    pub(super) fn fail_overrun(&mut self, hca: &mut dyn Hca, handle: u32) {
        let Some(provider) = self.qps.0.get(&handle).map(|qp| qp.object.provider) else {
            return;
        };
        let state = hca.query_qp(provider).map(|qp| qp.state);
        if !matches!(state, Ok(QpState::Reset | QpState::Error)) && fail(hca, provider).is_ok() {
            self.tell_of_qp(handle, event_type::QP_FATAL);
            self.backlog.flush.add(handle);
        }
    }

    /// Takes the oldest request of a queue as complete.
    pub(super) fn sent(&mut self, handle: u32) -> Option<SentRequest> {
        let qp = &mut self.qps.0.get_mut(&handle)?.object;
        let sent = qp.sent.complete()?;
        let outstanding = u32::try_from(qp.sent.in_flight()).unwrap_or(u32::MAX);
        qp.send
            .publish_consumer(qp.next_send.wrapping_sub(outstanding));
        if qp.sent.take_wait() {
            self.backlog.sends.add(handle);
        }
        Some(sent)
    }

    /// Flushes the requests and receives of the next queue pairs in error, since programs post receives without a doorbell.
    pub(super) fn flush_next(&mut self, now: Instant, hca: &mut dyn Hca) {
        for _ in 0..FLUSH_STEP {
            if !self.backlog.flush.is_due(now) {
                return;
            }
            let Some(handle) = self.backlog.flush.take() else {
                return;
            };
            let found = self.flush_one(hca, handle);
            self.backlog
                .flush
                .done(now, handle, found.unwrap_or(Found::Nothing));
            if found.is_none() {
                self.backlog.flush.remove(handle);
            }
        }
    }

    /// Flushes a queue pair in error. Returns its receives that were found, or `None` if it is in error no longer.
    fn flush_one(&mut self, hca: &mut dyn Hca, handle: u32) -> Option<Found> {
        let qp = &self.qps.0.get(&handle)?.object;
        let found = match qp.query(hca).ok()?.state {
            QpState::Error if qp.receive.as_ref().is_some_and(|ring| ring.waiting() > 0) => {
                let _ = fail(hca, qp.provider);
                // A program may post for as long as it is served: the rest is flushed after a pause.
                Found::Some
            }
            QpState::Error | QpState::SendQueueError => Found::Nothing,
            _ => return None,
        };
        self.backlog.sends.add(handle);
        Some(found)
    }

    /// Looks whether the provider has put a queue pair into an error state.
    pub(super) fn follow_provider(&mut self, hca: &dyn Hca, handle: u32) {
        let Some(qp) = self.qps.0.get(&handle) else {
            return;
        };
        let state = hca.query_qp(qp.object.provider).map(|qp| qp.state);
        if matches!(state, Ok(QpState::Error | QpState::SendQueueError)) {
            self.backlog.flush.add(handle);
        }
    }
}

/// Posts a request at the provider, by the address that its handle names.
fn post(
    qp: &mut Qp,
    hca: &mut dyn Hca,
    element: &[u8],
    address: impl FnOnce(u32) -> Result<AvHandle, Errno>,
) -> SendFate {
    let work = match SendWork::read(element, qp.shape) {
        Ok(work) if !qp.send_error => work,
        read => {
            let request = SentRequest {
                wr_id: read.map_or_else(|wr_id| wr_id, |work| work.wr_id),
                signaled: true,
            };
            let (status, cause) = if qp.send_error {
                (CompletionStatus::Flushed, Cause::None)
            } else {
                (CompletionStatus::LocalQpOperation, Cause::BadRequest)
            };
            return Fate::Failed((request, status, cause));
        }
    };
    let note = SentRequest {
        wr_id: work.wr_id,
        signaled: work.signaled || qp.signal_all,
    };
    let failed = |status, cause| Fate::Failed((note, status, cause));
    let destination = if qp.kind.is_datagram() {
        let named = work.destination;
        let Ok(av) = address(named.ah_num) else {
            return failed(CompletionStatus::LocalQpOperation, Cause::BadAddress);
        };
        Some(UdDestination {
            address: UdAddress::Handle(av),
            qpn: named.qpn,
            qkey: named.qkey,
            pkey_index: None,
        })
    } else {
        None
    };
    let request = SendRequest {
        wr_id: work.wr_id,
        op: work.op,
        payload: work.payload(),
        flags: work.flags | SendFlags::SIGNALED,
        destination,
    };
    match hca.post_send(qp.provider, &request) {
        Ok(()) => {
            qp.next_send = qp.send.next(qp.next_send);
            Fate::Posted(note)
        }
        Err(HcaError::QueueFull) => Fate::Full,
        Err(HcaError::InvalidQpState) => match hca.query_qp(qp.provider).map(|qp| qp.state) {
            Ok(QpState::Error | QpState::SendQueueError) => {
                failed(CompletionStatus::Flushed, Cause::None)
            }
            _ => Fate::Idle,
        },
        Err(HcaError::TooManySges) => failed(CompletionStatus::LocalLength, Cause::TooLong),
        Err(_) => failed(CompletionStatus::LocalQpOperation, Cause::BadRequest),
    }
}
