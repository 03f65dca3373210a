//! All trunks of a fabric.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use ib_fabric::{EndNode, Endpoint, Fabric};
use ib_vtime::Instant;

use crate::config::{TrunkConfig, TrunkWay};
use crate::descriptors::{Descriptors, Interest};
use crate::door::Door;
use crate::trunk::{Trunk, TrunkError};

/// The name of a trunk of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrunkId(u32);

/// News of trunks.
#[derive(Debug)]
#[non_exhaustive]
pub enum TrunkEvent {
    /// [`Trunk::peer`] is another one than before.
    Changed(TrunkId),
    /// No trunk connects from now on: the process that does so is gone.
    DoorEnded(io::Error),
}

/// The trunks of a fabric, with their connections. It never blocks.
///
/// It is one descriptor: when that can be read, and at [`Self::poll_timeout`], and after each poll of the fabric, [`Self::poll`] is to be
/// called.
#[derive(Debug)]
pub struct Trunks {
    descriptors: Descriptors,
    trunks: Vec<Trunk>,
    door: Option<Door>,
    open_door: fn() -> io::Result<Door>,
    events: VecDeque<TrunkEvent>,
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
            door: None,
            open_door,
            events: VecDeque::new(),
        })
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
        if self.door.is_none() && matches!(config.way, TrunkWay::Connect(_)) {
            let door = (self.open_door)().map_err(TrunkError::Door)?;
            let added = self.descriptors.add(&door, Interest::Bytes);
            added.map_err(|error| TrunkError::Door(error.into()))?;
            self.door = Some(door);
        }
        let number = u32::try_from(self.trunks.len()).unwrap_or(u32::MAX);
        let trunk = Trunk::open(fabric, &self.descriptors, near, config)?;
        self.trunks.push(trunk);
        Ok(TrunkId(number))
    }

    /// Returns a trunk; `None` if it is another fabric's.
    #[must_use]
    pub fn get(&self, id: TrunkId) -> Option<&Trunk> {
        self.trunks.get(usize::try_from(id.0).ok()?)
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
            } else {
                for trunk in &mut self.trunks {
                    trunk.handle_ready(now, fabric, &self.descriptors, fd);
                }
            }
        }
        self.exchange(now, fabric)
    }

    /// Moves packets, bytes and time on, without a look at the descriptors. Returns `true` if that changed the fabric.
    pub fn exchange<D: EndNode>(&mut self, now: Instant, fabric: &mut Fabric<D>) -> bool {
        self.order_connections(now);
        let mut any = false;
        for (number, trunk) in (0..).zip(&mut self.trunks) {
            any |= trunk.drive(now, fabric, &self.descriptors);
            if trunk.has_changed() {
                self.events.push_back(TrunkEvent::Changed(TrunkId(number)));
            }
        }
        any
    }

    /// Returns the next news.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<TrunkEvent> {
        self.events.pop_front()
    }

    /// Returns the time at which to poll at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.trunks.iter().filter_map(Trunk::poll_timeout).min()
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
                    self.events.push_back(TrunkEvent::DoorEnded(error.into()));
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
                .and_then(|socket| trunk.greet(now, fabric, &self.descriptors, socket));
            if let Err(words) = connected {
                trunk.fail(now, words);
            }
        }
    }
}

impl AsFd for Trunks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptors.as_fd()
    }
}
