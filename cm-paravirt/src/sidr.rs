//! Which VF a SIDR_REQ without a GRH is for.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use ib_wire::cm::CmSidrReq;
use ib_wire::{PKey, ServiceId};
use vf_tunnel::VfId;

/// A range of service ids that a VF serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrService {
    /// The service id.
    pub service_id: ServiceId,
    /// The bits of it that count.
    pub mask: u64,
    /// The partition, if only one is meant; membership does not matter.
    pub pkey: Option<PKey>,
    /// The VF that serves it.
    pub vf: VfId,
}

impl SidrService {
    fn serves(&self, req: &CmSidrReq) -> bool {
        (self.service_id.get() ^ req.service_id.get()) & self.mask == 0
            && self.pkey.is_none_or(|pkey| pkey.base() == req.pkey.base())
    }
}

/// The operator's table of who serves what, for requests that do not name their destination by GID.
///
/// A request of the IP communication management service names an IP address first of all; the
/// service id decides when no VF has that address. What neither names is the PF's.
#[derive(Clone, Debug, Default)]
pub struct SidrTable {
    addresses: BTreeMap<IpAddr, VfId>,
    services: Vec<SidrService>,
}

/// Bits 63..16 of a service id of the IP CM service without its transport protocol
/// (IBA annex A11.2).
const IP_CM_PREFIX: u64 = 0x0000_0000_0100_0000;
const IP_CM_MASK: u64 = 0xffff_ffff_ff00_0000;
/// Bits 63..16 of a service id of rdma_cm's IPoIB port space (the kernel's `RDMA_PS_IPOIB`).
const IPOIB_PREFIX: u64 = 0x0002_0000;
const IPOIB_MASK: u64 = 0xffff_ffff_ffff_0000;

impl SidrTable {
    /// An empty table: every request without a GRH is the PF's.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            addresses: BTreeMap::new(),
            services: Vec::new(),
        }
    }

    /// Gives an IP address to a VF.
    pub fn assign_address(&mut self, address: IpAddr, vf: VfId) {
        self.addresses.insert(address, vf);
    }

    /// Registers a service. Of several that fit a request, the one registered first has it.
    pub fn register(&mut self, service: SidrService) {
        self.services.push(service);
    }

    /// Forgets everything that was assigned to a VF.
    pub fn forget(&mut self, vf: VfId) {
        self.addresses.retain(|_, owner| *owner != vf);
        self.services.retain(|service| service.vf != vf);
    }

    pub(crate) fn target(&self, req: &CmSidrReq) -> Option<VfId> {
        destination_address(req)
            .and_then(|address| self.addresses.get(&address).copied())
            .or_else(|| {
                let service = self.services.iter().find(|service| service.serves(req));
                service.map(|service| service.vf)
            })
    }
}

/// The destination in the private data of a request of the IP CM service (IBA annex A11.4): IP
/// version in bits 7..4 of byte 1, destination in bytes 20 to 35, an IPv4 address in the last four.
fn destination_address(req: &CmSidrReq) -> Option<IpAddr> {
    let id = req.service_id.get();
    if id & IP_CM_MASK != IP_CM_PREFIX && id & IPOIB_MASK != IPOIB_PREFIX {
        return None;
    }
    let destination: [u8; 16] = *req.private_data.get(20..)?.first_chunk()?;
    match req.private_data[1] >> 4 {
        4 => Some(IpAddr::V4(Ipv4Addr::from(*destination.last_chunk()?))),
        6 => Some(IpAddr::V6(Ipv6Addr::from(destination))),
        _ => None,
    }
}
