//! How long one may go on before others have their turn.

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
    At(Instant),
    Steps(u32),
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
        Self(End::At(Instant::now() + length))
    }

    /// One of so many steps, whatever time they take: what is cut off after them is the same each time.
    #[must_use]
    pub const fn of_steps(steps: u32) -> Self {
        Self(End::Steps(steps))
    }

    /// The slice of one of many that share this one.
    #[must_use]
    pub fn share(&self, length: Duration) -> Self {
        match self.0 {
            End::Never => Self::endless(),
            End::At(end) => Self(End::At(end.min(Instant::now() + length))),
            End::Steps(_) => Self::of_steps(1),
        }
    }

    /// Returns `true` if others have their turn now. To be asked after each step.
    pub fn is_over(&mut self) -> bool {
        match &mut self.0 {
            End::Never => false,
            End::At(end) => Instant::now() >= *end,
            End::Steps(left) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
        }
    }
}
