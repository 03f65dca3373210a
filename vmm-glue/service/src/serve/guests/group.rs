//! Guests in multicast groups.

use ib_endpoint::sa_client::{QueryId, StandingId, Wish};
use ib_endpoint::{PortView, SaAnswer, SaError, SaRequest};
use ib_vtime::Instant;
use ib_wire::sa::{JoinState, McMemberRecord};
use ib_wire::{Gid, GidIndex, PKey, PKeyIndex};
use vhca_control::Facts;

use super::send::Errand;
use super::{Awaited, Begun, Guests, JobId, PORT, QKEY, datagram_spec};
use vhca::world::{HostFunction, SocketId, World};

/// Why a join failed of which nothing is wanted any more.
pub(super) const LEFT: &str = "the guest has left the group meanwhile";

/// How far a membership is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The SA was asked whether there is such a group, and which parameters it has.
    LookedUp(QueryId),
    /// The SA was asked for the membership.
    Asked(StandingId),
}

/// A guest's membership of a group.
#[derive(Debug)]
pub(super) struct Group {
    mgid: Gid,
    stage: Stage,
    /// The guest's GID when the membership was asked for, by which the SA knows it.
    port_gid: Gid,
    /// Record that the SA granted. Once there is one, the queue pair is attached.
    pub(super) record: Option<McMemberRecord>,
    /// Queue pair of its own, because the group's Q_Key or partition is not that of the guest's datagrams.
    socket: Option<SocketId>,
}

impl Group {
    /// Asks the SA for the group. A join names the parameters of a group that exists, because the SA refuses any
    /// others; the guest chooses those of a group that does not.
    fn look_up(world: &mut World, now: Instant, on: HostFunction, mgid: Gid) -> (Self, QueryId) {
        let record = McMemberRecord {
            mgid,
            ..McMemberRecord::default()
        };
        let request = SaRequest::get(&record, McMemberRecord::MGID);
        let query = world.port_mut(on.port(PORT)).query(now, request);
        let group = Self {
            mgid,
            stage: Stage::LookedUp(query),
            port_gid: Gid::NONE,
            record: None,
            socket: None,
        };
        (group, query)
    }

    /// Asks the SA to let the guest be a member, of a group with the parameters of `like` or the guest's own.
    fn ask(
        &mut self,
        world: &mut World,
        now: Instant,
        on: HostFunction,
        like: Option<McMemberRecord>,
    ) -> StandingId {
        let port = world.port_mut(on.port(PORT));
        self.port_gid = port.view().gid(GidIndex(0)).unwrap_or(Gid::NONE);
        let own = McMemberRecord {
            qkey: QKEY,
            pkey: first_partition(port.view()),
            ..McMemberRecord::default()
        };
        let mut record = McMemberRecord {
            mgid: self.mgid,
            port_gid: self.port_gid,
            ..like.unwrap_or(own)
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        let mask = McMemberRecord::CREATE;
        let standing = port.wish(now, Wish::Membership { record, mask });
        self.stage = Stage::Asked(standing);
        standing
    }

    fn is_asked_by(&self, standing: StandingId) -> bool {
        self.stage == Stage::Asked(standing)
    }

    /// Returns the queue pair that sends to the group and receives from it, given the guest's own.
    pub(super) fn socket(&self, guest: SocketId) -> SocketId {
        self.socket.unwrap_or(guest)
    }

    /// Returns the queue pair of the group alone, if it has one.
    pub(super) const fn own_socket(&self) -> Option<SocketId> {
        self.socket
    }

    /// Attaches a queue pair to the group as the SA granted it.
    fn attach(
        &mut self,
        world: &mut World,
        on: HostFunction,
        guest: SocketId,
        granted: McMemberRecord,
    ) -> Result<(), String> {
        let same = |held: McMemberRecord| {
            (held.mlid, held.qkey, held.pkey) == (granted.mlid, granted.qkey, granted.pkey)
        };
        if self.record.is_some_and(same) {
            self.record = Some(granted);
            return Ok(());
        }
        self.detach(world, on, guest);
        let pkey_index = partition_index(world, on, granted.pkey)?;
        if (granted.qkey, pkey_index) != (QKEY, PKeyIndex(0)) {
            let opened = world.open_socket(on, datagram_spec(granted.qkey, pkey_index));
            let cannot = |error| format!("cannot open a queue pair: {error}");
            self.socket = Some(opened.map_err(cannot)?);
        }
        let qp = world.socket(self.socket(guest)).qp().handle();
        let attached = world.with_hca(on, |hca| {
            hca.attach_multicast(qp, granted.mgid, granted.mlid)
        });
        attached.map_err(|error| format!("cannot attach the queue pair: {error}"))?;
        self.record = Some(granted);
        Ok(())
    }

    /// Detaches the guest's queue pair, or closes that of the group.
    fn detach(&mut self, world: &mut World, on: HostFunction, guest: SocketId) {
        let record = self.record.take();
        // A queue pair or a function that is gone receives nothing either.
        if let Some(socket) = self.socket.take() {
            let _ = world.close_socket(socket);
        } else if let Some(record) = record {
            let qp = world.socket(guest).qp().handle();
            let _ = world.with_hca(on, |hca| hca.detach_multicast(qp, self.mgid, record.mlid));
        }
    }
}

/// Returns the partition in which the port's groups are made: that of its first key, as IPoIB takes it
/// (`ipoib_dev_init`). The key of a full member, because it names the partition and not who asks.
fn first_partition(view: &PortView) -> PKey {
    let mut keys = view.pkeys.iter().filter(|key| key.is_valid());
    keys.next().map_or(PKey::DEFAULT_FULL, |key| key.full())
}

/// Returns the index of the key by which the VF is in a group's partition.
fn partition_index(world: &World, on: HostFunction, pkey: PKey) -> Result<PKeyIndex, String> {
    let index = world.port(on.port(PORT)).view().partition_index(pkey);
    index.ok_or_else(|| {
        format!("the VF is not in the group's partition {pkey}; vhca show pkeys lists its keys")
    })
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
        let (group, query) = Group::look_up(world, now, on, mgid);
        guest.groups.insert(mgid, group);
        Begun::Waits(Awaited::Query(query), Errand::Join(mgid))
    }

