//! VFs, and adapters of bare nodes, that programs can have, and the processes that have them.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;

use ib_vtime::Instant;
use verbs_link::Network;
use vf_tunnel::VfId;
use vhca::world::HostId;

use super::memory::ProcessMemory;

/// A VF that programs can have, or the adapter of a bare node.
#[derive(Debug)]
pub(crate) struct ProcessVf {
    pub(super) host: HostId,
    pub(super) host_name: String,
    /// `None` for the adapter of a bare node.
    pub(super) vf: Option<VfId>,
    pub(super) memory: ProcessMemory,
    /// Address for the RDMA CM, which bare nodes do not have.
    pub(super) address: Option<Ipv4Addr>,
    /// Network of the address, if addresses that no VF of the service has are looked up.
    pub(super) network: Option<Network>,
    /// Addresses of its process's network namespace, by which other nodes find it as well.
    pub(super) aliases: Vec<Ipv4Addr>,
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
    /// Returns its name: `HOST/N`, or `HOST` for the adapter of a bare node.
    pub(super) fn description(&self) -> String {
        match self.vf {
            Some(vf) => format!("{}/{}", self.host_name, vf.get()),
            None => self.host_name.clone(),
        }
    }
}
