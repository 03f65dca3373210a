//! One trunk: its connections one after the other, and the session on the one that is open.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use ib_fabric::{EndNode, Endpoint, Fabric, FabricError, LinkConfig};
use ib_trunk::{CloseReason, Hello, Session, SessionConfig, Statistics, TrunkEnd, TrunkState};
use ib_vtime::{Duration, Instant};
use ib_wire::Guid;
use rustix::io::Errno;
use thiserror::Error;

use crate::address::TrunkAddress;
use crate::carrier::Carrier;
use crate::config::{TrunkConfig, TrunkPeer, TrunkWay};
use crate::descriptors::{Descriptors, Interest};
use crate::handshakes::{Handshakes, Outcome};
use crate::listener::TrunkListener;
use crate::stream::Security;

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

/// A trunk that cannot be.
#[derive(Debug, Error)]
pub enum TrunkError {
    /// The port.
    #[error(transparent)]
    Port(#[from] FabricError),
    /// The other end is to be a host, and the port is none of a switch.
    #[error("a host is at a port of a switch: say peer=fabric")]
    NoSwitch,
    /// The address at which it listens.
    #[error("{0}: {1}")]
    Listen(TrunkWay, #[source] io::Error),
    /// A trunk that listens has no other address.
    #[error("{0} waits for connections: only an end that connects can have another address")]
    Listens(TrunkWay),
    /// There is no such trunk.
    #[error("there is no such trunk")]
    Unknown,
    /// The other end is to prove its identity, and there is nothing to prove it by.
    #[error("{0} needs a trunk with credentials")]
    NoCredentials(TrunkAddress),
    /// Credentials that are none for the host of an address.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Credentials(#[from] crate::tls::CredentialsError),
    /// The door, which connects, or a descriptor.
    #[error("cannot start to connect")]
    Door(#[source] io::Error),
}

/// A trunk of a fabric.
#[derive(Debug)]
pub struct Trunk {
    config: TrunkConfig,
    session: SessionConfig,
    end: TrunkEnd,
    pub(crate) listener: Option<TrunkListener>,
    handshakes: Handshakes,
    carrier: Option<Carrier>,
    /// Connections that were refused, and the time at which they are closed. One that is closed with unread bytes would take the reason
    /// with it. They are watched for their end alone.
    refused: VecDeque<(Instant, Carrier)>,
    /// The connection is watched for room.
    waits_for_room: bool,
    /// The door was asked for a connection.
    pub(crate) is_ordered: bool,
    /// The connection that the door makes is one to an address that the trunk has left.
    pub(crate) is_stale: bool,
    pause: Duration,
    /// Time of the next attempt.
    attempt: Option<Instant>,
    /// Words of the last failure of the door, or of TLS.
    refusal: Option<String>,
    /// Failed handshakes of strangers are not worth a word until then.
    quiet: Option<Instant>,
    /// The other end, or the reason for which there is none, as the owner has it.
    peer: Option<Result<Hello, String>>,
}

impl Trunk {
    /// Connects a port to a gateway.
    pub(crate) fn open<D: EndNode>(
        fabric: &mut Fabric<D>,
        near: Endpoint,
        config: TrunkConfig,
    ) -> Result<Self, TrunkError> {
        if config.way.address().has_tls() && matches!(config.security, Security::Plain) {
            return Err(TrunkError::NoCredentials(config.way.address().clone()));
        }
        let node_guid = fabric
            .node(near.node)
            .map_or(Guid::NONE, |node| node.node_guid);
        let name = config.way.to_string();
        let end = TrunkEnd::new(fabric, near, &name, LinkConfig::default())?;
        if config.peer == TrunkPeer::Host && !fabric.set_guarded(near, true) {
            return Err(TrunkError::NoSwitch);
        }
        let hello = Hello {
            site: config.site.clone(),
            node_guid,
            port: near.port.0,
        };
        Ok(Self {
            session: SessionConfig {
                hello,
                timeout: config.timeout,
            },
            config,
            end,
            listener: None,
            handshakes: Handshakes::default(),
            carrier: None,
            refused: VecDeque::new(),
            waits_for_room: false,
            is_ordered: false,
            is_stale: false,
            pause: FIRST_PAUSE,
            attempt: None,
            refusal: None,
            quiet: None,
            peer: None,
        })
    }

    /// Listens, if the other end connects.
    pub(crate) fn listen(&mut self, descriptors: &Descriptors) -> Result<(), TrunkError> {
        let TrunkWay::Listen(address) = &self.config.way else {
            return Ok(());
        };
        let failed = |error: io::Error| TrunkError::Listen(self.config.way.clone(), error);
        let listener = TrunkListener::bind(address).map_err(failed)?;
        let added = descriptors.add(&listener, Interest::Bytes);
        added.map_err(|error| failed(error.into()))?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Returns the port at this end.
    #[must_use]
    pub const fn near(&self) -> Endpoint {
        self.end.near()
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &TrunkConfig {
        &self.config
    }

    /// Returns the other end, or the reason in words for which the trunk is down. `None` until the first attempt is over.
    #[must_use]
    pub const fn peer(&self) -> Option<&Result<Hello, String>> {
        self.peer.as_ref()
    }

    /// Returns the counters since the trunk is up.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.end.statistics().copied().unwrap_or_default()
    }

    /// Ends the connection, and connects to another address from now on.
    pub(crate) fn redirect<D: EndNode>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric<D>,
        address: TrunkAddress,
    ) -> Result<(), TrunkError> {
        if !self.connects() {
            return Err(TrunkError::Listens(self.config.way.clone()));
        }
        self.config.security = self.security_towards(&address)?;
        self.end.disconnect(fabric);
        (self.carrier, self.handshakes) = (None, Handshakes::default());
        self.config.way = TrunkWay::Connect(address);
        fabric.rename_gateway(self.end.gateway(), &self.config.way.to_string());
        self.is_stale = self.is_ordered;
        self.refusal = None;
        (self.pause, self.attempt) = (FIRST_PAUSE, Some(now));
        Ok(())
    }

    /// Returns the protection of connections to another address, by the same credentials.
    fn security_towards(&self, address: &TrunkAddress) -> Result<Security, TrunkError> {
        match (&self.config.security, address) {
            #[cfg(feature = "tls")]
            (Security::Tls(end), TrunkAddress::Tls { host, .. }) => {
                Ok(Security::Tls(end.clone().towards(host)?))
            }
            (Security::Plain, TrunkAddress::Tls { .. }) => {
                Err(TrunkError::NoCredentials(address.clone()))
            }
            (security, _) => Ok(security.clone()),
        }
    }

    /// Returns `true` if a connection is to be ordered of the door.
    pub(crate) fn wants_connection(&self, now: Instant) -> bool {
        let is_due = self.attempt.is_none_or(|attempt| attempt <= now);
        self.connects() && self.waits_for_attempt() && is_due
    }

    const fn connects(&self) -> bool {
        matches!(self.config.way, TrunkWay::Connect(_))
    }

    /// Returns `true` if there is neither a connection nor one on its way.
    pub(crate) fn waits_for_attempt(&self) -> bool {
        self.carrier.is_none() && self.handshakes.is_empty() && !self.is_ordered
    }

    /// Returns the carrier over a socket.
    pub(crate) fn carrier(&self, socket: OwnedFd) -> Result<Carrier, String> {
        // Credentials stay with a trunk that was redirected to an address without TLS.
        let security = match self.config.way.address().has_tls() {
            true => &self.config.security,
            false => &Security::Plain,
        };
        Carrier::new(socket, self.config.timeout, security)
    }

    /// Begins with the handshake of a connection.
    pub(crate) fn greet<D: EndNode>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric<D>,
        descriptors: &Descriptors,
        carrier: Carrier,
    ) -> Result<(), String> {
        let added = descriptors.add(&carrier, Interest::Bytes);
        added.map_err(|error| error.to_string())?;
        let until = now + self.config.timeout;
        let outcome = self.handshakes.begin(descriptors, carrier, until);
        self.settle(now, fabric, descriptors, outcome);
        Ok(())
    }

    /// Takes a connection whose handshake is over, or refuses it.
    fn settle<D: EndNode>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric<D>,
        descriptors: &Descriptors,
        outcome: Option<Outcome>,
    ) {
        match (outcome, &self.carrier) {
            (Some(Outcome::Open(carrier)), None) => self.begin(now, fabric, descriptors, carrier),
            (Some(Outcome::Open(carrier)), Some(_)) => self.refuse(now, descriptors, carrier),
            (Some(Outcome::Failed(carrier, words)), _) => {
                self.part(now, descriptors, carrier);
                self.fail_handshake(now, words);
            }
            (None, _) => {}
        }
    }

    /// Keeps the reason of a failed handshake, unless strangers cause one after the other.
    pub(crate) fn fail_handshake(&mut self, now: Instant, words: String) {
        let is_quiet = self.quiet.is_some_and(|until| now < until);
        if !self.connects() && is_quiet {
            return;
        }
        self.quiet = Some(now + QUIET);
        if self.carrier.is_none() {
            self.fail(now, words);
        } else {
            log::warn!(
                "trunk {}: a connection was refused beside the one that is up: {words}",
                self.config.way
            );
        }
    }

    fn begin<D: EndNode>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric<D>,
        descriptors: &Descriptors,
        carrier: Carrier,
    ) {
        descriptors.watch(&carrier, Interest::Bytes);
        self.carrier = Some(carrier);
        self.waits_for_room = false;
        self.refusal = None;
        self.end.connect(now, fabric, self.session.clone());
        // With TLS, bytes of the session may have come with the last ones of the handshake.
        self.receive(now);
    }

