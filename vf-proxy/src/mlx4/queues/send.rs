//! Send queues in the guest's memory.
//!
//! A doorbell tells which queue has something, but not how much: each request carries a bit that tells
//! whose it is, and the device goes on to the first one that is not its own.

use hca_api::{DmaFault, Hca};
use mlx4_defs::wqe::ControlSegment;
use zerocopy::IntoBytes;

use crate::pci::PagedBuffer;

/// Bytes of the largest request: log2 of the stride is at most 7 + 4.
const MAX_STRIDE: usize = 1 << 11;

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

/// The bytes of one request, copied once.
#[derive(Debug)]
pub(super) struct Wqe {
    bytes: [u8; MAX_STRIDE],
    len: usize,
}

impl Wqe {
    /// The slot.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
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

    /// The next request, if the driver has posted one. It stays the next one until it is taken.
    ///
    /// # Errors
    /// [`DmaFault`] where the guest has no memory.
    pub(super) fn peek(&self, hca: &dyn Hca) -> Result<Option<Wqe>, DmaFault> {
        let slot = self.taken & ((1 << self.log_entries) - 1);
        let offset = self.offset + (u64::from(slot) << self.log_stride);
        // Whose it is was written last, so it is read before the rest.
        let mut control = ControlSegment::default();
        self.buffer
            .read(hca, offset, control.owner_opcode.as_mut_bytes())?;
        if control.owner() != (self.taken & 1 << self.log_entries != 0) {
            return Ok(None);
        }
        let mut wqe = Wqe {
            bytes: [0; MAX_STRIDE],
            len: 1 << self.log_stride,
        };
        self.buffer.read(hca, offset, &mut wqe.bytes[..wqe.len])?;
        Ok(Some(wqe))
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
