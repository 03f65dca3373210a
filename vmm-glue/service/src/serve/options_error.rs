//! Options that cannot be used together, or not with their values.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::access::SocketName;
use super::attach_spec::AttachSpec;
use super::ibsim::sockets::IbsimAddress;
use super::options_file::GivenOptions;
use super::options_file::VFS;
use super::trunk_credentials::TrunkCredentialsError;

/// Bytes of a name of abstract sockets at most: 108, without a zero at either end and the longest suffix of the
/// protocol, `:out` and a 32-bit number.
const MAX_IBSIM_NAME: usize = 108 - 2 - ":out4294967295".len();

/// Why options, from flags and a file together, are refused. Options are called as in a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionsError {
    /// Two options exclude each other.
    #[error("{0} and {1} exclude each other, because {2}: leave out one of them")]
    Exclusive(&'static str, &'static str, &'static str),
    /// An option is of use only with another one.
    #[error("local_guids needs attach: leave it out, or name nodes of a simulator with attach")]
    NeedsAttach,
    /// Programs and VMMs both want VFs.
    #[error(
        "verbs and vfio_user share the VFs of each adapter, of which there are {0}: say by program_vfs how many are for \
         programs, at least one and not all"
    )]
    NeedsProgramVfs(u16),
    /// Nobody shares VFs with programs.
    #[error(
        "program_vfs needs verbs and vfio_user, which share the VFs: leave it out, or give both"
    )]
    NeedsSharing,
    /// Access of other users to sockets of a service whose users can keep each other waiting.
    #[error(
        "access to {0} excludes verbs beside vfio_user, because a program of another user could keep guests waiting: \
         leave it out, or serve programs and VMMs by services of their own"
    )]
    OthersWait(SocketName),
    /// An option has no value.
    #[error("{0} is empty: give it a value, or leave it out")]
    Empty(&'static str),
    /// An option names something twice.
    #[error("{0} names {1} twice: name it once")]
    Twice(&'static str, String),
    /// Two sockets have one path.
    #[error("control and umad are both {}: give them different paths", .0.display())]
    SamePath(PathBuf),
    /// A path cannot stand in JSON.
    #[error("{0} is {1:?}, which is not UTF-8: choose another path")]
    NotUtf8(&'static str, PathBuf),
    /// A text is no name of abstract sockets.
    #[error("ibsim names {0:?}: choose a name of 1 to {MAX_IBSIM_NAME} bytes, none of them zero")]
    Name(String),
    /// The UDP ports behind the first one are for clients.
    #[error(
        "ibsim_udp is {0}: choose a port from 1 to 65534, since each client takes one above it"
    )]
    Port(u16),
    /// A port of a Linux HCA, and something beside it.
    #[error(
        "attach names a port of a Linux HCA and something else: one service has one such port, so start another service for each"
    )]
    OnePort,
    /// Credentials of trunks that do not go with their addresses.
    #[error(transparent)]
    Trunk(#[from] TrunkCredentialsError),
    /// The service would be a client of its own.
    #[error(
        "attach and ibsim both name {0}: choose another name, since a service cannot attach to itself"
    )]
    Itself(IbsimAddress),
}

/// Finds the first value that stands twice in a list.
fn repeated<T: PartialEq>(list: &[T]) -> Option<&T> {
    let mut places = list.iter().enumerate();
    places
        .find(|(place, value)| list[..*place].contains(value))
        .map(|(_, value)| value)
}

impl GivenOptions {
    /// Checks what can be wrong whatever the fabric is.
    pub(super) fn check(&self) -> Result<(), OptionsError> {
        self.check_users()?;
        self.check_attach()?;
        self.check_ibsim()?;
        self.check_paths()?;
        for (option, names) in [("pf", &self.pf), ("bare", &self.bare)] {
            if let Some(name) = repeated(names) {
                return Err(OptionsError::Twice(option, name.clone()));
            }
            if names.iter().any(String::is_empty) {
                return Err(OptionsError::Empty(option));
            }
        }
        if self.manager.as_deref() == Some("") {
            return Err(OptionsError::Empty("manager"));
        }
        Ok(())
    }

