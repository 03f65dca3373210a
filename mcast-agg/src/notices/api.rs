//! What goes into the machine and what comes out.

use ib_wire::mad::MadStatus;
use ib_wire::notice::InformInfo;
use ib_wire::sa::SaMad;
use vf_tunnel::VirtualPKeyIndex;

use crate::{MemberId, Token};

/// Limits and policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Subscriptions that one VF may hold or wait for. Beyond it one gets status 0x0100.
    pub subscriptions_per_member: u16,
    /// Subscriptions of one VF that may wait for the SA.
    pub waiting_per_member: u16,
    /// Transactions with the SA at a time.
    pub max_in_flight: usize,
    /// Copies of reports whose answers are awaited; beyond it the oldest are forgotten.
    pub max_deliveries: usize,
    /// What a VF is told whose subscription the SA did not answer; `None` for silence.
    pub give_up_status: Option<MadStatus>,
}

impl Config {
    /// Subscriptions that a member may hold or wait for.
    #[must_use]
    pub const fn subscriptions_of(&self, member: MemberId) -> u16 {
        member.quota(self.subscriptions_per_member)
    }

    /// Subscriptions of a member that may wait for the SA.
    #[must_use]
    pub const fn waiting_of(&self, member: MemberId) -> u16 {
        member.quota(self.waiting_per_member)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            subscriptions_per_member: 64,
            waiting_per_member: 16,
            max_in_flight: 8,
            max_deliveries: 16 * 1024,
            give_up_status: Some(MadStatus::BUSY),
        }
    }
}

/// What the machine wants done.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send this to the SA without GRH, under a TID of the sender's choice, and hand the answer in
    /// by token.
    SaRequest {
        /// The transaction.
        token: Token,
        /// The bytes, but for the TID.
        request: SaMad,
    },
    /// Deliver this to the member that asked.
    Answer {
        /// To whom.
        member: MemberId,
        /// In which partition.
        pkey_index: VirtualPKeyIndex,
        /// The bytes.
        answer: SaMad,
    },
    /// Deliver this report to a member. Its answer goes to
    /// [`NoticeAgg::report_response`](super::NoticeAgg::report_response).
    Deliver {
        /// To whom.
        member: MemberId,
        /// The bytes, with a TID of the machine's.
        report: SaMad,
    },
    /// The SA refuses the port a subscription that it had: nobody holds it any more.
    Lost {
        /// The subscription.
        subscription: InformInfo,
        /// Who held it.
        members: Vec<MemberId>,
    },
}

/// Live objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Subscriptions of the port.
    pub subscriptions: usize,
    /// Subscriptions of members: one that two members hold counts twice.
    pub held: usize,
    /// Subscriptions that wait for the SA.
    pub waiting: usize,
    /// Transactions with the SA, given-up ones included.
    pub transactions: usize,
    /// Timers of transactions.
    pub timers: usize,
    /// Reports remembered in order to know their repetitions.
    pub reports: usize,
    /// Copies of reports whose answers are awaited.
    pub deliveries: usize,
}
