//! What a service is made from.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cm_paravirt::{NoSidrEntry, SidrEntry};
use pf_context::Limits;
use pf_context::context::GuidSource;
use pf_context::guids::GuidWish;
use serde::{Deserialize, Deserializer};
use vhca_control::Right;

use super::access::{AccessSpec, SocketName};
use super::attach_spec::AttachSpec;
use super::ibsim::sockets::IbsimAddress;
use super::lab_error::LabError;
use super::policy::PolicyOptions;
use super::subnet::SubnetOptions;
use super::topology::TopologySpec;
use super::trunk_spec::{TrunkSpec, name_of_machine};
use super::verbs::network::VerbsNetwork;
use ib_trunk::SiteName;

/// Who manages the subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SmChoice {
    /// The subnet manager of this project, on the management host.
    #[default]
    Lite,
    /// Another subnet manager, such as OpenSM by `vhca run`.
    None,
}

/// Where the VFs' GUIDs come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// How much each VF may have; what is not said is as [`Limits`] has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quotas {
    /// Transactions.
    #[serde(default, deserialize_with = "quota")]
    pub tids: Option<u32>,
    /// SA requests that wait for their answer.
    #[serde(default, deserialize_with = "quota")]
    pub sa_requests: Option<u32>,
    /// Communication ids.
    #[serde(default, deserialize_with = "quota")]
    pub cm_ids: Option<u32>,
    /// Peers' requests for connections that the VF has not answered.
    #[serde(default, deserialize_with = "quota")]
    pub cm_pending: Option<u32>,
    /// Multicast groups.
    #[serde(default, deserialize_with = "quota")]
    pub groups: Option<u16>,
    /// Joins that wait for the SA.
    #[serde(default, deserialize_with = "quota")]
    pub joins: Option<u16>,
    /// Subscriptions to notices.
    #[serde(default, deserialize_with = "quota")]
    pub subscriptions: Option<u16>,
    /// Services that the VF registers at the SA.
    #[serde(default, deserialize_with = "quota")]
    pub services: Option<u16>,
    /// MiB of its guest's memory that the device may touch; by default a share of half of the memory that the service
    /// may have.
    #[serde(default, deserialize_with = "quota")]
    pub guest_memory: Option<u64>,
    /// MiB that the service may spend on a program with a VF: on pages of its rings, objects and unread events. 64 by
    /// default, within the memory that VFs share.
    #[serde(default, deserialize_with = "quota")]
    pub program_memory: Option<u64>,
}

/// Reads a quota. One of 0 would leave every VF without what it limits.
fn quota<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + PartialEq + From<u8>,
{
    let value = T::deserialize(from)?;
    if value == T::from(0) {
        let why = "a quota of 0 leaves VFs without any: say 1 or more, or leave the line out";
        return Err(serde::de::Error::custom(why));
    }
    Ok(Some(value))
}

impl Quotas {
    /// Returns the bytes of its guest's memory that a VF may touch, if that is said.
    #[must_use]
    pub fn guest_bytes(&self) -> Option<u64> {
        self.guest_memory.map(|mib| mib.saturating_mul(1 << 20))
    }

    /// Returns the bytes that the service may spend on a program.
    #[must_use]
    pub fn program_bytes(&self) -> u64 {
        const DEFAULT: u64 = 64;

        let mib = self.program_memory.unwrap_or(DEFAULT);
        mib.saturating_mul(1 << 20)
    }

    /// The limits of a port whose VFs may have so much.
    #[must_use]
    pub fn limits(&self) -> Limits {
        fn set<T: Copy>(limit: &mut T, quota: Option<T>) {
            *limit = quota.unwrap_or(*limit);
        }

        let mut limits = Limits::default();
        set(&mut limits.tids.per_vf, self.tids);
        set(&mut limits.tids.sa_per_vf, self.sa_requests);
        set(&mut limits.cm.ids_per_vf, self.cm_ids);
        set(&mut limits.cm.pending_per_vf, self.cm_pending);
        set(&mut limits.mcast.groups_per_member, self.groups);
        set(&mut limits.mcast.waiting_per_member, self.joins);
        set(&mut limits.services.per_vf, self.services);
        let subscriptions = &mut limits.notices.subscriptions_per_member;
        set(subscriptions, self.subscriptions);
        limits
    }
}

/// Addresses and services of a VF at the start; see [`VfChange::Sidr`](vhca_control::VfChange::Sidr).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SidrSpec {
    /// The description of its adapter.
    pub host: String,
    /// Its number.
    pub vf: u16,
    /// The addresses and services.
    #[serde(deserialize_with = "entries")]
    pub at: Vec<SidrEntry>,
}

