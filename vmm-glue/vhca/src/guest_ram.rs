//! Guest memory of VMMs that are built on vm-memory.

use core::fmt;
use core::sync::atomic::Ordering;
use std::sync::atomic::AtomicU64;

use hca_api::{AddressSpace, DmaBuffer, DmaFault, HcaError};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemory, Permissions, VolatileMemory};

/// A guest's memory as a VF reaches it, by guest-physical addresses: an `Arc<GuestMemoryMmap>`, or whatever else the VMM has
/// that is a [`GuestAddressSpace`]. The map is looked up at each access, so the VMM may change it.
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

impl<S: GuestAddressSpace + Send> AddressSpace for GuestRam<S> {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let len = buf.len();
        let read = self.0.memory().read_slice(buf, GuestAddress(addr));
        read.map_err(|_| DmaFault { addr, len })
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        let len = bytes.len();
        let written = self.0.memory().write_slice(bytes, GuestAddress(addr));
        written.map_err(|_| DmaFault { addr, len })
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        let fault = DmaFault {
            addr,
            len: size_of::<u64>(),
        };
        let memory = self.0.memory();
        let slices = memory.get_slices(GuestAddress(addr), fault.len, Permissions::ReadWrite);
        let slice = slices.map_err(|_| fault)?.next().ok_or(fault)?;
        let slice = slice.map_err(|_| fault)?;
        let value: &AtomicU64 = slice.get_atomic_ref(0).map_err(|_| fault)?;
        let old = value.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(update(old)));
        old.map_err(|_| fault)
    }

    fn allocate(&mut self, _: usize) -> Result<DmaBuffer, HcaError> {
        Err(HcaError::Unsupported)
    }

    fn free(&mut self, _: DmaBuffer) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vm_memory::GuestMemoryMmap;

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
}
