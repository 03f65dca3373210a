//! Receives that virtual functions keep in memory which the adapter does not know.

use std::collections::BTreeMap;

use hca_api::{
    AddressSpace, Completion, CompletionOp, CompletionStatus, CqHandle, Hca, HcaError, LKey,
    PulledReceives, QpHandle, RecvRequest, Sge, SrqHandle,
};
use ib_vtime::{Duration, Instant, TimerKey};
use ib_wire::Qpn;

/// Requests and looks at queues of a function for each call. The rest waits for the next one.
pub(crate) const TURN: usize = 256;

/// A place that no region has: a message for it fails, as one for a list that cannot be read.
pub(crate) const NOWHERE: Sge = Sge {
    addr: u64::MAX,
    len: 0x7fff_ffff,
    lkey: LKey(0),
};

/// A queue of receives of the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueueId {
    /// A queue pair's own.
    Own(QpHandle),
    Shared(SrqHandle),
}

impl QueueId {
    pub(crate) fn post(self, hca: &mut dyn Hca, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        match self {
            Self::Own(qp) => hca.post_recv(qp, request),
            Self::Shared(srq) => hca.post_srq_recv(srq, request),
        }
    }
}

/// Times at which a queue that has room is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    gap: Duration,
    /// First look since the last activity.
    idle_since: Option<Instant>,
}

impl Pace {
    pub(crate) const FIRST: Duration = Duration::from_micros(20);
    const LONGEST: Duration = Duration::from_millis(5);
    /// The gap after [`Self::QUIET`] without activity.
    const IDLE: Duration = Duration::from_millis(20);
    const QUIET: Duration = Duration::from_secs(1);

    pub(crate) const fn new() -> Self {
        Self {
            gap: Self::FIRST,
            idle_since: None,
        }
    }

    /// Returns the time of the look after one at `now` that found nothing.
    pub(crate) fn next(&mut self, now: Instant) -> Instant {
        let since = *self.idle_since.get_or_insert(now);
        let gap = if now.saturating_duration_since(since) >= Self::QUIET {
            Self::IDLE
        } else {
            self.gap
        };
        self.gap = (self.gap * 2).min(Self::LONGEST);
        now + gap
    }
}

/// State of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its queue pair is in the reset state: nothing is posted.
    Closed,
    Open,
    /// Its queue pair is in the error state: requests complete as flushed, a bounded number each time that it is moved there.
    Failed,
}

/// A queue whose requests are in memory of the function.
#[derive(Debug)]
pub(crate) struct PulledQueue {
    pub(crate) source: Box<dyn PulledReceives>,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// Requests that the adapter has at least: the ones posted, less the ones that a polled completion ended.
    pub(crate) posted: u32,
    /// A request that was read, and that the adapter has no room for; its list is in `list`.
    pub(crate) held: Option<u64>,
    pub(crate) list: Vec<Sge>,
    pub(crate) phase: Phase,
    /// The limit of a shared queue.
    pub(crate) limit: u32,
    pub(crate) pace: Pace,
    pub(crate) timer: Option<TimerKey>,
    /// It is in line to be read when its completion queue is polled.
    pub(crate) is_eager: bool,
}

impl PulledQueue {
    pub(crate) fn new(source: Box<dyn PulledReceives>, max_wr: u32, max_sge: u32) -> Self {
        Self {
            source,
            max_wr,
            max_sge,
            posted: 0,
            held: None,
            list: Vec::new(),
            phase: Phase::Closed,
            limit: 0,
            pace: Pace::new(),
            timer: None,
            is_eager: false,
        }
    }

    /// Returns a shared queue, which takes receives from the first.
    pub(crate) fn shared(self, limit: u32) -> Self {
        Self {
            phase: Phase::Open,
            limit,
            ..self
        }
    }

    pub(crate) const fn is_hungry(&self) -> bool {
        matches!(self.phase, Phase::Open) && self.posted < self.max_wr
    }

