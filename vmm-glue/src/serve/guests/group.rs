//! Guests in multicast groups.

use ib_endpoint::sa_client::{StandingId, Wish};
use ib_endpoint::{SaAnswer, SaError};
use ib_vtime::Instant;
use ib_wire::sa::{JoinState, McMemberRecord};
use ib_wire::{Gid, GidIndex, PKey};

use super::send::Errand;
use super::{Awaited, Begun, Guests, PORT, QKEY};
use crate::demo::Facts;
use crate::world::{HostFunction, SocketId, World};

/// What is told of a membership that was to be, and of which nobody wants to know any more.
const LEFT: &str = "the guest has left the group meanwhile";

/// A guest's membership of a group.
#[derive(Debug)]
pub(super) struct Group {
    standing: StandingId,
    /// Whose membership it is: the guest's GID when it was asked for.
    port_gid: Gid,
    /// What the SA granted, once it did. The guest's queue pair is attached then.
    pub(super) record: Option<McMemberRecord>,
}

impl Group {
    /// Asks the SA to let the guest be a member.
    fn ask(world: &mut World, now: Instant, on: HostFunction, mgid: Gid) -> Self {
        let port = world.port_mut(on.port(PORT));
        let port_gid = port.view().gid(GidIndex(0)).unwrap_or(Gid::NONE);
        let mut record = McMemberRecord {
            mgid,
            port_gid,
            qkey: QKEY,
            pkey: PKey::DEFAULT_FULL,
            ..McMemberRecord::default()
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        // The later members name the same as the one that makes the group.
        let mask = McMemberRecord::CREATE;
        Self {
            standing: port.wish(now, Wish::Membership { record, mask }),
            port_gid,
            record: None,
        }
    }

    /// Lets the guest's queue pair get nothing of the group any more.
    fn detach(&self, world: &mut World, on: HostFunction, socket: SocketId, mgid: Gid) {
        if let Some(record) = self.record {
            let qp = world.socket(socket).qp().handle();
            // A queue pair that is not attached gets nothing either.
            let _ = world.with_hca(on, |hca| hca.detach_multicast(qp, mgid, record.mlid));
        }
    }
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
        let group = Group::ask(world, now, on, mgid);
        let standing = group.standing;
        guest.groups.insert(mgid, group);
        Begun::Waits(Awaited::Membership(standing), Errand::Tell)
    }

    /// The guest's GIDs are others. Memberships are a GID's, so those of the old one end, and new ones
    /// are asked for.
    pub(super) fn gid_changed(&mut self, world: &mut World, now: Instant, on: HostFunction) {
        let gid = world.port(on.port(PORT)).view().gid(GidIndex(0));
        let (Some(gid), Some(guest)) = (gid, self.guests.get_mut(&on)) else {
            return;
        };
        for (mgid, group) in &mut guest.groups {
            if group.port_gid == gid {
                continue;
            }
            group.detach(world, on, guest.socket, *mgid);
            // Before the new one is asked for: the end of the old must not come last.
            world.port_mut(on.port(PORT)).withdraw(now, group.standing);
            let old = Awaited::Membership(group.standing);
            *group = Group::ask(world, now, on, *mgid);
            if let Some(joining) = guest.waiting.remove(&old) {
                let awaited = Awaited::Membership(group.standing);
                guest.waiting.insert(awaited, joining);
            }
        }
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
        group.detach(world, on, socket, mgid);
        if let Some((job, _)) = self.taken(on, Awaited::Membership(group.standing)) {
            self.jobs.finish(job, on, Err(LEFT.to_owned()));
        }
        let is_asked = self.withdraw(world, now, on, mgid, group.standing);
        // Of a membership that was not granted yet the SA may know nothing, and then says so.
        if is_asked && group.record.is_some() {
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
