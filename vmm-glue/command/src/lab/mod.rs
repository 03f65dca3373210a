//! A fabric with unmodified Linux guests on its VFs, ready to type in.
//!
//! [`run`] starts a service, a subnet manager if it is to be OpenSM, and a QEMU for each guest, from the cache that
//! `tests/guest/prepare.sh` fills. All of them are processes tied to this one, so they end with it even if it is killed;
//! their files are in one folder, which is removed at the end.

mod children;
mod console;
mod folder;
mod spec;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Deserialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use thiserror::Error;
use vhca_control::protocol::Request;
use vhca_control::{OfferedVf, Remote};
use vhca_diagnosis::Diagnosis;

use children::Child;
pub(crate) use children::{Tie, TieError};
pub(crate) use console::console;
use folder::Folder;
pub(crate) use spec::GuestVf;

/// How long a program may take to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the programs are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How often the service is asked for the port of a guest that boots.
const ASK: Duration = Duration::from_millis(500);

/// Who manages the subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Manager {
    /// The subnet manager of this project.
    #[default]
    Lite,
    /// The `opensm` of this machine, on the management host.
    Opensm,
}

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The VFs that get a guest each.
    pub(crate) guests: Vec<GuestVf>,
    /// The guests' kernel, by its name in the cache.
    pub(crate) kernel: String,
    /// Who manages the subnet.
    pub(crate) manager: Manager,
    /// The fabric, as `vhca serve` takes it; by default that of the file, or its own.
    pub(crate) topology: Option<String>,
    /// A file of the service's options.
    pub(crate) config: Option<PathBuf>,
    /// VFs of each adapter; by default what the file says, or enough for the guests.
    pub(crate) vfs: Option<u16>,
    /// Rights of each VF beyond the ordinary.
    pub(crate) rights: Vec<String>,
    /// Where guests boot from.
    pub(crate) cache: PathBuf,
    /// The control socket, if no service has it.
    pub(crate) control: PathBuf,
}

/// Errors by which a lab does not start, or ends.
#[derive(Debug, Error)]
pub(crate) enum LabError {
    /// The guests' cache is not there.
    #[error(
        "no guests to boot in {}: run tests/guest/prepare.sh first, or say with --cache where it put them",
        .0.display()
    )]
    NoCache(PathBuf),
    /// The cache has no such kernel.
    #[error("no kernel {kernel} in {}: run tests/guest/prepare.sh {kernel}", .cache.display())]
    NoKernel {
        /// The kernel.
        kernel: String,
        /// The cache.
        cache: PathBuf,
    },
    /// Two guests on one VF.
    #[error("a VF takes one guest, and {0} is named twice")]
    Twice(GuestVf),
    /// The fabric has no such VF.
    #[error("no host of this fabric has {vf} for a guest; the hosts with VFs are {hosts}")]
    NoSuchVf {
        /// The VF.
        vf: GuestVf,
        /// The hosts.
        hosts: String,
    },
    /// No folder for the sockets.
    #[error("cannot make {}", .0.display())]
    Folder(PathBuf, #[source] io::Error),
    /// A program cannot be started.
    #[error("cannot start {0}")]
    Start(String, #[source] io::Error),
    /// A program ended before it was ready, or at all.
    #[error("{name} ended ({how}); it said:\n{said}")]
    Ended {
        /// The program.
        name: String,
        /// How it ended.
        how: String,
        /// The last lines of its output.
        said: String,
    },
    /// A program does not become ready.
    #[error("{name} is not ready after {} s; it said:\n{said}", PATIENCE.as_secs())]
    Late {
        /// The program.
        name: String,
        /// The last lines of its output.
        said: String,
    },
    /// The host.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
}

/// Where guests boot from if nothing else is said: as `tests/guest/prepare.sh` has it.
#[must_use]
pub(crate) fn default_cache() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(cache) = set("VHCA_GUEST_CACHE") {
        return cache.into();
    }
    let home = || PathBuf::from(set("HOME").unwrap_or_default()).join(".cache");
    let caches = set("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    caches.join("vhca-guest")
}

/// Starts all of it, says how to use it, and keeps it until SIGINT, SIGTERM or SIGHUP, or until the last guest is off.
///
/// # Errors
/// [`LabError`].
pub(crate) fn run(
    options: &Options,
    say: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<(), LabError> {
    check(options)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| LabError::System("cannot take signals", error))?;
    }
    let folder = Folder::new()?;
    let program =
        std::env::current_exe().map_err(|error| LabError::System("cannot find vhca", error))?;
    let mut lab = Lab {
        options,
        program: &program,
        folder: folder.path(),
        control: control(&options.control, folder.path()),
        begun: Instant::now(),
        guests: Vec::new(),
        services: Vec::new(),
    };
    let mut say = |line: &str| say(line).map_err(|error| LabError::System("cannot print", error));
    lab.start(&stop, &mut say)?;
    lab.keep(&stop, &mut say)
}

