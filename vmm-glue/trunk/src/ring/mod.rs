//! Split queues of virtio in shared memory, which carry chunks of bytes one way each (virtio 1.2, section 2.7).
//!
//! A chunk is the bytes of one descriptor chain, and holds whole records. The driver owns the memory and the buffers; the other end
//! is the device. Both ends take the other one for hostile: each index, length and address is checked where it is read, bytes are
//! copied once and never looked at in the shared memory, and the first thing that no honest end writes is an error that ends the trunk.
//!
//! Notifications are suppressed by event indices (section 2.7.10): an end asks for one when it is about to wait, so that two
//! busy ends make no system call.

mod device;
mod driver;
mod layout;
pub(crate) mod memory;
pub(crate) mod signal;
#[cfg(test)]
mod tests;

use ib_trunk::RecordSink;
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

pub(crate) use device::{DeviceReceiver, DeviceSender};
pub(crate) use driver::{DriverReceiver, DriverSender};
pub(crate) use layout::{Buffers, QueueAddresses};
pub use signal::Signals;

/// The shared memory, as either end has it mapped.
pub(crate) type Memory = GuestMemoryMmap<()>;

/// Copies a part behind the bytes of a buffer, which is not filled with zeros first.
fn copy(memory: &Memory, (address, length): Part, to: &mut Vec<u8>) -> Result<(), RingError> {
    let length = usize::try_from(length).map_err(|_| RingError::Length(length))?;
    Ok(memory.write_all_volatile_to(address, to, length)?)
}

/// Descriptors of one chain that are read at most. The driver of this crate uses one.
const PARTS: usize = 4;

/// Reason for which a trunk over queues ends: the other end broke the rules.
#[derive(Debug, Error)]
pub enum RingError {
    /// An index is further ahead than a queue has places.
    #[error(
        "the other end moved the index of a queue ahead by {0} places, beyond the end of the queue"
    )]
    Index(u16),
    /// A descriptor that the other end does not have.
    #[error("the other end gave back descriptor {0}, which it did not have")]
    Descriptor(u32),
    /// A length that no chunk in the buffer has.
    #[error(
        "the other end wrote {0} bytes into a buffer by its own account, which is none or more than the buffer has"
    )]
    Length(u32),
    /// A chain of another form: cut short or empty, of too many descriptors, of the wrong direction, or too short or long.
    #[error("the other end made a descriptor chain available that is {0}")]
    Chain(&'static str),
    /// An address outside the shared memory.
    #[error("an address outside the shared memory: {0}")]
    Address(#[from] GuestMemoryError),
    /// An error of the device's side of a queue.
    #[error("a queue: {0}")]
    Queue(#[from] virtio_queue::Error),
}

/// The end of a queue that chunks enter.
pub(crate) trait Sender: core::fmt::Debug + Send {
    /// Returns `true` if [`Self::send`] takes a chunk now.
    ///
    /// # Errors
    /// [`RingError`], after which the queue is of no use.
    fn has_room(&mut self) -> Result<bool, RingError>;

    /// Sends the chunk that `fill` writes, unless that is nothing. There is room for it, and it is at most as long as the buffers of the
    /// queue.
    ///
    /// # Errors
    /// [`RingError`].
    fn write(&mut self, fill: &mut dyn FnMut(&mut ChunkWriter<'_>)) -> Result<(), RingError>;

    /// Asks for a notification once there is room. Returns `true` if there is room already, and then none may come.
    ///
    /// # Errors
    /// [`RingError`].
    fn await_room(&mut self) -> Result<bool, RingError>;

    /// Returns `true` if the other end waits for chunks that were sent since the last call.
    ///
    /// # Errors
    /// [`RingError`].
    fn must_notify(&mut self) -> Result<bool, RingError>;
}

/// A part of the shared memory: its address, and its bytes.
type Part = (GuestAddress, u32);

/// Writes a chunk to its place in the shared memory.
#[derive(Debug)]
pub(crate) struct ChunkWriter<'m> {
    memory: &'m Memory,
    /// Parts of the place behind the bytes that were written.
    parts: Vec<Part>,
    written: usize,
    error: Option<RingError>,
}

impl<'m> ChunkWriter<'m> {
    /// Writes to parts, the last one first.
    fn new(memory: &'m Memory, mut parts: Vec<Part>) -> Self {
        parts.reverse();
        Self {
            memory,
            parts,
            written: 0,
            error: None,
        }
    }

    /// Returns the bytes that were written.
    ///
    /// # Errors
    /// [`RingError`] if the place was too short, or outside of the memory.
    fn finish(self) -> Result<u32, RingError> {
        match self.error {
            Some(error) => Err(error),
            None => u32::try_from(self.written).map_err(|_| RingError::Chain("too short")),
        }
    }

    fn try_append(&mut self, mut bytes: &[u8]) -> Result<(), RingError> {
        while !bytes.is_empty() {
            let short = RingError::Chain("too short");
            let (address, length) = self.parts.pop().ok_or(short)?;
            let most = usize::try_from(length).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(most.min(bytes.len()));
            self.memory.write_slice(now, address)?;
            self.written += now.len();
            bytes = later;
            let taken = u32::try_from(now.len()).unwrap_or(length);
            if taken < length {
                // The address is one that the memory has.
                let rest = GuestAddress(address.0.saturating_add(taken.into()));
                self.parts.push((rest, length - taken));
            }
        }
        Ok(())
    }
}

impl RecordSink for ChunkWriter<'_> {
    fn written(&self) -> usize {
        self.written
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error = self.try_append(bytes).err();
        }
    }
}

/// The end of a queue that chunks leave.
pub(crate) trait Receiver: core::fmt::Debug + Send {
    /// Returns the number of chunks that wait.
    ///
    /// # Errors
    /// [`RingError`].
    fn waiting(&mut self) -> Result<u16, RingError>;

    /// Copies the next chunk into `buffer` in place of its bytes. Returns `false` if none waits.
    ///
    /// # Errors
    /// [`RingError`].
    fn receive(&mut self, buffer: &mut Vec<u8>) -> Result<bool, RingError>;

    /// Asks for a notification once a chunk waits. Returns `true` if one waits already, and then none may come.
    ///
    /// # Errors
    /// [`RingError`].
    fn await_chunk(&mut self) -> Result<bool, RingError>;

    /// Returns `true` if the other end waits for the room of chunks that were received since the last call.
    ///
    /// # Errors
    /// [`RingError`].
    fn must_notify(&mut self) -> Result<bool, RingError>;
}
