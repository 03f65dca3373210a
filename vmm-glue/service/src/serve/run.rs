//! A service from its start to its end.

use std::io;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use ib_vtime::{Duration, Secret};
use rustix::fs::Mode;
use rustix::process::umask;
use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;

use super::access::{AccessError, SocketName, Users};
use super::announcement::Announcement;
use super::attach::IbsimNode;
use super::attach::linux::LinuxWay;
use super::claim::ClaimError;
use super::control::ControlSocket;
use super::ibsim::{IbsimError, IbsimWay};
use super::lab::Lab;
use super::lab_error::LabError;
use super::listeners::Listeners;
use super::options::Options;
use super::receiver::ReceiverWatch;
use super::sa_watch::SaWatch;
use super::sandbox::{self, Needs, SandboxError};
use super::service::Service;
use super::signals::Signals;
use super::trunks;
use super::umad::UmadSocket;
use super::verbs::VerbsSocket;
use super::vfio_user::{Seat, VfioUserSockets};
use super::watchdog_feed::WatchdogFeed;
use super::{descriptors, notify};
use vhca::{LoopError, Runner};
use vhca_receiver::Receiver;
use vhca_vfio_user::memory::look_by;

/// Why a service could not start, or go on.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The fabric or its hosts.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Who may connect.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A socket.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// What is to confine it.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The sockets of the ibsim protocol.
    #[error(transparent)]
    Ibsim(#[from] IbsimError),
    /// The event loop.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// The host.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
    /// The adapter that the service is attached to.
    #[error(
        "the adapter {0} is gone, as after a fatal error or the removal of its driver: dmesg says why; start the service anew once it is \
         back"
    )]
    Gone(String),
    /// A process of the service.
    #[error("the service ended because {0}, a process of its own, is gone: see its log")]
    Lost(&'static str),
    /// Machines keep each other busy without time passing.
    #[error("the fabric is stuck: please report this")]
    Stuck,
}

