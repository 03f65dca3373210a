//! The driver's ends of split queues: descriptor `n` is always of buffer `n`, and each chain has one descriptor.

use core::num::Wrapping;
use std::sync::atomic::{Ordering, fence};

use vm_memory::Bytes;
use zerocopy::IntoBytes;

use super::layout::{Buffers, Descriptor, QueueAddresses, UsedElement};
use super::{ChunkWriter, Memory, Receiver, RingError, Sender, copy};

/// The driver's side of a queue.
#[derive(Debug)]
struct DriverQueue {
    memory: Memory,
    addresses: QueueAddresses,
    buffers: Buffers,
    /// For each descriptor `true` while the device has it.
    at_device: Vec<bool>,
    /// Number of descriptors that the device has.
    lent: u16,
    next_available: Wrapping<u16>,
    next_used: Wrapping<u16>,
    /// Value of `next_available` at which the device was last asked if it waits.
    noted: Wrapping<u16>,
}

impl DriverQueue {
    /// Takes a queue whose memory is all zeros.
    fn new(memory: Memory, addresses: QueueAddresses, buffers: Buffers) -> Self {
        Self {
            memory,
            addresses,
            buffers,
            at_device: vec![false; usize::from(addresses.size)],
            lent: 0,
            next_available: Wrapping(0),
            next_used: Wrapping(0),
            noted: Wrapping(0),
        }
    }

    /// Makes a buffer available, which the device does not have.
    fn lend(&mut self, number: u16, length: u32, is_written: bool) -> Result<(), RingError> {
        let descriptor = Descriptor::alone(self.buffers.of(number), length, is_written);
        let (memory, addresses) = (&self.memory, self.addresses);
        memory.write_slice(descriptor.as_bytes(), addresses.descriptor(number))?;
        let element = addresses.available_element(self.next_available.0);
        memory.store(number.to_le(), element, Ordering::Relaxed)?;
        self.next_available += 1;
        let index = self.next_available.0.to_le();
        // The device reads the entry after the index.
        memory.store(index, addresses.available_index(), Ordering::Release)?;
        if let Some(at_device) = self.at_device.get_mut(usize::from(number)) {
            *at_device = true;
        }
        self.lent += 1;
        Ok(())
    }

    /// Returns the number of chains that the device has given back, and that were not taken.
    fn returned(&self) -> Result<u16, RingError> {
        let index: u16 = self
            .memory
            .load(self.addresses.used_index(), Ordering::Acquire)?;
        let returned = Wrapping(u16::from_le(index)) - self.next_used;
        match returned.0 <= self.lent {
            true => Ok(returned.0),
            false => Err(RingError::Index(returned.0)),
        }
    }

    /// Takes back the next chain: its descriptor, and the bytes that the device says it wrote.
    fn take_back(&mut self) -> Result<Option<(u16, u32)>, RingError> {
        if self.returned()? == 0 {
            return Ok(None);
        }
        let mut element = UsedElement {
            id: 0.into(),
            length: 0.into(),
        };
        let address = self.addresses.used_element(self.next_used.0);
        self.memory.read_slice(element.as_mut_bytes(), address)?;
        let (id, length) = (element.id.get(), element.length.get());
        let number = u16::try_from(id).map_err(|_| RingError::Descriptor(id))?;
        let at_device = self.at_device.get_mut(usize::from(number));
        let at_device = at_device.filter(|at_device| **at_device);
        *at_device.ok_or(RingError::Descriptor(id))? = false;
        self.lent -= 1;
        self.next_used += 1;
        Ok(Some((number, length)))
    }

    /// Asks for a notification when the device gives back a chain. Returns `true` if there is one already.
    fn await_return(&self) -> Result<bool, RingError> {
        let event = self.next_used.0.to_le();
        self.memory
            .store(event, self.addresses.used_event(), Ordering::Relaxed)?;
        // The device adds to its ring and then reads the event: one of the ends sees the other's.
        fence(Ordering::SeqCst);
        Ok(self.returned()? > 0)
    }

