//! A device of libibverbs with its queue pairs.

use std::collections::BTreeMap;
use std::sync::Arc;

use hca_api::{AddressVector, DeviceCaps, HcaError, Limits, PdHandle, QpHandle};

use crate::attributes::{PORT, host_address, refused};
use crate::memory::Objects;
use crate::pair::Pair;
use crate::shared_receives::SharedReceives;
use crate::sys::abi::DeviceAttr;
use crate::sys::{AddressHandle, Device, ProtectionDomain};

/// Files besides the ones of umad: of completions, of asynchronous events, and of the thread for calls that take long.
pub(crate) const EVENT_FILES: usize = 3;

/// Address handles that are kept for later datagrams.
const KEPT_ADDRESSES: usize = 1024;

/// Bits of `enum ibv_device_cap_flags` with the abilities that they stand for.
const ABILITIES: [(u32, DeviceCaps); 2] = [
    (1 << 12, DeviceCaps::RC_RNR_NAK),
    (1 << 10, DeviceCaps::PORT_ACTIVE_EVENT),
];

/// The data of a port: a device of libibverbs with its queue pairs.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) device: Arc<Device>,
    attributes: DeviceAttr,
    /// The port of the host.
    pub(crate) port: u8,
    pub(crate) pairs: BTreeMap<QpHandle, Pair>,
    /// Queue pairs by their numbers.
    pub(crate) numbers: BTreeMap<u32, QpHandle>,
    pub(crate) srqs: Objects<SharedReceives>,
    addresses: BTreeMap<(PdHandle, AddressVector), Arc<AddressHandle>>,
    /// There may be news of completions, asynchronous events, and outcomes of registrations.
    pub(crate) ready: [bool; EVENT_FILES],
}

impl Data {
    pub(crate) fn new(device: Arc<Device>, attributes: DeviceAttr, port: u8) -> Self {
        Self {
            device,
            attributes,
            port,
            pairs: BTreeMap::new(),
            numbers: BTreeMap::new(),
            srqs: Objects::default(),
            addresses: BTreeMap::new(),
            ready: [true; EVENT_FILES],
        }
    }

    /// Returns the abilities of the device that queue pairs have.
    pub(crate) fn caps(&self) -> DeviceCaps {
        let mut caps = DeviceCaps::RC | DeviceCaps::UC | DeviceCaps::UD;
        caps.set(DeviceCaps::SRQ, self.attributes.max_srq != 0);
        caps.set(DeviceCaps::ATOMIC, self.attributes.atomic_cap != 0);
        for (bit, ability) in ABILITIES {
            caps.set(ability, self.attributes.device_cap_flags & bit != 0);
        }
        caps
    }

    /// Returns bounds of the device, where they are below the bounds of this crate.
    pub(crate) fn limits(&self, own: Limits) -> Limits {
        let found = &self.attributes;
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let few = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
        Limits {
            max_qp: count(found.max_qp),
            max_qp_wr: own.max_qp_wr.min(count(found.max_qp_wr)),
            max_sge: own.max_sge.min(count(found.max_sge)),
            max_cq: own.max_cq.min(count(found.max_cq)),
            max_cqe: own.max_cqe.min(count(found.max_cqe)),
            max_srq: own.max_pd.min(count(found.max_srq)),
            max_srq_wr: own.max_qp_wr.min(count(found.max_srq_wr)),
            max_mr: own.max_mr.min(count(found.max_mr)),
            max_mr_size: found.max_mr_size,
            max_pd: own.max_pd.min(count(found.max_pd)),
            max_qp_rd_atom: few(found.max_qp_rd_atom),
            max_qp_init_rd_atom: few(found.max_qp_init_rd_atom),
            max_mcast_grp: count(found.max_mcast_grp),
            max_mcast_qp_attach: count(found.max_mcast_qp_attach),
            ..own
        }
    }

    pub(crate) fn pair_mut(&mut self, qp: QpHandle) -> Result<&mut Pair, HcaError> {
        self.pairs.get_mut(&qp).ok_or(HcaError::InvalidHandle)
    }

    /// Forgets the addresses that are kept for a protection domain.
    pub(crate) fn forget_addresses(&mut self, pd: PdHandle) {
        self.addresses.retain(|(owner, _), _| *owner != pd);
    }

    /// Forgets all addresses that are kept.
    pub(crate) fn forget_all_addresses(&mut self) {
        self.addresses.clear();
    }

    /// Returns an address handle of the host in a protection domain.
    pub(crate) fn address(
        &mut self,
        (pd, domain): (PdHandle, &Arc<ProtectionDomain>),
        vector: &AddressVector,
    ) -> Result<Arc<AddressHandle>, HcaError> {
        if let Some(kept) = self.addresses.get(&(pd, *vector)) {
            return Ok(kept.clone());
        }
        if vector.port != PORT {
            return Err(HcaError::InvalidPort);
        }
        let handle = AddressHandle::new(domain, host_address(self.port, vector)?);
        let handle = Arc::new(handle.map_err(|error| refused(&error))?);
        if self.addresses.len() >= KEPT_ADDRESSES {
            self.addresses.clear();
        }
        self.addresses.insert((pd, *vector), handle.clone());
        Ok(handle)
    }
}