impl ServeError {
    /// Returns `true` if options are wrong for the fabric that they name, rather than the host in the way.
    #[must_use]
    pub const fn is_of_options(&self) -> bool {
        use LabError as Lab;
        match self {
            Self::Lab(error) => matches!(
                error,
                Lab::NoSuchAdapter(..)
                    | Lab::Switch(..)
                    | Lab::TwoNames(..)
                    | Lab::ManagerShared(_)
                    | Lab::ManagerBare(_)
                    | Lab::SharedBare(_)
                    | Lab::TooManyVfs { .. }
                    | Lab::Sidr(..)
                    | Lab::Subnet(_)
                    | Lab::Linux(..)
                    | Lab::NoData(..)
                    | Lab::Trunk(..)
                    | Lab::NoSite
                    | Lab::Site(_)
            ),
            Self::Access(error) => matches!(
                error,
                AccessError::NoUser(_) | AccessError::NoGroup(_) | AccessError::NoVf(_)
            ),
            _ => false,
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
    let secret = match options.seed {
        Some(seed) => Secret::from(seed),
        None => random_secret().map_err(|error| ServeError::System("no random bits", error))?,
    };
    descriptors::raise_limit();
    // Sockets and locks have modes of their own. What else the service makes is for others to read who reach it, and
    // confined it could not change the mode later.
    umask(Mode::WGRP | Mode::WOTH);
    let mut listeners = Listeners::new(&options.access)?;
    let ibsim_users = Users::with(&options.ibsim_users)?;
    let receiver = Receiver::start()
        .map_err(|error| ServeError::System("cannot start the receiver", error))?;
    look_by(&receiver);
    // From here on a signal ends the service in order.
    let signals =
        Signals::new().map_err(|error| ServeError::System("cannot take signals", error))?;
    let mut lab = Lab::build(options, secret)?;
    if options.vfs > 0 && options.attach.is_empty() && lab.inventory.pf_hosts().next().is_none() {
        log::warn!("no host has VFs: {}", lab.inventory.why_no_vfs());
    }
    lab.started = UNIX_EPOCH.elapsed().unwrap_or_default();
    let mut service = Service::new(lab).with_receiver(receiver.clone());
    service.add_way_in(signals);
    service.add_way_in(ReceiverWatch::new(receiver));
    // Of an attached fabric the VFs come later.
    if options.attach.is_empty() {
        listeners.check_vfs(|name| service.lab().seats().any(|seat| seat.is_called(name)))?;
    }
    let (mut control, mut needs) = (None, Needs::of(options));
    if let Some(path) = &options.control {
        let listener = listeners.stream(&SocketName::Control, path)?;
        needs.folders.add_socket(&listener.path);
        control = Some(listener.path.clone());
        service.add_way_in(ControlSocket::new(listener));
    }
    for address in &options.ibsim {
        service.add_way_in(IbsimWay::bind(address.clone(), ibsim_users.clone())?);
    }
    if let Some(path) = &options.umad {
        let listener = listeners.packets(&SocketName::Umad, path)?;
        let access = listeners.access(&SocketName::Umad);
        needs.folders.add_socket(&listener.path);
        service.lab_mut().sockets.umad = std::path::absolute(&listener.path).ok();
        let umad = UmadSocket::with_access(listener, access)?;
        needs.folders.add_folder_of_trees(umad.folder());
        service.add_way_in(umad);
    }
    if let Some(path) = options.umad.as_ref().filter(|_| options.verbs) {
        let path = path.with_extension("verbs");
        let listener = listeners.packets(&SocketName::Verbs, &path)?;
        needs.folders.add_socket(&listener.path);
        service.add_way_in(VerbsSocket::new(listener));
    }
    if let Some(folder) = &options.vfio_user {
        let sockets = VfioUserSockets::claim(folder, service.lab_mut(), listeners)?;
        needs.folders.add_folder_of_sockets(folder);
        service.add_way_in(sockets);
    }
    let now = service.lab().world().now();
    for node in IbsimNode::all(now, options) {
        service.add_way_in(node);
    }
    if let Some(site) = options.site_name()?.filter(|_| !options.trunks.is_empty()) {
        let trunks = trunks::open(service.lab_mut(), &options.trunks, &site)?;
        service.add_way_in(trunks);
    }
    for port in LinuxWay::all(service.lab_mut()) {
        service.add_way_in(port);
    }
    service.add_way_in(SaWatch::new(now));
    if let Some(feed) = WatchdogFeed::from_environment() {
        service.add_way_in(feed);
    }
    let ready = ready(options, control, service.lab());
    // With the last descriptors that it needs whatever comes.
    let mut runner = Runner::new(service)?;
    if options.sandbox {
        sandbox::enter(&needs)?;
    }
    // Threads that are started from here on are confined.
    let watched = runner.driven()?.lab().stalls.watch();
    watched.map_err(|error| ServeError::System("cannot start the watchdog", error))?;
    tell(announce, &ready, "READY=1")?;
    let released = drive(&mut runner, announce)?;
    let stopped = Announcement::Stopped { released };
    tell(announce, &stopped, "STOPPING=1")
}

type Announce<'a> = dyn FnMut(&Announcement) -> io::Result<()> + 'a;

/// Tells who started the service, and the service manager.
fn tell(
    announce: &mut Announce<'_>,
    announcement: &Announcement,
    state: &str,
) -> Result<(), ServeError> {
    announce(announcement).map_err(|error| ServeError::System("cannot print", error))?;
    notify::tell(state)
        .map_err(|error| ServeError::System("cannot tell the service manager", error))
}

/// Runs the loop to the end. Whether everything was given back.
fn drive(runner: &mut Runner<Service>, announce: &mut Announce<'_>) -> Result<bool, ServeError> {
    const LONG: Duration = Duration::from_secs(3600);
    loop {
        runner.run_until(LONG, |service| {
            service.stopped().is_some()
                || service.has_announcement()
                || service.lab().world().is_live_locked()
                || service.lab().world().gone_hca().is_some()
        })?;
        let service = runner.driven()?;
        while let Some(announcement) = service.poll_announcement() {
            announce(&announcement).map_err(|error| ServeError::System("cannot print", error))?;
        }
        if service.lab().world().is_live_locked() {
            return Err(ServeError::Stuck);
        }
        if let Some(node) = service.lab().world().gone_hca() {
            return Err(ServeError::Gone(service.lab().inventory.node_name(node)));
        }
        if let Some(released) = service.stopped() {
            if let Some(process) = service.lost() {
                return Err(ServeError::Lost(process));
            }
            return Ok(released);
        }
    }
}

fn ready(options: &Options, control: Option<PathBuf>, lab: &Lab) -> Announcement {
    let vfs = lab
        .inventory
        .pf_hosts()
        .map(|host| lab.world().context(host.id).vfs().count());
    Announcement::Ready {
        topology: fabric_name(options),
        hosts: lab.inventory.hosts().len(),
        vfs: vfs.sum(),
        control,
        vfio_user: lab.seats().filter_map(Seat::offered).collect(),
    }
}

/// Which fabric is served, or which one the hosts are attached to.
fn fabric_name(options: &Options) -> String {
    if options.attach.is_empty() {
        return options.topology.to_string();
    }
    let attached: Vec<String> = options.attach.iter().map(ToString::to_string).collect();
    attached.join(" ")
}

/// Returns the secret of a service without a seed: 256 bits of the kernel's.
fn random_secret() -> io::Result<Secret> {
    let mut bits = [0; 32];
    let taken = getrandom(&mut bits, GetRandomFlags::empty())?;
    // The kernel gives up to 256 bytes at once.
    debug_assert_eq!(taken, bits.len());
    Ok(Secret::new(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_without_a_seed_have_different_secrets() {
        let [one, another] = [(); 2].map(|()| random_secret().unwrap());
        assert_ne!(one, another);
        // All 256 bits are drawn: no part of them is left as it was.
        assert_ne!(one, Secret::from(one.seed()));
        assert_ne!(one, Secret::new([0; 32]));
    }
}
