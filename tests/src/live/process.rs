//! Processes of a test: logged to a file, waited for with a limit, never left behind.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often what a process wrote is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until `found` gives something, for at most `limit`.
pub fn wait_for<T>(limit: Duration, mut found: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(it) = found() {
            return Some(it);
        }
        if Instant::now() > end {
            return None;
        }
        sleep(LOOK);
    }
}

/// A running process whose output goes to a file. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command; what it prints goes to `DIR/NAME.out`.
    pub fn start(dir: &Path, name: &str, command: &mut Command) -> Self {
        let log = dir.join(format!("{name}.out"));
        let out = File::create(&log).expect("a file for the output");
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a second descriptor"))
            .stderr(out)
            .current_dir(dir)
            .spawn()
            .unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        Self {
            name: name.to_owned(),
            child,
            log,
        }
    }

    /// What it has printed.
    pub fn output(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until its output has a line with `text`.
    pub fn wait_for_line(&mut self, text: &str, limit: Duration) {
        let seen = wait_for(limit, || {
            if self.output().contains(text) {
                return Some(true);
            }
            self.ended().map(|_| false)
        });
        // What it wrote last may have come between the look and its end.
        let seen = seen == Some(true) || self.output().contains(text);
        assert!(
            seen,
            "{} did not print {text:?}:\n{}",
            self.name,
            self.output()
        );
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, `TERM` or `KILL` or so.
    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([format!("-{signal}"), self.id().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success(), "{} is gone already", self.name);
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let end = wait_for(limit, || self.ended());
        end.unwrap_or_else(|| panic!("{} goes on:\n{}", self.name, self.output()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
