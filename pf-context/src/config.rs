//! What an operator sets: the port, its VFs, limits and policy.

use core::num::NonZeroU16;

use ib_vtime::Rate;
use ib_wire::mad::Mad;
use ib_wire::{Guid, Lid, Lmc, PKey, PKeyIndex, PortNum, Sl, SubnetPrefix};
use mad_mux::path_cache::PathCacheConfig;
use mad_mux::policy::Rights;
use mad_mux::tid::TidConfig;
use thiserror::Error;
use vf_tunnel::{PhysicalPKeyIndex, VfId};

use crate::services::ServiceLimits;

/// How a wish of a VF's, or a match in doubt, is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// By the architecture.
    #[default]
    Strict,
    /// As Linux's mlx4 does.
    Compat,
}

/// What the operator decides for all VFs of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Q_Key and remote QP of GMPs: strictly QP1 and its well-known key, or whatever the VF says.
    pub remote_qp: Strictness,
    /// Partitions of which both ends are limited members: strictly no match (IBA 10.9.3), or a match.
    /// Adapters tell of a packet only which entry of the port's table it matched, so one that matched a
    /// full member's counts as a full member's.
    pub limited_pkeys: Strictness,
    /// GIDs and GUIDs that a VF claims in CM messages.
    pub cm_identity: Strictness,
    /// Whether a VF may ask for paths from a sibling's GID.
    pub third_party_paths: bool,
    /// Whether an SM_Key in a VF's SA request ends it, rather than being cleared.
    pub refuse_sm_key: bool,
    /// Whether peers of a VF that is reset are told: DREQ or REJ for connections, ABORT for RMPP
    /// transfers.
    pub signal_reset: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            remote_qp: Strictness::Strict,
            limited_pkeys: Strictness::Strict,
            cm_identity: Strictness::Strict,
            third_party_paths: false,
            refuse_sm_key: false,
            signal_reset: true,
        }
    }
}

/// How much one VF may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressLimit {
    /// MADs per second in the long run; 0 for no limit.
    pub mads_per_second: u32,
    /// MADs that may go at once.
    pub burst: u32,
    /// MADs that may wait for their turn.
    pub queue: usize,
    /// The VF's share of the port, relative to the weights of the others, while several wait for it.
    pub weight: NonZeroU16,
}

impl EgressLimit {
    pub(crate) const fn rate(&self) -> Rate {
        Rate::per_second(self.mads_per_second, self.burst)
    }
}

impl Default for EgressLimit {
    fn default() -> Self {
        Self {
            mads_per_second: 20_000,
            burst: 1_000,
            // The depth of a guest driver's own send ring (mlx4: 512).
            queue: 512,
            weight: NonZeroU16::MIN,
        }
    }
}

/// How much all VFs of a port may send together. The port's own messages do not count, and go first.
///
/// Without it only the VFs' own limits hold, and weights matter where the send ring behind the mux
/// is full ([`PortMux::set_wire_room`](crate::PortMux::set_wire_room)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireLimit {
    /// MADs per second in the long run; 0 for no limit.
    pub mads_per_second: u32,
    /// MADs that may go at once.
    pub burst: u32,
}

impl WireLimit {
    pub(crate) const fn rate(&self) -> Rate {
        Rate::per_second(self.mads_per_second, self.burst)
    }
}

impl Default for WireLimit {
    fn default() -> Self {
        Self {
            mads_per_second: 0,
            burst: 64,
        }
    }
}

/// Limits of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Transactions.
    pub tids: TidConfig,
    /// Connections.
    pub cm: cm_paravirt::Config,
    /// Multicast memberships.
    pub mcast: mcast_agg::Config,
    /// Subscriptions to notices.
    pub notices: mcast_agg::notices::Config,
    /// Services registered at the SA.
    pub services: ServiceLimits,
    /// Cached paths.
    pub paths: PathCacheConfig,
    /// Rate, queue and weight of each VF.
    pub egress: EgressLimit,
    /// Rate of the port.
    pub wire: WireLimit,
}

/// A port as it is when the mux starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// All ids that the mux puts on the wire follow from it: outside of tests it must be random.
    pub seed: u64,
    /// The port's base LID.
    pub lid: Lid,
    /// How many of the LID's low bits are path bits.
    pub lmc: Lmc,
    /// The SM's LID, at which the SA answers.
    pub sm_lid: Lid,
    /// The SL that leads to the SM.
    pub sm_sl: Sl,
    /// The subnet's prefix.
    pub subnet_prefix: SubnetPrefix,
    /// The port's own GUID.
    pub guid: Guid,
    /// The port's P_Key table.
    pub pkeys: Vec<PKey>,
    /// Limits.
    pub limits: Limits,
    /// Policy.
    pub policy: Policy,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            lid: Lid::new(5),
            lmc: Lmc::default(),
            sm_lid: Lid::new(1),
            sm_sl: Sl::default(),
            subnet_prefix: SubnetPrefix::DEFAULT,
            guid: Guid::new(0x0002_c903_0000_0001),
            pkeys: vec![PKey::DEFAULT_FULL],
            limits: Limits::default(),
            policy: Policy::default(),
        }
    }
}

/// What stands behind an index of a VF's P_Key table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VfPKeyEntry {
    /// A place of the port's table, whatever the SM writes there.
    Index(PhysicalPKeyIndex),
    /// A key, wherever the SM writes it. A full member's key is also found as the limited member's of
    /// the same partition, if the port itself is only that; never the other way round.
    Value(PKey),
}

/// Changes an answer, from the wire or from the cache of paths, to one that a guest's driver handles correctly. The
/// personality that the guest sees provides it; transaction and class stay.
#[derive(Clone, Copy, Debug)]
pub struct AdaptAnswer(pub fn(&mut Mad));

impl PartialEq for AdaptAnswer {
    /// Returns `true` for functions with one address; one function can have several.
    fn eq(&self, other: &Self) -> bool {
        core::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for AdaptAnswer {}

/// A VF as it is when it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfConfig {
    /// Its GUID on the port, if the hardware has one for it already.
    pub guid: Option<Guid>,
    /// The GUID of its CA, if the PF gave it one: its REQs and REPs must name it. Without, they may
    /// name any, since nothing else tells the CA's GUID, and what the last REQ named is taken for it.
    pub ca_guid: Option<Guid>,
    /// The number under which the VF knows the port; its address vectors must say it.
    pub port: PortNum,
    /// For each virtual P_Key index, what is behind it.
    pub pkeys: Vec<Option<VfPKeyEntry>>,
    /// What it may do beyond the ordinary.
    pub rights: Rights,
    /// The SLs that it may use on QP1: a bit each.
    pub service_levels: u16,
    /// Changes the answers that its guest gets; `None` leaves them as they are.
    pub adapt_answer: Option<AdaptAnswer>,
}

impl Default for VfConfig {
    fn default() -> Self {
        Self {
            guid: None,
            ca_guid: None,
            port: PortNum(1),
            pkeys: vec![Some(VfPKeyEntry::Index(PhysicalPKeyIndex(PKeyIndex(0))))],
            rights: Rights::default(),
            service_levels: u16::MAX,
            adapt_answer: None,
        }
    }
}

/// Why a VF cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AddVfError {
    /// The number is taken.
    #[error("{0} exists already")]
    Exists(VfId),
    /// Another port or VF has the GUID, or it is zero or the SA's well-known one.
    #[error("GUID {0} is taken or reserved")]
    BadGuid(Guid),
}
