//! The memory of a guest: what its driver allocates, and what its device reaches.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::mlx4_driver::{DmaMemory, PAGE};
use hca_api::{AddressSpace, DmaBuffer, DmaFault, HcaError};

use super::shared::SharedBytes;

/// What a page is to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    /// Nobody has it.
    Free,
    /// The driver has it, and the device may touch it.
    Owned,
    /// The driver has it, but it was unmapped under the device.
    Unmapped,
}

/// Accesses of the device to pages that it has no business with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrayAccesses {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// Where the bytes are.
#[derive(Debug)]
enum RamBytes {
    /// In this process alone.
    Own(Vec<u8>),
    /// In a file that a device in another process can be given.
    Shared(SharedBytes),
}

impl RamBytes {
    fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
        }
    }

    fn read(&self, start: usize, out: &mut [u8]) {
        match self {
            Self::Own(bytes) => out.copy_from_slice(&bytes[start..start + out.len()]),
            Self::Shared(bytes) => bytes.read(start, out),
        }
    }

    fn write(&mut self, start: usize, from: &[u8]) {
        match self {
            Self::Own(bytes) => bytes[start..start + from.len()].copy_from_slice(from),
            Self::Shared(bytes) => bytes.write(start, from),
        }
    }
}

#[derive(Debug)]
struct Ram {
    bytes: RamBytes,
    pages: Vec<Page>,
    /// Where the search for a free page goes on.
    cursor: usize,
    stray: StrayAccesses,
}

/// A guest's RAM. Clones are handles of the same memory: one is the driver's, one the device's.
///
/// Only pages that the driver has allocated can be reached by DMA; everything else is counted as
/// [`StrayAccesses`], so that a device that goes on after an object was destroyed is found out.
#[derive(Clone, Debug)]
pub struct GuestMemory(Arc<Mutex<Ram>>);

impl GuestMemory {
    /// Guest-physical address of the first byte: above 4 GiB, so that the upper halves of addresses
    /// matter.
    pub const BASE: u64 = 0x1_0000_0000;

    /// Pages between one that is allocated and the next, so that neighbours in a queue are never
    /// neighbours in memory.
    const STRIDE: usize = 7;

