//! The lists of slots by their states, each in the order of the last use.
//!
//! What is open, in a transfer or free stands in one list for all owners. Answered transactions stand
//! in a list of their owner's, so that the oldest of them is found when it has to make place. Their
//! times to live are told in the order in which they end by *checks*: an owner's list is looked at
//! when one is due, and one stands for all that were answered within [`CHECK_EVERY`] ticks.

use std::collections::VecDeque;

use super::slots::{SlotOwner, SlotState};

/// The end of a list.
pub(super) const END: u32 = u32::MAX;

/// Ticks (of 1.05 ms) by which an answered transaction may outlive its time.
const CHECK_EVERY: u64 = 1 << 9;

/// The slots of a state, the one first that was not used for the longest time.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) first: u32,
    pub(super) last: u32,
    /// The tick at which the first slot is due.
    pub(super) due: u64,
}

impl List {
    const EMPTY: Self = Self {
        first: END,
        last: END,
        due: u64::MAX,
    };
}

/// An owner's answered transactions.
#[derive(Clone, Copy, Debug)]
struct OwnList {
    list: List,
    /// The tick of the latest check.
    checked_at: u64,
}

impl OwnList {
    const EMPTY: Self = Self {
        list: List::EMPTY,
        checked_at: 0,
    };
}

/// When an owner's answered transactions are looked at.
#[derive(Clone, Copy, Debug)]
struct Check {
    /// The low half of the tick.
    at: u32,
    owner: SlotOwner,
}

impl Check {
    /// Ticks until it is due; none if it is.
    const fn remaining(&self, now: u64) -> u32 {
        let remaining = self.at.wrapping_sub(low(now));
        if remaining > u32::MAX / 2 {
            0
        } else {
            remaining
        }
    }
}

/// All lists.
#[derive(Clone, Debug)]
pub(super) struct Lists {
    /// By state.
    shared: [List; SlotState::SHARED],
    /// By owner.
    answered: Vec<OwnList>,
    /// In the order of their ticks.
    checks: VecDeque<Check>,
}

impl Default for Lists {
    fn default() -> Self {
        Self {
            shared: [List::EMPTY; SlotState::SHARED],
            answered: Vec::new(),
            checks: VecDeque::new(),
        }
    }
}

impl Lists {
    /// The slots that are nobody's.
    pub(super) const fn free(&self) -> &List {
        &self.shared[SlotState::Free as usize]
    }

    /// An owner's answered transactions, if it ever had any.
    pub(super) fn answered(&self, owner: SlotOwner) -> Option<&List> {
        self.answered.get(owner.index()).map(|own| &own.list)
    }

    /// The list of a state, and for answered transactions of an owner.
    #[inline]
    pub(super) fn of_mut(&mut self, state: SlotState, owner: SlotOwner) -> &mut List {
        if state == SlotState::Answered {
            &mut self.own_mut(owner).list
        } else {
            &mut self.shared[state as usize]
        }
    }

    /// Sees to it that an owner's answered transactions are looked at once one is due at a tick, which
    /// is not before that of any call before.
    #[inline]
    pub(super) fn check(&mut self, owner: SlotOwner, due: u64) {
        let own = self.own_mut(owner);
        if own.checked_at < due {
            own.checked_at = due + CHECK_EVERY;
            let at = low(own.checked_at);
            self.checks.push_back(Check { at, owner });
        }
    }

    /// A slot whose time is over.
    #[inline]
    pub(super) fn first_due(&mut self, now: u64) -> Option<u32> {
        for state in SlotState::LIVE_SHARED {
            let list = &self.shared[state as usize];
            if list.due <= now {
                return Some(list.first);
            }
        }
        while let Some(check) = self
            .checks
            .front()
            .filter(|check| check.remaining(now) == 0)
        {
            match self.answered(check.owner).filter(|list| list.due <= now) {
                Some(list) => return Some(list.first),
                None => self.checks.pop_front(),
            };
        }
        None
    }

    /// The tick at which [`Lists::first_due`] next has something to look at.
    pub(super) fn next_due(&self, now: u64) -> Option<u64> {
        let shared = SlotState::LIVE_SHARED.map(|state| self.shared[state as usize].due);
        let check = self.checks.front();
        let check = check.map(|check| now + u64::from(check.remaining(now)));
        let due = shared.into_iter().chain(check).min();
        due.filter(|&due| due != u64::MAX)
    }

    /// Bytes of what is not of a fixed size.
    pub(super) fn bytes(&self) -> usize {
        self.answered.capacity() * size_of::<OwnList>()
            + self.checks.capacity() * size_of::<Check>()
    }

    #[inline]
    fn own_mut(&mut self, owner: SlotOwner) -> &mut OwnList {
        let at = owner.index();
        if at >= self.answered.len() {
            self.grow(at + 1);
        }
        &mut self.answered[at]
    }

    #[cold]
    fn grow(&mut self, owners: usize) {
        self.answered.resize(owners, OwnList::EMPTY);
    }
}

/// The half of a tick that slots and checks keep.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper half is the clock's"
)]
pub(super) const fn low(tick: u64) -> u32 {
    tick as u32
}

#[cfg(test)]
mod tests {
    use vf_tunnel::VfId;

    use super::*;
    use crate::steering::Owner;

    fn owner(number: u16) -> SlotOwner {
        Owner::Vf(VfId::new(number).expect("a VF")).into()
    }

    #[test]
    fn bytes_are_those_of_the_owners_and_of_their_checks() {
        let mut lists = Lists::default();
        assert_eq!(lists.bytes(), 0);
        lists.check(owner(99), 1);
        let one = lists.bytes();
        assert!((100 * 24 + 8..250 * 24).contains(&one), "{one}");
        for check in 1..1_000 {
            lists.check(owner(99), check * 2 * CHECK_EVERY);
        }
        let more = lists.bytes() - one;
        assert!((990 * 8..2_050 * 8).contains(&more), "{more}");
    }

    #[test]
    fn a_check_that_is_over_is_due_and_one_to_come_says_when() {
        let check = |at| Check {
            at,
            owner: owner(1),
        };
        assert_eq!(check(7).remaining(5), 2);
        assert_eq!(check(7).remaining(7), 0);
        assert_eq!(check(7).remaining(8), 0);
        assert_eq!(
            check(3).remaining(u64::from(u32::MAX)),
            4,
            "beyond the wrap"
        );
        assert_eq!(check(u32::MAX).remaining(1 << 32), 0, "before it");
    }
}
