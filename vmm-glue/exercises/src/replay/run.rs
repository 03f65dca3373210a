//! A run of a script: the mux and its clock.

use std::io::{self, Write};

use ib_vtime::{Duration, Instant};
use pf_context::{Cause, PortMux};

use super::config::Config;
use super::lines::{write_output, write_sizes};
use super::script::{self, Action, LineError, Step};

/// The step of the clock. What is due within one happens at its end.
const TICK: Duration = Duration::from_millis(1);

/// A run of a script.
#[derive(Debug)]
pub(super) struct Run {
    mux: PortMux,
    vfs: u16,
    clock: Instant,
}

impl Run {
    /// The start of a run.
    pub(super) fn new(config: Config) -> Result<Self, LineError> {
        let (mux, vfs) = config.start()?;
        Ok(Self {
            mux,
            vfs,
            clock: Instant::ZERO,
        })
    }

    /// Reads a line that can come next.
    pub(super) fn parse(&self, line: &[u8]) -> Result<Step, LineError> {
        let step = script::parse(line, self.vfs)?;
        if step.at < self.clock {
            return Err(LineError::Decreasing {
                at: step.at.as_millis(),
                clock: self.clock.as_millis(),
            });
        }
        Ok(step)
    }

    /// Runs the timers up to a step, then the step, and prints what comes of both.
    pub(super) fn take(
        &mut self,
        cause: Cause,
        step: Step,
        out: &mut impl Write,
    ) -> io::Result<()> {
        self.advance(step.at, out)?;
        let now = self.clock;
        match step.action {
            Action::FromVf { vf, qp, frame } => {
                self.mux.from_vf_bytes(now, cause, vf, qp, &frame);
            }
            Action::FromWire { qp, source, mad } => {
                self.mux.from_wire(now, cause, qp, &source, &mad);
            }
            Action::VfReset(vf) => self.mux.reset_vf(now, cause, vf),
            Action::Port(event) => self.mux.event(now, cause, event),
            Action::Barrier { stats: false } => {}
            Action::Barrier { stats: true } => {
                return write_sizes(out, now, cause, &self.mux.sizes());
            }
        }
        self.print(out)
    }

    /// Moves the clock, and fires the timers on the way, each at its own time.
    fn advance(&mut self, to: Instant, out: &mut impl Write) -> io::Result<()> {
        while let Some(due) = self
            .mux
            .poll_timeout()
            .map(tick_of)
            .filter(|&due| due <= to)
        {
            self.clock = self.clock.max(due);
            self.mux.handle_timeout(self.clock);
            self.print(out)?;
        }
        self.clock = to;
        Ok(())
    }

    fn print(&mut self, out: &mut impl Write) -> io::Result<()> {
        while let Some((cause, output)) = self.mux.poll_output() {
            write_output(out, self.clock, cause, &output)?;
        }
        Ok(())
    }
}

/// The end of the tick in which a deadline lies.
fn tick_of(deadline: Instant) -> Instant {
    let begun = Instant::from_millis(deadline.as_millis());
    if begun == deadline {
        begun
    } else {
        begun + TICK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_within_a_tick_happens_at_its_end() {
        assert_eq!(tick_of(Instant::from_nanos(2_000_000)).as_millis(), 2);
        assert_eq!(tick_of(Instant::from_nanos(2_000_001)).as_millis(), 3);
        assert_eq!(tick_of(Instant::from_nanos(2_999_999)).as_millis(), 3);
        assert_eq!(tick_of(Instant::FAR_FUTURE), Instant::FAR_FUTURE);
    }
}