    pub(crate) fn fail(&mut self, now: Instant, words: String) {
        self.refusal = Some(words);
        self.attempt = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Takes connections that have arrived. While there is one, others are closed: their ends try again.
    pub(crate) fn accept<D: EndNode>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric<D>,
        descriptors: &Descriptors,
    ) {
        for _ in 0..BATCH {
            match self.listener.as_ref().map(TrunkListener::accept) {
                Some(Ok(Some(socket))) => {
                    // A connection that is gone again is of no interest.
                    let carrier = self.carrier(socket);
                    let _ = carrier.and_then(|it| self.greet(now, fabric, descriptors, it));
                }
                // A process that is short of descriptors accepts later: the socket stays ready.
                Some(Ok(None)) | Some(Err(Errno::MFILE | Errno::NFILE)) | None => return,
                Some(Err(error)) => {
                    log::warn!("{}: {error}", self.config.way);
                    return;
                }
            }
        }
    }

    /// Closes a connection beside the one that is there, with the reason. Its hello says more to an end of the same site.
    fn refuse(&mut self, now: Instant, descriptors: &Descriptors, mut carrier: Carrier) {
        let mut session = Session::new(now, self.session.clone());
        session.close(CloseReason::Busy);
        // A new connection has room for two records.
        carrier.transmit(&mut session);
        self.part(now, descriptors, carrier);
    }

