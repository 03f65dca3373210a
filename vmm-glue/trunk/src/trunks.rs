//! All trunks of a fabric.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Instant as WallInstant;

use ib_fabric::{EndNode, Endpoint, Fabric};
use ib_vtime::{Duration, Instant};

use crate::address::TrunkAddress;
use crate::busy_poll::BusyPoll;
use crate::carrier::Carrier;
use crate::config::{TrunkConfig, TrunkWay};
use crate::descriptors::{Descriptors, Interest};
use crate::door::{Connected, Door};
use crate::ring::Signals;
use crate::trunk::{Trunk, TrunkError};

/// Connections of one listener that are taken before others have their turn.
const BATCH: usize = 16;

/// Time from one look at queues with traffic to the next.
const LOOK: Duration = Duration::from_micros(1);

/// The name of a trunk of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrunkId(u32);

impl TrunkId {
    fn place(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// News of trunks.
#[derive(Debug)]
#[non_exhaustive]
pub enum TrunkEvent {
    /// [`Trunk::peer`] is another one than before, or the trunk is new: of a further port of a [shared](Trunks::share) one.
    Changed(TrunkId),
    /// No trunk connects from now on: the process that does so is gone.
    DoorEnded(io::Error),
}

/// The trunks of a fabric, with their connections. It never blocks.
///
/// It is one descriptor: when that can be read, and at [`Self::poll_timeout`], and after each poll of the fabric, [`Self::poll`] is to be
/// called. For a short time after traffic on queues in shared memory the former does not happen, and the latter is a microsecond away
/// ([`Self::set_busy_poll`]).
#[derive(Debug)]
pub struct Trunks {
    descriptors: Descriptors,
    trunks: Vec<Trunk>,
    /// For each trunk that listens and takes further ports: its number, and the numbers of trunks of further ports.
    shared: BTreeMap<usize, Vec<usize>>,
    door: Option<Door>,
    open_door: fn() -> io::Result<Door>,
    signals: Option<Signals>,
    busy_poll: BusyPoll,
    /// Time of the last poll.
    polled: Instant,
    /// Trunks whose other end is another one than at the last event: an owner that takes none has one of each trunk, however often it flaps.
    changed: BTreeSet<TrunkId>,
    door_ended: Option<io::Error>,
}

impl Trunks {
    /// Makes no trunk yet. The first one that connects opens a door: [`Door::start`], or [`Door::in_thread`].
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(open_door: fn() -> io::Result<Door>) -> io::Result<Self> {
        Ok(Self {
            descriptors: Descriptors::new()?,
            trunks: Vec::new(),
            shared: BTreeMap::new(),
            door: None,
            open_door,
            signals: None,
            busy_poll: BusyPoll::default(),
            polled: Instant::ZERO,
            changed: BTreeSet::new(),
            door_ended: None,
        })
    }

    /// Sets for how long after traffic the queues of connections that come are looked at without a wait for signals: 50 µs by default, zero
    /// turns it off. The other end then makes no system call for the records that it sends, and does not wake the thread here. There are none for a while once a
    /// look came late, since other threads want the processor. An owner that cannot
    /// poll each microsecond looks at them later, and then waits for signals again.
    pub const fn set_busy_poll(&mut self, time: Duration) {
        self.busy_poll.set(time);
    }

    /// Makes a trunk of a port without a link. It is down until the other end answers, and again after that.
    ///
    /// # Errors
    /// [`TrunkError`].
    pub fn add<D: EndNode>(
        &mut self,
        fabric: &mut Fabric<D>,
        near: Endpoint,
        config: TrunkConfig,
    ) -> Result<TrunkId, TrunkError> {
        let is_over_rings = self.prepare_for(config.way.address())?;
        let needs_door = is_over_rings || matches!(config.way, TrunkWay::Connect(_));
        if self.door.is_none() && needs_door {
            let door = (self.open_door)().map_err(TrunkError::Door)?;
            let added = self.descriptors.add(&door, Interest::Bytes);
            added.map_err(|error| TrunkError::Door(error.into()))?;
            self.door = Some(door);
        }
        let number = u32::try_from(self.trunks.len()).unwrap_or(u32::MAX);
        let mut trunk = Trunk::open(fabric, near, config)?;
        trunk.listen(&self.descriptors)?;
        self.trunks.push(trunk);
        Ok(TrunkId(number))
    }

    /// Makes the descriptors for rings, if an address is of them. Returns `true` if it is.
    fn prepare_for(&mut self, address: &TrunkAddress) -> Result<bool, TrunkError> {
        let is_over_rings = matches!(address, TrunkAddress::Vhost(_));
        if is_over_rings && self.signals.is_none() {
            self.signals = Some(Signals::new().map_err(TrunkError::Door)?);
        }
        Ok(is_over_rings)
    }

    /// Redirects a trunk that connects to another address: a host behind it moves to another port of its fabric, or to another
    /// site, and keeps its LIDs there. The trunk keeps its credentials.
    ///
    /// # Errors
    /// [`TrunkError::Listens`], [`TrunkError::Unknown`], [`TrunkError::Door`], and [`TrunkError::NoCredentials`] and
    /// [`TrunkError::Credentials`] for a `tls:` address. Nothing has changed then.
    pub fn redirect<D: EndNode>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric<D>,
        id: TrunkId,
        address: TrunkAddress,
    ) -> Result<(), TrunkError> {
        self.prepare_for(&address)?;
        match self.trunks.get_mut(id.place()) {
            Some(trunk) => trunk.redirect(now, fabric, address),
            None => Err(TrunkError::Unknown),
        }
    }

    /// Sets that further connections take further ports of the node that have no link by then, each as a trunk of its own. It does so for
    /// trunks that listen at a `vhost:` address.
    pub fn share(&mut self, id: TrunkId) {
        self.shared.entry(id.place()).or_default();
    }

    /// Returns a trunk; `None` if it is another fabric's.
    #[must_use]
    pub fn get(&self, id: TrunkId) -> Option<&Trunk> {
        self.trunks.get(id.place())
    }

    /// Returns all trunks, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Trunk> {
        self.trunks.iter()
    }

