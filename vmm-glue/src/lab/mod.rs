//! A fabric with unmodified Linux guests on its VFs, ready to type in.
//!
//! [`run`] starts a service, a subnet manager if it is to be OpenSM, and a QEMU for each guest, from the cache that
//! `tests/guest/prepare.sh` fills. All of them are processes tied to this one, so they end with it even if it is killed;
//! their files are in one folder, which is removed at the end.

mod children;
mod console;
mod folder;
mod spec;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use serde::Deserialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use thiserror::Error;

use crate::serve::OfferedVf;
use children::Child;
pub use children::{Tie, TieError};
pub use console::{ConsoleError, console};
use folder::Folder;
pub use spec::{GuestVf, GuestVfError};

/// How long a program may take to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the programs are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Who manages the subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Manager {
    /// The subnet manager of this project.
    #[default]
    Lite,
    /// The `opensm` of this machine, on the management host.
    Opensm,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The VFs that get a guest each.
    pub guests: Vec<GuestVf>,
    /// The guests' kernel, by its name in the cache.
    pub kernel: String,
    /// Who manages the subnet.
    pub manager: Manager,
    /// The fabric, as `vhca serve` takes it.
    pub topology: String,
    /// Where guests boot from.
    pub cache: PathBuf,
}

/// Why there is no lab, or no more.
#[derive(Debug, Error)]
pub enum LabError {
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
        /// The end of what it printed.
        said: String,
    },
    /// A program does not become ready.
    #[error("{name} is not ready after {} s; it said:\n{said}", PATIENCE.as_secs())]
    Late {
        /// The program.
        name: String,
        /// The end of what it printed.
        said: String,
    },
    /// The host.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
}

/// Where guests boot from if nothing else is said: as `tests/guest/prepare.sh` has it.
#[must_use]
pub fn default_cache() -> PathBuf {
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
pub fn run(options: &Options, say: &mut dyn FnMut(&str) -> io::Result<()>) -> Result<(), LabError> {
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
        seats: Vec::new(),
        guests: Vec::new(),
        services: Vec::new(),
    };
    let mut say = |line: &str| say(line).map_err(|error| LabError::System("cannot print", error));
    lab.start(&stop)?;
    if stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    lab.tell(&mut say)?;
    lab.keep(&stop, &mut say)
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

/// What a guest is booted with.
struct Seat {
    /// Its name, as a file's.
    name: String,
    /// The socket of its VF.
    device: PathBuf,
    console: PathBuf,
    /// The address of its IPoIB interface.
    address: String,
}

/// The programs of a lab. They end in the order of the fields: guests before what serves them.
struct Lab<'a> {
    options: &'a Options,
    program: &'a Path,
    folder: &'a Path,
    seats: Vec<Seat>,
    guests: Vec<Child>,
    services: Vec<Child>,
}

impl Lab<'_> {
    fn control(&self) -> PathBuf {
        self.folder.join("control.sock")
    }

    fn start(&mut self, stop: &AtomicBool) -> Result<(), LabError> {
        let mut service = self.child("service", &self.serve())?;
        let ready = service.wait(stop, |child| offered(&child.output()).is_some());
        let offered = offered(&service.output());
        self.services.push(service);
        ready?;
        let Some(offered) = offered else {
            // Somebody wants it all to stop.
            return Ok(());
        };
        self.seats = self.seats(&offered)?;
        if self.options.manager == Manager::Opensm {
            let opensm = self.child("opensm", &self.opensm())?;
            self.services.push(opensm);
        }
        for seat in &self.seats {
            let child = self.child(&seat.name, &self.boot(seat))?;
            self.guests.push(child);
        }
        for (child, seat) in self.guests.iter_mut().zip(&self.seats) {
            child.wait(stop, |_| seat.console.exists())?;
        }
        Ok(())
    }

    /// The guests' places among the VFs that the service offers.
    fn seats(&self, offered: &[OfferedVf]) -> Result<Vec<Seat>, LabError> {
        let seat = |(place, guest): (usize, &GuestVf)| {
            let is_its = |vf: &&OfferedVf| (&vf.host, vf.vf) == (&guest.host, guest.vf);
            let device = offered.iter().find(is_its).map(|vf| vf.socket.clone());
            let device = device.ok_or_else(|| LabError::NoSuchVf {
                vf: guest.clone(),
                hosts: hosts(offered).join(", "),
            })?;
            let name = device.file_stem().unwrap_or_default();
            let name = name.to_string_lossy().into_owned();
            Ok(Seat {
                console: self.folder.join(format!("{name}.console")),
                address: address(place),
                name,
                device,
            })
        };
        self.options.guests.iter().enumerate().map(seat).collect()
    }

    fn child(&self, name: &str, command: &Command) -> Result<Child, LabError> {
        Child::start(self.program, self.folder, name, command)
    }

    fn serve(&self) -> Command {
        let most = self.options.guests.iter().map(|guest| guest.vf).max();
        let manager = match self.options.manager {
            Manager::Lite => "lite",
            Manager::Opensm => "none",
        };
        let mut command = Command::new(self.program);
        command.args([
            "serve",
            "--topology",
            &self.options.topology,
            "--sm",
            manager,
            "--json",
        ]);
        command.args(["--vfs", &most.unwrap_or(1).to_string(), "--vfio-user"]);
        command
            .arg(self.folder)
            .arg("--control")
            .arg(self.control());
        command
    }

    fn opensm(&self) -> Command {
        let mut command = Command::new(self.program);
        command
            .args(["run", "--node", "mgmt", "--control"])
            .arg(self.control());
        command
            .args(["--", "opensm", "-f"])
            .arg(self.folder.join("opensm.log"));
        command
            .env("OSM_CACHE_DIR", self.folder)
            .env("OSM_TMP_DIR", self.folder);
        command
    }

    fn boot(&self, seat: &Seat) -> Command {
        let mut command = Command::new(self.options.cache.join("boot"));
        command.args(["--kernel", &self.options.kernel, "--name", &seat.name]);
        command.args(["--append", &format!("vhca.ip={}/16", seat.address)]);
        command.arg("--vfio-user").arg(&seat.device);
        command.arg("--console").arg(&seat.console);
        command
    }

    fn tell(&self, say: &mut dyn FnMut(&str) -> Result<(), LabError>) -> Result<(), LabError> {
        for seat in &self.seats {
            say(&format!(
                "{} boots, as {}; its console: vhca console {}",
                seat.name,
                seat.address,
                seat.console.display()
            ))?;
        }
        let control = self.control();
        say(&format!(
            "other commands on this lab: export VHCA_CONTROL={}",
            control.display()
        ))?;
        say("^C ends it")
    }

    /// Waits until somebody stops it or the last guest is off.
    fn keep(
        &mut self,
        stop: &AtomicBool,
        say: &mut dyn FnMut(&str) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        while !stop.load(Ordering::Relaxed) {
            for service in &mut self.services {
                service.check()?;
            }
            let mut place = 0;
            while let Some(guest) = self.guests.get_mut(place) {
                if guest.ended_well()? {
                    say(&format!("{} is off", guest.name()))?;
                    self.guests.remove(place);
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
