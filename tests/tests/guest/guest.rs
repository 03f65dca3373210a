//! A booted guest, and commands run in it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use vhca_tests::live::{Process, wait_for};

use crate::qmp::Qmp;

/// For a boot: some twenty times what it takes on an idle machine.
const BOOT: Duration = Duration::from_secs(180);

/// For a command that takes a moment.
const COMMAND: Duration = Duration::from_secs(60);

/// Loads the drivers of devices that came after the boot, as udev does.
pub(crate) const LOAD: &str = "cat /sys/bus/pci/devices/*/modalias | xargs modprobe -abq; modprobe -q mlx4_ib; \
                               modprobe -abq ib_umad ib_uverbs rdma_ucm ib_ipoib || true";

/// For a port to become active once the guest is up.
const PORT: Duration = Duration::from_secs(60);

/// How often a guest that says nothing is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Lines of the console that a failure shows.
const CONSOLE_LINES: usize = 80;

/// What starts each message of a guest's agent.
const MARK: char = '\u{1e}';

/// The script that boots guests.
pub(crate) fn boot_script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/boot.sh")
}

/// What guests run under here. Finding that out takes a while at first, which counts for no boot.
fn accel() -> &'static str {
    static ACCEL: OnceLock<String> = OnceLock::new();
    ACCEL.get_or_init(|| {
        let output = Command::new(boot_script()).arg("--accel").output().unwrap();
        let said = lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let accel = lossy(&output.stdout).trim().to_owned();
        println!("guests run under {accel} {said}");
        accel
    })
}

/// Which guest to boot.
#[derive(Clone, Debug)]
pub(crate) struct Boot {
    pub(crate) kernel: &'static str,
    /// Sockets of its devices.
    pub(crate) devices: Vec<PathBuf>,
    /// More arguments of the script.
    pub(crate) arguments: Vec<OsString>,
}

impl Boot {
    /// A guest with this kernel, and this device if any.
    pub(crate) fn new(kernel: &'static str, device: impl Into<Option<PathBuf>>) -> Self {
        Self {
            kernel,
            devices: device.into().into_iter().collect(),
            arguments: Vec::new(),
        }
    }

