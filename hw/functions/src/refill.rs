//! Receives in memory of virtual functions are read ahead, and posted to the adapter.
//!
//! Neither a guest nor a program says that it added a receive. So a queue that has room is read again with each verb that
//! concerns it, when its completions are polled, and by a timer ([`Pace`]).

use hca_api::{
    AsyncEvent, Completion, CqHandle, FunctionId, Hca, HcaError, MAX_FLUSHED, QpHandle, QpModify,
    QpState, RecvRequest, SrqHandle,
};
use ib_vtime::Instant;

use crate::functions::Functions;
use crate::pulled::{NOWHERE, Pace, Phase, QueueId, TURN};

impl Functions {
    /// Returns when to call [`Self::handle_timeout`] at the latest, for receives that functions keep in their own memory, or at once
    /// for objects of functions that were reset, later for regions of these that the adapter is deregistering. `None` if no queue of such
    /// receives has room, and no object is left.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let remains = self.remains.poll_timeout().map(|at| at.max(self.now));
        [remains, self.readings.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Reads the queues of receives that are due at `now`, at most 256 requests of each function, and destroys up to 256 objects of
    /// functions that were reset. [`Self::poll_ready`] is to be polled then.
    pub fn handle_timeout(&mut self, hca: &mut dyn Hca, now: Instant) {
        self.now = self.now.max(now);
        self.destroy_remains(hca);
        self.turn += 1;
        while let Some((_, (id, queue))) = self.readings.pop_due(now) {
            let turn = self.turn;
            let Some(vf) = self.vfs.get_mut(&id) else {
                continue;
            };
            let left = vf.pulled.left(turn);
            let Some(state) = vf.pulled.queues.get_mut(&queue) else {
                continue;
            };
            state.timer = None;
            if state.phase != Phase::Open {
                continue;
            }
            if left == 0 {
                let later = self.now + Pace::FIRST;
                state.timer = Some(self.readings.set(later, (id, queue)));
                continue;
            }
            let found = self.post_pulled(hca, id, queue, left);
            if let Some(vf) = self.vfs.get_mut(&id) {
                vf.pulled.spent += 1 + found;
                if let Some(state) = vf.pulled.queues.get_mut(&queue) {
                    if found != 0 {
                        state.pace = Pace::new();
                    }
                    if state.is_hungry() {
                        let next = state.pace.next(self.now);
                        state.timer = Some(self.readings.set(next, (id, queue)));
                    }
                }
            }
        }
    }

    /// Reads a queue of which something was used just now. One in error waits until it is moved there again.
    pub(crate) fn read_queue(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        queue: QueueId,
    ) -> usize {
        let state = self
            .vfs
            .get(&id)
            .and_then(|vf| vf.pulled.queues.get(&queue));
        if state.is_none_or(|state| state.phase != Phase::Open) {
            return 0;
        }
        let found = self.post_pulled(hca, id, queue, TURN);
        let state = self.vfs.get_mut(&id);
        let Some(state) = state.and_then(|vf| vf.pulled.queues.get_mut(&queue)) else {
            return 0;
        };
        state.pace = Pace::new();
        let due = self.now + Pace::FIRST;
        let is_later = state.timer.is_none_or(|timer| timer.deadline() > due);
        if state.is_hungry() && is_later {
            if let Some(timer) = state.timer.take() {
                self.readings.cancel(timer);
            }
            state.timer = Some(self.readings.set(due, (id, queue)));
        }
        found
    }

    /// Reads a shared queue from which a queue pair is taken: completions of its receives may be gone that were not polled.
    fn recount(&mut self, hca: &mut dyn Hca, id: FunctionId, queue: QueueId) {
        let state = self.vfs.get_mut(&id);
        if let Some(state) = state.and_then(|vf| vf.pulled.queues.get_mut(&queue)) {
            state.posted = 0;
            self.read_queue(hca, id, queue);
        }
    }

    /// Reads the queue from which a queue pair takes receives, if it is in memory of the function.
    pub(crate) fn read_queue_of(&mut self, hca: &mut dyn Hca, id: FunctionId, qp: QpHandle) {
        let queue = self.vfs.get(&id).and_then(|vf| vf.pulled.of_pair(qp));
        if let Some(queue) = queue {
            self.read_queue(hca, id, queue);
        }
    }

    /// Posts requests of a queue to the adapter, as many as it takes, and returns their number.
    fn post_pulled(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        queue: QueueId,
        most: usize,
    ) -> usize {
        let Some(vf) = self.vfs.get_mut(&id) else {
            return 0;
        };
        let Some(state) = vf.pulled.queues.get_mut(&queue) else {
            return 0;
        };
        let mut found = 0;
        let is_flush = state.phase == Phase::Failed;
        while found < most && (is_flush || state.is_hungry()) && state.read(&vf.memory) {
            self.sges.clear();
            vf.side.regions.translate(&state.list, &mut self.sges);
            let request = RecvRequest {
                wr_id: state.held.unwrap_or(0),
                scatter: &self.sges,
            };
            match queue.post(hca, &request) {
                Ok(()) => {
                    state.held = None;
                    state.posted = state.posted.saturating_add(1);
                    found += 1;
                }
                Err(HcaError::QueueFull) => {
                    state.posted = state.max_wr;
                    break;
                }
                Err(_) if state.list != [NOWHERE] => state.refuse(),
                Err(_) => {
                    state.phase = Phase::Failed;
                    let failed = match queue {
                        QueueId::Own(qp) => {
                            // It is in that state already, or the adapter is beyond help.
                            let _ = hca.modify_qp(
                                qp,
                                &QpModify {
                                    state: Some(QpState::Error),
                                    ..QpModify::default()
                                },
                            );
                            AsyncEvent::QpFatal(qp)
                        }
                        QueueId::Shared(srq) => AsyncEvent::SrqError(srq),
                    };
                    if let Ok(side) = self.side_mut(id) {
                        side.events.raise(failed);
                    }
                    break;
                }
            }
        }
        found
    }

    /// Follows a queue pair that its consumer, or its port, brought to a state.
    pub(crate) fn follow_state(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        qp: QpHandle,
        to: QpState,
    ) {
        let Some(vf) = self.vfs.get_mut(&id) else {
            return;
        };
        let Some(queue) = vf.pulled.of_pair(qp) else {
            return;
        };
        let Some(state) = vf.pulled.queues.get_mut(&queue) else {
            return;
        };
        match (to, queue) {
            (QpState::Reset, QueueId::Own(_)) => state.close(),
            (QpState::Error, QueueId::Own(_)) => {
                state.phase = Phase::Failed;
                let most = MAX_FLUSHED.min(state.max_wr as usize);
                self.post_pulled(hca, id, queue, most);
            }
            (QpState::Reset, QueueId::Shared(_)) => self.recount(hca, id, queue),
            (QpState::Error, QueueId::Shared(_)) => {}
            (QpState::Init, QueueId::Own(_)) => {
                state.phase = Phase::Open;
                self.read_queue(hca, id, queue);
            }
            _ => {
                self.read_queue(hca, id, queue);
            }
        }
    }

    /// Takes note of completions that were polled, and reads the queues of theirs.
    pub(crate) fn note_polled(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        cq: CqHandle,
        polled: &[Completion],
    ) {
        let Some(vf) = self.vfs.get_mut(&id) else {
            return;
        };
        if vf.pulled.queues.is_empty() {
            return;
        }
        for completion in polled {
            let Some(vf) = self.vfs.get_mut(&id) else {
                return;
            };
            let suspect = vf.pulled.completed(cq, completion);
            let state = suspect.and_then(|qp| Some((qp, hca.query_qp(qp).ok()?.state)));
            if let Some((qp, QpState::Error)) = state {
                self.follow_state(hca, id, qp, QpState::Error);
            }
        }
        self.read_eager(hca, id, cq, polled.is_empty());
    }

    /// Reads the queues of which completions were polled from a completion queue. Its consumer gives buffers back until
    /// the queue `is_empty`.
    fn read_eager(&mut self, hca: &mut dyn Hca, id: FunctionId, cq: CqHandle, is_empty: bool) {
        let Some(vf) = self.vfs.get_mut(&id) else {
            return;
        };
        let Some(eager) = vf.pulled.eager.get_mut(&cq) else {
            return;
        };
        let mut queues = core::mem::take(eager);
        let mut left = TURN;
        for queue in &queues {
            left = left.saturating_sub(self.read_queue(hca, id, *queue));
            if left == 0 {
                break;
            }
        }
        let Some(vf) = self.vfs.get_mut(&id) else {
            return;
        };
        if is_empty {
            for queue in queues.drain(..) {
                if let Some(state) = vf.pulled.queues.get_mut(&queue) {
                    state.is_eager = false;
                }
            }
        }
        vf.pulled.eager.insert(cq, queues);
    }

    /// Returns `true` if an event says that a shared queue runs short, and its consumer has posted more than the adapter knew of.
    pub(crate) fn refills(&mut self, hca: &mut dyn Hca, id: FunctionId, event: AsyncEvent) -> bool {
        let AsyncEvent::SrqLimitReached(srq) = event else {
            return false;
        };
        let queue = QueueId::Shared(srq);
        let state = self.vfs.get_mut(&id);
        let Some(state) = state.and_then(|vf| vf.pulled.queues.get_mut(&queue)) else {
            return false;
        };
        // The adapter has room, though completions wait.
        state.posted = 0;
        let limit = state.limit;
        let has_more = self.read_queue(hca, id, queue) != 0;
        has_more && hca.modify_srq(srq, limit, None).is_ok()
    }

    /// Changes a shared queue of the adapter. Requests that the adapter does not know count.
    pub(crate) fn modify_shared(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        srq: SrqHandle,
        (limit, max_wr): (u32, Option<u32>),
    ) -> Result<(), HcaError> {
        let queue = QueueId::Shared(srq);
        self.read_queue(hca, id, queue);
        hca.modify_srq(srq, limit, max_wr)?;
        let vf = self.vfs.get_mut(&id);
        if let Some(state) = vf.and_then(|vf| vf.pulled.queues.get_mut(&queue)) {
            state.limit = limit;
            state.max_wr = max_wr.unwrap_or(state.max_wr);
            self.read_queue(hca, id, queue);
        }
        Ok(())
    }

    /// Forgets a queue pair, which is gone, and the queue if it is its own.
    pub(crate) fn forget_queue_of(&mut self, hca: &mut dyn Hca, id: FunctionId, qp: QpHandle) {
        let Some(vf) = self.vfs.get_mut(&id) else {
            return;
        };
        if let Some((number, queue)) = vf.pulled.by_pair.remove(&qp) {
            vf.pulled.by_number.remove(&number);
            match queue {
                QueueId::Own(_) => self.forget_queue(id, queue),
                QueueId::Shared(_) => self.recount(hca, id, queue),
            }
        }
    }

    /// Forgets a queue, which is gone.
    pub(crate) fn forget_queue(&mut self, id: FunctionId, queue: QueueId) {
        let Some(vf) = self.vfs.get_mut(&id) else {
            return;
        };
        if let Some(state) = vf.pulled.queues.remove(&queue) {
            if let Some(timer) = state.timer {
                self.readings.cancel(timer);
            }
            if state.is_eager {
                for line in vf.pulled.eager.values_mut() {
                    line.retain(|other| *other != queue);
                }
            }
        }
    }

    /// Forgets all queues of a function.
    pub(crate) fn forget_queues(&mut self, id: FunctionId) {
        let Some(vf) = self.vfs.get_mut(&id) else {
            return;
        };
        let pulled = core::mem::take(&mut vf.pulled);
        for timer in pulled.queues.into_values().filter_map(|queue| queue.timer) {
            self.readings.cancel(timer);
        }
    }
}
