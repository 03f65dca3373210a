//! Amount of a node's work that is done before other nodes have their turn.

use core::time::Duration;

/// The most that one piece of work counts. Of a longer one most was likely the host's, which had the thread wait for a processor.
const LONGEST: Duration = Duration::from_micros(100);

/// Bound of the work of a node at a time, and the clock by which the work is charged to functions.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    packets: u32,
    clock: Option<fn() -> Duration>,
}

impl Pace {
    /// The pace of virtual time, in which no work takes time: nodes do as much as they do by themselves, and functions share a port
    /// by bytes alone. What happens is the same each time.
    pub const VIRTUAL: Self = Self {
        packets: u32::MAX,
        clock: None,
    };

    /// Returns the pace of a fabric that others wait for: so many packets of a node at a time, and functions share a port by the
    /// time that `clock` measures.
    #[must_use]
    pub const fn timed(packets: u32, clock: fn() -> Duration) -> Self {
        Self {
            packets,
            clock: Some(clock),
        }
    }

    /// Returns the packets of a node at a time.
    #[must_use]
    pub const fn packets(self) -> u32 {
        self.packets
    }

    /// Returns `true` if functions share a port by time.
    #[must_use]
    pub const fn is_timed(self) -> bool {
        self.clock.is_some()
    }

    /// Returns the time of the clock; 0 without one.
    #[must_use]
    pub fn time(self) -> Duration {
        self.clock.map_or(Duration::ZERO, |clock| clock())
    }

    /// Returns the time since `begun`, of which 100 µs count at most; 0 without a clock.
    #[must_use]
    pub fn since(self, begun: Duration) -> Duration {
        Self::between(begun, self.time())
    }

    /// Returns the time between two times of a clock, of which 100 µs count at most.
    #[must_use]
    pub fn between(begun: Duration, end: Duration) -> Duration {
        end.saturating_sub(begun).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_of_work_counts_a_tenth_of_a_millisecond_at_most_and_nothing_in_virtual_time() {
        let pace = Pace::timed(1, || Duration::from_millis(5));
        let micros = |us| Duration::from_millis(5) - Duration::from_micros(us);
        assert_eq!(pace.since(micros(7)), Duration::from_micros(7));
        assert_eq!(pace.since(micros(5000)), LONGEST);
        assert_eq!(Pace::VIRTUAL.since(Duration::ZERO), Duration::ZERO);
    }
}