    /// The same with one more argument of the script.
    pub(crate) fn with(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Boots it; its files go to `dir`, under its name.
    pub(crate) fn start(&self, dir: &Path, name: &str) -> Guest {
        self.try_start(dir, name, BOOT)
            .unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Boots it within a limit.
    pub(crate) fn try_start(
        &self,
        dir: &Path,
        name: &str,
        limit: Duration,
    ) -> Result<Guest, Failure> {
        let begun = Instant::now();
        let mut guest = self.connect(dir, name, limit)?;
        guest.wait_until_up(limit.saturating_sub(begun.elapsed()))?;
        Ok(guest)
    }

    /// Continues a saved guest in a new QEMU with these devices, and has the guest find them and load their drivers. On an idle machine this
    /// takes 2 s, and a boot 10 s.
    pub(crate) fn wake(&self, dir: &Path, name: &str) -> Guest {
        let monitor = dir.join(format!("{name}.qmp"));
        let boot = self.clone().with("--incoming").with(saved(self.kernel));
        let boot = boot.with("--qmp").with(&monitor);
        let mut guest = boot.resume(dir, name);
        // QEMU drops the bytes that its serial port receives before it has read the saved state.
        Qmp::connect(&monitor).wait_for("query-status", "status", "running");
        guest.told(&format!(
            "hostname {name}; echo 1 >/sys/bus/pci/rescan; {LOAD}"
        ));
        guest
    }

    /// Starts QEMU for a guest that goes on where it was saved, if the arguments say so.
    pub(crate) fn resume(&self, dir: &Path, name: &str) -> Guest {
        self.connect(dir, name, BOOT)
            .unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Starts QEMU, and gives the guest once it can be talked to.
    fn connect(&self, dir: &Path, name: &str, limit: Duration) -> Result<Guest, Failure> {
        let accel = accel();
        let console = dir.join(format!("{name}.console"));
        let address = dir.join(format!("{name}.agent"));
        // Those of an earlier guest of this name.
        let _ = fs::remove_file(&address);
        let listener = UnixListener::bind(&address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut command = Command::new(boot_script());
        command.env("VHCA_GUEST_ACCEL", accel);
        command.args(["--kernel", self.kernel, "--name", name, "--log"]);
        command.arg(&console).arg("--agent").arg(&address);
        for device in &self.devices {
            command.arg("--vfio-user").arg(device);
        }
        command.args(&self.arguments);
        let mut process = Process::start(dir, name, &mut command);
        let agent = wait_for(limit, || match listener.accept() {
            Ok((agent, _)) => Some(Some(agent)),
            Err(_) => process.ended().map(|_| None),
        });
        let Some(Some(agent)) = agent else {
            let said = process.output();
            return Err(Failure(format!("{name} did not start: {said}")));
        };
        agent.set_nonblocking(false).unwrap();
        agent.set_read_timeout(Some(LOOK)).unwrap();
        Ok(Guest {
            name: name.to_owned(),
            process,
            console,
            agent,
            unread: Vec::new(),
            commands: 0,
        })
    }
}

/// Boots a guest with a kernel and without drivers of devices, unless an earlier call did so, and saves its state. Returns the file of that.
fn saved(kernel: &'static str) -> PathBuf {
    static SAVED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guest-{kernel}.state"));
    let mut saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner);
    if !saved.contains(kernel) {
        let dir = tempfile::tempdir().unwrap();
        let monitor = dir.path().join("qmp");
        let boot = Boot::new(kernel, None)
            .with("--append")
            .with("vhca.load=no");
        let boot = boot.with("--qmp").with(&monitor);
        let _guest = boot.start(dir.path(), "saved");
        Qmp::connect(&monitor).save(&file);
        saved.insert(kernel);
    }
    file
}

/// Why a guest did not do what it should, with what it said last.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a command printed, and its exit status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) text: String,
    pub(crate) status: i32,
}

/// A running guest. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Guest {
    name: String,
    /// QEMU.
    pub(crate) process: Process,
    console: PathBuf,
    agent: UnixStream,
    /// What came from the agent and was not used yet.
    unread: Vec<u8>,
    commands: u64,
}

impl Guest {
    /// What a command prints; it must succeed in a moment.
    pub(crate) fn told(&mut self, command: &str) -> String {
        self.told_within(COMMAND, command)
    }

    /// What a command prints; it must succeed within the limit.
    pub(crate) fn told_within(&mut self, limit: Duration, command: &str) -> String {
        let outcome = self
            .run(limit, command)
            .unwrap_or_else(|failure| panic!("{failure}"));
        if outcome.status != 0 {
            let what = format!("`{command}` ended with status {}", outcome.status);
            panic!("{}", self.failure(&what, &outcome.text));
        }
        outcome.text
    }

    /// Starts a command that goes on in the background; what it prints goes to `/tmp/LOG` in the guest.
    pub(crate) fn start(&mut self, log: &str, command: &str) {
        self.told(&format!("{command} </dev/null >/tmp/{log} 2>&1 &"));
    }

    /// Runs a command, of one line, to its end.
    pub(crate) fn run(&mut self, limit: Duration, command: &str) -> Result<Outcome, Failure> {
        assert!(!command.contains('\n'), "one line: {command}");
        self.commands += 1;
        let id = self.commands;
        let sent = self.agent.write_all(format!("{id} {command}\n").as_bytes());
        if let Err(error) = sent {
            return Err(self.failure(&format!("cannot be asked to run `{command}`: {error}"), ""));
        }
        let end = format!("{MARK}EXIT {id} ");
        let what = format!("`{command}`");
        let text = self.take_until(limit, &end, &what)?;
        let status = self.take_until(limit, "\n", &what)?;
        Ok(Outcome {
            text,
            status: status.parse().expect("an exit status"),
        })
    }

