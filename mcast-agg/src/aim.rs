//! What the port wants of the SA for a group.

use ib_wire::sa::JoinState;
use ib_wire::{Gid, Guid};

use crate::transaction::{Aim, Patience};

/// Why the SA is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// For a member's join.
    Join,
    /// For a member that wants a new group, whose MGID the SA chooses.
    Create,
    /// To have at a new SA what the port had.
    Rejoin {
        /// Whether the request carries what creating the group needs. An SA that has the group
        /// with other values refuses that, and is asked again without.
        full: bool,
    },
    /// To give up what nobody holds any more.
    Leave,
}

impl Purpose {
    /// Whether the port joins.
    pub(crate) const fn is_join(self) -> bool {
        !matches!(self, Self::Leave)
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Create => "create",
            Self::Rejoin { .. } => "rejoin",
            Self::Leave => "leave",
        }
    }
}

/// Names a membership of the port at the SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    /// The group; of a creation the zero MGID.
    pub(crate) mgid: Gid,
    /// The GUID in the PortGID: the port's own, or a member's alias.
    pub(crate) port_guid: Guid,
}

impl GroupKey {
    /// The same port's membership in another group.
    pub(crate) const fn of_group(self, mgid: Gid) -> Self {
        Self { mgid, ..self }
    }
}

/// A change of the port's membership in a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupAim {
    pub(crate) purpose: Purpose,
    pub(crate) key: GroupKey,
    pub(crate) state: JoinState,
}

impl Aim for GroupAim {
    fn name(&self) -> &'static str {
        self.purpose.as_str()
    }

    fn patience(&self) -> Patience {
        match self.purpose {
            Purpose::Join | Purpose::Create => Patience::Gain,
            Purpose::Rejoin { .. } => Patience::Regain,
            Purpose::Leave => Patience::Release,
        }
    }
}
