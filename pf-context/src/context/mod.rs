//! The PF context: the mux of each port, bound to queue pairs.
//!
//! A [`PfContext`] owns the special QPs of its adapter's ports, and a tunnel QP for each VF, port and
//! special QP that the VF may use. Its own software (SA client, CM, MAD agent) shares QP1 with the
//! VFs, as a tenant of the mux.
//!
//! Like [`ib_endpoint::EndPort`] it is sans-I/O: the owner keeps the HCA and lends it to each call,
//! passes on the HCA's events with [`PfContext::handle_hca_event`], calls [`PfContext::poll`] then and
//! when [`PfContext::poll_timeout`] says so, and pulls what happened from [`PfContext::poll_event`].

mod batch;
mod config;
mod event;
mod inspect;
mod port;
mod port_guids;
mod port_output;
mod port_vfs;
mod tunnel;

use std::collections::BTreeMap;

use cm_paravirt::SidrEntry;
use hca_api::{AddressSpace, FunctionManager, FunctionSpec, HcaEvent, ResourceCounts};
use ib_vtime::Instant;
use ib_wire::PortNum;
use mad_mux::policy::Rights;
use vf_tunnel::{PhysicalPKeyIndex, VfId};

use crate::config::{EgressLimit, VfPKeyEntry};

pub use config::{Depths, GuidSource, PfConfig, PfError, VfPortSpec, VfSpec};
pub use event::PfEvent;
pub use port::PfPort;

/// What is known of a VF beyond its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct VfRecord {
    quota: ResourceCounts,
}

/// The PF's side of an adapter. See the [module](self).
#[derive(Debug)]
pub struct PfContext {
    ports: Vec<PfPort>,
    vfs: BTreeMap<VfId, VfRecord>,
    budget: usize,
}

impl PfContext {
    /// Takes the special QPs of all ports and starts the PF's own software on them.
    ///
    /// # Errors
    /// [`PfError`]; nothing is left behind then.
    pub fn open(
        now: Instant,
        hca: &mut dyn FunctionManager,
        config: &PfConfig,
    ) -> Result<Self, PfError> {
        let mut secrets = config.secret.numbers();
        let mut ports: Vec<PfPort> = Vec::new();
        for number in 1..=hca.attributes().num_ports {
            match PfPort::open(now, hca, PortNum(number), secrets.secret(), config) {
                Ok(port) => ports.push(port),
                Err(error) => {
                    for port in ports {
                        port.close(hca);
                    }
                    return Err(error);
                }
            }
        }
        if let Some((first, others)) = ports.split_first_mut() {
            for port in others {
                let number = port.own.port();
                port.mux.join_adapter(&first.mux, number);
            }
        }
        Ok(Self {
            ports,
            vfs: BTreeMap::new(),
            budget: config.budget,
        })
    }

    /// Makes a VF: its function, and on each port its tunnels and its place in the mux.
    ///
    /// # Errors
    /// [`PfError`]; nothing is left behind then, and the number can be used again.
    pub fn add_vf(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
        vf: VfId,
        spec: VfSpec,
    ) -> Result<(), PfError> {
        let VfSpec {
            node_guid,
            memory,
            quota,
            ports,
        } = spec;
        hca.create_function(FunctionSpec {
            id: vf.into(),
            node_guid,
            memory,
            quota,
        })?;
        let of_port = |at: usize| ports.get(at).cloned().unwrap_or_default();
        for at in 0..self.ports.len() {
            let added = self.ports[at].add_vf(now, hca, vf, node_guid, &of_port(at));
            if let Err(error) = added {
                for port in &mut self.ports[..at] {
                    port.remove_vf(now, hca, vf);
                }
                hca.destroy_function(vf.into())?;
                return Err(error);
            }
        }
        self.vfs.insert(vf, VfRecord { quota });
        Ok(())
    }

