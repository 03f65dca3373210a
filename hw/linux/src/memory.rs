//! The function's memory: protection domains, regions, and the bytes that work requests name in them.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hca_api::{
    AccessFlags, AddressSpace, DmaFault, FileRun, HcaError, LKey, MrHandle, MrKeys, MrKind, MrSpec,
    PdHandle, RKey, Sge,
};

use crate::attributes::{access_flags, refused};
use crate::mapped::{Charge, MappedFiles};
use crate::sys::{Device, MemoryRegion, Piece, ProtectionDomain, QueuePair, RegionMemory};
use crate::worker::{RegionEnd, Registration, Source, Worker, is_large};

/// Objects of each kind that the function may have.
pub(crate) const MAX_OBJECTS: usize = 1 << 16;

/// Runs of files that a region may have, each of which is a mapping (`vm.max_map_count`).
const MAX_RUNS: usize = 4096;

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
    /// Returns the handle of the next object.
    pub(crate) const fn next(&self) -> u32 {
        self.next
    }

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

    /// Puts an object back that was removed.
    fn put_back(&mut self, handle: u32, object: T) {
        self.objects.insert(handle, object);
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }
}

/// A region of the host, with its part of its file's share. The region goes first.
#[derive(Debug)]
pub(crate) struct HostRegion {
    region: MemoryRegion,
    _charge: Charge,
}

/// A region.
#[derive(Debug)]
struct Region {
    pd: PdHandle,
    /// First byte in the region's own address count, and bytes; `None` for all of the address space.
    range: Option<(u64, u64)>,
    /// Address of the first byte.
    addr: u64,
    is_writable: bool,
    is_large: bool,
    /// Peers may reach it.
    is_remote: bool,
    bytes: Bytes,
}

/// The bytes of a region.
#[derive(Debug)]
enum Bytes {
    /// In memory that is not mapped, at their addresses.
    Space,
    /// In a region of the host.
    Host(HostRegion),
    /// Out of reach: the thread deregisters the region of the host.
    Leaving(RegionEnd),
}

impl Region {
    /// Returns the offset in the region of bytes that an entry names. `None` if they are not in it.
    fn offset(&self, sge: &Sge) -> Option<u64> {
        let end = sge.addr.checked_add(u64::from(sge.len))?;
        let Some((first, len)) = self.range else {
            return Some(sge.addr);
        };
        let offset = sge.addr.checked_sub(first)?;
        (end - first <= len).then_some(offset)
    }
}

/// The place of bytes of a region.
enum Place<'a> {
    /// At an offset of a region of the host.
    Host(&'a MemoryRegion, u64),
    /// At an address.
    Space(u64),
}

/// A device of the host, and the files that its regions can be of.
#[derive(Debug)]
pub(crate) struct HostMemoryOf {
    pub(crate) device: Arc<Device>,
    pub(crate) files: MappedFiles,
    pub(crate) worker: Worker<HostRegion>,
}

impl HostMemoryOf {
    /// Registers memory with the device: here, or in the thread if it is large. Returns `None` for memory that is not in the mapped
    /// files.
    fn register(
        &mut self,
        domain: &Arc<ProtectionDomain>,
        asked: Registration,
        runs: &[FileRun],
    ) -> Result<Option<HostRegion>, HcaError> {
        let Self { files, worker, .. } = self;
        let piece = |run: &FileRun| {
            let len = usize::try_from(run.len).ok()?;
            Some((files.get(run.file)?, run.offset, len))
        };
        let pieces = runs.iter().map(piece).collect::<Option<Vec<Piece>>>();
        let Some(pieces) = pieces else {
            return Ok(None);
        };
        let charge = files.charge(runs);
        let charge = charge.ok_or(HcaError::InsufficientResources)?;
        let (domain, rights) = (domain.clone(), access_flags(asked.access));
        let iova = asked.iova;
        let job = move || {
            let memory = RegionMemory::new(&pieces).map_err(|error| refused(&error))?;
            let len = pieces.iter().map(|(.., len)| len).sum();
            let region = MemoryRegion::new(domain, (memory, len), (iova, rights));
            let region = region.map_err(|error| refused(&error))?;
            Ok(HostRegion {
                region,
                _charge: charge,
            })
        };
        match is_large(runs) {
            true => worker.register(asked, Box::new(job)).map(Some),
            false => job().map(Some),
        }
    }
}

