//! What a service is made from.

use std::path::PathBuf;

use pf_context::context::GuidSource;
use pf_context::guids::GuidWish;

use super::{AttachSpec, IbsimAddress, TopologySpec};

/// Who manages the subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SmChoice {
    /// The subnet manager of this project, on the management host.
    #[default]
    Lite,
    /// Somebody who comes by a way in.
    None,
}

/// Where the VFs' GUIDs come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum GuidPolicy {
    /// The SA gives each VF one.
    #[default]
    Sm,
    /// Whoever manages the subnet writes them to the ports' tables unasked.
    Hardware,
    /// VFs have none until somebody sets one.
    None,
}

impl From<GuidPolicy> for GuidSource {
    fn from(policy: GuidPolicy) -> Self {
        match policy {
            GuidPolicy::Sm => Self::Sa(GuidWish::SmAssigned),
            GuidPolicy::Hardware => Self::Hardware,
            GuidPolicy::None => Self::Sa(GuidWish::None),
        }
    }
}

/// What a service is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which fabric.
    pub topology: TopologySpec,
    /// Who manages it.
    pub sm: SmChoice,
    /// The host for management, which has no VFs; by default the adapter called `mgmt`, or else the
    /// first one.
    pub manager: Option<String>,
    /// The adapters that are shared among VFs; all but the management host's if none is named.
    pub pf: Vec<String>,
    /// VFs of each of them; with none, all adapters belong to their hosts alone.
    pub vfs: u16,
    /// Where the VFs' GUIDs come from.
    pub guids: GuidPolicy,
    /// Whether a guest's software runs on each VF.
    pub guests: bool,
    /// Nodes of simulators that hosts of ours shall be. If there are any, they are all hosts: no fabric
    /// is emulated.
    pub attach: Vec<AttachSpec>,
    /// Whether GUIDs that the SA of an attached fabric grants are written to our adapters by ourselves;
    /// see [`ibsim_link::uplink::GuidPolicy`].
    pub local_guids: bool,
    /// Seed of everything random; random itself by default.
    pub seed: Option<u64>,
    /// The control socket; none by default.
    pub control: Option<PathBuf>,
    /// Where clients of the ibsim protocol attach; nowhere by default.
    pub ibsim: Vec<IbsimAddress>,
    /// The socket for programs that use Linux' umad; none by default.
    pub umad: Option<PathBuf>,
}
