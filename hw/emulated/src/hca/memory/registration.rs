//! Fast registration and invalidation, as requests of queue pairs (IBA 10.6.5, 11.4.1.1).

use std::sync::Arc;

use hca_api::{AccessFlags, AddressSpace, Cause, FastRegister, PageList, PdHandle, QpHandle};

use super::{
    Backing, KeyOwner, MAX_PAGE_SHIFT, MIN_PAGE_SHIFT, Memory, ProtectionFault, Refill, Region,
    page_list, variants,
};

/// Bytes of an entry of a page list in memory.
const ENTRY: usize = 8;

/// The lowest bit of an entry that names a page.
const PRESENT: u64 = 1;

/// A fast registration that waits in its queue.
#[derive(Clone, Debug)]
pub(in super::super) struct Registration {
    key: u32,
    iova: u64,
    len: u64,
    pages: Pages,
    page_shift: u8,
    access: AccessFlags,
}

/// A page list. One in memory is not read before its registration has its turn.
#[derive(Clone, Debug)]
enum Pages {
    Given(Arc<Vec<u64>>),
    InMemory(u64),
}

impl Registration {
    pub(in super::super) fn new(given: &FastRegister<'_>) -> Self {
        Self {
            key: given.key.0,
            iova: given.iova,
            len: given.len,
            pages: match given.pages {
                PageList::Given(pages) => Pages::Given(Arc::new(pages.to_vec())),
                PageList::InMemory(addr) => Pages::InMemory(addr),
            },
            page_shift: given.page_shift,
            access: given.access,
        }
    }

    /// Returns the offset of the first byte in the first page, and the number of pages.
    fn shape(&self, refill: &Refill) -> Result<(u64, usize), ProtectionFault> {
        if !(MIN_PAGE_SHIFT..=MAX_PAGE_SHIFT).contains(&self.page_shift) {
            return Err(ProtectionFault(Cause::BadRegistration));
        }
        let last = self.len.checked_sub(1);
        let end = last.and_then(|last| self.iova.checked_add(last));
        if end.is_none() || self.len > refill.max_len {
            return Err(ProtectionFault(Cause::BadRegistration));
        }
        let page = 1_u64 << self.page_shift;
        let first_offset = self.iova & (page - 1);
        // Neither is near the end of the count.
        let count = (first_offset + self.len).div_ceil(page);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > refill.max_pages {
            return Err(ProtectionFault(Cause::BadRegistration));
        }
        Ok((first_offset, count))
    }
}

impl Memory {
    /// Fills the empty region that a registration names, for a queue pair of the protection domain.
    ///
    /// # Errors
    /// There is no such region, it is not empty or too small, or may not be given the rights; or the pages are none.
    pub(in super::super) fn fast_register(
        &mut self,
        pd: PdHandle,
        registration: &Registration,
    ) -> Result<(), ProtectionFault> {
        let key = registration.key;
        let (index, refill) = self.refillable(pd, key)?;
        let access = registration.access;
        let changes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let is_paired = access.contains(AccessFlags::LOCAL_WRITE) || !access.intersects(changes);
        let (first_offset, count) = registration.shape(&refill)?;
        if !is_paired || !refill.rights.contains(access) {
            return Err(ProtectionFault(Cause::BadRegistration));
        }
        let (shift, len) = (registration.page_shift, registration.len);
        let pages = match &registration.pages {
            Pages::Given(pages) if pages.len() <= refill.max_pages => pages.clone(),
            Pages::Given(_) => return Err(ProtectionFault(Cause::BadRegistration)),
            Pages::InMemory(addr) => Arc::new(self.read_pages(*addr, count, shift)?),
        };
        let backing = page_list(&pages, shift, first_offset, len);
        let backing = backing.map_err(|_| ProtectionFault(Cause::BadRegistration))?;
        self.rename(self.regions[index].key, key)?;
        let generation = self.next_generation();
        let region = &mut self.regions[index];
        region.fill(access, registration.iova, len, Some(backing));
        (region.key, region.generation) = (key, generation);
        Ok(())
    }

    /// Returns the empty region that a registration names, and its limits.
    fn refillable(&self, pd: PdHandle, key: u32) -> Result<(usize, Refill), ProtectionFault> {
        let mut cause = Cause::NoSuchKey;
        for (_, owner) in self.keys.range(variants(key)) {
            let KeyOwner::Region(handle) = owner else {
                continue;
            };
            let index = handle.0 as usize;
            let region = self
                .regions
                .get(index)
                .map(|region| (region, region.refill));
            cause = match region {
                Some((region, _)) if region.pd != pd => Cause::OtherPd,
                Some((region, Some(refill))) if region.backing.is_none() => {
                    return Ok((index, refill));
                }
                Some((_, Some(_))) => Cause::NotFree,
                Some((_, None)) | None => Cause::WrongObject,
            };
        }
        Err(ProtectionFault(cause))
    }

    /// Reads a page list, in one access.
    fn read_pages(&self, addr: u64, count: usize, shift: u8) -> Result<Vec<u64>, ProtectionFault> {
        let mut bytes = vec![0; count * ENTRY];
        self.space.read(addr, &mut bytes)?;
        let (entries, _) = bytes.as_chunks();
        let entries = entries.iter().map(|entry| u64::from_be_bytes(*entry));
        let pages = entries.map(|entry| {
            let page = entry & !((1 << shift) - 1);
            (entry & PRESENT != 0).then_some(page)
        });
        let pages = pages.collect::<Option<_>>();
        pages.ok_or(ProtectionFault(Cause::BadRegistration))
    }

    /// Empties a region or frees a window by its key, for a queue pair of the protection domain. `right` is what a region has to
    /// allow; every window of type 2 allows it. One that is empty or free stays so.
    ///
    /// # Errors
    /// The key is not that of a region for fast registration in the protection domain, with the right and without windows, and not
    /// that of a window of type 2 that the queue pair may use.
    pub(in super::super) fn invalidate(
        &mut self,
        pd: PdHandle,
        qp: QpHandle,
        key: u32,
        right: AccessFlags,
    ) -> Result<(), ProtectionFault> {
        let index = match self.keys.get(&key) {
            Some(KeyOwner::Region(handle)) => handle.0 as usize,
            Some(KeyOwner::Window(handle)) => return self.free_window(pd, qp, *handle),
            None => return Err(ProtectionFault(Cause::NoSuchKey)),
        };
        let generation = self.next_generation();
        let region = self.regions.get_mut(index);
        let region = region.ok_or(ProtectionFault(Cause::NoSuchKey))?;
        let cause = match &region.refill {
            _ if region.pd != pd => Some(Cause::OtherPd),
            None => Some(Cause::WrongObject),
            Some(refill) if !refill.rights.contains(right) => Some(Cause::NoRight),
            Some(_) => (region.windows != 0).then_some(Cause::NotFree),
        };
        if let Some(cause) = cause {
            return Err(ProtectionFault(cause));
        }
        region.fill(AccessFlags::empty(), 0, 0, None);
        region.generation = generation;
        Ok(())
    }
}

impl Region {
    /// Replaces the region's bytes, addresses and rights.
    fn fill(&mut self, access: AccessFlags, base: u64, len: u64, backing: Option<Backing>) {
        self.access = access;
        self.base = base;
        self.len = len;
        self.backing = backing;
    }
}
