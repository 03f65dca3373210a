//! The manager's way to QP0: a window of requests over the MAD agent.

use std::collections::{BTreeMap, VecDeque};

use ib_endpoint::{
    AgentEvent, AgentId, MadAddress, MadAgent, MadAgentConfig, Message, MethodSet, RegisterError,
    Registration, RequestId, RetryPolicy, SendError, Transmit,
};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{Mad, Method, MgmtClass};

/// Pace and patience of a manager's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmpLimits {
    /// Requests that may wait for their answer at the same time. QP0 has no flow control: a
    /// larger window sweeps faster and overruns receive buffers sooner.
    pub outstanding: usize,
    /// How long an answer may take, and how often an unanswered request is sent again.
    pub retry: RetryPolicy,
}

impl Default for SmpLimits {
    /// OpenSM's timeout of 200 ms and 3 retries; a window of 32, where OpenSM has 4.
    fn default() -> Self {
        Self {
            outstanding: 32,
            retry: RetryPolicy::new(Duration::from_millis(200), 3),
        }
    }
}

/// What came of a request, or came in.
#[derive(Debug)]
pub(super) enum QueueEvent<C> {
    /// An answer, whatever its status.
    Answered(C, Mad),
    /// No answer after all retries.
    Failed(C),
    /// Somebody asks or tells something.
    Request(MadAddress, Mad),
}

/// Sends SMPs within a window and pairs answers with requests; `C` is what the owner wants to know
/// again when the answer or the failure comes.
#[derive(Debug)]
pub(super) struct SmpQueue<C> {
    limits: SmpLimits,
    agent: MadAgent,
    lid_routed: AgentId,
    directed: AgentId,
    waiting: VecDeque<(Mad, C)>,
    outstanding: BTreeMap<RequestId, C>,
}

impl<C> SmpQueue<C> {
    /// An empty queue; `seed` is that of the transaction ids.
    pub(super) fn new(limits: SmpLimits, seed: u64) -> Self {
        let mut agent = MadAgent::new(MadAgentConfig::smi(seed));
        match Self::register(&mut agent) {
            Ok((lid_routed, directed)) => Self {
                limits,
                agent,
                lid_routed,
                directed,
                waiting: VecDeque::new(),
                outstanding: BTreeMap::new(),
            },
            Err(_) => unreachable!("an agent of QP0 without registrations takes these"),
        }
    }

    fn register(agent: &mut MadAgent) -> Result<(AgentId, AgentId), RegisterError> {
        let lid_routed = MethodSet::of(&[Method::GET, Method::SET, Method::TRAP]);
        let directed = MethodSet::of(&[Method::GET, Method::SET]);
        Ok((
            agent.register(Registration::new(MgmtClass::SUBN_LID_ROUTED, lid_routed))?,
            agent.register(Registration::new(MgmtClass::SUBN_DIRECTED_ROUTE, directed))?,
        ))
    }

    /// Queues a directed-route request.
    pub(super) fn push(&mut self, request: Mad, context: C) {
        self.waiting.push_back((request, context));
    }

