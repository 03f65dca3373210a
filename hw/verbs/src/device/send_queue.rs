//! Send queues: from the program's ring to the provider.

use hca_api::{
    Completion, CompletionFlags, CompletionOp, CompletionStatus, Hca, HcaError, QpModify, QpState,
    SendFlags, SendRequest, UdAddress, UdDestination,
};
use ib_vtime::Instant;

use super::{ContextId, ProcessDevice};
use crate::abi::completion_queue::event_type;
use crate::abi::queue_pair::PostSend;
use crate::ring::MAX_ELEMENT;
use crate::send::SendWork;
use crate::{Answer, Command, Errno};

/// Requests of a queue that are taken before others have their turn.
const BATCH: usize = 64;

/// A request that the provider has.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentRequest {
    pub(super) wr_id: u64,
    pub(super) signaled: bool,
}

/// Outcome of taking a request.
enum Taken {
    /// The provider has it.
    Posted,
    /// The provider has no room.
    Full,
    /// The state has none taken.
    NotNow,
    /// It completes with this status at once.
    Failed(CompletionStatus),
}

/// Queue pairs in error that a step looks at.
const FLUSH_STEP: usize = 32;

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
        for _ in 0..BATCH {
            let Some(qp) = self.qps.0.get_mut(&handle).map(|qp| &mut qp.object) else {
                return;
            };
            if qp.send.distance(qp.next_send, qp.send.producer()) == 0 {
                return;
            }
            if !qp.send.reach(qp.next_send) {
                qp.waits = true;
                self.starved.insert(handle);
                return;
            }
            let mut element = [0; MAX_ELEMENT];
            let element = qp.send.read(qp.next_send, &mut element);
            let shape = qp.shape;
            let (taken, request) = match SendWork::read(element, shape) {
                Ok(work) => {
                    let request = SentRequest {
                        wr_id: work.wr_id,
                        signaled: work.signaled || qp.signal_all,
                    };
                    (self.post(hca, handle, &work), request)
                }
                Err(wr_id) => {
                    let request = SentRequest {
                        wr_id,
                        signaled: true,
                    };
                    (Taken::Failed(CompletionStatus::LocalQpOperation), request)
                }
            };
            let Some(qp) = self.qps.0.get_mut(&handle).map(|qp| &mut qp.object) else {
                return;
            };
            match taken {
                Taken::Posted => {
                    qp.next_send = qp.send.next(qp.next_send);
                    qp.sent.push_back(request);
                }
                Taken::Full => {
                    qp.waits = true;
                    return;
                }
                Taken::NotNow => return,
                Taken::Failed(status) => {
                    // Completions keep the order of requests.
                    if !qp.sent.is_empty() {
                        qp.waits = true;
                        return;
                    }
                    qp.next_send = qp.send.next(qp.next_send);
                    qp.send.publish_consumer(qp.next_send);
                    self.fail(hca, handle, request, status);
                }
            }
        }
        self.pending.insert(handle);
    }

    fn post(&mut self, hca: &mut dyn Hca, handle: u32, work: &SendWork<'_>) -> Taken {
        let Some(owned) = self.qps.0.get(&handle) else {
            return Taken::NotNow;
        };
        let (context, qp) = (owned.context, &owned.object);
        let destination = if qp.kind.is_datagram() {
            let named = work.destination;
            let Ok(av) = self.ahs.get(context, named.ah_num) else {
                return Taken::Failed(CompletionStatus::LocalQpOperation);
            };
            Some(UdDestination {
                address: UdAddress::Handle(*av),
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
            Ok(()) => Taken::Posted,
            Err(HcaError::QueueFull) => Taken::Full,
            Err(HcaError::InvalidQpState) => match hca.query_qp(qp.provider).map(|qp| qp.state) {
                Ok(QpState::Error | QpState::SendQueueError) => {
                    Taken::Failed(CompletionStatus::Flushed)
                }
                _ => Taken::NotNow,
            },
            Err(HcaError::TooManySges) => Taken::Failed(CompletionStatus::LocalLength),
            Err(_) => Taken::Failed(CompletionStatus::LocalQpOperation),
        }
    }

    /// Completes a request that the provider never had. One that is wrong ends the connection, as in hardware.
    fn fail(
        &mut self,
        hca: &mut dyn Hca,
        handle: u32,
        request: SentRequest,
        status: CompletionStatus,
    ) {
        let Some(qp) = self.qps.0.get(&handle).map(|qp| &qp.object) else {
            return;
        };
        let completion = Completion {
            wr_id: request.wr_id,
            status,
            op: CompletionOp::Send,
            qpn: qp.number(),
            byte_len: 0,
            immediate: 0,
            flags: CompletionFlags::empty(),
            source: None,
        };
        let (cq, provider) = (qp.send_cq, qp.provider);
        self.push(cq, &completion);
        if status != CompletionStatus::Flushed {
            // From every state in which requests are taken there is a way to error.
            let _ = hca.modify_qp(provider, &to_error());
            self.failed.insert(handle);
        }
    }

    /// Moves a queue pair whose completion queue overran to the error state, since it can report nothing (IBA 11.6.3.1).
    pub(super) fn fail_overrun(&mut self, hca: &mut dyn Hca, handle: u32) {
        let Some(provider) = self.qps.0.get(&handle).map(|qp| qp.object.provider) else {
            return;
        };
        let state = hca.query_qp(provider).map(|qp| qp.state);
        if !matches!(state, Ok(QpState::Reset | QpState::Error))
            && hca.modify_qp(provider, &to_error()).is_ok()
        {
            self.tell_of_qp(handle, event_type::QP_FATAL);
            self.failed.insert(handle);
        }
    }

    /// Takes the oldest request of a queue as complete.
    pub(super) fn sent(&mut self, handle: u32) -> Option<SentRequest> {
        let qp = &mut self.qps.0.get_mut(&handle)?.object;
        let sent = qp.sent.pop_front()?;
        let outstanding = u32::try_from(qp.sent.len()).unwrap_or(u32::MAX);
        qp.send
            .publish_consumer(qp.next_send.wrapping_sub(outstanding));
        if core::mem::take(&mut qp.waits) {
            self.pending.insert(handle);
        }
        Some(sent)
    }

    /// Flushes the requests and receives of the next [`FLUSH_STEP`] queue pairs in error, since programs post receives without a
    /// doorbell. Returns `true` if there are more queue pairs in error.
    pub(super) fn flush_failed(&mut self, hca: &mut dyn Hca) -> bool {
        let mut rest = self.failed.range(self.next_failed..).copied();
        let part: Vec<u32> = rest.by_ref().take(FLUSH_STEP).collect();
        let behind = rest.next();
        self.next_failed = behind.unwrap_or(0);
        for handle in part {
            let Some(qp) = self.qps.0.get(&handle).map(|qp| &qp.object) else {
                self.failed.remove(&handle);
                continue;
            };
            let state = hca.query_qp(qp.provider).map(|qp| qp.state);
            match state {
                Ok(QpState::Error) => {
                    if qp.receive.as_ref().is_some_and(|ring| ring.waiting() > 0) {
                        let _ = hca.modify_qp(qp.provider, &to_error());
                    }
                    self.pending.insert(handle);
                }
                Ok(QpState::SendQueueError) => {
                    self.pending.insert(handle);
                }
                _ => {
                    self.failed.remove(&handle);
                }
            }
        }
        behind.is_some()
    }

    /// Looks whether the provider has put a queue pair into an error state.
    pub(super) fn follow_provider(&mut self, now: Instant, hca: &mut dyn Hca, handle: u32) {
        let Some(qp) = self.qps.0.get(&handle) else {
            return;
        };
        let state = hca.query_qp(qp.object.provider).map(|qp| qp.state);
        if matches!(state, Ok(QpState::Error | QpState::SendQueueError)) {
            self.failed.insert(handle);
            self.next_flush = now;
        }
    }
}

pub(super) fn to_error() -> QpModify {
    QpModify {
        state: Some(QpState::Error),
        ..QpModify::default()
    }
}
