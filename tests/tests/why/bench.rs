//! A service that is broken and mended.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use vhca_tests::live::{Process, binary, wait_for};

use crate::report::{Report, Row};

/// How long a fault may go untold, and stay after it was mended: some sweeps of a subnet manager.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// Arguments for a fabric of two hosts at each of two switches, and the subnet manager's host. A shell takes the names apart
/// where a command does not quote them.
pub(crate) const FABRIC: &[&str] = &["--topology", "./fabric", "--manager", "mgmt HCA-1"];

/// That fabric.
const NET: &str = r#"
Switch 8 "MF0;sw-1:MSX6036/U1"
[1] "node1 HCA-1"[1]
[2] "node1 HCA-2"[1]
[3] "mgmt HCA-1"[1]
[4] "MF0;sw-2:MSX6036/U1"[3]
[5] "MF0;sw-2:MSX6036/U1"[4]

Switch 8 "MF0;sw-2:MSX6036/U1"
[1] "node2 HCA-1"[1]
[2] "node2 HCA-2"[1]
[3] "MF0;sw-1:MSX6036/U1"[4]
[4] "MF0;sw-1:MSX6036/U1"[5]

Hca 1 "mgmt HCA-1"
[1] "MF0;sw-1:MSX6036/U1"[3]

Hca 1 "node1 HCA-1"
[1] "MF0;sw-1:MSX6036/U1"[1]

Hca 1 "node1 HCA-2"
[1] "MF0;sw-1:MSX6036/U1"[2]

Hca 1 "node2 HCA-1"
[1] "MF0;sw-2:MSX6036/U1"[1]

Hca 1 "node2 HCA-2"
[1] "MF0;sw-2:MSX6036/U1"[2]
"#;

/// How a fault is mended.
pub(crate) enum Cure<'a> {
    /// By what `next:` says, pasted into a shell as it stands.
    Command,
    /// By what `next:` says in words, which these do.
    Words(&'a mut dyn FnMut(&mut Bench)),
    /// The same, after which another fault is left.
    Told(&'a str, &'a mut dyn FnMut(&mut Bench)),
    /// Not here, for this reason: it is told only.
    Untried(&'static str),
}

/// A fault, and how it is told.
pub(crate) struct Case<'a> {
    /// What was broken.
    pub(crate) fault: &'a str,
    /// VF that has it: `HOST/N`, behind which `--port P` may follow.
    pub(crate) vf: &'a str,
    /// Its code.
    pub(crate) code: &'static str,
    /// What `next:` says, in part.
    pub(crate) next: &'a str,
    /// How it is mended.
    pub(crate) cure: Cure<'a>,
}

/// A running service with its sockets in a folder of its own, and programs that use it.
pub(crate) struct Bench<'r> {
    // Before the folder: processes end before their files go.
    pub(crate) programs: Vec<Process>,
    service: Option<Process>,
    pub(crate) folder: TempDir,
    report: &'r Report,
    started: usize,
}

impl<'r> Bench<'r> {
    pub(crate) fn new(report: &'r Report) -> Self {
        let folder = tempfile::Builder::new().prefix("vhca-why").tempdir();
        let folder = folder.unwrap();
        std::fs::write(folder.path().join("fabric"), NET).unwrap();
        Self {
            programs: Vec::new(),
            service: None,
            folder,
            report,
            started: 0,
        }
    }

    /// Starts a service, and waits until it is ready.
    pub(crate) fn serve(report: &'r Report, arguments: &[&str]) -> Self {
        let mut bench = Self::new(report);
        bench.restart(arguments);
        bench
    }

