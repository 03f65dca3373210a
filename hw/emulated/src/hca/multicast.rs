//! Which queue pairs get the packets of which multicast groups (IBA 10.5, 11.3.1).

use std::collections::{BTreeMap, BTreeSet};

use hca_api::{FunctionId, HcaError, Limits};
use ib_wire::{Gid, Lid};

use super::qpn::QpRef;

/// One attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    qp: QpRef,
    mlid: Lid,
}

/// Attachments by group: MGID, and below it MLID.
///
/// Each function has a share of its own: so many groups, and so many of its queue pairs in each, as its limits say. What
/// others attach takes nothing from it.
#[derive(Debug, Default)]
pub(super) struct MulticastTable {
    groups: BTreeMap<Gid, Vec<Member>>,
    /// The groups of each function.
    shares: BTreeMap<FunctionId, BTreeSet<Gid>>,
}

impl MulticastTable {
    /// The next attachment that a packet of a group is for, in order of attachment, from the `after`th
    /// on: which it is, and the queue pair.
    pub(super) fn next(&self, mgid: Gid, mlid: Lid, after: usize) -> Option<(usize, QpRef)> {
        let members = self.groups.get(&mgid)?;
        let mut rest = (after..).zip(members.iter().skip(after));
        let (at, member) = rest.find(|(_, to)| to.mlid == mlid || to.mlid == Lid::NONE)?;
        Some((at, member.qp))
    }

    /// Whether a queue pair is attached to a group by this MLID.
    pub(super) fn contains(&self, mgid: Gid, mlid: Lid, qp: QpRef) -> bool {
        let members = self.groups.get(&mgid);
        members.is_some_and(|members| members.contains(&Member { qp, mlid }))
    }

    /// Attaches a queue pair within its function's share; gives whether it was not attached before.
    pub(super) fn attach(
        &mut self,
        mgid: Gid,
        mlid: Lid,
        qp: QpRef,
        limits: &Limits,
    ) -> Result<bool, HcaError> {
        if !mgid.is_multicast() || !(mlid.is_multicast() || mlid == Lid::NONE) {
            return Err(HcaError::InvalidParameter);
        }
        let member = Member { qp, mlid };
        let members = self.groups.get(&mgid).map_or(&[][..], Vec::as_slice);
        if members.contains(&member) {
            return Ok(false);
        }
        let own = of_function(members, qp.function);
        let share = self.shares.entry(qp.function).or_default();
        if own >= limits.max_mcast_qp_attach as usize
            || (own == 0 && share.len() >= limits.max_mcast_grp as usize)
        {
            return Err(HcaError::InsufficientResources);
        }
        share.insert(mgid);
        self.groups.entry(mgid).or_default().push(member);
        Ok(true)
    }

    /// Ends an attachment.
    pub(super) fn detach(&mut self, mgid: Gid, mlid: Lid, qp: QpRef) -> Result<(), HcaError> {
        let members = self
            .groups
            .get_mut(&mgid)
            .ok_or(HcaError::InvalidParameter)?;
        let at = members
            .iter()
            .position(|member| *member == Member { qp, mlid })
            .ok_or(HcaError::InvalidParameter)?;
        members.remove(at);
        if of_function(members, qp.function) == 0
            && let Some(share) = self.shares.get_mut(&qp.function)
        {
            share.remove(&mgid);
        }
        if members.is_empty() {
            self.groups.remove(&mgid);
        }
        Ok(())
    }

    /// Ends all attachments of a function. Looks at the function's own groups only.
    pub(super) fn detach_all(&mut self, function: FunctionId) {
        for mgid in self.shares.remove(&function).unwrap_or_default() {
            let Some(members) = self.groups.get_mut(&mgid) else {
                continue;
            };
            members.retain(|member| member.qp.function != function);
            if members.is_empty() {
                self.groups.remove(&mgid);
            }
        }
    }
}

/// How many of a group's members belong to a function.
fn of_function(members: &[Member], function: FunctionId) -> usize {
    let own = members.iter().filter(|m| m.qp.function == function);
    own.count()
}
