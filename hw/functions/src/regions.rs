//! Memory regions, as the messages of tunnels use them.

use std::collections::BTreeMap;
use std::sync::Arc;

use hca_api::{AccessFlags, Cause, HcaError, LKey, MrHandle, MrKind, MrSpec, PdHandle, Sge};

/// Base-2 logarithms of page sizes.
const PAGE_SHIFTS: core::ops::RangeInclusive<u8> = 12..=30;

/// Bytes behind a region.
#[derive(Clone, Debug)]
enum Backing {
    Range {
        first: u64,
    },
    Pages {
        pages: Arc<Vec<u64>>,
        shift: u8,
        first_offset: u64,
    },
}

impl Backing {
    /// Returns the address of the byte at `offset`, and how many of `len` bytes follow it there.
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
                let page = usize::try_from(offset >> shift).ok();
                // The list covers the region. Pages beyond it have an address that no memory has.
                let page = page.and_then(|index| pages.get(index)).copied();
                let addr = page.unwrap_or(u64::MAX).wrapping_add(within);
                (addr, len.min((1 << shift) - within))
            }
        }
    }
}

/// A memory region.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) pd: PdHandle,
    access: AccessFlags,
    /// First byte, in the region's own address count.
    base: u64,
    len: u64,
    backing: Backing,
    /// The adapter's own key.
    physical: Option<LKey>,
}

impl Region {
    /// Checks the origin of a region.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`], and [`HcaError::Unsupported`] for regions without bytes of their own.
    pub(crate) fn new(spec: &MrSpec<'_>) -> Result<Self, HcaError> {
        const INVALID: HcaError = HcaError::InvalidParameter;

        let (base, len, backing) = match spec.kind {
            MrKind::Virtual { addr, len } => (addr, len, Backing::Range { first: addr }),
            MrKind::Translated { addr, len, iova } => (iova, len, Backing::Range { first: addr }),
            MrKind::Physical {
                pages,
                page_shift,
                iova,
                first_offset,
                len,
            } => {
                let page = PAGE_SHIFTS
                    .contains(&page_shift)
                    .then(|| 1_u64 << page_shift);
                let page = page.filter(|page| first_offset < *page).ok_or(INVALID)?;
                let needed = first_offset.checked_add(len).ok_or(INVALID)?;
                let covered = (pages.len() as u64).checked_mul(page);
                let low_bits = pages.iter().fold(0, |bits, addr| bits | addr) & (page - 1);
                if low_bits != 0 || covered.is_none_or(|covered| covered < needed) {
                    return Err(INVALID);
                }
                let backing = Backing::Pages {
                    pages: pages.clone(),
                    shift: page_shift,
                    first_offset,
                };
                (iova, len, backing)
            }
            MrKind::WholeSpace => (0, u64::MAX, Backing::Range { first: 0 }),
            MrKind::Shared { .. } | MrKind::FastRegister { .. } => {
                return Err(HcaError::Unsupported);
            }
        };
        let last = len.checked_sub(1).ok_or(INVALID)?;
        if let Backing::Range { first } = backing {
            first.checked_add(last).ok_or(INVALID)?;
        }
        base.checked_add(last).ok_or(INVALID)?;
        let is_zero_based = spec.access.contains(AccessFlags::ZERO_BASED);
        Ok(Self {
            pd: spec.pd,
            access: spec.access,
            base: if is_zero_based { 0 } else { base },
            len,
            backing,
            physical: None,
        })
    }

    /// Returns the region with the key by which the adapter knows it.
    pub(crate) fn known_as(self, key: LKey) -> Self {
        Self {
            physical: Some(key),
            ..self
        }
    }

    /// Returns the addresses of the first and the last byte.
    pub(crate) fn ends(&self) -> [u64; 2] {
        [0, self.len - 1].map(|offset| self.backing.piece(offset, 1).0)
    }

    /// Returns the offset of a range in the region.
    fn offset(&self, sge: &Sge) -> Option<u64> {
        let offset = sge.addr.checked_sub(self.base)?;
        let end = offset.checked_add(u64::from(sge.len))?;
        (end <= self.len).then_some(offset)
    }
}

/// The memory regions of a function, by their local keys.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_key: BTreeMap<u32, Region>,
    keys: BTreeMap<MrHandle, u32>,
}

impl Regions {
    pub(crate) fn contains_key(&self, key: u32) -> bool {
        self.by_key.contains_key(&key)
    }

    pub(crate) fn insert(&mut self, handle: MrHandle, key: u32, region: Region) {
        self.by_key.insert(key, region);
        self.keys.insert(handle, key);
    }

    pub(crate) fn remove(&mut self, handle: MrHandle) -> Option<Region> {
        let key = self.keys.remove(&handle)?;
        self.by_key.remove(&key)
    }

    pub(crate) fn contains(&self, handle: MrHandle) -> bool {
        self.keys.contains_key(&handle)
    }

    /// Returns all regions.
    pub(crate) fn handles(&self) -> impl Iterator<Item = MrHandle> {
        self.keys.keys().copied()
    }

    /// Appends a list to `list` with the keys of the adapter. It knows no region of the function by a key that is none here, or
    /// of another protection domain, and fails the request.
    pub(crate) fn translate(&self, sges: &[Sge], list: &mut Vec<Sge>) {
        list.extend(sges.iter().map(|sge| Sge {
            lkey: self.physical(sge.lkey),
            ..*sge
        }));
    }

    /// Returns the adapter's key of a region, or the same key if there is no such region.
    pub(crate) fn physical(&self, key: LKey) -> LKey {
        let region = self.by_key.get(&key.0);
        region.and_then(|region| region.physical).unwrap_or(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Calls `each` with the address and the length of each piece of memory behind a list, for an object of a protection
    /// domain that needs the rights.
    ///
    /// # Errors
    /// The check that an entry fails, or the error of `each`.
    pub(crate) fn pieces(
        &self,
        pd: PdHandle,
        access: AccessFlags,
        sges: &[Sge],
        mut each: impl FnMut(u64, usize) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        for sge in sges.iter().filter(|sge| sge.len != 0) {
            let region = self.by_key.get(&sge.lkey.0).ok_or(Cause::NoSuchKey)?;
            if region.pd != pd {
                return Err(Cause::OtherPd);
            }
            if !region.access.contains(access) {
                return Err(Cause::NoRight);
            }
            let mut offset = region.offset(sge).ok_or(Cause::OutOfBounds)?;
            let end = offset + u64::from(sge.len);
            while offset < end {
                let (addr, len) = region.backing.piece(offset, end - offset);
                each(addr, usize::try_from(len).map_err(|_| Cause::NoMemory)?)?;
                offset += len;
            }
        }
        Ok(())
    }
}