/// Returns where the lab's service has its control socket: where other commands look for one, unless a service has it.
fn control(wanted: &Path, folder: &Path) -> PathBuf {
    if UnixStream::connect(wanted).is_ok() {
        folder.join("control.sock")
    } else {
        wanted.to_owned()
    }
}

fn check(options: &Options) -> Result<(), LabError> {
    let cache = &options.cache;
    if !cache.join("boot").is_file() {
        return Err(LabError::NoCache(cache.clone()));
    }
    if !cache
        .join(format!("kernel-{}/vmlinuz", options.kernel))
        .is_file()
    {
        return Err(LabError::NoKernel {
            kernel: options.kernel.clone(),
            cache: cache.clone(),
        });
    }
    for (place, guest) in options.guests.iter().enumerate() {
        if options.guests[..place].contains(guest) {
            return Err(LabError::Twice(guest.clone()));
        }
    }
    Ok(())
}

/// A guest with its QEMU.
struct Guest {
    vf: GuestVf,
    qemu: Child,
    /// Whether its port has been active.
    is_up: bool,
    /// When to ask for its port.
    look_at: Instant,
}

/// The programs of a lab. They end in the order of the fields: guests before what serves them.
struct Lab<'a> {
    options: &'a Options,
    program: &'a Path,
    folder: &'a Path,
    control: PathBuf,
    begun: Instant,
    guests: Vec<Guest>,
    services: Vec<Child>,
}

impl Lab<'_> {
    /// Prints the guests, how to use them, and how to end the lab.
    fn introduce(&self, say: &mut Say<'_>) -> Result<(), LabError> {
        let Options { kernel, guests, .. } = self.options;
        let fabric = match (&self.options.topology, &self.options.config) {
            (Some(topology), _) => format!("fabric {topology}"),
            (None, Some(config)) => format!("fabric of {}", config.display()),
            (None, None) => "fabric two-switch".to_owned(),
        };
        let manager = match self.options.manager {
            Manager::Lite => "vhca's own subnet manager",
            Manager::Opensm => "OpenSM",
        };
        say(&format!(
            "{fabric} with {manager}; Linux {kernel} boots on {} VFs",
            guests.len()
        ))?;
        say("")?;
        say("in another terminal:")?;
        if self.control != self.options.control {
            say(&format!("  export VHCA_CONTROL={}", self.control.display()))?;
        }
        for (place, vf) in guests.iter().enumerate() {
            let console = format!("vhca console {vf}");
            say(&format!(
                "  {console:<26} # the guest with {}; ^] leaves its console",
                address(place)
            ))?;
        }
        say("  vhca show vfs              # or any other command of vhca on this fabric")?;
        say("")?;
        say("`exit` in a guest turns it off; ^C here ends all of it")?;
        say("")
    }

    /// Says a line with the time since the start.
    fn report(&self, say: &mut Say<'_>, line: &str) -> Result<(), LabError> {
        say(&format!(
            "{:6.1} s  {line}",
            self.begun.elapsed().as_secs_f32()
        ))
    }

    fn start(&mut self, stop: &AtomicBool, say: &mut Say<'_>) -> Result<(), LabError> {
        let mut service = self.child("service", &self.serve())?;
        let ready = service.wait(stop, |child| offered(&child.output()).is_some());
        let offered = offered(&service.output());
        self.services.push(service);
        ready?;
        let Some(offered) = offered else {
            // The lab is to end already.
            return Ok(());
        };
        // A lab that is refused does not say how to use it.
        for vf in &self.options.guests {
            device(vf, &offered)?;
        }
        self.introduce(say)?;
        if self.options.manager == Manager::Opensm {
            let opensm = self.child("opensm", &self.opensm())?;
            self.services.push(opensm);
        }
        for (place, vf) in self.options.guests.iter().enumerate() {
            let device = device(vf, &offered)?;
            let name = device.file_stem().unwrap_or_default().to_string_lossy();
            let qemu = self.child(&name, &self.boot(&name, device, &address(place)))?;
            self.guests.push(Guest {
                vf: vf.clone(),
                qemu,
                is_up: false,
                look_at: self.begun,
            });
            let console = console_of(device);
            if let Some(guest) = self.guests.last_mut() {
                guest.qemu.wait(stop, |_| console.exists())?;
            }
        }
        self.report(
            say,
            "the service is ready, the guests boot: some 5 s with KVM, up to a minute without",
        )
    }

    fn child(&self, name: &str, command: &Command) -> Result<Child, LabError> {
        Child::start(self.program, self.folder, name, command)
    }

    fn serve(&self) -> Command {
        let Options {
            topology, config, ..
        } = self.options;
        let manager = match self.options.manager {
            Manager::Lite => "lite",
            Manager::Opensm => "none",
        };
        let enough = || self.options.guests.iter().map(|guest| guest.vf).max();
        let vfs = match (self.options.vfs, config) {
            (None, None) => enough(),
            (vfs, _) => vfs,
        };
        let mut command = Command::new(self.program);
        command.args(["serve", "--sm", manager, "--json", "--vfio-user"]);
        command.arg(self.folder).arg("--control").arg(&self.control);
        for (option, value) in [
            ("--topology", topology.as_ref().map(OsString::from)),
            ("--config", config.as_ref().map(OsString::from)),
            ("--vfs", vfs.map(|vfs| vfs.to_string().into())),
        ] {
            command.args(value.iter().flat_map(|value| [OsStr::new(option), value]));
        }
        for right in &self.options.rights {
            command.args(["--rights", right]);
        }
        command
    }

    fn opensm(&self) -> Command {
        let mut command = Command::new(self.program);
        command
            .args(["run", "--node", "mgmt", "--control"])
            .arg(&self.control);
        command
            .args(["--", "opensm", "-f"])
            .arg(self.folder.join("opensm.log"));
        command
            .env("OSM_CACHE_DIR", self.folder)
            .env("OSM_TMP_DIR", self.folder);
        command
    }

    fn boot(&self, name: &str, device: &Path, address: &str) -> Command {
        let mut command = Command::new(self.options.cache.join("boot"));
        command.args(["--kernel", &self.options.kernel, "--name", name]);
        command.args(["--append", &format!("vhca.ip={address}/16")]);
        command.arg("--vfio-user").arg(device);
        command.arg("--console").arg(console_of(device));
        command
    }

    /// Waits until the lab is to end or the last guest is off, and says how the guests are meanwhile.
    fn keep(&mut self, stop: &AtomicBool, say: &mut Say<'_>) -> Result<(), LabError> {
        while !stop.load(Ordering::Relaxed) {
            for service in &mut self.services {
                service.check()?;
            }
            self.look_for_ports(say)?;
            let mut place = 0;
            while let Some(guest) = self.guests.get_mut(place) {
                if guest.qemu.ended_well()? {
                    let guest = self.guests.remove(place);
                    self.report(say, &format!("{} is off", guest.vf))?;
                } else {
                    place += 1;
                }
            }
            if self.guests.is_empty() {
                break;
            }
            sleep(LOOK);
        }
        Ok(())
    }

    /// Says which guests have an active port now.
    fn look_for_ports(&mut self, say: &mut Say<'_>) -> Result<(), LabError> {
        let now = Instant::now();
        let mut up = Vec::new();
        for guest in &mut self.guests {
            if guest.is_up || now < guest.look_at {
                continue;
            }
            guest.look_at = now + ASK;
            guest.is_up = is_well(&self.control, &guest.vf);
            if guest.is_up {
                up.push(guest.vf.clone());
            }
        }
        for vf in &up {
            self.report(say, &format!("{vf} is up, its port is active"))?;
        }
        if !up.is_empty() && self.guests.iter().all(|guest| guest.is_up) {
            self.report(say, "all guests are ready")?;
        }
        Ok(())
    }
}

