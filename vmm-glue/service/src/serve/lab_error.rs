//! Errors of building a lab.

use std::io;

use emulated_hca::TooManyNodes;
use hca_api::HcaError;
use ib_endpoint::EndPortError;
use pf_context::PlaceError;
use pf_context::context::PfError;
use subnet_lite::OpenError;
use thiserror::Error;
use vf_tunnel::VfId;
use vhca::world::VfError;

use super::attach_spec::LinuxSpec;
use super::subnet::SubnetError;
use super::topology::PlanError;
use super::verbs::network::VerbsNetwork;

/// Errors of building a lab.
#[derive(Debug, Error)]
pub enum LabError {
    /// The topology file cannot be used.
    #[error(transparent)]
    Topology(#[from] PlanError),
    /// No adapter has that name.
    #[error("there is no adapter {0:?} in the topology: name one of {1}")]
    NoSuchAdapter(String, String),
    /// A switch has no VFs, and no software of its own.
    #[error("{0} is a switch, and cannot be in pf or bare or be the manager: name one of {1}")]
    Switch(String, String),
    /// Two names of one adapter.
    #[error("{0} names {1} twice, once as {2}: name it once")]
    TwoNames(&'static str, String, String),
    /// An adapter is to be shared, and the manager's alone.
    #[error("{0} is both manager and in pf: name another manager, or leave it out of pf")]
    ManagerShared(String),
    /// The software of the subnet manager would have no host.
    #[error(
        "{0} is both the host of the subnet manager and in bare: name another manager, or leave it out of bare"
    )]
    ManagerBare(String),
    /// An adapter is to be shared, and to be without software.
    #[error("{0} is both in pf and in bare: leave it out of one of them")]
    SharedBare(String),
    /// A bare node cannot be started.
    #[error("cannot start the bare node {0}")]
    Bare(String, #[source] HcaError),
    /// The topology has no adapter.
    #[error("the topology has no adapter")]
    NoAdapter,
    /// The adapter has not so many VFs.
    #[error("{host} has {most} VFs at most, not {wanted}")]
    TooManyVfs {
        /// The host.
        host: String,
        /// Number of VFs that it has at most.
        most: u16,
        /// Number of VFs that are wanted.
        wanted: u16,
    },
    /// A host's software cannot be started.
    #[error("cannot start host {0}")]
    Host(String, #[source] EndPortError),
    /// A PF context cannot be started.
    #[error("cannot start the PF context of {0}")]
    Pf(String, #[source] PfError),
    /// The port of a Linux HCA cannot be opened.
    #[error("cannot attach to {0}: {1}")]
    Linux(LinuxSpec, hca_linux::OpenError),
    /// The port of a Linux HCA carries MADs alone.
    #[error("VFs of {0} have no data: {1}")]
    NoData(LinuxSpec, String),
    /// A trunk cannot be opened.
    #[error("cannot open the trunk at {0}: {1}")]
    Trunk(String, String),
    /// The process that connects cannot be started.
    #[error("cannot start the process that connects for trunks")]
    Door(#[source] io::Error),
    /// The machine's name is no name of a site.
    #[error("the name of this machine is none for a site: give one by --site")]
    NoSite,
    /// A site has too few GUIDs.
    #[error(transparent)]
    Site(#[from] TooManyNodes),
    /// VFs of two adapters would have the same node GUID.
    #[error(
        "a VF of {0} would have the node GUID of one of {1}: give one of the adapters another node GUID"
    )]
    SameGuids(String, String),
    /// A VF cannot be started.
    #[error("cannot start {1} of {0}")]
    Vf(String, VfId, #[source] VfError),
    /// The adapter refuses to lock memory for data of a VF.
    #[error(
        "cannot start {1} of {0}: the service may lock {2} KiB of memory for data of VFs: ulimit -l unlimited before it \
         (LimitMEMLOCK=infinity in its unit), or run it as root"
    )]
    LockedMemory(String, VfId, u64),
    /// A VF cannot be given to VMMs.
    #[error("cannot make a device of {1} of {0}")]
    Device(String, VfId, #[source] PlaceError),
    /// The network of programs has no address for the VFs of a host.
    #[error(
        "{1} has no address for the VFs of {0}: give a larger verbs_network, such as 127.0.0.0/8"
    )]
    NoAddress(String, VerbsNetwork),
    /// A VF cannot be given addresses or services.
    #[error("[[sidr]] of VF {1} of {0}: {2}")]
    Sidr(String, u16, String),
    /// The subnet manager cannot be configured.
    #[error(transparent)]
    Subnet(#[from] SubnetError),
    /// The subnet manager cannot be started.
    #[error("cannot start the subnet manager on {0}")]
    Manager(String, #[source] OpenError),
}