    /// Returns `true` if the device waits for one of the chains that were lent since the last call.
    fn must_notify(&mut self) -> Result<bool, RingError> {
        let since = self.next_available - self.noted;
        if since.0 == 0 {
            return Ok(false);
        }
        self.noted = self.next_available;
        fence(Ordering::SeqCst);
        let event: u16 = self
            .memory
            .load(self.addresses.available_event(), Ordering::Relaxed)?;
        Ok(self.next_available - Wrapping(u16::from_le(event)) - Wrapping(1) < since)
    }
}

/// The driver's end of a queue to the device.
#[derive(Debug)]
pub(crate) struct DriverSender {
    queue: DriverQueue,
    /// Descriptors that the device does not have. The one that was given back last is used first, since its buffer is in a cache.
    free: Vec<u16>,
}

impl DriverSender {
    /// Takes a queue whose memory is all zeros.
    pub(crate) fn new(memory: Memory, addresses: QueueAddresses, buffers: Buffers) -> Self {
        Self {
            free: (0..addresses.size).rev().collect(),
            queue: DriverQueue::new(memory, addresses, buffers),
        }
    }
}

impl Sender for DriverSender {
    fn has_room(&mut self) -> Result<bool, RingError> {
        while let Some((number, _)) = self.queue.take_back()? {
            self.free.push(number);
        }
        Ok(!self.free.is_empty())
    }

    fn write(&mut self, fill: &mut dyn FnMut(&mut ChunkWriter<'_>)) -> Result<(), RingError> {
        let Some(number) = self.free.last().copied() else {
            return Err(RingError::Chain("too short"));
        };
        let place = (self.queue.buffers.of(number), self.queue.buffers.size);
        let mut writer = ChunkWriter::new(&self.queue.memory, vec![place]);
        fill(&mut writer);
        let length = writer.finish()?;
        if length > 0 {
            self.free.pop();
            self.queue.lend(number, length, false)?;
        }
        Ok(())
    }

    fn await_room(&mut self) -> Result<bool, RingError> {
        self.queue.await_return()
    }

    fn must_notify(&mut self) -> Result<bool, RingError> {
        self.queue.must_notify()
    }
}

/// The driver's end of a queue from the device, which has all buffers except the ones of chunks that wait here.
#[derive(Debug)]
pub(crate) struct DriverReceiver {
    queue: DriverQueue,
}

impl DriverReceiver {
    /// Takes a queue whose memory is all zeros, and lends all of its buffers.
    ///
    /// # Errors
    /// [`RingError::Address`] for addresses that the memory does not have.
    pub(crate) fn new(
        memory: Memory,
        addresses: QueueAddresses,
        buffers: Buffers,
    ) -> Result<Self, RingError> {
        let mut queue = DriverQueue::new(memory, addresses, buffers);
        for number in 0..addresses.size {
            queue.lend(number, buffers.size, true)?;
        }
        Ok(Self { queue })
    }
}

impl Receiver for DriverReceiver {
    fn waiting(&mut self) -> Result<u16, RingError> {
        self.queue.returned()
    }

    fn receive(&mut self, buffer: &mut Vec<u8>) -> Result<bool, RingError> {
        let Some((number, length)) = self.queue.take_back()? else {
            return Ok(false);
        };
        let size = self.queue.buffers.size;
        if length == 0 || length > size {
            return Err(RingError::Length(length));
        }
        buffer.clear();
        let place = self.queue.buffers.of(number);
        copy(&self.queue.memory, (place, length), buffer)?;
        self.queue.lend(number, size, true)?;
        Ok(true)
    }

    fn await_chunk(&mut self) -> Result<bool, RingError> {
        self.queue.await_return()
    }

    fn must_notify(&mut self) -> Result<bool, RingError> {
        self.queue.must_notify()
    }
}
