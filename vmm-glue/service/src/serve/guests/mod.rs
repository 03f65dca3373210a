//! The guests that the service itself runs on VFs: by them a VF is used without a VM.
//!
//! A guest has an end port on the VF's proxy of QP1 and a datagram queue pair, both on the VF's first
//! port. It joins and leaves groups, asks for paths, and sends; what it receives is counted.

mod group;
mod jobs;
mod paths;
mod send;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::iter;

use hca_api::{PortChange, QpKind};
use ib_endpoint::sa_client::{QueryId, StandingId};
use ib_endpoint::{DatagramQpSpec, EndPortEvent, PortPath, SaAnswer, SaError, SaEvent, SaRequest};
use ib_vtime::Instant;
use ib_wire::sa::PathRecord;
use ib_wire::smp::PortState;
use ib_wire::{Gid, GidIndex, PKeyIndex, PortNum, QKey};
use vhca_control::{Facts, GuestAction, GuestReport};

use super::inventory::NamedVf;
use group::Group;
use jobs::Jobs;
use paths::Burst;
use send::Errand;
use vhca::world::{HostFunction, HostId, HostPortId, SocketId, World};

pub use jobs::JobId;

/// The port of its VF that a guest uses.
const PORT: u8 = 1;

/// The Q_Key of guests' datagrams.
const QKEY: QKey = QKey::new(0x1111_1111);

/// Bytes of a guest's longest message.
const MAX_MESSAGE: u32 = 2048;

/// An action with its addresses understood.
#[derive(Clone, Debug)]
enum Order {
    Join(Gid),
    Leave(Gid),
    Query(Gid),
    Send(Gid, String),
    Paths(u32, usize),
    Status,
}

impl TryFrom<&GuestAction> for Order {
    type Error = String;

    fn try_from(action: &GuestAction) -> Result<Self, String> {
        Ok(match action {
            GuestAction::Join { mgid } => Self::Join(multicast(mgid)?),
            GuestAction::Leave { mgid } => Self::Leave(multicast(mgid)?),
            GuestAction::Query { dgid } => Self::Query(gid(dgid)?),
            GuestAction::Send { to, text } => {
                if text.len() > MAX_MESSAGE as usize {
                    return Err(format!("a message has at most {MAX_MESSAGE} bytes"));
                }
                Self::Send(gid(to)?, text.clone())
            }
            GuestAction::Paths { count: 0, .. }
            | GuestAction::Paths {
                destinations: 0, ..
            } => return Err("there must be a path to ask for".to_owned()),
            GuestAction::Paths {
                count,
                destinations,
            } => Self::Paths(*count, *destinations),
            GuestAction::Status {} => Self::Status,
        })
    }
}

fn gid(text: &str) -> Result<Gid, String> {
    let address: Result<std::net::Ipv6Addr, _> = text.parse();
    address
        .map(|address| Gid(address.octets()))
        .map_err(|_| format!("{text:?} is no GID, which is written as an IPv6 address"))
}

fn multicast(text: &str) -> Result<Gid, String> {
    let gid = gid(text)?;
    if gid.0[0] == 0xff {
        Ok(gid)
    } else {
        Err(format!("{text} is no multicast GID, which begins with ff"))
    }
}

/// What an answer of the SA is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Awaited {
    Query(QueryId),
    Membership(StandingId),
    Withdrawal(StandingId),
}

/// What was begun for a guest.
enum Begun {
    /// It is done, or cannot be.
    Done(Result<Facts, String>),
    /// It goes on by itself.
    Later,
    /// The SA was asked.
    Waits(Awaited, Errand),
}

impl Begun {
    fn failed(why: impl Into<String>) -> Self {
        Self::Done(Err(why.into()))
    }
}

/// A guest.
#[derive(Debug)]
struct Guest {
    socket: SocketId,
    groups: BTreeMap<Gid, Group>,
    /// Memberships that the SA was asked to end.
    leaving: BTreeMap<StandingId, Gid>,
    waiting: BTreeMap<Awaited, (JobId, Errand)>,
    burst: Option<Burst>,
    received: u64,
    by_multicast: u64,
    last: Option<String>,
}

/// The guests of a lab.
#[derive(Debug, Default)]
pub(super) struct Guests {
    guests: BTreeMap<HostFunction, Guest>,
    jobs: Jobs,
}

