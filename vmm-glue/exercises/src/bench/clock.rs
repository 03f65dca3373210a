//! The time that this thread ran. Unlike the wall clock it stands still while others have the
//! processor, so a busy machine disturbs less.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Measures from its making on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopwatch(Duration);

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self(running_time())
    }

    pub(super) fn elapsed(self) -> Duration {
        running_time().saturating_sub(self.0)
    }
}

fn running_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The kernel's values are in range.
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
