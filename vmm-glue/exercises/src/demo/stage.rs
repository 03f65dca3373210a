//! Where the demo's steps act: the subnet, the clock that drives it, and ways to wait for what
//! should happen.

use std::fmt;
use std::io::Write;

use hca_api::HcaError;
use ib_capture::Writer;
use ib_endpoint::cm::{CmError, CmEvent};
use ib_endpoint::sa_client::{QueryId, StandingId, Wish};
use ib_endpoint::{
    Datagram, EndPortEvent, PathError, PortPath, SaAnswer, SaError, SaEvent, SaRequest,
};
use ib_vtime::{Duration, Instant};
use ib_wire::sa::{McMemberRecord, PathRecord};
use ib_wire::smp::PortState;
use ib_wire::{Gid, GidIndex, PortNum};
use pf_context::context::PfError;
use vf_tunnel::VfId;
use vhca_control::Facts;

use subnet_lite::OpenError;

use super::network::{NamedPort, Network};
use super::{Clock, DemoError, Options, PortTotals};
use vhca::world::{Outcome, VfError, World};
use vhca::{LoopError, RunEnd, Runner};
use vhca_service::show::Totals;

/// Time within which anything on this small subnet should happen.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// Why a step did not succeed.
#[derive(Debug)]
pub(super) enum StepError {
    /// What should have happened did not.
    Failed(String),
    /// The demo itself cannot go on.
    Host(DemoError),
}

/// What a step gives.
pub(super) type StepResult<T = Facts> = Result<T, StepError>;

impl StepError {
    pub(super) fn failed(why: impl fmt::Display) -> Self {
        Self::Failed(why.to_string())
    }
}

impl From<LoopError> for StepError {
    fn from(error: LoopError) -> Self {
        Self::Host(error.into())
    }
}

impl From<HcaError> for StepError {
    fn from(error: HcaError) -> Self {
        Self::Failed(format!("the adapter refused a call: {error}"))
    }
}

impl From<OpenError> for StepError {
    fn from(error: OpenError) -> Self {
        Self::Failed(format!("the subnet manager could not be started: {error}"))
    }
}

impl From<PathError> for StepError {
    fn from(error: PathError) -> Self {
        Self::Failed(format!("the SA's path is of no use: {error}"))
    }
}

impl From<PfError> for StepError {
    fn from(error: PfError) -> Self {
        Self::Failed(format!("the PF refused a call: {error}"))
    }
}

impl From<VfError> for StepError {
    fn from(error: VfError) -> Self {
        Self::Failed(format!("a guest could not be started: {error}"))
    }
}

impl From<CmError> for StepError {
    fn from(error: CmError) -> Self {
        Self::Failed(format!("the connection manager refused a call: {error}"))
    }
}

/// Fails a step with a reason unless a condition holds.
pub(super) fn ensure(holds: bool, why: impl FnOnce() -> String) -> StepResult<()> {
    if holds {
        Ok(())
    } else {
        Err(StepError::Failed(why()))
    }
}

/// What drives the world.
enum Pace {
    Virtual(Box<World>),
    Real(Box<Runner<World>>),
}

impl Pace {
    fn world(&mut self) -> Result<&mut World, LoopError> {
        match self {
            Self::Virtual(world) => Ok(world),
            Self::Real(runner) => runner.driven(),
        }
    }

    /// Runs until the condition holds; `false` if it did not within `limit`.
    fn run_until(
        &mut self,
        limit: Duration,
        condition: impl FnMut(&mut World) -> bool,
    ) -> StepResult<bool> {
        let reached = match self {
            Self::Virtual(world) => match world.run_until(limit, condition) {
                Outcome::Reached => true,
                Outcome::TimedOut => false,
                _ => return Err(StepError::failed("live-lock")),
            },
            Self::Real(runner) => runner.run_until(limit, condition)? == RunEnd::Reached,
        };
        Ok(reached)
    }
}

/// A wish that was granted.
#[derive(Clone, Copy)]
pub(super) struct Standing {
    pub(super) port: NamedPort,
    pub(super) id: StandingId,
}

/// The stage. See the [module](self).
pub(super) struct Stage {
    pace: Pace,
    capture: Option<Writer<Box<dyn Write>>>,
    pub(super) network: Network,
    /// Wishes that the SA keeps and that must survive its restart.
    pub(super) wishes: Vec<Standing>,
    /// The group that the multicast step made: the membership of the guest that sends to it.
    pub(super) group: Option<McMemberRecord>,
}

