//! The multicast groups of a VF's port.

use hca_api::Hca;
use ib_endpoint::sa_client::{QueryId, StandingId, Wish};
use ib_endpoint::{EndPort, SaAnswer, SaError, SaEvent, SaRequest, group_destination};
use ib_vtime::Instant;
use ib_wire::mad::MadStatus;
use ib_wire::sa::McMemberRecord;
use ib_wire::{Gid, GidIndex};

use super::group::{Group, Progress};
use super::{GroupEvent, GroupId, GroupSpec, ProxyQp, UdQpId, VfPort, VfPortError, VfPortEvent};

impl VfPort {
    /// Joins a multicast group and stays in it: the membership is asked for until it is granted, and
    /// again whenever the SA may have forgotten it. What becomes of it comes as
    /// [`VfPortEvent::Group`].
    ///
    /// # Errors
    /// [`VfPortError::AlreadyJoined`]: to the SA it would be the same membership as one that the port
    /// has, or has not finished leaving.
    pub fn join(&mut self, now: Instant, spec: GroupSpec) -> Result<GroupId, VfPortError> {
        if self.groups.values().any(|group| group.overlaps(&spec)) {
            return Err(VfPortError::AlreadyJoined);
        }
        let id = GroupId(self.fresh());
        let mut group = Group::new(spec);
        ask(now, &mut self.end_port, &mut group);
        self.groups.insert(id, group);
        Ok(id)
    }

    /// Lets a queue pair listen to a group, as soon as its membership is granted and as long as it
    /// is. With a membership that only sends, nothing is ever attached.
    ///
    /// # Errors
    /// [`VfPortError::NoGroup`], [`VfPortError::NoQp`], or what the HCA says.
    pub fn attach(
        &mut self,
        hca: &mut dyn Hca,
        group: GroupId,
        qp: UdQpId,
    ) -> Result<(), VfPortError> {
        let (group, queue_pair) = self.group_and_qp(group, qp)?;
        Ok(group.attach(hca, qp, queue_pair)?)
    }

    /// Ends what [`Self::attach`] began.
    ///
    /// # Errors
    /// [`VfPortError::NoGroup`], [`VfPortError::NoQp`] also if the queue pair does not listen.
    pub fn detach(
        &mut self,
        hca: &mut dyn Hca,
        group: GroupId,
        qp: UdQpId,
    ) -> Result<(), VfPortError> {
        let (group, queue_pair) = self.group_and_qp(group, qp)?;
        if group.detach(hca, qp, queue_pair) {
            Ok(())
        } else {
            Err(VfPortError::NoQp)
        }
    }

    /// Leaves a group: its queue pairs are detached at once, and [`GroupEvent::Left`] tells when the
    /// SA knows.
    ///
    /// # Errors
    /// [`VfPortError::NoGroup`].
    pub fn leave(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        group: GroupId,
    ) -> Result<(), VfPortError> {
        let own = self.groups.get_mut(&group);
        let own = own.filter(|own| !own.is_leaving());
        let own = own.ok_or(VfPortError::NoGroup)?;
        own.granted = None;
        own.settle(hca, &self.qps);
        match own.progress {
            Progress::Wished(standing) if self.end_port.withdraw(now, standing) => {
                own.progress = Progress::Leaving(standing);
            }
            Progress::Wished(standing) => {
                // The SA has refused it, which was not taken yet.
                self.orphans.insert(standing);
                self.forget(group, Ok(()));
            }
            Progress::Creating(query) => own.progress = Progress::LeavingUnmade(query),
            _ => self.forget(group, Ok(())),
        }
        Ok(())
    }

    /// What the SA granted of a group's membership; `None` while it does not.
    #[must_use]
    pub fn membership(&self, group: GroupId) -> Option<&McMemberRecord> {
        self.groups.get(&group)?.granted.as_ref()
    }

    /// Sends a message to a group.
    ///
    /// # Errors
    /// [`VfPortError::NoGroup`], [`VfPortError::NotJoined`], and as [`VfPort::send`].
    pub fn send_to_group(
        &mut self,
        hca: &mut dyn Hca,
        qp: UdQpId,
        group: GroupId,
        message: &[u8],
    ) -> Result<(), VfPortError> {
        let group = self.groups.get(&group).ok_or(VfPortError::NoGroup)?;
        let record = group.granted.as_ref().ok_or(VfPortError::NotJoined)?;
        let to = group_destination(self.end_port.port(), record);
        self.send(hca, qp, &to, message)
    }

    fn group_and_qp(
        &mut self,
        group: GroupId,
        qp: UdQpId,
    ) -> Result<(&mut Group, &super::UdQp), VfPortError> {
        let group = self.groups.get_mut(&group);
        let group = group.filter(|group| !group.is_leaving());
        let qp = self.qps.get(&qp).ok_or(VfPortError::NoQp)?;
        Ok((group.ok_or(VfPortError::NoGroup)?, qp))
    }

