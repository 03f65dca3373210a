//! Hosts that give their guests VFs.

use emulated_hca::{NodeId, PortConfig};
use hca_api::{AddressSpace, FunctionId, FunctionManager, HcaError, HostMemory, ResourceCounts};
use hca_functions::Functions;
use ib_endpoint::EndPortError;
use ib_vtime::{Instant, Secret, SplitMix64};
use ib_wire::{Guid, PortNum};
use pf_context::context::{PfConfig, PfError, PfEvent, VfSpec};
use pf_context::{EgressLimit, PfContext, PlaceError, VfPKeyEntry};
use thiserror::Error;
use vf_tunnel::VfId;

use super::adapters::{Outside, OutsideHca};
use super::shared::{SharedHost, start_guest};
use super::software::Software;
use super::{Host, HostFunction, HostId, World};

/// Why a VF and its guest could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VfError {
    /// The PF refused.
    #[error(transparent)]
    Pf(#[from] PfError),
    /// The guest's software could not be started.
    #[error("the guest's software cannot be started")]
    Guest(#[from] EndPortError),
    /// Something else than a guest's software has the VF.
    #[error("{0} is in use")]
    InUse(VfId),
}

impl From<PlaceError> for VfError {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::NoVf(vf) => Self::Pf(PfError::NoVf(vf)),
            PlaceError::InUse(vf) => Self::InUse(vf),
        }
    }
}

impl From<HcaError> for VfError {
    fn from(error: HcaError) -> Self {
        Self::Pf(error.into())
    }
}

/// Returns a node GUID for a VF: OpenIB's company id, as the SA's aliases have it, with bit 39, which those have not, and 39 bits of
/// a hash of the node GUID of its adapter and its number. So it is the same whenever a world starts. Linux' `ib_srpt` listens at its
/// node GUID as a service ID, and service IDs that begin with 0x02 are the CM's own (`cm_init_listen`).
///
/// The PF's driver of a real adapter gives each VF a random one anew whenever it is loaded (`mlx4_ib_gen_node_guid`), which keeps
/// peers from taking new connections for old ones; here the ids of connections do that, which are different each time. Two VFs of
/// some ten thousand have one GUID with a chance of 1 in 10,000: see to it that none have.
#[must_use]
pub const fn vf_node_guid(adapter: Guid, vf: VfId) -> Guid {
    const COMPANY: u64 = 0x0014_0500_0000_0000;
    const MARK: u64 = 1 << 39;
    let of_adapter = SplitMix64::new(adapter.get()).next();
    let of_vf = SplitMix64::new(of_adapter ^ vf.get() as u64).next();
    Guid::new(COMPANY | MARK | of_vf >> 25)
}

/// A VF with memory of its own on this process's heap, a quota that no ordinary guest meets, and the
/// default of every port.
#[must_use]
pub fn vf_spec(node_guid: Guid) -> VfSpec {
    const MANY: u32 = 4096;
    VfSpec {
        node_guid,
        memory: Box::new(HostMemory::new()),
        quota: ResourceCounts {
            pds: MANY,
            avs: MANY,
            cqs: MANY,
            srqs: MANY,
            qps: MANY,
            mrs: MANY,
            mws: MANY,
            attachments: MANY,
        },
        ports: Vec::new(),
    }
}

impl World {
    /// Starts a PF context on a node's adapter, with the PF's own software on each port. A subnet
    /// manager can run on such a host if the context leaves QP0 alone ([`PfConfig::smi`]).
    ///
    /// # Errors
    /// [`PfError`]; [`HcaError::InvalidParameter`] if the node is a switch.
    pub fn add_pf_host(&mut self, node: NodeId, config: &PfConfig) -> Result<HostId, PfError> {
        let mut hca = self.adapters.function(node, FunctionId::PF)?;
        let context = PfContext::open(self.now, &mut hca, config)?;
        Ok(self.admit(Host::shared(node, context)))
    }

