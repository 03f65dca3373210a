//! Memory regions and windows: keys, rights, bounds and translation (IBA 10.6, 11.2.8).

mod access;
mod gate;
mod gathered;
mod in_place;
pub(super) mod registration;
mod window;

use core::ops::{Range, RangeInclusive};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hca_api::{
    AccessFlags, AddressSpace, Cause, DmaFault, HcaError, LKey, Limits, MrHandle, MrKeys, MrKind,
    MrSpec, MwHandle, PdHandle, QpHandle, RKey, Sge,
};
use ib_vtime::{Secret, SecretNumbers};
use slab::Slab;

pub(super) use self::access::RemoteRegion;
use self::gate::Gate;
pub(super) use self::gathered::{Gathered, Piece};
pub(super) use self::in_place::Arrived;
use self::window::Window;

/// Where the bytes of a region are.
#[derive(Clone, Debug)]
enum Backing {
    /// In one piece.
    Range { first: u64 },
    /// In pages of equal size.
    Pages {
        pages: Arc<Vec<u64>>,
        shift: u8,
        first_offset: u64,
    },
}

/// A memory region.
#[derive(Debug)]
struct Region {
    pd: PdHandle,
    access: AccessFlags,
    key: u32,
    /// Address, in the region's own count, of its first byte.
    base: u64,
    len: u64,
    /// `None` until a fast registration fills the region.
    backing: Option<Backing>,
    /// Of regions that fast registrations fill.
    refill: Option<Refill>,
    /// Generation: distinguishes registrations that use the same key.
    generation: u64,
    /// Windows that are bound to it. Until they are not the region stays as it is.
    windows: u32,
}

/// Limits of the registrations of a region.
#[derive(Clone, Copy, Debug)]
struct Refill {
    max_pages: usize,
    max_len: u64,
    /// Rights that a registration may give, and the right of peers to invalidate the key.
    rights: AccessFlags,
}

/// What a key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyOwner {
    Region(MrHandle),
    Window(MwHandle),
}

/// The memory of a function, and what is registered of it.
#[derive(Debug)]
pub(super) struct Memory {
    space: Gate,
    regions: Slab<Region>,
    windows: Slab<Window>,
    /// Windows of type 2 that are bound, by their queue pairs.
    windows_of_qps: BTreeSet<(QpHandle, MwHandle)>,
    keys: BTreeMap<u32, KeyOwner>,
    numbers: SecretNumbers,
    /// Registrations and bindings so far.
    generations: u64,
}

/// A work request named memory that its QP may not use (IBA 10.6.3, "local protection error").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProtectionFault(pub(super) Cause);

impl From<DmaFault> for ProtectionFault {
    fn from(_: DmaFault) -> Self {
        Self(Cause::NoMemory)
    }
}

/// Smallest page of a physical region: 4096 bytes.
const MIN_PAGE_SHIFT: u8 = 12;
/// Largest page of a physical region: 4 GiB.
const MAX_PAGE_SHIFT: u8 = 32;

impl Memory {
    pub(super) fn new(space: Box<dyn AddressSpace>, secret: Secret) -> Self {
        Self {
            space: Gate::new(space),
            regions: Slab::new(),
            windows: Slab::new(),
            windows_of_qps: BTreeSet::new(),
            keys: BTreeMap::new(),
            numbers: secret.numbers(),
            generations: 0,
        }
    }

    /// Draws a secret that reveals no key.
    pub(super) fn draw_secret(&mut self) -> Secret {
        self.numbers.secret()
    }

    pub(super) const fn space(&self) -> &dyn AddressSpace {
        &self.space
    }

    pub(super) const fn space_mut(&mut self) -> &mut dyn AddressSpace {
        &mut self.space
    }

    /// Replaces the memory, in which nothing is registered.
    pub(super) fn set_space(&mut self, space: Box<dyn AddressSpace>) {
        self.space.set_space(space);
    }

