//! Transactions with the SA.

use std::fmt::Debug;
use std::time::Duration;

use ib_vtime::{Instant, TimerKey};
use ib_wire::PKey;
use ib_wire::sa::{JoinState, SaMad, SaRecord};
use vf_tunnel::VirtualPKeyIndex;

use crate::{MemberId, Requester};

/// Names a transaction with the SA for the life of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A member's request that waits for the SA.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) member: MemberId,
    /// The partition in which the request came and the answer goes back.
    pub(crate) pkey_index: VirtualPKeyIndex,
    /// The member's P_Keys when it asked.
    pub(crate) pkeys: Vec<PKey>,
    pub(crate) request: SaMad,
}

impl Waiting {
    pub(crate) fn new(from: &Requester<'_>, request: &SaMad) -> Self {
        Self {
            member: from.id,
            pkey_index: from.pkey_index,
            pkeys: from.pkeys.to_vec(),
            request: *request,
        }
    }

    pub(crate) fn record<R: SaRecord>(&self) -> R {
        self.request.record()
    }

    /// Whether `other` is this request sent again.
    pub(crate) fn is_retransmitted_by(&self, member: MemberId, other: &SaMad) -> bool {
        self.member == member && self.request.header.tid == other.header.tid
    }
}

/// A leave that is done here and waits for the SA.
#[derive(Clone, Debug)]
pub(crate) struct Leave {
    pub(crate) member: MemberId,
    /// The partition in which the request came and the answer goes back.
    pub(crate) pkey_index: VirtualPKeyIndex,
    /// The kinds of membership that the port gives up with it.
    pub(crate) state: JoinState,
    /// The answer, but for the kinds that the member holds when it is sent.
    pub(crate) answer: SaMad,
    /// End of the time that it waits, and the timer of that.
    pub(crate) until: Instant,
    pub(crate) timer: TimerKey,
}

/// How often the SA is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// To gain something for a member: as long as its guest waits. What the SA says after that
    /// must be taken back.
    Gain,
    /// To have again what the port had: for ever.
    Regain,
    /// To give something up: until it is the SA's problem.
    Release,
}

/// What a transaction is about.
pub(crate) trait Aim: Copy + Debug {
    /// What is asked for, in a word.
    fn name(&self) -> &'static str;

    /// How often the SA is asked for it.
    fn patience(&self) -> Patience;
}

#[derive(Clone, Debug)]
pub(crate) struct Transaction<A> {
    pub(crate) aim: A,
    /// The member's request that it serves. The member is gone if it was reset meanwhile.
    pub(crate) waiting: Option<Waiting>,
    /// Transmissions so far, or since all was asked anew.
    pub(crate) attempts: u32,
    /// It was sent more than once, so that the SA may have heard one that it did not answer.
    pub(crate) repeated: bool,
    /// The SA answered the last transmission with a failure, and the next one is waited for.
    pub(crate) refused: bool,
    /// The bytes, but for the TID.
    pub(crate) request: SaMad,
    /// Set while an answer is awaited; without it the transaction waits for its turn.
    pub(crate) timer: Option<TimerKey>,
}

/// A transaction with the SA, as an administrator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// What is asked for: `join`, `create`, `rejoin`, `leave`, `subscribe`, `renew` or
    /// `unsubscribe`.
    pub what: &'static str,
    /// Transmissions so far, or since all was asked anew.
    pub attempts: u32,
}

impl UnderWay {
    pub(crate) fn of<A: Aim>(transaction: &Transaction<A>) -> Self {
        Self {
            what: transaction.aim.name(),
            attempts: transaction.attempts,
        }
    }
}

/// Linux's guests give up after 3 s.
const GAIN_WAITS: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_millis(1000),
    Duration::from_millis(1500),
];
const RELEASE_ATTEMPTS: u32 = 8;
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl<A: Aim> Transaction<A> {
    /// How long to wait for an answer to the next transmission; `None` if there shall be no other.
    pub(crate) fn next_wait(&self) -> Option<Duration> {
        let doubling = Duration::from_secs(1 << self.attempts.min(6)).min(LONGEST_WAIT);
        match self.aim.patience() {
            Patience::Gain => GAIN_WAITS
                .get(usize::try_from(self.attempts).ok()?)
                .copied(),
            Patience::Regain => Some(doubling),
            Patience::Release => (self.attempts < RELEASE_ATTEMPTS).then_some(doubling),
        }
    }

    /// Whether this gives something up and the SA has not granted it at the first transmission.
    pub(crate) fn is_slow_release(&self) -> bool {
        self.aim.patience() == Patience::Release && (self.refused || self.attempts > 1)
    }

    /// Forgets the member's request: the member was reset.
    pub(crate) fn forget_member(&mut self, member: MemberId) {
        self.waiting.take_if(|waiting| waiting.member == member);
    }
}
