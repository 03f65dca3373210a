//! A client of subnet administration (IBA chapter 15).
//!
//! It asks queries, and keeps **standing wishes**: multicast memberships, notice subscriptions and
//! service records, which the SA forgets when it restarts and which the client then asks for
//! again.
//!
//! | wish is | input | does |
//! | --- | --- | --- |
//! | without SA | an SA appears | asks |
//! | asked | granted | `Granted`; the SA's record is in the event |
//! | asked | refused, never granted before | `Refused`, and the wish is gone |
//! | asked | refused later, or no answer | `Refused` with the time of the next try (1, 2, 4 .. 60 s) |
//! | asked, granted or waiting | the SA moved, or wants re-registration | asks again |
//! | any | withdrawn | takes it back at the SA if the SA may know of it; `Withdrawn` |
//!
//! A query that is under way when the SA moves is asked again at the new place, under a new
//! transaction id; late answers of the old SA match nothing. Without an SA queries fail at once.
//!
//! The client sends through the port's [`MadAgent`], which every call borrows.

mod report;
mod request;
mod standing;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use ib_vtime::{Duration, Instant, TimerQueue};
use ib_wire::mad::{Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::NoticeReport;

pub use request::{SaAnswer, SaRequest};
pub use standing::{StandingId, Wish};

use crate::{
    AgentEvent, AgentId, MadAddress, MadAgent, Message, MethodSet, RegisterError, Registration,
    RequestId, RetryPolicy, SendError, TransferError,
};
use report::{RecentReports, notice_of};
use standing::{Standing, State};

/// Names a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(u64);

/// Why the SA did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaError {
    /// The port knows no SA.
    #[error("the port has no subnet manager")]
    NoSa,
    /// The SA answered with an error status.
    #[error("the SA refused: status {}", .0.of(MgmtClass::SUBN_ADM))]
    Status(MadStatus),
    /// No answer came.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The request could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaEvent {
    /// A query ended.
    Answered {
        /// Which.
        query: QueryId,
        /// The answer.
        result: Result<SaAnswer, SaError>,
    },
    /// A wish was granted, for the first time or once more. A group may have got another MLID.
    Granted {
        /// Which.
        standing: StandingId,
        /// The SA's record of it.
        answer: SaAnswer,
    },
    /// A wish was not granted.
    Refused {
        /// Which.
        standing: StandingId,
        /// Why.
        error: SaError,
        /// When it is asked for again; `None` if the client gave it up.
        retry_at: Option<Instant>,
    },
    /// A withdrawn wish is off the SA's books, as far as the SA said.
    Withdrawn {
        /// Which.
        standing: StandingId,
        /// What the SA said.
        result: Result<(), SaError>,
    },
    /// A notice that a subscription covers.
    Notice(NoticeReport),
}

/// Live objects of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaSizes {
    /// Queries and requests for wishes under way.
    pub queries: usize,
    /// Wishes.
    pub standing: usize,
    /// Timers.
    pub timers: usize,
    /// Events that wait to be pulled.
    pub events: usize,
}

/// What an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Query,
    Grant(StandingId),
    Withdrawal(StandingId),
}

#[derive(Debug)]
struct Query {
    request: SaRequest,
    policy: RetryPolicy,
    purpose: Purpose,
    sent_as: RequestId,
}

/// A client of the SA of one port. See the [module](self).
#[derive(Debug)]
pub struct SaClient {
    agent: AgentId,
    sa: Option<MadAddress>,
    queries: BTreeMap<QueryId, Query>,
    by_request: BTreeMap<RequestId, QueryId>,
    standing: BTreeMap<StandingId, Standing>,
    timers: TimerQueue<StandingId>,
    recent: RecentReports,
    events: VecDeque<SaEvent>,
    pending_notices: usize,
    dropped_reports: u64,
    next: u64,
}

impl SaClient {
    /// Ten transmissions half a second apart, unless a query says otherwise.
    pub const DEFAULT_POLICY: RetryPolicy = RetryPolicy::new(Duration::from_millis(500), 9);