    /// Takes the bytes and connections that have come, and moves packets, bytes and time on. Returns `true` if that changed the fabric.
    #[must_use]
    pub fn poll<D: EndNode>(&mut self, now: Instant, fabric: &mut Fabric<D>) -> bool {
        for fd in self.descriptors.ready() {
            let is_door = |door: &Door| door.as_fd().as_raw_fd() == fd;
            if self.door.as_ref().is_some_and(is_door) {
                self.take_answers(now, fabric);
            } else if !self.take_front_ends(fd) {
                for trunk in &mut self.trunks {
                    trunk.handle_ready(now, fabric, &self.descriptors, fd);
                }
            }
        }
        self.polled = now;
        self.look(now);
        self.drive(now, fabric)
    }

    /// Looks at queues that had traffic a moment ago.
    fn look(&mut self, now: Instant) {
        if self.signals.is_none() {
            return;
        }
        let busy_poll = self.busy_poll.begin(WallInstant::now());
        for trunk in &mut self.trunks {
            trunk.look(now, busy_poll);
        }
    }

    /// Moves packets, bytes and time on, without a look at the descriptors. Returns `true` if that changed the fabric. An owner that has
    /// nothing left to do calls this last.
    pub fn exchange<D: EndNode>(&mut self, now: Instant, fabric: &mut Fabric<D>) -> bool {
        let any = self.drive(now, fabric);
        if !any && self.trunks.iter().any(Trunk::is_awake) {
            self.busy_poll.end_idle(WallInstant::now());
        }
        any
    }

    fn drive<D: EndNode>(&mut self, now: Instant, fabric: &mut Fabric<D>) -> bool {
        self.order_connections(now);
        let mut any = false;
        for (number, trunk) in (0..).zip(&mut self.trunks) {
            any |= trunk.drive(now, fabric, &self.descriptors);
            if trunk.has_changed() {
                self.changed.insert(TrunkId(number));
            }
        }
        any
    }

