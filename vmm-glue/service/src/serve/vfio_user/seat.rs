//! What is known of the VFs that are offered to VMMs.

use std::path::PathBuf;

use ib_vtime::Instant;
use rustix::process::{Pid, Uid};
use vf_tunnel::VfId;
use vhca_control::OfferedVf;

use crate::serve::access::SocketName;
use vhca::world::HostFunction;
use vhca_vfio_user::{GuestMemory, SessionStatistics};

/// A VF that VMMs can take.
#[derive(Debug)]
pub struct Seat {
    /// The VF.
    pub at: HostFunction,
    /// Its number.
    pub vf: VfId,
    /// Its host.
    pub host_name: String,
    /// Where it is offered, once it is.
    pub socket: Option<PathBuf>,
    /// The memory that it reaches.
    pub memory: GuestMemory,
    /// Who has it.
    pub vmm: Option<Vmm>,
    /// VMMs that had it, the present one included.
    pub vmms: u64,
    /// VMMs that were turned away.
    pub refused: u64,
    /// Accesses to its memory that failed because it may touch no more, as far as they are logged.
    pub(super) refused_accesses: u64,
}

/// A VMM that has a VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vmm {
    /// Its process.
    pub pid: Option<Pid>,
    /// Whose it is.
    pub uid: Option<Uid>,
    /// Since when.
    pub since: Instant,
    /// What it did.
    pub statistics: SessionStatistics,
    /// Interrupt vectors of which it wants to be told: the guest's driver has set them up.
    pub vectors: usize,
}

impl Seat {
    /// A VF that nobody took yet.
    #[must_use]
    pub const fn new(at: HostFunction, vf: VfId, host_name: String, memory: GuestMemory) -> Self {
        Self {
            at,
            vf,
            host_name,
            socket: None,
            memory,
            vmm: None,
            vmms: 0,
            refused: 0,
            refused_accesses: 0,
        }
    }

    /// Where it is offered, if it is.
    #[must_use]
    pub fn offered(&self) -> Option<OfferedVf> {
        Some(OfferedVf {
            host: self.host_name.clone(),
            vf: self.vf.get(),
            socket: self.socket.clone()?,
        })
    }

    /// Returns `true` if a name of sockets means its socket, too.
    #[must_use]
    pub fn is_called(&self, name: &SocketName) -> bool {
        match name {
            SocketName::AllVfs => true,
            SocketName::VfsOf(host) => *host == self.host_name,
            SocketName::Vf(host, vf) => *host == self.host_name && *vf == self.vf,
            SocketName::Control | SocketName::Umad | SocketName::Verbs => false,
        }
    }

    /// What its socket is called: like no other's, and as a file can be called whatever the host's name. Of that each
    /// byte that needs care in a path or a shell is `%` and its two digits.
    #[must_use]
    pub fn file_name(&self) -> String {
        let mut name = String::new();
        for byte in self.host_name.bytes() {
            if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
                name.push(byte.into());
            } else {
                name.push_str(&format!("%{byte:02x}"));
            }
        }
        format!("{name}-vf{}.sock", self.vf.get())
    }
}
