//! Counters.

use vf_tunnel::{DropReason, VfId};

use crate::state::State;

/// What a VF has in the tables and what became of its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfStatistics {
    live: [u32; State::ALL.len()],
    drops: [u64; DropReason::ALL.len()],
    /// Ids of the VF's own that stand in the tables, those in quarantine included.
    pub ids: u32,
    /// Peers' requests that the VF has not answered under an id of its own.
    pub pending: u32,
    /// Messages that went to the wire.
    pub sent: u64,
    /// Messages that came from the wire.
    pub delivered: u64,
    /// False claims that [`IdentityCheck::Compat`](crate::IdentityCheck::Compat) let pass.
    pub false_claims: u64,
    /// Answers to requests that nobody is known to have got, which pass.
    pub untracked: u64,
    /// Ids whose handshake or SIDR request never ended.
    pub abandoned: u64,
}

impl VfStatistics {
    /// All zero.
    pub(crate) const NEW: Self = Self {
        live: [0; State::ALL.len()],
        drops: [0; DropReason::ALL.len()],
        ids: 0,
        pending: 0,
        sent: 0,
        delivered: 0,
        false_claims: 0,
        untracked: 0,
        abandoned: 0,
    };

    /// Ids in a state.
    #[must_use]
    pub const fn live(&self, state: State) -> u32 {
        self.live[state.index()]
    }

    /// Messages, to and from the VF, that were dropped for a reason.
    #[must_use]
    pub const fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    pub(crate) const fn enter(&mut self, state: State) {
        self.live[state.index()] += 1;
    }

    pub(crate) const fn leave(&mut self, state: State) {
        self.live[state.index()] -= 1;
    }

    pub(crate) const fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason.index()] += 1;
    }
}

/// What concerns no VF in particular.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    drops: [u64; DropReason::ALL.len()],
    /// Messages handed to the PF's own software.
    pub to_pf: u64,
    /// REJs that the machine answered.
    pub answered_rej: u64,
    /// DREPs that the machine answered.
    pub answered_drep: u64,
    /// Answers that the limit held back; the messages count as dropped.
    pub answers_withheld: u64,
    /// Farewells queued for peers of VFs that were reset.
    pub signals: u64,
    /// Farewells that found the queue full.
    pub signals_lost: u64,
}

impl Statistics {
    pub(crate) const NEW: Self = Self {
        drops: [0; DropReason::ALL.len()],
        to_pf: 0,
        answered_rej: 0,
        answered_drep: 0,
        answers_withheld: 0,
        signals: 0,
        signals_lost: 0,
    };

    /// Messages from the wire, for no VF that is known, that were dropped for a reason.
    #[must_use]
    pub const fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    pub(crate) const fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason.index()] += 1;
    }
}

/// Why a message from the wire went nowhere, and whom it would have reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: DropReason,
    pub(crate) vf: Option<VfId>,
}

impl Refusal {
    pub(crate) const fn of(vf: VfId, reason: DropReason) -> Self {
        Self {
            reason,
            vf: Some(vf),
        }
    }
}

impl From<DropReason> for Refusal {
    fn from(reason: DropReason) -> Self {
        Self { reason, vf: None }
    }
}
