//! What a PF context and its VFs are made from.

use cm_paravirt::SidrTaken;
use hca_api::{AddressSpace, HcaError, ResourceCounts};
use ib_endpoint::EndPortError;
use ib_vtime::Secret;
use ib_wire::{Guid, PKeyIndex, PortNum};
use mad_mux::policy::Rights;
use thiserror::Error;
use vf_tunnel::{PhysicalPKeyIndex, VfId};

use crate::config::{AdaptAnswer, AddVfError, EgressLimit, Limits, Policy, VfPKeyEntry};
use crate::delivery::DeliveryDepth;
use crate::guids::GuidWish;

/// Buffers of the queue pairs that a context owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Of each special QP, each way.
    pub special: u32,
    /// Receives of each tunnel QP.
    pub tunnel_receives: u32,
    /// Sends of each tunnel QP.
    pub tunnel_sends: u32,
    /// What may wait for a tunnel QP whose sends are all under way.
    pub delivery: DeliveryDepth,
}

impl Default for Depths {
    fn default() -> Self {
        Self {
            special: 1024,
            // The depth of a guest driver's own send ring (mlx4: 512).
            tunnel_receives: 512,
            tunnel_sends: 128,
            delivery: DeliveryDepth::default(),
        }
    }
}

/// What a [`PfContext`](super::PfContext) is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PfConfig {
    /// All ids that the context puts on the wire follow from it: outside of tests it must be random.
    pub secret: Secret,
    /// Limits of each port.
    pub limits: Limits,
    /// Policy of each port.
    pub policy: Policy,
    /// Buffers.
    pub depths: Depths,
    /// Whether the context takes the ports' QP0, which VFs with the right to send SMPs need. A subnet
    /// manager on the same port needs QP0 for itself.
    pub smi: bool,
    /// MADs that one call to [`PfContext::poll`](super::PfContext::poll) takes from each port.
    pub budget: usize,
}

impl PfConfig {
    /// Defaults, with this secret, or the secret of a seed.
    #[must_use]
    pub fn new(secret: impl Into<Secret>) -> Self {
        Self {
            secret: secret.into(),
            limits: Limits::default(),
            policy: Policy::default(),
            depths: Depths::default(),
            smi: false,
            budget: 64,
        }
    }
}

/// Where a VF's GUID on a port comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuidSource {
    /// The context asks the SA for it, and the VF has it once it is in hardware.
    Sa(GuidWish),
    /// Whoever manages the subnet writes it to the port's table by himself; nobody is asked.
    Hardware,
}

impl Default for GuidSource {
    fn default() -> Self {
        Self::Sa(GuidWish::SmAssigned)
    }
}

/// What a VF gets of one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfPortSpec {
    /// Where its GUID comes from.
    pub guid: GuidSource,
    /// For each virtual P_Key index, what is behind it.
    pub pkeys: Vec<Option<VfPKeyEntry>>,
    /// What it may do beyond the ordinary.
    pub rights: Rights,
    /// The SLs that it may use on QP1: a bit each.
    pub service_levels: u16,
    /// Changes the answers that its guest gets; `None` leaves them as they are.
    pub adapt_answer: Option<AdaptAnswer>,
    /// How much it may send; `None` for the port's default.
    pub egress: Option<EgressLimit>,
}

impl Default for VfPortSpec {
    fn default() -> Self {
        Self {
            guid: GuidSource::default(),
            pkeys: vec![Some(VfPKeyEntry::Index(PhysicalPKeyIndex(PKeyIndex(0))))],
            rights: Rights::default(),
            service_levels: u16::MAX,
            adapt_answer: None,
            egress: None,
        }
    }
}

/// What a VF is made from.
#[derive(Debug)]
pub struct VfSpec {
    /// The node GUID that it shows, and that its CM messages must name.
    pub node_guid: Guid,
    /// The memory that it reaches.
    pub memory: Box<dyn AddressSpace>,
    /// Upper bounds on what it may own.
    pub quota: ResourceCounts,
    /// What it gets of each port of the adapter, in their order; ports beyond get the default.
    pub ports: Vec<VfPortSpec>,
}

/// Why a context, or a VF of it, could not be made. Nothing is left behind then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PfError {
    /// The HCA refused.
    #[error("the adapter refused: {0}")]
    Hca(HcaError),
    /// The PF's own software could not be started on a port.
    #[error("port {port}: {1}", port = .0.0)]
    Port(PortNum, EndPortError),
    /// The VF cannot be added to a port.
    #[error("port {port}: {1}", port = .0.0)]
    Vf(PortNum, AddVfError),
    /// There is no such VF.
    #[error("there is no {0}")]
    NoVf(VfId),
    /// An entry of a VF's P_Key table names a place beyond the port's table.
    #[error("index:{index} is beyond the port's table of {places} P_Keys", index = .index.0)]
    PKeyIndex {
        /// The place.
        index: PKeyIndex,
        /// Places of the port's table.
        places: u16,
    },
    /// An address or service is another VF's.
    #[error("{entry} is already given to {vf}", entry = .0.entry, vf = .0.vf)]
    Sidr(SidrTaken),
}

impl From<SidrTaken> for PfError {
    fn from(taken: SidrTaken) -> Self {
        Self::Sidr(taken)
    }
}

impl From<HcaError> for PfError {
    fn from(error: HcaError) -> Self {
        Self::Hca(error)
    }
}
