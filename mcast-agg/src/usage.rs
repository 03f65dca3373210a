//! What each member takes of the machine.

use alloc::vec::Vec;

use crate::MemberId;

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    groups: u16,
    waiting: u16,
}

/// Counts per member. Grows to the largest member number seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    members: Vec<Use>,
}

impl Usage {
    /// Groups that the member is in.
    pub(crate) fn groups(&self, member: MemberId) -> u16 {
        self.get(member).groups
    }

    /// Joins that wait for the SA.
    pub(crate) fn waiting(&self, member: MemberId) -> u16 {
        self.get(member).waiting
    }

    /// Groups that the member is in or may soon be in.
    pub(crate) fn claims(&self, member: MemberId) -> u16 {
        let Use { groups, waiting } = self.get(member);
        groups.saturating_add(waiting)
    }

    pub(crate) fn join(&mut self, member: MemberId) {
        self.get_mut(member).groups += 1;
    }

    pub(crate) fn leave(&mut self, member: MemberId) {
        self.get_mut(member).groups -= 1;
    }

    pub(crate) fn wait(&mut self, member: MemberId) {
        self.get_mut(member).waiting += 1;
    }

    pub(crate) fn stop_waiting(&mut self, member: MemberId) {
        self.get_mut(member).waiting -= 1;
    }

    pub(crate) fn clear(&mut self, member: MemberId) {
        *self.get_mut(member) = Use::default();
    }

    fn get(&self, member: MemberId) -> Use {
        self.members
            .get(member.index())
            .copied()
            .unwrap_or_default()
    }

    fn get_mut(&mut self, member: MemberId) -> &mut Use {
        let index = member.index();
        if index >= self.members.len() {
            self.members.resize(index + 1, Use::default());
        }
        &mut self.members[index]
    }
}
