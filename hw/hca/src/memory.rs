//! Memory: a function's address space, and what is registered of it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::cell::Cell;
use core::fmt;
use core::ops::Range;

use bitflags::bitflags;

use crate::{DmaFault, HcaError, LKey, MrHandle, MwHandle, PdHandle, RKey};

bitflags! {
    /// Rights to a region, a window or a QP (IBA 10.6.3).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AccessFlags: u16 {
        /// The device may write for local requests.
        const LOCAL_WRITE = 1 << 0;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound.
        const MW_BIND = 1 << 4;
        /// Addresses count from zero.
        const ZERO_BASED = 1 << 5;
        /// Peers may invalidate the key by a send; of regions for fast registration.
        const REMOTE_INVALIDATE = 1 << 6;
        /// Peers may flush, so that all that read the memory find their writes (IBA annex A19).
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may flush to persistent memory. A queue pair may have the right; a region without such memory may not.
        const FLUSH_PERSISTENT = 1 << 9;
    }
}

/// The memory that a function can reach, addressed as its consumer addresses it: guest-physical for a
/// guest, virtual for a process.
///
/// The provider calls it with addresses that a consumer chose, so every access is checked.
pub trait AddressSpace: fmt::Debug + Send {
    /// Copies bytes out.
    ///
    /// # Errors
    /// [`DmaFault`] if any byte is not readable; then `buf` holds unspecified bytes.
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault>;

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`DmaFault`] if any byte is not writable; then a part may have been written.
    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault>;

    /// Replaces the 64-bit value (in the consumer's byte order) at a multiple of eight by what
    /// `update` makes of it, atomically, and gives the old value.
    ///
    /// # Errors
    /// [`DmaFault`] if the value is not accessible or not aligned.
    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault>;

    /// Returns `true` if bytes are readable and mapped in this process, so that [`Self::copy_from`] of another address space needs no
    /// buffer for them.
    fn is_mapped(&self, _addr: u64, _len: usize) -> bool {
        false
    }

    /// Returns itself as [`Self::copy_from`] of other address spaces of its type looks for it, or `None` if it reads by
    /// [`Self::read`] alone.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Copies `len` bytes in from an address of another address space.
    ///
    /// # Errors
    /// [`DmaFault`] if any byte is not readable there or not writable here; then a part may have been written.
    fn copy_from(
        &mut self,
        addr: u64,
        from: (&dyn AddressSpace, u64),
        len: usize,
    ) -> Result<(), DmaFault> {
        copy_through_buffer(self, addr, from, len)
    }

    /// Returns the runs of mapped files behind `len` bytes, in the order of the bytes. `None` if some are in no such file.
    fn runs(&self, _addr: u64, _len: u64) -> Option<Vec<FileRun>> {
        None
    }

    /// Sets memory aside for the consumer's own buffers. Address spaces that belong to somebody else
    /// (a guest's memory) refuse.
    ///
    /// # Errors
    /// [`HcaError::Unsupported`], or [`HcaError::InsufficientResources`].
    fn allocate(&mut self, len: usize) -> Result<DmaBuffer, HcaError>;

    /// Gives memory back. Unknown buffers are ignored.
    fn free(&mut self, buffer: DmaBuffer);
}

/// Copies `len` bytes from one address space to another where neither can give its bytes to the other's
/// [`copy_from`](AddressSpace::copy_from).
///
/// # Errors
/// As [`AddressSpace::copy_from`].
pub fn copy_through_buffer(
    to: &mut (impl AddressSpace + ?Sized),
    addr: u64,
    (source, from): (&dyn AddressSpace, u64),
    len: usize,
) -> Result<(), DmaFault> {
    let mut buffer = [0; 4096];
    for done in (0..len).step_by(buffer.len()) {
        let bytes = &mut buffer[..(len - done).min(4096)];
        source.read(from.wrapping_add(done as u64), bytes)?;
        to.write(addr.wrapping_add(done as u64), bytes)?;
    }
    Ok(())
}

/// Bytes of a file that this process has mapped, by which an adapter of the host reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRun {
    /// The file, as the provider of the adapter numbers its files.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Memory that a consumer set aside for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DmaBuffer {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
}

