//! The device's ends of split queues, over `virtio-queue`.

use core::num::Wrapping;
use std::sync::atomic::Ordering;

use virtio_queue::{Error, Queue, QueueOwnedT, QueueT};

use super::layout::QueueAddresses;
use super::{ChunkWriter, Memory, PARTS, Part, Receiver, RingError, Sender, copy};

/// The device's side of a queue.
#[derive(Debug)]
struct DeviceQueue {
    memory: Memory,
    queue: Queue,
    /// Bytes of a chunk at most.
    most: u32,
}

/// A chain that the driver made available.
#[derive(Debug)]
struct Chain {
    head: u16,
    parts: Vec<Part>,
}

impl DeviceQueue {
    fn new(memory: Memory, addresses: QueueAddresses, most: u32) -> Result<Self, RingError> {
        let mut queue = Queue::new(addresses.size)?;
        queue.try_set_desc_table_address(vm_memory::GuestAddress(addresses.descriptors))?;
        queue.try_set_avail_ring_address(vm_memory::GuestAddress(addresses.available))?;
        queue.try_set_used_ring_address(vm_memory::GuestAddress(addresses.used))?;
        queue.set_event_idx(true);
        queue.set_ready(true);
        match queue.is_valid(&memory) {
            true => Ok(Self {
                memory,
                queue,
                most,
            }),
            false => Err(Error::QueueNotReady.into()),
        }
    }

    /// Returns the number of chains that the driver made available, and that were not taken.
    fn available(&self) -> Result<u16, RingError> {
        let index = self.queue.avail_idx(&self.memory, Ordering::Acquire)?;
        let available = index - Wrapping(self.queue.next_avail());
        match available.0 <= self.queue.size() {
            true => Ok(available.0),
            false => Err(RingError::Index(available.0)),
        }
    }

    /// Takes the next chain, of buffers that the device reads or writes. Indirect tables count as the descriptors that they have.
    fn take(&mut self, is_written: bool) -> Result<Option<Chain>, RingError> {
        let Some(mut chain) = self.queue.iter(&self.memory)?.next() else {
            return Ok(None);
        };
        let head = chain.head_index();
        let mut parts = Vec::with_capacity(1);
        let mut has_next = true;
        while has_next {
            if parts.len() == PARTS {
                return Err(RingError::Chain("of too many descriptors"));
            }
            let part = chain.next().ok_or(RingError::Chain("cut short"))?;
            if part.is_write_only() != is_written {
                return Err(RingError::Chain("of the wrong direction"));
            }
            has_next = part.has_next();
            parts.push((part.addr(), part.len()));
        }
        Ok(Some(Chain { head, parts }))
    }

    /// Asks for a notification when a chain is available. Returns `true` if one is.
    fn await_chain(&mut self) -> Result<bool, RingError> {
        Ok(self.queue.enable_notification(&self.memory)?)
    }

    /// Returns `true` if the driver waits for one of the chains that were given back since the last call.
    fn must_notify(&mut self) -> Result<bool, RingError> {
        Ok(self.queue.needs_notification(&self.memory)?)
    }
}

/// The device's end of a queue from the driver.
#[derive(Debug)]
pub(crate) struct DeviceReceiver(DeviceQueue);

impl DeviceReceiver {
    /// Takes a queue whose chunks have at most so many bytes.
    ///
    /// # Errors
    /// [`RingError`] for addresses that the memory does not have, and for a size that is no power of two.
    pub(crate) fn new(
        memory: Memory,
        addresses: QueueAddresses,
        most: u32,
    ) -> Result<Self, RingError> {
        DeviceQueue::new(memory, addresses, most).map(Self)
    }
}

impl Receiver for DeviceReceiver {
    fn waiting(&mut self) -> Result<u16, RingError> {
        self.0.available()
    }

    fn receive(&mut self, buffer: &mut Vec<u8>) -> Result<bool, RingError> {
        let Some(chain) = self.0.take(false)? else {
            return Ok(false);
        };
        let lengths = chain.parts.iter().map(|(_, length)| u64::from(*length));
        match lengths.sum() {
            0 => return Err(RingError::Chain("empty")),
            length if length > self.0.most.into() => return Err(RingError::Chain("too long")),
            _ => buffer.clear(),
        }
        for part in chain.parts {
            copy(&self.0.memory, part, buffer)?;
        }
        self.0.queue.add_used(&self.0.memory, chain.head, 0)?;
        Ok(true)
    }

    fn await_chunk(&mut self) -> Result<bool, RingError> {
        self.0.await_chain()
    }

    fn must_notify(&mut self) -> Result<bool, RingError> {
        self.0.must_notify()
    }
}

/// The device's end of a queue to the driver.
#[derive(Debug)]
pub(crate) struct DeviceSender(DeviceQueue);

impl DeviceSender {
    /// Takes a queue whose chunks have at most so many bytes.
    ///
    /// # Errors
    /// [`RingError`] for addresses that the memory does not have, and for a size that is no power of two.
    pub(crate) fn new(
        memory: Memory,
        addresses: QueueAddresses,
        most: u32,
    ) -> Result<Self, RingError> {
        DeviceQueue::new(memory, addresses, most).map(Self)
    }
}

impl Sender for DeviceSender {
    fn has_room(&mut self) -> Result<bool, RingError> {
        Ok(self.0.available()? > 0)
    }

    fn write(&mut self, fill: &mut dyn FnMut(&mut ChunkWriter<'_>)) -> Result<(), RingError> {
        let chain = self.0.take(true)?.ok_or(RingError::Chain("too short"))?;
        let mut writer = ChunkWriter::new(&self.0.memory, chain.parts);
        fill(&mut writer);
        match writer.finish()? {
            0 => self.0.queue.go_to_previous_position(),
            length => (self.0.queue).add_used(&self.0.memory, chain.head, length)?,
        }
        Ok(())
    }

    fn await_room(&mut self) -> Result<bool, RingError> {
        self.0.await_chain()
    }

    fn must_notify(&mut self) -> Result<bool, RingError> {
        self.0.must_notify()
    }
}