    /// Takes what the SA has of a group that a guest is to join.
    pub(super) fn looked_up(
        &mut self,
        world: &mut World,
        on: HostFunction,
        (mgid, job): (Gid, JobId),
        result: Result<SaAnswer, SaError>,
    ) {
        let Some(guest) = self.guests.get_mut(&on) else {
            return;
        };
        let found = match result {
            Ok(answer) => Ok(answer.record::<McMemberRecord>()),
            // There is none, or none that the VF may see.
            Err(SaError::Status(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let found = found.and_then(|group| match group {
            Some(group) => partition_index(world, on, group.pkey).map(|_| Some(group)),
            None => Ok(None),
        });
        match (found, guest.groups.get_mut(&mgid)) {
            (Ok(like), Some(group)) => {
                let standing = group.ask(world, world.now(), on, like);
                let waiting = (job, Errand::Tell);
                guest.waiting.insert(Awaited::Membership(standing), waiting);
            }
            (Ok(_), None) => self.jobs.finish(job, on, Err(LEFT.to_owned())),
            (Err(error), _) => {
                guest.groups.remove(&mgid);
                self.jobs.finish(job, on, Err(error));
            }
        }
    }

    /// The guest's GIDs are others. Memberships are a GID's, so those of the old one end, and new ones
    /// are asked for.
    pub(super) fn gid_changed(&mut self, world: &mut World, now: Instant, on: HostFunction) {
        let gid = world.port(on.port(PORT)).view().gid(GidIndex(0));
        let (Some(gid), Some(guest)) = (gid, self.guests.get_mut(&on)) else {
            return;
        };
        for group in guest.groups.values_mut() {
            let Stage::Asked(standing) = group.stage else {
                continue;
            };
            if group.port_gid == gid {
                continue;
            }
            let like = group.record;
            group.detach(world, on, guest.socket);
            // Before the new one is asked for: the end of the old must not come last.
            world.port_mut(on.port(PORT)).withdraw(now, standing);
            let asked = group.ask(world, now, on, like);
            if let Some(joining) = guest.waiting.remove(&Awaited::Membership(standing)) {
                guest.waiting.insert(Awaited::Membership(asked), joining);
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
        let Some((socket, mut group)) = group else {
            return Begun::failed("the guest is not in the group");
        };
        let was_granted = group.record.is_some();
        group.detach(world, on, socket);
        let (awaited, standing) = match group.stage {
            Stage::LookedUp(query) => {
                world.port_mut(on.port(PORT)).cancel_query(query);
                (Awaited::Query(query), None)
            }
            Stage::Asked(standing) => (Awaited::Membership(standing), Some(standing)),
        };
        if let Some((job, _)) = self.taken(on, awaited) {
            self.jobs.finish(job, on, Err(LEFT.to_owned()));
        }
        // Of a membership that was not granted yet the SA may know nothing, and then says so.
        match standing.filter(|standing| self.withdraw(world, now, on, mgid, *standing)) {
            Some(standing) if was_granted => {
                Begun::Waits(Awaited::Withdrawal(standing), Errand::Tell)
            }
            _ => Begun::Done(Ok(Facts::new())),
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

    /// Takes a grant of the SA, the first one or a later one.
    pub(super) fn granted(
        &mut self,
        world: &mut World,
        on: HostFunction,
        standing: StandingId,
        answer: &SaAnswer,
    ) {
        let outcome = self.enter(world, on, standing, answer);
        if outcome.is_err() {
            self.give_up(world, on, standing);
        }
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
        let left = || LEFT.to_owned();
        let guest = self.guests.get_mut(&on).ok_or_else(left)?;
        let mut groups = guest.groups.values_mut();
        let group = groups.find(|group| group.is_asked_by(standing));
        let group = group.ok_or_else(left)?;
        group.attach(world, on, guest.socket, granted)?;
        Ok(membership(&granted))
    }

    /// Ends a membership that the guest cannot have.
    fn give_up(&mut self, world: &mut World, on: HostFunction, standing: StandingId) {
        let given_up = self.guests.get_mut(&on).and_then(|guest| {
            let mut groups = guest.groups.iter();
            let (mgid, _) = groups.find(|(_, group)| group.is_asked_by(standing))?;
            guest.groups.remove_entry(&mgid.clone())
        });
        if let Some((mgid, _)) = given_up {
            self.withdraw(world, world.now(), on, mgid, standing);
        }
    }

    /// Takes a refusal of the SA, which ends a membership that was just asked for.
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
        self.give_up(world, on, standing);
        self.jobs.finish(job, on, Err(error.to_string()));
    }
}

fn membership(record: &McMemberRecord) -> Facts {
    Facts::new()
        .show("mlid", record.mlid)
        .show("pkey", record.pkey)
        .show("qkey", record.qkey)
}
