//! The demo: a subnet comes up, and its hosts do what InfiniBand hosts do.
//!
//! Two hosts with two-port HCAs and a management host, behind three switches in a triangle. Each step
//! drives the production machines and looks at what really happened; the first step that fails ends
//! the demo.

mod network;
mod report;
mod stage;
mod steps;

use std::io::{self, Write};

use ib_capture::WriteError;
use thiserror::Error;

pub use network::NetworkError;
pub use report::{Facts, StepReport, Summary};

use crate::LoopError;
use stage::{Stage, StepError};

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
    /// Takes a capture of every packet on every link.
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
    let (seed, clock) = (options.seed, options.clock);
    let mut stage = Stage::new(options)?;
    let mut steps = 0;
    let mut failed = None;
    for (name, step) in steps::ALL {
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
    Ok(Summary {
        ok: failed.is_none(),
        steps,
        failed,
        seed,
        clock: clock.name(),
        took_ms: report::milliseconds(took.saturating_duration_since(ib_vtime::Instant::ZERO)),
        captured_frames: stage.finish()?,
    })
}
