//! Aliases that leave their multicast groups before the SA gives them up.

use ib_vtime::Instant;
use ib_wire::Guid;
use vf_tunnel::VfId;

use crate::mux::PortMux;
use crate::output::Cause;

impl PortMux {
    /// A VF's alias is to be deleted at the SA: it leaves its multicast groups
    /// ([`GuidOutput::LeaveGroups`](crate::guids::GuidOutput::LeaveGroups)).
    /// [`PortMux::poll_groups_left`] says when it has; at once if VFs are joined as the port
    /// ([`mcast_agg::JoinAs::Port`]).
    pub fn leave_groups(&mut self, now: Instant, cause: Cause, vf: VfId, alias: Guid) {
        self.mcast.leave_alias(now, vf.into(), alias);
        self.pump(now, cause);
    }

    /// Takes a VF whose alias has left its groups.
    pub fn poll_groups_left(&mut self) -> Option<VfId> {
        self.groups_left.pop_front()
    }

    /// Whether VFs are members of groups under their own aliases.
    #[must_use]
    pub fn has_alias_members(&self) -> bool {
        self.mcast.config().join_as == mcast_agg::JoinAs::Alias
    }
}
