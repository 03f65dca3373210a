//! The function's memory: protection domains, regions, and the bytes that work requests name in them.

use std::collections::BTreeMap;

use hca_api::{
    AccessFlags, AddressSpace, DmaFault, HcaError, LKey, MrHandle, MrKeys, MrKind, MrSpec,
    PdHandle, RKey, Sge,
};

/// Objects of each kind that the function may have.
pub(crate) const MAX_OBJECTS: usize = 1 << 16;

/// The objects of a kind, by handles that are used once.
#[derive(Debug)]
pub(crate) struct Objects<T> {
    next: u32,
    objects: BTreeMap<u32, T>,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self {
            next: 1,
            objects: BTreeMap::new(),
        }
    }
}

impl<T> Objects<T> {
    pub(crate) fn add(&mut self, object: T) -> Result<u32, HcaError> {
        if self.objects.len() >= MAX_OBJECTS {
            return Err(HcaError::InsufficientResources);
        }
        let handle = self.next;
        self.next = handle
            .checked_add(1)
            .ok_or(HcaError::InsufficientResources)?;
        self.objects.insert(handle, object);
        Ok(handle)
    }

    pub(crate) fn get(&self, handle: u32) -> Result<&T, HcaError> {
        self.objects.get(&handle).ok_or(HcaError::InvalidHandle)
    }

    pub(crate) fn get_mut(&mut self, handle: u32) -> Result<&mut T, HcaError> {
        self.objects.get_mut(&handle).ok_or(HcaError::InvalidHandle)
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Result<T, HcaError> {
        self.objects.remove(&handle).ok_or(HcaError::InvalidHandle)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }
}

/// A region.
#[derive(Clone, Copy, Debug)]
struct Region {
    pd: PdHandle,
    /// First byte and bytes; `None` for all of the address space.
    range: Option<(u64, u64)>,
    is_writable: bool,
}

/// The function's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    space: Box<dyn AddressSpace>,
    is_reachable: bool,
    pds: Objects<()>,
    regions: Objects<Region>,
}

impl Memory {
    pub(crate) fn new(space: Box<dyn AddressSpace>) -> Self {
        Self {
            space,
            is_reachable: true,
            pds: Objects::default(),
            regions: Objects::default(),
        }
    }

    pub(crate) fn space(&mut self) -> &mut dyn AddressSpace {
        &mut *self.space
    }

    pub(crate) const fn set_reachable(&mut self, is_reachable: bool) {
        self.is_reachable = is_reachable;
    }

    pub(crate) fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.check(addr, buf.len())?;
        self.space.read(addr, buf)
    }

    pub(crate) fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        self.check(addr, bytes.len())?;
        self.space.write(addr, bytes)
    }

    pub(crate) fn add_pd(&mut self) -> Result<PdHandle, HcaError> {
        self.pds.add(()).map(PdHandle)
    }

    pub(crate) fn check_pd(&self, pd: PdHandle) -> Result<(), HcaError> {
        self.pds.get(pd.0).copied()
    }

    pub(crate) fn remove_pd(&mut self, pd: PdHandle) -> Result<(), HcaError> {
        if self.regions.values().any(|region| region.pd == pd) {
            return Err(HcaError::InUse);
        }
        self.pds.remove(pd.0)
    }

    pub(crate) fn register(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        self.check_pd(spec.pd)?;
        let range = match spec.kind {
            MrKind::Virtual { addr, len } => {
                addr.checked_add(len).ok_or(HcaError::InvalidParameter)?;
                Some((addr, len))
            }
            MrKind::WholeSpace => None,
            _ => return Err(HcaError::Unsupported),
        };
        if spec.key.is_some() {
            return Err(HcaError::Unsupported);
        }
        let number = self.regions.add(Region {
            pd: spec.pd,
            range,
            is_writable: spec.access.contains(AccessFlags::LOCAL_WRITE),
        })?;
        Ok(MrKeys {
            handle: MrHandle(number),
            lkey: LKey(number),
            rkey: RKey(number),
        })
    }

    pub(crate) fn deregister(&mut self, region: MrHandle) -> Result<(), HcaError> {
        self.regions.remove(region.0).map(drop)
    }

    /// Reads bytes that a list names, as many as there is room for. Returns `false` if one is not in a region of the protection domain.
    pub(crate) fn gather(&self, pd: PdHandle, list: &[Sge], mut to: &mut [u8]) -> bool {
        list.iter().all(|sge| {
            let left = std::mem::take(&mut to);
            let (part, rest) = left.split_at_mut(left.len().min(sge.len as usize));
            to = rest;
            self.covers(pd, sge, false) && self.read(sge.addr, part).is_ok()
        })
    }

    /// Writes bytes to the places that a list names, which has room for them. Returns `false` as [`Self::gather`].
    pub(crate) fn scatter(&mut self, pd: PdHandle, list: &[Sge], mut bytes: &[u8]) -> bool {
        list.iter().all(|sge| {
            let (part, rest) = bytes.split_at(bytes.len().min(sge.len as usize));
            bytes = rest;
            part.is_empty() || self.covers(pd, sge, true) && self.write(sge.addr, part).is_ok()
        })
    }

    fn check(&self, addr: u64, len: usize) -> Result<(), DmaFault> {
        match self.is_reachable {
            true => Ok(()),
            false => Err(DmaFault { addr, len }),
        }
    }

    fn covers(&self, pd: PdHandle, sge: &Sge, is_written: bool) -> bool {
        let region = self.regions.get(sge.lkey.0);
        region.is_ok_and(|region| {
            let end = sge.addr.checked_add(u64::from(sge.len));
            let is_inside = region.range.is_none_or(|(first, len)| {
                first <= sge.addr && end.is_some_and(|end| end <= first + len)
            });
            region.pd == pd && is_inside && (region.is_writable || !is_written)
        })
    }
}

/// Returns the bytes that a list names.
pub(crate) fn length(list: &[Sge]) -> u64 {
    list.iter().map(|sge| u64::from(sge.len)).sum()
}
