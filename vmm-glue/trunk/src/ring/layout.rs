//! Places of the parts of a split queue (virtio 1.2, sections 2.7.5, 2.7.6 and 2.7.8). All numbers are little-endian.

use vm_memory::GuestAddress;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A descriptor (`struct virtq_desc`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Descriptor {
    address: U64,
    length: U32,
    flags: U16,
    next: U16,
}

impl Descriptor {
    /// `VIRTQ_DESC_F_WRITE`: the device writes the buffer.
    const WRITE: u16 = 2;

    /// Returns a descriptor of a chain of one buffer.
    pub(super) fn alone(address: GuestAddress, length: u32, is_written: bool) -> Self {
        Self {
            address: U64::new(address.0),
            length: U32::new(length),
            flags: U16::new(if is_written { Self::WRITE } else { 0 }),
            next: U16::ZERO,
        }
    }
}

/// An entry of the used ring (`struct virtq_used_elem`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct UsedElement {
    pub(super) id: U32,
    pub(super) length: U32,
}

const DESCRIPTOR: u64 = size_of::<Descriptor>() as u64;
const USED_ELEMENT: u64 = size_of::<UsedElement>() as u64;

/// Bytes of an entry of the available ring, and of each of its other fields.
const WORD: u64 = 2;

/// Bytes of flags and index, in front of the entries of either ring.
const RING_HEADER: u64 = 2 * WORD;

/// Addresses of the three parts of a queue in the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueAddresses {
    /// Places of the queue, a power of two.
    pub(crate) size: u16,
    /// The table of descriptors, at a multiple of 16.
    pub(crate) descriptors: u64,
    /// The ring of the driver, at a multiple of 2.
    pub(crate) available: u64,
    /// The ring of the device, at a multiple of 4.
    pub(crate) used: u64,
}

impl QueueAddresses {
    /// Returns the addresses of a queue whose parts are one behind the other from a multiple of 64 on, and the address behind them.
    pub(crate) fn from(start: u64, size: u16) -> (Self, u64) {
        let line = |address: u64| address.next_multiple_of(64);
        let places = u64::from(size);
        let descriptors = line(start);
        let available = line(descriptors + DESCRIPTOR * places);
        // The driver writes one ring and the device the other: they share no cache line.
        let used = line(available + RING_HEADER + WORD * places + WORD);
        let end = line(used + RING_HEADER + USED_ELEMENT * places + WORD);
        let addresses = Self {
            size,
            descriptors,
            available,
            used,
        };
        (addresses, end)
    }

    fn place(self, index: u16) -> u64 {
        u64::from(index % self.size.max(1))
    }

    pub(super) fn descriptor(self, number: u16) -> GuestAddress {
        GuestAddress(self.descriptors + DESCRIPTOR * u64::from(number))
    }

    pub(super) fn available_index(self) -> GuestAddress {
        GuestAddress(self.available + WORD)
    }

    pub(super) fn available_element(self, index: u16) -> GuestAddress {
        GuestAddress(self.available + RING_HEADER + WORD * self.place(index))
    }

    /// `used_event`, behind the available ring: the driver waits for the entry of this index.
    pub(super) fn used_event(self) -> GuestAddress {
        GuestAddress(self.available + RING_HEADER + WORD * u64::from(self.size))
    }

    pub(super) fn used_index(self) -> GuestAddress {
        GuestAddress(self.used + WORD)
    }

    pub(super) fn used_element(self, index: u16) -> GuestAddress {
        GuestAddress(self.used + RING_HEADER + USED_ELEMENT * self.place(index))
    }

    /// `avail_event`, behind the used ring: the device waits for the entry of this index.
    pub(super) fn available_event(self) -> GuestAddress {
        GuestAddress(self.used + RING_HEADER + USED_ELEMENT * u64::from(self.size))
    }
}

/// Buffers of a queue, one for each descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    /// Address of the first one.
    pub(crate) start: u64,
    /// Bytes of each.
    pub(crate) size: u32,
}

impl Buffers {
    pub(super) fn of(self, descriptor: u16) -> GuestAddress {
        GuestAddress(self.start + u64::from(self.size) * u64::from(descriptor))
    }
}
