//! What each member takes of the machine.

use crate::MemberId;

/// What a member takes of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberUse {
    /// Groups that it is in, or subscriptions that it holds.
    pub held: u16,
    /// Its requests that wait for the SA.
    pub waiting: u16,
    /// Its leaves that wait for the SA.
    pub leaving: u16,
}

/// Counts per member. Grows to the largest member number seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    members: Vec<MemberUse>,
}

impl Usage {
    /// Groups that the member is in, or subscriptions that it holds.
    pub(crate) fn held(&self, member: MemberId) -> u16 {
        self.get(member).held
    }

    /// Requests that wait for the SA.
    pub(crate) fn waiting(&self, member: MemberId) -> u16 {
        self.get(member).waiting
    }

    /// What the member holds or may soon hold.
    pub(crate) fn claims(&self, member: MemberId) -> u16 {
        let MemberUse { held, waiting, .. } = self.get(member);
        held.saturating_add(waiting)
    }

    pub(crate) fn hold(&mut self, member: MemberId) {
        self.get_mut(member).held += 1;
    }

    pub(crate) fn release(&mut self, member: MemberId) {
        self.get_mut(member).held -= 1;
    }

    /// Leaves that wait for the SA.
    pub(crate) fn leaving(&self, member: MemberId) -> u16 {
        self.get(member).leaving
    }

    pub(crate) fn leave(&mut self, member: MemberId) {
        self.get_mut(member).leaving += 1;
    }

    pub(crate) fn has_left(&mut self, member: MemberId) {
        self.get_mut(member).leaving -= 1;
    }

    pub(crate) fn wait(&mut self, member: MemberId) {
        self.get_mut(member).waiting += 1;
    }

    pub(crate) fn stop_waiting(&mut self, member: MemberId) {
        self.get_mut(member).waiting -= 1;
    }

    pub(crate) fn clear(&mut self, member: MemberId) {
        *self.get_mut(member) = MemberUse::default();
    }

    pub(crate) fn get(&self, member: MemberId) -> MemberUse {
        self.members
            .get(member.index())
            .copied()
            .unwrap_or_default()
    }

    fn get_mut(&mut self, member: MemberId) -> &mut MemberUse {
        let index = member.index();
        if index >= self.members.len() {
            self.members.resize(index + 1, MemberUse::default());
        }
        &mut self.members[index]
    }
}