    /// Reads the next request, unless one is held. Returns `false` if there is none.
    pub(crate) fn read(&mut self, memory: &dyn AddressSpace) -> bool {
        if self.held.is_none() {
            self.list.clear();
            self.held = self.source.pull(memory, &mut self.list);
            if self.list.len() > self.max_sge as usize {
                self.refuse();
            }
        }
        self.held.is_some()
    }

    /// Puts a list that fails in place of the one of the request that is held.
    pub(crate) fn refuse(&mut self) {
        self.list.clear();
        self.list.push(NOWHERE);
    }

    /// Forgets the requests that the adapter has.
    pub(crate) fn close(&mut self) {
        self.phase = Phase::Closed;
        self.posted = 0;
        self.held = None;
    }
}

/// The queues of a virtual function.
#[derive(Debug, Default)]
pub(crate) struct PulledQueues {
    pub(crate) queues: BTreeMap<QueueId, PulledQueue>,
    /// The queue from which a queue pair takes receives, by the number in its completions and by its handle.
    pub(crate) by_number: BTreeMap<Qpn, QueueId>,
    pub(crate) by_pair: BTreeMap<QpHandle, (Qpn, QueueId)>,
    /// Queues that are read when the completion queue is polled, because completions of theirs were polled.
    pub(crate) eager: BTreeMap<CqHandle, Vec<QueueId>>,
    /// The turn in which `spent` was counted.
    pub(crate) turn: u64,
    pub(crate) spent: usize,
}

impl PulledQueues {
    /// Adds a queue.
    pub(crate) fn insert(&mut self, id: QueueId, queue: PulledQueue) {
        self.queues.insert(id, queue);
    }

    /// Notes the queue of a queue pair, if it is one of these.
    pub(crate) fn insert_pair(&mut self, qp: QpHandle, number: Qpn, id: QueueId) {
        if self.queues.contains_key(&id) {
            self.by_number.insert(number, id);
            self.by_pair.insert(qp, (number, id));
        }
    }

    /// Refuses a request for a queue whose requests are read.
    pub(crate) fn check_posted(&self, id: QueueId) -> Result<(), HcaError> {
        if self.queues.contains_key(&id) {
            Err(HcaError::InvalidParameter)
        } else {
            Ok(())
        }
    }

    /// Returns the queue of a queue pair.
    pub(crate) fn of_pair(&self, qp: QpHandle) -> Option<QueueId> {
        self.by_pair.get(&qp).map(|(_, id)| *id)
    }

    /// Takes note of a completion that was polled. Returns the queue pair if it may have failed with it.
    pub(crate) fn completed(&mut self, cq: CqHandle, completion: &Completion) -> Option<QpHandle> {
        if !matches!(
            completion.op,
            CompletionOp::Recv | CompletionOp::RecvRdmaImm
        ) {
            return None;
        }
        let id = *self.by_number.get(&completion.qpn)?;
        let queue = self.queues.get_mut(&id)?;
        queue.posted = queue.posted.saturating_sub(1);
        queue.pace = Pace::new();
        if !core::mem::replace(&mut queue.is_eager, true) {
            self.eager.entry(cq).or_default().push(id);
        }
        match id {
            QueueId::Own(qp) if completion.status != CompletionStatus::Success => {
                (queue.phase == Phase::Open).then_some(qp)
            }
            _ => None,
        }
    }

    /// Returns the requests that the function may still cost in a turn.
    pub(crate) fn left(&mut self, turn: u64) -> usize {
        if core::mem::replace(&mut self.turn, turn) != turn {
            self.spent = 0;
        }
        TURN.saturating_sub(self.spent)
    }

    /// Forgets a completion queue.
    pub(crate) fn forget_cq(&mut self, cq: CqHandle) {
        for id in self.eager.remove(&cq).into_iter().flatten() {
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.is_eager = false;
            }
        }
    }
}
