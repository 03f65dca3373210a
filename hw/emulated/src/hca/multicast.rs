//! Which queue pairs get the packets of which multicast groups (IBA 10.5, 11.3.1).

use std::collections::BTreeMap;

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
#[derive(Debug, Default)]
pub(super) struct MulticastTable {
    groups: BTreeMap<Gid, Vec<Member>>,
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

    /// Attaches a queue pair; gives whether it was not attached before.
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
        let groups = self.groups.len();
        match self.groups.get_mut(&mgid) {
            Some(members) if members.contains(&member) => Ok(false),
            Some(members) if members.len() >= limits.max_mcast_qp_attach as usize => {
                Err(HcaError::InsufficientResources)
            }
            Some(members) => {
                members.push(member);
                Ok(true)
            }
            None if groups >= limits.max_mcast_grp as usize => Err(HcaError::InsufficientResources),
            None => {
                self.groups.insert(mgid, vec![member]);
                Ok(true)
            }
        }
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
        if members.is_empty() {
            self.groups.remove(&mgid);
        }
        Ok(())
    }

    /// Ends all attachments of a function.
    pub(super) fn detach_all(&mut self, function: FunctionId) {
        self.groups.retain(|_, members| {
            members.retain(|member| member.qp.function != function);
            !members.is_empty()
        });
    }
}
