//! Pings that go on while something else happens.

use vhca_tests::live::PATIENCE;

use crate::guest::Guest;
use crate::ip::number_before;

/// What became of pings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pings {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// The line about the times of the last round.
    pub(crate) times: String,
}

impl Pings {
    pub(crate) const fn lost(&self) -> u64 {
        self.sent - self.received
    }
}

/// Pings an address in rounds until [`end`], so that none is under way then: ping does not wait for answers when it
/// is interrupted.
pub(crate) fn start(guest: &mut Guest, to: &str) {
    let round = format!("ping -q -i 0.1 -c 25 -W 30 {to}");
    let rounds = format!("sh -c 'until [ -e /tmp/enough ]; do {round}; done; echo ended'");
    guest.start("ping", &rounds);
}

/// Ends the pings with the round that goes on.
pub(crate) fn end(guest: &mut Guest) -> Pings {
    guest.told("touch /tmp/enough");
    let log = guest.wait_until(PATIENCE, "cat /tmp/ping", |log| log.contains("ended"));
    let of_rounds = |word| {
        let rounds = log
            .lines()
            .filter(|line| line.contains("packets transmitted"));
        rounds.map(|line| number_before(line, word)).sum()
    };
    let times = log.lines().rfind(|line| line.starts_with("rtt"));
    Pings {
        sent: of_rounds("packets transmitted"),
        received: of_rounds("received"),
        times: times.unwrap_or_default().to_owned(),
    }
}
