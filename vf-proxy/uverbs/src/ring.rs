//! Rings in shared memory, as the side that the program does not write.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_api::{AddressSpace, LKey, PulledReceives, Sge};
use verbs_link::abi::ring::{
    CONSUMER_INDEX, CompletionElement, INDEX_MASK, LOG2_ELEMENT_SIZE, MappedRing, PRODUCER_INDEX,
    RECEIVE_HEADER, RING_HEADER, ReceiveElement, SGE_SIZE, SgeElement,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::ring_memory::{Extents, PAGE};
use crate::ring_pages::RingPages;

/// Bytes of the smallest element.
const MIN_ELEMENT: usize = 64;

/// Bytes of the largest element: a send of 1024 inline bytes.
pub(crate) const MAX_ELEMENT: usize = 2048;

/// Place and shape of a ring. The shape in the ring's own header is for the program alone.
#[derive(Debug)]
pub(crate) struct Ring {
    pages: Arc<RingPages>,
    offset: u64,
    /// Pages that the device has touched, from the first on.
    touched: AtomicU32,
    log2_element_size: u8,
    /// Entries less one; entries are a power of two.
    mask: u32,
}

impl Ring {
    /// Creates a ring that holds at least `entries` elements of at least `element` bytes. Returns `None` if the memory or
    /// the budget is used up.
    pub(crate) fn new(
        pages: &Arc<RingPages>,
        extents: &mut Extents,
        entries: u32,
        element: usize,
    ) -> Option<Self> {
        let element = element.max(MIN_ELEMENT).checked_next_power_of_two()?;
        let places = entries.checked_add(1)?.checked_next_power_of_two()?;
        if element > MAX_ELEMENT {
            return None;
        }
        let mut ring = Self {
            pages: pages.clone(),
            offset: 0,
            touched: AtomicU32::new(1),
            log2_element_size: u8::try_from(element.trailing_zeros()).ok()?,
            mask: places - 1,
        };
        ring.offset = extents.take(ring.bytes())?;
        pages.memory.clear(ring.offset, ring.bytes());
        if !pages.admit() {
            extents.give_back(ring.offset, ring.bytes());
            return None;
        }
        let header = [
            (LOG2_ELEMENT_SIZE, element.trailing_zeros()),
            (INDEX_MASK, ring.mask),
        ];
        for (offset, value) in header {
            pages.memory.store(ring.offset + offset, value);
        }
        Some(ring)
    }

    /// Bytes of header and elements.
    fn bytes(&self) -> u64 {
        RING_HEADER + ((u64::from(self.mask) + 1) << self.log2_element_size)
    }

    /// Returns the memory to the free extents. The program may have it mapped still: what it does there is its own affair.
    pub(crate) fn give_back(&self, extents: &mut Extents) {
        let touched = self.touched.load(Ordering::Relaxed).into();
        self.pages.release(self.offset, self.bytes(), touched);
        extents.give_back(self.offset, self.bytes());
    }

    /// Elements that fit: one place stays empty, to tell a full ring from an empty one.
    pub(crate) const fn capacity(&self) -> u32 {
        self.mask
    }

    /// Returns the place as an answer carries it.
    pub(crate) fn place(&self) -> MappedRing {
        MappedRing {
            offset: self.offset.into(),
            size: u32::try_from(self.bytes()).unwrap_or(u32::MAX).into(),
            padding: 0.into(),
        }
    }

    fn load(&self, index: u64) -> u32 {
        self.pages.memory.load(self.offset + index) & self.mask
    }

    fn store(&self, index: u64, value: u32) {
        self.pages
            .memory
            .store(self.offset + index, value & self.mask);
    }

    /// Returns the program's producer index.
    pub(crate) fn producer(&self) -> u32 {
        self.load(PRODUCER_INDEX)
    }

    /// Publishes how far the program's requests were taken.
    pub(crate) fn publish_consumer(&self, index: u32) {
        self.store(CONSUMER_INDEX, index);
    }

    /// Returns how far one index is ahead of another.
    pub(crate) const fn distance(&self, from: u32, to: u32) -> u32 {
        to.wrapping_sub(from) & self.mask
    }

    /// Returns the index behind another.
    pub(crate) const fn next(&self, index: u32) -> u32 {
        index.wrapping_add(1) & self.mask
    }

    /// Counts the pages up to an element, which is about to be touched. Returns `false` if the budget does not have them.
    pub(crate) fn reach(&self, index: u32) -> bool {
        let end = self.place_of(index) - self.offset + (1 << self.log2_element_size);
        let pages = u32::try_from(end.div_ceil(PAGE)).unwrap_or(u32::MAX);
        let touched = self.touched.load(Ordering::Relaxed);
        if pages <= touched {
            return true;
        }
        let within = self.pages.touch((pages - touched).into());
        if within {
            self.touched.store(pages, Ordering::Relaxed);
        }
        within
    }

    /// Copies an element out, as far as the buffer goes. Returns the bytes copied.
    pub(crate) fn read<'b>(&self, index: u32, element: &'b mut [u8; MAX_ELEMENT]) -> &'b [u8] {
        let size = 1_usize << self.log2_element_size;
        let bytes = &mut element[..size];
        self.read_part(index, 0, bytes);
        bytes
    }

    /// Copies out the bytes of an element that start at an offset, which are all inside it.
    fn read_part(&self, index: u32, offset: usize, bytes: &mut [u8]) {
        let at = self.place_of(index) + offset as u64;
        self.pages.memory.read(at, bytes);
    }

    fn place_of(&self, index: u32) -> u64 {
        let element = u64::from(index & self.mask) << self.log2_element_size;
        self.offset + RING_HEADER + element
    }
}

