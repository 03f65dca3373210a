//! The memory of all functions, as the adapter reaches it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_api::{AddressSpace, DmaBuffer, DmaFault, FileRun, HcaError, MrKind, SpaceId, Spaces};

/// Bytes of an address space.
const SPACE: u64 = 1 << 48;

/// The memory of the physical function and of the virtual ones as one address space ([`Spaces`]), which the adapter and the
/// functions share.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedSpaces(Arc<Mutex<Spaces>>);

impl SharedSpaces {
    /// Returns the address spaces. An access that panicked has changed nothing about which there are.
    fn lock(&self) -> MutexGuard<'_, Spaces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the memory of a virtual function.
    pub(crate) fn add(&self, space: Box<dyn AddressSpace>) -> Result<VfMemory, HcaError> {
        let id = self.lock().add(space)?;
        Ok(VfMemory {
            spaces: self.clone(),
            id,
        })
    }
}

/// Bytes are copied by reads and writes alone, so that no call holds two locks.
impl AddressSpace for SharedSpaces {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.lock().read(addr, buf)
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        self.lock().write(addr, bytes)
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        self.lock().update_u64(addr, update)
    }

    fn runs(&self, addr: u64, len: u64) -> Option<Vec<FileRun>> {
        self.lock().runs(addr, len)
    }

    fn allocate(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        self.lock().allocate(len)
    }

    fn free(&mut self, buffer: DmaBuffer) {
        self.lock().free(buffer);
    }
}

/// The memory of a virtual function, at its own addresses.
#[derive(Debug)]
pub(crate) struct VfMemory {
    spaces: SharedSpaces,
    id: SpaceId,
}

impl VfMemory {
    /// Returns the adapter's address of a range. `None` if there is none.
    pub(crate) fn address(&self, addr: u64, len: u64) -> Option<u64> {
        let last = addr.checked_add(len.checked_sub(1)?)?;
        self.id.address(last)?;
        self.id.address(addr)
    }

    /// Returns the pages of a region that is made of pages, as the adapter has them.
    pub(crate) fn pages(&self, kind: &MrKind<'_>) -> Result<Arc<Vec<u64>>, HcaError> {
        let MrKind::Physical {
            pages, page_shift, ..
        } = kind
        else {
            return Ok(Arc::default());
        };
        let page = 1_u64.checked_shl(u32::from(*page_shift)).unwrap_or(0);
        let pages = pages.iter().map(|addr| self.address(*addr, page));
        let pages = pages.collect::<Option<_>>();
        pages.map(Arc::new).ok_or(HcaError::InvalidParameter)
    }

    /// Returns the origin of a region as the adapter has it, with `pages` from [`Self::pages`].
    pub(crate) fn kind<'a>(
        &self,
        kind: &MrKind<'_>,
        pages: &'a Arc<Vec<u64>>,
    ) -> Result<MrKind<'a>, HcaError> {
        let (addr, len, iova) = match *kind {
            MrKind::Virtual { addr, len } => (addr, len, addr),
            MrKind::Translated { addr, len, iova } => (addr, len, iova),
            MrKind::WholeSpace => (0, SPACE, 0),
            MrKind::Physical {
                page_shift,
                iova,
                first_offset,
                len,
                ..
            } => {
                return Ok(MrKind::Physical {
                    pages,
                    page_shift,
                    iova,
                    first_offset,
                    len,
                });
            }
            MrKind::Shared { .. } | MrKind::FastRegister { .. } => {
                return Err(HcaError::Unsupported);
            }
        };
        let addr = self.address(addr, len).ok_or(HcaError::InvalidParameter)?;
        Ok(MrKind::Translated { addr, len, iova })
    }

    /// Opens or closes it: while it is closed, every access faults, the adapter's as well.
    pub(crate) fn set_open(&self, open: bool) {
        self.spaces.lock().set_open(self.id, open);
    }

    /// Takes the memory from the adapter, and returns it.
    pub(crate) fn into_space(self) -> Option<Box<dyn AddressSpace>> {
        self.spaces.lock().remove(self.id)
    }

    fn at(&self, addr: u64, len: usize) -> Result<u64, DmaFault> {
        self.id.address(addr).ok_or(DmaFault { addr, len })
    }
}

impl AddressSpace for VfMemory {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let len = buf.len();
        let at = self.at(addr, len)?;
        let read = self.spaces.lock().read(at, buf);
        read.map_err(|_| DmaFault { addr, len })
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        let len = bytes.len();
        let at = self.at(addr, len)?;
        let written = self.spaces.lock().write(at, bytes);
        written.map_err(|_| DmaFault { addr, len })
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        let at = self.at(addr, 8)?;
        let updated = self.spaces.lock().update_u64(at, update);
        updated.map_err(|_| DmaFault { addr, len: 8 })
    }

    fn allocate(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        let mut spaces = self.spaces.lock();
        let space = spaces.get_mut(self.id).ok_or(HcaError::InvalidHandle)?;
        space.allocate(len)
    }

    fn free(&mut self, buffer: DmaBuffer) {
        if let Some(space) = self.spaces.lock().get_mut(self.id) {
            space.free(buffer);
        }
    }
}