/// A region's origin (IBA 11.2.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MrKind<'a> {
    /// A range of the function's address space (Register Memory Region).
    Virtual {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// A range of the function's address space under addresses of its own (`reg_mr` with an `hca_va`).
    Translated {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
        /// First byte of the region, in its own address count.
        iova: u64,
    },
    /// A list of pages (Register Physical Memory Region).
    Physical {
        /// Page addresses in the function's address space. A provider that looks them up at each access shares the
        /// list, which can be long.
        pages: &'a Arc<Vec<u64>>,
        /// Base-2 logarithm of the page size.
        page_shift: u8,
        /// First byte of the region, in its own address count.
        iova: u64,
        /// Offset of that byte in the first page.
        first_offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The memory of another region (Register Shared Memory Region).
    Shared {
        /// The region.
        of: MrHandle,
        /// First byte of the new region, in its own address count.
        iova: u64,
    },
    /// Empty until a fast registration fills it, and again from its invalidation on (Allocate L_Key). [`MrSpec::access`] has the
    /// rights that a registration may give it.
    FastRegister {
        /// Pages that it must be able to hold.
        max_pages: u32,
    },
    /// The function's whole address space, for privileged consumers (Reserved L_Key).
    WholeSpace,
}

/// What a memory region is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MrSpec<'a> {
    /// Protection domain.
    pub pd: PdHandle,
    /// Origin.
    pub kind: MrKind<'a>,
    /// Rights.
    pub access: AccessFlags,
    /// The key to give it, for consumers that allocate keys themselves; the local and the remote key
    /// are then equal. `None` leaves the choice to the provider.
    pub key: Option<u32>,
}

/// The names of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrKeys {
    /// For later calls.
    pub handle: MrHandle,
    /// For local work requests.
    pub lkey: LKey,
    /// For peers; refused unless remote rights were given.
    pub rkey: RKey,
}

/// Kinds of memory windows (IBA 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Type 1: bound again and again; belongs to the protection domain, and is never invalidated.
    Type1,
    /// Type 2B: bound when it is free; belongs to the queue pair that binds it, and is free again when that or its peer invalidates
    /// it, or when that is destroyed.
    Type2,
}

/// The names of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwKeys {
    /// For later calls.
    pub handle: MwHandle,
    /// The key, usable once the window is bound. Each binding may change its low byte.
    pub rkey: RKey,
}

/// An address space of heap memory for consumers inside this process.
///
/// Buffers are the only memory there is: addresses between and behind them fault. Freed addresses are
/// not given out again until the count of 2^64 ends, so a stale address never reads a
/// neighbour's bytes. A buffer takes memory as far as it was written, since of a ring of hundreds of
/// places most consumers only ever use the first few.
#[derive(Debug, Default)]
pub struct HostMemory {
    /// First bytes of the buffers, in order. By themselves, since each access searches them.
    bases: Vec<u64>,
    /// What is there.
    buffers: Vec<Buffer>,
    /// The buffer that was found last. The next one is often the same, or the one behind it: queues that
    /// were made one after the other are served in that order, too.
    last: Cell<usize>,
    allocated: usize,
    next: u64,
}

impl HostMemory {
    /// Gap between buffers, so that an overrun faults.
    const GUARD: u64 = 4096;
    /// All buffers together: one consumer cannot take the process's memory.
    const MAX_BYTES: usize = 1 << 30;

    /// An address space without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes set aside now.
    #[must_use]
    pub const fn allocated(&self) -> usize {
        self.allocated
    }

    /// Where bytes are: which buffer, and where in it.
    fn find(&self, addr: u64, len: usize) -> Result<(usize, Range<usize>), DmaFault> {
        let within = |at: usize| {
            let offset = addr.checked_sub(*self.bases.get(at)?)?;
            let start = usize::try_from(offset).ok()?;
            let end = start.checked_add(len)?;
            (end <= self.buffers.get(at)?.len).then_some((at, start..end))
        };
        let last = self.last.get();
        if let Some(found) = within(last) {
            return Ok(found);
        }
        let found = within(last + 1).or_else(|| {
            let behind = self.bases.partition_point(|base| *base <= addr);
            within(behind.checked_sub(1)?)
        });
        let found = found.ok_or(DmaFault { addr, len })?;
        self.last.set(found.0);
        Ok(found)
    }

