//! One subscription of the port.

use std::collections::{BTreeSet, VecDeque};

use ib_wire::notice::InformInfo;

use super::subject::Subject;
use crate::MemberId;
use crate::transaction::{Aim, Patience, Token, Transaction, UnderWay, Waiting};

/// Why the SA is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// For members that subscribe.
    Subscribe,
    /// To have at a new SA what the port had.
    Renew,
    /// To give up what nobody holds any more.
    Unsubscribe,
}

/// A change of one of the port's subscriptions.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoticeAim {
    pub(super) purpose: Purpose,
    pub(super) subject: Subject,
}

impl Aim for NoticeAim {
    fn name(&self) -> &'static str {
        match self.purpose {
            Purpose::Subscribe => "subscribe",
            Purpose::Renew => "renew",
            Purpose::Unsubscribe => "unsubscribe",
        }
    }

    fn patience(&self) -> Patience {
        match self.purpose {
            Purpose::Subscribe => Patience::Gain,
            Purpose::Renew => Patience::Regain,
            Purpose::Unsubscribe => Patience::Release,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Subscription {
    /// The port holds it at the SA, or will again when a due renewal is done. Without it nobody is a
    /// holder; without a holder it is given up at once.
    pub(super) at_sa: bool,
    /// The port may hold it: an answer never came, or nobody waited for it.
    pub(super) doubtful: bool,
    pub(super) holders: BTreeSet<MemberId>,
    /// Requests that the SA must be asked about.
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) in_flight: Option<Token>,
    /// The SA may have forgotten it.
    pub(super) renewal_due: bool,
}

impl Subscription {
    pub(super) const fn granted(&mut self) {
        self.at_sa = true;
        self.doubtful = false;
    }

    /// What the SA did is unknown.
    pub(super) const fn doubt(&mut self) {
        self.doubtful = !self.at_sa;
    }

    /// The SA may have forgotten it.
    pub(super) const fn forgotten(&mut self) {
        self.renewal_due = self.at_sa;
    }

    /// Whether a renewal is to begin now.
    pub(super) const fn take_renewal(&mut self) -> bool {
        std::mem::replace(&mut self.renewal_due, false)
    }

    /// Whether the SA is to be told now that nobody wants it.
    pub(super) fn take_surplus(&mut self) -> bool {
        let surplus = self.may_be_at_sa() && self.holders.is_empty();
        if surplus {
            self.at_sa = false;
            self.doubtful = false;
        }
        surplus
    }

    /// Whether the SA is sure to send reports for it.
    pub(super) const fn is_settled(&self) -> bool {
        self.at_sa && self.in_flight.is_none()
    }

    const fn may_be_at_sa(&self) -> bool {
        self.at_sa || self.doubtful
    }
}

/// A subscription as an administrator sees it.
#[derive(Clone, Copy, Debug)]
pub struct SubscriptionView<'a> {
    pub(super) subject: &'a Subject,
    pub(super) subscription: &'a Subscription,
    pub(super) transaction: Option<&'a Transaction<NoticeAim>>,
}

impl<'a> SubscriptionView<'a> {
    /// The subscription as the port makes it.
    #[must_use]
    pub fn inform_info(&self) -> InformInfo {
        self.subject.inform_info(true)
    }

    /// Whether the port holds it at the SA.
    #[must_use]
    pub const fn is_at_sa(&self) -> bool {
        self.subscription.at_sa
    }

    /// Who holds it.
    pub fn members(&self) -> impl Iterator<Item = MemberId> + 'a {
        self.subscription.holders.iter().copied()
    }

    /// Requests that wait for the SA, that of the transaction under way included.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let served = self.transaction.and_then(|t| t.waiting.as_ref());
        self.subscription.waiting.len() + served.iter().count()
    }

    /// What the SA is asked now.
    #[must_use]
    pub fn under_way(&self) -> Option<UnderWay> {
        self.transaction.map(UnderWay::of)
    }
}
