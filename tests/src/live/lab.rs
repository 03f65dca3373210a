//! A service with an emulated fabric, and programs attached to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::cargo::cargo;

use super::{Machines, MemoryCgroup, Process, wait_for};

/// For whatever takes a moment: far more than it needs on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Where stock programs find the simulator's preload.
const UMAD2SIM: &str = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so";

/// How a program reaches the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shim {
    /// Our preload, by `vhca run`.
    Vhca,
    /// The one of ibsim.
    Umad2sim,
}

/// The `vhca` binary, built with optimisations as a user builds it, or by the profile that `VHCA_TEST_PROFILE` names.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let profile = std::env::var("VHCA_TEST_PROFILE");
        let profile = profile.unwrap_or_else(|_| "release".to_owned());
        let built = cargo()
            .args(["build", "--profile", &profile, "--locked", "--quiet"])
            .current_dir(&root)
            .status()
            .expect("cargo runs");
        assert!(built.success(), "the {profile} build failed");
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let binary = target.join(profile).join("vhca");
        binary.canonicalize().expect("the binary was built")
    })
}

/// A running `vhca serve`, with sockets of its own in a directory of its own.
#[derive(Debug)]
pub struct Lab {
    // Before the directory: processes end before their files go.
    service: Process,
    dir: TempDir,
}

impl Lab {
    /// Starts the service with these arguments beside its sockets.
    pub fn serve(arguments: &[&str]) -> Self {
        Self::start(Command::new(binary()), arguments)
    }

    /// Starts the service in a control group.
    pub fn serve_in(group: &MemoryCgroup, arguments: &[&str]) -> Self {
        Self::start(group.command(binary()), arguments)
    }

    /// Starts a service as a program on a node of another one.
    pub fn serve_on(outer: &Self, node: &str, arguments: &[&str]) -> Self {
        let binary = binary().to_string_lossy();
        Self::start(outer.on(Shim::Vhca, node, &[&binary]), arguments)
    }

    /// Starts the service on a machine of a pair.
    pub fn serve_at(machines: &Machines, side: usize, arguments: &[&str]) -> Self {
        Self::start(machines.vhca(side), arguments)
    }

    fn start(mut command: Command, arguments: &[&str]) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("vhca-lab")
            .tempdir()
            .unwrap();
        command.arg("serve").args(arguments);
        command.arg("--control").arg(dir.path().join("control"));
        command.arg("--umad").arg(dir.path().join("umad"));
        command.args(["--ibsim", &simulator_name(dir.path())]);
        let mut service = Process::start(dir.path(), "serve", &mut command);
        service.wait_for_line("ready", PATIENCE);
        Self { service, dir }
    }

    /// The directory of this lab.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The service.
    pub fn service(&mut self) -> &mut Process {
        &mut self.service
    }

    /// A `vhca` command on the running service.
    pub fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.args(arguments);
        command.arg("--control").arg(self.dir().join("control"));
        command.output().expect("vhca runs")
    }

    /// What a `vhca` command on the running service prints; it must succeed.
    pub fn told(&self, arguments: &[&str]) -> String {
        succeeded(arguments, &self.ask(arguments))
    }

    /// What a `vhca` command prints with `--json`.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.told(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// A program on a node of the fabric, to be started.
    pub fn on(&self, shim: Shim, node: &str, program: &[&str]) -> Command {
        let mut command = match shim {
            Shim::Vhca => {
                let mut command = Command::new(binary());
                command.args(["run", "--node", node, "--socket"]);
                command.arg(self.dir().join("umad")).arg("--");
                command
            }
            Shim::Umad2sim => {
                let mut command = Command::new("env");
                command.arg(format!("LD_PRELOAD={UMAD2SIM}"));
                command.env("SIM_HOST", node);
                command.env("IBSIM_SOCKNAME", simulator_name(self.dir()));
                command
            }
        };
        command.args(program).current_dir(self.dir());
        command
    }

    /// What a tool on a node prints; it must succeed.
    pub fn tool(&self, shim: Shim, node: &str, program: &[&str]) -> String {
        let output = self
            .on(shim, node, program)
            .output()
            .expect("the tool runs");
        succeeded(program, &output)
    }

    /// Waits until what a `vhca` command prints with `--json` satisfies `holds`.
    pub fn wait_until(&self, arguments: &[&str], holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = wait_for(PATIENCE, || {
            last = self.json(arguments);
            holds(&last).then(|| last.clone())
        });
        found.unwrap_or_else(|| panic!("{arguments:?} stays at {last:#}"))
    }
}

/// What a command printed; it must have succeeded.
fn succeeded(arguments: &[&str], output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{arguments:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// The base of the simulator's socket names: as unique as the directory.
fn simulator_name(dir: &Path) -> String {
    let name = dir.file_name().expect("a directory has a name");
    name.to_string_lossy().into_owned()
}

/// A running OpenSM with its log.
#[derive(Debug)]
pub struct OpenSm {
    /// It itself.
    pub process: Process,
    log: PathBuf,
}

impl OpenSm {
    /// Starts OpenSM on a node with these lines in its configuration.
    pub fn start(lab: &Lab, shim: Shim, node: &str, config: &str) -> Self {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = lab.dir().join(format!("opensm-{number}"));
        fs::create_dir(&dir).unwrap();
        let (log, conf) = (dir.join("log"), dir.join("conf"));
        fs::write(&conf, format!("force_log_flush TRUE\n{config}")).unwrap();
        let mut command = lab.on(shim, node, &["opensm", "-f"]);
        command.arg(&log).arg("-F").arg(&conf);
        command.env("OSM_CACHE_DIR", &dir).env("OSM_TMP_DIR", &dir);
        let process = Process::start(&dir, "opensm", &mut command);
        Self { process, log }
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How often its log says this.
    pub fn count(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    /// Waits until its log says this so many times.
    pub fn wait_for(&self, text: &str, times: usize) {
        let seen = wait_for(PATIENCE, || (self.count(text) >= times).then_some(()));
        assert!(seen.is_some(), "no {text:?} in\n{}", self.log());
    }

    /// The lines of its log that tell an error, without those that tell of a request which was answered late and sent again:
    /// they come on any fabric whose host is busy.
    pub fn errors(&self) -> Vec<String> {
        const LATE: [&str; 3] = ["IB_TIMEOUT", "timed out", "Timeout"];
        let log = self.log();
        let is_late = |line: &str| LATE.iter().any(|late| line.contains(late));
        let errors = log.lines().filter(|line| line.contains("ERR "));
        let errors = errors.filter(|line| !is_late(line));
        errors.map(str::to_owned).collect()
    }
}
