//! Guests in multicast groups.

use ib_endpoint::sa_client::{StandingId, Wish};
use ib_endpoint::{SaAnswer, SaError};
use ib_vtime::Instant;
use ib_wire::sa::{JoinState, McMemberRecord};
use ib_wire::{Gid, GidIndex, PKey};

use super::send::Errand;
use super::{Awaited, Begun, Guests, PORT, QKEY};
use crate::demo::Facts;
use crate::world::{HostFunction, World};

/// What is told of a membership that was to be, and of which nobody wants to know any more.
const LEFT: &str = "the guest has left the group meanwhile";

/// A guest's membership of a group.
#[derive(Debug)]
pub(super) struct Group {
    standing: StandingId,
    /// What the SA granted, once it did. The guest's queue pair is attached then.
    pub(super) record: Option<McMemberRecord>,
}

impl Guests {
    pub(super) fn join(
        &mut self,
        world: &mut World,
        now: Instant,
        on: HostFunction,
        mgid: Gid,
    ) -> Begun {
        let Some(guest) = self.guests.get_mut(&on) else {
            return Begun::failed("the guest is gone");
        };
        match guest.groups.get(&mgid) {
            Some(Group {
                record: Some(record),
                ..
            }) => return Begun::Done(Ok(membership(record))),
            Some(_) => return Begun::failed("the guest is joining the group already"),
            None if guest.leaving.values().any(|left| *left == mgid) => {
                // To the SA it is one membership, and a repeated request to end it could come last.
                return Begun::failed("the guest is still leaving the group; try again");
            }
            None => {}
        }
        let port = world.port_mut(on.port(PORT));
        let mut record = McMemberRecord {
            mgid,
            port_gid: port.view().gid(GidIndex(0)).unwrap_or(Gid::NONE),
            qkey: QKEY,
            pkey: PKey::DEFAULT_FULL,
            ..McMemberRecord::default()
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        // The later members name the same as the one that makes the group.
        let mask = McMemberRecord::CREATE;
        let standing = port.wish(now, Wish::Membership { record, mask });
        let group = Group {
            standing,
            record: None,
        };
        guest.groups.insert(mgid, group);
        Begun::Waits(Awaited::Membership(standing), Errand::Tell)
    }

    pub(super) fn leave(
        &mut self,
        world: &mut World,
        now: Instant,
        on: HostFunction,
        mgid: Gid,
    ) -> Begun {
        let guest = self.guests.get_mut(&on);
        let group = guest.and_then(|guest| {
            let group = guest.groups.remove(&mgid)?;
            Some((guest.socket, group))
        });
        let Some((socket, group)) = group else {
            return Begun::failed("the guest is not in the group");
        };
        if let Some(record) = group.record {
            let qp = world.socket(socket).qp().handle();
            // A queue pair that is not attached gets nothing either.
            let _ = world.with_hca(on, |hca| hca.detach_multicast(qp, mgid, record.mlid));
        }
        if let Some((job, _)) = self.taken(on, Awaited::Membership(group.standing)) {
            self.jobs.finish(job, on, Err(LEFT.to_owned()));
        }
        if self.withdraw(world, now, on, mgid, group.standing) {
            Begun::Waits(Awaited::Withdrawal(group.standing), Errand::Tell)
        } else {
            Begun::Done(Ok(Facts::new()))
        }
    }

    /// Takes a membership back at the SA. `false` if there is none.
    fn withdraw(
        &mut self,
        world: &mut World,
        now: Instant,
        on: HostFunction,
        mgid: Gid,
        standing: StandingId,
    ) -> bool {
        let is_asked = world.port_mut(on.port(PORT)).withdraw(now, standing);
        if is_asked && let Some(guest) = self.guests.get_mut(&on) {
            guest.leaving.insert(standing, mgid);
        }
        is_asked
    }

    /// The SA granted a membership, for the first time or once more.
    pub(super) fn granted(
        &mut self,
        world: &mut World,
        on: HostFunction,
        standing: StandingId,
        answer: &SaAnswer,
    ) {
        let outcome = self.enter(world, on, standing, answer);
        if let Some((job, _)) = self.taken(on, Awaited::Membership(standing)) {
            self.jobs.finish(job, on, outcome);
        }
    }

    fn enter(
        &mut self,
        world: &mut World,
        on: HostFunction,
        standing: StandingId,
        answer: &SaAnswer,
    ) -> Result<Facts, String> {
        let none = || "the SA's answer has no membership".to_owned();
        let granted: McMemberRecord = answer.record().ok_or_else(none)?;
        let gone = || LEFT.to_owned();
        let guest = self.guests.get_mut(&on).ok_or_else(gone)?;
        let mut groups = guest.groups.iter_mut();
        let group = groups.find(|(_, group)| group.standing == standing);
        let (mgid, group) = group.ok_or_else(gone)?;
        let before = group.record.map(|record| record.mlid);
        if before != Some(granted.mlid) {
            let qp = world.socket(guest.socket).qp().handle();
            let attached = world.with_hca(on, |hca| {
                if let Some(mlid) = before {
                    hca.detach_multicast(qp, *mgid, mlid)?;
                }
                hca.attach_multicast(qp, *mgid, granted.mlid)
            });
            attached.map_err(|error| format!("cannot attach the queue pair: {error}"))?;
        }
        group.record = Some(granted);
        Ok(membership(&granted))
    }

    /// The SA did not grant a membership: who just asked for it is told, and it is given up.
    pub(super) fn refused(
        &mut self,
        world: &mut World,
        on: HostFunction,
        standing: StandingId,
        error: SaError,
    ) {
        let Some((job, _)) = self.taken(on, Awaited::Membership(standing)) else {
            return;
        };
        let refused = self.guests.get_mut(&on).and_then(|guest| {
            let mut groups = guest.groups.iter();
            let (mgid, _) = groups.find(|(_, group)| group.standing == standing)?;
            guest.groups.remove_entry(&mgid.clone())
        });
        if let Some((mgid, _)) = refused {
            self.withdraw(world, world.now(), on, mgid, standing);
        }
        self.jobs.finish(job, on, Err(error.to_string()));
    }
}

fn membership(record: &McMemberRecord) -> Facts {
    Facts::new()
        .show("mlid", record.mlid)
        .show("pkey", record.pkey)
        .show("qkey", record.qkey)
}
