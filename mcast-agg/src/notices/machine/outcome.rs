//! What the SA's answers, and its silence, do to the subscriptions.

use ib_vtime::Instant;
use ib_wire::mad::MadStatus;

use super::NoticeAgg;
use crate::notices::Output;
use crate::notices::subject::Subject;
use crate::notices::subscription::{NoticeAim, Purpose};
use crate::transaction::{Token, Transaction, Waiting};

impl NoticeAgg {
    /// The SA has answered.
    pub(super) fn ended(
        &mut self,
        now: Instant,
        token: Token,
        transaction: Transaction<NoticeAim>,
        status: MadStatus,
    ) {
        let NoticeAim { purpose, subject } = transaction.aim;
        match purpose {
            Purpose::Subscribe if status == MadStatus::OK => {
                self.subscribed(subject, transaction.waiting);
            }
            Purpose::Subscribe => {
                if transaction.repeated {
                    self.doubt(subject);
                }
                self.fail(subject, transaction.waiting, Some(status));
            }
            Purpose::Renew if status == MadStatus::OK => {}
            Purpose::Renew if is_transient(status) => self.retry(now, token, transaction),
            Purpose::Renew => self.lose(subject),
            Purpose::Unsubscribe => {
                // Invalid is an end of what the port does not hold, which is what was wanted.
                if status != MadStatus::OK && status != MadStatus::SA_REQ_INVALID {
                    self.retry(now, token, transaction);
                }
            }
        }
    }

    fn subscribed(&mut self, subject: Subject, served: Option<Waiting>) {
        if let Some(subscription) = self.subscriptions.get_mut(&subject) {
            subscription.granted();
        }
        if let Some(waiting) = served {
            let status = self.admit(waiting.member, subject);
            self.answer(&waiting, status);
        }
    }

    /// Nothing came of a subscription: all who wait for it asked for the same.
    fn fail(&mut self, subject: Subject, served: Option<Waiting>, status: Option<MadStatus>) {
        let subscription = self.subscriptions.get_mut(&subject);
        let waiting = subscription.map(|s| std::mem::take(&mut s.waiting));
        for waiting in served.into_iter().chain(waiting.into_iter().flatten()) {
            match status {
                Some(status) => self.answer(&waiting, status),
                None => self.usage.stop_waiting(waiting.member),
            }
        }
    }

    /// The SA refused what must be done nevertheless.
    fn retry(&mut self, now: Instant, token: Token, transaction: Transaction<NoticeAim>) {
        if let Some(wait) = transaction.next_wait() {
            self.set_in_flight(transaction.aim.subject, Some(token));
            self.exchange.retry(now + wait, token, transaction);
        }
    }

    /// The SA does not take the subscription back: nobody holds it any more. One that forgot nothing
    /// may hold it still.
    fn lose(&mut self, subject: Subject) {
        let Some(subscription) = self.subscriptions.get_mut(&subject) else {
            return;
        };
        subscription.at_sa = false;
        subscription.doubt();
        let members = std::mem::take(&mut subscription.holders);
        for &member in &members {
            self.usage.release(member);
        }
        self.outputs.push_back(Output::Lost {
            subscription: subject.inform_info(true),
            members: members.into_iter().collect(),
        });
    }

    /// An answer came after all to a subscription that was given up: it is ended, unless others want
    /// it by now.
    pub(super) fn take_back(&mut self, now: Instant, subject: Subject) {
        self.subscriptions.entry(subject).or_default().doubt();
        self.advance(subject);
        self.pump(now);
    }

    /// The SA does not answer.
    pub(super) fn gave_up(&mut self, transaction: Transaction<NoticeAim>) {
        let NoticeAim { purpose, subject } = transaction.aim;
        self.set_in_flight(subject, None);
        if matches!(purpose, Purpose::Subscribe) {
            self.doubt(subject);
            self.fail(subject, transaction.waiting, self.config.give_up_status);
        }
        self.advance(subject);
    }
}

/// Whether the SA may grant later what it refuses now.
fn is_transient(status: MadStatus) -> bool {
    status == MadStatus::BUSY || status == MadStatus::SA_NO_RESOURCES
}
