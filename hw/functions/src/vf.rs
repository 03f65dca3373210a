//! A virtual function: its objects, and its view of the ports.

use hca_api::{
    AddressSpace, FunctionSpec, HcaError, MrKeys, MrSpec, QpHandle, ResourceCounts, SpecialQp,
    VirtualPort,
};
use hca_api::{LKey, MrHandle, RKey};
use ib_vtime::{Secret, SecretNumbers};
use ib_wire::{Guid, PKeyIndex, PortNum};

use crate::gate::Gate;
use crate::regions::Region;
use crate::side::Side;

/// The part of a virtual function in a port.
#[derive(Debug, Default)]
pub(crate) struct VfPort {
    /// The view that the PF gives.
    pub(crate) view: VirtualPort,
    /// Bits of PortInfo:CapabilityMask that the consumer set.
    pub(crate) capabilities: u32,
    proxies: [Option<QpHandle>; 2],
    /// The PF's ends of its tunnels.
    tunnels: [Option<QpHandle>; 2],
}

impl VfPort {
    pub(crate) const fn special(&self, special: SpecialQp) -> Option<QpHandle> {
        self.proxies[special as usize]
    }

    pub(crate) const fn set_special(&mut self, special: SpecialQp, qp: Option<QpHandle>) {
        self.proxies[special as usize] = qp;
    }

    pub(crate) const fn tunnel(&self, special: SpecialQp) -> Option<QpHandle> {
        self.tunnels[special as usize]
    }

    pub(crate) const fn set_tunnel(&mut self, special: SpecialQp, qp: Option<QpHandle>) {
        self.tunnels[special as usize] = qp;
    }

    /// Returns the physical index of one of the function's P_Key indices; `None` for an index beyond its table, or of an invalid
    /// key.
    pub(crate) fn physical_pkey(&self, index: PKeyIndex) -> Option<PKeyIndex> {
        *self.view.pkeys.get(usize::from(index.0))?
    }
}

/// A virtual function.
#[derive(Debug)]
pub(crate) struct Vf {
    pub(crate) node_guid: Guid,
    pub(crate) quota: ResourceCounts,
    ports: Vec<VfPort>,
    pub(crate) gate: Gate,
    pub(crate) side: Side,
    random: SecretNumbers,
}

impl Vf {
    pub(crate) fn new(spec: FunctionSpec, ports: u8, secret: Secret) -> Self {
        Self {
            node_guid: spec.node_guid,
            quota: spec.quota,
            ports: (0..ports).map(|_| VfPort::default()).collect(),
            gate: Gate::new(spec.memory),
            side: Side::default(),
            random: secret.numbers(),
        }
    }

    pub(crate) fn port(&self, port: PortNum) -> Result<&VfPort, HcaError> {
        let index = port.index().checked_sub(1);
        let port = index.and_then(|index| self.ports.get(index));
        port.ok_or(HcaError::InvalidPort)
    }

    pub(crate) fn port_mut(&mut self, port: PortNum) -> Result<&mut VfPort, HcaError> {
        let index = port.index().checked_sub(1);
        let port = index.and_then(|index| self.ports.get_mut(index));
        port.ok_or(HcaError::InvalidPort)
    }

    /// Destroys everything that the function has; nothing completes. Ports, tables and memory stay.
    pub(crate) fn reset(&mut self) {
        let is_stirred = self.side.is_stirred;
        self.side = Side::default();
        self.side.is_stirred = is_stirred;
        self.side.events.reset();
        for port in &mut self.ports {
            port.proxies = [None; 2];
            port.capabilities = 0;
        }
    }

    pub(crate) fn resources(&self) -> ResourceCounts {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        ResourceCounts {
            pds: count(self.side.pds.len()),
            cqs: count(self.side.cqs.len()),
            qps: count(self.side.ends.len()),
            mrs: count(self.side.regions.len()),
            ..ResourceCounts::default()
        }
    }

    /// Registers memory. The local key is the remote one.
    pub(crate) fn register(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        if !self.side.pds.contains_key(&spec.pd) {
            return Err(HcaError::InvalidHandle);
        }
        let region = Region::new(spec)?;
        if !matches!(spec.kind, hca_api::MrKind::WholeSpace) {
            // What lies between the ends is checked on use.
            for addr in region.ends() {
                self.gate.read(addr, &mut [0])?;
            }
        }
        let key = match spec.key {
            Some(key) if self.side.regions.contains_key(key) => {
                return Err(HcaError::InvalidParameter);
            }
            Some(key) => key,
            None => self.draw_key(),
        };
        let handle = MrHandle(self.side.draw_handle()?);
        self.side.hold_pd(spec.pd)?;
        self.side.regions.insert(handle, key, region);
        Ok(MrKeys {
            handle,
            lkey: LKey(key),
            rkey: RKey(key),
        })
    }

    /// Draws a key that no region has. The quota keeps the table far below 2^32 entries.
    fn draw_key(&mut self) -> u32 {
        loop {
            let key = self.random.next_u32();
            if !self.side.regions.contains_key(key) {
                return key;
            }
        }
    }

    pub(crate) fn deregister(&mut self, mr: MrHandle) -> Result<(), HcaError> {
        let region = self.side.regions.remove(mr);
        let region = region.ok_or(HcaError::InvalidHandle)?;
        self.side.release_pd(region.pd);
        Ok(())
    }

    pub(crate) fn draw_secret(&mut self) -> Secret {
        self.random.secret()
    }
}
