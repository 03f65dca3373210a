//! A multicast group that a VF's program joined, and the queue pairs that listen to it.

use std::collections::BTreeMap;

use hca_api::{Hca, HcaError};
use ib_endpoint::sa_client::{QueryId, StandingId};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord};
use ib_wire::{Gid, Lid, PKey, QKey};

use super::{UdQp, UdQpId};

/// Names a group that was joined. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub(super) u64);

/// A membership to ask for (IBA 15.2.5.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// The group and the kind of membership, and what `mask` names besides. The port's GID is filled
    /// in.
    pub record: McMemberRecord,
    /// The components that must hold, besides those that name the membership.
    pub mask: ComponentMask,
}

impl GroupSpec {
    /// A membership in a group that exists.
    #[must_use]
    pub fn join(mgid: Gid, kind: JoinState) -> Self {
        let mut record = McMemberRecord {
            mgid,
            ..McMemberRecord::default()
        };
        record.set_join_state(kind);
        Self {
            record,
            mask: ComponentMask::NONE,
        }
    }

    /// A membership in a group that is made if it does not exist, by a full member (IBA 15.2.5.17: what
    /// it must name then). With the MGID 0 the SA chooses one, and the group is a new one.
    #[must_use]
    pub fn create(mgid: Gid, kind: JoinState, pkey: PKey, qkey: QKey) -> Self {
        let mut spec = Self::join(mgid, kind);
        spec.record.pkey = pkey;
        spec.record.qkey = qkey;
        spec.mask = McMemberRecord::CREATE;
        spec
    }
}

/// How far a membership is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The port has no GID to join with.
    NoGid,
    /// Asked for a group whose MGID the SA chooses.
    Creating(QueryId),
    /// The SA client's to keep.
    Wished(StandingId),
    /// Being left.
    Leaving(StandingId),
    /// Left while it was made.
    LeavingUnmade(QueryId),
}

/// A group that was joined.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) spec: GroupSpec,
    /// The GID that the membership was asked for with.
    pub(super) port_gid: Gid,
    pub(super) progress: Progress,
    /// What the SA granted.
    pub(super) granted: Option<McMemberRecord>,
    /// The queue pairs that listen, each with the MGID and MLID that it is attached to.
    listeners: BTreeMap<UdQpId, Option<(Gid, Lid)>>,
}

impl Group {
    pub(super) const fn new(spec: GroupSpec) -> Self {
        Self {
            spec,
            port_gid: Gid::NONE,
            progress: Progress::NoGid,
            granted: None,
            listeners: BTreeMap::new(),
        }
    }

    pub(super) const fn is_leaving(&self) -> bool {
        matches!(
            self.progress,
            Progress::Leaving(_) | Progress::LeavingUnmade(_)
        )
    }

    /// Whether another membership of the port would be the same one to the SA.
    pub(super) fn overlaps(&self, spec: &GroupSpec) -> bool {
        let own = &self.spec.record;
        let both = own.join_state().get() & spec.record.join_state().get();
        own.mgid == spec.record.mgid && !own.mgid.is_none() && both != 0
    }

    /// Where the queue pairs belong now; nowhere for those that only send.
    fn place(&self) -> Option<(Gid, Lid)> {
        let record = self.granted.as_ref()?;
        let receives = self.spec.record.join_state().receives();
        receives.then_some((record.mgid, record.mlid))
    }

    /// Attaches a queue pair as soon as the membership is granted.
    pub(super) fn attach(
        &mut self,
        hca: &mut dyn Hca,
        id: UdQpId,
        qp: &UdQp,
    ) -> Result<(), HcaError> {
        let mut at = self.listeners.get(&id).copied().flatten();
        let moved = move_to(hca, qp, &mut at, self.place());
        if moved.is_ok() {
            self.listeners.insert(id, at);
        }
        moved
    }

    /// Detaches a queue pair. `false` if it does not listen.
    pub(super) fn detach(&mut self, hca: &mut dyn Hca, id: UdQpId, qp: &UdQp) -> bool {
        let Some(mut at) = self.listeners.remove(&id) else {
            return false;
        };
        // Nothing can refuse a detachment but a reset, after which there is none.
        let _ = move_to(hca, qp, &mut at, None);
        true
    }

    /// Brings all queue pairs to where they belong now. Gives those that could not be attached.
    pub(super) fn settle(
        &mut self,
        hca: &mut dyn Hca,
        qps: &BTreeMap<UdQpId, UdQp>,
    ) -> Vec<(UdQpId, HcaError)> {
        let place = self.place();
        let mut failed = Vec::new();
        for (id, at) in &mut self.listeners {
            if let Some(qp) = qps.get(id)
                && let Err(error) = move_to(hca, qp, at, place)
            {
                failed.push((*id, error));
            }
        }
        failed
    }
}

/// Moves a queue pair's attachment.
fn move_to(
    hca: &mut dyn Hca,
    qp: &UdQp,
    at: &mut Option<(Gid, Lid)>,
    to: Option<(Gid, Lid)>,
) -> Result<(), HcaError> {
    if *at == to {
        return Ok(());
    }
    let handle = qp.qp().handle();
    if let Some((mgid, mlid)) = at.take() {
        hca.detach_multicast(handle, mgid, mlid)?;
    }
    if let Some((mgid, mlid)) = to {
        hca.attach_multicast(handle, mgid, mlid)?;
        *at = to;
    }
    Ok(())
}