/// The function's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    space: Box<dyn AddressSpace>,
    is_reachable: bool,
    host: Option<HostMemoryOf>,
    /// With domains of the host, if there is one.
    pds: Objects<Option<Arc<ProtectionDomain>>>,
    regions: Objects<Region>,
    /// Handles of regions of the host, by their local keys.
    by_key: BTreeMap<u32, u32>,
}

impl Memory {
    pub(crate) fn new(space: Box<dyn AddressSpace>) -> Self {
        Self {
            space,
            is_reachable: true,
            host: None,
            pds: Objects::default(),
            regions: Objects::default(),
            by_key: BTreeMap::new(),
        }
    }

    pub(crate) fn set_host(&mut self, host: HostMemoryOf) {
        self.host = Some(host);
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
        let host = self.host.as_ref();
        let domain = host.map(|host| ProtectionDomain::new(&host.device).map(Arc::new));
        let domain = domain.transpose().map_err(|error| refused(&error))?;
        self.pds.add(domain).map(PdHandle)
    }

    pub(crate) fn check_pd(&self, pd: PdHandle) -> Result<(), HcaError> {
        self.pds.get(pd.0).map(|_| ())
    }

    /// Returns a protection domain of the host.
    pub(crate) fn domain(&self, pd: PdHandle) -> Result<&Arc<ProtectionDomain>, HcaError> {
        let domain = self.pds.get(pd.0)?;
        domain.as_ref().ok_or(HcaError::Unsupported)
    }

    pub(crate) fn remove_pd(&mut self, pd: PdHandle) -> Result<(), HcaError> {
        let domain = self.pds.get(pd.0)?.as_ref();
        let has_objects = domain.is_some_and(|domain| !domain.users.is_empty());
        if has_objects || self.regions.values().any(|region| region.pd == pd) {
            return Err(HcaError::InUse);
        }
        if let Some(host) = &mut self.host {
            host.worker.forget(pd);
        }
        self.pds.remove(pd.0).map(drop)
    }

    pub(crate) fn register(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        self.check_pd(spec.pd)?;
        let (addr, range) = match spec.kind {
            MrKind::Virtual { addr, len } => (addr, Some((addr, len))),
            MrKind::Translated { addr, len, iova } => (addr, Some((iova, len))),
            MrKind::WholeSpace => (0, None),
            MrKind::Physical { iova, len, .. } => (0, Some((iova, len))),
            _ => return Err(HcaError::Unsupported),
        };
        if let Some((first, len)) = range {
            for first in [addr, first] {
                first.checked_add(len).ok_or(HcaError::InvalidParameter)?;
            }
        }
        if spec.key.is_some() {
            return Err(HcaError::Unsupported);
        }
        let (host, is_large) = match range {
            Some(range) => self.register_with_host(spec, range)?,
            None => (None, false),
        };
        let remote = AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_ATOMIC
            | AccessFlags::MW_BIND;
        let is_remote = spec.access.intersects(remote);
        let is_of_pages = matches!(spec.kind, MrKind::Physical { .. });
        if host.is_none() && (is_of_pages || is_remote) {
            return Err(HcaError::Unsupported);
        }
        let keys = host.as_ref().map(|host| host.region.keys());
        let number = self.regions.add(Region {
            pd: spec.pd,
            range,
            addr,
            is_writable: spec.access.contains(AccessFlags::LOCAL_WRITE),
            is_large,
            is_remote,
            bytes: host.map_or(Bytes::Space, Bytes::Host),
        })?;
        if let Some((lkey, _)) = keys {
            self.by_key.insert(lkey, number);
        }
        let (lkey, rkey) = keys.unwrap_or((number, number));
        Ok(MrKeys {
            handle: MrHandle(number),
            lkey: LKey(lkey),
            rkey: RKey(rkey),
        })
    }