    /// Notices that may wait to be pulled.
    const MAX_PENDING_NOTICES: usize = 1024;

    /// Registers a client with a port's agent.
    ///
    /// # Errors
    /// [`RegisterError::Conflict`] if somebody else takes the SA's reports.
    pub fn new(mads: &mut MadAgent) -> Result<Self, RegisterError> {
        let methods = MethodSet::of(&[Method::REPORT]);
        let registration =
            Registration::new(MgmtClass::SUBN_ADM, methods).with_class_port_info(None);
        Ok(Self {
            agent: mads.register(registration)?,
            sa: None,
            queries: BTreeMap::new(),
            by_request: BTreeMap::new(),
            standing: BTreeMap::new(),
            timers: TimerQueue::new(),
            recent: RecentReports::default(),
            events: VecDeque::new(),
            pending_notices: 0,
            dropped_reports: 0,
            next: 0,
        })
    }

    /// The client's registration.
    #[must_use]
    pub const fn agent(&self) -> AgentId {
        self.agent
    }

    /// Where the SA is.
    #[must_use]
    pub const fn sa(&self) -> Option<MadAddress> {
        self.sa
    }

    /// The SA is at this address, or nowhere. Whether that is news.
    pub fn sm_changed(
        &mut self,
        now: Instant,
        mads: &mut MadAgent,
        sa: Option<MadAddress>,
    ) -> bool {
        if self.sa == sa {
            return false;
        }
        self.sa = sa;
        let under_way: Vec<QueryId> = self.queries.keys().copied().collect();
        for id in under_way {
            self.ask_again(now, mads, id);
        }
        self.reregister(now, mads);
        true
    }

    /// The SA forgot everything: asks for all standing wishes again.
    pub fn reregister(&mut self, now: Instant, mads: &mut MadAgent) {
        let wishes: Vec<StandingId> = self.standing.keys().copied().collect();
        for id in wishes {
            self.settle(mads, id);
            self.ask_for(now, mads, id);
        }
    }

    /// Asks something, with the default policy.
    pub fn query(&mut self, now: Instant, mads: &mut MadAgent, request: SaRequest) -> QueryId {
        self.query_with(now, mads, request, Self::DEFAULT_POLICY)
    }

    /// Asks something. Its end is a [`SaEvent::Answered`], whatever happens.
    pub fn query_with(
        &mut self,
        now: Instant,
        mads: &mut MadAgent,
        request: SaRequest,
        policy: RetryPolicy,
    ) -> QueryId {
        self.start(now, mads, request, policy, Purpose::Query)
    }

    /// Gives a query up, without an event. `false` if it ended already.
    pub fn cancel(&mut self, mads: &mut MadAgent, id: QueryId) -> bool {
        let is_query = |query: &Query| query.purpose == Purpose::Query;
        if !self.queries.get(&id).is_some_and(is_query) {
            return false;
        }
        self.drop_query(mads, id);
        true
    }

    /// Makes a standing wish.
    pub fn wish(&mut self, now: Instant, mads: &mut MadAgent, wish: Wish) -> StandingId {
        let id = StandingId(self.fresh());
        self.standing.insert(id, Standing::new(wish));
        self.ask_for(now, mads, id);
        id
    }

    /// Ends a standing wish and takes it back at the SA. `false` if there is none.
    pub fn withdraw(&mut self, now: Instant, mads: &mut MadAgent, id: StandingId) -> bool {
        self.settle(mads, id);
        let Some(standing) = self.standing.remove(&id) else {
            return false;
        };
        if matches!(standing.state, State::NoSa) && !standing.was_granted {
            let result = Ok(());
            self.events.push_back(SaEvent::Withdrawn {
                standing: id,
                result,
            });
        } else {
            let request = standing.wish.withdrawal();
            self.start(
                now,
                mads,
                request,
                Self::DEFAULT_POLICY,
                Purpose::Withdrawal(id),
            );
        }
        true
    }