    /// Leaves all groups, as far as that goes without an answer.
    pub(super) fn leave_all(&mut self, now: Instant, hca: &mut dyn Hca) {
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            // One that is being left already needs nothing.
            let _ = self.leave(now, hca, id);
        }
    }

    /// The port's GID is another one: memberships are the GID's, so those of the old one end and new
    /// ones are asked for.
    pub(super) fn gid_changed(&mut self, now: Instant, hca: &mut dyn Hca) {
        let gid = self.end_port.view().gid(GidIndex(0)).unwrap_or_default();
        for group in self.groups.values_mut() {
            if group.port_gid == gid || group.is_leaving() {
                continue;
            }
            group.granted = None;
            group.settle(hca, &self.qps);
            match group.progress {
                Progress::Wished(standing) => {
                    self.orphans.insert(standing);
                    self.end_port.withdraw(now, standing);
                }
                Progress::Creating(query) => {
                    self.end_port.cancel_query(query);
                }
                _ => {}
            }
            ask(now, &mut self.end_port, group);
        }
    }

    /// Takes an event of the SA client that is about a group; gives it back if it is about something
    /// else.
    pub(super) fn take_group_event(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        event: SaEvent,
    ) -> Option<SaEvent> {
        match event {
            SaEvent::Granted { standing, answer } => {
                match self.group_with(Progress::Wished(standing)) {
                    Some(id) => self.joined(hca, id, &answer),
                    None if self.was_own(standing) => {}
                    None => return Some(SaEvent::Granted { standing, answer }),
                }
            }
            SaEvent::Refused {
                standing,
                error,
                retry_at,
            } => match self.group_with(Progress::Wished(standing)) {
                Some(id) => self.refused(hca, id, error, retry_at),
                None if retry_at.is_none() && self.orphans.remove(&standing) => {}
                None if self.was_own(standing) => {}
                None => return Some(event),
            },
            SaEvent::Withdrawn { standing, result } => {
                match self.group_with(Progress::Leaving(standing)) {
                    Some(id) => self.forget(id, result),
                    None if self.orphans.remove(&standing) => {}
                    None => return Some(event),
                }
            }
            SaEvent::Answered { query, result } => {
                return self.take_creation(now, hca, query, result);
            }
            SaEvent::Notice(_) => return Some(event),
        }
        None
    }

    /// Whether a wish was the port's own and was withdrawn. What became of it before concerns nobody.
    fn was_own(&self, standing: StandingId) -> bool {
        self.orphans.contains(&standing) || self.group_with(Progress::Leaving(standing)).is_some()
    }

    fn take_creation(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        query: QueryId,
        result: Result<SaAnswer, SaError>,
    ) -> Option<SaEvent> {
        let made = |result: &Result<SaAnswer, SaError>| {
            let answer = result.as_ref().ok()?;
            answer.record::<McMemberRecord>()
        };
        if let Some(id) = self.group_with(Progress::LeavingUnmade(query)) {
            if let Some(record) = made(&result) {
                let leaving = self.end_port.query(now, SaRequest::leave(&record));
                self.ignored.insert(leaving);
            }
            self.forget(id, result.map(|_| ()));
        } else if let Some(id) = self.group_with(Progress::Creating(query)) {
            match (made(&result), self.groups.get_mut(&id)) {
                (Some(record), Some(group)) => {
                    // From now on it is a membership like any other.
                    group.spec.record.mgid = record.mgid;
                    ask(now, &mut self.end_port, group);
                }
                _ => {
                    // An answer without a record grants nothing.
                    let error = result.err().unwrap_or(SaError::Status(MadStatus::OK));
                    self.refused(hca, id, error, None);
                }
            }
        } else if !self.ignored.remove(&query) {
            return Some(SaEvent::Answered { query, result });
        }
        None
    }

    fn joined(&mut self, hca: &mut dyn Hca, id: GroupId, answer: &SaAnswer) {
        let Some((group, record)) = self.groups.get_mut(&id).zip(answer.record()) else {
            return;
        };
        group.granted = Some(record);
        let failed = group.settle(hca, &self.qps);
        for (qp, error) in failed {
            self.tell_group(id, GroupEvent::NotAttached { qp, error });
        }
        self.tell_group(id, GroupEvent::Joined(Box::new(record)));
    }

    fn refused(
        &mut self,
        hca: &mut dyn Hca,
        id: GroupId,
        error: SaError,
        retry_at: Option<Instant>,
    ) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.granted = None;
            group.settle(hca, &self.qps);
        }
        if retry_at.is_none() {
            self.groups.remove(&id);
        }
        self.tell_group(id, GroupEvent::Refused { error, retry_at });
    }

    fn forget(&mut self, id: GroupId, result: Result<(), SaError>) {
        self.groups.remove(&id);
        self.tell_group(id, GroupEvent::Left(result));
    }

    fn group_with(&self, progress: Progress) -> Option<GroupId> {
        let mut groups = self.groups.iter();
        let (id, _) = groups.find(|(_, group)| group.progress == progress)?;
        Some(*id)
    }

    fn tell_group(&mut self, group: GroupId, event: GroupEvent) {
        self.events.push_back(VfPortEvent::Group { group, event });
    }
}

/// Asks for a group's membership with the GID that the port has now.
fn ask(now: Instant, end_port: &mut EndPort<ProxyQp>, group: &mut Group) {
    let Some(gid) = end_port.view().gid(GidIndex(0)) else {
        group.port_gid = Gid::NONE;
        group.progress = Progress::NoGid;
        return;
    };
    group.port_gid = gid;
    let GroupSpec { record, mask } = group.spec;
    let record = McMemberRecord {
        port_gid: gid,
        ..record
    };
    group.progress = if record.mgid.is_none() {
        Progress::Creating(end_port.query(now, SaRequest::join(&record, mask)))
    } else {
        Progress::Wished(end_port.wish(now, Wish::Membership { record, mask }))
    };
}
