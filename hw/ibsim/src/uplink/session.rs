//! The client's conversation with the simulator's control socket.

use ib_vtime::{Duration, Instant};

use super::config::{CONNECT_TIMEOUT, MAX_BACKOFF, MIN_BACKOFF};
use super::output::{Failure, UplinkState};

/// How far the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The sockets are to be opened.
    Opening,
    /// CONNECT is on its way.
    Connecting {
        give_up_at: Instant,
    },
    Attached {
        slot: u32,
    },
    Waiting {
        retry_at: Instant,
        failure: Failure,
    },
}

/// The client of a simulator.
#[derive(Debug)]
pub(super) struct Session {
    phase: Phase,
    backoff: Duration,
}

impl Session {
    pub(super) const fn new() -> Self {
        Self {
            phase: Phase::Opening,
            backoff: MIN_BACKOFF,
        }
    }

    pub(super) const fn state(&self) -> UplinkState {
        match self.phase {
            Phase::Opening | Phase::Connecting { .. } => UplinkState::Attaching,
            Phase::Attached { slot } => UplinkState::Attached { slot },
            Phase::Waiting { retry_at, failure } => UplinkState::Waiting { retry_at, failure },
        }
    }

    pub(super) const fn is_attached(&self) -> bool {
        matches!(self.phase, Phase::Attached { .. })
    }

    /// Whether there are sockets that may be closed.
    pub(super) const fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Waiting { .. })
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Connecting { give_up_at } => Some(give_up_at),
            Phase::Waiting { retry_at, .. } => Some(retry_at),
            Phase::Opening | Phase::Attached { .. } => None,
        }
    }

    /// The sockets are there, and CONNECT goes out. `false` if nobody asked for them.
    pub(super) fn opened(&mut self, now: Instant) -> bool {
        let asked = self.phase == Phase::Opening;
        if asked {
            self.phase = Phase::Connecting {
                give_up_at: now + CONNECT_TIMEOUT,
            };
        }
        asked
    }

    /// CONNECT was answered. `false` if none was on its way.
    pub(super) fn attached(&mut self, slot: u32) -> bool {
        let asked = matches!(self.phase, Phase::Connecting { .. });
        if asked {
            self.phase = Phase::Attached { slot };
        }
        asked
    }

    /// The attached node is the right one: the next failure is the first one again.
    pub(super) const fn proved(&mut self) {
        self.backoff = MIN_BACKOFF;
    }

    pub(super) fn fail(&mut self, now: Instant, failure: Failure) {
        self.phase = Phase::Waiting {
            retry_at: now + self.backoff,
            failure,
        };
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
    }

    /// What became of the time: `Some(true)` if the sockets are to be opened, `Some(false)` if the
    /// simulator has not answered CONNECT.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<bool> {
        match self.phase {
            Phase::Waiting { retry_at, .. } if retry_at <= now => {
                self.phase = Phase::Opening;
                Some(true)
            }
            Phase::Connecting { give_up_at } if give_up_at <= now => Some(false),
            _ => None,
        }
    }
}