    /// Whether a standing wish is granted.
    #[must_use]
    pub fn is_granted(&self, id: StandingId) -> bool {
        let granted = |standing: &Standing| matches!(standing.state, State::Granted);
        self.standing.get(&id).is_some_and(granted)
    }

    /// Takes an event of the port's agent; gives it back if it is somebody else's.
    pub fn handle_event(
        &mut self,
        now: Instant,
        mads: &mut MadAgent,
        event: AgentEvent,
    ) -> Option<AgentEvent> {
        if event.agent() != self.agent {
            return Some(event);
        }
        match event {
            AgentEvent::Response {
                request, message, ..
            } => {
                let result = SaAnswer::from_response(message).map_err(SaError::Status);
                self.finish(now, request, result);
            }
            AgentEvent::RequestFailed {
                request, reason, ..
            } => self.finish(now, request, Err(SaError::Transfer(reason))),
            AgentEvent::Request { from, message, .. } => {
                self.handle_report(now, mads, from, message.mad());
            }
            AgentEvent::TransferEnded { .. } => {}
        }
        None
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<SaEvent> {
        let event = self.events.pop_front()?;
        if matches!(event, SaEvent::Notice(_)) {
            self.pending_notices -= 1;
        }
        Some(event)
    }

    /// When to call [`Self::handle_timeout`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Instant, mads: &mut MadAgent) {
        while let Some((_, id)) = self.timers.pop_due(now) {
            self.ask_for(now, mads, id);
        }
    }

    /// Reports dropped: of strangers, unreadable, of no subscription, or beyond those that may wait.
    #[must_use]
    pub const fn dropped_reports(&self) -> u64 {
        self.dropped_reports
    }

    /// What is live.
    #[must_use]
    pub fn sizes(&self) -> SaSizes {
        SaSizes {
            queries: self.queries.len(),
            standing: self.standing.len(),
            timers: self.timers.len(),
            events: self.events.len(),
        }
    }

    /// Gives the registration up. Nothing is taken back at the SA.
    pub fn close(self, mads: &mut MadAgent) {
        mads.unregister(self.agent);
    }

    const fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn start(
        &mut self,
        now: Instant,
        mads: &mut MadAgent,
        request: SaRequest,
        policy: RetryPolicy,
        purpose: Purpose,
    ) -> QueryId {
        let id = QueryId(self.fresh());
        match self.send(now, mads, &request, policy) {
            Ok(sent_as) => {
                self.by_request.insert(sent_as, id);
                let query = Query {
                    request,
                    policy,
                    purpose,
                    sent_as,
                };
                self.queries.insert(id, query);
            }
            Err(error) => self.conclude(now, id, purpose, Err(error)),
        }
        id
    }

    fn send(
        &self,
        now: Instant,
        mads: &mut MadAgent,
        request: &SaRequest,
        policy: RetryPolicy,
    ) -> Result<RequestId, SaError> {
        let sa = self.sa.ok_or(SaError::NoSa)?;
        let message = request.message.clone();
        Ok(mads.send_request(now, self.agent, sa, message, policy)?)
    }

    /// Asks a query that is under way once more, where the SA is now. Requests for wishes are not
    /// repeated here: [`Self::reregister`] makes new ones.
    fn ask_again(&mut self, now: Instant, mads: &mut MadAgent, id: QueryId) {
        let Some(query) = self.drop_query(mads, id) else {
            return;
        };
        if matches!(query.purpose, Purpose::Grant(_)) {
            return;
        }
        match self.send(now, mads, &query.request, query.policy) {
            Ok(sent_as) => {
                self.by_request.insert(sent_as, id);
                self.queries.insert(id, Query { sent_as, ..query });
            }
            Err(error) => self.conclude(now, id, query.purpose, Err(error)),
        }
    }

