//! Receive queues in the guest's memory, read when a packet needs a receive.
//!
//! There is no doorbell for receives: the driver counts what it posts in a record in its memory.

use hca_api::{AddressSpace, DmaFault, Hca, PulledReceives, Sge};
use mlx4_defs::receive::{DoorbellRecord, SrqNextSegment};
use mlx4_defs::wqe::DataSegment;
use zerocopy::IntoBytes;

use super::keys::{LocalKeys, SharedKeys};
use vf_pci::PagedBuffer;

/// How the guest's memory is read: by the provider, or by the function itself.
pub(super) type Reader<'a> = dyn Fn(u64, &mut [u8]) -> Result<(), DmaFault> + 'a;

/// Where the receives of a queue are.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    pub(super) buffer: PagedBuffer,
    /// Offset of the first one in the buffer.
    pub(super) offset: u64,
    pub(super) log_entries: u8,
    /// Log2 of the bytes from one to the next.
    pub(super) log_stride: u8,
    /// Address of the [`DoorbellRecord`].
    pub(super) doorbell_record: u64,
}

/// Segments of a slot that are read at a time. Most receives have fewer.
const CHUNK: usize = 4;

/// Bytes of the longest datagram: 4096, and the space for its GRH.
const LONGEST_DATAGRAM: u32 = 4096 + 40;

impl Slots {
    /// Receives posted since the queue was made, modulo 2^16; none where the record cannot be read.
    fn posted(&self, read: &Reader<'_>) -> Option<u16> {
        let mut record = DoorbellRecord::default();
        read(self.doorbell_record, record.as_mut_bytes()).ok()?;
        Some(record.posted())
    }

    /// Reads a message of so many bytes that a slot took, and returns `true` if it is in memory that the guest has and the
    /// reserved key names.
    pub(super) fn read_message(
        &self,
        hca: &dyn Hca,
        index: u16,
        keys: LocalKeys,
        length: u32,
        message: &mut Vec<u8>,
    ) -> bool {
        let mut scatter = Vec::new();
        let slot = index & ((1 << self.log_entries) - 1);
        let read = |addr, buf: &mut [u8]| hca.dma_read(addr, buf);
        if self.scatter(&read, slot, 0, keys, &mut scatter).is_err() {
            return false;
        }
        message.clear();
        let mut left = length.min(LONGEST_DATAGRAM);
        for sge in scatter {
            let start = message.len();
            let now = left.min(sge.len);
            left -= now;
            message.resize(start + now as usize, 0);
            let reserved = Some(sge.lkey) == keys.whole_space;
            if !reserved || hca.dma_read(sge.addr, &mut message[start..]).is_err() {
                return false;
            }
        }
        left == 0
    }

    /// Appends the scatter list of a slot, which starts behind `skip` bytes of it. Reads no further than a chunk behind its end.
    fn scatter(
        &self,
        read: &Reader<'_>,
        slot: u16,
        skip: usize,
        keys: LocalKeys,
        scatter: &mut Vec<Sge>,
    ) -> Result<(), DmaFault> {
        let mut chunk = [DataSegment::default(); CHUNK];
        let end = 1 << self.log_stride;
        for at in (skip..end).step_by(size_of_val(&chunk)) {
            let left = (end - at) / size_of::<DataSegment>();
            let segments = &mut chunk[..left.min(CHUNK)];
            self.read(read, slot, at, segments.as_mut_bytes())?;
            for segment in segments {
                if segment.ends_receive() {
                    return Ok(());
                }
                scatter.push(keys.sge(segment));
            }
        }
        Ok(())
    }

    /// Reads a part of a slot.
    fn read(
        &self,
        read: &Reader<'_>,
        slot: u16,
        at: usize,
        bytes: &mut [u8],
    ) -> Result<(), DmaFault> {
        let offset = self.offset + (u64::from(slot) << self.log_stride) + at as u64;
        self.buffer.read_with(offset, bytes, read)
    }
}

/// The receive queue of one queue pair. Receives are named by their running count.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    slots: Slots,
    keys: LocalKeys,
    /// What the names of receives start with.
    name: u64,
    /// Receives taken, modulo 2^16.
    taken: u16,
}

impl ReceiveQueue {
    pub(super) const fn new(slots: Slots, keys: LocalKeys, name: u64) -> Self {
        Self {
            slots,
            keys,
            name,
            taken: 0,
        }
    }

    fn waiting(&self, read: &Reader<'_>) -> u16 {
        let posted = self.slots.posted(read);
        posted.map_or(0, |posted| posted.wrapping_sub(self.taken))
    }
}

impl PulledReceives for ReceiveQueue {
    fn pull(&mut self, memory: &dyn AddressSpace, scatter: &mut Vec<Sge>) -> Option<u64> {
        let read = |addr, buf: &mut [u8]| memory.read(addr, buf);
        if self.waiting(&read) == 0 {
            return None;
        }
        let slot = self.taken & ((1 << self.slots.log_entries) - 1);
        let listed = self.slots.scatter(&read, slot, 0, self.keys, scatter);
        if listed.is_err() {
            scatter.clear();
            scatter.push(LocalKeys::NOWHERE);
        }
        let name = self.name | u64::from(self.taken);
        self.taken = self.taken.wrapping_add(1);
        Some(name)
    }

    fn pending(&self, memory: &dyn AddressSpace) -> usize {
        self.waiting(&|addr, buf| memory.read(addr, buf)).into()
    }
}

/// A shared receive queue: a chain of slots. Receives are named by their slot.
#[derive(Debug)]
pub(super) struct SharedReceiveQueue {
    slots: Slots,
    keys: SharedKeys,
    /// The slot to take next. Which one comes after it stands in it, once it is posted.
    head: u16,
    /// Receives taken, modulo 2^16.
    taken: u16,
}

impl SharedReceiveQueue {
    pub(super) const fn new(slots: Slots, keys: SharedKeys) -> Self {
        Self {
            slots,
            keys,
            head: 0,
            taken: 0,
        }
    }

    fn waiting(&self, read: &Reader<'_>) -> u16 {
        let posted = self.slots.posted(read);
        posted.map_or(0, |posted| posted.wrapping_sub(self.taken))
    }
}

impl PulledReceives for SharedReceiveQueue {
    fn pull(&mut self, memory: &dyn AddressSpace, scatter: &mut Vec<Sge>) -> Option<u64> {
        let read = |addr, buf: &mut [u8]| memory.read(addr, buf);
        if self.waiting(&read) == 0 {
            return None;
        }
        let slot = self.head;
        let skip = size_of::<SrqNextSegment>();
        let keys = self.keys.get();
        let mut segment = SrqNextSegment::default();
        let head = self.slots.read(&read, slot, 0, segment.as_mut_bytes());
        match head.and_then(|()| self.slots.scatter(&read, slot, skip, keys, scatter)) {
            // A chain that leads out of the queue goes on inside it.
            Ok(()) => self.head = segment.next.get() & ((1 << self.slots.log_entries) - 1),
            Err(_) => {
                scatter.clear();
                scatter.push(LocalKeys::NOWHERE);
            }
        }
        self.taken = self.taken.wrapping_add(1);
        Some(slot.into())
    }

    fn pending(&self, memory: &dyn AddressSpace) -> usize {
        self.waiting(&|addr, buf| memory.read(addr, buf)).into()
    }
}

#[cfg(test)]
mod tests;