    fn slice_mut(&mut self, addr: u64, len: usize) -> Result<&mut [u8], DmaFault> {
        let (at, range) = self.find(addr, len)?;
        Ok(self.buffers[at].slice_mut(range))
    }
}

/// A buffer of a [`HostMemory`].
#[derive(Debug)]
struct Buffer {
    /// The bytes up to the last one that was written; all behind them are zero.
    bytes: Vec<u8>,
    /// Bytes that the consumer may use.
    len: usize,
}

impl Buffer {
    /// Least bytes that are allocated at once.
    const LEAST: usize = 1024;

    const fn new(len: usize) -> Self {
        Self {
            bytes: Vec::new(),
            len,
        }
    }

    /// Copies a range within the buffer.
    fn read(&self, range: Range<usize>, to: &mut [u8]) {
        if let Some(bytes) = self.bytes.get(range.clone()) {
            to.copy_from_slice(bytes);
        } else {
            let written = self.bytes.get(range.start..).unwrap_or_default();
            let (head, tail) = to.split_at_mut(written.len());
            head.copy_from_slice(written);
            tail.fill(0);
        }
    }

    /// Returns a range within the buffer, to be written.
    fn slice_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        if range.end > self.bytes.len() {
            self.grow(range.end);
        }
        &mut self.bytes[range]
    }

    /// Grows to at least `end` bytes, twofold so that a ring that fills up is copied a few times only.
    #[cold]
    fn grow(&mut self, end: usize) {
        let twofold = self.bytes.len().saturating_mul(2).max(Self::LEAST);
        let grown = end.max(twofold).min(self.len);
        self.bytes.reserve_exact(grown - self.bytes.len());
        self.bytes.resize(grown, 0);
    }
}

