//! Memory regions.

use alloc::vec;
use alloc::vec::Vec;

use mlx4_defs::mpt::{MptEntry, STATUS_VALID};
use mlx4_defs::mtt::MTT_ENTRY_SIZE;
use mlx4_defs::resource::ResourceType;
use mlx4_defs::{Opcode, Pdn};
use zerocopy::network_endian::{U32, U64};

use super::buffer::MttRange;
use super::memory::{Memory, PAGE};
use super::resources::Usage;
use super::{Bus, Command, Driver, DriverError, Output, Sge};

/// Rights to a region beyond local reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Local writes.
    pub local_write: bool,
    /// Remote reads.
    pub remote_read: bool,
    /// Remote writes.
    pub remote_write: bool,
    /// Remote atomics.
    pub remote_atomic: bool,
}

impl Rights {
    /// All of them.
    pub const ALL: Self = Self {
        local_write: true,
        remote_read: true,
        remote_write: true,
        remote_atomic: true,
    };
}

/// A memory region of pages that lie anywhere, at an address of its own.
#[derive(Debug)]
pub struct Region {
    index: u32,
    /// The key, local and remote.
    pub key: u32,
    /// Address of the first byte.
    pub start: u64,
    /// Bytes.
    pub len: usize,
    pages: Vec<u64>,
    mtt: MttRange,
    memory: Memory,
}

/// Address at which programs see their memory.
const USER_ADDRESS: u64 = 0x7f12_3456_7000;

impl Region {
    /// A part of the region.
    ///
    /// # Panics
    /// If it is not in the region.
    #[must_use]
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        assert!(offset + len <= self.len, "beyond the region");
        Sge {
            addr: self.start + offset as u64,
            len: u32::try_from(len).expect("a short part"),
            lkey: self.key,
        }
    }

    /// Frees the memory without a command, after the device was reset.
    pub fn abandon(self) {
        for page in self.pages {
            self.memory.free(page, 1);
        }
    }

    /// The pages of the region, each once.
    #[must_use]
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Writes into the region, as the program.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (addr, room) = self.place(offset + done);
            let end = (done + room).min(bytes.len());
            self.memory.write(addr, &bytes[done..end]);
            done = end;
        }
    }

    /// Reads of the region, as the program.
    #[must_use]
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let (addr, room) = self.place(offset + done);
            let end = (done + room).min(len);
            self.memory.read(addr, &mut bytes[done..end]);
            done = end;
        }
        bytes
    }

    /// Returns the address of a byte of the region in memory, and the bytes from there to the page's end.
    fn place(&self, offset: usize) -> (u64, usize) {
        let [.., a, b] = self.start.to_be_bytes();
        let first = usize::from(u16::from_be_bytes([a, b])) % PAGE;
        let at = first + offset;
        let page = self.pages[at / PAGE % self.pages.len()];
        (page + (at % PAGE) as u64, PAGE - at % PAGE)
    }
}

impl Driver {
    /// Allocates memory and registers it at a program's address that begins at an offset in its page.
    ///
    /// # Errors
    /// Pages of the commands.
    pub fn register(
        &mut self,
        bus: &mut dyn Bus,
        pd: Pdn,
        offset: u16,
        len: usize,
        rights: Rights,
    ) -> Result<Region, DriverError> {
        let count = (usize::from(offset) + len).div_ceil(PAGE);
        self.register_times(bus, pd, offset, len, rights, (count, 1))
    }

    /// Allocates one page and registers it over and over, at a program's address: so that a message can be longer than all of
    /// the guest's memory.
    ///
    /// # Errors
    /// Pages of the commands.
    pub fn register_repeated(
        &mut self,
        bus: &mut dyn Bus,
        pd: Pdn,
        len: usize,
        rights: Rights,
    ) -> Result<Region, DriverError> {
        self.register_times(bus, pd, 0, len, rights, (1, len.div_ceil(PAGE)))
    }

    /// Allocates so many pages, and registers all of them so many times, one time after the other.
    fn register_times(
        &mut self,
        bus: &mut dyn Bus,
        pd: Pdn,
        offset: u16,
        len: usize,
        rights: Rights,
        (count, times): (usize, usize),
    ) -> Result<Region, DriverError> {
        let memory = self.core.memory.clone();
        let start = USER_ADDRESS + u64::from(offset);
        let pages = memory.allocate_pages(count);
        let made = self.register_pages(bus, pd, start, len, &pages.repeat(times), rights);
        match made {
            Ok((index, mtt)) => Ok(Region {
                index,
                key: index << 8,
                start,
                len,
                pages,
                mtt,
                memory,
            }),
            Err(error) => {
                for page in pages {
                    memory.free(page, 1);
                }
                Err(error)
            }
        }
    }

