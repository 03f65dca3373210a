//! What goes into the machine and what comes out.

use ib_wire::mad::MadStatus;
use ib_wire::sa::SaMad;
use ib_wire::{Gid, Guid, PKey};
use vf_tunnel::{DropReason, VirtualPKeyIndex};

use crate::{MemberId, Token};

/// Under which GID the SA knows members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JoinAs {
    /// The port's own: all members of a group are one membership of the port.
    #[default]
    Port,
    /// Each member's own alias: the SA sees every member, and asks for each of them. An alias must
    /// leave its groups ([`McastAgg::leave_alias`](crate::McastAgg::leave_alias)) before the SA gives
    /// it up.
    Alias,
}

/// Limits and policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Under which GID the SA knows members.
    pub join_as: JoinAs,
    /// Groups that one VF may be in or wait for. Beyond it a join gets status 0x0100.
    pub groups_per_member: u16,
    /// Joins of one VF that may wait for the SA.
    pub waiting_per_member: u16,
    /// Transactions with the SA at a time.
    pub max_in_flight: usize,
    /// What a VF is told whose join the SA did not answer; `None` for silence.
    pub give_up_status: Option<MadStatus>,
}

impl Config {
    /// Groups that a member may be in or wait for.
    #[must_use]
    pub const fn groups_of(&self, member: MemberId) -> u16 {
        member.quota(self.groups_per_member)
    }

    /// Joins of a member that may wait for the SA.
    #[must_use]
    pub const fn waiting_of(&self, member: MemberId) -> u16 {
        member.quota(self.waiting_per_member)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            join_as: JoinAs::Port,
            groups_per_member: 1024,
            waiting_per_member: 32,
            max_in_flight: 32,
            give_up_status: Some(MadStatus::BUSY),
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    /// The member.
    pub id: MemberId,
    /// Its GUID on this port.
    pub guid: Guid,
    /// Its P_Keys: the values behind its table.
    pub pkeys: &'a [PKey],
    /// The partition in which it asks, and gets its answer.
    pub pkey_index: VirtualPKeyIndex,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The MAD is the answer now.
    Answered,
    /// An [`Output::Answer`] follows, or one was already on its way.
    Absorbed,
    /// Not for this machine: it goes to the SA as an ordinary transaction.
    Pass,
    /// It ends here.
    Dropped(DropReason),
}

/// What the machine wants done.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send this to the SA, under a TID of the sender's choice, and hand the answer in by token.
    SaRequest {
        /// The transaction.
        token: Token,
        /// The bytes, but for the TID.
        request: SaMad,
    },
    /// Deliver this to a member.
    Answer {
        /// To whom.
        member: MemberId,
        /// In which partition.
        pkey_index: VirtualPKeyIndex,
        /// The bytes.
        answer: SaMad,
    },
    /// After a rejoin the group has other values than its members know: they must join again.
    Changed {
        /// The group.
        mgid: Gid,
        /// Its members.
        members: Vec<MemberId>,
    },
    /// The port is no longer in a group that it was in, by the SA's will or because it leaves with a
    /// member's alias: nobody is in it any more under the same PortGID.
    Lost {
        /// The group.
        mgid: Gid,
        /// Who was.
        members: Vec<MemberId>,
    },
    /// The SA holds no membership under the alias that a member was to leave with.
    Left {
        /// Whose.
        member: MemberId,
    },
}

/// Live objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Groups.
    pub groups: usize,
    /// Memberships: a member in two groups counts twice.
    pub members: usize,
    /// Joins that wait for the SA.
    pub waiting: usize,
    /// Leaves that wait for the SA.
    pub leaving: usize,
    /// Transactions with the SA, given-up ones included.
    pub transactions: usize,
    /// Timers.
    pub timers: usize,
}
