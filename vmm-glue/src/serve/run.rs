//! A service from its start to its end.

use std::io;
use std::path::PathBuf;

use ib_vtime::Duration;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Serialize;
use thiserror::Error;

use super::control::ControlSocket;
use super::{
    ClaimError, IbsimError, IbsimWay, Lab, LabError, Options, Service, Signals, UmadSocket, notify,
};
use crate::{LoopError, Runner};

/// Why a service could not start, or go on.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The fabric or its hosts.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A socket.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The sockets of the ibsim protocol.
    #[error(transparent)]
    Ibsim(#[from] IbsimError),
    /// The event loop.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// The host.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
    /// Machines keep each other busy without time passing.
    #[error("the fabric is stuck: please report this")]
    Stuck,
}

/// What a service says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Announcement {
    /// All sockets are open.
    Ready {
        /// The fabric.
        topology: String,
        /// Hosts.
        hosts: usize,
        /// VFs of all hosts.
        vfs: usize,
        /// The control socket.
        control: Option<PathBuf>,
    },
    /// The end.
    Stopped {
        /// Whether everything that the SA knew of the VFs was given back.
        released: bool,
    },
}

impl core::fmt::Display for Announcement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Ready {
                topology,
                hosts,
                vfs,
                control,
            } => {
                write!(f, "ready: topology {topology}, {hosts} hosts, {vfs} VFs")?;
                match control {
                    Some(path) => write!(f, ", control socket {}", path.display()),
                    None => Ok(()),
                }
            }
            Self::Stopped { released: true } => f.write_str("stopped"),
            Self::Stopped { released: false } => {
                f.write_str("stopped; the SA did not confirm that GUIDs and groups are given back")
            }
        }
    }
}

/// Serves until SIGTERM, SIGINT or a client ends it. What there is to say goes to `announce`.
///
/// # Errors
/// [`ServeError`].
pub fn run(
    options: &Options,
    announce: &mut dyn FnMut(&Announcement) -> io::Result<()>,
) -> Result<(), ServeError> {
    let seed = match options.seed {
        Some(seed) => seed,
        None => random_seed().map_err(|error| ServeError::System("no random seed", error))?,
    };
    // From here on a signal ends the service in order.
    let signals =
        Signals::new().map_err(|error| ServeError::System("cannot take signals", error))?;
    let mut service = Service::new(Lab::build(options, seed)?);
    service.add_way_in(signals);
    if let Some(path) = &options.control {
        service.add_way_in(ControlSocket::bind(path)?);
    }
    for address in &options.ibsim {
        service.add_way_in(IbsimWay::bind(address.clone())?);
    }
    if let Some(path) = &options.umad {
        service.add_way_in(UmadSocket::claim(path)?);
    }
    let ready = ready(options, service.lab());
    let mut tell = |announcement: &Announcement, state: &str| {
        announce(announcement).map_err(|error| ServeError::System("cannot print", error))?;
        notify::tell(state)
            .map_err(|error| ServeError::System("cannot tell the service manager", error))
    };
    tell(&ready, "READY=1")?;
    let released = drive(service)?;
    tell(&Announcement::Stopped { released }, "STOPPING=1")
}

/// Runs the loop to the end. Whether everything was given back.
fn drive(service: Service) -> Result<bool, ServeError> {
    const LONG: Duration = Duration::from_secs(3600);
    let mut runner = Runner::new(service)?;
    loop {
        runner.run_until(LONG, |service| {
            service.stopped().is_some() || service.lab().world().is_live_locked()
        })?;
        let service = runner.driven()?;
        if service.lab().world().is_live_locked() {
            return Err(ServeError::Stuck);
        }
        if let Some(released) = service.stopped() {
            return Ok(released);
        }
    }
}

fn ready(options: &Options, lab: &Lab) -> Announcement {
    let vfs = lab
        .pf_hosts()
        .map(|host| lab.world().context(host.id).vfs().count());
    Announcement::Ready {
        topology: options.topology.to_string(),
        hosts: lab.hosts().len(),
        vfs: vfs.sum(),
        control: options.control.clone(),
    }
}

fn random_seed() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
