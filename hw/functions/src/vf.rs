//! A virtual function: its objects, and its view of the ports.

use std::collections::{BTreeMap, BTreeSet};

use hca_api::{
    AddressSpace, AvHandle, HcaError, LKey, MrHandle, MrKeys, MrKind, MrSpec, MwHandle, QpHandle,
    RKey, ResourceCounts, SpecialQp, SrqHandle, VirtualPort,
};
use ib_vtime::{Secret, SecretNumbers};
use ib_wire::{Gid, Guid, Lid, PKeyIndex, PortNum};

use crate::memory::VfMemory;
use crate::pair::Pair;
use crate::pulled::PulledQueues;
use crate::regions::Region;
use crate::side::{FIRST_END, Side};

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
    pub(crate) memory: VfMemory,
    pub(crate) side: Side,
    /// Its queue pairs that are the adapter's.
    pub(crate) pairs: BTreeMap<QpHandle, Pair>,
    pub(crate) srqs: BTreeSet<SrqHandle>,
    /// Queues of receives of these whose requests are in its memory.
    pub(crate) pulled: PulledQueues,
    pub(crate) windows: BTreeSet<MwHandle>,
    pub(crate) avs: BTreeSet<AvHandle>,
    pub(crate) attachments: BTreeSet<(QpHandle, Gid, Lid)>,
    random: SecretNumbers,
}

impl Vf {
    pub(crate) fn new(
        (node_guid, quota): (Guid, ResourceCounts),
        memory: VfMemory,
        ports: u8,
        secret: Secret,
    ) -> Self {
        Self {
            node_guid,
            quota,
            ports: (0..ports).map(|_| VfPort::default()).collect(),
            memory,
            side: Side::new(FIRST_END),
            pairs: BTreeMap::new(),
            srqs: BTreeSet::new(),
            pulled: PulledQueues::default(),
            windows: BTreeSet::new(),
            avs: BTreeSet::new(),
            attachments: BTreeSet::new(),
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

    /// Forgets everything that the function has; nothing completes. Ports, tables and memory stay.
    pub(crate) fn reset(&mut self) {
        let is_stirred = self.side.is_stirred;
        self.side = Side::new(FIRST_END);
        self.pairs.clear();
        self.srqs.clear();
        self.windows.clear();
        self.avs.clear();
        self.attachments.clear();
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
            qps: count(self.side.ends.len() + self.pairs.len()),
            mrs: count(self.side.regions.len()),
            avs: count(self.avs.len()),
            srqs: count(self.srqs.len()),
            mws: count(self.windows.len()),
            attachments: count(self.attachments.len()),
        }
    }

    /// Checks a region to be registered.
    pub(crate) fn describe(&self, spec: &MrSpec<'_>) -> Result<Region, HcaError> {
        if !self.side.pds.contains_key(&spec.pd) {
            return Err(HcaError::InvalidHandle);
        }
        if spec
            .key
            .is_some_and(|key| self.side.regions.contains_key(key))
        {
            return Err(HcaError::InvalidParameter);
        }
        let region = Region::new(spec)?;
        if !matches!(spec.kind, MrKind::WholeSpace) {
            // The bytes between the ends are checked on use.
            for addr in region.ends() {
                self.memory.read(addr, &mut [0])?;
            }
        }
        Ok(region)
    }

    /// Adds a region, to which both keys belong.
    pub(crate) fn insert_region(
        &mut self,
        handle: MrHandle,
        (lkey, rkey): (LKey, RKey),
        region: Region,
    ) -> Result<MrKeys, HcaError> {
        self.side.hold_pd(region.pd)?;
        self.side.regions.insert(handle, lkey.0, region);
        Ok(MrKeys { handle, lkey, rkey })
    }

    /// Registers memory that the adapter does not know.
    pub(crate) fn register(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        let region = self.describe(spec)?;
        let key = spec.key.unwrap_or_else(|| self.draw_key());
        let handle = MrHandle(self.side.draw_handle()?);
        self.insert_region(handle, (LKey(key), RKey(key)), region)
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
