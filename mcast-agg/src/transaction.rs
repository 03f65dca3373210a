//! Transactions with the SA.

use alloc::vec::Vec;
use core::time::Duration;

use ib_vtime::TimerKey;
use ib_wire::sa::{JoinState, McMemberRecord, SaMad};
use ib_wire::{Gid, PKey};
use vf_tunnel::VirtualPKeyIndex;

use crate::MemberId;

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
    pub(crate) fn record(&self) -> McMemberRecord {
        self.request.record()
    }

    /// Whether `other` is this request sent again.
    pub(crate) fn is_retransmitted_by(&self, member: MemberId, other: &SaMad) -> bool {
        self.member == member && self.request.header.tid == other.header.tid
    }
}

/// Why the SA is asked.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// For a member's join. The member is gone if it was reset meanwhile.
    Join(Option<Waiting>),
    /// For a member that wants a new group, whose MGID the SA chooses.
    Create(Option<Waiting>),
    /// To have at a new SA what the port had.
    Rejoin {
        /// Whether the request carries what creating the group needs. An SA that has the group
        /// with other values refuses that, and is asked again without.
        full: bool,
    },
    /// To give up what nobody holds any more.
    Leave,
}

#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    pub(crate) purpose: Purpose,
    /// The group; of a creation the zero MGID.
    pub(crate) mgid: Gid,
    pub(crate) state: JoinState,
    /// Transmissions so far.
    pub(crate) attempts: u32,
    /// The SA answered the last transmission with a failure, and the next one is waited for.
    pub(crate) refused: bool,
    /// The bytes, but for the TID.
    pub(crate) request: SaMad,
    /// Set while an answer is awaited; without it the transaction waits for its turn.
    pub(crate) timer: Option<TimerKey>,
}

impl Transaction {
    /// Linux's guests give up after 3 s.
    const JOIN_WAITS: [Duration; 3] = [
        Duration::from_millis(500),
        Duration::from_millis(1000),
        Duration::from_millis(1500),
    ];
    const LEAVE_ATTEMPTS: u32 = 8;
    const LONGEST_WAIT: Duration = Duration::from_secs(60);

    /// How long to wait for an answer to the next transmission; `None` if there shall be no other.
    pub(crate) fn next_wait(&self) -> Option<Duration> {
        let doubling = Duration::from_secs(1 << self.attempts.min(6)).min(Self::LONGEST_WAIT);
        match self.purpose {
            Purpose::Join(_) | Purpose::Create(_) => Self::JOIN_WAITS
                .get(usize::try_from(self.attempts).ok()?)
                .copied(),
            Purpose::Rejoin { .. } => Some(doubling),
            Purpose::Leave => (self.attempts < Self::LEAVE_ATTEMPTS).then_some(doubling),
        }
    }

    /// Whether this is a leave that the SA has not granted at the first transmission.
    pub(crate) const fn is_slow_leave(&self) -> bool {
        matches!(self.purpose, Purpose::Leave) && (self.refused || self.attempts > 1)
    }

    /// The member's request that this transaction serves.
    pub(crate) const fn waiting(&self) -> Option<&Waiting> {
        match &self.purpose {
            Purpose::Join(waiting) | Purpose::Create(waiting) => waiting.as_ref(),
            Purpose::Rejoin { .. } | Purpose::Leave => None,
        }
    }

    /// Forgets the member's request: the member was reset.
    pub(crate) fn forget_member(&mut self, member: MemberId) {
        if let Purpose::Join(waiting) | Purpose::Create(waiting) = &mut self.purpose
            && waiting
                .as_ref()
                .is_some_and(|waiting| waiting.member == member)
        {
            *waiting = None;
        }
    }
}
