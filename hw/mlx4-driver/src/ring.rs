//! Work queues: slots in a queue pair's buffer.

use alloc::vec;
use alloc::vec::Vec;

use mlx4_defs::receive::DoorbellRecord;
use mlx4_defs::wqe::{ControlSegment, DataSegment, INVALID_LKEY, SEGMENT_UNIT, SQ_HEADROOM, STAMP};
use zerocopy::network_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::DriverError;
use super::buffer::Buffer;
use super::error::oops;
use super::memory::Memory;

/// Bytes of guest memory under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// First byte, as the region counts.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The region's key.
    pub lkey: u32,
}

impl Sge {
    pub(super) fn segment(&self) -> DataSegment {
        DataSegment {
            byte_count: U32::new(self.len),
            lkey: U32::new(self.lkey),
            address: U64::new(self.addr),
        }
    }
}

/// The segment behind the last one of a receive.
pub(super) fn last_segment() -> DataSegment {
    Sge {
        addr: 0,
        len: 0,
        lkey: INVALID_LKEY,
    }
    .segment()
}

/// Half of a queue pair.
#[derive(Debug)]
pub(super) struct Ring {
    /// Slots, a power of two, or none.
    pub(super) slots: u32,
    /// Log2 of a slot's bytes.
    pub(super) shift: u32,
    /// Offset of its first byte in the buffer.
    pub(super) offset: usize,
    /// Requests that may be outstanding.
    pub(super) max_posted: u32,
    head: u32,
    tail: u32,
    wr_ids: Vec<u64>,
}

impl Ring {
    /// A ring of so many slots.
    pub(super) fn new(slots: u32, shift: u32, max_posted: u32) -> Self {
        Self {
            slots,
            shift,
            offset: 0,
            max_posted,
            head: 0,
            tail: 0,
            wr_ids: vec![0; slots as usize],
        }
    }

    /// No ring.
    pub(super) const fn none() -> Self {
        Self {
            slots: 0,
            shift: 0,
            offset: 0,
            max_posted: 0,
            head: 0,
            tail: 0,
            wr_ids: Vec::new(),
        }
    }

    /// Bytes of the ring.
    pub(super) const fn bytes(&self) -> usize {
        (self.slots as usize) << self.shift
    }

    /// Slots of a send queue that are never filled.
    pub(super) const fn spare(shift: u32) -> u32 {
        (SQ_HEADROOM >> shift) + 1
    }

    /// Requests that are outstanding.
    pub(super) const fn outstanding(&self) -> u32 {
        self.head.wrapping_sub(self.tail)
    }

    /// Takes a slot for a request; gives its offset in the buffer and its running count.
    pub(super) fn post(&mut self, wr_id: u64) -> Result<(usize, u32), DriverError> {
        if self.outstanding() >= self.max_posted {
            return Err(DriverError::Usage("the queue is full"));
        }
        let index = self.head;
        self.head = self.head.wrapping_add(1);
        let slot = index & (self.slots - 1);
        self.wr_ids[slot as usize] = wr_id;
        Ok((self.slot(index), index))
    }

    /// The offset of a slot in the buffer.
    pub(super) const fn slot(&self, index: u32) -> usize {
        self.offset + (((index & (self.slots - 1)) as usize) << self.shift)
    }

    /// Completes the oldest request. Returns its name and its slot.
    pub(super) fn complete(&mut self) -> Result<(u64, usize), DriverError> {
        if self.outstanding() == 0 {
            return Err(oops("a completion of a request that was never posted"));
        }
        let slot = (self.tail & (self.slots - 1)) as usize;
        self.tail = self.tail.wrapping_add(1);
        Ok((self.wr_ids[slot], slot))
    }

    /// Skips requests that completed without an entry: `counter` is the 16-bit count of the one that
    /// has an entry.
    pub(super) fn skip_to(&mut self, counter: u16) {
        let [.., high, low] = self.tail.to_be_bytes();
        let ahead = counter.wrapping_sub(u16::from_be_bytes([high, low]));
        self.tail = self.tail.wrapping_add(u32::from(ahead));
    }

    /// The 16-bit count of the request that completes next.
    pub(super) fn next_counter(&self) -> u16 {
        let [.., high, low] = self.tail.to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    /// Forgets what was posted, as at a reset.
    pub(super) const fn reset(&mut self) {
        self.head = 0;
        self.tail = 0;
    }

    /// Writes the doorbell record of posted receives.
    pub(super) fn ring_record(&self, memory: &Memory, record: u64) {
        let mut posted = DoorbellRecord::default();
        let [.., high, low] = self.head.to_be_bytes();
        posted.set_posted(u16::from_be_bytes([high, low]));
        memory.write(record, posted.as_bytes());
    }

    /// Writes the segments of a receive.
    pub(super) fn write_receive(&self, buffer: &Buffer, at: usize, sges: &[Sge]) {
        let room = (1 << self.shift) / SEGMENT_UNIT;
        for (index, sge) in sges.iter().enumerate() {
            buffer.write(at + index * SEGMENT_UNIT, sge.segment().as_bytes());
        }
        if sges.len() < room {
            buffer.write(at + sges.len() * SEGMENT_UNIT, last_segment().as_bytes());
        }
    }

    /// Makes every slot of a send queue the driver's (`__mlx4_ib_modify_qp`, reset to init).
    pub(super) fn stamp_all(&self, buffer: &Buffer) {
        for index in 0..self.slots {
            let mut control = ControlSegment::default();
            control.set_owner(true);
            control.fence_size = 1 << (self.shift - 4);
            let at = self.slot(index);
            let bytes = control.as_bytes();
            buffer.write(at, &bytes[..8]);
            self.stamp(buffer, index);
        }
    }

    /// Overwrites the starts of a slot's later lines, so that the device does not read old requests
    /// ahead (`stamp_send_wqe`).
    pub(super) fn stamp(&self, buffer: &Buffer, index: u32) {
        let at = self.slot(index);
        let bytes: [u8; 16] = buffer.read(at);
        let Ok(control) = ControlSegment::read_from_bytes(&bytes) else {
            return;
        };
        let size = (usize::from(control.size()) * SEGMENT_UNIT).min(1 << self.shift);
        for line in (64..size).step_by(64) {
            buffer.write(at + line, &STAMP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_refuses_more_than_it_may_hold_and_completes_in_order() {
        let mut ring = Ring::new(8, 6, 3);
        for wr_id in 0..3 {
            ring.post(wr_id).unwrap();
        }
        assert!(ring.post(3).is_err());
        assert_eq!(ring.complete().unwrap().0, 0);
        ring.skip_to(2);
        assert_eq!(ring.complete().unwrap().0, 2);
        assert!(ring.complete().is_err());
    }
}