impl AddressSpace for HostMemory {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let (at, range) = self.find(addr, buf.len())?;
        self.buffers[at].read(range, buf);
        Ok(())
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        self.slice_mut(addr, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn is_mapped(&self, addr: u64, len: usize) -> bool {
        self.find(addr, len).is_ok()
    }

    fn copy_from(
        &mut self,
        addr: u64,
        (source, from): (&dyn AddressSpace, u64),
        len: usize,
    ) -> Result<(), DmaFault> {
        source.read(from, self.slice_mut(addr, len)?)
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        let fault = DmaFault { addr, len: 8 };
        if !addr.is_multiple_of(8) {
            return Err(fault);
        }
        let slot = self.slice_mut(addr, 8)?;
        let old = u64::from_ne_bytes(slot.try_into().map_err(|_| fault)?);
        slot.copy_from_slice(&update(old).to_ne_bytes());
        Ok(old)
    }

    fn allocate(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        let total = self
            .allocated
            .checked_add(len)
            .ok_or(HcaError::InsufficientResources)?;
        if len == 0 || total > Self::MAX_BYTES {
            return Err(HcaError::InsufficientResources);
        }
        let addr = self.next + Self::GUARD;
        self.next = (addr + len as u64).next_multiple_of(Self::GUARD);
        // Addresses only rise.
        self.bases.push(addr);
        self.buffers.push(Buffer::new(len));
        self.allocated = total;
        Ok(DmaBuffer { addr, len })
    }

    fn free(&mut self, buffer: DmaBuffer) {
        if let Ok(at) = self.bases.binary_search(&buffer.addr) {
            self.bases.remove(at);
            self.allocated -= self.buffers.remove(at).len;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_buffer_gives_back_what_was_written() {
        let mut memory = HostMemory::new();
        let buffer = memory.allocate(16).unwrap();
        memory.write(buffer.addr + 4, b"vhca").unwrap();
        let mut bytes = [0; 6];
        memory.read(buffer.addr + 3, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0vhca\0");
    }

    #[test]
    fn an_access_across_the_end_of_a_buffer_faults() {
        let mut memory = HostMemory::new();
        let buffer = memory.allocate(16).unwrap();
        memory.allocate(16).unwrap();
        assert_eq!(
            memory.write(buffer.addr + 10, &[0; 7]),
            Err(DmaFault {
                addr: buffer.addr + 10,
                len: 7
            })
        );
        assert!(memory.read(0, &mut [0]).is_err());
        assert!(memory.read(u64::MAX, &mut [0; 2]).is_err());
    }

    #[test]
    fn bytes_are_copied_from_one_space_to_another() {
        let (mut one, mut other) = (HostMemory::new(), HostMemory::new());
        let from = one.allocate(10_000).unwrap().addr;
        let to = other.allocate(10_000).unwrap().addr;
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| (n % 251) as u8).collect();
        one.write(from, &bytes).unwrap();
        other.copy_from(to + 1, (&one, from), 9_999).unwrap();
        let mut copied = vec![0; 9_999];
        other.read(to + 1, &mut copied).unwrap();
        assert_eq!(copied, bytes[..9_999]);
        copy_through_buffer(&mut other, to, (&one, from), 10_000).unwrap();
        copied.push(0);
        other.read(to, &mut copied).unwrap();
        assert_eq!(copied, bytes);
        assert!(one.is_mapped(from, 10_000) && !one.is_mapped(from, 10_001));
        assert!(other.copy_from(to, (&one, from), 10_001).is_err());
        assert!(other.copy_from(to, (&one, from + 1), 10_000).is_err());
    }

    #[test]
    fn freed_memory_faults_and_is_not_given_out_again() {
        let mut memory = HostMemory::new();
        let first = memory.allocate(64).unwrap();
        memory.free(first);
        assert_eq!(memory.allocated(), 0);
        assert!(memory.read(first.addr, &mut [0]).is_err());
        assert_ne!(memory.allocate(64).unwrap().addr, first.addr);
    }

    #[test]
    fn a_buffer_takes_memory_as_far_as_it_was_written_and_reads_as_zero_behind() {
        let mut memory = HostMemory::new();
        let DmaBuffer { addr, .. } = memory.allocate(1 << 20).unwrap();
        memory.write(addr + 3000, &[7; 2]).unwrap();
        let taken = memory.buffers[0].bytes.capacity();
        assert!(taken < 4096, "{taken} bytes");
        let mut across = [1; 4096];
        memory.read(addr + 2999, &mut across).unwrap();
        assert_eq!(across[..4], [0, 7, 7, 0]);
        assert!(across[4..].iter().all(|byte| *byte == 0));
        let mut behind = [1; 8];
        memory.read(addr + (1 << 20) - 8, &mut behind).unwrap();
        assert_eq!(behind, [0; 8]);
        assert_eq!(memory.buffers[0].bytes.capacity(), taken);
    }

    proptest! {
        /// Against a model that looks at every buffer for every access.
        #[test]
        fn accesses_find_their_buffer_and_no_other(
            steps in prop::collection::vec((0_u8..4, any::<prop::sample::Index>(), 0_usize..40), 1..80)
        ) {
            let mut memory = HostMemory::new();
            let mut model: Vec<(DmaBuffer, Vec<u8>)> = Vec::new();
            for (fill, (step, which, count)) in (0..).zip(steps) {
                if step == 0 || model.is_empty() {
                    let buffer = memory.allocate(count + 1).unwrap();
                    model.push((buffer, vec![0; count + 1]));
                    continue;
                }
                let at = which.index(model.len());
                let start = count / 2;
                if step == 1 {
                    memory.free(model.swap_remove(at).0);
                } else {
                    let (buffer, bytes) = &mut model[at];
                    let fits = start + count <= bytes.len();
                    let written = memory.write(buffer.addr + start as u64, &vec![fill; count]);
                    prop_assert_eq!(written.is_ok(), fits);
                    if fits {
                        bytes[start..start + count].fill(fill);
                    }
                }
                for (buffer, bytes) in &model {
                    let mut got = vec![0; bytes.len()];
                    memory.read(buffer.addr, &mut got).unwrap();
                    prop_assert_eq!(&got, bytes);
                    prop_assert!(memory.read(buffer.addr - 1, &mut [0]).is_err());
                }
                let all: usize = model.iter().map(|(buffer, _)| buffer.len).sum();
                prop_assert_eq!(memory.allocated(), all);
            }
        }
    }

    #[test]
    fn an_atomic_update_needs_alignment() {
        let mut memory = HostMemory::new();
        let buffer = memory.allocate(16).unwrap();
        assert_eq!(memory.update_u64(buffer.addr, &mut |v| v + 7), Ok(0));
        assert_eq!(memory.update_u64(buffer.addr, &mut |v| v), Ok(7));
        assert!(memory.update_u64(buffer.addr + 4, &mut |v| v).is_err());
    }
}
