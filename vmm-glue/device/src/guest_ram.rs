//! Guest memory of VMMs that are built on vm-memory.

use core::any::Any;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use hca_api::{AddressSpace, DmaBuffer, DmaFault, HcaError, copy_through_buffer};
use vm_memory::bitmap::{Bitmap, BitmapSlice};
use vm_memory::{
    Bytes, GuestAddress, GuestAddressSpace, GuestMemory, Permissions, VolatileMemory, VolatileSlice,
};

/// Bytes that are stored at once.
const WORD: usize = size_of::<u64>();

/// A guest's memory as a VF reaches it, by guest-physical addresses: an `Arc<GuestMemoryMmap>`, or whatever else the VMM has
/// that is a [`GuestAddressSpace`]. The map is looked up at each access, so the VMM may change it: with a
/// `GuestMemoryAtomic` it plugs RAM in and out, and an access to RAM that is gone is a fault.
///
/// Each write marks its pages in the memory's dirty bitmap. Writes are seen by the guest in their order. The last eight
/// bytes of each, if they are at a multiple of eight, are seen after all others of it and all at once: an entry of a ring
/// whose last word says that it is valid can be written at one go.
#[derive(Clone)]
pub struct GuestRam<S>(S);

impl<S> GuestRam<S> {
    /// Makes a VF's view of a guest's memory.
    #[must_use]
    pub const fn new(memory: S) -> Self {
        Self(memory)
    }
}

impl<S> fmt::Debug for GuestRam<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestRam").finish_non_exhaustive()
    }
}

impl<S: GuestAddressSpace + Send + 'static> AddressSpace for GuestRam<S> {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let len = buf.len();
        let read = self.0.memory().read_slice(buf, GuestAddress(addr));
        // What is read next is behind what this read said is valid.
        fence(Ordering::Acquire);
        read.map_err(|_| DmaFault { addr, len })
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        let len = bytes.len();
        let fault = DmaFault { addr, len };
        let memory = self.0.memory();
        let slices = memory.get_slices(GuestAddress(addr), len, Permissions::Write);
        let mut rest = bytes;
        let mut slices = slices.map_err(|_| fault)?.peekable();
        while let Some(slice) = slices.next() {
            let slice = slice.map_err(|_| fault)?;
            let (piece, later) = rest.split_at_checked(slice.len()).ok_or(fault)?;
            if slices.peek().is_some() {
                slice.copy_from(piece);
            } else {
                store_last(&slice, piece);
            }
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(fault) }
    }

    fn is_mapped(&self, addr: u64, len: usize) -> bool {
        let memory = self.0.memory();
        memory.check_range(GuestAddress(addr), len, Permissions::Read)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn copy_from(
        &mut self,
        addr: u64,
        (source, from): (&dyn AddressSpace, u64),
        len: usize,
    ) -> Result<(), DmaFault> {
        let other = source.as_any().and_then(|any| any.downcast_ref::<Self>());
        // A word at the end of a message is stored at once.
        let Some(other) = other.filter(|_| len > WORD) else {
            return copy_through_buffer(self, addr, (source, from), len);
        };
        let [unreadable, unwritable] = [from, addr].map(|addr| DmaFault { addr, len });
        let (theirs, own) = (other.0.memory(), self.0.memory());
        let mut at = GuestAddress(addr);
        let slices = theirs.get_slices(GuestAddress(from), len, Permissions::Read);
        for source in slices.map_err(|_| unreadable)? {
            let source = source.map_err(|_| unreadable)?;
            let mut done = 0;
            let slices = own.get_slices(at, source.len(), Permissions::Write);
            for slice in slices.map_err(|_| unwritable)? {
                let slice = slice.map_err(|_| unwritable)?;
                let len = slice.len();
                let part = source.subslice(done, len).map_err(|_| unreadable)?;
                part.copy_to_volatile_slice(slice);
                done += len;
            }
            at = GuestAddress(at.0.wrapping_add(done as u64));
        }
        Ok(())
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        let fault = DmaFault { addr, len: WORD };
        let memory = self.0.memory();
        let slices = memory.get_slices(GuestAddress(addr), fault.len, Permissions::ReadWrite);
        let slice = slices.map_err(|_| fault)?.next().ok_or(fault)?;
        let slice = slice.map_err(|_| fault)?;
        let value: &AtomicU64 = slice.get_atomic_ref(0).map_err(|_| fault)?;
        let old = value.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(update(old)));
        slice.bitmap().mark_dirty(0, WORD);
        old.map_err(|_| fault)
    }

    fn allocate(&mut self, _: usize) -> Result<DmaBuffer, HcaError> {
        Err(HcaError::Unsupported)
    }

    fn free(&mut self, _: DmaBuffer) {}
}