    /// Starts a PF context on an adapter outside of the fabric, which `functions` divides among VFs: the adapter's function reaches
    /// the memory of these ([`Functions::memory`]). In the fabric a gateway without a cable stands for the adapter, by `name`.
    ///
    /// # Errors
    /// [`PfError`].
    pub fn add_outside_pf_host(
        &mut self,
        name: &str,
        hca: Box<dyn OutsideHca>,
        functions: Functions,
        config: &PfConfig,
    ) -> Result<HostId, PfError> {
        let fabric = &mut self.adapters.fabric;
        let gateway = fabric.add_gateway(name, PortConfig::default());
        let outside = Outside::new(hca, functions);
        self.adapters.add_outside(gateway, outside);
        self.add_pf_host(gateway, config)
    }

    /// Returns the adapter outside for which a node stands.
    #[must_use]
    pub fn outside_hca(&self, node: NodeId) -> Option<&dyn OutsideHca> {
        Some(self.adapters.outside(node)?.hca())
    }

    /// Returns the node that stands for an adapter outside which is gone for good.
    #[must_use]
    pub fn gone_hca(&self) -> Option<NodeId> {
        self.adapters.gone()
    }

    /// Returns the adapter outside that a host has, to be used. `None` if it is of another type.
    pub fn outside_hca_mut<H: OutsideHca>(&mut self, host: HostId) -> Option<&mut H> {
        let node = self.hosts.get(host.0)?.node();
        self.adapters.outside_mut(node)?.hca_mut()
    }

    /// Adds a VF and starts its guest's software on it.
    ///
    /// # Errors
    /// [`VfError`]; nothing is left behind then.
    ///
    /// # Panics
    /// If the host was not made by [`World::add_pf_host`]; so do all calls about VFs.
    pub fn add_vf(
        &mut self,
        host: HostId,
        vf: VfId,
        spec: VfSpec,
    ) -> Result<HostFunction, VfError> {
        self.add_idle_vf(host, vf, spec)?;
        match self.start_guest(host, vf) {
            Ok(()) => Ok(host.vf(vf)),
            Err(error) => {
                self.remove_vf(host, vf)?;
                Err(error)
            }
        }
    }

    /// Adds a VF on which nothing runs yet.
    ///
    /// # Errors
    /// [`PfError`].
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn add_idle_vf(&mut self, host: HostId, vf: VfId, spec: VfSpec) -> Result<(), PfError> {
        let now = self.now;
        self.with_pf(host, |pf, hca| {
            pf.host.context_mut().add_vf(now, hca, vf, spec)
        })
    }

    /// Starts a guest's software on a VF anew, as a guest's boot does. What ran there before gives
    /// back what it had; its events and sockets are gone.
    ///
    /// # Errors
    /// [`VfError`].
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn start_guest(&mut self, host: HostId, vf: VfId) -> Result<(), VfError> {
        let secret = self.derived_secret();
        self.start_clone(host, vf, secret)
    }

    /// As [`World::start_guest`], with the guest's secret given. Guests of one secret that do the same
    /// use the same transaction and communication ids: so do clones of one snapshot.
    ///
    /// # Errors
    /// [`VfError`].
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn start_clone(
        &mut self,
        host: HostId,
        vf: VfId,
        secret: impl Into<Secret>,
    ) -> Result<(), VfError> {
        let now = self.now;
        let at = host.vf(vf);
        let mut hca = self
            .adapters
            .function(self.hosts[host.0].node(), at.function)?;
        let pf = &mut pf_of(&mut self.hosts[host.0]).host;
        if let Some(before) = pf.consumer_mut(vf) {
            let guest = before.downcast_mut::<Software>();
            guest.ok_or(VfError::InUse(vf))?.close(&mut hca);
            pf.take(vf);
        }
        pf.place(vf, Box::new(start_guest(now, &mut hca, secret.into())?))?;
        self.wake(at);
        Ok(())
    }

