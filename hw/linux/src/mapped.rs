//! Memory of functions that an adapter of the host reaches.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_api::{AddressSpace, DmaBuffer, DmaFault, FileRun, HcaError};

use crate::sys::Mapping;

/// Pages, to which buffers are aligned. A page between two of them is never given out, so that an overrun faults.
const PAGE: u64 = 4096;

/// The mapped files of an adapter, by their numbers ([`FileRun::file`]). Clones are the same files.
#[derive(Clone, Debug, Default)]
pub struct MappedFiles(Arc<Mutex<Files>>);

#[derive(Debug, Default)]
struct Files {
    next: u32,
    files: BTreeMap<u32, Mapped>,
}

/// A file, and what regions of it take of the process.
#[derive(Debug)]
struct Mapped {
    mapping: Arc<Mapping>,
    len: u64,
    /// Mappings of regions of several runs.
    mappings: usize,
    /// Bytes of regions, which an adapter pins.
    bytes: u64,
}

/// Mappings that regions of all files share equally: three quarters of the kernel's limit for a process (`vm.max_map_count`).
const ALL_MAPPINGS: usize = 49_152;

/// Times that all bytes of a file can be registered.
const TIMES_REGISTERED: u64 = 4;

/// A region's part of its file's share, until it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    files: MappedFiles,
    file: u32,
    mappings: usize,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(file) = self.files.lock().files.get_mut(&self.file) {
            file.mappings -= self.mappings;
            file.bytes -= self.bytes;
        }
    }
}

impl MappedFiles {
    fn lock(&self) -> MutexGuard<'_, Files> {
        // An insertion or a removal that panicked left the others whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns memory of up to `len` bytes, in a file of its own. It takes memory as far as it is written.
    ///
    /// # Errors
    /// Errors of the system: `len` is 0, or there are too many files or mappings.
    pub fn memory(&self, len: usize) -> io::Result<MappedMemory> {
        let mapping = Arc::new(Mapping::new(len)?);
        let mut files = self.lock();
        let file = files.next;
        let next = file.checked_add(1);
        files.next = next.ok_or(io::ErrorKind::QuotaExceeded)?;
        let mapped = Mapped {
            mapping: mapping.clone(),
            len: len as u64,
            mappings: 0,
            bytes: 0,
        };
        files.files.insert(file, mapped);
        drop(files);
        Ok(MappedMemory {
            files: self.clone(),
            file,
            mapping,
            len: len as u64,
            buffers: BTreeMap::new(),
        })
    }

    /// Returns a file.
    pub(crate) fn get(&self, file: u32) -> Option<Arc<Mapping>> {
        let files = self.lock();
        files.files.get(&file).map(|file| file.mapping.clone())
    }

    /// Takes the part that a region of these runs needs from the share of the file in which they begin. Returns `None` if too little is left.
    pub(crate) fn charge(&self, runs: &[FileRun]) -> Option<Charge> {
        let file = runs.first()?.file;
        let bytes = runs.iter().map(|run| run.len).sum::<u64>();
        // One run is where the file is mapped anyway.
        let mappings = if runs.len() == 1 { 0 } else { runs.len() };
        let mut files = self.lock();
        let share = ALL_MAPPINGS / files.files.len().max(1);
        let of = files.files.get_mut(&file)?;
        let (all_mappings, all_bytes) = (of.mappings + mappings, of.bytes.checked_add(bytes)?);
        if all_mappings > share || all_bytes > of.len.saturating_mul(TIMES_REGISTERED) {
            return None;
        }
        (of.mappings, of.bytes) = (all_mappings, all_bytes);
        drop(files);
        Some(Charge {
            files: self.clone(),
            file,
            mappings,
            bytes,
        })
    }
}

/// Memory for a consumer inside this process, in a file that is mapped: regions of it can be regions of an adapter of the host.
///
/// Buffers are the only memory there is: addresses between and behind them fault. Each buffer is zero at first.
#[derive(Debug)]
pub struct MappedMemory {
    files: MappedFiles,
    file: u32,
    mapping: Arc<Mapping>,
    len: u64,
    /// Bytes of each buffer, by its first one.
    buffers: BTreeMap<u64, u64>,
}

impl MappedMemory {
    /// Returns the place in the file of bytes of a buffer.
    fn place(&self, addr: u64, len: u64) -> Option<u64> {
        let (first, size) = self.buffers.range(..=addr).next_back()?;
        let end = addr.checked_add(len)?;
        // Addresses begin behind the first page: none is 0.
        (end <= first + size).then(|| addr - PAGE)
    }

    fn find(&self, addr: u64, len: usize) -> Result<u64, DmaFault> {
        let place = self.place(addr, len as u64);
        place.ok_or(DmaFault { addr, len })
    }
}

