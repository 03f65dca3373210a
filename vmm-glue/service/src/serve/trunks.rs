//! Trunks to fabrics of other services.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use emulated_hca::{Fabric, LinkConfig, NodeId};
use ib_trunk::{CloseReason, Hello, Session, SessionConfig, SiteName, TrunkEnd, TrunkState};
use ib_vtime::{Duration, Instant};
use ib_wire::{Guid, PortNum};
use rustix::io::Errno;
use vhca_trunk::{Carrier, Door, Security, TrunkListener};

use super::announcement::Announcement;
use super::lab::Lab;
use super::lab_error::LabError;
use super::trunk_handshakes::{Handshakes, Outcome};
use super::trunk_spec::{TrunkPeer, TrunkSpec, TrunkWay};
use super::way_in::{Turn, WayIn};
use crate::show::TrunkRow;
use vhca::watch::{EventSet, Ready};

/// Pause before a connection is tried again; it doubles with each failure up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Time for which a refused connection stays open, and number of them.
const FAREWELL: Duration = Duration::from_secs(1);
const MAX_REFUSED: usize = 8;

/// Time after a failed handshake at a listener for which others are not mentioned.
const QUIET: Duration = Duration::from_secs(1);

/// Connections of one listener that are looked at before others have their turn.
const BATCH: usize = 16;

/// A trunk of the service.
#[derive(Debug)]
struct Trunk {
    spec: TrunkSpec,
    config: SessionConfig,
    end: TrunkEnd,
    /// The switch takes the other end for a host that is not trusted.
    is_guarded: bool,
    security: Security,
    listener: Option<TrunkListener>,
    handshakes: Handshakes,
    carrier: Option<Carrier>,
    /// Connections that were refused, and the time at which they are closed. One that is closed with unread bytes would take the reason
    /// with it. They are watched for their end alone.
    refused: VecDeque<(Instant, Carrier)>,
    /// The connection is watched for room.
    waits_for_room: bool,
    /// The door was asked for a connection.
    is_ordered: bool,
    pause: Duration,
    /// Time of the next attempt.
    attempt: Option<Instant>,
    /// Words of the last failure of the door, or of TLS.
    refusal: Option<String>,
    /// Failed handshakes of strangers are not worth a word until then.
    quiet: Option<Instant>,
}

/// The trunks of a service.
#[derive(Debug)]
pub(super) struct Trunks {
    trunks: Vec<Trunk>,
    door: Option<Door>,
}

impl Trunks {
    /// Opens all listeners, and the door if there are trunks that connect. Returns `None` without trunks.
    ///
    /// # Errors
    /// [`LabError`] for a port that does not exist or is taken, and for an address.
    pub(super) fn open(
        lab: &mut Lab,
        specs: &[TrunkSpec],
        site: &SiteName,
    ) -> Result<Self, LabError> {
        let mut specs: Vec<_> = specs.iter().collect();
        // A node takes no port that another trunk names.
        specs.sort_by_key(|spec| !matches!(lab.inventory.end(&spec.port), Ok((_, Some(_)))));
        let trunks = specs.iter().map(|spec| Trunk::open(lab, spec, site));
        let trunks: Vec<_> = trunks.collect::<Result<_, _>>()?;
        let connects = |trunk: &Trunk| trunk.listener.is_none();
        let door = trunks.iter().any(connects).then(Door::start);
        Ok(Self {
            trunks,
            door: door.transpose().map_err(LabError::Door)?,
        })
    }

    fn order_connections(&mut self, now: Instant) {
        let Some(door) = &self.door else {
            return;
        };
        for (number, trunk) in (0_u32..).zip(&mut self.trunks) {
            let TrunkWay::Connect(address) = &trunk.spec.way else {
                continue;
            };
            let is_due = trunk.attempt.is_none_or(|attempt| attempt <= now);
            if trunk.waits_for_attempt() && is_due {
                match door.order(number, address) {
                    Ok(()) => trunk.is_ordered = true,
                    Err(error) => trunk.fail(now, error.to_string()),
                }
            }
        }
    }