    /// Opens or closes the way to all of the memory. Whatever is registered stays.
    pub(super) const fn set_open(&mut self, open: bool) {
        self.space.set_open(open);
    }

    /// Forgets every registration; the memory itself stays.
    pub(super) fn reset(&mut self) {
        self.regions.clear();
        self.windows.clear();
        self.windows_of_qps.clear();
        self.keys.clear();
    }

    pub(super) fn into_space(self) -> Box<dyn AddressSpace> {
        self.space.into_space()
    }

    pub(super) fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// The protection domain of a region.
    pub(super) fn region_pd(&self, mr: MrHandle) -> Result<PdHandle, HcaError> {
        self.regions
            .get(mr.0 as usize)
            .map(|region| region.pd)
            .ok_or(HcaError::InvalidHandle)
    }

    /// Registers memory. The caller has checked the protection domain and the quota.
    pub(super) fn register(
        &mut self,
        spec: &MrSpec<'_>,
        limits: &Limits,
    ) -> Result<MrKeys, HcaError> {
        let mut region = self.describe(spec, limits)?;
        let slot = self.regions.vacant_key();
        let handle = MrHandle(index_u32(slot)?);
        region.key = self.claim_key(spec.key, KeyOwner::Region(handle))?;
        region.generation = self.next_generation();
        let keys = names(handle, region.key);
        self.regions.insert(region);
        Ok(keys)
    }

    /// Registers a region anew. If that fails the region stays as it was.
    pub(super) fn reregister(
        &mut self,
        mr: MrHandle,
        spec: &MrSpec<'_>,
        limits: &Limits,
    ) -> Result<MrKeys, HcaError> {
        let Region { key: old, .. } = *self.unopened(mr)?;
        let mut region = self.describe(spec, limits)?;
        region.key = if spec.key == Some(old) {
            old
        } else {
            let key = self.claim_key(spec.key, KeyOwner::Region(mr))?;
            self.keys.remove(&old);
            key
        };
        region.generation = self.next_generation();
        let keys = names(mr, region.key);
        self.regions[mr.0 as usize] = region;
        Ok(keys)
    }

    /// Deregisters a region and gives its protection domain. Regions that share its memory keep it.
    pub(super) fn deregister(&mut self, mr: MrHandle) -> Result<PdHandle, HcaError> {
        let Region { key, pd, .. } = *self.unopened(mr)?;
        self.regions.remove(mr.0 as usize);
        self.keys.remove(&key);
        Ok(pd)
    }

    /// Returns a region to which no window is bound.
    fn unopened(&self, mr: MrHandle) -> Result<&Region, HcaError> {
        match self.regions.get(mr.0 as usize) {
            Some(region) if region.windows != 0 => Err(HcaError::InUse),
            region => region.ok_or(HcaError::InvalidHandle),
        }
    }

    /// Appends the bytes of a gather list to `out`.
    pub(super) fn gather(
        &self,
        pd: PdHandle,
        sges: &[Sge],
        out: &mut Gathered,
    ) -> Result<(), ProtectionFault> {
        for sge in sges.iter().filter(|sge| sge.len != 0) {
            let mr = owner(&self.keys, sge.lkey)?;
            let region = usable(&self.regions, mr, pd, sge.lkey, AccessFlags::empty())?;
            region.pieces(sge.addr, u64::from(sge.len), |addr, len| {
                Ok(self.space.read(addr, out.room(len))?)
            })?;
        }
        Ok(())
    }

