//! What confines the service once it is set up: it then needs sockets and a few folders, and nothing else of the host.
//!
//! Landlock (where the kernel has it) leaves of the file system only the folders of the service's own sockets; a seccomp
//! filter leaves the system calls that an event loop needs. No program can be started, nothing mapped executable, no
//! other process looked into. A system call that is not on the list ends the service with a line that names it: it is
//! either an attacker's, who gets no second try, or missing on the list.

mod files;
mod filter;

use std::io;

use rustix::process::geteuid;
use thiserror::Error;

use super::attach_spec::AttachSpec;
use super::ibsim::sockets::IbsimAddress;
use super::options::Options;
use files::Folders;

/// Warning of a service that runs as root.
const ROOT: &str = "the service runs as root: run it as a user of its own (docs/serve.md, Sandbox)";

/// Why the service cannot be confined.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// By Landlock.
    #[error("cannot confine the service to its files; --no-sandbox goes without")]
    Files(#[from] landlock::RulesetError),
    /// By seccomp.
    #[error("cannot confine the service to its system calls; --no-sandbox goes without")]
    Calls(#[from] seccompiler::Error),
    /// The handler of violations.
    #[error("cannot take the signal of forbidden system calls")]
    Signal(#[source] io::Error),
}

/// What the service goes on needing.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Folders in which it makes and removes files.
    pub(super) folders: Folders,
    /// Whether it talks by abstract sockets to processes outside.
    pub(super) abstract_sockets: bool,
    /// Whether it talks by UDP.
    pub(super) udp: bool,
    /// `true` if it answers programs by ibsim, each from a socket that is connected to the program's.
    pub(super) ibsim: bool,
    /// `true` if it attaches to a simulator, and opens sockets for VFs that come with that.
    pub(super) attach: bool,
    /// `true` if it has an adapter of the host by libibverbs.
    pub(super) verbs: bool,
}

impl Needs {
    /// What the options tell of it; folders come with the sockets in them.
    pub(super) fn of(options: &Options) -> Self {
        let simulators = options.attach.iter().filter_map(AttachSpec::ibsim);
        let simulators = simulators.map(|attach| &attach.simulator);
        let attach = simulators.clone().next().is_some();
        let mut addresses = options.ibsim.iter().chain(simulators);
        let is_udp = |address: &IbsimAddress| matches!(address, IbsimAddress::Udp(_));
        let udp = addresses.clone().any(is_udp);
        let manager = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
        Self {
            folders: Folders::default(),
            abstract_sockets: addresses.any(|address| !is_udp(address))
                || manager.as_encoded_bytes().starts_with(b"@"),
            udp,
            ibsim: !options.ibsim.is_empty(),
            attach,
            verbs: options.attach.iter().any(|spec| spec.linux().is_some()),
        }
    }
}

/// Confines all threads of this process, for good.
///
/// # Errors
/// [`SandboxError`].
pub(super) fn enter(needs: &Needs) -> Result<(), SandboxError> {
    if geteuid().is_root() {
        // By a short target, so that the line fits beside the commands of a terminal.
        log::warn!(target: "vhca", "{ROOT}");
    }
    files::confine(needs)?;
    filter::confine(needs)
}

#[cfg(test)]
mod tests;
