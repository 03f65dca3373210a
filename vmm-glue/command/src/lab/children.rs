//! Programs that end with the one that started them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use thiserror::Error;

use super::{LOOK, LabError, PATIENCE};

/// How long a program that is asked to end may take.
const FAREWELL: Duration = Duration::from_secs(5);

/// Lines of a program's output that are shown of one that failed.
const LINES: usize = 15;

/// Why a program is not tied to its parent.
#[derive(Debug, Error)]
pub(crate) enum TieError {
    /// The parent is gone already.
    #[error("the process that started this one is gone")]
    Orphan,
    /// The system.
    #[error("cannot tie the program to its parent")]
    System(#[source] io::Error),
    /// The program cannot be started.
    #[error("cannot run {}", .0.display())]
    Start(PathBuf, #[source] io::Error),
}

/// A program that the kernel kills as soon as its parent is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tie {
    /// The process that must be the parent.
    pub(crate) parent: u32,
    /// The program.
    pub(crate) program: OsString,
    /// Its arguments.
    pub(crate) arguments: Vec<OsString>,
}

impl Tie {
    /// Becomes the program. It comes back only with an error.
    #[must_use]
    pub(crate) fn run(&self) -> TieError {
        if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
            return TieError::System(error.into());
        }
        // A parent that went before that was asked for would go unnoticed.
        let parent = getppid().map(Pid::as_raw_pid);
        if parent.and_then(|pid| u32::try_from(pid).ok()) != Some(self.parent) {
            return TieError::Orphan;
        }
        let error = Command::new(&self.program).args(&self.arguments).exec();
        TieError::Start(self.program.clone().into(), error)
    }
}

/// A running program of a lab. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Child {
    name: String,
    process: process::Child,
    output: PathBuf,
}

impl Child {
    /// Starts a program tied to this one by `vhca`, with its output in the folder.
    pub(super) fn start(
        vhca: &Path,
        folder: &Path,
        name: &str,
        command: &Command,
    ) -> Result<Self, LabError> {
        let failed = |error| LabError::Start(name.to_owned(), error);
        let output = folder.join(format!("{name}.out"));
        let file = File::create(&output).map_err(failed)?;
        let mut tied = Command::new(vhca);
        tied.args(["tied", "--parent", &process::id().to_string(), "--"]);
        tied.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            tied.env(key, value.unwrap_or_default());
        }
        // ^C is for the lab, which ends its programs in order.
        tied.process_group(0).stdin(Stdio::null());
        tied.stdout(file.try_clone().map_err(failed)?).stderr(file);
        Ok(Self {
            name: name.to_owned(),
            process: tied.spawn().map_err(failed)?,
            output,
        })
    }

    /// Its output so far.
    pub(super) fn output(&self) -> String {
        let bytes = fs::read(&self.output).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last lines of its output.
    pub(super) fn said(&self) -> String {
        let text = self.output();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    /// Waits until `ready` holds, or the user stops the lab.
    pub(super) fn wait(
        &mut self,
        stop: &AtomicBool,
        ready: impl Fn(&Self) -> bool,
    ) -> Result<(), LabError> {
        let end = Instant::now() + PATIENCE;
        while !ready(self) && !stop.load(Ordering::Relaxed) {
            self.check()?;
            if Instant::now() > end {
                return Err(LabError::Late {
                    name: self.name.clone(),
                    said: self.said(),
                });
            }
            sleep(LOOK);
        }
        Ok(())
    }

    /// Sees that it runs.
    pub(super) fn check(&mut self) -> Result<(), LabError> {
        match self.end()? {
            None => Ok(()),
            Some(status) => Err(self.ended(status)),
        }
    }

    /// Whether it has ended, in peace.
    pub(super) fn ended_well(&mut self) -> Result<bool, LabError> {
        match self.end()? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => Err(self.ended(status)),
        }
    }

    fn end(&mut self) -> Result<Option<ExitStatus>, LabError> {
        let status = self.process.try_wait();
        status.map_err(|error| LabError::System("cannot wait for a program", error))
    }

    fn ended(&self, status: ExitStatus) -> LabError {
        LabError::Ended {
            name: self.name.clone(),
            how: status.to_string(),
            said: self.said(),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let end = Instant::now() + FAREWELL;
        // One that is gone needs no signal.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        while Instant::now() < end {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            sleep(LOOK);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