    /// Writes `parts`, one after the other, along a scatter list that is long enough. `usual` is the
    /// region that the last such list named, which most likely this one does, too.
    pub(super) fn scatter(
        &mut self,
        pd: PdHandle,
        sges: &[Sge],
        parts: &[Arrived<'_>],
        usual: &mut MrHandle,
    ) -> Result<(), ProtectionFault> {
        let mut rooms = sges.iter().filter(|sge| sge.len != 0).map(|sge| {
            let access = AccessFlags::LOCAL_WRITE;
            let region = usable(&self.regions, *usual, pd, sge.lkey, access).or_else(|_| {
                *usual = owner(&self.keys, sge.lkey)?;
                usable(&self.regions, *usual, pd, sge.lkey, access)
            })?;
            Ok::<_, ProtectionFault>((region, *sge))
        });
        let space = &mut self.space;
        let mut room = None;
        for part in parts {
            let mut rest = *part;
            while rest.len() != 0 {
                let (region, mut sge) = match room.take() {
                    Some(room) => room,
                    None => rooms.next().ok_or(ProtectionFault(Cause::TooLong))??,
                };
                let at = rest.len().min(sge.len as usize);
                let (mut now, later) = rest.split_at(at);
                let count = now.len() as u64;
                region.pieces(sge.addr, count, |addr, len| {
                    let (piece, behind) = now.split_at(len);
                    now = behind;
                    Ok(piece.store(space, addr)?)
                })?;
                rest = later;
                sge.len -= u32::try_from(count).map_err(|_| ProtectionFault(Cause::OutOfBounds))?;
                sge.addr = sge.addr.wrapping_add(count);
                room = (sge.len != 0).then_some((region, sge));
            }
        }
        Ok(())
    }

    /// Checks a region's origin and rights; what comes out lacks only its key.
    fn describe(&self, spec: &MrSpec<'_>, limits: &Limits) -> Result<Region, HcaError> {
        // No memory here outlives a loss of power.
        if spec.access.contains(AccessFlags::FLUSH_PERSISTENT) {
            return Err(HcaError::Unsupported);
        }
        let (iova, len, backing) = match &spec.kind {
            MrKind::Virtual { addr, len } => {
                check_len(*len, limits)?;
                addr.checked_add(*len - 1)
                    .ok_or(HcaError::InvalidParameter)?;
                (*addr, *len, Some(Backing::Range { first: *addr }))
            }
            MrKind::Translated { addr, len, iova } => {
                check_len(*len, limits)?;
                let ends = [addr, iova].map(|first| first.checked_add(*len - 1));
                if ends.contains(&None) {
                    return Err(HcaError::InvalidParameter);
                }
                (*iova, *len, Some(Backing::Range { first: *addr }))
            }
            MrKind::Physical {
                pages,
                page_shift,
                iova,
                first_offset,
                len,
            } => {
                check_len(*len, limits)?;
                iova.checked_add(*len - 1)
                    .ok_or(HcaError::InvalidParameter)?;
                let backing = page_list(pages, *page_shift, *first_offset, *len)?;
                (*iova, *len, Some(backing))
            }
            MrKind::Shared { of, iova } => {
                let region = self
                    .regions
                    .get(of.0 as usize)
                    .ok_or(HcaError::InvalidHandle)?;
                let backing = region.backing.clone().ok_or(HcaError::InvalidParameter)?;
                iova.checked_add(region.len - 1)
                    .ok_or(HcaError::InvalidParameter)?;
                (*iova, region.len, Some(backing))
            }
            MrKind::FastRegister { max_pages } => {
                if *max_pages == 0 || *max_pages > limits.max_fast_reg_pages {
                    return Err(HcaError::InvalidParameter);
                }
                (0, 0, None)
            }
            MrKind::WholeSpace => (0, u64::MAX, Some(Backing::Range { first: 0 })),
        };
        if let (Some(backing), MrKind::Virtual { .. } | MrKind::Physical { .. }) =
            (&backing, &spec.kind)
        {
            self.probe(backing, len)?;
        }
        let zero_based = spec.access.contains(AccessFlags::ZERO_BASED);
        let refill = match spec.kind {
            MrKind::FastRegister { max_pages } => Some(Refill {
                max_pages: max_pages as usize,
                max_len: limits.max_mr_size,
                rights: spec.access,
            }),
            _ => None,
        };
        Ok(Region {
            pd: spec.pd,
            access: match refill {
                Some(_) => AccessFlags::empty(),
                None => spec.access,
            },
            key: 0,
            base: if zero_based { 0 } else { iova },
            len,
            backing,
            refill,
            generation: 0,
            windows: 0,
        })
    }

    /// Finds out whether a region's two ends are memory. What lies between is checked on use.
    fn probe(&self, backing: &Backing, len: u64) -> Result<(), HcaError> {
        for offset in [0, len - 1] {
            let (addr, _) = backing.piece(offset, 1);
            self.space.read(addr, &mut [0])?;
        }
        Ok(())
    }

    const fn next_generation(&mut self) -> u64 {
        self.generations += 1;
        self.generations
    }

    fn claim_key(&mut self, wanted: Option<u32>, owner: KeyOwner) -> Result<u32, HcaError> {
        let key = match wanted {
            Some(key) if self.keys.contains_key(&key) => return Err(HcaError::InvalidParameter),
            Some(key) => key,
            // The quotas keep the table far below 2^32 entries, so a free key comes up soon.
            None => loop {
                let key = self.numbers.next_u32();
                // A registration names its region by the key's upper bits.
                if self.keys.range(variants(key)).next().is_none() {
                    break key;
                }
            },
        };
        self.keys.insert(key, owner);
        Ok(key)
    }

    /// Renames the region or window of a key, unless the new key is taken.
    fn rename(&mut self, old: u32, new: u32) -> Result<(), ProtectionFault> {
        if old == new {
            return Ok(());
        }
        if self.keys.contains_key(&new) {
            return Err(ProtectionFault(Cause::KeyTaken));
        }
        let owner = self.keys.remove(&old);
        let owner = owner.ok_or(ProtectionFault(Cause::NoSuchKey))?;
        self.keys.insert(new, owner);
        Ok(())
    }
}

/// The keys that differ from a key by their low byte alone, which is for the consumer of a region to choose.
const fn variants(key: u32) -> RangeInclusive<u32> {
    key & !0xff..=key | 0xff
}

fn names(handle: MrHandle, key: u32) -> MrKeys {
    MrKeys {
        handle,
        lkey: LKey(key),
        rkey: RKey(key),
    }
}

/// The parts of a list's entries that lie in a range of its bytes.
fn parts(sges: &[Sge], range: &Range<u64>) -> impl Iterator<Item = Sge> {
    let (mut skip, mut left) = (range.start, range.end.saturating_sub(range.start));
    sges.iter().filter_map(move |sge| {
        let skipped = u64::from(sge.len).min(skip);
        skip -= skipped;
        let len = (u64::from(sge.len) - skipped).min(left);
        left -= len;
        (len != 0).then(|| Sge {
            addr: sge.addr.wrapping_add(skipped),
            len: u32::try_from(len).unwrap_or(u32::MAX),
            lkey: sge.lkey,
        })
    })
}

fn index_u32(slot: usize) -> Result<u32, HcaError> {
    u32::try_from(slot).map_err(|_| HcaError::InsufficientResources)
}

fn check_len(len: u64, limits: &Limits) -> Result<(), HcaError> {
    if len == 0 || len > limits.max_mr_size {
        return Err(HcaError::InvalidParameter);
    }
    Ok(())
}

fn page_list(
    pages: &Arc<Vec<u64>>,
    shift: u8,
    first_offset: u64,
    len: u64,
) -> Result<Backing, HcaError> {
    if !(MIN_PAGE_SHIFT..=MAX_PAGE_SHIFT).contains(&shift) {
        return Err(HcaError::InvalidParameter);
    }
    let page = 1_u64 << shift;
    let covered = (pages.len() as u64).checked_mul(page);
    let needed = first_offset.checked_add(len);
    let fits = matches!((covered, needed), (Some(c), Some(n)) if n <= c);
    // One pass without a branch for each page: there can be very many.
    let low_bits = pages.iter().fold(0, |bits, addr| bits | addr) & (page - 1);
    if !fits || low_bits != 0 || first_offset >= page {
        return Err(HcaError::InvalidParameter);
    }
    Ok(Backing::Pages {
        pages: pages.clone(),
        shift,
        first_offset,
    })
}

/// The region that has a key.
fn owner(keys: &BTreeMap<u32, KeyOwner>, lkey: LKey) -> Result<MrHandle, ProtectionFault> {
    match keys.get(&lkey.0) {
        Some(KeyOwner::Region(mr)) => Ok(*mr),
        Some(KeyOwner::Window(_)) => Err(ProtectionFault(Cause::WrongObject)),
        None => Err(ProtectionFault(Cause::NoSuchKey)),
    }
}

/// A region that a local request may use (IBA 10.6.3): the key is the region's, its protection domain
/// is the QP's, and it has the rights.
fn usable(
    regions: &Slab<Region>,
    mr: MrHandle,
    pd: PdHandle,
    lkey: LKey,
    access: AccessFlags,
) -> Result<&Region, ProtectionFault> {
    let region = regions.get(mr.0 as usize);
    let region = region.filter(|region| region.key == lkey.0);
    let region = region.ok_or(ProtectionFault(Cause::NoSuchKey))?;
    region.permits(pd, access)?;
    Ok(region)
}

impl Region {
    /// Checks protection domain, state and rights.
    fn permits(&self, pd: PdHandle, access: AccessFlags) -> Result<(), ProtectionFault> {
        if self.pd != pd {
            Err(ProtectionFault(Cause::OtherPd))
        } else if self.backing.is_none() {
            Err(ProtectionFault(Cause::NotValid))
        } else if !self.access.contains(access) {
            Err(ProtectionFault(Cause::NoRight))
        } else {
            Ok(())
        }
    }