    fn drop_query(&mut self, mads: &mut MadAgent, id: QueryId) -> Option<Query> {
        let query = self.queries.remove(&id)?;
        self.by_request.remove(&query.sent_as);
        mads.cancel(query.sent_as);
        Some(query)
    }

    fn finish(&mut self, now: Instant, request: RequestId, result: Result<SaAnswer, SaError>) {
        // What was cancelled after its event was made ends here.
        let Some(id) = self.by_request.remove(&request) else {
            return;
        };
        if let Some(query) = self.queries.remove(&id) {
            self.conclude(now, id, query.purpose, result);
        }
    }

    fn conclude(
        &mut self,
        now: Instant,
        query: QueryId,
        purpose: Purpose,
        result: Result<SaAnswer, SaError>,
    ) {
        let event = match purpose {
            Purpose::Query => SaEvent::Answered { query, result },
            Purpose::Withdrawal(standing) => SaEvent::Withdrawn {
                standing,
                result: result.map(|_| ()),
            },
            Purpose::Grant(standing) => match result {
                Ok(answer) => {
                    if let Some(wish) = self.standing.get_mut(&standing) {
                        wish.grant();
                    }
                    SaEvent::Granted { standing, answer }
                }
                Err(error) => self.not_granted(now, standing, error),
            },
        };
        self.events.push_back(event);
    }

    fn not_granted(&mut self, now: Instant, id: StandingId, error: SaError) -> SaEvent {
        let mut retry_at = None;
        if let Some(wish) = self.standing.get_mut(&id) {
            if matches!(error, SaError::Status(_)) && !wish.was_granted {
                self.standing.remove(&id);
            } else {
                let at = now + wish.next_back_off();
                wish.state = State::BackingOff(self.timers.set(at, id));
                retry_at = Some(at);
            }
        }
        SaEvent::Refused {
            standing: id,
            error,
            retry_at,
        }
    }

    fn ask_for(&mut self, now: Instant, mads: &mut MadAgent, id: StandingId) {
        let Some(standing) = self.standing.get_mut(&id) else {
            return;
        };
        standing.state = State::NoSa;
        if self.sa.is_none() {
            return;
        }
        let request = standing.wish.request();
        let query = self.start(now, mads, request, Self::DEFAULT_POLICY, Purpose::Grant(id));
        if self.queries.contains_key(&query)
            && let Some(standing) = self.standing.get_mut(&id)
        {
            standing.state = State::Asking(query);
        }
    }

    /// Ends what is under way for a wish.
    fn settle(&mut self, mads: &mut MadAgent, id: StandingId) {
        match self.standing.get(&id).map(|standing| &standing.state) {
            Some(State::Asking(query)) => {
                let query = *query;
                self.drop_query(mads, query);
            }
            Some(State::BackingOff(timer)) => {
                self.timers.cancel(*timer);
            }
            _ => {}
        }
    }

    fn handle_report(&mut self, now: Instant, mads: &mut MadAgent, from: MadAddress, mad: &Mad) {
        let of_the_sa = self.sa.is_some_and(|sa| sa.is_answered_by(&from));
        let (true, Some(report)) = (of_the_sa, notice_of(mad)) else {
            self.dropped_reports += 1;
            return;
        };
        let mut response = *mad;
        response.header.method = Method::REPORT_RESP;
        response.header.status = MadStatus::OK;
        // If this cannot be sent the SA repeats its report.
        let _ = mads.respond(now, self.agent, from, Message::single(response));

        let is_covered = self.standing.values().any(|standing| match &standing.wish {
            Wish::Subscription(inform) => inform.covers(&report),
            _ => false,
        });
        let is_new = self.recent.note(from.peer(), mad.header.tid);
        if is_covered && is_new && self.pending_notices < Self::MAX_PENDING_NOTICES {
            self.pending_notices += 1;
            self.events.push_back(SaEvent::Notice(report));
        } else {
            self.dropped_reports += 1;
        }
    }
}

#[cfg(test)]
mod tests;