/// Prints a line.
type Say<'a> = dyn FnMut(&str) -> Result<(), LabError> + 'a;

/// Returns `true` if a service finds no fault with a VF: its guest has a driver, and its port is active.
fn is_well(control: &Path, vf: &GuestVf) -> bool {
    let request = Request::Why {
        vf: vf.to_string(),
        host: None,
        port: Some(1),
        peer: None,
    };
    let found = Remote::connect(control).and_then(|mut remote| remote.ask(&request));
    let found = found
        .ok()
        .and_then(|found| serde_json::from_str::<Diagnosis>(&found).ok());
    found.is_some_and(|found| found.code == "ok")
}

/// Returns the socket of a VF.
fn device<'o>(vf: &GuestVf, offered: &'o [OfferedVf]) -> Result<&'o Path, LabError> {
    let is_its = |offered: &&OfferedVf| (&offered.host, offered.vf) == (&vf.host, vf.vf);
    let found = offered.iter().find(is_its);
    found
        .map(|vf| vf.socket.as_path())
        .ok_or_else(|| LabError::NoSuchVf {
            vf: vf.clone(),
            hosts: hosts(offered).join(", "),
        })
}

/// Returns the console of the guest that a lab boots with a VF, by the VF's socket.
#[must_use]
pub(crate) fn console_of(device: &Path) -> PathBuf {
    device.with_extension("console")
}

/// The VFs that a service offers, once it has said so.
fn offered(output: &str) -> Option<Vec<OfferedVf>> {
    #[derive(Deserialize)]
    struct Ready {
        event: String,
        #[serde(default)]
        vfio_user: Vec<OfferedVf>,
    }

    let mut events = output
        .lines()
        .filter_map(|line| serde_json::from_str::<Ready>(line).ok());
    let ready = events.find(|said| said.event == "ready")?;
    Some(ready.vfio_user)
}

/// The hosts of VFs, each once.
fn hosts(offered: &[OfferedVf]) -> Vec<&str> {
    let mut hosts: Vec<&str> = offered.iter().map(|vf| vf.host.as_str()).collect();
    hosts.dedup();
    hosts
}

/// The address of a guest's IPoIB interface.
fn address(place: usize) -> String {
    let number = place + 1;
    format!("10.9.{}.{}", number / 256, number % 256)
}