    fn take_answers(&mut self, turn: &mut Turn<'_>) {
        let Some(door) = &self.door else {
            return;
        };
        loop {
            let answer = match door.answer() {
                Ok(Some(answer)) => answer,
                Ok(None) => return,
                Err(error) => {
                    log::error!(
                        "the process that connects for trunks is gone ({error}): the service ends"
                    );
                    turn.stop();
                    return;
                }
            };
            let number = usize::try_from(answer.number).unwrap_or(usize::MAX);
            let Some(trunk) = self.trunks.get_mut(number) else {
                continue;
            };
            trunk.is_ordered = false;
            let connected = answer
                .connected
                .and_then(|socket| Carrier::new(socket, trunk.spec.timeout, &trunk.security));
            match connected {
                Ok(carrier) => trunk.greet(turn, carrier),
                Err(words) => trunk.fail(turn.now, words),
            }
        }
    }
}

impl Trunk {
    fn open(lab: &mut Lab, spec: &TrunkSpec, site: &SiteName) -> Result<Self, LabError> {
        let wrong = |why: &dyn ToString| LabError::Trunk(spec.port.clone(), why.to_string());
        let (node, named) = lab
            .inventory
            .end(&spec.port)
            .map_err(|refusal| wrong(&refusal.message))?;
        let fabric = lab.world_mut().fabric_mut();
        let port = named.or_else(|| free_port(fabric, node));
        let port = port.ok_or_else(|| wrong(&"all of its ports have links"))?;
        let spec = &TrunkSpec {
            port: match named {
                Some(_) => spec.port.clone(),
                None => format!("{}/{}", spec.port, port.0),
            },
            ..spec.clone()
        };
        let near = node.port(port.0);
        let node_guid = fabric.node(node).map_or(Guid::NONE, |node| node.node_guid);
        let name = spec.way.to_string();
        let end = TrunkEnd::new(fabric, near, &name, LinkConfig::default());
        let end = end.map_err(|error| wrong(&error))?;
        // The far end of an adapter's trunk is a switch, and answers for itself there.
        let is_guarded = spec.peer() == TrunkPeer::Host && fabric.set_guarded(near, true);
        if spec.peer == Some(TrunkPeer::Host) && !is_guarded {
            return Err(wrong(&"a host is at a port of a switch: say peer=fabric"));
        }
        let security = spec.security().map_err(|error| wrong(&error))?;
        if spec.way.address().is_exposed() {
            log::warn!(
                "trunk {} ({}) is plain: whatever is on the way can read its packets and add others; say tls: instead of tcp: at both ends",
                spec.port,
                spec.way
            );
        }
        let listener = match &spec.way {
            TrunkWay::Listen(address) => Some(TrunkListener::bind(address)),
            TrunkWay::Connect(_) => None,
        };
        let listener = listener
            .transpose()
            .map_err(|error: io::Error| wrong(&format_args!("{}: {error}", spec.way)))?;
        let hello = Hello {
            site: site.clone(),
            node_guid,
            port: port.0,
        };
        Ok(Self {
            spec: spec.clone(),
            config: SessionConfig {
                hello,
                timeout: spec.timeout,
            },
            end,
            is_guarded,
            security,
            listener,
            handshakes: Handshakes::default(),
            carrier: None,
            refused: VecDeque::new(),
            waits_for_room: false,
            is_ordered: false,
            pause: FIRST_PAUSE,
            attempt: None,
            refusal: None,
            quiet: None,
        })
    }

    /// Returns `true` if there is neither a connection nor one on its way.
    fn waits_for_attempt(&self) -> bool {
        self.carrier.is_none() && self.handshakes.is_empty() && !self.is_ordered
    }

    /// Begins with the handshake of a connection.
    fn greet(&mut self, turn: &mut Turn<'_>, carrier: Carrier) {
        let until = turn.now + self.spec.timeout;
        let outcome = self.handshakes.begin(turn, carrier, until);
        self.settle(turn, outcome);
    }

    /// Takes a connection whose handshake is over, or refuses it.
    fn settle(&mut self, turn: &mut Turn<'_>, outcome: Option<Outcome>) {
        match (outcome, &self.carrier) {
            (Some(Outcome::Open(carrier)), None) => self.begin(turn, carrier),
            (Some(Outcome::Open(carrier)), Some(_)) => self.refuse(turn, carrier),
            (Some(Outcome::Failed(carrier, words)), _) => {
                self.part(turn, carrier);
                self.fail_handshake(turn.now, words);
            }
            (None, _) => {}
        }
    }

    /// Keeps the reason of a failed handshake, unless strangers cause one after the other.
    fn fail_handshake(&mut self, now: Instant, words: String) {
        let is_quiet = self.quiet.is_some_and(|until| now < until);
        if self.listener.is_some() && is_quiet {
            return;
        }
        self.quiet = Some(now + QUIET);
        if self.carrier.is_none() {
            self.fail(now, words);
        } else {
            let Self { spec, .. } = self;
            log::warn!(
                "trunk {} ({}): a connection was refused beside the one that is up: {words}",
                spec.port,
                spec.way
            );
        }
    }