impl Guests {
    /// Takes a guest whose software was just started.
    pub(super) fn add(
        &mut self,
        world: &mut World,
        on: HostFunction,
    ) -> Result<(), hca_api::HcaError> {
        let spec = datagram_spec(QKEY, PKeyIndex(0));
        let guest = Guest {
            socket: world.open_socket(on, spec)?,
            groups: BTreeMap::new(),
            leaving: BTreeMap::new(),
            waiting: BTreeMap::new(),
            burst: None,
            received: 0,
            by_multicast: 0,
            last: None,
        };
        self.guests.insert(on, guest);
        Ok(())
    }

    /// Has guests do something. What came of it is told by [`Guests::poll_report`].
    ///
    /// # Errors
    /// What is wrong with the action.
    pub(super) fn start(
        &mut self,
        world: &mut World,
        now: Instant,
        vfs: &[NamedVf],
        action: &GuestAction,
    ) -> Result<JobId, String> {
        let order = Order::try_from(action)?;
        let patience = match order {
            Order::Paths(..) => paths::PATIENCE,
            _ => jobs::PATIENCE,
        };
        let job = self.jobs.begin(now + patience, vfs);
        for vf in vfs {
            let on = vf.host.vf(vf.vf);
            match self.begin(world, now, on, job, &order) {
                Begun::Later => {}
                Begun::Done(outcome) => self.jobs.finish(job, on, outcome),
                Begun::Waits(awaited, errand) => {
                    if let Some(guest) = self.guests.get_mut(&on) {
                        guest.waiting.insert(awaited, (job, errand));
                    }
                }
            }
        }
        Ok(job)
    }

    /// What came of a job, once it is over.
    pub(super) fn poll_report(&mut self, job: JobId) -> Option<Vec<GuestReport>> {
        self.jobs.take(job)
    }

    /// Forgets a job about which nobody wants to know any more.
    pub(super) fn forget(&mut self, job: JobId) {
        self.jobs.forget(job);
    }

    fn begin(
        &mut self,
        world: &mut World,
        now: Instant,
        on: HostFunction,
        job: JobId,
        order: &Order,
    ) -> Begun {
        let Some(guest) = self.guests.get(&on) else {
            return Begun::failed("no guest runs on the VF; vhca serve --guests starts them");
        };
        if let Order::Status = order {
            return Begun::Done(Ok(guest.status(world, on)));
        }
        if world.port(on.port(PORT)).view().state != PortState::ACTIVE {
            return Begun::failed("the VF's port is down; ask vhca why");
        }
        match order {
            Order::Join(mgid) => self.join(world, now, on, *mgid),
            Order::Leave(mgid) => self.leave(world, now, on, *mgid),
            Order::Query(dgid) => query(world, now, on, *dgid, Errand::Tell),
            Order::Send(to, text) => self.send(world, now, on, *to, text),
            Order::Paths(count, destinations) => {
                self.ask_for_paths(world, now, on, job, (*count, *destinations))
            }
            Order::Status => Begun::Done(Ok(Facts::new())),
        }
    }

    /// Takes what came in at the guests of a host.
    pub(super) fn poll(&mut self, world: &mut World, host: HostId) {
        let from = self.guests.range(host.pf()..);
        let of_host = from.take_while(|(on, _)| on.host == host);
        let functions: Vec<HostFunction> = of_host.map(|(on, _)| *on).collect();
        for on in functions {
            while let Some(event) = world.poll_event(on.port(PORT)) {
                match event {
                    EndPortEvent::Sa(event) => self.take(world, on, event),
                    EndPortEvent::Port(change) if change.contains(PortChange::GID_TABLE) => {
                        self.gid_changed(world, world.now(), on);
                    }
                    _ => {}
                }
            }
            if let Some(guest) = self.guests.get_mut(&on) {
                guest.receive(world);
            }
        }
    }