    /// Starts the service anew with other arguments.
    pub(crate) fn restart(&mut self, arguments: &[&str]) {
        if self.service.is_some() {
            self.run("vhca stop");
        }
        let mut command = self.shell("exec vhca serve \"$@\"");
        command.arg("serve").args(arguments);
        let mut service = self.start("serve", &mut command);
        service.wait_for_line("ready", LIMIT);
        self.service = Some(service);
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A command as a user types it, in the folder and with this service as the default.
    pub(crate) fn shell(&self, text: &str) -> Command {
        let folder = binary().parent().unwrap().display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command
            .args(["-c", text])
            .current_dir(self.path())
            // Debian has OpenSM in a folder that only root looks into.
            .env("PATH", format!("{folder}:{path}:/usr/sbin"))
            .env("VHCA_CONTROL", self.path().join("control.sock"));
        command
    }

    fn start(&mut self, name: &str, command: &mut Command) -> Process {
        self.started += 1;
        Process::start(
            self.folder.path(),
            &format!("{name}-{}", self.started),
            command,
        )
    }

    /// Starts a program, which ends with the bench.
    pub(crate) fn launch(&mut self, text: &str) {
        let mut command = self.shell(&format!("exec env {text}"));
        let program = self.start("program", &mut command);
        self.programs.push(program);
    }

    fn output(&self, text: &str) -> Output {
        let mut command = self.shell(text);
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command, which must succeed.
    pub(crate) fn run(&self, text: &str) -> String {
        let output = self.output(text);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command, which may fail.
    pub(crate) fn try_run(&self, text: &str) -> String {
        let output = self.output(text);
        let both = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&both).into_owned()
    }

    /// What `vhca why` says of a VF.
    pub(crate) fn why(&self, vf: &str) -> Value {
        let (name, port) = vf.split_once(" --port ").unwrap_or((vf, "1"));
        let output = self.output(&format!("vhca why '{name}' --port {port} --json"));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Waits until `vhca why` has a code for a VF. What it says last if it does not.
    pub(crate) fn wait_for(&self, vf: &str, code: &str) -> Result<Value, Value> {
        let mut last = Value::Null;
        let found = wait_for(LIMIT, || {
            last = self.why(vf);
            (last["code"] == code).then(|| last.clone())
        });
        found.ok_or(last)
    }

    /// Waits until a VF has no fault.
    pub(crate) fn wait_until_ok(&self, vf: &str) {
        if let Err(last) = self.wait_for(vf, "ok") {
            panic!("{vf} stays at {last:#}");
        }
    }

    /// The code that `vhca show vfs` has for a VF.
    fn shown(&self, vf: &str) -> Option<String> {
        let (host, number) = vf.rsplit_once('/')?;
        let (number, port) = number.split_once(" --port ").unwrap_or((number, "1"));
        let (number, port): (u64, u64) = (number.parse().ok()?, port.parse().ok()?);
        let shown = self.output("vhca show vfs --json").stdout;
        let shown: Value = serde_json::from_slice(&shown).ok()?;
        let rows = shown["vfs"].as_array()?;
        let row = rows
            .iter()
            .find(|row| row["host"] == host && row["vf"] == number && row["port"] == port)?;
        Some(row["fault"].as_str().unwrap_or("ok").to_owned())
    }

    /// Holds the service to telling a fault that was injected, and mends it.
    pub(crate) fn case(&mut self, case: Case<'_>) {
        let begun = Instant::now();
        let mut row = Row {
            fault: case.fault.to_owned(),
            code: case.code,
            told: String::new(),
            remedy: String::new(),
            worked: Ok(String::new()),
        };
        match self.wait_for(case.vf, case.code) {
            Ok(told) => {
                let (code, since) = (&case.code, begun.elapsed().as_secs_f64());
                row.told = format!("{code} after {since:.1} s");
                row.remedy = told["next"].as_str().unwrap_or_default().to_owned();
                row.worked = self.mend(&mut row.told, &told, case);
            }
            Err(told) => {
                row.told = told["code"].to_string();
                row.worked = Err(format!("told is {told}"));
            }
        }
        self.report.add(row);
    }

    fn mend(&mut self, said: &mut String, told: &Value, case: Case<'_>) -> Result<String, String> {
        let next = told["next"].as_str().unwrap_or_default();
        if !next.contains(case.next) {
            return Err(format!("{:?} is not in next: {next}", case.next));
        }
        let exists = !case.code.starts_with("no_such");
        if exists && self.shown(case.vf).as_deref() != Some(case.code) {
            let shown = self.shown(case.vf);
            if shown.as_deref() != Some(case.code) {
                return Err(format!("show vfs has {shown:?}"));
            }
        }
        let up = if told["up"] == true { "up" } else { "down" };
        said.push_str(&format!(", {up}; {}", told["seen"]));
        let mut left = "ok";
        match case.cure {
            Cure::Told(other, cure) => {
                left = other;
                cure(self);
            }
            Cure::Command => {
                if next.contains(" opensm ") {
                    self.launch(next);
                } else {
                    let output = self.output(next);
                    if !output.status.success() {
                        let error = String::from_utf8_lossy(&output.stderr);
                        return Err(format!("{next}: {error}"));
                    }
                }
            }
            Cure::Words(cure) => cure(self),
            Cure::Untried(why) => return Ok(format!("not tried: {why}")),
        }
        let begun = Instant::now();
        let vf = case.vf;
        match self.wait_for(vf, left) {
            Ok(_) => Ok(format!("after {:.1} s", begun.elapsed().as_secs_f64())),
            Err(last) => Err(format!("then {last}")),
        }
    }

    /// Reports a fault that was told or mended otherwise than by `vhca why`.
    pub(crate) fn tell(&self, row: Row) {
        self.report.add(row);
    }
}
