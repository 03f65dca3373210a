//! Which VF a SIDR_REQ without a GRH is for.
//!
//! Within a subnet requests come without a GRH (Linux adds one only to a path with a hop limit above
//! 0), and the LID is everybody's. What is left to tell the VFs apart is what the request asks for.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use ib_wire::cm::CmSidrReq;
use ib_wire::{Gid, Guid, PKey, ServiceId, SubnetPrefix};
use thiserror::Error;
use vf_tunnel::VfId;

/// What SIDR requests can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SidrTarget {
    /// The IP address that a request of the IP communication management service is for.
    Address(IpAddr),
    /// Services: all whose ids begin with as many bits as that of this one.
    Service {
        /// The service id.
        id: ServiceId,
        /// The bits that count, from the highest on; at most 64.
        bits: u8,
    },
}

impl SidrTarget {
    fn fits(self, req: &CmSidrReq, destination: Option<IpAddr>) -> bool {
        match self {
            Self::Address(address) => destination == Some(address),
            Self::Service { id, bits } => {
                let differing = id.get() ^ req.service_id.get();
                differing.leading_zeros() >= u32::from(bits.min(64))
            }
        }
    }

    /// An address tells more than a service, and a service more than several.
    const fn weight(self) -> u8 {
        match self {
            Self::Address(_) => u8::MAX,
            Self::Service { bits, .. } => bits,
        }
    }
}

/// Something that a VF has or serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrEntry {
    /// What requests name.
    pub target: SidrTarget,
    /// The partition, if only one is meant; membership does not matter. Two tenants may have one
    /// address in different partitions.
    pub pkey: Option<PKey>,
}

impl SidrEntry {
    fn serves(&self, req: &CmSidrReq, destination: Option<IpAddr>) -> bool {
        self.target.fits(req, destination)
            && self.pkey.is_none_or(|pkey| pkey.base() == req.pkey.base())
    }

    fn excludes(&self, other: &Self) -> bool {
        let bases = [self.pkey, other.pkey].map(|pkey| pkey.map(PKey::base));
        self.target == other.target && bases[0] == bases[1]
    }
}

impl fmt::Display for SidrEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target {
            SidrTarget::Address(address) => write!(f, "{address}")?,
            SidrTarget::Service { id, bits } => {
                write!(f, "0x{:016x}", id.get())?;
                if bits < 64 {
                    write!(f, "/{bits}")?;
                }
            }
        }
        match self.pkey {
            Some(pkey) => write!(f, "@{pkey}"),
            None => Ok(()),
        }
    }
}

/// A text that is no [`SidrEntry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "say an IP address, or a service id as 0x and its digits, with /BITS if only so many of its first bits count; and \
     @0x8001 behind it for one partition"
)]
pub struct NoSidrEntry;

impl FromStr for SidrEntry {
    type Err = NoSidrEntry;

    fn from_str(text: &str) -> Result<Self, NoSidrEntry> {
        let (target, pkey) = match text.split_once('@') {
            Some((target, pkey)) => (target, Some(pkey_of(pkey).ok_or(NoSidrEntry)?)),
            None => (text, None),
        };
        let target = match target.parse() {
            Ok(address) => SidrTarget::Address(address),
            Err(_) => service_of(target).ok_or(NoSidrEntry)?,
        };
        Ok(Self { target, pkey })
    }
}

fn pkey_of(text: &str) -> Option<PKey> {
    let pkey = u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
    Some(PKey::new(pkey)).filter(|pkey| pkey.is_valid())
}

fn service_of(text: &str) -> Option<SidrTarget> {
    let (id, bits) = text.split_once('/').unwrap_or((text, "64"));
    let id = u64::from_str_radix(id.strip_prefix("0x")?, 16).ok()?;
    let bits = bits.parse().ok().filter(|bits| (1..=64).contains(bits))?;
    Some(SidrTarget::Service {
        id: ServiceId::new(id),
        bits,
    })
}

/// An entry that is another VF's already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrTaken {
    /// The entry.
    pub entry: SidrEntry,
    /// The VF that has it.
    pub vf: VfId,
}

/// The operator's table of who has or serves what, for requests that do not name their destination by
/// GID.
///
/// A request of the IP communication management service names an IP address first of all; the
/// service id decides when no VF has that address. What neither names is the PF's.
///
/// Nothing in it is learnt from what VFs send: whoever claims an address in a message would get his
/// siblings' requests. What needs no claim is known without the table: the IPv6 addresses that hosts
/// form from a port's GUID.
#[derive(Clone, Debug, Default)]
pub struct SidrTable {
    entries: Vec<(VfId, SidrEntry)>,
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
            entries: Vec::new(),
        }
    }

    /// Gives a VF these entries instead of those that it had.
    ///
    /// # Errors
    /// [`SidrTaken`]; nothing has changed then.
    pub fn set(&mut self, vf: VfId, entries: &[SidrEntry]) -> Result<(), SidrTaken> {
        for &entry in entries {
            let taken = self
                .entries
                .iter()
                .find(|(other, held)| *other != vf && held.excludes(&entry));
            if let Some(&(vf, _)) = taken {
                return Err(SidrTaken { entry, vf });
            }
        }
        self.entries.retain(|(other, _)| *other != vf);
        self.entries
            .extend(entries.iter().map(|&entry| (vf, entry)));
        self.entries.sort_by_key(|(vf, _)| *vf);
        Ok(())
    }

    /// All entries, those of a VF in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = (VfId, SidrEntry)> {
        self.entries.iter().copied()
    }

    /// The VF whose entry tells most about a request: an address rather than a service, of services the
    /// one with most bits, one of the request's partition rather than one of any.
    pub(crate) fn target(&self, req: &CmSidrReq) -> Option<VfId> {
        let destination = destination_address(req);
        self.entries
            .iter()
            .filter(|(_, entry)| entry.serves(req, destination))
            .max_by_key(|(_, entry)| (entry.target.weight(), entry.pkey.is_some()))
            .map(|(vf, _)| *vf)
    }
}

/// The GIDs of the ports of which hosts form the address that a request is for: the interface identifier of
/// an IPv6 address is a port's GUID with the universal bit set (RFC 4391 8), which the GUID itself may have
/// or not.
pub(crate) fn gids_of_destination(req: &CmSidrReq) -> Option<[Gid; 2]> {
    const UNIVERSAL: u64 = 0x02 << 56;

    let Some(IpAddr::V6(address)) = destination_address(req) else {
        return None;
    };
    let identifier = u64::from_be_bytes(*address.octets().last_chunk()?);
    let guids = [identifier & !UNIVERSAL, identifier];
    (identifier & UNIVERSAL != 0)
        .then(|| guids.map(|guid| Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(guid))))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_as_it_is_written() {
        for text in [
            "192.0.2.7",
            "192.0.2.7@0x8001",
            "fe80::202:c903:1:2",
            "0x0000000001111c06",
            "0x0000000001110000/48@0xffff",
        ] {
            let entry: SidrEntry = text.parse().expect("an entry");
            assert_eq!(entry.to_string(), text);
        }
        for text in [
            "",
            "192.0.2",
            "7174",
            "0x",
            "0x1/0",
            "0x1/65",
            "0x1/",
            "192.0.2.7/24",
            "0x1@",
            "0x1@0",
            "0x1@0x8000",
            "0x1@0x10001",
            "@0x8001",
        ] {
            assert_eq!(text.parse::<SidrEntry>(), Err(NoSidrEntry), "{text}");
        }
    }
}
