//! The way to a function's memory, which can be closed.

use core::any::Any;

use hca_api::{AddressSpace, DmaBuffer, DmaFault, HcaError};

/// A function's memory, or none while the function may not reach it.
#[derive(Debug)]
pub(super) struct Gate {
    space: Box<dyn AddressSpace>,
    open: bool,
}

impl Gate {
    /// An open one.
    pub(super) const fn new(space: Box<dyn AddressSpace>) -> Self {
        Self { space, open: true }
    }

    pub(super) const fn set_open(&mut self, open: bool) {
        self.open = open;
    }

    pub(super) fn set_space(&mut self, space: Box<dyn AddressSpace>) {
        self.space = space;
    }

    pub(super) fn into_space(self) -> Box<dyn AddressSpace> {
        self.space
    }

    const fn check(&self, addr: u64, len: usize) -> Result<(), DmaFault> {
        if self.open {
            Ok(())
        } else {
            Err(DmaFault { addr, len })
        }
    }
}

impl AddressSpace for Gate {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.check(addr, buf.len())?;
        self.space.read(addr, buf)
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        self.check(addr, bytes.len())?;
        self.space.write(addr, bytes)
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        self.check(addr, size_of::<u64>())?;
        self.space.update_u64(addr, update)
    }

    fn is_mapped(&self, addr: u64, len: usize) -> bool {
        self.open && self.space.is_mapped(addr, len)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.space.as_any().filter(|_| self.open)
    }

    fn copy_from(
        &mut self,
        addr: u64,
        from: (&dyn AddressSpace, u64),
        len: usize,
    ) -> Result<(), DmaFault> {
        self.check(addr, len)?;
        self.space.copy_from(addr, from, len)
    }

    fn allocate(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        self.space.allocate(len)
    }

    fn free(&mut self, buffer: DmaBuffer) {
        self.space.free(buffer);
    }
}