    /// Resets a VF. Its guest's software is told, and does nothing any more until
    /// [`World::start_guest`].
    ///
    /// # Errors
    /// [`PfError`].
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn reset_vf(&mut self, host: HostId, vf: VfId) -> Result<(), PfError> {
        let now = self.now;
        self.with_pf(host, |pf, hca| pf.host.context_mut().reset_vf(now, hca, vf))
    }

    /// Removes a VF with its guest. Gives the memory that it reached.
    ///
    /// # Errors
    /// [`PfError`].
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn remove_vf(&mut self, host: HostId, vf: VfId) -> Result<Box<dyn AddressSpace>, PfError> {
        let now = self.now;
        let memory = self.with_pf(host, |pf, hca| {
            let memory = pf.host.context_mut().remove_vf(now, hca, vf)?;
            pf.host.take(vf);
            pf.forget(vf);
            Ok(memory)
        })?;
        self.alarms.set(host.vf(vf), None);
        self.held.remove(&host.vf(vf));
        Ok(memory)
    }

    /// Gives a VF another P_Key table on a port; see [`PfContext::map_pkeys`].
    ///
    /// # Errors
    /// [`PfError`].
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn map_pkeys(
        &mut self,
        host: HostId,
        vf: VfId,
        port: PortNum,
        table: &[Option<VfPKeyEntry>],
    ) -> Result<(), PfError> {
        self.with_pf(host, |pf, hca| {
            pf.host.context_mut().map_pkeys(hca, vf, port, table)
        })
    }

    /// Gives a VF another rate, queue and weight on a port; see [`PfContext::set_egress_limit`].
    ///
    /// # Errors
    /// [`PfError`].
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn set_egress_limit(
        &mut self,
        host: HostId,
        vf: VfId,
        port: PortNum,
        limit: EgressLimit,
    ) -> Result<(), PfError> {
        let now = self.now;
        self.with_pf(host, |pf, hca| {
            let context = pf.host.context_mut();
            context.set_egress_limit(now, hca, vf, port, limit)
        })
    }

    /// Has a host's PF context give back what its VFs have at the SA; see [`PfContext::shut_down`].
    ///
    /// # Errors
    /// [`PfError`].
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn shut_down(&mut self, host: HostId) -> Result<(), PfError> {
        let now = self.now;
        self.with_pf(host, |pf, hca| pf.host.context_mut().shut_down(now, hca))
    }

    /// A host's PF context.
    ///
    /// # Panics
    /// See [`World::add_vf`].
    #[must_use]
    pub fn context(&self, host: HostId) -> &PfContext {
        self.hosts[host.0].context().expect(NO_PF)
    }

    /// A host's PF context, to be used. What it wants to send leaves with the next poll.
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn context_mut(&mut self, host: HostId) -> &mut PfContext {
        self.wake(host.pf());
        pf_of(&mut self.hosts[host.0]).host.context_mut()
    }

    /// What happened next to the VFs of a host, and when: [`PfEvent::VfPort`] and
    /// [`PfEvent::WishRefused`]. Of many that nobody takes the last few thousand are kept.
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn poll_vf_news(&mut self, host: HostId) -> Option<(Instant, PfEvent)> {
        pf_of(&mut self.hosts[host.0]).poll_news()
    }

    fn with_pf<T>(
        &mut self,
        host: HostId,
        call: impl FnOnce(&mut SharedHost, &mut dyn FunctionManager) -> Result<T, PfError>,
    ) -> Result<T, PfError> {
        self.wake(host.pf());
        let host = &mut self.hosts[host.0];
        let mut hca = self.adapters.function(host.node(), FunctionId::PF)?;
        call(pf_of(host), &mut *hca)
    }
}

const NO_PF: &str = "the host's adapter is not shared";

fn pf_of(host: &mut Host) -> &mut SharedHost {
    host.pf_mut().expect(NO_PF)
}
