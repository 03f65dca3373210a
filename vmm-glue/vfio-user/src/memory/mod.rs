//! A guest's memory, as its VMM shares it.
//!
//! [`GuestMemory`] is a handle: the server maps and unmaps through one, and the VF's function reads and writes
//! through another ([`hca_api::AddressSpace`]).
//!
//! A VMM tears ranges down and puts them back in bursts (firmware that shadows its ROM does so many times), so a
//! range is only an entry in a table, and the file behind it is mapped once, whole.
//!
//! **Order.** Each write of more than eight bytes puts its last eight bytes into memory at once, after all others,
//! and writes take place in the order of the calls. So a guest that sees the owner bit in the last byte of a
//! completion sees all of the completion, and the data that were written before it.
//!
//! **What a hostile VMM can do** is lose its own guest's data: accesses to pages that are not there fail. Files on which a
//! page fault could wait for a server (FUSE, NFS) are not mapped. Memory of which one access waited all the same is guarded from
//! then on: a thread of its own writes to it ([`GuestMemory::posted`]). Ranges and files are limited in number, and how much
//! of the memory is touched can be.

mod dump;
mod file;
mod life;
mod limit;
mod notice;
mod pages;
mod posted;
mod release;
mod sharing;
mod slow;
mod touched;

use core::fmt;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hca_api::{AddressSpace, DmaBuffer, DmaFault, HcaError};
use rustix::io::Errno;
use rustix::process::Pid;
use vhca_receiver::{PassedFd, Work, during};

use file::MappedFile;
pub use limit::{MemoryLimit, MemoryPool};
pub use notice::GuardNotice;
pub use posted::PostedState;
use posted::{FIRST_GUARD, PostedWrites, next_guard};
pub use sharing::{is_mapped_privately, look_by};
pub use slow::timed;
use touched::Allowance;
use vhca_vfio_user_codec::{DmaMap, DmaMapFlags};

/// Ranges that may be mapped at a time.
pub const MAX_RANGES: usize = 8192;

/// Mappings of files at a time. A VMM has one for each of its memory backends, and more where a file grows.
const MAX_FILES: usize = 64;

/// Bytes of all mappings, so that one VMM leaves address space for the others: a process has 128 TiB.
const MAX_BYTES: u64 = 1 << 40;

/// Memory that a VMM does not share: only the VMM itself reaches it.
pub trait RemoteMemory: fmt::Debug + Send {
    /// Has bytes read. Whether they came in time.
    fn read(&mut self, address: u64, buf: &mut [u8]) -> bool;

    /// Has bytes written. Whether that was confirmed in time.
    fn write(&mut self, address: u64, bytes: &[u8]) -> bool;
}

/// How much of a guest's memory is reached in which way, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStatistics {
    /// Ranges of all kinds.
    pub ranges: usize,
    /// Shared.
    pub shared: u64,
    /// Bytes that the device has touched, of files that this or another VMM before it still has: the kernel may charge
    /// this process for them.
    pub touched: u64,
    /// How much it may touch, if that is limited.
    pub most: Option<u64>,
    /// Accesses that failed because it may touch no more.
    pub refused: u64,
    /// Not shared, and the device may write there, so it is not ROM: each access is a message to the VMM and back.
    pub remote: u64,
    /// An access waited for a page, so writes are posted: see [`GuestMemory::posted`].
    pub is_guarded: bool,
    /// Posted writes whose pages were gone.
    pub lost: u64,
}

#[derive(Debug)]
enum Backing {
    File(Arc<MappedFile>, u64),
    Remote,
}

/// A place in a file.
type Place<'m> = (&'m Arc<MappedFile>, u64);

#[derive(Debug)]
struct Range {
    size: u64,
    flags: DmaMapFlags,
    backing: Backing,
}

impl Range {
    /// The place of its first byte, if the VMM shares the file.
    fn file(&self) -> Option<Place<'_>> {
        match &self.backing {
            Backing::File(file, offset) if !file.is_private() => Some((file, *offset)),
            Backing::File(..) | Backing::Remote => None,
        }
    }
}

