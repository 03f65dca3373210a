//! VFs that programs can have, and the processes that have them.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;

use ib_vtime::Instant;
use vf_tunnel::VfId;
use vhca::world::HostId;

use super::memory::ProcessMemory;

/// A VF that programs can have.
#[derive(Debug)]
pub(crate) struct ProcessVf {
    pub(super) host: HostId,
    pub(super) host_name: String,
    pub(super) vf: VfId,
    pub(super) memory: ProcessMemory,
    /// Address for the RDMA CM.
    pub(super) address: Ipv4Addr,
    pub(super) holder: Option<Holder>,
}

/// A process that has a VF.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) pid: Option<u32>,
    pub(super) uid: Option<u32>,
    /// Descriptor of its socket.
    pub(super) client: RawFd,
    pub(super) since: Instant,
}

impl ProcessVf {
    /// Returns its name: `HOST/N`.
    pub(super) fn description(&self) -> String {
        format!("{}/{}", self.host_name, self.vf.get())
    }
}