impl Stage {
    pub(super) fn new(options: Options) -> Result<Self, DemoError> {
        let (mut world, network) = Network::build(options.seed)?;
        let capture = options.capture.map(Writer::new).transpose()?;
        if capture.is_some() {
            world.capture();
        }
        Ok(Self {
            pace: match options.clock {
                Clock::Virtual => Pace::Virtual(Box::new(world)),
                Clock::Real => Pace::Real(Box::new(Runner::new(world)?)),
            },
            capture,
            network,
            wishes: Vec::new(),
            group: None,
        })
    }

    pub(super) fn world(&mut self) -> Result<&mut World, LoopError> {
        self.pace.world()
    }

    /// The group that the multicast step made.
    pub(super) fn group(&self) -> StepResult<McMemberRecord> {
        let none = || StepError::failed("no group was made");
        self.group.ok_or_else(none)
    }

    pub(super) fn now(&mut self) -> Result<Instant, LoopError> {
        Ok(self.world()?.now())
    }

    /// What became of the MADs of each port of the hosts that share their adapters, and how full its
    /// tables are.
    pub(super) fn port_totals(&mut self) -> Result<Vec<PortTotals>, LoopError> {
        let hosts = self.network.hosts;
        let world = self.world()?;
        let now = world.now();
        let mut totals = Vec::new();
        for host in hosts {
            for (number, port) in (1..).zip(world.context(host.id).ports()) {
                let rows = port.mux().inspect(PortNum(number));
                totals.push(PortTotals {
                    port: format!("{}/{number}", host.name),
                    totals: Totals::of(&rows, now),
                });
            }
        }
        Ok(totals)
    }

    /// Finishes the capture and gives the number of its frames.
    pub(super) fn finish(self) -> Result<Option<u64>, DemoError> {
        let Some(writer) = self.capture else {
            return Ok(None);
        };
        let frames = writer.frames();
        writer.finish()?;
        Ok(Some(frames))
    }

    /// Runs until `find` finds something, for at most `limit`.
    pub(super) fn find<T>(
        &mut self,
        limit: Duration,
        mut find: impl FnMut(&mut World) -> Option<T>,
    ) -> StepResult<Option<T>> {
        let mut found = None;
        let mut written = Ok(());
        let capture = &mut self.capture;
        self.pace.run_until(limit, |world| {
            if let Some(writer) = capture {
                while let Some(frame) = world.poll_frame() {
                    written = writer.write_record(&frame);
                    if written.is_err() {
                        return true;
                    }
                }
            }
            found = find(world);
            found.is_some()
        })?;
        match written {
            Ok(()) => Ok(found),
            Err(error) => Err(StepError::Host(error.into())),
        }
    }

    /// Waits until `find` finds something, and fails the step if that takes too long.
    pub(super) fn wait_for<T>(
        &mut self,
        what: &str,
        find: impl FnMut(&mut World) -> Option<T>,
    ) -> StepResult<T> {
        self.find(SOON, find)?
            .ok_or_else(|| StepError::Failed(format!("{what}: not within {SOON:?}")))
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, duration: Duration) -> StepResult<()> {
        self.find(duration, |_| None::<()>).map(|_| ())
    }

    /// Waits for an event of a port. Events before it are forgotten, but named if the step fails.
    pub(super) fn wait_event<T>(
        &mut self,
        at: NamedPort,
        what: &str,
        mut pick: impl FnMut(&EndPortEvent) -> Option<T>,
    ) -> StepResult<T> {
        let mut others = Vec::new();
        let found = self.find(SOON, |world| {
            while let Some(event) = world.poll_event(at.at) {
                let picked = pick(&event);
                if picked.is_some() {
                    return picked;
                }
                others.push(event);
            }
            None
        })?;
        found.ok_or_else(|| {
            StepError::Failed(format!(
                "{what} at {}: not within {SOON:?}; instead: {others:?}",
                at.name
            ))
        })
    }

    /// Waits for an event of a connection.
    pub(super) fn wait_cm<T>(
        &mut self,
        at: NamedPort,
        what: &str,
        mut pick: impl FnMut(&CmEvent) -> Option<T>,
    ) -> StepResult<T> {
        self.wait_event(at, what, |event| match event {
            EndPortEvent::Cm(event) => pick(event),
            _ => None,
        })
    }