    fn register_pages(
        &mut self,
        bus: &mut dyn Bus,
        pd: Pdn,
        start: u64,
        len: usize,
        pages: &[u64],
        rights: Rights,
    ) -> Result<(u32, MttRange), DriverError> {
        let index = self.core.reserve_mpt(bus)?;
        let mtt = match self.core.map_pages(bus, pages) {
            Ok(mtt) => mtt,
            Err(error) => {
                self.core.release_mpt(bus, index)?;
                return Err(error);
            }
        };
        let mut entry = entry_of(index, pd, start, len as u64, rights);
        entry.mtt_addr = U64::new(mtt.first.0 * MTT_ENTRY_SIZE);
        entry.entity_size = U32::new(PAGE.ilog2());
        if let Err(error) = self.enable_region(bus, index, &entry) {
            self.core.unmap_pages(bus, mtt)?;
            self.core.release_mpt(bus, index)?;
            return Err(error);
        }
        Ok((index, mtt))
    }

    fn enable_region(
        &mut self,
        bus: &mut dyn Bus,
        index: u32,
        entry: &MptEntry,
    ) -> Result<(), DriverError> {
        self.core
            .map(bus, ResourceType::MPT, index, Usage::Nobody)?;
        let command = Command::new(Opcode::SW2HW_MPT, index).with(entry);
        if let Err(error) = self.core.execute(bus, &command) {
            self.core.unmap(bus, ResourceType::MPT, index)?;
            return Err(error);
        }
        Ok(())
    }

    /// Registers all memory by its DMA addresses (`mlx4_ib_get_dma_mr`). Returns the key.
    ///
    /// # Errors
    /// Pages of the commands.
    pub fn register_all(&mut self, bus: &mut dyn Bus, pd: Pdn) -> Result<u32, DriverError> {
        let index = self.core.reserve_mpt(bus)?;
        let rights = Rights {
            local_write: true,
            ..Rights::default()
        };
        let mut entry = entry_of(index, pd, 0, u64::MAX, rights);
        entry.set_physical(true);
        entry.entity_size = U32::new(PAGE.ilog2());
        if let Err(error) = self.enable_region(bus, index, &entry) {
            self.core.release_mpt(bus, index)?;
            return Err(error);
        }
        Ok(index << 8)
    }

    /// Takes the region of all memory back.
    ///
    /// # Errors
    /// Pages of the commands.
    pub fn deregister_all(&mut self, bus: &mut dyn Bus, key: u32) -> Result<(), DriverError> {
        self.disable_region(bus, key >> 8)?;
        self.core.unmap(bus, ResourceType::MPT, key >> 8)?;
        self.core.release_mpt(bus, key >> 8)
    }

    fn disable_region(&mut self, bus: &mut dyn Bus, index: u32) -> Result<(), DriverError> {
        let command = Command::new(Opcode::HW2SW_MPT, index).variant(1);
        self.core.execute(bus, &command).map(|_| ())
    }

    /// Changes the rights to a region: takes the entry back, reads it, and hands it over again
    /// (`mlx4_ib_rereg_user_mr`).
    ///
    /// # Errors
    /// Pages of the commands.
    pub fn set_rights(
        &mut self,
        bus: &mut dyn Bus,
        region: &Region,
        rights: Rights,
    ) -> Result<(), DriverError> {
        self.disable_region(bus, region.index)?;
        let query = Command::new(Opcode::QUERY_MPT, region.index).giving(Output::Mailbox);
        let mut entry = *self.core.execute(bus, &query)?.mailbox.view::<MptEntry>();
        if entry.memory_key() != region.key || entry.start.get() != region.start {
            return Err(super::error::oops("QUERY_MPT gives another entry"));
        }
        set_rights(&mut entry, rights);
        let command = Command::new(Opcode::SW2HW_MPT, region.index).with(&entry);
        self.core.execute(bus, &command).map(|_| ())
    }

    /// Deregisters a region and gives its memory back.
    ///
    /// # Errors
    /// Pages of the commands.
    pub fn deregister(&mut self, bus: &mut dyn Bus, region: Region) -> Result<(), DriverError> {
        self.disable_region(bus, region.index)?;
        self.core.unmap_pages(bus, region.mtt)?;
        self.core.unmap(bus, ResourceType::MPT, region.index)?;
        self.core.release_mpt(bus, region.index)?;
        region.abandon();
        Ok(())
    }
}

/// The entry of a region (`mlx4_mr_enable`), without its pages.
fn entry_of(index: u32, pd: Pdn, start: u64, len: u64, rights: Rights) -> MptEntry {
    let mut entry = MptEntry {
        start: U64::new(start),
        length: U64::new(len),
        ..MptEntry::default()
    };
    entry.set_status(STATUS_VALID);
    entry.set_mio(true);
    entry.set_region(true);
    entry.set_memory_key(index << 8);
    entry.set_enable_invalidate(3);
    entry.set_pd(pd);
    set_rights(&mut entry, rights);
    entry
}

fn set_rights(entry: &mut MptEntry, rights: Rights) {
    entry.set_local_read(true);
    entry.set_local_write(rights.local_write);
    entry.set_remote_read(rights.remote_read);
    entry.set_remote_write(rights.remote_write);
    entry.set_atomic(rights.remote_atomic);
}