    /// Registers memory with the host. Returns `None` if there is no host for it, or if the memory is not mapped: MADs alone can be
    /// in it then. Says if the region is a large one, too.
    fn register_with_host(
        &mut self,
        spec: &MrSpec<'_>,
        (iova, len): (u64, u64),
    ) -> Result<(Option<HostRegion>, bool), HcaError> {
        let source = match spec.kind {
            MrKind::Virtual { addr, .. } | MrKind::Translated { addr, .. } => Source::Range(addr),
            MrKind::Physical {
                pages,
                page_shift,
                first_offset,
                ..
            } => Source::Pages {
                pages: pages.clone(),
                shift: page_shift,
                first_offset,
            },
            _ => return Ok((None, false)),
        };
        let asked = Registration {
            pd: spec.pd,
            iova,
            len,
            access: spec.access,
            source,
        };
        let outcome = self
            .host
            .as_mut()
            .and_then(|host| host.worker.outcome(&asked));
        if let Some(outcome) = outcome {
            return Ok((Some(outcome?), true));
        }
        let runs = match &asked.source {
            Source::Range(addr) => self.space.runs(*addr, len),
            Source::Pages {
                pages,
                shift,
                first_offset,
            } => self.runs_of_pages(pages, *shift, (*first_offset, len))?,
        };
        let (Some(runs), Some(host)) = (runs, &mut self.host) else {
            return Ok((None, false));
        };
        if runs.len() > MAX_RUNS {
            return Err(HcaError::InsufficientResources);
        }
        let domain = self.pds.get(spec.pd.0)?.as_ref();
        let domain = domain.ok_or(HcaError::Unsupported)?;
        let region = host.register(domain, asked, &runs)?;
        Ok((region, false))
    }

    /// Returns the runs of files behind pages, of which so many bytes count from an offset on. `None` if some are in no file.
    fn runs_of_pages(
        &self,
        pages: &[u64],
        page_shift: u8,
        (mut skipped, mut left): (u64, u64),
    ) -> Result<Option<Vec<FileRun>>, HcaError> {
        let page = 1_u64.checked_shl(page_shift.into());
        let page = page.filter(|page| skipped < *page);
        let page = page.ok_or(HcaError::InvalidParameter)?;
        let mut all: Vec<FileRun> = Vec::new();
        for addr in pages {
            let len = left.min(page - skipped);
            let Some(runs) = self.space.runs(addr.wrapping_add(skipped), len) else {
                return Ok(None);
            };
            for run in runs {
                match all.last_mut() {
                    Some(last) if last.file == run.file && last.offset + last.len == run.offset => {
                        last.len += run.len;
                    }
                    _ => all.push(run),
                }
            }
            left -= len;
            skipped = 0;
            if left == 0 || all.len() > MAX_RUNS {
                return Ok(Some(all));
            }
        }
        Err(HcaError::InvalidParameter)
    }

    /// Deregisters a region. A large one that peers reach is [`HcaError::Pending`] until the thread has deregistered it. The thread
    /// deregisters other large ones after the call.
    pub(crate) fn deregister(&mut self, handle: MrHandle) -> Result<(), HcaError> {
        let region = self.regions.remove(handle.0)?;
        let end = match (region.bytes, &self.host) {
            (Bytes::Host(of_host), Some(host)) => {
                self.by_key.remove(&of_host.region.keys().0);
                if !(region.is_large && region.is_remote) {
                    if region.is_large {
                        host.worker.deregister(of_host);
                    }
                    return Ok(());
                }
                host.worker.begin_end(region.pd, of_host)
            }
            (Bytes::Leaving(end), _) => end,
            _ => return Ok(()),
        };
        if end.is_done() {
            return Ok(());
        }
        let bytes = Bytes::Leaving(end);
        self.regions.put_back(handle.0, Region { bytes, ..region });
        Err(HcaError::Pending)
    }