impl AddressSpace for MappedMemory {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let len = buf.len();
        let bytes = self.mapping.at(self.find(addr, len)?, len);
        bytes.ok_or(DmaFault { addr, len })?.read(buf);
        Ok(())
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        let len = bytes.len();
        let place = self.mapping.at(self.find(addr, len)?, len);
        place.ok_or(DmaFault { addr, len })?.write(bytes);
        Ok(())
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        let updated = self.mapping.update(self.find(addr, 8)?, update);
        updated.ok_or(DmaFault { addr, len: 8 })
    }

    fn is_mapped(&self, addr: u64, len: usize) -> bool {
        self.find(addr, len).is_ok()
    }

    fn runs(&self, addr: u64, len: u64) -> Option<Vec<FileRun>> {
        let offset = self.place(addr, len)?;
        let file = self.file;
        Some(vec![FileRun { file, offset, len }])
    }

    fn allocate(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        const FULL: HcaError = HcaError::InsufficientResources;

        let size = u64::try_from(len).map_err(|_| FULL)?;
        let mut addr = PAGE;
        for (first, taken) in &self.buffers {
            if first
                .checked_sub(addr)
                .is_some_and(|gap| gap >= size.saturating_add(PAGE))
            {
                break;
            }
            addr = (first + taken).next_multiple_of(PAGE) + PAGE;
        }
        let end = addr.checked_add(size).ok_or(FULL)?;
        if size == 0 || end - PAGE > self.len {
            return Err(FULL);
        }
        self.buffers.insert(addr, size);
        Ok(DmaBuffer { addr, len })
    }

    fn free(&mut self, buffer: DmaBuffer) {
        if let Some(size) = self.buffers.remove(&buffer.addr) {
            let len = usize::try_from(size.next_multiple_of(PAGE)).unwrap_or(0);
            self.mapping.discard(buffer.addr - PAGE, len);
        }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        self.files.lock().files.remove(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use hca_api::Spaces;

    use super::*;

    #[test]
    fn buffers_are_apart_zero_at_first_and_runs_of_the_file() {
        let files = MappedFiles::default();
        let mut memory = files.memory(0x8000).unwrap();
        let [one, two] = [5000, 8].map(|len| memory.allocate(len).unwrap());
        memory.write(one.addr, &[7; 5000]).unwrap();
        assert!(memory.write(one.addr, &[7; 5001]).is_err());
        assert!(memory.read(one.addr + 5000, &mut [0]).is_err());
        assert_eq!(memory.update_u64(two.addr, &mut |old| old + 3), Ok(0));
        assert!(memory.update_u64(one.addr + 4, &mut |old| old).is_err());
        let run = memory.runs(one.addr + 9, 100).unwrap()[0];
        let mut bytes = [0; 100];
        let file = files.get(run.file).unwrap();
        file.at(run.offset, 100).unwrap().read(&mut bytes);
        assert_eq!((bytes, run.len), ([7; 100], 100));
        assert_eq!(memory.runs(two.addr, 9), None);
        let mut spaces = Spaces::new();
        let id = spaces.add(Box::new(memory)).unwrap();
        let addr = id.address(one.addr + 9).unwrap();
        assert_eq!(spaces.runs(addr, 100), Some(vec![run]));
        assert_eq!(spaces.runs(one.addr + 9, 100), None);
        spaces.set_open(id, false);
        assert_eq!(spaces.runs(addr, 100), None);
        let mut memory = spaces.remove(id).unwrap();
        memory.free(one);
        let again = memory.allocate(5000).unwrap();
        assert_eq!(again, one, "a gap is used again");
        memory.read(again.addr, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 100]);
        assert_eq!(
            memory.allocate(0x8000),
            Err(HcaError::InsufficientResources)
        );
        drop(memory);
        assert!(files.get(run.file).is_none());
    }

    #[test]
    fn regions_of_a_file_take_no_more_than_its_share() {
        let files = MappedFiles::default();
        let memories = [(); 2].map(|()| files.memory(0x10_0000).unwrap());
        let runs = |of: usize, count: usize, len| {
            let run = FileRun {
                file: memories[of].file,
                offset: 0,
                len,
            };
            vec![run; count]
        };
        let whole = || files.charge(&runs(0, 1, 0x10_0000));
        let charges: Vec<Charge> = core::iter::from_fn(whole).collect();
        assert_eq!(charges.len(), 4);
        assert!(files.charge(&runs(0, 1, 1)).is_none());
        assert!(files.charge(&runs(1, 1, 1)).is_some(), "the other's share");
        drop(charges);
        let half = ALL_MAPPINGS / 2;
        let scattered = files.charge(&runs(0, half, 1));
        assert!(scattered.is_some() && files.charge(&runs(0, 2, 1)).is_none());
        let one = files.charge(&runs(0, 1, 1));
        assert!(one.is_some(), "one run is no mapping");
        drop(scattered);
        assert!(files.charge(&runs(0, half + 1, 1)).is_none());
        drop(memories);
        drop(one);
        assert!(files.charge(&[]).is_none());
    }
}
