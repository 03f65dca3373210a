//! What `vhca show tids` prints.

use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Method, MgmtClass};
use vf_tunnel::{VfTid, WireTid};

use super::slots::SlotState;
use super::{Peer, TidMap};
use crate::steering::Owner;

/// What a live transaction is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransactionState {
    /// The request went out.
    Open,
    /// RMPP packets went either way.
    Transfer,
    /// An answer came, or the transfer ended.
    Answered,
}

impl TransactionState {
    /// The stable text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Transfer => "transfer",
            Self::Answered => "answered",
        }
    }

    const fn of(state: SlotState) -> Option<Self> {
        match state {
            SlotState::Open => Some(Self::Open),
            SlotState::Transfer => Some(Self::Transfer),
            SlotState::Answered => Some(Self::Answered),
            SlotState::Free => None,
        }
    }
}

/// A live transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Who asked.
    pub owner: Owner,
    /// The id that the owner gave it.
    pub tid: VfTid,
    /// The id on the wire.
    pub wire_tid: WireTid,
    /// Who was asked.
    pub peer: Peer,
    /// The class.
    pub class: MgmtClass,
    /// The method of the request.
    pub method: Method,
    /// The attribute of the request.
    pub attribute: AttributeId,
    /// The state.
    pub state: TransactionState,
    /// Time since its last MAD, in steps of 1.05 ms. When it began is not kept.
    pub idle: Duration,
}

impl TidMap {
    /// All live transactions, in a stable order.
    pub fn transactions(&self, now: Instant) -> impl Iterator<Item = Transaction> {
        self.slots.live().filter_map(move |slot| {
            let entry = &self.slots[slot];
            Some(Transaction {
                owner: entry.owner.get(),
                tid: entry.tid,
                wire_tid: self.wire_tid(slot),
                peer: entry.peer,
                class: entry.class,
                method: entry.method,
                attribute: entry.attribute,
                state: TransactionState::of(entry.state)?,
                idle: self.slots.idle(now, slot),
            })
        })
    }
}