    fn check_users(&self) -> Result<(), OptionsError> {
        if self.guests == Some(true) && self.vfio_user.is_some() {
            let why = "a VF has either a guest's software or a VMM";
            return Err(OptionsError::Exclusive("guests", "vfio_user", why));
        }
        let has_programs = self.verbs == Some(true);
        if has_programs && self.guests == Some(true) {
            let why = "a VF has either a guest's software or a program";
            return Err(OptionsError::Exclusive("guests", "verbs", why));
        }
        if has_programs && self.vfio_user.is_some() {
            return self.check_sharing();
        }
        match self.program_vfs {
            Some(_) => Err(OptionsError::NeedsSharing),
            None => Ok(()),
        }
    }

    /// Checks that programs and VMMs have VFs of their own, and are of one user.
    fn check_sharing(&self) -> Result<(), OptionsError> {
        let vfs = self.vfs.unwrap_or(VFS);
        if !self
            .program_vfs
            .is_some_and(|programs| (1..vfs).contains(&programs))
        {
            return Err(OptionsError::NeedsProgramVfs(vfs));
        }
        let takes_vfs = |name: &&SocketName| **name == SocketName::Verbs || name.is_of_vfs();
        match self.access.keys().find(takes_vfs) {
            Some(name) => Err(OptionsError::OthersWait(name.clone())),
            None => Ok(()),
        }
    }

    fn check_attach(&self) -> Result<(), OptionsError> {
        if self.attach.is_empty() {
            return match self.local_guids {
                Some(true) => Err(OptionsError::NeedsAttach),
                _ => Ok(()),
            };
        }
        let others = [
            (self.topology.is_some(), "topology"),
            (self.sm.is_some(), "sm"),
            (self.manager.is_some(), "manager"),
            (!self.pf.is_empty(), "pf"),
            (!self.bare.is_empty(), "bare"),
            (!self.trunks.is_empty(), "trunk"),
            (self.site.name.is_some(), "site"),
        ];
        if let Some((_, other)) = others.into_iter().find(|(is_given, _)| *is_given) {
            let why = "an attached service has the fabric and subnet manager of others";
            return Err(OptionsError::Exclusive("attach", other, why));
        }
        let ports = self.attach.iter().filter_map(AttachSpec::linux).count();
        if ports > 0 && (ports, self.attach.len()) != (1, 1) {
            return Err(OptionsError::OnePort);
        }
        if ports > 0 && self.local_guids == Some(true) {
            return Err(OptionsError::NeedsAttach);
        }
        let simulators = || self.attach.iter().filter_map(AttachSpec::ibsim);
        let nodes: Vec<_> = simulators()
            .flat_map(|spec| spec.nodes.iter().map(|node| (&spec.simulator, node)))
            .collect();
        if let Some((simulator, node)) = repeated(&nodes) {
            return Err(OptionsError::Twice("attach", format!("{simulator}/{node}")));
        }
        let own: Vec<_> = self.ibsim_addresses().collect();
        let mut simulators = simulators().map(|spec| &spec.simulator);
        match simulators.find(|simulator| own.contains(simulator)) {
            Some(simulator) => Err(OptionsError::Itself(simulator.clone())),
            None => Ok(()),
        }
    }

    fn check_ibsim(&self) -> Result<(), OptionsError> {
        let is_bad =
            |name: &&String| !(1..=MAX_IBSIM_NAME).contains(&name.len()) || name.contains('\0');
        if let Some(name) = self.ibsim.iter().find(is_bad) {
            return Err(OptionsError::Name(name.clone()));
        }
        if let Some(name) = repeated(&self.ibsim) {
            return Err(OptionsError::Twice("ibsim", name.clone()));
        }
        if let Some(port) = self
            .ibsim_udp
            .iter()
            .find(|port| [0, u16::MAX].contains(port))
        {
            return Err(OptionsError::Port(*port));
        }
        match repeated(&self.ibsim_udp) {
            Some(port) => Err(OptionsError::Twice("ibsim_udp", port.to_string())),
            None => Ok(()),
        }
    }

    fn check_paths(&self) -> Result<(), OptionsError> {
        let paths = [
            ("control", &self.control),
            ("umad", &self.umad),
            ("vfio_user", &self.vfio_user),
        ];
        for (name, path) in paths {
            let Some(path) = path.as_deref() else {
                continue;
            };
            if path == Path::new("") {
                return Err(OptionsError::Empty(name));
            }
            if path.to_str().is_none() {
                return Err(OptionsError::NotUtf8(name, path.to_owned()));
            }
        }
        match &self.control {
            Some(path) if self.umad.as_ref() == Some(path) => {
                Err(OptionsError::SamePath(path.clone()))
            }
            _ => Ok(()),
        }
    }
}