fn entries<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<SidrEntry>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    let entries = texts.iter().map(|text| {
        let entry = text.parse();
        entry.map_err(|why: NoSidrEntry| serde::de::Error::custom(format!("{text:?}: {why}")))
    });
    entries.collect()
}

/// What a service is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which fabric.
    pub topology: TopologySpec,
    /// Who manages it.
    pub sm: SmChoice,
    /// The name of the service among services whose fabrics trunks join; by default the name of the machine. It makes the GUIDs of
    /// topologies without their own.
    pub site: Option<SiteName>,
    /// Cables to fabrics of other services.
    pub trunks: Vec<TrunkSpec>,
    /// The host on which vhca's own subnet manager runs, which has no VFs; by default that of the first
    /// adapter called `mgmt` or `mgmt-` and something, or else of the first one.
    pub manager: Option<String>,
    /// Options of vhca's own subnet manager.
    pub subnet: SubnetOptions,
    /// The adapters of hosts on which nothing of the service's runs: no VFs, no SA client, no CM.
    pub bare: Vec<String>,
    /// The adapters that are shared among VFs; if none is named, all but the
    /// manager's, those called `mgmt` or `mgmt-` and something, and the bare ones.
    pub pf: Vec<String>,
    /// VFs of each of them; with none, all adapters belong to their hosts alone.
    pub vfs: u16,
    /// Where the VFs' GUIDs come from.
    pub guids: GuidPolicy,
    /// What each VF may do beyond the ordinary at the start.
    pub rights: Vec<Right>,
    /// Whether a guest's software runs on each VF.
    pub guests: bool,
    /// The folder of the sockets by which VMMs take VFs; by default there are none. Nothing else runs on the VFs
    /// then.
    pub vfio_user: Option<PathBuf>,
    /// Nodes of simulators that hosts of ours shall be. If there are any, they are all hosts: no fabric
    /// is emulated.
    pub attach: Vec<AttachSpec>,
    /// Whether GUIDs that the SA of an attached fabric grants are written to our adapters by ourselves;
    /// see [`ibsim_link::uplink::GuidPolicy`].
    pub local_guids: bool,
    /// How much each VF may have.
    pub quotas: Quotas,
    /// How strictly the VFs' management packets are taken.
    pub policy: PolicyOptions,
    /// Addresses and services of VFs.
    pub sidr: Vec<SidrSpec>,
    /// Seed of everything random, for tests; 256 random bits by default.
    pub seed: Option<u64>,
    /// The control socket; none by default.
    pub control: Option<PathBuf>,
    /// Where clients of the ibsim protocol attach; nowhere by default.
    pub ibsim: Vec<IbsimAddress>,
    /// The socket for programs that use Linux' umad; none by default.
    pub umad: Option<PathBuf>,
    /// Offer of VFs to programs that use Linux' verbs, by a socket beside that for umad: of all VFs, on which nothing else
    /// runs then, or with `vfio_user` of the last `program_vfs` of each adapter.
    pub verbs: bool,
    /// Number of VFs of each adapter, its last ones, that are for programs.
    pub program_vfs: u16,
    /// Network of their addresses for the RDMA CM.
    pub verbs_network: VerbsNetwork,
    /// Who may connect to which socket; by default the user of the service alone.
    pub access: BTreeMap<SocketName, AccessSpec>,
    /// Whether the service confines itself once it is set up.
    pub sandbox: bool,
    /// The users, by name or number, whose programs may attach by the ibsim protocol's Unix sockets, besides root and
    /// the user of the service.
    pub ibsim_users: Vec<String>,
}

impl Options {
    /// Returns the name of the service among services that trunks join, if it has trunks or was named.
    ///
    /// # Errors
    /// [`LabError::NoSite`] if the machine's name is none for a site.
    pub(super) fn site_name(&self) -> Result<Option<SiteName>, LabError> {
        match (&self.site, self.trunks.is_empty()) {
            (Some(site), _) => Ok(Some(site.clone())),
            (None, true) => Ok(None),
            (None, false) => name_of_machine().map(Some).ok_or(LabError::NoSite),
        }
    }

    /// Returns `true` if the VF of this number is for programs.
    #[must_use]
    pub fn is_for_program(&self, vf: u16) -> bool {
        vf > self.vfs.saturating_sub(self.program_vfs)
    }
}
