//! Connections of a trunk that are not yet open: with TLS, until the other end has proved its identity.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use ib_vtime::Instant;

use crate::carrier::Carrier;
use crate::descriptors::{Descriptors, Interest};

/// Handshakes of one trunk at the same time at most. Each costs a buffer of 16 KiB, and the oldest makes room for one more.
const AT_ONCE: usize = 64;

/// The end of a handshake. The connection is watched.
#[derive(Debug)]
pub(crate) enum Outcome {
    Open(Carrier),
    Failed(Carrier, String),
}

#[derive(Debug)]
struct Handshake {
    until: Instant,
    carrier: Carrier,
}

/// The handshakes of a trunk.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    /// In the order of their deadlines.
    under_way: VecDeque<Handshake>,
}

impl Handshakes {
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns the time at which the oldest one fails.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.under_way.front().map(|handshake| handshake.until)
    }

    /// Begins the handshake of a connection that is watched. Returns the outcome if there is one at once, as there is without TLS.
    #[must_use]
    pub(crate) fn begin(
        &mut self,
        descriptors: &Descriptors,
        carrier: Carrier,
        until: Instant,
    ) -> Option<Outcome> {
        let outcome = self.advance(descriptors, Handshake { until, carrier });
        if self.under_way.len() > AT_ONCE {
            self.under_way.pop_front();
        }
        outcome
    }

    /// Moves the handshake of a connection on that is ready. Returns its outcome, if there is one.
    #[must_use]
    pub(crate) fn handle_ready(&mut self, descriptors: &Descriptors, fd: RawFd) -> Option<Outcome> {
        let mut all = self.under_way.iter();
        let place = all.position(|handshake| handshake.carrier.as_fd().as_raw_fd() == fd)?;
        let handshake = self.under_way.remove(place)?;
        self.advance(descriptors, handshake)
    }

    /// Returns a handshake that has taken too long.
    #[must_use]
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Option<Outcome> {
        if self.poll_timeout()? > now {
            return None;
        }
        let late = self.under_way.pop_front()?;
        let words = "the other end did not end the TLS handshake in time: give both ends tls: addresses, or this one a longer timeout";
        Some(Outcome::Failed(late.carrier, words.to_owned()))
    }

    fn advance(&mut self, descriptors: &Descriptors, mut handshake: Handshake) -> Option<Outcome> {
        match handshake.carrier.establish() {
            Ok(true) => return Some(Outcome::Open(handshake.carrier)),
            Err(words) => return Some(Outcome::Failed(handshake.carrier, words)),
            Ok(false) => {}
        }
        // A new connection has room for the messages of one end, unless its chain of certificates is long.
        let interest = Interest::of(handshake.carrier.is_waiting());
        descriptors.watch(&handshake.carrier, interest);
        let later = |other: &Handshake| other.until > handshake.until;
        let place = self.under_way.iter().position(later);
        let place = place.unwrap_or(self.under_way.len());
        self.under_way.insert(place, handshake);
        None
    }
}