    /// Ends a VF: all it had is released, and its memory given back.
    ///
    /// # Errors
    /// [`PfError::NoVf`], or what the HCA says.
    pub fn remove_vf(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
        vf: VfId,
    ) -> Result<Box<dyn AddressSpace>, PfError> {
        self.vfs.remove(&vf).ok_or(PfError::NoVf(vf))?;
        for port in &mut self.ports {
            port.remove_vf(now, hca, vf);
        }
        Ok(hca.destroy_function(vf.into())?)
    }

    /// Resets a VF (a function-level reset, or its guest died): all that it owned on the adapter is
    /// destroyed, and all it had under way ends. It can begin anew at once.
    ///
    /// # Errors
    /// [`PfError::NoVf`], or what the HCA says.
    pub fn reset_vf(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
        vf: VfId,
    ) -> Result<(), PfError> {
        self.check(vf)?;
        hca.reset_function(vf.into())?;
        for port in &mut self.ports {
            port.reset_vf(now, hca, vf);
        }
        Ok(())
    }

    /// Wants a VF's GUID on a port from elsewhere, or another one, from now on.
    ///
    /// # Errors
    /// [`PfError::NoVf`]. A wish that cannot come true is told by [`PfEvent::WishRefused`].
    pub fn set_guid_source(
        &mut self,
        now: Instant,
        vf: VfId,
        port: PortNum,
        source: GuidSource,
    ) -> Result<(), PfError> {
        self.check(vf)?;
        if let Some(port) = self.port_mut(port) {
            port.set_guid_source(now, vf, source);
        }
        Ok(())
    }

    /// Begins to shut down: VFs are reset, and their GUIDs and memberships given back to the SA. Go on
    /// to poll until [`Self::is_quiet`], as long as there is time for that, and then [`Self::close`].
    ///
    /// # Errors
    /// What the HCA says of the first VF that could not be reset.
    pub fn shut_down(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
    ) -> Result<(), PfError> {
        let vfs: Vec<VfId> = self.vfs().collect();
        let reset = vfs.into_iter().map(|vf| self.reset_vf(now, hca, vf));
        let reset = reset.fold(Ok(()), Result::and);
        for port in &mut self.ports {
            port.shut_down(now);
        }
        reset
    }

