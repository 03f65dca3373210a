//! Receive queues in the guest's memory, read when a packet needs a receive.
//!
//! There is no doorbell for receives: the driver counts what it posts in a record in its memory.

use hca_api::{AddressSpace, DmaFault, Hca, PulledReceives, Sge};
use mlx4_defs::receive::{DoorbellRecord, SrqNextSegment};
use mlx4_defs::wqe::DataSegment;
use zerocopy::{FromBytes, IntoBytes};

use super::keys::{LocalKeys, SharedKeys};
use crate::pci::PagedBuffer;

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

/// Bytes of the largest receive: log2 of the stride is at most 7 + 4.
const MAX_STRIDE: usize = 1 << 11;

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

    /// Appends the scatter list of a slot, whose first `skip` bytes are something else and given back.
    fn scatter(
        &self,
        read: &Reader<'_>,
        slot: u16,
        skip: usize,
        keys: LocalKeys,
        scatter: &mut Vec<Sge>,
    ) -> Result<SrqNextSegment, DmaFault> {
        let mut bytes = [0; MAX_STRIDE];
        let bytes = &mut bytes[..1 << self.log_stride];
        let offset = self.offset + (u64::from(slot) << self.log_stride);
        self.buffer.read_with(offset, bytes, read)?;
        let (head, list) = bytes.split_at(skip.min(bytes.len()));
        let segments = <[DataSegment]>::ref_from_bytes(list).unwrap_or_default();
        let used = segments
            .iter()
            .take_while(|segment| !segment.ends_receive());
        scatter.extend(used.map(|segment| keys.sge(segment)));
        Ok(SrqNextSegment::read_from_bytes(head).unwrap_or_default())
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
        match self.slots.scatter(&read, slot, skip, keys, scatter) {
            // A chain that leads out of the queue goes on inside it.
            Ok(segment) => self.head = segment.next.get() & ((1 << self.slots.log_entries) - 1),
            Err(_) => scatter.push(LocalKeys::NOWHERE),
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