/// A ring of completions.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    ring: Ring,
    producer: u32,
    /// The program's index as it was last plausible.
    consumer: u32,
}

impl CompletionRing {
    pub(crate) const fn new(ring: Ring) -> Self {
        Self {
            ring,
            producer: 0,
            consumer: 0,
        }
    }

    pub(crate) const fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Returns the index of the next completion.
    pub(crate) const fn producer(&self) -> u32 {
        self.producer
    }

    /// Returns the number of completions that the program has not taken.
    ///
    /// Some releases move their index one beyond the last completion: an index that is not among those that wait means that
    /// all are taken.
    pub(crate) fn waiting(&mut self) -> u32 {
        let seen = self.ring.load(CONSUMER_INDEX);
        let outstanding = self.ring.distance(self.consumer, self.producer);
        let taken = self.ring.distance(self.consumer, seen);
        self.consumer = if taken <= outstanding {
            seen
        } else {
            self.producer
        };
        self.ring.distance(self.consumer, self.producer)
    }

    /// Appends a completion. Returns `false` if the ring is full, or its next page is beyond the budget.
    pub(crate) fn push(&mut self, completion: &CompletionElement) -> bool {
        if self.waiting() == self.ring.capacity() || !self.ring.reach(self.producer) {
            return false;
        }
        let place = self.ring.place_of(self.producer);
        self.ring.pages.memory.write(place, completion.as_bytes());
        self.producer = self.ring.next(self.producer);
        self.ring.store(PRODUCER_INDEX, self.producer);
        true
    }

    /// Moves the completions that wait to another ring, which has room for them, and goes on there.
    pub(crate) fn move_to(&mut self, ring: Ring) -> Ring {
        let waiting = self.waiting();
        let mut new = Self::new(ring);
        let mut index = self.consumer;
        for _ in 0..waiting {
            let mut bytes = [0; MAX_ELEMENT];
            let bytes = self.ring.read(index, &mut bytes);
            let read = CompletionElement::read_from_prefix(bytes);
            if let Ok((completion, _)) = read {
                new.push(&completion);
            }
            index = self.ring.next(index);
        }
        core::mem::replace(self, new).ring
    }
}

/// A ring of receive requests, which the provider pulls from.
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    ring: Ring,
    consumer: AtomicU32,
    max_sge: usize,
}

impl ReceiveRing {
    pub(crate) const fn new(ring: Ring, max_sge: usize) -> Self {
        Self {
            ring,
            consumer: AtomicU32::new(0),
            max_sge,
        }
    }

    pub(crate) const fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Returns the number of requests that wait.
    pub(crate) fn waiting(&self) -> u32 {
        let consumer = self.consumer.load(Ordering::Relaxed);
        self.ring.distance(consumer, self.ring.producer())
    }

    /// Forgets the requests that wait.
    pub(crate) fn drop_waiting(&self) {
        let producer = self.ring.producer();
        self.consumer.store(producer, Ordering::Relaxed);
        self.ring.publish_consumer(producer);
    }