    /// Returns where a range begins in the region, if the region has all of it.
    fn offset(&self, addr: u64, len: u64) -> Result<u64, ProtectionFault> {
        let outside = ProtectionFault(Cause::OutOfBounds);
        let offset = addr.checked_sub(self.base).ok_or(outside)?;
        let end = offset.checked_add(len).ok_or(outside)?;
        if end > self.len {
            return Err(outside);
        }
        Ok(offset)
    }

    /// Calls `each` with the pieces of address space behind a range of the region.
    fn pieces(
        &self,
        addr: u64,
        len: u64,
        mut each: impl FnMut(u64, usize) -> Result<(), ProtectionFault>,
    ) -> Result<(), ProtectionFault> {
        let backing = self
            .backing
            .as_ref()
            .ok_or(ProtectionFault(Cause::NotValid))?;
        let mut offset = self.offset(addr, len)?;
        let end = offset + len;
        while offset < end {
            let (at, contiguous) = backing.piece(offset, end - offset);
            each(
                at,
                usize::try_from(contiguous).map_err(|_| ProtectionFault(Cause::NoMemory))?,
            )?;
            offset += contiguous;
        }
        Ok(())
    }
}

impl Backing {
    /// Where the byte at `offset` is, and how many of `len` bytes follow it there.
    fn piece(&self, offset: u64, len: u64) -> (u64, u64) {
        match self {
            Self::Range { first } => (first.wrapping_add(offset), len),
            Self::Pages {
                pages,
                shift,
                first_offset,
            } => {
                let offset = offset + first_offset;
                let within = offset & ((1 << shift) - 1);
                // The list covers the region, and the caller stays within it.
                let page = usize::try_from(offset >> shift)
                    .ok()
                    .and_then(|index| pages.get(index))
                    .copied()
                    .unwrap_or(u64::MAX);
                (page.wrapping_add(within), len.min((1 << shift) - within))
            }
        }
    }
}

#[cfg(test)]
mod tests;