    /// Memory of so many pages, all zero.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        Self::of(RamBytes::Own(vec![0; pages * PAGE]))
    }

    /// Memory of so many pages in a file, for a device in another process ([`super::VmmBus`]). What that touches
    /// without being entitled to is not seen.
    ///
    /// # Errors
    /// What the system says if there is no memory file to be had.
    pub fn shared(pages: usize) -> io::Result<Self> {
        let bytes = SharedBytes::new(pages * PAGE)?;
        Ok(Self::of(RamBytes::Shared(bytes)))
    }

    fn of(bytes: RamBytes) -> Self {
        Self(Arc::new(Mutex::new(Ram {
            pages: vec![Page::Free; bytes.len() / PAGE],
            bytes,
            cursor: 0,
            stray: StrayAccesses::default(),
        })))
    }

    /// The file that it is in, if it is [`Self::shared`].
    #[must_use]
    pub fn file(&self) -> Option<Arc<File>> {
        match &self.ram().bytes {
            RamBytes::Own(_) => None,
            RamBytes::Shared(bytes) => bytes.file(),
        }
    }

    /// Pages, whoever has them.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.ram().pages.len()
    }

    /// Pages that the device is not to reach though they are allocated, by their place in memory.
    #[must_use]
    pub fn unmapped_pages(&self) -> Vec<usize> {
        let ram = self.ram();
        let pages = ram.pages.iter().enumerate();
        let unmapped = pages.filter(|(_, page)| **page == Page::Unmapped);
        unmapped.map(|(at, _)| at).collect()
    }

    fn ram(&self) -> MutexGuard<'_, Ram> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages that are allocated.
    #[must_use]
    pub fn allocated_pages(&self) -> usize {
        let ram = self.ram();
        ram.pages.iter().filter(|page| **page != Page::Free).count()
    }

    /// What the device touched without being entitled to.
    #[must_use]
    pub fn stray_accesses(&self) -> StrayAccesses {
        self.ram().stray
    }

    /// Allocates a zeroed page.
    ///
    /// # Panics
    /// If there is none left.
    #[must_use]
    pub fn allocate_page(&self) -> u64 {
        let mut ram = self.ram();
        let count = ram.pages.len();
        let start = ram.cursor;
        let order = (0..count).map(|n| (start + n) % count);
        let page = order
            .into_iter()
            .find(|page| ram.pages[*page] == Page::Free)
            .expect("the guest has memory left");
        ram.cursor = (page + Self::STRIDE) % count;
        ram.take(page, 1)
    }

    /// Allocates zeroed pages that lie anywhere.
    #[must_use]
    pub fn allocate_pages(&self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.allocate_page()).collect()
    }

    /// Allocates zeroed pages that follow each other; the address of the first is a multiple of
    /// `align` pages.
    ///
    /// # Panics
    /// If there are none left.
    #[must_use]
    pub fn allocate_contiguous(&self, count: usize, align: usize) -> u64 {
        let mut ram = self.ram();
        let last = ram.pages.len().saturating_sub(count);
        let start = (0..=last)
            .step_by(align)
            .find(|&start| {
                let mut pages = ram.pages[start..start + count].iter();
                pages.all(|page| *page == Page::Free)
            })
            .expect("the guest has memory left in one piece");
        ram.take(start, count)
    }

    /// Gives pages back that follow each other.
    ///
    /// # Panics
    /// If they are not allocated.
    pub fn free(&self, addr: u64, count: usize) {
        let mut ram = self.ram();
        let first = page_of(addr);
        for page in &mut ram.pages[first..first + count] {
            assert_ne!(*page, Page::Free, "freed twice");
            *page = Page::Free;
        }
    }

    /// Takes an allocated page from the device's reach, or gives it back. Whether the page is allocated.
    pub fn set_mapped(&self, addr: u64, mapped: bool) -> bool {
        let mut ram = self.ram();
        let page = &mut ram.pages[page_of(addr)];
        if *page != Page::Free {
            *page = if mapped { Page::Owned } else { Page::Unmapped };
        }
        *page != Page::Free
    }

    /// Pages that are not allocated.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        let ram = self.ram();
        ram.pages.iter().filter(|page| **page == Page::Free).count()
    }

    /// Takes all pages back, whoever has them.
    pub fn free_all(&self) {
        self.ram().pages.fill(Page::Free);
    }

    /// An allocated page, by any number; the first page if none is.
    #[must_use]
    pub fn some_page(&self, number: usize) -> u64 {
        let ram = self.ram();
        let count = ram.pages.len();
        let mut order = (0..count).map(|n| (number % count + n) % count);
        let page = order.find(|page| ram.pages[*page] != Page::Free);
        Self::BASE + (page.unwrap_or(0) * PAGE) as u64
    }

    /// Reads as the guest's processor.
    ///
    /// # Panics
    /// If there is no such memory.
    pub fn read(&self, addr: u64, out: &mut [u8]) {
        self.ram().bytes.read(offset_of(addr), out);
    }

    /// Writes as the guest's processor.
    ///
    /// # Panics
    /// If there is no such memory.
    pub fn write(&self, addr: u64, bytes: &[u8]) {
        self.ram().bytes.write(offset_of(addr), bytes);
    }
}

impl Ram {
    fn take(&mut self, first: usize, count: usize) -> u64 {
        self.pages[first..first + count].fill(Page::Owned);
        self.bytes.write(first * PAGE, &vec![0; count * PAGE]);
        GuestMemory::BASE + (first * PAGE) as u64
    }

    fn range(&self, addr: u64, len: usize) -> Option<Range<usize>> {
        let start = usize::try_from(addr.checked_sub(GuestMemory::BASE)?).ok()?;
        let end = start.checked_add(len)?;
        (end <= self.bytes.len()).then_some(start..end)
    }