    /// Asks the SA.
    pub(super) fn query(
        &mut self,
        at: NamedPort,
        what: &str,
        request: SaRequest,
    ) -> StepResult<SaAnswer> {
        let world = self.world()?;
        let now = world.now();
        let asked = world.port_mut(at.at).query(now, request);
        self.wait_answer(at, what, asked)
    }

    /// Waits for the SA's answer.
    pub(super) fn wait_answer(
        &mut self,
        at: NamedPort,
        what: &str,
        asked: QueryId,
    ) -> StepResult<SaAnswer> {
        let answer: Result<SaAnswer, SaError> = self.wait_event(at, what, |event| match event {
            EndPortEvent::Sa(SaEvent::Answered { query, result }) if *query == asked => {
                Some(result.clone())
            }
            _ => None,
        })?;
        answer.map_err(|error| StepError::Failed(format!("{what}: {error}")))
    }

    /// The path between two ports, as the SA knows it. VFs share their LIDs, so what goes along it has
    /// a GRH.
    pub(super) fn path(&mut self, from: NamedPort, to: NamedPort) -> StepResult<PortPath> {
        let world = self.world()?;
        let [sgid, dgid] = [from, to].map(|port| gid(world, port));
        let request = SaRequest::path_by_gids(sgid, dgid, None);
        self.query_path(from, "path query", request)
    }

    /// The path that the SA gives when it is asked so.
    pub(super) fn query_path(
        &mut self,
        from: NamedPort,
        what: &str,
        request: SaRequest,
    ) -> StepResult<PortPath> {
        let answer = self.query(from, what, request)?;
        let record: PathRecord = answer
            .record()
            .ok_or_else(|| StepError::failed("the SA's answer has no path record"))?;
        let view = self.world()?.port(from.at).view();
        Ok(PortPath::new(from.at.port, view, &record)?.with_grh())
    }

    /// Makes a standing wish and waits until it is granted.
    pub(super) fn wish(&mut self, at: NamedPort, what: &str, wish: Wish) -> StepResult<SaAnswer> {
        let world = self.world()?;
        let now = world.now();
        let port = world.port_mut(at.at);
        let made = port.wish(now, wish);
        self.wishes.push(Standing { port: at, id: made });
        let granted: Result<SaAnswer, SaError> =
            self.wait_event(at, what, |event| match event {
                EndPortEvent::Sa(SaEvent::Granted { standing, answer }) if *standing == made => {
                    Some(Ok(answer.clone()))
                }
                EndPortEvent::Sa(SaEvent::Refused {
                    standing, error, ..
                }) if *standing == made => Some(Err(*error)),
                _ => None,
            })?;
        granted.map_err(|error| StepError::Failed(format!("{what}: {error}")))
    }

    /// Starts a guest's software anew, with a seed of its own choice if one is given, and waits until
    /// its port is active. What it had wished for is gone with it.
    pub(super) fn boot(&mut self, guest: NamedPort, seed: Option<u64>) -> StepResult<NamedPort> {
        self.wishes.retain(|wish| wish.port.at != guest.at);
        let vf = VfId::new(guest.at.function.0)
            .ok_or_else(|| StepError::failed("the PF is no guest"))?;
        let world = self.pace.world()?;
        match seed {
            None => world.start_guest(guest.at.host, vf)?,
            Some(seed) => world.start_clone(guest.at.host, vf, seed)?,
        }
        let guest = self.network.reopen(world, guest)?;
        self.wait_for("the guest's port active again", |world| {
            is_up(world, guest).then_some(())
        })?;
        Ok(guest)
    }

    /// Waits for the next datagram at a port's socket, for at most `limit`.
    pub(super) fn receive_datagram(
        &mut self,
        at: NamedPort,
        limit: Duration,
    ) -> StepResult<Option<Datagram>> {
        self.find(limit, |world| world.socket_mut(at.socket).receive())
    }
}

/// Whether a port is active, and its software knows where the SA is.
pub(super) fn is_up(world: &World, port: NamedPort) -> bool {
    let view = world.port(port.at).view();
    view.state == PortState::ACTIVE && view.sa_address().is_some()
}

/// A port's own GID.
pub(super) fn gid(world: &World, port: NamedPort) -> Gid {
    let view = world.port(port.at).view();
    view.gid(GidIndex(0)).unwrap_or(Gid::NONE)
}