    /// Destroys a queue pair that no peer reaches, later than the call.
    pub(crate) fn destroy(&self, pair: QueuePair) {
        if let Some(host) = &self.host {
            host.worker.destroy(pair);
        }
    }

    /// Returns the file that can be read when [`Self::take_outcomes`] has something.
    pub(crate) fn news(&self) -> Option<BorrowedFd<'_>> {
        self.host.as_ref().map(|host| host.worker.news())
    }

    /// Takes outcomes of registrations and deregistrations that were under way. Returns their protection domains.
    pub(crate) fn take_outcomes(&mut self) -> Vec<PdHandle> {
        let host = self.host.as_mut();
        let mut domains = host.map_or_else(Vec::new, |host| host.worker.take_outcomes());
        // The region may have been found gone before, and its domain been destroyed.
        domains.retain(|pd| self.pds.get(pd.0).is_ok());
        domains
    }

    /// Reads bytes that a list names, as many as there is room for. Returns `false` if one is not in a region of the protection domain.
    pub(crate) fn gather(&self, pd: PdHandle, list: &[Sge], mut to: &mut [u8]) -> bool {
        list.iter().all(|sge| {
            let left = std::mem::take(&mut to);
            let (part, rest) = left.split_at_mut(left.len().min(sge.len as usize));
            to = rest;
            match self.place(pd, sge, false) {
                Some(Place::Host(region, offset)) => {
                    let bytes = region.memory.at(offset, part.len());
                    bytes.map(|bytes| bytes.read(part)).is_some()
                }
                Some(Place::Space(address)) => self.read(address, part).is_ok(),
                None => false,
            }
        })
    }

    /// Writes bytes to the places that a list names, which has room for them. Returns `false` as [`Self::gather`].
    pub(crate) fn scatter(&mut self, pd: PdHandle, list: &[Sge], mut bytes: &[u8]) -> bool {
        list.iter().all(|sge| {
            let (part, rest) = bytes.split_at(bytes.len().min(sge.len as usize));
            bytes = rest;
            if part.is_empty() {
                return true;
            }
            match self.place(pd, sge, true) {
                Some(Place::Host(region, offset)) => {
                    let place = region.memory.at(offset, part.len());
                    place.map(|place| place.write(part)).is_some()
                }
                Some(Place::Space(address)) => self.write(address, part).is_ok(),
                None => false,
            }
        })
    }

    fn check(&self, addr: u64, len: usize) -> Result<(), DmaFault> {
        match self.is_reachable {
            true => Ok(()),
            false => Err(DmaFault { addr, len }),
        }
    }

    /// Returns the place of bytes that an entry names in a region of a protection domain.
    fn place(&self, pd: PdHandle, sge: &Sge, is_written: bool) -> Option<Place<'_>> {
        let of_host = self.by_key.get(&sge.lkey.0);
        let named = |handle: &u32| self.regions.get(*handle).ok();
        let is_of_space = |region: &&Region| matches!(region.bytes, Bytes::Space);
        let by_number = || named(&sge.lkey.0).filter(is_of_space);
        let region = of_host.and_then(named).or_else(by_number)?;
        let is_allowed = self.is_reachable && (region.is_writable || !is_written);
        let offset = region
            .offset(sge)
            .filter(|_| is_allowed && region.pd == pd)?;
        match &region.bytes {
            Bytes::Host(host) => Some(Place::Host(&host.region, offset)),
            Bytes::Space => Some(Place::Space(region.addr.wrapping_add(offset))),
            Bytes::Leaving(_) => None,
        }
    }
}

/// Returns the bytes that a list names.
pub(crate) fn length(list: &[Sge]) -> u64 {
    list.iter().map(|sge| u64::from(sge.len)).sum()
}

#[cfg(test)]
mod tests;
