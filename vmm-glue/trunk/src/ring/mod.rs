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

use thiserror::Error;
use vm_memory::{GuestMemoryError, GuestMemoryMmap};

pub(crate) use device::{DeviceReceiver, DeviceSender};
pub(crate) use driver::{DriverReceiver, DriverSender};
pub(crate) use layout::{Buffers, QueueAddresses};
pub use signal::Signals;

/// The shared memory, as either end has it mapped.
pub(crate) type Memory = GuestMemoryMmap<()>;

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

    /// Sends a chunk, for which there is room and which is at most as long as the buffers of the queue.
    ///
    /// # Errors
    /// [`RingError`].
    fn send(&mut self, chunk: &[u8]) -> Result<(), RingError>;

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

/// Returns the front of a buffer, which grows if it is too short: zeros are written once.
fn front(buffer: &mut Vec<u8>, length: u32) -> Result<&mut [u8], RingError> {
    let length = usize::try_from(length).map_err(|_| RingError::Length(length))?;
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
    Ok(buffer.get_mut(..length).unwrap_or_default())
}

/// The end of a queue that chunks leave.
pub(crate) trait Receiver: core::fmt::Debug + Send {
    /// Returns the number of chunks that wait.
    ///
    /// # Errors
    /// [`RingError`].
    fn waiting(&mut self) -> Result<u16, RingError>;

    /// Copies the next chunk to the front of `buffer`, which grows if it is too short. Returns the bytes of the chunk, or `None` if none
    /// waits.
    ///
    /// # Errors
    /// [`RingError`].
    fn receive(&mut self, buffer: &mut Vec<u8>) -> Result<Option<usize>, RingError>;

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
