//! Which queue pairs get the packets of which multicast groups (IBA 10.5, 11.3.1).

use std::collections::BTreeMap;

use hca_api::{FunctionId, HcaError, Limits};
use ib_wire::{Gid, Lid};

use super::qpn::QpRef;

/// Attachments by group: MGID and MLID.
#[derive(Debug, Default)]
pub(super) struct MulticastTable {
    groups: BTreeMap<(Gid, Lid), Vec<QpRef>>,
}

impl MulticastTable {
    /// The queue pairs of a group, in order of attachment.
    pub(super) fn members(&self, mgid: Gid, mlid: Lid) -> &[QpRef] {
        self.groups
            .get(&(mgid, mlid))
            .map_or(&[], |members| members.as_slice())
    }

    /// Attaches a queue pair; gives whether it was not attached before.
    pub(super) fn attach(
        &mut self,
        mgid: Gid,
        mlid: Lid,
        qp: QpRef,
        limits: &Limits,
    ) -> Result<bool, HcaError> {
        if !mgid.is_multicast() || !mlid.is_multicast() {
            return Err(HcaError::InvalidParameter);
        }
        let groups = self.groups.len();
        match self.groups.get_mut(&(mgid, mlid)) {
            Some(members) if members.contains(&qp) => Ok(false),
            Some(members) if members.len() >= limits.max_mcast_qp_attach as usize => {
                Err(HcaError::InsufficientResources)
            }
            Some(members) => {
                members.push(qp);
                Ok(true)
            }
            None if groups >= limits.max_mcast_grp as usize => Err(HcaError::InsufficientResources),
            None => {
                self.groups.insert((mgid, mlid), vec![qp]);
                Ok(true)
            }
        }
    }

    /// Ends an attachment.
    pub(super) fn detach(&mut self, mgid: Gid, mlid: Lid, qp: QpRef) -> Result<(), HcaError> {
        let members = self
            .groups
            .get_mut(&(mgid, mlid))
            .ok_or(HcaError::InvalidParameter)?;
        let at = members
            .iter()
            .position(|member| *member == qp)
            .ok_or(HcaError::InvalidParameter)?;
        members.remove(at);
        if members.is_empty() {
            self.groups.remove(&(mgid, mlid));
        }
        Ok(())
    }

    /// Ends all attachments of a function.
    pub(super) fn detach_all(&mut self, function: FunctionId) {
        self.groups.retain(|_, members| {
            members.retain(|member| member.function != function);
            !members.is_empty()
        });
    }
}
