//! Who holds which kinds of membership of one group.

use ib_wire::sa::JoinState;
use vf_tunnel::VfId;

/// A member: the PF's own software, or a VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(u16);

impl MemberId {
    /// The PF's own software.
    pub const PF: Self = Self(0);

    /// The VF, unless it is the PF.
    #[must_use]
    pub const fn vf(self) -> Option<VfId> {
        VfId::new(self.0)
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// How much of something the member may have: the PF's own software as much as can be counted.
    pub(crate) const fn quota(self, of_vf: u16) -> u16 {
        if self.0 == Self::PF.0 {
            u16::MAX
        } else {
            of_vf
        }
    }
}

impl From<VfId> for MemberId {
    fn from(vf: VfId) -> Self {
        Self(vf.get())
    }
}

/// The kinds of membership, by their bit numbers.
const KINDS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Member {
    id: MemberId,
    state: JoinState,
}

/// The members of one group: four bytes each, sorted by id, and for each kind the number of holders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Members {
    list: Vec<Member>,
    holders: [u16; KINDS],
}

impl Members {
    /// What the member holds.
    pub(crate) fn state(&self, id: MemberId) -> JoinState {
        self.find(id)
            .map_or(JoinState::NONE, |at| self.list[at].state)
    }

    /// Gives a member more kinds of membership, and says which it has then.
    pub(crate) fn add(&mut self, id: MemberId, more: JoinState) -> JoinState {
        let at = match self.find(id) {
            Ok(at) => at,
            Err(at) => {
                self.list.insert(
                    at,
                    Member {
                        id,
                        state: JoinState::NONE,
                    },
                );
                at
            }
        };
        let state = &mut self.list[at].state;
        let new = more.difference(*state);
        *state = *state | more;
        let held = *state;
        if !new.is_empty() {
            for (kind, holders) in self.holders.iter_mut().enumerate() {
                *holders += u16::from(has_kind(new, kind));
            }
        }
        held
    }

    /// Takes kinds of membership from a member, and the member from the group with its last.
    pub(crate) fn remove(&mut self, id: MemberId, less: JoinState) {
        let Ok(at) = self.find(id) else { return };
        let held = self.list[at].state;
        let left = held.difference(less);
        let gone = held.difference(left);
        self.list[at].state = left;
        if left.is_empty() {
            self.list.remove(at);
        }
        for (kind, holders) in self.holders.iter_mut().enumerate() {
            *holders -= u16::from(has_kind(gone, kind));
        }
    }

    /// The union of what all members hold: what the port must hold at the SA.
    pub(crate) fn aggregate(&self) -> JoinState {
        (0..KINDS)
            .filter(|&kind| self.holders[kind] > 0)
            .fold(JoinState::NONE, |all, kind| {
                all | JoinState::from_low_bits(1 << kind)
            })
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.list.iter().map(|member| member.id)
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes of the list, with what it has room for.
    pub(crate) const fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<Member>()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn find(&self, id: MemberId) -> Result<usize, usize> {
        // Where all VFs are members, the one sought is at its own number, or one before if the PF is
        // none: one line of the list instead of several.
        let own = id.index();
        let guesses = [own.wrapping_sub(1), own];
        let is_there = |&at: &usize| self.list.get(at).is_some_and(|member| member.id == id);
        match guesses.into_iter().find(is_there) {
            Some(at) => Ok(at),
            None => self.list.binary_search_by_key(&id, |member| member.id),
        }
    }
}

const fn has_kind(state: JoinState, kind: usize) -> bool {
    state.get() >> kind & 1 != 0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_membership_takes_four_bytes() {
        assert_eq!(size_of::<Member>(), 4);
    }

    proptest! {
        #[test]
        fn the_aggregate_is_the_union_over_all_members(
            steps in prop::collection::vec((0_u16..6, 0_u8..16, any::<bool>()), 0..80)
        ) {
            let mut members = Members::default();
            let mut model: BTreeMap<u16, u8> = BTreeMap::new();
            for (id, bits, join) in steps {
                let held = model.entry(id).or_default();
                let state = JoinState::from_low_bits(bits);
                if join {
                    *held |= bits;
                    if bits != 0 {
                        members.add(MemberId(id), state);
                    }
                } else {
                    *held &= !bits;
                    members.remove(MemberId(id), state);
                }
                model.retain(|_, bits| *bits != 0);
                prop_assert_eq!(members.aggregate().get(), model.values().fold(0, |a, b| a | b));
                prop_assert_eq!(members.len(), model.len());
                let held = model.get(&id).copied().unwrap_or(0);
                prop_assert_eq!(members.state(MemberId(id)).get(), held);
            }
        }
    }
}
