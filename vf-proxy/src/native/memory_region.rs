//! Registered memory of a VF's program.

use hca_api::{
    AccessFlags, DmaBuffer, DmaFault, Hca, HcaError, LKey, MrHandle, MrKeys, MrKind, MrSpec,
    PdHandle, RKey, RemoteAddress, Sge,
};

/// A memory region: memory of the function's address space, with the keys by which work requests name it
/// (IBA 11.2.8.1, `ibv_reg_mr`).
///
/// Copies name the same region. After it is deregistered its keys are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    memory: DmaBuffer,
    keys: MrKeys,
}

impl MemoryRegion {
    /// Allocates `len` bytes of the function's memory, which are zero, and registers them.
    ///
    /// # Errors
    /// [`HcaError::Unsupported`] if the function's memory is a guest's, and those of [`Hca::register_mr`]. Nothing is left
    /// behind.
    pub fn register(
        hca: &mut dyn Hca,
        pd: PdHandle,
        len: usize,
        access: AccessFlags,
    ) -> Result<Self, HcaError> {
        let memory = hca.allocate_dma(len)?;
        let kind = MrKind::Virtual {
            addr: memory.addr,
            len: memory.len as u64,
        };
        let spec = MrSpec {
            pd,
            kind,
            access,
            key: None,
        };
        match hca.register_mr(&spec) {
            Ok(keys) => Ok(Self { memory, keys }),
            Err(error) => {
                hca.free_dma(memory);
                Err(error)
            }
        }
    }

    /// Deregisters the region and frees its memory. Requests that name it complete with
    /// [`CompletionStatus::LocalProtection`](hca_api::CompletionStatus::LocalProtection), those of peers with
    /// [`CompletionStatus::RemoteAccess`](hca_api::CompletionStatus::RemoteAccess).
    ///
    /// # Errors
    /// [`HcaError::InvalidHandle`] if it is deregistered already. [`HcaError::Pending`]: the memory stays until the same call is `Ok`, after
    /// [`AsyncEvent::RegistrationDone`](hca_api::AsyncEvent::RegistrationDone).
    pub fn deregister(self, hca: &mut dyn Hca) -> Result<(), HcaError> {
        hca.deregister_mr(self.keys.handle)?;
        hca.free_dma(self.memory);
        Ok(())
    }

    pub(super) const fn handle(&self) -> MrHandle {
        self.keys.handle
    }

    /// Address of the first byte, as work requests and peers count it.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.memory.addr
    }

    /// Bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub const fn len(&self) -> usize {
        self.memory.len
    }

    /// Local key.
    #[must_use]
    pub const fn lkey(&self) -> LKey {
        self.keys.lkey
    }

    /// Remote key; refused unless the region has remote rights.
    #[must_use]
    pub const fn rkey(&self) -> RKey {
        self.keys.rkey
    }

    /// Returns an entry of a gather or scatter list: `len` bytes from `offset`. The adapter checks the range.
    #[must_use]
    pub const fn sge(&self, offset: u32, len: u32) -> Sge {
        Sge {
            addr: self.memory.addr + offset as u64,
            len,
            lkey: self.keys.lkey,
        }
    }

    /// Returns the remote address of the byte at `offset`, for a peer's requests.
    #[must_use]
    pub const fn remote(&self, offset: u32) -> RemoteAddress {
        RemoteAddress {
            addr: self.memory.addr + offset as u64,
            rkey: self.keys.rkey,
        }
    }

    /// Copies the bytes from `offset` into `bytes`.
    ///
    /// # Errors
    /// [`DmaFault`] if the range is not within the region.
    pub fn read(&self, hca: &dyn Hca, offset: usize, bytes: &mut [u8]) -> Result<(), DmaFault> {
        hca.dma_read(self.range(offset, bytes.len())?, bytes)
    }

    /// Copies `bytes` to the region, from `offset` on.
    ///
    /// # Errors
    /// [`DmaFault`] if the range is not within the region.
    pub fn write(&self, hca: &mut dyn Hca, offset: usize, bytes: &[u8]) -> Result<(), DmaFault> {
        hca.dma_write(self.range(offset, bytes.len())?, bytes)
    }

    /// Returns the 64-bit value at `offset`, in the byte order of atomic operations: the host's.
    ///
    /// # Errors
    /// [`DmaFault`] if the value is not within the region.
    pub fn read_u64(&self, hca: &dyn Hca, offset: usize) -> Result<u64, DmaFault> {
        let mut bytes = [0; 8];
        self.read(hca, offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn range(&self, offset: usize, len: usize) -> Result<u64, DmaFault> {
        let addr = self.memory.addr.wrapping_add(offset as u64);
        let end = offset.checked_add(len);
        if end.is_some_and(|end| end <= self.memory.len) {
            Ok(addr)
        } else {
            Err(DmaFault { addr, len })
        }
    }
}
