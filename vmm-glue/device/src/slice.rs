//! How long one may go on before others have their turn.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A slice of time.
///
/// A server of many clients does the work of each in small steps, and asks between two steps whether the slice is over.
/// In real time a slice ends by the clock, because what a step costs depends on what a guest thought of. In virtual time
/// nobody waits, and a slice never ends.
#[derive(Clone, Copy, Debug)]
pub struct Slice(End);

#[derive(Clone, Copy, Debug)]
enum End {
    Never,
    At {
        begun: Duration,
        end: Duration,
        clock: fn() -> Duration,
    },
    Steps {
        taken: u32,
        left: u32,
    },
}

impl Slice {
    /// One that does not end.
    #[must_use]
    pub const fn endless() -> Self {
        Self(End::Never)
    }

    /// One of so much real time, from now on.
    #[must_use]
    pub fn of(length: Duration) -> Self {
        Self::by_clock(length, real_time)
    }

    /// One of so much time of a clock, from now on.
    #[must_use]
    pub fn by_clock(length: Duration, clock: fn() -> Duration) -> Self {
        let begun = clock();
        let end = begun.saturating_add(length);
        Self(End::At { begun, end, clock })
    }

    /// One of so many steps, whatever time they take: what is cut off after them is the same each time.
    #[must_use]
    pub const fn of_steps(steps: u32) -> Self {
        Self(End::Steps {
            taken: 0,
            left: steps,
        })
    }

    /// Returns a slice of so much real time from now on, whether or not this one is over by then.
    #[must_use]
    pub fn anew(&self, length: Duration) -> Self {
        match self.0 {
            End::Never => Self::endless(),
            End::At { clock, .. } => Self::by_clock(length, clock),
            End::Steps { .. } => Self::of_steps(1),
        }
    }

    /// The slice of one of many that share this one.
    #[must_use]
    pub fn share(&self, length: Duration) -> Self {
        match self.0 {
            End::Never => Self::endless(),
            End::At { end, clock, .. } => {
                let begun = clock();
                let end = end.min(begun.saturating_add(length));
                Self(End::At { begun, end, clock })
            }
            End::Steps { .. } => Self::of_steps(1),
        }
    }

    /// Returns the time since the slice began: a microsecond for each step where steps count, nothing in virtual time.
    #[must_use]
    pub fn spent(&self) -> Duration {
        match self.0 {
            End::Never => Duration::ZERO,
            End::At { begun, clock, .. } => clock().saturating_sub(begun),
            End::Steps { taken, .. } => Duration::from_micros(taken.into()),
        }
    }

    /// Returns the clock by which the slice ends, if it ends by one.
    #[must_use]
    pub const fn clock(&self) -> Option<fn() -> Duration> {
        match self.0 {
            End::At { clock, .. } => Some(clock),
            End::Never | End::Steps { .. } => None,
        }
    }

    /// Returns `true` if the slice ends by a clock.
    #[must_use]
    pub const fn is_timed(&self) -> bool {
        self.clock().is_some()
    }

    /// Returns `true` if others have their turn now. To be asked after each step.
    pub fn is_over(&mut self) -> bool {
        match &mut self.0 {
            End::Never => false,
            End::At { end, clock, .. } => clock() >= *end,
            End::Steps { taken, left } => {
                *taken = taken.saturating_add(1);
                *left = left.saturating_sub(1);
                *left == 0
            }
        }
    }
}

/// Returns the time since the first call.
fn real_time() -> Duration {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}