#[derive(Debug)]
struct Map {
    /// By their first address. They do not overlap.
    ranges: BTreeMap<u64, Range>,
    /// A file that has grown may be there twice.
    files: Vec<Arc<MappedFile>>,
    remote: Option<Box<dyn RemoteMemory>>,
    /// The VMM's process.
    owner: Option<Pid>,
    /// Descriptor of the socket of the client whose memory it is.
    client: RawFd,
    /// Whether it is looked at how that process has a file.
    is_looking: Arc<AtomicBool>,
    /// How much may be touched, by all VMMs that come.
    allowance: Arc<Allowance>,
    /// Writes of guarded memory, for all VMMs that come.
    posted: Option<PostedWrites>,
    /// Time for which memory is guarded the next time that an access waits; the next VMMs go on with it.
    guard: Duration,
    notice: GuardNotice,
}

/// A handle to a guest's memory. See the [module](self).
#[derive(Clone, Debug)]
pub struct GuestMemory(Arc<Mutex<Map>>);

impl Default for GuestMemory {
    fn default() -> Self {
        Self::new(MemoryLimit::Unlimited)
    }
}

impl GuestMemory {
    /// Memory without any ranges, of which the device may touch what the limit allows.
    #[must_use]
    pub fn new(limit: MemoryLimit) -> Self {
        let map = Map::new(Arc::default(), Allowance::new(limit));
        Self(Arc::new(Mutex::new(map)))
    }

    /// Notes with others when it becomes guarded, and when awaited writes are done.
    #[must_use]
    pub fn with_notice(self, notice: GuardNotice) -> Self {
        self.lock().notice = notice;
        self
    }

