//! Connections of a trunk that are not yet open: with TLS, until the other end has proved its identity.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use ib_vtime::Instant;
use vhca::watch::EventSet;
use vhca_trunk::Carrier;

use super::way_in::Turn;

/// Handshakes of one trunk at the same time at most. Each costs a buffer of 16 KiB, and the oldest makes room for one more.
const AT_ONCE: usize = 64;

/// The end of a handshake. The connection is watched.
#[derive(Debug)]
pub(super) enum Outcome {
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
pub(super) struct Handshakes {
    /// In the order of their deadlines.
    under_way: VecDeque<Handshake>,
}

impl Handshakes {
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns the time at which the oldest one fails.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.under_way.front().map(|handshake| handshake.until)
    }

    /// Watches a connection and begins its handshake. Returns the outcome if there is one at once, as there is without TLS.
    #[must_use]
    pub(super) fn begin(
        &mut self,
        turn: &mut Turn<'_>,
        carrier: Carrier,
        until: Instant,
    ) -> Option<Outcome> {
        turn.watches.add(&carrier, EventSet::IN);
        let outcome = self.advance(turn, Handshake { until, carrier });
        if self.under_way.len() > AT_ONCE
            && let Some(oldest) = self.under_way.pop_front()
        {
            turn.watches.remove(oldest.carrier.into_socket());
        }
        outcome
    }

    /// Moves the handshake of a connection on that is ready. Returns its outcome, if there is one.
    #[must_use]
    pub(super) fn handle_ready(&mut self, turn: &mut Turn<'_>, fd: RawFd) -> Option<Outcome> {
        let mut all = self.under_way.iter();
        let place = all.position(|handshake| handshake.carrier.as_fd().as_raw_fd() == fd)?;
        let handshake = self.under_way.remove(place)?;
        self.advance(turn, handshake)
    }

    /// Returns a handshake that has taken too long.
    #[must_use]
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<Outcome> {
        if self.poll_timeout()? > now {
            return None;
        }
        let late = self.under_way.pop_front()?;
        let words = "the other end did not end the TLS handshake in time: give both ends tls: addresses, or this one a longer timeout";
        Some(Outcome::Failed(late.carrier, words.to_owned()))
    }

    fn advance(&mut self, turn: &mut Turn<'_>, mut handshake: Handshake) -> Option<Outcome> {
        match handshake.carrier.establish() {
            Ok(true) => return Some(Outcome::Open(handshake.carrier)),
            Err(words) => return Some(Outcome::Failed(handshake.carrier, words)),
            Ok(false) => {}
        }
        // A new connection has room for the messages of one end, unless its chain of certificates is long.
        let room = match handshake.carrier.is_waiting() {
            true => EventSet::IN | EventSet::OUT,
            false => EventSet::IN,
        };
        turn.watches.modify(&handshake.carrier, room);
        let later = |other: &Handshake| other.until > handshake.until;
        let place = self.under_way.iter().position(later);
        let place = place.unwrap_or(self.under_way.len());
        self.under_way.insert(place, handshake);
        None
    }
}