    /// Whether nothing of the VFs' is left at the SA that is still to be given back.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.ports.iter().all(PfPort::is_quiet)
    }

    /// Opens or shuts one port of a VF by the administrator's will. VFs start with their ports open.
    ///
    /// # Errors
    /// [`PfError::NoVf`].
    pub fn set_admin_up(&mut self, vf: VfId, port: PortNum, up: bool) -> Result<(), PfError> {
        self.check(vf)?;
        if let Some(port) = self.port_mut(port) {
            port.set_admin(vf, up);
        }
        Ok(())
    }

    /// Lets a VF do on a port what `rights` say and no more, from now on; but for QP0, which it has or
    /// has not from its next reset on: software that runs in the VF has looked already whether it may.
    /// Without [`PfConfig::smi`] no VF has it.
    ///
    /// # Errors
    /// [`PfError::NoVf`].
    pub fn set_rights(&mut self, vf: VfId, port: PortNum, rights: Rights) -> Result<(), PfError> {
        self.check(vf)?;
        if let Some(port) = self.port_mut(port) {
            if let Some(own) = port.vf_mut(vf) {
                own.smi_permitted = rights.smi;
            }
            port.mux.set_rights(vf, rights);
        }
        Ok(())
    }

    /// Gives a VF another P_Key table on a port, whose length stays: entries beyond its end are passed
    /// over, and those that are not given become empty.
    ///
    /// # Errors
    /// [`PfError::NoVf`]; [`PfError::PKeyIndex`], and nothing has changed then.
    pub fn map_pkeys(
        &mut self,
        hca: &mut dyn FunctionManager,
        vf: VfId,
        port: PortNum,
        table: &[Option<VfPKeyEntry>],
    ) -> Result<(), PfError> {
        self.check(vf)?;
        if self.port_mut(port).is_none() {
            return Ok(());
        }
        let places = hca.query_port(port)?.pkey_table_len;
        for entry in table.iter().flatten() {
            if let VfPKeyEntry::Index(PhysicalPKeyIndex(index)) = *entry
                && index.0 >= places
            {
                return Err(PfError::PKeyIndex { index, places });
            }
        }
        if let Some(port) = self.port_mut(port) {
            port.map_pkeys(hca, vf, table);
        }
        Ok(())
    }

    /// Gives a VF another rate, queue and weight on a port, from now on.
    ///
    /// # Errors
    /// [`PfError::NoVf`].
    pub fn set_egress_limit(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
        vf: VfId,
        port: PortNum,
        limit: EgressLimit,
    ) -> Result<(), PfError> {
        self.check(vf)?;
        if let Some(own) = self.port_mut(port) {
            own.mux.set_egress_limit(now, vf, limit);
            own.carry_out(hca);
            hca.set_egress_weight(vf.into(), port, limit.weight)?;
        }
        Ok(())
    }

    /// Gives a VF these addresses and services, at which it gets SIDR requests that come without a GRH,
    /// instead of those that it had.
    ///
    /// # Errors
    /// [`PfError::NoVf`], or [`PfError::Sidr`]; nothing has changed then.
    pub fn set_sidr(&mut self, vf: VfId, entries: &[SidrEntry]) -> Result<(), PfError> {
        self.check(vf)?;
        // The ports have one table.
        match self.ports.first_mut() {
            Some(port) => Ok(port.mux.set_sidr(vf, entries)?),
            None => Ok(()),
        }
    }

    fn check(&self, vf: VfId) -> Result<(), PfError> {
        if self.vfs.contains_key(&vf) {
            Ok(())
        } else {
            Err(PfError::NoVf(vf))
        }
    }

    /// The VFs, in the order of their numbers.
    pub fn vfs(&self) -> impl Iterator<Item = VfId> {
        self.vfs.keys().copied()
    }

    /// What a VF owns on the adapter, and what it may own.
    ///
    /// # Errors
    /// [`PfError::NoVf`], or what the HCA says.
    pub fn resources(
        &self,
        hca: &dyn FunctionManager,
        vf: VfId,
    ) -> Result<(ResourceCounts, ResourceCounts), PfError> {
        let record = self.vfs.get(&vf).ok_or(PfError::NoVf(vf))?;
        Ok((hca.resources(vf.into())?, record.quota))
    }

    /// Takes an event of the HCA.
    pub fn handle_hca_event(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
        event: &HcaEvent,
    ) {
        for port in &mut self.ports {
            port.handle_hca_event(now, hca, event);
        }
    }

    /// Receives, runs timers, and sends, within the budget. Whether there may be more to do at once;
    /// if not, the HCA raises [`HcaEvent::Completion`] when there is.
    pub fn poll(&mut self, now: Instant, hca: &mut dyn FunctionManager) -> bool {
        let budget = self.budget;
        let polled = self
            .ports
            .iter_mut()
            .map(|port| port.poll(now, hca, budget));
        polled.fold(false, |busy, more| busy | more)
    }

    /// When to call [`Self::poll`] at the latest; a time that has passed means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.ports.iter().filter_map(PfPort::poll_timeout).min()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<PfEvent> {
        self.ports.iter_mut().find_map(PfPort::poll_event)
    }

    /// The ports, in their order.
    #[must_use]
    pub fn ports(&self) -> &[PfPort] {
        &self.ports
    }

    /// A port, to be used; `None` if the adapter has none of this number.
    pub fn port_mut(&mut self, port: PortNum) -> Option<&mut PfPort> {
        self.ports.get_mut(port.index().checked_sub(1)?)
    }

    /// Gives everything up: VFs, tunnels, special QPs. What was under way ends, and nobody is told.
    pub fn close(mut self, now: Instant, hca: &mut dyn FunctionManager) {
        for vf in self.vfs().collect::<Vec<_>>() {
            // A function that is gone already leaves nothing to give back.
            let _ = self.remove_vf(now, hca, vf);
        }
        for port in self.ports {
            port.close(hca);
        }
    }
}