    /// Closes a connection in a while, so that the other end has time to read the reason.
    fn part(&mut self, now: Instant, descriptors: &Descriptors, carrier: Carrier) {
        if self.refused.len() == MAX_REFUSED {
            self.refused.pop_front();
        }
        descriptors.watch(&carrier, Interest::End);
        self.refused.push_back((now + FAREWELL, carrier));
    }

    /// Takes the bytes or connections of a descriptor, if it is one of the trunk's.
    pub(crate) fn handle_ready<D: EndNode>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric<D>,
        descriptors: &Descriptors,
        fd: RawFd,
    ) {
        let has = |carrier: &Carrier| carrier.as_fd().as_raw_fd() == fd;
        let listener = self.listener.as_ref();
        if self.carrier.as_ref().is_some_and(has) {
            self.receive(now);
        } else if listener.is_some_and(|listener| listener.as_fd().as_raw_fd() == fd) {
            self.accept(now, fabric, descriptors);
        } else if let Some(gone) = self.refused.iter().position(|(_, carrier)| has(carrier)) {
            self.refused.remove(gone);
        } else {
            let outcome = self.handshakes.handle_ready(descriptors, fd);
            self.settle(now, fabric, descriptors, outcome);
        }
    }

    fn receive(&mut self, now: Instant) {
        if let (Some(carrier), Some(session)) = (&mut self.carrier, self.end.session_mut())
            && !carrier.receive(now, session)
        {
            session.handle_end();
        }
    }

    /// Returns `true` if [`Self::look`] is to be called soon, since the descriptor of the connection may not become ready.
    pub(crate) fn is_awake(&self) -> bool {
        self.carrier.as_ref().is_some_and(Carrier::is_awake)
    }

    /// Takes bytes of a connection that had traffic a moment ago, and sets for how long after traffic there are looks.
    pub(crate) fn look(&mut self, now: Instant, busy_poll: Duration) {
        if let (Some(carrier), Some(session)) = (&mut self.carrier, self.end.session_mut())
            && !carrier.look(now, session, busy_poll)
        {
            session.handle_end();
        }
    }

    /// Moves packets, bytes and time on. Returns `true` if packets came into the fabric or left it.
    pub(crate) fn drive<D: EndNode>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric<D>,
        descriptors: &Descriptors,
    ) -> bool {
        while let Some(late) = self.handshakes.handle_timeout(now) {
            self.settle(now, fabric, descriptors, Some(late));
        }
        while self.refused.front().is_some_and(|(until, _)| *until <= now) {
            self.refused.pop_front();
        }
        // The last turn had no time to read these bytes.
        if let Some(session) = self.end.session_mut()
            && session.poll_timeout().is_some_and(|due| due <= now)
        {
            session.handle_timeout(now);
        }
        let (mut any, mut is_over) = (false, false);
        let Some(carrier) = &mut self.carrier else {
            return false;
        };
        loop {
            let moved = self.end.exchange(fabric);
            any |= moved;
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
            descriptors.watch(carrier, Interest::of(self.waits_for_room));
        }
        if is_over && let Some(carrier) = self.carrier.take() {
            any = true;
            self.end.disconnect(fabric);
            self.refusal = carrier.failure().map(str::to_owned);
            if self.refusal.is_some() {
                self.part(now, descriptors, carrier);
            }
            self.attempt = Some(now + self.pause);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        any
    }

    /// Looks at the state of the trunk. Returns `true` if it is another one than before.
    pub(crate) fn has_changed(&mut self) -> bool {
        let peer = match (self.end.state(), &self.refusal) {
            (TrunkState::Up(peer), _) => Ok(peer),
            (TrunkState::Greeting, _) | (TrunkState::Down(None), None) => return false,
            (TrunkState::Down(_), Some(refusal)) => Err(format!("down: {refusal}")),
            (TrunkState::Down(Some(reason)), None) => Err(format!("down: {reason}")),
        };
        if self.peer.as_ref() == Some(&peer) {
            return false;
        }
        if peer.is_ok() {
            self.pause = FIRST_PAUSE;
        }
        self.peer = Some(peer);
        true
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let waits = self.connects() && self.waits_for_attempt();
        let session = self.end.session().and_then(Session::poll_timeout);
        let refused = self.refused.front().map(|(until, _)| *until);
        let attempt = self.attempt.filter(|_| waits);
        let handshake = self.handshakes.poll_timeout();
        let others = refused.into_iter().chain(handshake);
        session.or(attempt).into_iter().chain(others).min()
    }
}
