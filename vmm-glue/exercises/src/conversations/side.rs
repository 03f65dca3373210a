//! What one side of a conversation has been through.

use std::collections::BTreeMap;
use std::time::Duration;

use ib_endpoint::cm::{ConnId, Role};
use ib_vtime::Instant;
use ib_wire::cm::timeout_nanos;

use super::Ending;
use super::plan::ACK_TIMEOUT;

/// A message that waits for an answer.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    at: Instant,
    wait: Duration,
    tries: u32,
    /// What each MRA granted.
    granted: Vec<Duration>,
}

impl Asked {
    /// A message sent now, each try of which gets the time of `code` and the path's.
    pub(super) fn new(at: Instant, code: u8, retries: u8) -> Self {
        Self::with_wait(at, time(code) + time(ACK_TIMEOUT), retries)
    }

    pub(super) fn with_wait(at: Instant, wait: Duration, retries: u8) -> Self {
        Self {
            at,
            wait,
            tries: u32::from(retries) + 1,
            granted: Vec::new(),
        }
    }

    pub(super) fn grant(&mut self, service_timeout: u8) {
        self.granted.push(time(service_timeout) + time(ACK_TIMEOUT));
    }

    /// Whether giving up at `now` is what the message fields demand: every try got its time, and
    /// a try that an MRA extended got that time from then on.
    pub(super) fn explains(&self, now: Instant) -> bool {
        let elapsed = now - self.at;
        let extended = u32::try_from(self.granted.len()).unwrap_or(u32::MAX);
        let granted: Duration = self.granted.iter().sum();
        let least = self.wait * self.tries.saturating_sub(extended) + granted;
        let most = self.wait * self.tries + granted;
        extended <= self.tries && least <= elapsed && elapsed <= most
    }
}

fn time(code: u8) -> Duration {
    Duration::from_nanos(timeout_nanos(code))
}

/// One side of a conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    pub conn: Option<ConnId>,
    pub established: bool,
    /// Its part in the connection, once established.
    pub role: Option<Role>,
    pub asked: Option<Asked>,
    pub ending: Option<Ending>,
    /// Whether its node was reset while it had a connection.
    pub was_reset: bool,
    /// By number of the LAP, what this side knows of it: whether it was accepted.
    pub laps: BTreeMap<u8, bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_explained_by_all_tries_and_nothing_less() {
        let start = Instant::from_millis(5);
        let wait = Duration::from_millis(10);
        let asked = Asked::with_wait(start, wait, 2);
        assert!(asked.explains(start + wait * 3));
        assert!(!asked.explains(start + wait * 2));
        assert!(!asked.explains(start + wait * 4));
    }

    #[test]
    fn an_mra_explains_up_to_its_own_time_more() {
        let start = Instant::ZERO;
        let wait = Duration::from_millis(10);
        let mut asked = Asked::with_wait(start, wait, 1);
        asked.grant(14);
        let granted = time(14) + time(ACK_TIMEOUT);
        assert!(asked.explains(start + wait + granted));
        assert!(asked.explains(start + wait * 2 + granted));
        assert!(!asked.explains(start + wait * 2));
        assert!(!asked.explains(start + wait * 3 + granted));
    }
}
