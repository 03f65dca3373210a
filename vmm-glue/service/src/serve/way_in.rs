//! Ways in to the service: whatever lets somebody outside use what is served.

use core::fmt;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, RawFd};

use ib_vtime::{Duration, Instant};

use super::announcement::Announcement;
use super::lab::Lab;
use vhca::Slice;
use vhca::watch::{EventSet, Ready, TaggedWatches};
use vhca_receiver::{ClientSocket, Receiver};

/// What a way in may use while it is called.
#[derive(Debug)]
pub struct Turn<'t> {
    /// What is served.
    pub lab: &'t mut Lab,
    /// The time.
    pub now: Instant,
    /// The way in's descriptors.
    pub watches: TaggedWatches<'t>,
    /// `true` in virtual time, where slices never end.
    pub(super) is_virtual: bool,
    /// The process that takes clients' descriptors, unless clients are trusted.
    pub(super) receiver: Option<&'t Receiver>,
    /// Sockets of clients by their lanes.
    pub(super) lanes: &'t mut Lanes,
    pub(super) stop: &'t mut bool,
    /// The process of the service that is gone.
    pub(super) lost: &'t mut Option<&'static str>,
    pub(super) announcements: &'t mut VecDeque<Announcement>,
}

/// Sockets of clients by the lanes on which the receiver passes their messages on.
pub(super) type Lanes = BTreeMap<RawFd, RawFd>;

impl Turn<'_> {
    /// Watches a client's socket for messages. What the receiver passes on of them makes the socket ready, too.
    pub(super) fn watch(&mut self, client: &ClientSocket) {
        self.watches.add(client, EventSet::IN);
        if let Some(lane) = client.lane() {
            self.watches.add(lane, EventSet::IN);
            self.lanes.insert(lane.as_raw_fd(), client.as_raw_fd());
        }
    }

    /// Ends a client's connection, whose socket is watched.
    pub(super) fn part(&mut self, client: ClientSocket) {
        let (socket, lane) = client.into_parts();
        self.watches.remove(socket);
        if let Some(lane) = lane {
            self.lanes.remove(&lane.as_raw_fd());
            self.watches.remove(lane);
        }
    }

    /// Returns a slice of so much time from now on, or one that never ends where the caller has the clock.
    #[must_use]
    pub fn slice(&self, length: Duration) -> Slice {
        match self.is_virtual {
            true => Slice::endless(),
            false => Slice::of(length),
        }
    }

    /// Ends the service: it gives back what it has at the SA, and then stops.
    pub const fn stop(&mut self) {
        *self.stop = true;
    }

    /// Ends the service with an error, since it cannot go on without a process of its own.
    pub(super) fn lose(&mut self, process: &'static str) {
        if self.lost.replace(process).is_none() {
            log::error!("{process}, a process of this service, is gone: the service ends");
        }
        self.stop();
    }

    /// Has something told to whoever started the service.
    pub fn announce(&mut self, announcement: Announcement) {
        self.announcements.push_back(announcement);
    }
}

/// A way in: a listening socket with its clients, or another source of requests.
///
/// All calls are on the thread of the event loop, so none may block: sockets are non-blocking, and
/// what a peer does not take waits in a bounded queue or is dropped.
pub trait WayIn: fmt::Debug {
    /// Called once, before anything else: to have descriptors watched.
    fn start(&mut self, turn: &mut Turn<'_>);

    /// A watched descriptor is ready. It may be one that was given up a moment ago. What is left
    /// unread is told again.
    fn handle_ready(&mut self, turn: &mut Turn<'_>, ready: Ready);

    /// Called after each poll of the world: to pass on what came out of it, and to do what is due.
    /// What this puts into the world is polled at once, and this called again.
    fn flush(&mut self, turn: &mut Turn<'_>);

    /// When [`Self::flush`] wants to be called at the latest.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
