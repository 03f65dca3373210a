//! What a clock drives.

use ib_vtime::Instant;

use crate::watch::{Ready, WatchChange};

/// Machines that a clock drives: the wall clock ([`crate::Runner`]) or a virtual one
/// ([`crate::world::World::run_until`]).
pub trait Driven {
    /// Does everything that is due at `now`, until nothing is left to do before a later time, or until the descriptors
    /// should be looked at again. Then [`Driven::poll_timeout`] gives a time that has passed. `now` never decreases from
    /// call to call.
    fn poll(&mut self, now: Instant);

    /// When [`Driven::poll`] wants to be called next. `None`: not before something from outside.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The next change to the descriptors that the event loop is to watch; asked for after each
    /// poll, until there is none. Without descriptors there is never any.
    fn poll_watch(&mut self) -> Option<WatchChange> {
        None
    }

    /// A watched descriptor is ready. A poll follows.
    fn handle_ready(&mut self, _now: Instant, _ready: Ready) {}
}