    /// Returns `true` if an access of the present VMM's memory waited for a page, or one of a VMM's before, not long ago.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.lock().posted.is_some()
    }

    /// Returns the state of the writes that a thread of the VMM's own is to carry out. `None` if there are none. If they are too
    /// many, the [`GuardNotice`] follows when they are fewer.
    #[must_use]
    pub fn posted(&self) -> Option<PostedState> {
        self.lock().posted.as_ref()?.state()
    }

    /// Returns the number of the last of these writes. Until it is done the VMM is not to have a reply, since it expects to see all
    /// writes before that.
    #[must_use]
    pub fn last_posted(&self) -> Option<u64> {
        self.lock().posted.as_ref()?.last()
    }

    /// Returns `true` if a posted write and all before it are done. If not, the [`GuardNotice`] follows when they are: of the write
    /// that was asked for last.
    #[must_use]
    pub fn has_done(&self, number: u64) -> bool {
        let map = self.lock();
        let posted = map.posted.as_ref();
        posted.is_none_or(|posted| posted.has_done(number))
    }

    /// Guards the memory as if an access had waited for a page.
    pub fn guard(&self) {
        let mut map = self.lock();
        if map.posted.is_none() {
            map.guard();
        }
    }

    /// Leaves an interrupt to the thread, behind the posted writes. Returns it if there are none.
    pub fn signal<F: FnOnce() + Send + 'static>(&self, signal: F) -> Option<F> {
        match &self.lock().posted {
            Some(posted) => posted.signal(signal),
            None => Some(signal),
        }
    }

    /// Adds a range. Without a file, or with one on which a page fault could wait for somebody, it is remote.
    ///
    /// # Errors
    /// [`Errno::EXIST`] if it overlaps with another, [`Errno::INVAL`] for an empty or impossible one, one beyond the
    /// file's end, and rights that are none, [`Errno::ACCESS`] if the file cannot be written and the range is to be, [`Errno::NOMEM`]
    /// for too many, or what the system says.
    pub fn map(&self, map: &DmaMap, file: Option<PassedFd>) -> Result<(), Errno> {
        self.lock().add(map, file)
    }

    /// Takes away the ranges that are wholly within a range, and returns how many bytes they had: 0 if there are none,
    /// as the kernel's vfio does.
    ///
    /// # Errors
    /// [`Errno::INVAL`] for an empty or impossible range, or if another is only in part within it.
    pub fn unmap(&self, address: u64, size: u64) -> Result<u64, Errno> {
        self.lock().remove(address, size)
    }

    /// Takes away all ranges, and the way to remote ones.
    pub fn clear(&self) {
        let mut map = self.lock();
        map.allowance.forget_refused();
        let next = Map {
            posted: map.posted.take().filter(PostedWrites::is_remembered),
            guard: map.guard,
            notice: map.notice.clone(),
            ..Map::new(map.is_looking.clone(), map.allowance.clone())
        };
        if let Some(posted) = &next.posted {
            posted.clear();
        }
        *map = next;
    }

    /// Sets whose memory it is. Files that this process has for itself alone are known as not shared then, soon after
    /// they are mapped.
    pub fn set_owner(&self, owner: Option<Pid>) {
        self.lock().owner = owner;
    }

    /// Sets the client whose memory it is, by the descriptor of its socket: accesses are published as work for that.
    pub fn set_client(&self, client: RawFd) {
        self.lock().client = client;
    }

    /// Takes away all ranges, and returns how many bytes they had.
    pub fn unmap_all(&self) -> u64 {
        let ranges = core::mem::take(&mut self.lock().ranges);
        // All addresses are one byte more than can be told.
        let sizes = ranges.values().map(|range| range.size);
        sizes.fold(0, u64::saturating_add)
    }

    /// Lets go of files of which no range is left.
    pub fn release_unused(&self) {
        let mut map = self.lock();
        map.files.retain(|file| Arc::strong_count(file) > 1);
    }

    /// Sets how remote ranges are reached. Without it, each access to one faults.
    pub fn set_remote(&self, remote: Option<Box<dyn RemoteMemory>>) {
        self.lock().remote = remote;
    }

    /// How much there is.
    #[must_use]
    pub fn statistics(&self) -> MemoryStatistics {
        let map = self.lock();
        let mut statistics = MemoryStatistics {
            ranges: map.ranges.len(),
            touched: map.allowance.used(),
            most: map.allowance.most(),
            refused: map.allowance.refused(),
            is_guarded: map.posted.is_some(),
            lost: map.posted.as_ref().map_or(0, PostedWrites::lost),
            ..MemoryStatistics::default()
        };
        for range in map.ranges.values() {
            let bytes = match range.file() {
                Some(_) => &mut statistics.shared,
                None if !range.flags.contains(DmaMapFlags::WRITE) => continue,
                None => &mut statistics.remote,
            };
            *bytes = bytes.saturating_add(range.size);
        }
        statistics
    }

    /// Returns how many mappings of VMMs before are not given back yet.
    #[must_use]
    pub fn releasing(&self) -> usize {
        self.lock().allowance.releasing().files()
    }

    /// Returns how many accesses of the device failed because it may touch no more.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.lock().allowance.refused()
    }

    /// A panic elsewhere leaves the table as it is between two calls, so it goes on being used.
    fn lock(&self) -> MutexGuard<'_, Map> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Map {
    fn new(is_looking: Arc<AtomicBool>, allowance: Arc<Allowance>) -> Self {
        Self {
            ranges: BTreeMap::new(),
            files: Vec::new(),
            remote: None,
            owner: None,
            client: 0,
            is_looking,
            allowance,
            posted: None,
            guard: FIRST_GUARD,
            notice: GuardNotice::default(),
        }
    }

    fn add(&mut self, map: &DmaMap, file: Option<PassedFd>) -> Result<(), Errno> {
        let (address, size, offset) = (map.address.get(), map.size.get(), map.offset.get());
        let flags = DmaMapFlags::from_bits(map.flags.get())
            .filter(|flags| !flags.is_empty())
            .ok_or(Errno::INVAL)?;
        let last = size
            .checked_sub(1)
            .and_then(|more| address.checked_add(more))
            .ok_or(Errno::INVAL)?;
        if self.first_overlapping(address, last).is_some() {
            return Err(Errno::EXIST);
        }
        if self.ranges.len() >= MAX_RANGES {
            return Err(Errno::NOMEM);
        }
        let backing = match file {
            Some(file) if file::is_local(&file) => {
                let end = offset.checked_add(size).ok_or(Errno::INVAL)?;
                let writable = flags.contains(DmaMapFlags::WRITE);
                Backing::File(self.file(file, end, writable)?, offset)
            }
            _ => Backing::Remote,
        };
        let range = Range {
            size,
            flags,
            backing,
        };
        self.ranges.insert(address, range);
        Ok(())
    }

    /// The mapping of a file, which has at least `end` bytes.
    fn file(&mut self, file: PassedFd, end: u64, writable: bool) -> Result<Arc<MappedFile>, Errno> {
        let id = file::id(&file)?;
        let serves = |known: &&Arc<MappedFile>| {
            known.id() == id && known.len() >= end && (known.is_writable() || !writable)
        };
        if let Some(known) = self.files.iter().find(serves) {
            return Ok(known.clone());
        }
        self.files.retain(|file| Arc::strong_count(file) > 1);
        let is_private = match self.owner {
            Some(owner) => sharing::look(owner, id, &self.is_looking),
            None => Arc::default(),
        };
        let (file, lease) = file.into_parts();
        let retry = file.try_clone().map_err(|_| Errno::MFILE)?;
        let map = |file, writable| {
            let (is_private, allowance) = (is_private.clone(), self.allowance.clone());
            MappedFile::map(file, lease.clone(), writable, is_private, allowance)
        };
        let mapped = match map(file, true) {
            Err(Errno::ACCESS | Errno::PERM) if !writable => map(retry, false),
            Err(Errno::PERM) => Err(Errno::ACCESS),
            other => other,
        }?;
        if mapped.len() < end {
            return Err(Errno::INVAL);
        }
        let releasing = self.allowance.releasing();
        let bytes = self.files.iter().map(|file| file.len()).sum::<u64>() + releasing.bytes();
        let files = self.files.len() + self.allowance.left() + releasing.files();
        if files >= MAX_FILES || bytes.saturating_add(mapped.len()) > MAX_BYTES {
            return Err(Errno::NOMEM);
        }
        self.files.push(mapped.clone());
        Ok(mapped)
    }

    fn remove(&mut self, address: u64, size: u64) -> Result<u64, Errno> {
        let last = size
            .checked_sub(1)
            .and_then(|more| address.checked_add(more))
            .ok_or(Errno::INVAL)?;
        let begins_before = self.at(address).is_some_and(|(base, _)| base < address);
        let ends_behind = self
            .at(last)
            .is_some_and(|(base, range)| last - base < range.size - 1);
        if begins_before || ends_behind {
            return Err(Errno::INVAL);
        }
        let within: Vec<u64> = self
            .ranges
            .range(address..=last)
            .map(|(at, _)| *at)
            .collect();
        let removed = within.iter().filter_map(|base| self.ranges.remove(base));
        Ok(removed.fold(0, |bytes, range| bytes + range.size))
    }

    /// The range that an address is in.
    fn at(&self, address: u64) -> Option<(u64, &Range)> {
        let (&base, range) = self.ranges.range(..=address).next_back()?;
        (address - base < range.size).then_some((base, range))
    }

    fn first_overlapping(&self, address: u64, last: u64) -> Option<u64> {
        let before = self.at(address).map(|(base, _)| base);
        before.or_else(|| {
            self.ranges
                .range(address..=last)
                .map(|(base, _)| *base)
                .next()
        })
    }

    /// The part of an access of `len` bytes that is within the first range that it touches: how many bytes, and their place,
    /// unless they are remote.
    fn part(
        &self,
        address: u64,
        len: usize,
        needs: DmaMapFlags,
    ) -> Option<(usize, Option<Place<'_>>)> {
        let (base, range) = self.at(address)?;
        if !range.flags.contains(needs) {
            return None;
        }
        let within = address - base;
        let left = usize::try_from(range.size - within).unwrap_or(usize::MAX);
        let place = range.file().map(|(file, offset)| (file, offset + within));
        Some((len.min(left), place))
    }

    /// Guards memory of which an access waited for a page: the next ones do not.
    #[cold]
    fn guard(&mut self) {
        self.posted = PostedWrites::start(self.notice.clone(), self.guard);
        self.guard = next_guard(self.guard);
        if self.posted.is_some() {
            self.notice.note_guarded();
        }
    }

    /// Ends the guard if no access has waited for its time.
    fn end_guard(&mut self) {
        self.posted.take_if(|posted| posted.is_over());
    }

    fn read(&mut self, mut address: u64, mut buf: &mut [u8]) -> Option<()> {
        self.end_guard();
        while !buf.is_empty() {
            let (len, place) = self.part(address, buf.len(), DmaMapFlags::READ)?;
            let (now, rest) = buf.split_at_mut_checked(len)?;
            let mut has_waited = false;
            let is_read = match (place, &self.posted) {
                (Some((file, offset)), Some(posted)) => posted.read(file, offset, now),
                (Some((file, offset)), None) => {
                    let is_read = file.read(offset, now);
                    has_waited = file.take_waited();
                    is_read
                }
                (None, _) => self.remote.as_mut()?.read(address, now),
            };
            if has_waited {
                self.guard();
            }
            if !is_read {
                return None;
            }
            address = address.wrapping_add(len as u64);
            buf = rest;
        }
        Some(())
    }

    fn write(&mut self, mut address: u64, mut bytes: &[u8]) -> Option<()> {
        self.end_guard();
        while !bytes.is_empty() {
            let (len, place) = self.part(address, bytes.len(), DmaMapFlags::WRITE)?;
            let (now, rest) = bytes.split_at_checked(len)?;
            let mut has_waited = false;
            let is_written = match (place, &self.posted) {
                (Some((file, offset)), Some(posted)) => posted.write(file, offset, now),
                (Some((file, offset)), None) => {
                    let is_written = file.write(offset, now);
                    has_waited = file.take_waited();
                    is_written
                }
                (None, _) => self.remote.as_mut()?.write(address, now),
            };
            if has_waited {
                self.guard();
            }
            if !is_written {
                return None;
            }
            address = address.wrapping_add(len as u64);
            bytes = rest;
        }
        Some(())
    }

    fn update(&mut self, address: u64, update: &mut dyn FnMut(u64) -> u64) -> Option<u64> {
        self.end_guard();
        let both = DmaMapFlags::READ | DmaMapFlags::WRITE;
        let (len, place) = self.part(address, 8, both)?;
        if len < 8 || !address.is_multiple_of(8) {
            return None;
        }
        match (place, &self.posted) {
            (Some((file, offset)), Some(posted)) => return posted.update(file, offset, update),
            (Some((file, offset)), None) => {
                let old = file.update(offset, update);
                if file.take_waited() {
                    self.guard();
                }
                return old;
            }
            (None, _) => {}
        }
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        let old = u64::from_ne_bytes(bytes);
        self.write(address, &update(old).to_ne_bytes())?;
        Some(old)
    }
}

impl AddressSpace for GuestMemory {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let len = buf.len();
        let mut map = self.lock();
        let client = map.client;
        let read = during(Work::Page, client, || map.read(addr, buf));
        read.ok_or(DmaFault { addr, len })
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        let len = bytes.len();
        let mut map = self.lock();
        let client = map.client;
        let written = during(Work::Page, client, || map.write(addr, bytes));
        written.ok_or(DmaFault { addr, len })
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        let fault = DmaFault { addr, len: 8 };
        let mut map = self.lock();
        let client = map.client;
        during(Work::Page, client, || map.update(addr, update)).ok_or(fault)
    }

    fn allocate(&mut self, _len: usize) -> Result<DmaBuffer, HcaError> {
        Err(HcaError::Unsupported)
    }

    fn free(&mut self, _buffer: DmaBuffer) {}
}

#[cfg(test)]
mod tests;