/// Copies bytes into a slice of their length: the last word at once, behind all that was written before.
fn store_last<B: BitmapSlice>(slice: &VolatileSlice<'_, B>, bytes: &[u8]) {
    let body = bytes.len().saturating_sub(WORD);
    let (first, last) = bytes.split_at(body);
    let Ok((head, tail)) = slice.split_at(body) else {
        return;
    };
    head.copy_from(first);
    fence(Ordering::Release);
    let word = last.try_into().map(u64::from_ne_bytes);
    let is_stored = word.is_ok_and(|word| tail.store(word, 0, Ordering::Release).is_ok());
    if !is_stored {
        tail.copy_from(last);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, RwLock, RwLockReadGuard};

    use proptest::prelude::*;
    use vm_memory::bitmap::AtomicBitmap;
    use vm_memory::iommu::{Error as IommuError, IotlbIterator, IovaRange};
    use vm_memory::{
        GuestMemoryAtomic, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
        Iommu, IommuMemory, Iotlb, MemoryRegionAddress,
    };

    use super::*;

    #[test]
    fn a_vf_reaches_what_the_vmm_has_mapped_and_nothing_else() {
        let ranges = [(GuestAddress(0), 0x1000), (GuestAddress(0x1000), 0x1000)];
        let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&ranges).unwrap();
        let memory = Arc::new(memory);
        let mut ram = GuestRam::new(Arc::clone(&memory));
        ram.write(0xffc, b"across a").unwrap();
        let mut bytes = [0; 8];
        memory.read_slice(&mut bytes, GuestAddress(0xffc)).unwrap();
        assert_eq!(&bytes, b"across a");
        ram.read(0xffc, &mut bytes).unwrap();
        assert_eq!(&bytes, b"across a");

        ram.write(8, &7_u64.to_ne_bytes()).unwrap();
        assert_eq!(ram.update_u64(8, &mut |old| old + 1), Ok(7));
        assert_eq!(memory.read_obj::<u64>(GuestAddress(8)).unwrap(), 8);

        for addr in [0x1ffd, 0x2000, u64::MAX - 3] {
            let fault = DmaFault { addr, len: 8 };
            assert_eq!(ram.read(addr, &mut bytes), Err(fault));
            assert_eq!(ram.write(addr, &bytes), Err(fault));
            assert_eq!(ram.update_u64(addr, &mut |old| old), Err(fault));
        }
        let unaligned = ram.update_u64(12, &mut |old| old);
        assert_eq!(unaligned, Err(DmaFault { addr: 12, len: 8 }));
        assert_eq!(ram.allocate(1), Err(HcaError::Unsupported));
    }

    const PAGE: u64 = 4096;

    type Tracked = GuestMemoryMmap<AtomicBitmap>;

    /// Four pages of memory, in two regions.
    fn tracked() -> Arc<Tracked> {
        let ranges = [(GuestAddress(0), 0x3000), (GuestAddress(0x3000), 0x1000)];
        Arc::new(Tracked::from_ranges(&ranges).unwrap())
    }

    /// The pages that are marked dirty.
    fn dirty(memory: &Tracked) -> Vec<u64> {
        let is_dirty = |page: &u64| {
            let (region, at) = memory.to_region_addr(GuestAddress(page * PAGE)).unwrap();
            let at = usize::try_from(at.0).unwrap();
            region.bitmap().dirty_at(at)
        };
        (0..4).filter(is_dirty).collect()
    }

    #[test]
    fn an_atomic_update_marks_its_page() {
        let memory = tracked();
        let mut ram = GuestRam::new(Arc::clone(&memory));
        ram.read(0, &mut [0; 8]).unwrap();
        ram.write(0x1000, &[]).unwrap();
        assert!(dirty(&memory).is_empty());
        assert_eq!(ram.update_u64(0x2ff8, &mut |old| old + 1), Ok(0));
        assert_eq!(dirty(&memory), [2]);
    }

    #[test]
    fn ram_is_plugged_in_and_out_under_a_vf() {
        let high = GuestAddress(0x10_0000);
        let low: GuestMemoryMmap =
            GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        let memory = GuestMemoryAtomic::new(low);
        let mut ram = GuestRam::new(memory.clone());
        let fault = DmaFault {
            addr: high.0,
            len: 8,
        };
        assert_eq!(ram.write(high.0, &[7; 8]), Err(fault));

        let plugged = Arc::new(GuestRegionMmap::from_range(high, 0x1000, None).unwrap());
        let both = memory.memory().insert_region(Arc::clone(&plugged)).unwrap();
        memory.lock().unwrap().replace(both);
        assert_eq!(ram.write(high.0, &[7; 8]), Ok(()));
        assert_eq!(plugged.read_obj::<u8>(MemoryRegionAddress(0)).unwrap(), 7);

        let (rest, _) = memory.memory().remove_region(high, 0x1000).unwrap();
        memory.lock().unwrap().replace(rest);
        assert_eq!(ram.read(high.0, &mut [0; 8]), Err(fault));
        assert_eq!(ram.write(high.0, &[7; 8]), Err(fault));
        assert_eq!(ram.update_u64(high.0, &mut |old| old), Err(fault));
        assert_eq!(ram.write(0, &[7; 8]), Ok(()));
    }

    /// An IOMMU that has no tables beside its IOTLB.
    #[derive(Debug, Default)]
    struct Translations(RwLock<Iotlb>);

    impl Iommu for Translations {
        type IotlbGuard<'a> = RwLockReadGuard<'a, Iotlb>;

        fn translate(
            &self,
            base: GuestAddress,
            length: usize,
            access: Permissions,
        ) -> Result<IotlbIterator<Self::IotlbGuard<'_>>, IommuError> {
            let found = Iotlb::lookup(self.0.read().unwrap(), base, length, access);
            found.map_err(|fails| IommuError::CannotResolve {
                iova_range: IovaRange { base, length },
                reason: format!("{fails:?}"),
            })
        }
    }

    #[test]
    fn a_vf_behind_an_iommu_reaches_what_the_guest_has_mapped_for_it_until_it_unmaps_it() {
        let physical = tracked();
        let memory = IommuMemory::new(
            (*physical).clone(),
            Translations::default(),
            true,
            AtomicBitmap::default(),
        );
        let map = |iova, to, access| {
            let mut iotlb = memory.iommu().0.write().unwrap();
            let [iova, to] = [iova, to].map(GuestAddress);
            iotlb.set_mapping(iova, to, 0x1000, access).unwrap();
        };
        // Two pages that follow each other for the device alone, and one that it may read.
        map(0x7000_0000, 0x3000, Permissions::ReadWrite);
        map(0x7000_1000, 0, Permissions::ReadWrite);
        map(0x7000_2000, 0x1000, Permissions::Read);
        let memory = Arc::new(memory);
        let mut ram = GuestRam::new(Arc::clone(&memory));
        let bytes: Vec<u8> = (0..32).collect();
        ram.write(0x7000_0ff0, &bytes).unwrap();
        let mut written = [0; 16];
        for (at, part) in [(0x3ff0, &bytes[..16]), (0, &bytes[16..])] {
            physical.read_slice(&mut written, GuestAddress(at)).unwrap();
            assert_eq!(written, part);
        }
        let mut read = [0; 32];
        ram.read(0x7000_0ff0, &mut read).unwrap();
        assert_eq!(read, bytes[..]);
        assert_eq!(ram.update_u64(0x7000_1010, &mut |old| old + 1), Ok(0));
        assert_eq!(physical.read_obj::<u64>(GuestAddress(16)).unwrap(), 1);

        let fault = |addr| DmaFault { addr, len: 8 };
        ram.read(0x7000_2000, &mut [0; 8]).unwrap();
        for addr in [0x7000_2000, 0x7000_3000, 0] {
            assert_eq!(ram.write(addr, &[7; 8]), Err(fault(addr)));
            assert_eq!(ram.update_u64(addr, &mut |old| old), Err(fault(addr)));
        }
        let unmapped = GuestAddress(0x7000_1000);
        memory
            .iommu()
            .0
            .write()
            .unwrap()
            .invalidate_mapping(unmapped, 0x1000);
        assert_eq!(ram.read(unmapped.0, &mut [0; 8]), Err(fault(unmapped.0)));
        assert_eq!(ram.write(0x7000_0ffc, &[7; 8]), Err(fault(0x7000_0ffc)));
        physical
            .read_slice(&mut written, GuestAddress(0x3ff0))
            .unwrap();
        assert_eq!(written, bytes[..16], "a write that faults changes nothing");
    }

    #[test]
    fn the_last_word_of_a_write_is_never_seen_in_part() {
        let memory: Arc<GuestMemoryMmap> =
            Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap());
        let mut ram = GuestRam::new(Arc::clone(&memory));
        let guest = std::thread::spawn(move || {
            let mut last = 0;
            while last != u64::MAX {
                let word: u64 = memory.load(GuestAddress(24), Ordering::Acquire).unwrap();
                let before: u8 = memory.load(GuestAddress(8), Ordering::Relaxed).unwrap();
                let byte = word & 0xff;
                assert_eq!(word, byte * 0x0101_0101_0101_0101, "half of a store");
                assert!(
                    u64::from(before) >= byte,
                    "{before:x} with {byte:x} behind it"
                );
                last = word;
            }
        });
        for byte in (0..=255).chain([255]) {
            ram.write(0, &[byte; 32]).unwrap();
        }
        guest.join().unwrap();
    }

    #[test]
    fn memory_of_two_guests_is_copied_across_regions_and_marked_where_it_is_written() {
        let (here, there) = (tracked(), tracked());
        let bytes: Vec<u8> = (0..0x3000_u32).map(|n| (n % 251) as u8).collect();
        there.write_slice(&bytes, GuestAddress(0xe00)).unwrap();
        let mut ram = GuestRam::new(Arc::clone(&here));
        let source = GuestRam::new(there);
        assert!(source.is_mapped(0xe00, 0x3000) && !source.is_mapped(0x3001, 0x1000));
        ram.copy_from(0x500, (&source, 0xe00), 0x2f00).unwrap();
        let mut copied = vec![0; 0x2f00];
        here.read_slice(&mut copied, GuestAddress(0x500)).unwrap();
        assert!(copied == bytes[..0x2f00]);
        assert_eq!(dirty(&here), [0, 1, 2, 3]);
        let fault = |addr, len| Err(DmaFault { addr, len });
        assert_eq!(
            ram.copy_from(0x3800, (&source, 0), 0x801),
            fault(0x3800, 0x801)
        );
        assert_eq!(
            ram.copy_from(0, (&source, 0x3800), 0x801),
            fault(0x3800, 0x801)
        );
    }

    proptest! {
        /// Whatever is written where, across regions or not, is there, and its pages are marked.
        #[test]
        fn a_write_is_there_and_marks_its_pages(
            at in 0..4 * PAGE,
            bytes in prop::collection::vec(any::<u8>(), 1..6000),
        ) {
            let memory = tracked();
            let mut ram = GuestRam::new(Arc::clone(&memory));
            let end = at + bytes.len() as u64;
            if end > 4 * PAGE {
                prop_assert!(ram.write(at, &bytes).is_err());
                return Ok(());
            }
            ram.write(at, &bytes).unwrap();
            let mut read = vec![0; bytes.len()];
            ram.read(at, &mut read).unwrap();
            prop_assert_eq!(read, bytes);
            let pages: Vec<_> = (at / PAGE..=(end - 1) / PAGE).collect();
            prop_assert_eq!(dirty(&memory), pages);
        }
    }
}