    /// Gives up what has waited too long.
    pub(super) fn expire(&mut self, now: Instant) {
        self.jobs.expire(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.jobs.next_deadline()
    }

    fn take(&mut self, world: &mut World, on: HostFunction, event: SaEvent) {
        match event {
            SaEvent::Answered { query, result }
                if self.path_answered(world, on, query, &result) => {}
            SaEvent::Answered { query, result } => {
                let Some((job, errand)) = self.taken(on, Awaited::Query(query)) else {
                    return;
                };
                if let Errand::Join(mgid) = errand {
                    return self.looked_up(world, on, (mgid, job), result);
                }
                let outcome = path(world, on, result)
                    .and_then(|(path, facts)| self.run_errand(world, on, &path, facts, errand));
                self.jobs.finish(job, on, outcome);
            }
            SaEvent::Granted { standing, answer } => self.granted(world, on, standing, &answer),
            SaEvent::Refused {
                standing, error, ..
            } => self.refused(world, on, standing, error),
            SaEvent::Withdrawn { standing, result } => {
                if let Some(guest) = self.guests.get_mut(&on) {
                    guest.leaving.remove(&standing);
                }
                if let Some((job, _)) = self.taken(on, Awaited::Withdrawal(standing)) {
                    let outcome = result.map(|()| Facts::new());
                    let outcome = outcome.map_err(|error| error.to_string());
                    self.jobs.finish(job, on, outcome);
                }
            }
            SaEvent::Notice(_) => {}
        }
    }

    fn taken(&mut self, on: HostFunction, awaited: Awaited) -> Option<(JobId, Errand)> {
        self.guests.get_mut(&on)?.waiting.remove(&awaited)
    }
}

impl Guest {
    fn receive(&mut self, world: &mut World) {
        const SHOWN: usize = 64;

        let of_groups = self.groups.values().filter_map(Group::own_socket);
        for socket in iter::once(self.socket).chain(of_groups) {
            while let Some(datagram) = world.socket_mut(socket).receive() {
                self.received += 1;
                self.by_multicast += u64::from(datagram.multicast);
                let shown = datagram.bytes.len().min(SHOWN);
                let text = String::from_utf8_lossy(&datagram.bytes[..shown]);
                self.last = Some(text.into_owned());
            }
        }
    }

    fn status(&self, world: &World, on: HostFunction) -> Facts {
        let view = world.port(on.port(PORT)).view();
        let gid = view.gid(GidIndex(0));
        let mut facts = Facts::new()
            .with("gid", gid.map(|gid| gid.to_string()))
            .with("lid", view.lid.get())
            .with(
                "qpn",
                world.socket(self.socket).qp().numbers().external.get(),
            )
            .list("groups", self.groups.keys())
            .with("received", self.received)
            .with("by_multicast", self.by_multicast);
        if let Some(last) = &self.last {
            facts = facts.with("last", last.clone());
        }
        facts
    }
}

/// A queue pair for the datagrams of a guest.
const fn datagram_spec(qkey: QKey, pkey_index: PKeyIndex) -> DatagramQpSpec {
    DatagramQpSpec {
        kind: QpKind::Ud,
        port: PortNum(PORT),
        pkey_index,
        qkey,
        receives: 16,
        sends: 16,
        max_message: MAX_MESSAGE,
        block_multicast_loopback: false,
    }
}

/// Asks for a path.
fn query(world: &mut World, now: Instant, on: HostFunction, dgid: Gid, errand: Errand) -> Begun {
    let at = on.port(PORT);
    let Some(sgid) = world.port(at).view().gid(GidIndex(0)) else {
        return Begun::failed("the VF has no GID");
    };
    let request = SaRequest::path_by_gids(sgid, dgid, None);
    let query = world.port_mut(at).query(now, request);
    Begun::Waits(Awaited::Query(query), errand)
}

/// The path that the SA gave, and what is told of it.
fn path(
    world: &World,
    on: HostFunction,
    result: Result<SaAnswer, SaError>,
) -> Result<(PortPath, Facts), String> {
    let answer = result.map_err(|error| error.to_string())?;
    let none = || "the SA's answer has no path".to_owned();
    let record: PathRecord = answer.record().ok_or_else(none)?;
    let at: HostPortId = on.port(PORT);
    let path = PortPath::new(at.port, world.port(at).view(), &record);
    let path = path.map_err(|error| error.to_string())?;
    let facts = Facts::new()
        .with("slid", record.slid.get())
        .with("dlid", record.dlid.get())
        .with("sl", record.sl().get())
        .show("pkey", record.pkey)
        .show("mtu", record.mtu_value())
        .show("rate", record.rate_value());
    Ok((path, facts))
}
