//! The watchdog of the service manager, which the service feeds.

use std::time::Duration;

use super::notify;
use super::way_in::{Turn, WayIn};
use vhca::watch::Ready;

/// Feeds the watchdog of the service manager (`WatchdogSec=` of its unit).
#[derive(Debug)]
pub(super) struct WatchdogFeed {
    period: Duration,
    next: ib_vtime::Instant,
}

impl WatchdogFeed {
    /// Returns a feed for the service manager's watchdog, if it has one (sd_watchdog_enabled(3)).
    pub(super) fn from_environment() -> Option<Self> {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let own = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let micros = number("WATCHDOG_USEC").filter(|micros| own && *micros > 0)?;
        Some(Self {
            period: Duration::from_micros(micros / 2),
            next: ib_vtime::Instant::ZERO,
        })
    }
}

impl WayIn for WatchdogFeed {
    fn start(&mut self, _: &mut Turn<'_>) {}

    fn handle_ready(&mut self, _: &mut Turn<'_>, _: Ready) {}

    fn flush(&mut self, turn: &mut Turn<'_>) {
        if turn.now >= self.next {
            self.next = turn.now + self.period;
            // A service manager that does not listen restarts the service, or does not care.
            let _ = notify::tell("WATCHDOG=1");
        }
    }

    fn poll_timeout(&self) -> Option<ib_vtime::Instant> {
        Some(self.next)
    }
}