    /// Waits until what a command prints satisfies `holds`.
    pub(crate) fn wait_until(
        &mut self,
        limit: Duration,
        command: &str,
        holds: impl Fn(&str) -> bool,
    ) -> String {
        let mut last = String::new();
        let found = wait_for(limit, || {
            last = self.run(COMMAND, command).map_or_else(|f| f.0, |o| o.text);
            holds(&last).then(|| last.clone())
        });
        found.unwrap_or_else(|| {
            let what = format!("`{command}` did not come to what is expected");
            panic!("{}", self.failure(&what, &last))
        })
    }

    /// Waits until its first port is active.
    pub(crate) fn wait_for_port(&mut self) {
        let state =
            "cat /sys/class/infiniband/mlx4_0/ports/1/state || dmesg | grep -e mlx4 -e infiniband";
        self.wait_until(PORT, state, |state| state.contains("ACTIVE"));
    }

    /// Starts the guest anew from within, as its user would; it must have been booted with `--may-reboot`.
    pub(crate) fn reboot(&mut self) {
        self.restart_by("reboot -f");
    }

    /// Runs a command by which the guest starts anew, and waits until it is up again.
    pub(crate) fn restart_by(&mut self, command: &str) {
        self.commands += 1;
        let line = format!("{} {command}\n", self.commands);
        self.agent.write_all(line.as_bytes()).unwrap();
        self.wait_until_up(BOOT)
            .unwrap_or_else(|failure| panic!("{failure}"));
    }

    /// What it has printed on its console.
    pub(crate) fn console(&self) -> String {
        lossy(&fs::read(&self.console).unwrap_or_default()).replace('\r', "")
    }

    fn wait_until_up(&mut self, limit: Duration) -> Result<(), Failure> {
        self.take_until(limit, &format!("{MARK}READY\n"), "the boot")?;
        Ok(())
    }

    /// What comes before `end`, which is taken, too.
    fn take_until(&mut self, limit: Duration, end: &str, what: &str) -> Result<String, Failure> {
        let begun = Instant::now();
        let mut searched = 0;
        loop {
            let place = find(&self.unread[searched..], end.as_bytes());
            if let Some(place) = place {
                let rest = self.unread.split_off(searched + place + end.len());
                let taken = std::mem::replace(&mut self.unread, rest);
                return Ok(lossy(&taken[..searched + place]));
            }
            // The end may be split between what came and what comes.
            searched = self.unread.len().saturating_sub(end.len());
            if begun.elapsed() > limit {
                let what = format!("{what} did not end within {} s", limit.as_secs_f32());
                return Err(self.failure(&what, &lossy(&self.unread)));
            }
            let mut bytes = [0; 4096];
            match self.agent.read(&mut bytes) {
                Ok(0) => {
                    let what = format!("it was gone before {what} was over");
                    return Err(self.failure(&what, &lossy(&self.unread)));
                }
                Ok(length) => self.unread.extend_from_slice(&bytes[..length]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => {
                    return Err(self.failure(&format!("{what}: {error}"), &lossy(&self.unread)));
                }
            }
        }
    }

    fn failure(&self, what: &str, printed: &str) -> Failure {
        let console = self.console();
        let lines: Vec<_> = console.lines().collect();
        let last = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n");
        let qemu = self.process.output();
        let name = &self.name;
        Failure(format!(
            "{name}: {what}\nit printed:\n{printed}\nlast on the console:\n{last}\nQEMU said:\n{qemu}"
        ))
    }
}

/// Where a part begins in a whole.
fn find(whole: &[u8], part: &[u8]) -> Option<usize> {
    whole.windows(part.len()).position(|window| window == part)
}

/// What a guest prints need not be text, but what a test looks for in it is.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
