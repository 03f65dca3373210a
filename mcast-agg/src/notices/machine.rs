//! The machine: subscriptions and reports in, answers, copies and SA transactions out.

mod outcome;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ib_vtime::Instant;
use ib_wire::SmKey;
use ib_wire::mad::{AttributeId, MadStatus, Method};
use ib_wire::notice::{InformInfo, NoticeReport};
use ib_wire::sa::SaMad;
use vf_tunnel::DropReason;

use super::report::{Deliveries, RecentReports, notice_of};
use super::subject::Subject;
use super::subscription::{NoticeAim, Purpose, Subscription, SubscriptionView};
use super::{Config, Output, Sizes};
use crate::answer::echo;
use crate::exchange::{Exchange, Step};
use crate::transaction::{Token, Transaction, Waiting};
use crate::usage::{MemberUse, Usage};
use crate::{MemberId, Outcome, Requester};

/// The notice subscriptions of one port.
#[derive(Clone, Debug)]
pub struct NoticeAgg {
    config: Config,
    subscriptions: BTreeMap<Subject, Subscription>,
    usage: Usage,
    exchange: Exchange<NoticeAim>,
    recent: RecentReports,
    deliveries: Deliveries,
    outputs: VecDeque<Output>,
}

impl NoticeAgg {
    /// A port without subscriptions.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            subscriptions: BTreeMap::new(),
            usage: Usage::default(),
            exchange: Exchange::new(config.max_in_flight),
            recent: RecentReports::default(),
            deliveries: Deliveries::new(config.max_deliveries),
            outputs: VecDeque::new(),
        }
    }

    /// Takes a Set(InformInfo) of a member, with or without GRH. On [`Outcome::Answered`] `mad` has
    /// become the answer. The member's P_Keys count when reports come, not here.
    pub fn request(&mut self, now: Instant, from: &Requester<'_>, mad: &mut SaMad) -> Outcome {
        let header = &mad.header;
        if header.method != Method::SET || header.attribute_id != AttributeId::INFORM_INFO {
            return Outcome::Pass;
        }
        let info = mad.record::<InformInfo>();
        let subject = Subject::of(&info);
        match info.subscribe {
            0 => self.unsubscribe(now, from.id, subject, mad),
            1 => return self.subscribe(now, from, subject, mad),
            _ => answer(mad, MadStatus::SA_REQ_INVALID),
        }
        Outcome::Answered
    }

    /// Takes a Report of the SA, and gives the answer to send back to it; `None` if the MAD is no
    /// Report(Notice). The caller has made sure that it comes from the SA, and says of each member
    /// that subscribed whether its partitions let it hear of the event.
    ///
    /// A report that nobody subscribed to is delivered to the PF.
    pub fn report(
        &mut self,
        now: Instant,
        report: &SaMad,
        may_hear: impl Fn(MemberId) -> bool,
    ) -> Option<SaMad> {
        let notice = notice_of(report)?;
        let covers = |(subject, _): &(&Subject, &Subscription)| subject.covers(&notice);
        let matching = self.subscriptions.iter().filter(covers);
        let copies = matching.filter(|(_, s)| s.is_settled()).count();
        if self.recent.note(now, report.header.tid, &notice, copies) {
            self.deliver(now, report, &notice, may_hear);
        }
        let mut answer = *report;
        answer.header.method = Method::REPORT_RESP;
        Some(answer)
    }

    /// Takes a member's ReportResp. The SA has its answer already, so the member's ends here.
    pub fn report_response(&mut self, member: MemberId, response: &SaMad) -> Outcome {
        let header = &response.header;
        if header.method != Method::REPORT_RESP {
            return Outcome::Pass;
        }
        if self.deliveries.end(member, header.tid) {
            Outcome::Absorbed
        } else {
            Outcome::Dropped(DropReason::UnknownTid)
        }
    }

    /// Takes the SA's answer to a transaction. The caller has made sure that it comes from the SA and
    /// answers a transmission of this token. Gives whether a transaction took it.
    pub fn handle_response(&mut self, now: Instant, token: Token, answer: &SaMad) -> bool {
        let status = answer.header.status;
        let granted = status == MadStatus::OK;
        if let Some(aim) = self.exchange.take_given_up(token) {
            if granted {
                self.take_back(now, aim.subject);
            }
            return true;
        }
        let Some(&Transaction { aim, .. }) = self.exchange.sent(token) else {
            return false;
        };
        if granted && Subject::of(&answer.record()) != aim.subject {
            return false;
        }
        let Some(transaction) = self.end(token) else {
            return false;
        };
        self.ended(now, token, transaction, status);
        self.advance(aim.subject);
        self.pump(now);
        true
    }

    /// The SM asks for re-registration, or another SM has taken over: the port subscribes again to
    /// whatever its members hold, and what was under way is asked anew.
    pub fn client_reregister(&mut self, now: Instant) {
        for subscription in self.subscriptions.values_mut() {
            // A renewal that is under way is asked again anyhow.
            let under_way = subscription.in_flight.and_then(|t| self.exchange.get(t));
            if !under_way.is_some_and(|t| matches!(t.aim.purpose, Purpose::Renew)) {
                subscription.forgotten();
            }
        }
        self.exchange.ask_again();
        self.recent.clear();
        for subject in self.subjects() {
            self.advance(subject);
        }
        self.pump(now);
    }

    /// The SM's address changed without anything being forgotten: what was under way is asked anew.
    pub fn sm_changed(&mut self, now: Instant) {
        self.exchange.ask_again();
        self.recent.clear();
        self.pump(now);
    }

    /// A member is gone: its requests vanish and what only it held is given up.
    pub fn reset(&mut self, now: Instant, member: MemberId) {
        self.exchange.forget_member(member);
        self.deliveries.forget_member(member);
        for subject in self.subjects() {
            if let Some(subscription) = self.subscriptions.get_mut(&subject) {
                subscription
                    .waiting
                    .retain(|waiting| waiting.member != member);
                subscription.holders.remove(&member);
                self.advance(subject);
            }
        }
        self.usage.clear(member);
        self.pump(now);
    }

    /// Fires what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.recent.expire(now);
        self.deliveries.expire(now);
        self.exchange.fire(now);
        self.pump(now);
    }

    /// When [`NoticeAgg::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = [
            self.exchange.next_deadline(),
            self.recent.next_deadline(),
            self.deliveries.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Takes the oldest output. Poll after every other call.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The port's subscriptions.
    pub fn subscriptions(&self) -> impl Iterator<Item = SubscriptionView<'_>> {
        self.subscriptions
            .iter()
            .map(|(subject, subscription)| SubscriptionView {
                subject,
                subscription,
                transaction: subscription.in_flight.and_then(|t| self.exchange.get(t)),
            })
    }

    /// What a member takes of the machine.
    #[must_use]
    pub fn usage(&self, member: MemberId) -> MemberUse {
        self.usage.get(member)
    }

    /// Limits and policy.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Live objects.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let queued = self.subscriptions.values().map(|s| s.waiting.len());
        Sizes {
            subscriptions: self.subscriptions.len(),
            held: self.subscriptions.values().map(|s| s.holders.len()).sum(),
            waiting: queued.sum::<usize>() + self.exchange.waiting().count(),
            transactions: self.exchange.len(),
            timers: self.exchange.timers(),
            reports: self.recent.len(),
            deliveries: self.deliveries.len(),
        }
    }

    fn subscribe(
        &mut self,
        now: Instant,
        from: &Requester<'_>,
        subject: Subject,
        mad: &mut SaMad,
    ) -> Outcome {
        let known = self.subscriptions.get(&subject);
        if known.is_some_and(|subscription| subscription.at_sa) {
            let status = self.admit(from.id, subject);
            answer(mad, status);
            return Outcome::Answered;
        }
        let waiting = self.usage.waiting(from.id);
        if waiting > 0 && self.awaits(from.id, subject, mad) {
            return Outcome::Absorbed;
        }
        if waiting >= self.config.waiting_of(from.id) {
            return Outcome::Dropped(DropReason::GroupBusy);
        }
        if self.usage.claims(from.id) >= self.config.subscriptions_of(from.id) {
            answer(mad, MadStatus::SA_NO_RESOURCES);
            return Outcome::Answered;
        }
        self.usage.wait(from.id);
        let subscription = self.subscriptions.entry(subject).or_default();
        subscription.waiting.push_back(Waiting::new(from, mad));
        self.advance(subject);
        self.pump(now);
        Outcome::Absorbed
    }

    fn unsubscribe(&mut self, now: Instant, member: MemberId, subject: Subject, mad: &mut SaMad) {
        let known = self.subscriptions.get_mut(&subject);
        if !known.is_some_and(|subscription| subscription.holders.remove(&member)) {
            return answer(mad, MadStatus::SA_REQ_INVALID);
        }
        self.usage.release(member);
        answer(mad, MadStatus::OK);
        self.advance(subject);
        self.pump(now);
    }

    /// Whether the very same request waits already: the member has only sent it again.
    fn awaits(&self, member: MemberId, subject: Subject, mad: &SaMad) -> bool {
        self.subscriptions.get(&subject).is_some_and(|s| {
            let under_way = s.in_flight.and_then(|token| self.exchange.get(token));
            let served = under_way.and_then(|transaction| transaction.waiting.as_ref());
            let mut waiting = s.waiting.iter().chain(served);
            waiting.any(|waiting| waiting.is_retransmitted_by(member, mad))
        })
    }

    /// Makes a member a holder of what the port holds, and gives the status to answer.
    fn admit(&mut self, member: MemberId, subject: Subject) -> MadStatus {
        let Some(subscription) = self.subscriptions.get_mut(&subject) else {
            return MadStatus::SA_REQ_INVALID;
        };
        if !subscription.holders.contains(&member) {
            if self.usage.held(member) >= self.config.subscriptions_of(member) {
                return MadStatus::SA_NO_RESOURCES;
            }
            self.usage.hold(member);
            subscription.holders.insert(member);
        }
        MadStatus::OK
    }

    /// Gives the PF, or all that asked for it and may hear it, a copy each.
    fn deliver(
        &mut self,
        now: Instant,
        report: &SaMad,
        notice: &NoticeReport,
        may_hear: impl Fn(MemberId) -> bool,
    ) {
        let matching = self.subscriptions.iter();
        let matching = matching.filter(|(subject, _)| subject.covers(notice));
        let mut to: BTreeSet<MemberId> = matching.flat_map(|(_, s)| &s.holders).copied().collect();
        if to.is_empty() {
            to.insert(MemberId::PF);
        } else {
            to.retain(|&member| may_hear(member));
        }
        for member in to {
            let mut report = *report;
            report.header.tid = self.deliveries.begin(now, member);
            report.sm_key = SmKey::new(0);
            self.outputs.push_back(Output::Deliver { member, report });
        }
    }

    /// Starts whatever the subscription needs next, if nothing is under way.
    fn advance(&mut self, subject: Subject) {
        self.drop_obsolete(subject);
        while let Some(subscription) = self.subscriptions.get_mut(&subject) {
            if subscription.in_flight.is_some() {
                return;
            }
            if subscription.take_renewal() {
                return self.begin(Purpose::Renew, subject, None);
            }
            if let Some(waiting) = subscription.waiting.pop_front() {
                if !subscription.at_sa {
                    return self.begin(Purpose::Subscribe, subject, Some(waiting));
                }
                let status = self.admit(waiting.member, subject);
                self.answer(&waiting, status);
            } else if subscription.take_surplus() {
                return self.begin(Purpose::Unsubscribe, subject, None);
            } else {
                // Nobody waits, and the SA is not to be told any more.
                if subscription.holders.is_empty() {
                    self.subscriptions.remove(&subject);
                }
                return;
            }
        }
    }

    /// An unsubscription that the SA has not granted at once must not block those who subscribe, and
    /// a renewal that nobody needs any more must not go on.
    fn drop_obsolete(&mut self, subject: Subject) {
        let Some(subscription) = self.subscriptions.get(&subject) else {
            return;
        };
        let Some(token) = subscription.in_flight else {
            return;
        };
        let wanted_by_none = subscription.holders.is_empty();
        let waited_for = !subscription.waiting.is_empty();
        let obsolete = |transaction: &Transaction<NoticeAim>| match transaction.aim.purpose {
            Purpose::Renew => wanted_by_none,
            _ => waited_for && transaction.is_slow_release(),
        };
        if self.exchange.get(token).is_some_and(obsolete) {
            self.end(token);
            self.doubt(subject);
        }
    }

    fn doubt(&mut self, subject: Subject) {
        if let Some(subscription) = self.subscriptions.get_mut(&subject) {
            subscription.doubt();
        }
    }

    fn begin(&mut self, purpose: Purpose, subject: Subject, waiting: Option<Waiting>) {
        let request = subject.request(!matches!(purpose, Purpose::Unsubscribe));
        let aim = NoticeAim { purpose, subject };
        let token = self.exchange.begin(aim, waiting, request);
        self.set_in_flight(subject, Some(token));
    }

    fn end(&mut self, token: Token) -> Option<Transaction<NoticeAim>> {
        let transaction = self.exchange.end(token)?;
        self.set_in_flight(transaction.aim.subject, None);
        Some(transaction)
    }

    fn set_in_flight(&mut self, subject: Subject, token: Option<Token>) {
        if let Some(subscription) = self.subscriptions.get_mut(&subject) {
            subscription.in_flight = token;
        }
    }

    /// Sends what may be sent, and ends what the SA will not answer.
    fn pump(&mut self, now: Instant) {
        while let Some(step) = self.exchange.next(now) {
            match step {
                Step::Send(token) => self.send(token),
                Step::GaveUp(transaction) => self.gave_up(*transaction),
            }
        }
    }

    fn send(&mut self, token: Token) {
        let Some(&Transaction { aim, .. }) = self.exchange.get(token) else {
            return;
        };
        // It may be one that somebody has come to wait for the end of.
        self.drop_obsolete(aim.subject);
        if let Some(&Transaction { request, .. }) = self.exchange.get(token) {
            self.outputs.push_back(Output::SaRequest { token, request });
        } else {
            self.advance(aim.subject);
        }
    }

    fn answer(&mut self, waiting: &Waiting, status: MadStatus) {
        self.usage.stop_waiting(waiting.member);
        let mut bytes = waiting.request;
        answer(&mut bytes, status);
        self.outputs.push_back(Output::Answer {
            member: waiting.member,
            pkey_index: waiting.pkey_index,
            answer: bytes,
        });
    }

    fn subjects(&self) -> Vec<Subject> {
        self.subscriptions.keys().copied().collect()
    }
}

/// Turns a request into its answer, which is the subscription as it was asked for, whatever the
/// status (as OpenSM does).
fn answer(mad: &mut SaMad, status: MadStatus) {
    let mut info = mad.record::<InformInfo>();
    if status != MadStatus::OK {
        // Who is refused is not subscribed (IBA o13-13.1.1).
        info.subscribe = 0;
    }
    echo::<InformInfo>(mad, status);
    mad.set_record(&info);
}
