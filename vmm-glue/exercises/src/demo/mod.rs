//! The demo: a subnet comes up, and its guests do what InfiniBand hosts do.
//!
//! Two hosts with two-port HCAs, each of which gives VFs to four guests, and a management host, behind
//! three switches in a triangle. Each step drives the production machines and looks at what really
//! happened; the first step that fails ends the demo.

mod network;
mod report;
mod stage;
mod steps;

use std::io::{self, Write};

use ib_capture::WriteError;
use thiserror::Error;
use vhca_control::milliseconds;

pub use network::NetworkError;
pub use report::{PortTotals, StepReport, Summary};

use stage::{Stage, StepError};
use steps::Step;
use vhca::LoopError;

/// What drives the demo's machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// A clock that jumps to the next deadline: as fast as possible, and repeatable.
    Virtual,
    /// The wall clock.
    Real,
}

impl Clock {
    const fn name(self) -> &'static str {
        match self {
            Self::Virtual => "virtual",
            Self::Real => "real",
        }
    }
}

/// How to run the demo.
pub struct Options {
    /// Seeds everything random.
    pub seed: u64,
    /// What drives the machines.
    pub clock: Clock,
    /// Takes a capture of every packet on every link and in every VF's tunnels.
    pub capture: Option<Box<dyn Write>>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("seed", &self.seed)
            .field("clock", &self.clock)
            .field("capture", &self.capture.is_some())
            .finish()
    }
}

/// Why the demo could not be run to its end. A step that fails is not an error but a report.
#[derive(Debug, Error)]
pub enum DemoError {
    /// The capture could not be written.
    #[error(transparent)]
    Capture(#[from] WriteError),
    /// The subnet could not be built.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The event loop failed.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// A report could not be delivered.
    #[error("cannot print")]
    Report(#[from] io::Error),
}

/// Runs the demo. `report` is called after each step.
///
/// # Errors
/// [`DemoError`]. The capture is then cut within one packet at most.
pub fn run(
    options: Options,
    report: &mut dyn FnMut(&StepReport) -> io::Result<()>,
) -> Result<Summary, DemoError> {
    run_steps(options, steps::ALL, report)
}

fn run_steps(
    options: Options,
    all: &[(&'static str, Step)],
    report: &mut dyn FnMut(&StepReport) -> io::Result<()>,
) -> Result<Summary, DemoError> {
    let (seed, clock) = (options.seed, options.clock);
    let mut stage = Stage::new(options)?;
    let mut steps = 0;
    let mut failed = None;
    for (name, step) in all {
        let began = stage.now()?;
        let outcome = match step(&mut stage) {
            Ok(facts) => Ok(facts),
            Err(StepError::Failed(why)) => Err(why),
            Err(StepError::Host(error)) => return Err(error),
        };
        let step_report = StepReport::new(name, began, stage.now()?, outcome);
        steps += 1;
        report(&step_report)?;
        if !step_report.ok {
            failed = Some(*name);
            break;
        }
    }
    let took = stage.now()?;
    let ports = stage.port_totals()?;
    Ok(Summary {
        ok: failed.is_none(),
        steps,
        failed,
        seed,
        clock: clock.name(),
        took_ms: milliseconds(took.saturating_duration_since(ib_vtime::Instant::ZERO)),
        ports,
        captured_frames: stage.finish()?,
    })
}

#[cfg(test)]
mod tests {
    use ib_vtime::Duration;

    use vhca_control::Facts;

    use super::*;

    fn options() -> Options {
        Options {
            seed: 1,
            clock: Clock::Virtual,
            capture: None,
        }
    }

    #[test]
    fn a_step_that_fails_names_itself_and_ends_the_demo() {
        let steps: [(&str, Step); 3] = [
            ("first", |stage| {
                stage.pass(Duration::from_millis(1))?;
                Ok(Facts::new().with("seen", 1))
            }),
            ("second", |stage| {
                stage.wait_for("a miracle", |_| None::<()>)?;
                Ok(Facts::new())
            }),
            ("third", |_| Ok(Facts::new())),
        ];
        let mut reports = Vec::new();
        let summary = run_steps(options(), &steps, &mut |step| {
            reports.push(step.clone());
            Ok(())
        })
        .unwrap();
        assert!(!summary.ok);
        assert_eq!((summary.steps, summary.failed), (2, Some("second")));
        let outcomes: Vec<_> = reports.iter().map(|r| (r.step, r.ok)).collect();
        assert_eq!(outcomes, [("first", true), ("second", false)]);
        assert_eq!(
            reports[1].error.as_deref(),
            Some("a miracle: not within 20s")
        );
        assert_eq!((reports[0].took_ms, reports[1].at_ms), (1.0, 1.0));
    }

    #[test]
    fn a_report_that_cannot_be_delivered_ends_the_demo() {
        let broken = &mut |_: &StepReport| Err(io::ErrorKind::BrokenPipe.into());
        assert!(matches!(
            run(options(), broken),
            Err(DemoError::Report(error)) if error.kind() == io::ErrorKind::BrokenPipe
        ));
    }
}