    /// Drops all requests, sent or not. Late answers find no request and are ignored.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        for request in core::mem::take(&mut self.outstanding).into_keys() {
            self.agent.cancel(request);
        }
    }

    /// Returns the contexts of the requests that wait to be sent or answered.
    pub(super) fn contexts(&self) -> impl Iterator<Item = &C> {
        let waiting = self.waiting.iter().map(|(_, context)| context);
        self.outstanding.values().chain(waiting)
    }

    /// Whether no request waits to be sent or answered.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.outstanding.is_empty()
    }

    /// Sends a MAD that is not a request with an answer: a reply, a trap.
    pub(super) fn send(&mut self, to: MadAddress, mad: Mad) -> Result<(), SendError> {
        let directed = mad.header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE;
        let agent = if directed {
            self.directed
        } else {
            self.lid_routed
        };
        self.agent.send(agent, to, mad)
    }

    /// The agent, for registrations that are apart.
    pub(super) const fn agent(&mut self) -> &mut MadAgent {
        &mut self.agent
    }

    /// Takes a MAD that arrived.
    pub(super) fn handle_mad(&mut self, now: Instant, from: &MadAddress, mad: &Mad) {
        self.agent.handle_mad(now, from, mad);
    }

    /// The next event.
    pub(super) fn poll_event(&mut self) -> Option<QueueEvent<C>> {
        loop {
            match self.agent.poll_event()? {
                AgentEvent::Response {
                    request, message, ..
                } => {
                    if let Some(context) = self.outstanding.remove(&request) {
                        return Some(QueueEvent::Answered(context, *message.mad()));
                    }
                }
                AgentEvent::RequestFailed { request, .. } => {
                    if let Some(context) = self.outstanding.remove(&request) {
                        return Some(QueueEvent::Failed(context));
                    }
                }
                AgentEvent::Request { from, message, .. } => {
                    return Some(QueueEvent::Request(from, *message.mad()));
                }
                AgentEvent::TransferEnded { .. } => {}
            }
        }
    }

    /// The next SMP to send at `now`. Call until it gives `None`.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        while self.outstanding.len() < self.limits.outstanding.max(1) {
            let Some((request, context)) = self.waiting.pop_front() else {
                break;
            };
            let to = MadAddress::directed();
            let message = Message::single(request);
            let policy = self.limits.retry;
            match self
                .agent
                .send_request(now, self.directed, to, message, policy)
            {
                Ok(id) => {
                    self.outstanding.insert(id, context);
                }
                Err(_) => {
                    self.waiting.push_front((request, context));
                    break;
                }
            }
        }
        self.agent.poll_transmit(now)
    }

    /// Whether something can be sent now.
    pub(super) fn has_transmit(&self) -> bool {
        let room = self.outstanding.len() < self.limits.outstanding.max(1);
        (room && !self.waiting.is_empty()) || self.agent.has_transmit()
    }

    /// When [`Self::handle_timeout`] wants to be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.agent.poll_timeout()
    }

    /// Repeats or gives up requests without answer.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.agent.handle_timeout(now);
    }

    /// Counters of the agent.
    pub(super) fn counters(&self) -> &ib_endpoint::MadCounters {
        self.agent.counters()
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::mad::{AttributeId, MadHeader};
    use ib_wire::smp::DirectedRouteSmp;

    use super::*;

    fn request(attribute: u16) -> Mad {
        let id = AttributeId::new(attribute);
        let mut mad = Mad::new(MadHeader::new(
            MgmtClass::SUBN_DIRECTED_ROUTE,
            Method::GET,
            id,
        ));
        mad.view_mut::<DirectedRouteSmp>().set_path(&[]);
        mad
    }

    fn queue(outstanding: usize, retries: u8) -> SmpQueue<u8> {
        let retry = RetryPolicy::new(Duration::from_millis(100), retries);
        SmpQueue::new(SmpLimits { outstanding, retry }, 7)
    }

    fn answer(queue: &mut SmpQueue<u8>, sent: &Transmit) -> Option<u8> {
        let mad = ib_endpoint::smi::answer(&sent.mad);
        queue.handle_mad(Instant::ZERO, &sent.to, &mad);
        match queue.poll_event()? {
            QueueEvent::Answered(context, _) => Some(context),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_window_limits_what_is_in_flight() {
        let mut q = queue(2, 0);
        for context in 0..3 {
            q.push(request(0x11), context);
        }
        let now = Instant::ZERO;
        let first = q.poll_transmit(now).unwrap();
        let second = q.poll_transmit(now).unwrap();
        assert_ne!(first.mad.header.tid, second.mad.header.tid);
        assert!(q.poll_transmit(now).is_none());
        assert_eq!(answer(&mut q, &second), Some(1));
        assert_eq!(answer(&mut q, &second), None, "an answer counts once");
        assert!(q.poll_transmit(now).is_some());
    }

    #[test]
    fn an_unanswered_request_is_repeated_and_then_fails() {
        let mut q = queue(1, 1);
        q.push(request(0x11), 9);
        let sent = q.poll_transmit(Instant::ZERO).unwrap();
        q.handle_timeout(Instant::from_millis(100));
        assert_eq!(q.poll_transmit(Instant::from_millis(100)), Some(sent));
        q.handle_timeout(Instant::from_millis(200));
        assert!(matches!(q.poll_event(), Some(QueueEvent::Failed(9))));
        assert!(q.is_idle());
    }

    #[test]
    fn cleared_requests_are_forgotten() {
        let mut q = queue(1, 1);
        q.push(request(0x11), 1);
        q.push(request(0x11), 2);
        let sent = q.poll_transmit(Instant::ZERO).unwrap();
        q.clear();
        assert!(q.is_idle());
        assert_eq!(answer(&mut q, &sent), None);
        assert_eq!(q.poll_transmit(Instant::from_millis(500)), None);
    }
}