    fn begin(&mut self, turn: &mut Turn<'_>, carrier: Carrier) {
        turn.watches.modify(&carrier, EventSet::IN);
        self.carrier = Some(carrier);
        self.waits_for_room = false;
        self.refusal = None;
        let fabric = turn.lab.world_mut().fabric_mut();
        self.end.connect(turn.now, fabric, self.config.clone());
        // With TLS, bytes of the session may have come with the last ones of the handshake.
        self.receive(turn.now);
    }

    fn fail(&mut self, now: Instant, words: String) {
        self.refusal = Some(words);
        self.attempt = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Takes connections that have arrived. While there is one, others are closed: their ends try again.
    fn accept(&mut self, turn: &mut Turn<'_>) {
        for _ in 0..BATCH {
            let accepted = self.listener.as_ref().map(TrunkListener::accept);
            match accepted {
                Some(Ok(Some(socket))) => {
                    let carrier = Carrier::new(socket, self.spec.timeout, &self.security);
                    if let Ok(carrier) = carrier {
                        self.greet(turn, carrier);
                    }
                }
                // A service that is short of descriptors accepts later: the socket stays ready.
                Some(Ok(None)) | Some(Err(Errno::MFILE | Errno::NFILE)) | None => return,
                Some(Err(error)) => {
                    log::warn!("{}: {error}", self.spec.way);
                    return;
                }
            }
        }
    }

    /// Closes a connection beside the one that is there, with the reason. Its hello says more to an end of the same site.
    fn refuse(&mut self, turn: &mut Turn<'_>, mut carrier: Carrier) {
        let mut session = Session::new(turn.now, self.config.clone());
        session.close(CloseReason::Busy);
        // A new connection has room for two records.
        carrier.transmit(&mut session);
        self.part(turn, carrier);
    }

    /// Closes a connection in a while, so that the other end has time to read the reason.
    fn part(&mut self, turn: &mut Turn<'_>, carrier: Carrier) {
        if self.refused.len() == MAX_REFUSED
            && let Some((_, oldest)) = self.refused.pop_front()
        {
            turn.watches.remove(oldest.into_socket());
        }
        turn.watches.modify(&carrier, EventSet::empty());
        self.refused.push_back((turn.now + FAREWELL, carrier));
    }

    /// Moves on a connection besides the open one that is ready, or whose other end is gone.
    fn handle_other(&mut self, turn: &mut Turn<'_>, fd: RawFd) {
        let mut refused = self.refused.iter();
        let gone = refused.position(|(_, carrier)| carrier.as_fd().as_raw_fd() == fd);
        if let Some((_, carrier)) = gone.and_then(|place| self.refused.remove(place)) {
            turn.watches.remove(carrier.into_socket());
        } else {
            let outcome = self.handshakes.handle_ready(turn, fd);
            self.settle(turn, outcome);
        }
    }

    fn receive(&mut self, now: Instant) {
        if let (Some(carrier), Some(session)) = (&mut self.carrier, self.end.session_mut())
            && !carrier.receive(now, session)
        {
            session.handle_end();
        }
    }

    /// Moves packets, bytes and time on.
    fn drive(&mut self, turn: &mut Turn<'_>) {
        while let Some(late) = self.handshakes.handle_timeout(turn.now) {
            self.settle(turn, Some(late));
        }
        while self
            .refused
            .front()
            .is_some_and(|(until, _)| *until <= turn.now)
            && let Some((_, carrier)) = self.refused.pop_front()
        {
            turn.watches.remove(carrier.into_socket());
        }
        let fabric = turn.lab.world_mut().fabric_mut();
        if let Some(session) = self.end.session_mut() {
            // The last turn had no time to read these bytes.
            if session.poll_timeout().is_some_and(|due| due <= turn.now) {
                session.handle_timeout(turn.now);
            }
        }
        let mut is_over = false;
        if let Some(carrier) = &mut self.carrier {
            loop {
                let moved = self.end.exchange(fabric);
                let Some(session) = self.end.session_mut() else {
                    break;
                };
                if !carrier.transmit(session) {
                    session.handle_end();
                }
                is_over = session.is_closed();
                if is_over || !moved || carrier.is_waiting() {
                    break;
                }
            }
            if carrier.is_waiting() != self.waits_for_room {
                self.waits_for_room = carrier.is_waiting();
                let room = match self.waits_for_room {
                    true => EventSet::IN | EventSet::OUT,
                    false => EventSet::IN,
                };
                turn.watches.modify(carrier, room);
            }
        }
        if is_over && let Some(carrier) = self.carrier.take() {
            self.end.disconnect(fabric);
            self.refusal = carrier.failure().map(str::to_owned);
            match self.refusal {
                Some(_) => self.part(turn, carrier),
                None => turn.watches.remove(carrier.into_socket()),
            }
            self.attempt = Some(turn.now + self.pause);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        self.announce(turn);
    }

    /// Writes the state of the trunk where others look at it, and announces it if it is another one than before.
    fn announce(&mut self, turn: &mut Turn<'_>) {
        let peer = match (self.end.state(), &self.refusal) {
            (TrunkState::Up(peer), _) => Ok(peer),
            (TrunkState::Greeting, _) | (TrunkState::Down(None), None) => return,
            (TrunkState::Down(_), Some(refusal)) => Err(format!("down: {refusal}")),
            (TrunkState::Down(Some(reason)), None) => Err(format!("down: {reason}")),
        };
        let statistics = self.end.statistics().copied().unwrap_or_default();
        let near = self.end.near();
        if let Some(row) = turn.lab.trunks.get_mut(&near)
            && row.peer == peer
        {
            row.statistics = statistics;
            return;
        }
        let row = TrunkRow {
            node: near.node,
            port: self.spec.port.clone(),
            way: self.spec.way.to_string(),
            is_guarded: self.is_guarded,
            statistics,
            peer,
        };
        if row.peer.is_ok() {
            self.pause = FIRST_PAUSE;
        }
        let detail = match &row.peer {
            Ok(peer) => format!(
                "up, port {} of {} at site {}{}",
                peer.port,
                peer.node_guid,
                peer.site,
                if self.is_guarded {
                    ", taken for a host"
                } else {
                    ""
                }
            ),
            Err(reason) => reason.clone(),
        };
        let announcement = Announcement::Trunk {
            port: row.port.clone(),
            way: row.way.clone(),
            peer: row.site().map(str::to_owned),
            detail,
        };
        turn.lab.trunks.insert(near, row);
        turn.announce(announcement);
    }

    fn has(&self, fd: RawFd) -> bool {
        let carrier = self.carrier.as_ref();
        carrier.is_some_and(|carrier| carrier.as_fd().as_raw_fd() == fd)
    }
}

/// Returns the first port of a node without a link.
fn free_port(fabric: &Fabric, node: NodeId) -> Option<PortNum> {
    let mut ports = 1..=fabric.node(node)?.port_count();
    let free = ports.find(|port| fabric.link_at(node.port(*port)).is_none());
    free.map(PortNum)
}

impl WayIn for Trunks {
    fn start(&mut self, turn: &mut Turn<'_>) {
        if let Some(door) = &self.door {
            turn.watches.add(door, EventSet::IN);
        }
        for listener in self
            .trunks
            .iter()
            .filter_map(|trunk| trunk.listener.as_ref())
        {
            turn.watches.add(listener, EventSet::IN);
        }
    }

    fn handle_ready(&mut self, turn: &mut Turn<'_>, ready: Ready) {
        let is_door = |door: &Door| door.as_fd().as_raw_fd() == ready.fd;
        if self.door.as_ref().is_some_and(is_door) {
            return self.take_answers(turn);
        }
        for trunk in &mut self.trunks {
            let listener = trunk.listener.as_ref();
            if listener.is_some_and(|listener| listener.as_fd().as_raw_fd() == ready.fd) {
                trunk.accept(turn);
            } else if trunk.has(ready.fd) {
                trunk.receive(turn.now);
            } else {
                trunk.handle_other(turn, ready.fd);
            }
        }
    }

    fn flush(&mut self, turn: &mut Turn<'_>) {
        self.order_connections(turn.now);
        for trunk in &mut self.trunks {
            trunk.drive(turn);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let due = self.trunks.iter().filter_map(|trunk| {
            let waits = trunk.listener.is_none() && trunk.waits_for_attempt();
            let session = trunk.end.session().and_then(Session::poll_timeout);
            let refused = trunk.refused.front().map(|(until, _)| *until);
            let attempt = trunk.attempt.filter(|_| waits);
            let handshake = trunk.handshakes.poll_timeout();
            let others = refused.into_iter().chain(handshake);
            session.or(attempt).into_iter().chain(others).min()
        });
        due.min()
    }
}
