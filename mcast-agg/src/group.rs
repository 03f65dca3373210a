//! One multicast group of one port.

use std::collections::VecDeque;

use ib_wire::sa::{JoinState, McMemberRecord};
use ib_wire::{Gid, Guid};

use crate::MemberId;
use crate::aim::GroupAim;
use crate::aim::GroupKey;
use crate::members::Members;
use crate::transaction::{Leave, Token, Transaction, UnderWay, Waiting};

#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    /// The SA's record, once there was one.
    pub(crate) record: McMemberRecord,
    /// What the port holds at the SA, or will again when a due rejoin is done. Bits leave it when a
    /// Delete for them is decided on.
    pub(crate) at_sa: JoinState,
    /// What the port may hold besides: an answer never came, or nobody waited for it.
    pub(crate) doubtful: JoinState,
    pub(crate) members: Members,
    /// Joins that the SA must be asked about.
    pub(crate) waiting: VecDeque<Waiting>,
    /// Leaves that are answered when the SA has answered.
    pub(crate) leaves: Vec<Leave>,
    pub(crate) in_flight: Option<Token>,
    /// The SA may have forgotten the port's membership.
    pub(crate) rejoin_due: bool,
    /// Transactions in which the port has joined, or tried to.
    pub(crate) sa_joins: u64,
}

impl Group {
    /// Whether the known membership of the port covers a join.
    pub(crate) fn covers(&self, state: JoinState) -> bool {
        !self.at_sa.is_empty() && self.at_sa.contains(state)
    }

    /// Takes over what the port holds, as the SA says it. If that lacks what members hold, the SA has
    /// forgotten the port in between, and the port must join again.
    pub(crate) fn granted(&mut self, state: JoinState) {
        let forgotten = self.at_sa.difference(state);
        self.rejoin_due |= self.members.aggregate().get() & forgotten.get() != 0;
        self.at_sa = state;
    }

    /// The SA may have forgotten the port.
    pub(crate) fn forgotten(&mut self) {
        self.keep_wanted();
        self.rejoin_due = !self.at_sa.is_empty();
    }

    /// What nobody holds is not asked for again; but whether the SA holds it is uncertain.
    pub(crate) fn keep_wanted(&mut self) {
        let wanted = self.members.aggregate();
        self.doubtful = self.doubtful | self.at_sa.difference(wanted);
        self.at_sa = wanted;
    }

    /// Takes what the port should give up next: all that it holds and no member does, then what it
    /// may hold, kind by kind, since the SA refuses a Delete that names a bit too many.
    pub(crate) fn take_surplus(&mut self) -> Option<JoinState> {
        let wanted = self.members.aggregate();
        self.doubtful = self.doubtful.difference(wanted | self.at_sa);
        let surplus = self.at_sa.difference(wanted);
        let kinds = (0..4).map(|kind| JoinState::from_low_bits(1 << kind));
        let doubtful = || kinds.into_iter().find(|&kind| self.doubtful.contains(kind));
        let next = if surplus.is_empty() {
            doubtful()?
        } else {
            surplus
        };
        self.at_sa = self.at_sa.difference(next);
        self.doubtful = self.doubtful.difference(next);
        Some(next)
    }

    /// Takes what the port should give up next, if a leave waits for it: joins that came later wait behind it.
    pub(crate) fn take_surplus_of_leaves(&mut self) -> Option<JoinState> {
        if self.leaves.is_empty() {
            return None;
        }
        self.take_surplus()
    }

    /// The join that has waited longest, to be answered or asked about. When none waits any more, no room is kept: a
    /// group lives long, and its joins come when it begins.
    pub(crate) fn take_waiting(&mut self) -> Option<Waiting> {
        let first = self.waiting.pop_front();
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        first
    }

    /// Bytes of what it refers to, with what that has room for.
    pub(crate) fn bytes(&self) -> usize {
        let leaves = self.leaves.capacity() * size_of::<Leave>();
        self.members.bytes() + self.waiting.capacity() * size_of::<Waiting>() + leaves
    }
}

/// A group as an administrator sees it.
#[derive(Clone, Copy, Debug)]
pub struct GroupView<'a> {
    pub(crate) key: GroupKey,
    pub(crate) group: &'a Group,
    pub(crate) transaction: Option<&'a Transaction<GroupAim>>,
}

impl<'a> GroupView<'a> {
    /// The group's address.
    #[must_use]
    pub const fn mgid(&self) -> Gid {
        self.key.mgid
    }

    /// The GUID under which the SA knows the port in the group: the port's own, or a member's alias
    /// ([`JoinAs::Alias`](crate::JoinAs::Alias)).
    #[must_use]
    pub const fn port_guid(&self) -> Guid {
        self.key.port_guid
    }

    /// The SA's record; all zero until the SA has answered.
    #[must_use]
    pub const fn record(&self) -> &'a McMemberRecord {
        &self.group.record
    }

    /// What the port holds at the SA.
    #[must_use]
    pub const fn at_sa(&self) -> JoinState {
        self.group.at_sa
    }

    /// How often the port has asked the SA to join since the group is known here, retransmissions not counted: for
    /// the first member, for one that wants more than the port holds, and again at a new SM.
    #[must_use]
    pub const fn sa_joins(&self) -> u64 {
        self.group.sa_joins
    }

    /// The members, with what each holds.
    pub fn members(&self) -> impl Iterator<Item = (MemberId, JoinState)> + 'a {
        let members = &self.group.members;
        members.ids().map(|id| (id, members.state(id)))
    }

    /// Joins that wait for the SA, that of the transaction under way included.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let served = self.transaction.and_then(|t| t.waiting.as_ref());
        self.group.waiting.len() + served.iter().count()
    }

    /// What the SA is asked now.
    #[must_use]
    pub fn under_way(&self) -> Option<UnderWay> {
        self.transaction.map(UnderWay::of)
    }
}
