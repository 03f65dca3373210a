//! The time in which queues are looked at, and not waited for.

use std::time::Instant as WallInstant;

use ib_vtime::Duration;

/// Time after traffic by default: longer than the other end takes to answer.
const TIME: Duration = Duration::from_micros(50);

/// A look that comes so much later than the end of the work before it shows that other threads want the processor.
const LATE: Duration = Duration::from_micros(100);

/// Time for which there are no looks then. A thread that yields waits until others have had their share, some milliseconds, and one that
/// sleeps is woken at once: on a busy host one look a second is what that costs.
const PAUSE: Duration = Duration::from_secs(1);

/// The time after traffic in which queues are looked at, which is none while other threads want the processor.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    time: Duration,
    /// Time at which the owner had nothing left to do, if it has not looked since.
    idle_since: Option<WallInstant>,
    paused_until: Option<WallInstant>,
}

impl Default for BusyPoll {
    fn default() -> Self {
        Self {
            time: TIME,
            idle_since: None,
            paused_until: None,
        }
    }
}

impl BusyPoll {
    pub(crate) const fn set(&mut self, time: Duration) {
        self.time = time;
    }

    /// Begins a look. Returns the time after traffic for which there are to be others.
    pub(crate) fn begin(&mut self, now: WallInstant) -> Duration {
        let is_late = |since| now.saturating_duration_since(since) > LATE;
        if self.idle_since.take().is_some_and(is_late) {
            self.paused_until = Some(now + PAUSE);
        }
        match self.paused_until {
            Some(until) if now < until => Duration::ZERO,
            Some(_) | None => self.time,
        }
    }

    /// Ends the work after a look: there is to be another one soon.
    pub(crate) fn end_idle(&mut self, now: WallInstant) {
        self.idle_since = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_pause_while_other_threads_have_the_processor_between_them() {
        let mut busy_poll = BusyPoll::default();
        let begun = WallInstant::now();
        let late = LATE + Duration::from_nanos(1);
        assert_eq!(busy_poll.begin(begun), TIME);
        // The loop worked or slept in between.
        assert_eq!(busy_poll.begin(begun + late), TIME);
        busy_poll.end_idle(begun + late);
        assert_eq!(busy_poll.begin(begun + late + LATE), TIME);
        busy_poll.end_idle(begun + 2 * late);
        let noticed = begun + 3 * late;
        assert_eq!(busy_poll.begin(noticed), Duration::ZERO);
        assert_eq!(busy_poll.begin(noticed + PAUSE / 2), Duration::ZERO);
        assert_eq!(busy_poll.begin(noticed + PAUSE), TIME);
    }
}