    /// The bytes of an access by the device, if each page of it is the driver's and mapped.
    fn device_range(&self, addr: u64, len: usize) -> Result<Range<usize>, DmaFault> {
        let fault = DmaFault { addr, len };
        let range = self.range(addr, len).ok_or(fault)?;
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let all_owned = self.pages[pages].iter().all(|page| *page == Page::Owned);
        if all_owned { Ok(range) } else { Err(fault) }
    }
}

fn offset_of(addr: u64) -> usize {
    let offset = addr.checked_sub(GuestMemory::BASE);
    usize::try_from(offset.expect("an address in RAM")).expect("an address in RAM")
}

fn page_of(addr: u64) -> usize {
    offset_of(addr) / PAGE
}

impl DmaMemory for GuestMemory {
    fn allocate_contiguous(&self, count: usize, align: usize) -> u64 {
        Self::allocate_contiguous(self, count, align)
    }

    fn allocate_page(&self) -> u64 {
        Self::allocate_page(self)
    }

    fn free(&self, addr: u64, count: usize) {
        Self::free(self, addr, count);
    }

    fn read(&self, addr: u64, out: &mut [u8]) {
        Self::read(self, addr, out);
    }

    fn write(&self, addr: u64, bytes: &[u8]) {
        Self::write(self, addr, bytes);
    }
}

impl AddressSpace for GuestMemory {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let mut ram = self.ram();
        match ram.device_range(addr, buf.len()) {
            Ok(range) => {
                ram.bytes.read(range.start, buf);
                Ok(())
            }
            Err(fault) => {
                ram.stray.reads += 1;
                Err(fault)
            }
        }
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        let mut ram = self.ram();
        match ram.device_range(addr, bytes.len()) {
            Ok(range) => {
                ram.bytes.write(range.start, bytes);
                Ok(())
            }
            Err(fault) => {
                ram.stray.writes += 1;
                Err(fault)
            }
        }
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        let fault = DmaFault { addr, len: 8 };
        if !addr.is_multiple_of(8) {
            return Err(fault);
        }
        let mut ram = self.ram();
        let range = ram.device_range(addr, 8)?;
        let mut word = [0; 8];
        ram.bytes.read(range.start, &mut word);
        let old = u64::from_le_bytes(word);
        ram.bytes.write(range.start, &update(old).to_le_bytes());
        Ok(old)
    }

    /// A guest's memory is its own.
    fn allocate(&mut self, _: usize) -> Result<DmaBuffer, HcaError> {
        Err(HcaError::Unsupported)
    }

    fn free(&mut self, _: DmaBuffer) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_reaches_what_is_allocated_and_mapped_and_nothing_else() {
        let memory = GuestMemory::new(16);
        let mut device = memory.clone();
        let pages = memory.allocate_pages(2);
        assert_ne!(pages[1], pages[0] + PAGE as u64);
        AddressSpace::write(&mut device, pages[0] + 8, b"vhca").unwrap();
        let mut bytes = [0; 4];
        memory.read(pages[0] + 8, &mut bytes);
        assert_eq!(&bytes, b"vhca");
        assert_eq!(memory.stray_accesses(), StrayAccesses::default());

        assert!(memory.set_mapped(pages[0], false));
        assert!(AddressSpace::read(&device, pages[0], &mut bytes).is_err());
        assert!(memory.set_mapped(pages[0], true));
        assert!(AddressSpace::read(&device, pages[0], &mut bytes).is_ok());
        memory.free(pages[1], 1);
        assert!(AddressSpace::write(&mut device, pages[1], b"late").is_err());
        assert_eq!(
            memory.stray_accesses(),
            StrayAccesses {
                reads: 1,
                writes: 1
            }
        );
    }

    #[test]
    fn contiguous_pages_are_aligned_and_zero() {
        let memory = GuestMemory::new(16);
        let page = memory.allocate_page();
        memory.write(page, &[0xff; PAGE]);
        memory.free(page, 1);
        let pages = memory.allocate_contiguous(4, 4);
        assert!(pages.is_multiple_of(4 * PAGE as u64));
        let mut bytes = [1; PAGE];
        memory.read(pages, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert_eq!(memory.allocated_pages(), 4);
    }
}