    /// Returns the next news.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<TrunkEvent> {
        let changed = self.changed.pop_first().map(TrunkEvent::Changed);
        changed.or_else(|| self.door_ended.take().map(TrunkEvent::DoorEnded))
    }

    /// Returns the time at which to poll at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let is_awake = self.trunks.iter().any(Trunk::is_awake);
        let look = is_awake.then(|| self.polled + LOOK);
        let trunks = self.trunks.iter().filter_map(Trunk::poll_timeout);
        trunks.chain(look).min()
    }

    fn order_connections(&mut self, now: Instant) {
        let Some(door) = &self.door else {
            return;
        };
        for (number, trunk) in (0..).zip(&mut self.trunks) {
            if !trunk.wants_connection(now) {
                continue;
            }
            match door.order(number, trunk.config().way.address()) {
                Ok(()) => trunk.is_ordered = true,
                Err(error) => trunk.fail(now, error.to_string()),
            }
        }
    }

    fn take_answers<D: EndNode>(&mut self, now: Instant, fabric: &mut Fabric<D>) {
        while let Some(door) = &self.door {
            let answer = match door.answer() {
                Ok(Some(answer)) => answer,
                Ok(None) => return,
                Err(error) => {
                    self.door = None;
                    self.door_ended = Some(error.into());
                    return;
                }
            };
            let number = usize::try_from(answer.number).unwrap_or(usize::MAX);
            let number = self.place_of(fabric, number, &answer.connected);
            let Some(trunk) = self.trunks.get_mut(number) else {
                continue;
            };
            trunk.is_ordered = false;
            if core::mem::take(&mut trunk.is_stale) {
                continue;
            }
            let carrier = answer.connected.and_then(|connected| match connected {
                Connected::Socket(socket) => trunk.carrier(socket),
                Connected::Rings(parts) => match &self.signals {
                    Some(signals) => Carrier::over_rings(parts, signals),
                    None => Err("no trunk has a vhost: address".to_owned()),
                },
            });
            let descriptors = &self.descriptors;
            let greeted = carrier.and_then(|it| trunk.greet(now, fabric, descriptors, it));
            match (greeted, &trunk.config().way) {
                (Ok(()), _) => {}
                (Err(words), TrunkWay::Connect(_)) => trunk.fail(now, words),
                (Err(words), TrunkWay::Listen(_)) => trunk.fail_handshake(now, words),
            }
        }
    }

    /// Orders of the door to set up connections that have arrived, if a descriptor is of a listener at a `vhost:` address. Returns `true` if it is.
    fn take_front_ends(&mut self, fd: RawFd) -> bool {
        let mut trunks = (0..).zip(&self.trunks);
        let found = trunks.find_map(|(number, trunk)| {
            let is_over_rings = matches!(trunk.config().way.address(), TrunkAddress::Vhost(_));
            let listener = trunk.listener.as_ref().filter(|_| is_over_rings)?;
            (listener.as_fd().as_raw_fd() == fd).then_some((number, listener))
        });
        let (Some((number, listener)), Some(door)) = (found, &self.door) else {
            return false;
        };
        for _ in 0..BATCH {
            let Ok(Some(front_end)) = listener.accept() else {
                break;
            };
            // A front end that cannot be served now hears the end of its connection, and comes again.
            if door.order_set_up(number, &front_end).is_err() {
                break;
            }
        }
        true
    }

    /// Returns the number of the trunk for a connection: of a shared one with a connection, a trunk of another port.
    fn place_of<D: EndNode>(
        &mut self,
        fabric: &mut Fabric<D>,
        number: usize,
        connected: &Result<Connected, String>,
    ) -> usize {
        let Some(further) = self.shared.get_mut(&number).filter(|_| connected.is_ok()) else {
            return number;
        };
        let mut all = core::iter::once(&number).chain(&*further);
        let is_idle = |place: &&usize| {
            self.trunks
                .get(**place)
                .is_some_and(Trunk::waits_for_attempt)
        };
        if let Some(idle) = all.find(is_idle) {
            return *idle;
        }
        let Some(trunk) = self.trunks.get(number) else {
            return number;
        };
        let (node, config) = (trunk.near().node, trunk.config().clone());
        let ports = fabric.node(node).map_or(0, |node| node.port_count());
        let mut ports = (1..=ports).map(|port| node.port(port));
        let free = ports.find(|port| fabric.link_at(*port).is_none());
        // Without a port the trunk refuses the connection beside its own.
        let opened = free.and_then(|port| Trunk::open(fabric, port, config).ok());
        opened.map_or(number, |trunk| {
            let place = self.trunks.len();
            further.push(place);
            self.trunks.push(trunk);
            place
        })
    }
}

impl AsFd for Trunks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptors.as_fd()
    }
}