    fn take(&self, scatter: &mut Vec<Sge>) -> Option<u64> {
        if self.waiting() == 0 {
            return None;
        }
        let consumer = self.consumer.load(Ordering::Relaxed);
        if !self.ring.reach(consumer) {
            return None;
        }
        let mut request = ReceiveElement::default();
        self.ring.read_part(consumer, 0, request.as_mut_bytes());
        let count = usize::try_from(request.num_sge.get()).unwrap_or(usize::MAX);
        for number in 0..count.min(self.max_sge) {
            let mut entry = [0; SGE_SIZE];
            self.ring
                .read_part(consumer, receive_element(number), &mut entry);
            scatter.extend(entries(&entry, 1, 1));
        }
        let next = self.ring.next(consumer);
        self.consumer.store(next, Ordering::Relaxed);
        self.ring.publish_consumer(next);
        Some(request.wr_id.get())
    }
}

/// The ring of a shared receive queue, which may go on in another one.
#[derive(Debug)]
pub(crate) struct SharedReceiveRing(Mutex<Arc<ReceiveRing>>);

impl SharedReceiveRing {
    pub(crate) fn new(ring: ReceiveRing) -> Self {
        Self(Mutex::new(Arc::new(ring)))
    }

    /// Returns the ring as it is now.
    pub(crate) fn current(&self) -> Arc<ReceiveRing> {
        self.guard().clone()
    }

    /// Moves the requests that wait to another ring, whose elements are as long, and goes on there. Returns the old ring, or the
    /// new one if the requests do not fit or the budget does not have its pages.
    ///
    /// The program posts nothing meanwhile: it holds its lock until it knows the new ring.
    pub(crate) fn move_to(&self, new: ReceiveRing) -> Result<Arc<ReceiveRing>, ReceiveRing> {
        let mut current = self.guard();
        let waiting = current.waiting();
        if waiting > new.ring.capacity() || !new.ring.reach(waiting) {
            return Err(new);
        }
        let mut from = current.consumer.load(Ordering::Relaxed);
        for to in 0..waiting {
            let mut bytes = [0; MAX_ELEMENT];
            let bytes = current.ring.read(from, &mut bytes);
            new.ring.pages.memory.write(new.ring.place_of(to), bytes);
            from = current.ring.next(from);
        }
        new.ring.store(PRODUCER_INDEX, waiting);
        Ok(core::mem::replace(&mut *current, Arc::new(new)))
    }

    fn guard(&self) -> MutexGuard<'_, Arc<ReceiveRing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The provider's end of the ring of a shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceiveSource(pub(crate) Arc<SharedReceiveRing>);

impl PulledReceives for SharedReceiveSource {
    fn pull(&mut self, _: &dyn AddressSpace, scatter: &mut Vec<Sge>) -> Option<u64> {
        self.0.guard().take(scatter)
    }

    fn pending(&self, _: &dyn AddressSpace) -> usize {
        usize::try_from(self.0.guard().waiting()).unwrap_or(usize::MAX)
    }
}

/// Returns the entries of a list of which a program says that it has so many.
pub(crate) fn entries(list: &[u8], count: u32, max_sge: usize) -> impl Iterator<Item = Sge> + '_ {
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(max_sge);
    let entries = list.chunks_exact(SGE_SIZE).take(count);
    entries.filter_map(|entry| {
        let entry = SgeElement::read_from_bytes(entry).ok()?;
        Some(Sge {
            addr: entry.addr.get(),
            len: entry.length.get(),
            lkey: LKey(entry.lkey.get()),
        })
    })
}

/// The provider's end of a ring of receive requests.
#[derive(Debug)]
pub(crate) struct ReceiveSource(pub(crate) Arc<ReceiveRing>);

impl PulledReceives for ReceiveSource {
    fn pull(&mut self, _: &dyn AddressSpace, scatter: &mut Vec<Sge>) -> Option<u64> {
        self.0.take(scatter)
    }

    fn pending(&self, _: &dyn AddressSpace) -> usize {
        usize::try_from(self.0.waiting()).unwrap_or(usize::MAX)
    }
}

/// Bytes of a receive request with a list of so many entries.
pub(crate) const fn receive_element(max_sge: usize) -> usize {
    RECEIVE_HEADER + max_sge * SGE_SIZE
}

#[cfg(test)]
mod tests;
