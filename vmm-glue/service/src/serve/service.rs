//! What the event loop drives: the lab, and the ways in to it.

use std::collections::VecDeque;

use ib_vtime::{Duration, Instant};

use super::announcement::Announcement;
use super::lab::Lab;
use super::way_in::Lanes;
use super::way_in::{Turn, WayIn};
use vhca::watch::{EventSet, Ready, WatchChange, Watches};
use vhca::{Driven, Slice};
use vhca_receiver::{Receiver, Work, during};

/// How long GUIDs and memberships are given back before the service stops anyway.
const FAREWELL: Duration = Duration::from_secs(3);

/// Polls of the world in one poll of the service, if the ways in put something into it each time.
const MAX_ROUNDS: u32 = 64;

/// How long one poll of the service goes on before the loop looks at the descriptors again.
const SLICE: Duration = Duration::from_micros(250);

/// How far the service is on its way to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// Gives back what it has at the SA, until then at most.
    Leaving(Instant),
    /// Whether everything was given back.
    Stopped(bool),
}

/// A lab and the ways in to it.
#[derive(Debug)]
pub struct Service {
    lab: Lab,
    ways: Vec<Box<dyn WayIn>>,
    watches: Watches,
    phase: Phase,
    is_virtual: bool,
    receiver: Option<Receiver>,
    lanes: Lanes,
    stop: bool,
    lost: Option<&'static str>,
    announcements: VecDeque<Announcement>,
}

impl Service {
    /// Serves a lab, to nobody yet.
    #[must_use]
    pub const fn new(lab: Lab) -> Self {
        Self {
            lab,
            ways: Vec::new(),
            watches: Watches::new(),
            phase: Phase::Running,
            is_virtual: false,
            receiver: None,
            lanes: Lanes::new(),
            stop: false,
            lost: None,
            announcements: VecDeque::new(),
        }
    }

    /// Makes a receiver take the descriptors of clients of ways in that are added from now on.
    #[must_use]
    pub(super) fn with_receiver(mut self, receiver: Receiver) -> Self {
        self.receiver = Some(receiver);
        self
    }

    /// Serves a lab by a clock of the caller's: no slice ends by the host's, so the same calls have the same outcome.
    #[must_use]
    pub const fn in_virtual_time(lab: Lab) -> Self {
        let mut service = Self::new(lab);
        service.is_virtual = true;
        service
    }

    /// Opens a way in.
    pub fn add_way_in(&mut self, way: impl WayIn + 'static) {
        self.ways.push(Box::new(way));
        let now = self.lab.world().now();
        self.with_way(self.ways.len() - 1, now, |way, turn| way.start(turn));
    }

    /// What is served.
    #[must_use]
    pub const fn lab(&self) -> &Lab {
        &self.lab
    }

    /// What is served, to be used.
    pub const fn lab_mut(&mut self) -> &mut Lab {
        &mut self.lab
    }

    /// What the ways in want told next.
    pub fn poll_announcement(&mut self) -> Option<Announcement> {
        self.announcements.pop_front()
    }

    /// Whether [`Self::poll_announcement`] has something.
    #[must_use]
    pub fn has_announcement(&self) -> bool {
        !self.announcements.is_empty()
    }

    /// Begins the end, as [`Turn::stop`] does.
    pub const fn stop(&mut self) {
        self.stop = true;
    }

    /// Whether the service has ended, and if so, whether everything that the SA knew of its VFs was
    /// given back.
    #[must_use]
    pub const fn stopped(&self) -> Option<bool> {
        match self.phase {
            Phase::Stopped(clean) => Some(clean),
            Phase::Running | Phase::Leaving(_) => None,
        }
    }

    /// Returns the process of the service for which it ended, if one is gone.
    pub(super) const fn lost(&self) -> Option<&'static str> {
        self.lost
    }

    fn with_way(
        &mut self,
        index: usize,
        now: Instant,
        call: impl FnOnce(&mut dyn WayIn, &mut Turn<'_>),
    ) {
        let (Ok(tag), Some(way)) = (u32::try_from(index), self.ways.get_mut(index)) else {
            return;
        };
        let mut turn = Turn {
            lab: &mut self.lab,
            now,
            watches: self.watches.tagged(tag),
            is_virtual: self.is_virtual,
            receiver: self.receiver.as_ref(),
            lanes: &mut self.lanes,
            stop: &mut self.stop,
            lost: &mut self.lost,
            announcements: &mut self.announcements,
        };
        call(way.as_mut(), &mut turn);
    }

    fn advance(&mut self, now: Instant) {
        if core::mem::take(&mut self.stop) && self.phase == Phase::Running {
            self.lab.shut_down();
            self.phase = Phase::Leaving(now + FAREWELL);
        } else if let Phase::Leaving(until) = self.phase {
            let clean = self.lab.is_quiet();
            if clean || now >= until {
                self.phase = Phase::Stopped(clean);
            }
        }
    }
}

impl Driven for Service {
    fn poll(&mut self, now: Instant) {
        let mut slice = match self.is_virtual {
            true => Slice::endless(),
            false => Slice::of(SLICE),
        };
        for _ in 0..MAX_ROUNDS {
            self.lab.poll(now, &mut slice);
            for index in 0..self.ways.len() {
                self.with_way(index, now, |way, turn| way.flush(turn));
            }
            self.advance(now);
            if slice.is_over() || self.lab.poll_timeout().is_none_or(|next| next > now) {
                return;
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let ways = self.ways.iter().filter_map(|way| way.poll_timeout());
        let farewell = match self.phase {
            Phase::Leaving(until) => Some(until),
            Phase::Running | Phase::Stopped(_) => None,
        };
        ways.chain(farewell).chain(self.lab.poll_timeout()).min()
    }

    fn poll_watch(&mut self) -> Option<WatchChange> {
        self.watches.poll()
    }

    fn handle_ready(&mut self, now: Instant, mut ready: Ready) {
        if let Some(socket) = self.lanes.get(&ready.fd) {
            ready = Ready {
                fd: *socket,
                events: EventSet::IN,
                ..ready
            };
        }
        if let Ok(index) = usize::try_from(ready.tag) {
            during(Work::Message, ready.fd, || {
                self.with_way(index, now, |way, turn| way.handle_ready(turn, ready));
            });
        }
    }
}
