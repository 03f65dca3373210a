//! Page addresses of queues and regions.

use mlx4_defs::mtt::{MAX_ENTRIES_PER_WRITE, MttEntry, WriteMtt};
use mlx4_defs::resource::ResourceType;
use mlx4_defs::{MttIndex, Opcode};
use zerocopy::network_endian::U64;

use super::buffer::{Buffer, BufferKind, MappedBuffer, MttRange};
use super::lower::Core;
use super::{Bus, Command, DriverError};

impl Core {
    /// Allocates a queue's memory and maps it.
    pub(super) fn map_buffer(
        &mut self,
        bus: &mut dyn Bus,
        bytes: usize,
        kind: BufferKind,
    ) -> Result<MappedBuffer, DriverError> {
        let buffer = Buffer::new(&self.memory, bytes, kind);
        match self.map_pages(bus, buffer.blocks()) {
            Ok(mtt) => Ok(MappedBuffer { buffer, mtt }),
            Err(error) => {
                buffer.free();
                Err(error)
            }
        }
    }

    /// Unmaps a queue's memory and frees it.
    pub(super) fn unmap_buffer(
        &mut self,
        bus: &mut dyn Bus,
        mapped: MappedBuffer,
    ) -> Result<(), DriverError> {
        let unmapped = self.unmap_pages(bus, mapped.mtt);
        mapped.buffer.free();
        unmapped
    }

    /// Reserves entries for pages and writes their addresses (`mlx4_mtt_init`, `mlx4_write_mtt`).
    pub(super) fn map_pages(
        &mut self,
        bus: &mut dyn Bus,
        pages: &[u64],
    ) -> Result<MttRange, DriverError> {
        let order = pages.len().next_power_of_two().ilog2();
        let first = self.reserve_and_map(bus, ResourceType::MTT, u64::from(order))?;
        let first = MttIndex(first);
        let range = MttRange { first, order };
        match self.write_pages(bus, range, pages) {
            Ok(()) => Ok(range),
            Err(error) => {
                self.unmap_pages(bus, range)?;
                Err(error)
            }
        }
    }

    fn write_pages(
        &mut self,
        bus: &mut dyn Bus,
        range: MttRange,
        pages: &[u64],
    ) -> Result<(), DriverError> {
        let starts = (range.first.0..).step_by(MAX_ENTRIES_PER_WRITE);
        for (first, pages) in starts.zip(pages.chunks(MAX_ENTRIES_PER_WRITE)) {
            let mut write = WriteMtt {
                first: U64::new(first),
                ..WriteMtt::default()
            };
            for (entry, page) in write.entries.iter_mut().zip(pages) {
                *entry = MttEntry::new(*page);
            }
            let count = u32::try_from(pages.len()).unwrap_or(u32::MAX);
            self.execute(bus, &Command::new(Opcode::WRITE_MTT, count).with(&write))?;
        }
        Ok(())
    }

    /// Frees entries (`mlx4_mtt_cleanup`).
    pub(super) fn unmap_pages(
        &mut self,
        bus: &mut dyn Bus,
        range: MttRange,
    ) -> Result<(), DriverError> {
        let value = range.first.0 | u64::from(range.order) << 32;
        self.unmap_and_release(bus, ResourceType::MTT, value)
    }
}
