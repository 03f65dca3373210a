//! Send queues in the guest's memory.
//!
//! A doorbell tells which queue has something, but not how much: each request carries a bit that tells
//! whose it is, and the device goes on to the first one that is not its own.

use hca_api::{DmaFault, Hca};
use mlx4_defs::wqe::ControlSegment;
use zerocopy::IntoBytes;

use super::wqe::request_size;
use vf_pci::PagedBuffer;

/// A send queue.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) buffer: PagedBuffer,
    /// Offset of the first slot in the buffer.
    pub(super) offset: u64,
    pub(super) log_entries: u8,
    /// Log2 of the bytes from one to the next.
    pub(super) log_stride: u8,
    /// Requests taken.
    taken: u32,
}

/// The bytes of one request, copied once. The room for them is used again for the next request.
#[derive(Debug, Default)]
pub(super) struct Wqe {
    room: Vec<u8>,
    len: usize,
}

impl Wqe {
    /// Returns the request, without the rest of its slot. One that would be longer than its slot ends with it.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }

    /// Returns the bytes to be overwritten behind those that were read, up to a length in all.
    fn grow(&mut self, len: usize) -> &mut [u8] {
        if self.room.len() < len {
            self.room.resize(len, 0);
        }
        let read = core::mem::replace(&mut self.len, len);
        &mut self.room[read..len]
    }
}

impl SendQueue {
    pub(super) const fn new(
        buffer: PagedBuffer,
        offset: u64,
        log_entries: u8,
        log_stride: u8,
    ) -> Self {
        Self {
            buffer,
            offset,
            log_entries,
            log_stride,
            taken: 0,
        }
    }

    /// Reads the next request, as far as its size field goes, and returns `true` if the driver has posted one. It stays the next
    /// one until it is taken.
    ///
    /// # Errors
    /// [`DmaFault`] where the guest has no memory.
    pub(super) fn peek(&self, hca: &dyn Hca, wqe: &mut Wqe) -> Result<bool, DmaFault> {
        let slot = self.taken & ((1 << self.log_entries) - 1);
        let offset = self.offset + (u64::from(slot) << self.log_stride);
        // Whose it is was written last, so it is read before the rest.
        let mut control = ControlSegment::default();
        self.buffer
            .read(hca, offset, control.owner_opcode.as_mut_bytes())?;
        if control.owner() != (self.taken & 1 << self.log_entries != 0) {
            return Ok(false);
        }
        self.buffer.read(hca, offset, control.as_mut_bytes())?;
        let header = control.as_bytes();
        wqe.len = 0;
        wqe.grow(header.len()).copy_from_slice(header);
        let slot = 1 << self.log_stride;
        let size = request_size(&control, slot).clamp(header.len(), slot);
        let behind = offset + header.len() as u64;
        self.buffer.read(hca, behind, wqe.grow(size))?;
        Ok(true)
    }

    /// Takes the request that was looked at.
    pub(super) const fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// The running count of the next request, modulo 2^16.
    pub(super) const fn index(&self) -> u16 {
        let [.., high, low] = self.taken.to_be_bytes();
        u16::from_be_bytes([high, low])
    }
}

#[cfg(test)]
mod tests;
